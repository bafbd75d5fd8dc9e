"""`quarl-edge sign`: a file that devices take, and the public half of the key beside it."""

import json
from pathlib import Path

import pytest

from quarl_device.deploy.signed import open_signed
from quarl_device.policy_file import read_policy_path
from quarl_device.wire.keys import LearnerKey, PublicKey
from quarl_edge.cli import main

MODEL = Path(__file__).parent.parent / "data" / "cartpole.tflite"


@pytest.fixture(autouse=True)
def _own_configuration(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_a_signed_file_and_the_key_that_train_uses(tmp_path, capsys):
    target = tmp_path / "release.qpol"
    assert main(["sign", str(MODEL), "-o", str(target), "--version", "7", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    key = PublicKey.from_file(Path(said["public_key"]))
    assert key == LearnerKey.load_or_create(tmp_path / "config" / "quarl-edge" / "learner.key").public
    opened = open_signed(target.read_bytes(), key)
    assert (opened.name, opened.file.data) == ("7", MODEL.read_bytes())
    assert said["sha256"] == read_policy_path(MODEL).sha256


def test_a_later_file_has_a_higher_version_by_itself(tmp_path, capsys, monkeypatch):
    versions = []
    for now in (1_800_000_000.5, 1_800_000_002.0):
        monkeypatch.setattr("time.time", lambda now=now: now)
        assert main(["sign", str(MODEL), "-o", str(tmp_path / "m.qpol"), "--format", "json"]) == 0
        versions.append(json.loads(capsys.readouterr().out.splitlines()[-1])["version"])
    assert versions == [1_800_000_000, 1_800_000_002]


def test_text_names_the_next_step(tmp_path, capsys):
    assert main(["sign", str(MODEL), "-o", str(tmp_path / "m.qpol")]) == 0
    out = capsys.readouterr().out
    assert f"quarl-device run --mode deploy --policy {tmp_path}/m.qpol --learner-key {tmp_path}/learner.pub" in out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["/no/such/file"], 10),
        ([str(MODEL), "-o", "/no/such/folder/m.qpol"], 10),
        ([str(MODEL), "--version", "-1"], 2),
        ([str(MODEL), "-o", str(MODEL)], 2),
    ],
)
def test_what_cannot_be_signed(words, code, capsys):
    assert main(["sign", *words]) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_another_key_is_not_written_over_a_public_one(tmp_path):
    LearnerKey(bytes(32)).public.save(tmp_path / "learner.pub")
    assert main(["sign", str(MODEL), "-o", str(tmp_path / "m.qpol")]) == 41
    assert not (tmp_path / "m.qpol").exists()
