"""`quarl-device inspect`: any TFLite file, as text and as JSON, good or bad."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from inspect_factory import DATA, REPORTS, changed, deadly_runtime, graph, operator, tensor, without_weights

from quarl_device import cli
from quarl_device.errors import ModelFileError, QuarlError
from quarl_device.flatbuffer import read_graph
from quarl_device.inspect.model import inspect_bytes, inspect_path
from quarl_device.inspect.op_versions import loadability, since
from quarl_device.inspect.probe import Probe
from quarl_device.inspect.tensors import measure, multiply_adds, scheme_of, shown
from quarl_device.inspect.text import render, size

CARTPOLE = DATA / "cartpole.tflite"
KEYS = {"sha256", "bytes", "contract", "inputs", "outputs", "ops", "edge_tpu", "runtimes"}


def quick(path):
    return inspect_path(path, load=False)


def run(capsys, *words):
    status = cli.main(["inspect", *map(str, words)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_json_has_what_the_issue_asks_for(capsys):
    status, out, err = run(capsys, CARTPOLE, "--format", "json")
    assert (status, err) == (0, "")
    data = json.loads(out)
    assert set(data) >= KEYS
    assert data["sha256"].startswith("ad453b84")
    assert data["bytes"] == CARTPOLE.stat().st_size
    assert data["contract"]["env_id"] == "CartPole-v1"
    assert [op["name"] for op in data["ops"]] == ["QUANTIZE", "FULLY_CONNECTED", "FULLY_CONNECTED", "DEQUANTIZE"]
    assert data["ops"][1]["activation"] == "relu"
    assert data["inputs"][0]["shape"] == [1, 4]
    assert data["edge_tpu"]["compatible"] is True
    [litert] = [row for row in data["runtimes"] if row["runtime"] == "ai-edge-litert"]
    assert litert["loads_by_table"] is True
    assert litert["loads_here"] is True


def test_text_is_one_compact_page(capsys):
    status, out, _ = run(capsys, CARTPOLE, "--no-load")
    assert status == 0
    assert "FULLY_CONNECTED + relu" in out
    assert "0 to 3.552" in out
    assert "tflite-runtime 2.14" in out
    assert "edge tpu: compatible" in out
    assert len(out.splitlines()) < 50
    assert out == "\n".join(line.rstrip() for line in out.splitlines()) + "\n"


def test_a_file_without_a_contract_gets_null_and_a_hint(capsys):
    status, out, _ = run(capsys, REPORTS / "dynamic.tflite", "--no-load", "--format", "json")
    data = json.loads(out)
    assert status == 0
    assert data["contract"] is None
    assert "quarl-edge export" in data["contract_hint"]
    assert "contract: none" in render(quick(REPORTS / "dynamic.tflite"))


def test_a_contract_that_does_not_hold_is_told_and_the_rest_shown():
    def rename(model):
        model.subgraphs[0].tensors[0].name = b"another"

    inspection = inspect_bytes(changed(CARTPOLE, rename), load=False)
    assert inspection.policy is None
    assert "does not hold" in inspection.contract_hint
    assert inspection.scheme == "int8"


def test_row_9_an_operator_version_that_the_runtime_lacks_is_named():
    """tensorflow #80736: "Didn't find op for builtin opcode 'FULLY_CONNECTED' version '12'", on the device."""
    inspection = quick(REPORTS / "dynamic.tflite")
    by_name = {row.runtime: row for row in inspection.table}
    assert by_name["tflite-runtime"].loads is False
    assert by_name["tflite-runtime"].reason == "operator 0: FULLY_CONNECTED version 12 needs TFLite 2.17"
    assert by_name["ai-edge-litert"].loads is True
    assert "NO" in render(inspection)


@pytest.mark.parametrize(
    ("name", "version", "release"),
    [
        ("FULLY_CONNECTED", 4, (1, 14)),
        ("FULLY_CONNECTED", 10, (2, 11)),
        ("FULLY_CONNECTED", 12, (2, 17)),
        ("FULLY_CONNECTED", 14, (2, 21)),
        ("CONV_2D", 8, (2, 15)),
        ("FULLY_CONNECTED", 15, None),
        ("FULLY_CONNECTED", 0, None),
        ("NOT_AN_OPERATOR", 1, None),
    ],
)
def test_op_versions(name, version, release):
    assert since(name, version) == release


def test_an_unknown_operator_is_not_guessed():
    rows = loadability([operator(0, "RFFT2D", (0,), (1,))])
    assert all(row.loads is None and "not in the table" in row.reason for row in rows)


def test_a_custom_operator_needs_a_plugin():
    rows = loadability([operator(0, "flexroll", (0,), (1,))])
    assert all(row.loads is False and "custom" in row.reason for row in rows)


def test_what_the_table_does_not_know_does_not_hide_what_is_too_new():
    calls = [operator(0, "RFFT2D", (0,), (1,)), operator(1, "FULLY_CONNECTED", (0,), (1,), version=12)]
    assert loadability(calls)[0].loads is False


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("dynamic", "mixed"),  # the small second layer stays in float
        ("float16", "float16"),
        ("int16x8", "int16x8"),
        ("elu", "int8"),
        ("dueling_float", "float32"),
        ("pixels_int8", "int8"),
    ],
)
def test_schemes(name, scheme):
    assert scheme_of(read_graph((REPORTS / f"{name}.tflite").read_bytes())) == scheme


def test_size_counts_weights_and_not_axes():
    measured = measure(read_graph((REPORTS / "dueling_int8.tflite").read_bytes()))
    weights = 6 * 16 + 16 * 8 + 8 * 1 + 16 * 8 + 8 * 4
    biases = 16 + 8 + 1 + 8 + 4
    assert measured.parameters == weights + biases
    assert measured.parameter_bytes == weights + 4 * biases
    assert measured.multiply_adds == weights


def test_convolutions_count_every_position():
    pixels = read_graph((REPORTS / "pixels_int8.tflite").read_bytes())
    conv, depthwise = pixels.operators[:2]
    assert multiply_adds(conv, pixels) == 4 * 4 * 4 * (3 * 3 * 2)
    assert multiply_adds(depthwise, pixels) == 3 * 3 * 4 * (2 * 2)


def test_memory_is_what_lives_at_once():
    chain = graph(
        [tensor(0, (1, 10)), tensor(1, (1, 100)), tensor(2, (1, 20)), tensor(3, (1, 5))],
        [operator(0, "TANH", (0,), (1,)), operator(1, "TANH", (1,), (2,)), operator(2, "TANH", (2,), (3,))],
        (0,),
        (3,),
    )
    assert measure(chain).peak_activation_bytes == 120


@pytest.mark.parametrize(("count", "text"), [(3, "3 B"), (9_999, "9,999 B"), (10_240, "10.0 KiB"), (2**23, "8.00 MiB")])
def test_sizes_for_people(count, text):
    assert size(count) == text


def test_names_of_strangers_cannot_draw_on_the_terminal():
    assert shown("a\x1b[2Jb\n") == "a\N{REPLACEMENT CHARACTER}[2Jb\N{REPLACEMENT CHARACTER}"
    assert len(shown("x" * 500)) == 60

    def rename(model):
        model.subgraphs[0].tensors[0].name = b"\x1b[31mred\r"

    page = render(inspect_bytes(changed(REPORTS / "elu.tflite", rename), load=False))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", page)


def test_a_file_that_no_runtime_survives_is_shown_all_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(deadly_runtime(tmp_path))
    path = tmp_path / "deadly.tflite"
    path.write_bytes(changed(CARTPOLE, without_weights))
    status, out, _ = run(capsys, path)
    assert status == 0
    assert "SIGSEGV" in out
    assert "quarl acts  NO" in out


def test_each_runtime_of_the_table_is_tried():
    tried = []

    def fake(data, runtime):
        tried.append(runtime)
        return Probe(runtime=runtime, version="9", loads=False, detail="no")

    inspection = inspect_bytes(CARTPOLE.read_bytes(), try_runtime=fake)
    assert tried == ["tflite-runtime", "ai-edge-litert"]
    assert "NO, 9: no" in render(inspection)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "not a TFLite file"), (b"x" * 100, "not a TFLite file"), (CARTPOLE.read_bytes()[:900], "damaged")],
)
def test_bad_files_are_clear_errors(tmp_path, capsys, content, says):
    path = tmp_path / "bad.tflite"
    path.write_bytes(content)
    status, out, err = run(capsys, path, "--format", "json")
    assert status == ModelFileError.code
    assert says in err
    assert json.loads(out)["error"]["code"] == 10


def test_a_missing_file_and_a_directory(tmp_path, capsys):
    assert run(capsys, tmp_path / "none.tflite")[0] == 10
    assert "is a directory" in run(capsys, tmp_path)[2]


def test_nan_scales_are_null_in_json(tmp_path, capsys):
    def change(model):
        model.subgraphs[0].tensors[6].quantization.scale = np.array([np.nan], np.float32)

    path = tmp_path / "nan.tflite"
    path.write_bytes(changed(CARTPOLE, change))
    status, out, _ = run(capsys, path, "--no-load", "--format", "json")
    assert status == 0
    assert json.loads(out)["tensors"][6]["quantization"]["scale"] is None


@pytest.mark.parametrize("name", sorted(path.name for path in REPORTS.glob("*.tflite")))
def test_every_kind_of_file_makes_a_page(name):
    inspection = quick(REPORTS / name)
    assert render(inspection)
    json.dumps(inspection.to_json())


def test_damaged_files_never_end_in_a_traceback():
    """Bytes changed at random: an inspection or one of our errors, nothing else."""
    rng = random.Random(7)
    sources = [Path(CARTPOLE).read_bytes(), (REPORTS / "dueling_int8.tflite").read_bytes()]
    inspected = 0
    for _ in range(400):
        data = bytearray(rng.choice(sources))
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 2, 127, 128, 255, rng.randrange(256)])
        try:
            inspection = inspect_bytes(bytes(data), load=False)
        except QuarlError:
            continue
        render(inspection)
        inspection.to_json()
        inspected += 1
    assert inspected > 50


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["inspect", "--help"])
    assert end.value.code == 0
    assert "  quarl-device inspect model.tflite" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fill", "says"),
    [
        (None, "× 4 frames, an episode's first one repeated"),
        ((0.0,), "× 4 frames, 0 before an episode's first one"),
        ((2.0,) * 35 + (7.0,), "× 4 frames, 2 to 7 before an episode's first one"),
    ],
)
def test_text_says_what_lies_before_an_episodes_first_frame(fill, says):
    found = quick(DATA / "frames.tflite")
    [spec] = found.policy.contract.observations
    contract = replace(found.policy.contract, observations=(replace(spec, stack_fill=fill),))
    assert says in render(replace(found, policy=replace(found.policy, contract=contract)))
