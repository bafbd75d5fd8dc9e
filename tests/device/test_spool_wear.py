"""What `quarl-device bench --spool` measures: the bytes that really are in the files."""

import json

import pytest

from quarl_device import cli
from quarl_device.errors import StateUnwritable, UsageError
from quarl_device.spool import wear as wear_module
from quarl_device.spool.config import SpoolConfig
from quarl_device.spool.records import HEADER_BYTES
from quarl_device.spool.wear import spool_wear


def test_it_counts_every_byte_and_leaves_nothing(tmp_path):
    wear = spool_wear(tmp_path / "disk", duration_s=0.2, steps_per_s=1e6, config=SpoolConfig(sync="never"))
    blocks = wear.steps / wear.rows_per_block
    assert (wear.source, wear.envs, wear.rows_per_block, wear.sync) == ("CartPole-v1", 1, 256, "never")
    assert blocks == int(blocks) > 0
    # Nothing but blocks, their headers, a preamble per file, and perhaps a note.
    payload = wear.spool_bytes_per_step * wear.steps - blocks * HEADER_BYTES
    assert 0 <= payload - blocks * wear.block_bytes <= 8 * (1 + blocks) + HEADER_BYTES + 0.01 * wear.steps
    if wear.disk_bytes_per_step is None:
        assert wear.gib_per_hour is None
    else:
        assert wear.gib_per_hour == pytest.approx(wear.disk_bytes_per_step * 1e6 * 3600 / 2**30, rel=0.01)
    assert list((tmp_path / "disk").iterdir()) == []


def test_it_writes_no_faster_than_asked(tmp_path):
    wear = spool_wear(tmp_path, duration_s=0.3, steps_per_s=100.0)
    assert wear.steps == 256, "one block is enough for three seconds"


def test_synthetic_observations_are_whole_in_the_blocks(tmp_path):
    wear = spool_wear(tmp_path, observation=(84, 84, 4), duration_s=0.1, steps_per_s=1e4)
    assert wear.source == "synthetic uint8 84x84x4"
    assert wear.block_bytes > (wear.rows_per_block + 1) * 84 * 84 * 4


def test_where_the_kernel_counts_nothing_it_says_nothing_of_a_disk(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(wear_module, "_written_bytes", lambda: 0)
    words = ["bench", "--spool", str(tmp_path), "--seconds", "1", "--rate", "500"]
    assert cli.main(words) == 0
    assert "what reaches a disk is not counted here" in capsys.readouterr().out
    assert cli.main([*words, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["disk_bytes_per_step"], told["gib_per_hour"]) == (None, None)
    assert told["spool_bytes_per_step"] > 0


@pytest.mark.parametrize(
    "wrong",
    [{"num_envs": 0}, {"duration_s": 0}, {"steps_per_s": 0}, {"observation": ()}, {"observation": (0, 3)},
     {"observation": (1024, 1024)}],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(tmp_path, wrong):
    with pytest.raises(UsageError):
        spool_wear(tmp_path, **{"duration_s": 0.01, **wrong})


def test_a_directory_that_cannot_be_used_is_code_50(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateUnwritable):
        spool_wear(tmp_path / "file", duration_s=0.01)


def test_the_command_says_it_in_words_and_in_json(tmp_path, capsys):
    words = ["bench", "--spool", str(tmp_path), "--seconds", "1", "--rate", "500"]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert "GiB per hour at 500 steps/s" in said or "not counted here" in said
    assert cli.main([*words, "--observation", "8x8", "--spool-sync", "always", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["source"], told["sync"], told["steps_per_s"]) == ("synthetic uint8 8x8", "always", 500.0)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["bench", "--rate", "5"], "go with --spool"),
        (["bench", "--observation", "3x3"], "go with --spool"),
        (["bench", "m.tflite", "--spool", "."], "not a model"),
        (["bench", "--spool", ".", "--observation", "84xfour"], "a shape such as"),
        (["run", "--broker", "mqtt://h", "--spool-sync", "often"], "whole number"),
        (["run", "--broker", "mqtt://h", "--spool-mib", "0"], "whole number in 1.."),
        (["run", "--broker", "mqtt://h", "--when-full", "panic"], "invalid choice"),
        (["run", "--broker", "mqtt://h", "--max-offline", "-1"], "whole number in 0.."),
    ],
)
def test_wrong_usage_is_code_2(words, found, capsys):
    assert cli.main(words) == 2
    assert found in capsys.readouterr().err
