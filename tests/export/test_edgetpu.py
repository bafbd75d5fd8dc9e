"""The Edge TPU compiler's log, and running it: a small script stands for the closed binary, which is not here."""

import stat
from pathlib import Path

import pytest

from quarl_device.errors import ConversionError, MissingExtra, ModelFileError
from quarl_export.edgetpu import compile_for_edgetpu, find_compiler, parse_log

LOGS = Path(__file__).parents[1] / "data" / "edgetpu_logs"
MODEL = Path(__file__).parents[1] / "data" / "reports" / "pixels_int8.tflite"


def log(name):
    return (LOGS / f"{name}.txt").read_text()


def install(folder, monkeypatch, body):
    """Put a compiler on the PATH that runs a shell `body`; $out, $model and $compiled are set for it."""
    script = folder / "edgetpu_compiler"
    script.write_text(
        "#!/bin/sh\n"
        'while [ $# -gt 0 ]; do case "$1" in -o) out="$2"; shift;; -s) ;; *) model="$1";; esac; shift; done\n'
        'compiled="$out/$(basename "$model" .tflite)_edgetpu.tflite"\n' + body
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def model_in(folder):
    path = folder / "policy.tflite"
    path.write_bytes(MODEL.read_bytes())
    return path


def test_a_model_that_maps_wholly():
    report = parse_log(log("whole"))
    assert report.compiled
    assert report.version == "16.0.384591198"
    assert (report.on_tpu, report.on_cpu, report.operations, report.subgraphs) == (5, 0, 5, 1)
    assert report.on_chip_bytes == 14 * 1024
    assert report.on_chip_left_bytes == round(7.72 * 1024**2)
    assert report.off_chip_bytes == 0
    assert report.unmapped == ()


def test_a_model_that_maps_partly_keeps_the_reasons():
    report = parse_log(log("partly"))
    assert report.compiled
    assert (report.on_tpu, report.on_cpu) == (8, 4)
    assert report.off_chip_bytes == round(3.23 * 1024**2)
    assert [(row.op, row.status) for row in report.unmapped] == [
        ("LOGISTIC", "More than one subgraph is not supported"),
        ("ELU", "Operation not supported"),
        ("QUANTIZE", "Operation is otherwise supported, but not mapped due to some unspecified limitation"),
        ("DEQUANTIZE", "Operation is working on an unsupported data type"),
    ]


def test_a_model_that_is_refused():
    report = parse_log(log("refused"))
    assert not report.compiled
    assert "Restored original execution plan" in report.failure
    assert "large activation tensors" in report.failure
    assert "Model not quantized" in parse_log(log("not_quantized")).failure


@pytest.mark.parametrize(
    "text", ["", "hello\nOperator Count Status\n\nADD\n", "Input size: many\nOutput size: 1.2.3MiB"]
)
def test_nonsense_is_an_empty_report(text):
    report = parse_log(text)
    assert not report.compiled
    assert report.operators == ()
    assert report.input_bytes == report.output_bytes == 0


def test_without_the_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler() is None
    with pytest.raises(MissingExtra, match="edgetpu_compiler is not on the PATH"):
        compile_for_edgetpu(MODEL)


def test_the_compiled_file_lands_beside_the_model(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, f'echo compiled > "$compiled"; cat {LOGS}/whole.txt\n')
    path = model_in(tmp_path)
    report = compile_for_edgetpu(path)
    assert report.compiled
    assert report.model == tmp_path / "policy_edgetpu.tflite"
    assert report.model.read_text() == "compiled\n"
    assert report.to_json()["model"] == str(report.model)
    assert report.to_json()["operators"][0] == {"op": "CONV_2D", "count": 1, "status": "Mapped to Edge TPU"}


def test_the_compiler_gets_the_model_and_works_in_a_folder_of_its_own(tmp_path, monkeypatch):
    path = model_in(tmp_path)
    install(tmp_path, monkeypatch, f'cp "$model" "$compiled"; pwd > {tmp_path}/where; cat {LOGS}/whole.txt\n')
    out = tmp_path / "there" / "tpu.tflite"
    assert compile_for_edgetpu(path, out=out).model == out
    assert out.read_bytes() == path.read_bytes()
    assert not Path((tmp_path / "where").read_text().strip()).exists()


def test_a_refusal_is_a_report_and_leaves_an_older_file_alone(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, f"cat {LOGS}/refused.txt; exit 1\n")
    path = model_in(tmp_path)
    old = tmp_path / "policy_edgetpu.tflite"
    old.write_text("old")
    report = compile_for_edgetpu(path)
    assert not report.compiled
    assert report.model is None
    assert "large activation tensors" in report.failure
    assert old.read_text() == "old"


def test_success_without_a_file_is_no_success(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, f"cat {LOGS}/whole.txt\n")
    report = compile_for_edgetpu(model_in(tmp_path))
    assert not report.compiled
    assert report.failure == "the compiler wrote no file"


def test_a_compiler_that_hangs(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "exec sleep 60\n")
    with pytest.raises(ConversionError, match=r"no result in 0\.3 s"):
        compile_for_edgetpu(model_in(tmp_path), deadline_s=0.3)


def test_a_compiler_that_says_nothing(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "echo 'error while loading shared libraries' >&2; exit 127\n")
    with pytest.raises(ConversionError, match="127 and no report: error while loading"):
        compile_for_edgetpu(model_in(tmp_path))


def test_a_compiler_that_dies(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "kill -SEGV $$\n")
    with pytest.raises(ConversionError, match="died of signal 11"):
        compile_for_edgetpu(model_in(tmp_path))


def test_a_missing_model(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "exit 0\n")
    with pytest.raises(ModelFileError, match="not found"):
        compile_for_edgetpu(tmp_path / "none.tflite")
