"""`quarl-edge export` from sources that are no runs: options, calibration, checks, refusals."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from quarl_device.errors import ModelFileError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy_path
from quarl_edge.cli import app, export_work, main
from quarl_edge.cli.export_result import told as row
from quarl_export.checks.report import CheckResult

ZIP = Path(__file__).parents[1] / "data" / "sb3" / "dqn_cartpole.zip"


def run(capsys, *words):
    """Return exit code, the last JSON object on stdout, and stderr."""
    code = main(["export", *map(str, words), "--format", "json"])
    out, err = capsys.readouterr()
    return code, json.loads(out.strip().splitlines()[-1]), err


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("recorded") / "rows.npz"
    rng = np.random.default_rng(0)
    np.savez(path, observation=(rng.normal(size=(400, 4)) * [1.0, 1.0, 0.1, 1.0]).astype(np.float32))
    return path


def test_a_zip_by_playing_its_environment(tmp_path, capsys):
    model = tmp_path / "model.tflite"
    code, told, _ = run(capsys, model, "--from", ZIP, "--env", "CartPole-v1", "--steps", 800)
    assert code == 0
    assert {"model", "bytes", "sha256", "scheme", "env", "golden_vectors", "max_lsb_error"} <= set(told)
    assert (told["scheme"], told["env"], told["max_lsb_error"], told["forced"]) == ("int8", "CartPole-v1", 0, [])
    assert [check["code"] for check in told["checks"]] == [f"Q{n:02}" for n in range(1, 14)]
    file = read_policy_path(model)
    assert file.provenance["export"]["ranges"]["observations"].startswith("800 steps of CartPole-v1")
    Policy.load(file)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--keep-float", "nosuch"), "'nosuch' is no layer"),
        (("--scheme", "int16x8", "--keep-float", "q_net.q_net.0"), "means nothing with scheme int16x8"),
    ],
)
def test_what_needs_no_observations_is_refused_before_minutes_of_playing(tmp_path, capsys, monkeypatch, words, says):
    monkeypatch.setattr(export_work, "named_observations", lambda *_, **__: pytest.fail("played"))
    code, told, _ = run(capsys, tmp_path / "m.tflite", "--from", ZIP, "--env", "CartPole-v1", *words)
    assert code == 2
    assert says in told["error"]["message"]


def test_options_reach_the_file(tmp_path, capsys, recorded):
    model = tmp_path / "model.tflite"
    code, told, _ = run(
        capsys, model, "--from", ZIP, "--calibrate", recorded, "--io", "uint8", "--per-channel",
        "--range", "percentile", "--percentile", "99.5", "--runtime", "tflite-2.14", "--keep-float", "nothing",
    )  # fmt: skip
    assert code == 2
    assert "nothing" in told["error"]["message"]
    code, told, _ = run(
        capsys, model, "--from", ZIP, "--calibrate", recorded, "--io", "uint8", "--per-channel",
        "--range", "percentile", "--percentile", "99.5", "--runtime", "tflite-2.14",
    )  # fmt: skip
    assert code == 0
    made = read_policy_path(model).provenance["export"]
    assert (made["io"], made["per_channel"], made["runtime"]) == ("uint8", True, "tflite-2.14")
    assert made["ranges"] == {"by": "percentile", "observations": "npz rows.npz", "rows": 300, "percentile": 99.5}


def test_a_page_and_an_edge_tpu_verdict_beside_the_file(tmp_path, capsys, recorded, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    code, told, _ = run(
        capsys, tmp_path / "m.tflite", "--from", ZIP, "--calibrate", recorded, "--report", tmp_path / "page",
        "--edge-tpu", "--io", "int8",
    )  # fmt: skip
    assert code == 0
    html = Path(told["report"]).read_text()
    assert html.startswith("<!")
    assert "<title>m.tflite against m.tflite in float32</title>" in html
    assert f"<code>{tmp_path / 'm.tflite'}</code>" in html
    assert told["edge_tpu"]["compiler"] is None
    assert isinstance(told["edge_tpu"]["compatible"], bool)


def test_doubtful_statistics_are_shown_in_text_and_json(tmp_path, capsys):
    trained = ZIP.parents[1] / "trained"
    words = [
        tmp_path / "m.tflite", "--from", trained / "td3_pendulum.zip", "--scheme", "float32", "--env", "Pendulum-v1",
        "--steps", 100, "--vecnormalize", trained / "ppo_pendulum.vecnormalize.pkl",
    ]  # fmt: skip
    code, told, _ = run(capsys, *words)
    assert code == 0
    assert "another agent's" in told["warnings"][0]
    assert main(["export", *map(str, words)]) == 0
    assert any("WARNING" in line for line in capsys.readouterr().out.splitlines()[:8])


def test_head_and_what_was_assumed_are_told_and_stay_in_the_file(tmp_path, capsys):
    """A Keras model without names of roles or an environment leaves the head to be guessed."""
    source, model = ZIP.parents[1] / "keras3" / "elu.keras", tmp_path / "m.tflite"
    words = [model, "--from", source, "--scheme", "float16"]
    code, told, _ = run(capsys, *words)
    assert (code, told["head"]) == (0, "q_values")
    assert any("q_values" in note for note in told["assumed"])
    assert main(["export", *map(str, words)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "head │ q_values" in shown
    assert "assumed │" in shown
    assert main(["inspect", str(model), "--no-load", "--format", "json"]) == 0
    looked = json.loads(capsys.readouterr().out)
    assert (looked["head"], looked["assumed"]) == ("q_values", told["assumed"])
    assert main(["inspect", str(model), "--no-load"]) == 0
    assert f"  assumed     {told['assumed'][0]}" in capsys.readouterr().out


def test_nothing_is_assumed_of_a_file_that_says_all(tmp_path, capsys):
    source = ZIP.parents[1] / "reports" / "cartpole_float.tflite"
    words = [tmp_path / "m.tflite", "--from", source, "--scheme", "float16", "--episodes", 0]
    code, told, _ = run(capsys, *words)
    assert (code, told["head"], told["assumed"]) == (0, "q_values", [])
    assert main(["export", *map(str, words)]) == 0
    assert "│ assumed" not in capsys.readouterr().out


def test_a_layer_that_needs_float_is_refused_with_the_words_that_keep_it(tmp_path, capsys, recorded):
    source = ZIP.parents[1] / "keras3" / "elu.keras"
    code, told, _ = run(capsys, tmp_path / "m.tflite", "--from", source, "--calibrate", recorded)
    assert code == 13
    assert "--keep-float hidden_elu; or" in told["error"]["hint"]


def test_a_float_file_needs_no_calibration(tmp_path, capsys):
    code, told, _ = run(capsys, tmp_path / "m.tflite", "--from", ZIP, "--scheme", "float16")
    assert (code, told["scheme"], told["max_lsb_error"]) == (0, "float16", None)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--scheme", "int4"], 2, "int4"),
        (["--range", "entropy"], 2, "entropy"),
        (["--io", "int8", "--scheme", "dynamic"], 2, "float32 ends"),
        ([], 2, "needs observations"),
        (["--calibrate", "env"], 2, "names no environment"),
        (["--calibrate", "missing.npz"], 2, "no such file"),
        (["--calibrate", str(ZIP.parent)], 2, "no recorded observations"),
        (["--env", "CartPole-v99"], 20, "CartPole-v99"),
        (["--head", "policy"], 2, "policy"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path, capsys, words, code, says):
    found, told, err = run(capsys, tmp_path / "m.tflite", "--from", ZIP, *words)
    assert found == code
    assert says in told["error"]["message"]
    *stages, last = err.splitlines()
    assert last.startswith("quarl-edge: error: ")
    assert all(line.startswith(("reading ", "playing ", "converting ")) for line in stages)
    assert not list(tmp_path.iterdir())


def test_calibration_that_does_not_fit_is_refused(tmp_path, capsys):
    cases = {
        "shape": np.zeros((5, 3)),
        "nan": np.full((5, 4), np.nan),
        "one": np.zeros((1, 4)),
        "empty": np.zeros((0, 4)),
    }
    for name, array in cases.items():
        np.savez(tmp_path / f"{name}.npz", observation=array)
        code, told, _ = run(
            capsys, tmp_path / "m.tflite", "--from", ZIP, "--calibrate", tmp_path / f"{name}.npz"
        )  # fmt: skip
        assert code == (15 if name == "nan" else 2), told
    assert not (tmp_path / "m.tflite").exists()


def test_a_failed_check_is_told_whole_and_force_marks_the_file(tmp_path, capsys, monkeypatch):
    """One dimension of every sixth held-out row leaves what was calibrated with."""
    from quarl_export.calibration.hold_out import HoldOut

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 4)).astype(np.float32)
    held = np.arange(400) % 4 == 0
    rows[np.flatnonzero(held)[::6], 1] = 30.0
    picked = HoldOut(rows=held, of="that the test has picked")
    monkeypatch.setattr("quarl_export.calibration.data.hold_out", lambda *_: picked)
    np.savez(tmp_path / "rows.npz", observation=rows)
    model = tmp_path / "m.tflite"
    words = (model, "--from", ZIP, "--calibrate", tmp_path / "rows.npz")
    code, told, _ = run(capsys, *words)
    assert code == 19
    assert "Q03 saturation: observation 'observation'[1]" in told["error"]["message"]
    assert "Q03" in [entry["code"] for entry in told["checks"] if not entry["passed"]]
    assert not model.exists()
    code, told, _ = run(capsys, *words, "--force")
    assert code == 0
    assert "Q03" in told["forced"]
    assert "Q03" in read_policy_path(model).provenance["forced"]
    page = tmp_path / "page"
    assert main(["export", *map(str, words), "--force", "--report", str(page)]) == 0
    # A long path breaks the title over lines.
    title = "".join(capsys.readouterr().out.splitlines()[:8])
    assert "FORCED" in title
    assert "Q03" in title
    html = (page / "index.html").read_text()
    assert f"{model} was written with --force" in html


def test_returns_decide_where_there_is_an_environment_and_zero_episodes_leave_them_out(tmp_path, capsys, recorded):
    """An agent that has learned something: of one that returns no more than random actions nothing could be lost."""
    words = (tmp_path / "m.tflite", "--from", A2C, "--env", "CartPole-v1", "--calibrate", recorded, "--force")
    _, told, _ = run(capsys, *words, "--episodes", 10, "--seed", 3)
    checks = {entry["code"]: entry for entry in told["checks"]}
    assert checks["Q13"]["detail"] | {"env": "CartPole-v1", "episodes": 10, "seed": 100_003} == checks["Q13"]["detail"]
    assert [checks[code]["advisory"] for code in ("Q03", "Q10", "Q11", "Q12")] == [True, True, True, False]
    _, told, _ = run(capsys, *words, "--episodes", 0)
    checks = {entry["code"]: entry for entry in told["checks"]}
    assert checks["Q13"]["detail"] == {"verdict": "not judged"}
    assert not checks["Q10"]["advisory"]
    code, told, _ = run(capsys, *words, "--episodes", 5)
    assert code == 2
    assert "5 episodes" in told["error"]["message"]


def test_a_trained_dqn_passes_by_its_returns_and_a_broken_scheme_of_it_does_not(tmp_path, capsys):
    """Q10 refused the first; the second returns 200 of 500. Which seeds hold: docs/schemes.md."""
    words = (tmp_path / "m.tflite", "--from", DQN, "--env", "CartPole-v1", "--episodes", 20, "--seed", 1)
    code, told, _ = run(capsys, *words)
    assert code == 0
    checks = {entry["code"]: entry for entry in told["checks"]}
    assert checks["Q10"]["value"] < checks["Q10"]["limit"]
    assert checks["Q13"]["detail"]["file_return_mean"] > 475
    code, told, _ = run(capsys, *words, "--scheme", "dynamic")
    assert code == 19
    assert [entry["code"] for entry in told["checks"] if not entry["passed"]] == ["Q13"]
    assert told["error"]["message"].startswith("Q13 returns: ")


def test_the_default_seed_leaves_the_trained_dqn_undecided_and_says_what_would_tell(tmp_path, capsys):
    """Returns do not tell then, so single actions do; what ten seeds are worth is in docs/schemes.md."""
    code, told, _ = run(capsys, tmp_path / "m.tflite", "--from", DQN, "--env", "CartPole-v1")
    assert code == 19
    checks = {entry["code"]: entry for entry in told["checks"]}
    assert checks["Q13"]["detail"]["verdict"] == "undecided"
    assert "would tell" in checks["Q13"]["message"]
    assert [code for code, entry in checks.items() if not entry["passed"]] == ["Q10", "Q11"]


def test_the_text_form_names_every_check(tmp_path, capsys, recorded):
    assert main(["export", str(tmp_path / "m.tflite"), "--from", str(ZIP), "--calibrate", str(recorded)]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("Q01 finite", "Q13 returns", "golden vectors", "quarl-edge evaluate"))


def test_choices_are_those_of_the_library_and_refused_before_it_is_loaded():
    from quarl_edge.cli import export_options as command
    from quarl_export.calibration.rules import RangeRule
    from quarl_export.checks.op_versions import RUNTIMES
    from quarl_export.schemes import IO_TYPES, SCHEMES

    assert [one.value for one in command.Scheme] == list(SCHEMES)
    assert [one.value for one in command.Io] == list(IO_TYPES)
    assert [one.value for one in command.Runtime] == list(reversed(RUNTIMES)) or set(command.Runtime) == set(RUNTIMES)
    for kind in command.RangeKind:
        RangeRule(kind=kind.value)


DQN = Path(__file__).parent.parent / "data" / "trained" / "dqn_cartpole.zip"
A2C = DQN.with_name("a2c_cartpole.zip")


def refused(capfd, *words):
    code = app.run(["export", *map(str, words)])
    return code, capfd.readouterr().err


def test_a_source_is_not_written_over(capfd, tmp_path):
    target = tmp_path / "agent.zip"
    target.write_bytes(DQN.read_bytes())
    code, err = refused(capfd, target, "--from", target)
    assert code == 2
    assert "would be lost" in err
    assert target.read_bytes() == DQN.read_bytes()


def test_a_report_that_has_no_place_is_refused_before_anything_is_written(capfd, tmp_path):
    (tmp_path / "m.tflite").write_text("old")
    (tmp_path / "page").write_text("a file")
    code, err = refused(capfd, tmp_path / "m.tflite", "--from", DQN, "--report", tmp_path / "page")
    assert code == 2
    assert "need a directory" in err
    assert (tmp_path / "m.tflite").read_text() == "old"


def test_statistics_without_an_agent_are_refused(capfd, tmp_path):
    (tmp_path / "m.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    code, err = refused(capfd, tmp_path / "o.tflite", "--from", tmp_path / "m.h5", "--vecnormalize", "x.pkl")
    assert code == 2
    assert "Stable-Baselines3 zip" in err


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_neither_read_nor_written_over(capfd, tmp_path, kind):
    place = tmp_path / "pipe" if kind == "pipe" else Path("/dev/zero")
    if kind == "pipe":
        os.mkfifo(place)
    code, err = refused(capfd, tmp_path / "o.tflite", "--from", place)
    assert code == 10
    assert "not a file" in err
    code, err = refused(capfd, place, "--from", DQN)
    assert code == 10
    assert "no regular file" in err


# ------------------------------------------------------------------ what fails after the file is written


def test_a_page_that_fails_does_not_hide_that_the_file_is_there(tmp_path, capsys, monkeypatch):
    def fail(*_, **__):
        raise ModelFileError("report cannot be written: No space left on device", hint="make room")

    monkeypatch.setattr("quarl_export.export_report.write_export_report", fail)
    model = tmp_path / "m.tflite"
    words = (model, "--from", ZIP, "--scheme", "float32", "--report", tmp_path / "page", "--edge-tpu")
    code, told, err = run(capsys, *words)
    assert code == told["error"]["code"] == 10
    assert told["sha256"] == read_policy_path(model).sha256
    assert (told["report"], told["edge_tpu"]["compatible"]) == (None, False)
    assert told["error"]["message"] == (
        f"{model} is written, but --report failed: report cannot be written: No space left on device"
    )
    assert "is written, but --report failed" in err
    assert main(["export", *map(str, words)]) == 10
    said = capsys.readouterr()
    assert "FAILED" in said.out
    assert "Q12 loads" in said.out
    assert said.err.count("quarl-edge: error: ") == 1


def test_a_compiler_that_fails_does_not_hide_the_page(tmp_path, capsys, monkeypatch):
    def fail(_):
        raise ModelFileError("compiled model cannot be written")

    monkeypatch.setattr("quarl_edge.cli.export_extras.compile_where_possible", fail)
    monkeypatch.setattr("quarl_export.export_report.write_export_report", lambda *_, **__: tmp_path / "index.html")
    words = (tmp_path / "m.tflite", "--from", ZIP, "--scheme", "float32", "--report", tmp_path / "page", "--edge-tpu")
    code, told, _ = run(capsys, *words)
    assert (code, told["edge_tpu"], told["report"]) == (10, None, str(tmp_path / "index.html"))
    assert "--edge-tpu failed" in told["error"]["message"]


# ------------------------------------------------------------------ options that nothing would use


@pytest.mark.parametrize(
    ("words", "says", "mends"),
    [
        (("--scheme", "float16", "--range", "minmax"), "no integer activations", "--scheme int8"),
        (("--scheme", "float32", "--range", "percentile", "--percentile", 99), "no integer act", "--scheme int8"),
        (("--percentile", 99), "--percentile is of --range percentile", "--range percentile"),
        (("--range", "minmax", "--percentile", 99), "--percentile is of --range percentile", "--range percentile"),
        (("--scheme", "int16x8", "--range", "percentile", "--calibrate", "ROWS"), "converter finds", "--scheme int8"),
        (("--scheme", "int16x8", "--range", "bounds", "--calibrate", "ROWS"), "converter finds", "--scheme int8"),
        (("--steps", 100, "--calibrate", "ROWS"), "--steps is of playing", "--calibrate env"),
        (("--seed", 1, "--calibrate", "ROWS"), "--seed is of playing", "--calibrate env"),
        (("--seed", 1, "--calibrate", "ROWS", "--env", "CartPole-v1", "--episodes", 0), "--seed is of", "--env ID"),
        (("--seed", 1, "--scheme", "float32"), "--seed is of playing", "--calibrate env"),
    ],
)
def test_options_that_nothing_would_use_are_refused_with_what_would(tmp_path, capsys, recorded, words, says, mends):
    given = [recorded if word == "ROWS" else word for word in words]
    code, told, _ = run(capsys, tmp_path / "m.tflite", "--from", ZIP, *given)
    assert code == 2
    assert says in told["error"]["message"]
    assert mends in told["error"]["hint"]
    assert not (tmp_path / "m.tflite").exists()


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (CheckResult(code="Q01", passed=True, message="m"), "passed: m"),
        (CheckResult(code="Q03", passed=True, message="m", advisory=True, limit=0.05), "advisory: m"),
        (CheckResult(code="Q10", passed=True, message="m", advisory=True, limit=0.75), "advisory: m (at least 75%)"),
        (CheckResult(code="Q11", passed=False, message="m", limit=0.05), "FAILED: m (at most 5%)"),
        (CheckResult(code="Q13", passed=True, message="not judged: m"), "not judged: m"),
        (
            CheckResult(code="Q13", passed=True, message="undecided: m", detail={"verdict": "undecided"}),
            "undecided: m",
        ),
    ],
)
def test_a_row_says_how_its_check_came_out(result, says):
    assert row(result) == says


def test_stages_are_told_where_nobody_sits_at_a_terminal(tmp_path, capsys, recorded):
    code, _, err = run(capsys, tmp_path / "m.tflite", "--from", ZIP, "--calibrate", recorded, "--scheme", "float32")
    assert code == 0
    assert err.splitlines()[:3] == [
        f"reading {ZIP}", f"reading {recorded}", "converting to float32 and checking the file",
    ]  # fmt: skip
