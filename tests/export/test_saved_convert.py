"""SavedModels converted in a process of their own: what it may take, and what is said where it takes more."""

import json
import subprocess
import sys

import pytest

from quarl_device.errors import ConversionError
from quarl_export.importers import import_policy, saved_convert
from quarl_export.importers.saved_convert import BASE_BYTES, COPIES, convert_saved_model
from quarl_export.keras2 import tf
from quarl_export.silence import without_tensorflow_noise


def test_constants_that_unfold_to_gigabytes_end_in_a_refusal(tmp_path):
    def act(observation):
        grown = tf.constant([1.0, 2.0])
        for _ in range(33):  # 64 GiB from two numbers
            grown = tf.concat([grown, tf.sin(grown)], 0)
        return {"q_values": observation + tf.reduce_sum(grown)}

    module = tf.Module()
    module.act = tf.function(act, input_signature=[tf.TensorSpec((1, 4), tf.float32, name="observation")])
    with without_tensorflow_noise():
        tf.saved_model.save(module, str(tmp_path / "agent"), signatures={"action": module.act})
    stored = sum(file.stat().st_size for file in (tmp_path / "agent").rglob("*") if file.is_file())
    assert stored < 100_000
    with pytest.raises(ConversionError, match=r"more than [\d,]+ bytes of memory.*save the acting part without"):
        import_policy(tmp_path / "agent")


@pytest.fixture
def ended(monkeypatch):
    """Have the child be a small script instead, and keep what it was started with."""
    started = []
    run = subprocess.run

    def as_child(script):
        def instead(words, **settings):
            started.append(words)
            return run([sys.executable, "-c", script, *words[3:]], **settings)

        monkeypatch.setattr(saved_convert.subprocess, "run", instead)
        return started

    return as_child


def test_the_cap_follows_the_weights(ended, tmp_path):
    started = ended("import pathlib, sys; pathlib.Path(sys.argv[1], 'converted.tflite').write_bytes(b'file')")
    assert convert_saved_model(tmp_path, "action", weight_bytes=1000, what="it") == b"file"
    assert started[0][-3:] == [str(tmp_path), "action", str(BASE_BYTES + COPIES * 1000)]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("import sys; sys.stderr.write('std::bad_alloc'); sys.exit(1)", "bytes of memory"),
        ('print(\'{"error": "MemoryError: "}\'); raise SystemExit(1)', "bytes of memory"),
        ('print(\'{"error": "ValueError: no such key"}\'); raise SystemExit(1)', "'action': ValueError: no such key"),
        ("import os; os.kill(os.getpid(), 9)", "ended with -9"),
        ("print('[]'); raise SystemExit(1)", "ended with 1"),
        ("", "ended with 0"),
    ],
)
def test_however_the_process_ends_it_is_one_clear_error(ended, tmp_path, script, says):
    ended(script)
    with pytest.raises(ConversionError) as refused:
        convert_saved_model(tmp_path, "action", weight_bytes=0, what="it")
    assert says in refused.value.message


def test_a_conversion_without_end_is_ended(ended, tmp_path):
    ended("import time; time.sleep(60)")
    with pytest.raises(ConversionError, match=r"took more than 0\.2 s"):
        convert_saved_model(tmp_path, "action", weight_bytes=0, what="it", deadline_s=0.2)


def test_a_system_without_processes_is_said(monkeypatch, tmp_path):
    def none(*_, **__):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(saved_convert.subprocess, "run", none)
    with pytest.raises(ConversionError, match="no process to convert it in"):
        convert_saved_model(tmp_path, "action", weight_bytes=0, what="it")


def test_the_process_says_what_tensorflow_says(tmp_path):
    code = f"from {saved_convert.__name__} import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "action", str(BASE_BYTES)], capture_output=True, check=False
    )
    assert done.returncode == 1
    assert "SavedModel" in json.loads(done.stdout.splitlines()[-1])["error"]
