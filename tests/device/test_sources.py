"""A source of policies where a policy file is expected: the error names the command that reads it."""

import json
from pathlib import Path

import pytest

from quarl_device.cli import main
from quarl_device.sources import kind_of_source

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "my run"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize("command", ["inspect", "bench"])
def test_a_board_names_the_command_of_the_host(capsys, command, run_folder):
    for source, kind in ((DATA / "keras3" / "elu.keras", "an archive"), (run_folder, "a run")):
        assert main([command, str(source), "--format", "json"]) == 10
        hint = json.loads(capsys.readouterr().out)["error"]["hint"]
        assert kind in hint
        quoted = f"'{source}'" if " " in str(source) else str(source)
        assert f"quarl-edge export model.tflite --from {quoted};" in hint
        assert f"quarl-edge inspect {quoted} lists" in hint


def test_kinds_are_told_by_their_first_bytes(tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"")
    (tmp_path / "m.h5").write_bytes(b"\x89HDF\r\n\x1a\n....")
    (tmp_path / "text.keras").write_text("PK is not enough")
    assert kind_of_source(tmp_path / "saved") == "a SavedModel"
    assert kind_of_source(tmp_path / "m.h5").startswith("an HDF5")
    assert kind_of_source(tmp_path / "text.keras") == ""
    assert kind_of_source(tmp_path) == ""
    assert kind_of_source(tmp_path / "none") == ""


def test_a_file_of_no_kind_gets_no_such_hint(capsys, tmp_path):
    (tmp_path / "text").write_text("no model at all")
    assert main(["inspect", str(tmp_path / "text")]) == 10
    assert "--from" not in capsys.readouterr().err
