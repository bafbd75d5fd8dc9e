"""The parts of the emulated board that need neither root nor an emulator: these run with all other tests."""

from dataclasses import replace

import pytest
from board_emulation import NoBoard, rule_to_register
from board_recipe import RECIPES, cache_folder, mirror
from board_wheels import requirements

DEB822 = """Types: deb
# http://snapshot.example/archive
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""
VENDOR = "deb https://vendor.example/apt cloud-sdk main\n"


def test_the_mirror_is_the_one_of_apt_in_both_of_its_forms():
    assert mirror([DEB822]) == "http://mirror.example/debian"
    assert mirror([VENDOR, DEB822]) == "http://mirror.example/debian"
    assert mirror(["deb [arch=amd64 trusted=yes] http://old.example/debian bookworm main contrib\n"]) == (
        "http://old.example/debian"
    )


def test_no_mirror_where_there_is_only_another_vendor_or_a_comment():
    assert mirror([VENDOR, "# deb http://old.example/debian bookworm main\n", ""]) is None
    assert mirror(["Types: deb-src\nURIs: http://x.example\nSuites: bookworm\nComponents: main\n"]) is None


def test_a_recipe_has_another_digest_when_anything_of_it_changes():
    recipe = RECIPES["arm64"]
    others = [
        RECIPES["armhf"], replace(recipe, suite="trixie"), replace(recipe, packages=recipe.packages[1:]),
        replace(recipe, finish=recipe.finish + "true\n"),
    ]  # fmt: skip
    assert len({recipe.digest, *(other.digest for other in others)}) == 5
    assert replace(recipe).digest == recipe.digest


def test_the_cache_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "quarl-edge" / "board"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder().parts[-3:] == (".cache", "quarl-edge", "board")


@pytest.mark.parametrize(("flags", "wanted"), [("OP", "OPFC"), ("OPF", "OPFC"), ("C", "CF"), ("FC", "FC"), ("", "FC")])
def test_the_emulator_is_registered_so_that_it_works_in_every_root(flags, wanted):
    rule = rf":qemu-x:M::\x7f\x45:\xff\xff:/usr/bin/qemu-x:{flags}"
    assert rule_to_register(f"# a comment\n\n{rule}\n") == rule.removesuffix(flags) + wanted


@pytest.mark.parametrize("text", ["", "# nothing", ":a:b:c", ":a:M::b:c:d:F\n:b:M::b:c:d:F"])
def test_a_rule_in_another_form_is_refused(text):
    with pytest.raises(NoBoard, match="not in a form"):
        rule_to_register(text)


def test_each_processor_has_the_runtime_that_it_is_for():
    arm64, armhf = requirements(RECIPES["arm64"]), requirements(RECIPES["armhf"])
    assert any(one.startswith("ai-edge-litert") for one in arm64)
    assert any(one.startswith("tflite-runtime") for one in armhf)
    assert not any(one.startswith("tflite-runtime") for one in arm64)
    assert not any(one.startswith(("ai-edge-litert", "numpy")) for one in armhf)
