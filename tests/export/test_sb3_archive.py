"""A Stable-Baselines3 `.zip` is known by its content, capped before it is unpacked, and never touches the disk."""

import json
import struct
import zipfile

import pytest
from sb3_factory import SB3, dqn_settings, torch_archive, write_agent, zipped

from quarl_device.errors import ModelFileError, UnsafeSource
from quarl_export.importers.sb3 import archive as archive_module
from quarl_export.importers.sb3 import is_sb3
from quarl_export.importers.sb3.archive import read_archive


@pytest.fixture
def agent(tmp_path):
    return write_agent(tmp_path / "agent.zip")


def directory(data):
    """Return where the outer archive's directory begins: its end says so."""
    return struct.unpack_from("<I", data, data.rindex(b"PK\x05\x06") + 16)[0]


def raw(path, members, compression=zipfile.ZIP_STORED):
    path.write_bytes(zipped(members, compression))
    return path


def test_an_archive_of_stable_baselines3_itself():
    found = read_archive(SB3 / "ppo_acrobot.zip")
    assert found.version == "2.9.2"
    assert found.settings["n_steps"] == 32
    assert found.policy.startswith(b"PK")


def test_it_is_known_by_its_content(agent, tmp_path):
    assert is_sb3(agent)
    assert is_sb3(agent.rename(tmp_path / "no_suffix"))
    assert all(is_sb3(path) for path in SB3.glob("*.zip"))


def test_a_cut_off_one_is_known_and_refused_as_that(agent):
    whole = agent.read_bytes()
    for length in (60, 3_000, len(whole) - 300, len(whole) - 100, len(whole) - 1):
        agent.write_bytes(whole[:length])
        assert is_sb3(agent)
        with pytest.raises(ModelFileError, match="cut off"):
            read_archive(agent)


def test_bytes_in_front_are_refused(agent):
    agent.write_bytes(b"#!/bin/sh\n" + agent.read_bytes())
    assert not is_sb3(agent)
    with pytest.raises(ModelFileError, match="does not begin"):
        read_archive(agent)


def test_one_that_was_packed_again_in_another_order_is_known(tmp_path):
    members = {"policy.pth": torch_archive({}), "data": b"{}"}
    assert is_sb3(raw(tmp_path / "a.zip", members, zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", b"PK\x05\x06" + bytes(18), b"\x1c\x00\x00\x00TFL3", b"\x89HDF\r\n\x1a\n", b"junk" * 50],
)
def test_foreign_files_are_not_it(tmp_path, content):
    path = tmp_path / "x.zip"
    path.write_bytes(content)
    assert not is_sb3(path)
    with pytest.raises(ModelFileError):
        read_archive(path)


def test_other_archives_directories_and_nothing_are_not_it(tmp_path):
    keras = raw(tmp_path / "a.keras", {"config.json": b"{}", "metadata.json": b"{}", "model.weights.h5": b""})
    assert not is_sb3(keras)
    with pytest.raises(ModelFileError, match=r"missing: data, policy\.pth"):
        read_archive(keras)
    for path in (tmp_path, tmp_path / "none.zip"):
        assert not is_sb3(path)
        with pytest.raises(ModelFileError, match="cannot be read"):
            read_archive(path)


@pytest.mark.parametrize(("gone", "says"), [("data", "missing: data"), ("policy__pth", "missing: policy.pth")])
def test_missing_members(tmp_path, gone, says):
    path = write_agent(tmp_path / "a.zip", **{gone: None})
    with pytest.raises(ModelFileError, match=says):
        read_archive(path)


def test_a_version_is_not_needed(tmp_path):
    path = write_agent(tmp_path / "a.zip", _stable_baselines3_version=None)
    assert read_archive(path).version == ""


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/passwd", "C:\\evil", "..", "a\\..\\b"])
def test_names_that_lead_out_are_refused_and_nothing_is_written(tmp_path, name):
    inside = tmp_path / "inside"
    inside.mkdir()
    path = write_agent(inside / "a.zip", **{name: b"x"})
    with pytest.raises(UnsafeSource, match="leads out"):
        read_archive(path)
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["a.zip", "inside"]


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    members = {"data": json.dumps(dqn_settings()).encode(), "policy.pth": bytes(20 << 20)}
    path = raw(tmp_path / "a.zip", members, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    with pytest.raises(UnsafeSource, match="zip bomb"):
        read_archive(path)


def test_members_and_the_file_are_capped(agent, monkeypatch):
    for name, says in (
        ("MAX_POLICY_BYTES", "policy.pth"),
        ("MAX_JSON_BYTES", "data"),
        ("MAX_FILE_BYTES", "bytes are over the cap"),
        ("MAX_MEMBERS", "members are over the cap"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(archive_module, name, 2)
            with pytest.raises(ModelFileError, match=says):
                read_archive(agent)


def test_a_member_that_is_larger_than_it_claims_gives_no_more(agent):
    data = bytearray(agent.read_bytes())
    # The directory's entry for "data", the first: compressed and decompressed size.
    struct.pack_into("<II", data, directory(data) + 20, 10, 10)
    agent.write_bytes(bytes(data))
    with pytest.raises(ModelFileError, match=r"damaged|cut off"):
        read_archive(agent)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused(agent):
    with zipfile.ZipFile(agent, "a") as archive:
        archive.writestr("policy.pth", b"another")
    with pytest.raises(ModelFileError, match="twice"):
        read_archive(agent)


def test_other_compressions_are_refused(tmp_path):
    path = raw(tmp_path / "a.zip", {"data": b"{}" * 99, "policy.pth": b"x" * 99}, zipfile.ZIP_BZIP2)
    with pytest.raises(ModelFileError, match="compressed by method 12"):
        read_archive(path)


def test_encrypted_members_are_refused(agent):
    data = bytearray(agent.read_bytes())
    data[directory(data) + 8] |= 1
    agent.write_bytes(bytes(data))
    with pytest.raises(ModelFileError, match="encrypted"):
        read_archive(agent)


def test_a_flipped_byte_is_noticed(agent):
    data = bytearray(agent.read_bytes())
    data[data.index(b"policy_kwargs")] ^= 1
    agent.write_bytes(bytes(data))
    with pytest.raises(ModelFileError, match="damaged"):
        read_archive(agent)


def test_a_name_that_is_no_text(agent):
    data = bytearray(agent.read_bytes())
    # The local header of the first member: a flag for UTF-8, and a name that is none.
    struct.pack_into("<H", data, 6, 0x800)
    data[30] = 0xFF
    agent.write_bytes(bytes(data))
    with pytest.raises(ModelFileError, match="damaged"):
        read_archive(agent)


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_settings_that_are_no_json_object(tmp_path, text):
    path = write_agent(tmp_path / "a.zip", data=text)
    with pytest.raises(ModelFileError, match="JSON"):
        read_archive(path)
