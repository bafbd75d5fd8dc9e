"""Bundles, among them such as no honest sender makes."""

import hashlib
import json
import os

import pytest
from install_scene import FILES, WHEEL, make_bundle

from quarl_device.deploy.slots import Slot
from quarl_device.errors import BundleRefused
from quarl_device.install import bundle as module
from quarl_device.install.bundle import read_bundle
from quarl_device.install.found import ACCEPTED_SLOTS

TWINS = json.dumps({"schema": "quarl.bundle.v1", "files": {"device.toml": "0" * 64, "twin": "1" * 64}}).replace(
    "twin", "device.toml"
)


def digest(data):
    return hashlib.sha256(data).hexdigest()


def test_a_bundle_is_read(tmp_path):
    bundle = read_bundle(make_bundle(tmp_path))
    assert bundle.wheel == tmp_path / WHEEL
    assert bundle.wheelhouse == tmp_path / "wheels"
    assert bundle.pip_wheel == tmp_path / "wheels/pip-26.0-py3-none-any.whl"
    assert bundle.credentials == {"client.key": b"secret key", "ca.crt": b"authority"}
    assert (bundle.password, bundle.learner_key, bundle.policy) == (b"secret password", b"public", None)
    assert bundle.size_bytes == sum(len(data) for name, data in FILES.items() if name.endswith(".whl"))


def test_the_least_bundle(tmp_path):
    bundle = read_bundle(make_bundle(tmp_path, {WHEEL: b"wheel", "device.toml": b""}))
    assert (bundle.wheelhouse, bundle.pip_wheel, bundle.password) == (None, None, None)
    assert bundle.credentials == {}


@pytest.mark.parametrize(
    "name",
    [
        "../etc/passwd",
        "/etc/passwd",
        "wheels/../../x.whl",
        "wheels/a/b.whl",
        "wheels/.hidden.whl",
        "credentials/..",
        "credentials/a/b",
        "credentials/.ssh",
        "device.toml\n",
        "wheels/a b.whl",
        "setup.py",
        "quarl_edge_device-0.1.0-cp311-cp311-linux_x86_64.whl",
        "wheels/numpy.tar.gz",
        "x" * 5_000,
        "",
    ],
)
def test_a_path_that_no_bundle_has_is_refused_before_anything_is_opened(name, tmp_path):
    make_bundle(tmp_path)
    files = {path: digest(data) for path, data in FILES.items()}
    (tmp_path / "bundle.json").write_text(json.dumps({"schema": module.SCHEMA, "files": {**files, name: "0" * 64}}))
    with pytest.raises(BundleRefused, match="no bundle has a file"):
        read_bundle(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        "{}",
        '{"schema": "quarl.bundle.v2", "files": {}}',
        '{"schema": "quarl.bundle.v1"}',
        '{"schema": "quarl.bundle.v1", "files": []}',
        '{"schema": "quarl.bundle.v1", "files": {}, "more": 1}',
        '{"schema": "quarl.bundle.v1", "files": {"device.toml": 1}}',
        '{"schema": "quarl.bundle.v1", "files": {"device.toml": "ABC"}}',
        TWINS,
        '{"schema": "quarl.bundle.v1", "files": {}}',
        "[" * 100_000,
        "\ud800".encode("utf-16", "surrogatepass").decode("latin-1"),
        " " * 2_000_000,
        '{"schema": ' + "1" * 10_000 + "}",
        json.dumps({"schema": "quarl.bundle.v1", "files": {f"wheels/a{i}.whl": "0" * 64 for i in range(3_000)}}),
    ],
    ids=range(18),
)
def test_an_absurd_list_is_refused(text, tmp_path):
    (tmp_path / "bundle.json").write_text(text)
    with pytest.raises(BundleRefused):
        read_bundle(tmp_path)


@pytest.mark.parametrize("name", ["extra", "wheels/extra.whl", "credentials/extra", "wheels/folder/", ".hidden", "a/"])
def test_what_is_not_listed_is_refused(name, tmp_path):
    make_bundle(tmp_path)
    path = tmp_path / name
    path.mkdir() if name.endswith("/") else path.write_bytes(b"x")
    with pytest.raises(BundleRefused, match="not listed"):
        read_bundle(tmp_path)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_that_is_missing_changed_a_link_or_a_pipe_is_refused(name, tmp_path):
    make_bundle(tmp_path)
    path = tmp_path / name
    data = path.read_bytes()
    path.write_bytes(data + b"!")
    with pytest.raises(BundleRefused, match="is not what bundle"):
        read_bundle(tmp_path)
    path.unlink()
    with pytest.raises(BundleRefused, match="cannot be read: No such file"):
        read_bundle(tmp_path)
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    elsewhere.write_bytes(data)
    path.symlink_to(elsewhere)
    with pytest.raises(BundleRefused, match="cannot be read"):
        read_bundle(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BundleRefused, match="no regular file"):
        read_bundle(tmp_path)


@pytest.mark.parametrize("name", ["wheels", "credentials", "bundle.json"])
def test_a_link_in_place_of_a_directory_or_the_list_is_refused(name, tmp_path):
    bundle = make_bundle(tmp_path / "bundle")
    (bundle / name).rename(tmp_path / name)
    (bundle / name).symlink_to(tmp_path / name)
    with pytest.raises(BundleRefused):
        read_bundle(bundle)


@pytest.mark.parametrize(
    ("name", "size_bytes"), [("password", 4_096), ("device.toml", 65_536), ("credentials/client.key", 65_536)]
)
def test_sizes_have_caps(name, size_bytes, tmp_path):
    files = {**FILES, name: b"#" * size_bytes}
    read_bundle(make_bundle(tmp_path, files))
    with pytest.raises(BundleRefused, match="over its cap"):
        read_bundle(make_bundle(tmp_path, {**files, name: b"#" * (size_bytes + 1)}))


def test_wheels_have_caps(tmp_path, monkeypatch):
    make_bundle(tmp_path)
    monkeypatch.setattr(module, "_MAX_TOTAL_BYTES", 10)
    with pytest.raises(BundleRefused, match="together"):
        read_bundle(tmp_path)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({WHEEL: b""}, "no device.toml"),
        ({"device.toml": b""}, "has 0 wheels"),
        ({WHEEL: b"", "quarl_edge_device-0.2.0-py3-none-any.whl": b"", "device.toml": b""}, "has 2 wheels"),
        ({WHEEL: b"", "device.toml": b"mode = "}, "no TOML"),
        ({WHEEL: b"", "device.toml": b"\xff"}, "no TOML"),
        ({WHEEL: b"", "device.toml": b"a = " + b"[" * 20_000}, "no TOML"),
    ],
)
def test_what_does_not_make_a_bundle(files, said, tmp_path):
    with pytest.raises(BundleRefused, match=said):
        read_bundle(make_bundle(tmp_path, files))


def test_no_directory_is_no_bundle(tmp_path):
    with pytest.raises(BundleRefused, match="no directory of a bundle"):
        read_bundle(tmp_path / "none")


def test_the_slots_have_the_names_that_the_agent_gives_them():
    assert {*ACCEPTED_SLOTS, "previous", "refused"} == set(Slot)
