from __future__ import annotations

import os
import subprocess
import sys

import pytest

from quarl_export.silence import without_tensorflow_noise

NOISE = [
    "I0000 00:00:1796012196.772060    5800 port.cc:153] oneDNN custom operations are on.",
    "W0000 00:00:1796012196.772060    5800 tf_tfl_flatbuffer_helpers.cc:365] Ignored output_format.",
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "2026-11-30 04:54:47.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary",
]
WORDS = ["something happened", "E0000 00:00:1796012196.772060 5800 x.cc:1] an error", "2026-11-30 04:54:47 INFO ours"]


@pytest.mark.parametrize("line", NOISE)
def test_noise_is_dropped(capfd, line):
    with without_tensorflow_noise():
        os.write(2, line.encode() + b"\n")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("line", WORDS)
def test_other_words_are_passed_on(capfd, line):
    with without_tensorflow_noise():
        os.write(2, line.encode() + b"\n")
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == line + "\n"


def test_words_survive_an_exception(capfd):
    def fail():
        with without_tensorflow_noise():
            os.write(2, b"why it failed\n")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert capfd.readouterr().err == "why it failed\n"
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_package_imports_without_tensorflow_and_tensorflow_in_silence():
    code = (
        "import sys, quarl_export.networks, quarl_export.snapshot, quarl_export.checkpoint, quarl_export.audit;"
        "assert 'tensorflow' not in sys.modules;"
        "import quarl_export.converter"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
