"""Whatever a command is given: one clear line, a numbered exit, and what was there before is still there.

Every place that a command reads is given every kind of bad file, and every place that it writes is one where it cannot.
"""

import contextlib
import json
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from policy_factory import mlp

from quarl_device.cli import main as on_a_device
from quarl_device.errors import ConversionError
from quarl_device.files import write_atomic
from quarl_edge.cli import main
from quarl_export.schemes import SchemeOptions, convert

DATA = Path(__file__).parents[1] / "data"
AGENT = DATA / "sb3" / "dqn_cartpole.zip"
BEHIND_STATISTICS = DATA / "sb3" / "a2c_narrow.zip"
STATISTICS = DATA / "sb3" / "a2c_narrow.vecnormalize.pkl"
FLOAT, INT8 = DATA / "reports" / "cartpole_float.tflite", DATA / "cartpole.tflite"
FOREIGN = {
    "empty": b"",
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8,
    "text": b"observation,action\n" * 40,
    "another zip": b"PK\x05\x06" + bytes(18),
}
BAD = (*FOREIGN, "a tenth", "a half", "almost all", "missing", "a directory")
SHARES = {"a tenth": 0.1, "a half": 0.5, "almost all": 0.95}
OLD = b"an older model"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("recorded") / "rows.npz"
    np.savez(path, observation=np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32))
    return path


def last_line(err):
    """Return the error's line; before it are only the stages that were begun."""
    *stages, last = err.splitlines()
    assert all(line.startswith(("reading ", "playing ", "converting ")) for line in stages), err
    return last


@pytest.fixture
def told(capfd, tmp_path):
    """A command whose error has the form that all errors have; returns exit code and message."""

    def run(command, *words):
        before = contents(tmp_path)
        code = command([*map(str, words), "--format", "json"])
        out, err = capfd.readouterr()
        error = json.loads(out.strip().splitlines()[-1])["error"]
        assert code == error["code"]
        assert code not in (0, 1, 130)
        assert last_line(err).startswith(("quarl-edge: error: ", "quarl-device: error: ")), err
        assert "Errno" not in err
        assert contents(tmp_path) == before
        return code, error["message"]

    return run


def contents(folder):
    """Every file below `folder`, hidden ones and leftovers too, with what is in it."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def spoiled(folder, good, bad):
    """`good` as it should not be, in a folder of its own, with its ending."""
    (folder / "given").mkdir()
    path = folder / "given" / f"bad{good.suffix}"
    if bad == "a directory":
        path.mkdir()
    elif bad in SHARES:
        data = good.read_bytes()
        path.write_bytes(data[: int(len(data) * SHARES[bad])])
    elif bad != "missing":
        path.write_bytes(FOREIGN[bad])
    return path


# Command, words before and behind the bad file, and a good file of the kind that stands there.
PLACES = {
    "an agent": (main, ("export", "m.tflite", "--from"), ("--scheme", "float32"), AGENT),
    "a Keras archive": (main, ("export", "m.tflite", "--from"), ("--scheme", "float32"), DATA / "keras3" / "mlp.keras"),
    "a float file": (main, ("export", "m.tflite", "--from"), ("--scheme", "float32"), FLOAT),
    "statistics": (main, ("export", "m.tflite", "--from", BEHIND_STATISTICS, "--vecnormalize"), (), STATISTICS),
    "calibration": (main, ("export", "m.tflite", "--from", AGENT, "--calibrate"), (), "recorded"),
    "inspect": (main, ("inspect",), (), INT8),
    "inspect on a device": (on_a_device, ("inspect",), (), INT8),
    "evaluate": (main, ("evaluate",), (), INT8),
    "compare, float": (main, ("compare",), (INT8,), FLOAT),
    "compare, int8": (main, ("compare", FLOAT), (), INT8),
    "compare, observations": (main, ("compare", FLOAT, INT8, "--observations"), (), "recorded"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", PLACES)
def test_a_bad_file_is_named_and_harms_nothing(told, tmp_path, monkeypatch, recorded, place, bad):
    command, before, behind, good = PLACES[place]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.tflite").write_bytes(OLD)
    path = spoiled(tmp_path, recorded if good == "recorded" else good, bad)
    code, message = told(command, *before, path, *behind)
    assert code in (2, 10, 18, 72)
    assert path.name in message


@pytest.mark.parametrize(
    ("observation", "code", "says"),
    [
        (np.zeros((64, 3)), 2, "shape [64, 3], expected [rows, 4]"),
        (np.zeros(64), 2, "shape [64], expected [rows, 4]"),
        (np.zeros((0, 4)), 2, ""),
        (np.full((64, 4), np.nan), 15, "NaN"),
        (np.where(np.arange(256).reshape(64, 4) == 9, np.inf, 0.0), 15, "row 2"),
        (np.zeros((1, 4)), 2, "1 row"),
        (np.full((64, 4), "a"), 2, "expected numbers"),
        (np.full((64, 4), None), 2, "plain arrays"),
    ],
    ids=["width", "one axis", "no rows", "NaN", "Inf", "one row", "words", "objects"],
)
def test_calibration_data_that_do_not_fit_are_named(told, tmp_path, observation, code, says):
    model = tmp_path / "m.tflite"
    model.write_bytes(OLD)
    np.savez(tmp_path / "rows.npz", observation=observation)
    found, message = told(main, "export", model, "--from", AGENT, "--calibrate", tmp_path / "rows.npz")
    assert found == code
    assert says in message


def test_a_model_without_a_contract_is_shown_but_not_played(told, capfd, tmp_path):
    bare = DATA / "reports" / "int16x8.tflite"
    assert told(main, "evaluate", bare)[0] == 11
    for command in (main, on_a_device):
        assert command(["inspect", str(bare), "--no-load", "--format", "json"]) == 0
        assert json.loads(capfd.readouterr().out)["contract"] is None
    assert told(main, "export", tmp_path / "m.tflite", "--from", bare)[0] in (10, 16)


def unwritable(folder, kind):
    """A place for a file where none can be."""
    (folder / "file").write_bytes(OLD)
    (folder / "folder").mkdir()
    return {
        "a directory": folder / "folder",
        "below a file": folder / "file" / "m.tflite",
        "below nothing": folder / "none" / "m.tflite",
        "a device": Path("/dev/full"),
        "no permission": folder / "m.tflite",
    }[kind]


@pytest.mark.parametrize("kind", ["a directory", "below a file", "below nothing", "a device", "no permission"])
def test_a_place_that_cannot_be_written_is_refused_before_any_work(told, tmp_path, monkeypatch, kind):
    monkeypatch.setattr("quarl_edge.cli.export.require_learner", lambda _: pytest.fail("the work has begun"))
    if kind == "no permission":  # root may write anywhere
        monkeypatch.setattr("quarl_device.files.os.access", lambda path, _: path != tmp_path)
    code, message = told(main, "export", unwritable(tmp_path, kind), "--from", AGENT)
    assert code == 10
    assert "cannot be written" in message


@contextlib.contextmanager
def full_disk():
    """No file can grow beyond 512 bytes: a full disk, for root too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_for_the_model_leaves_the_old_one(told, tmp_path, monkeypatch):
    model = tmp_path / "m.tflite"
    model.write_bytes(OLD)

    def write(*arguments, **options):
        with full_disk():
            write_atomic(*arguments, **options)

    monkeypatch.setattr("quarl_export.export.write_atomic", write)
    code, message = told(main, "export", model, "--from", AGENT, "--scheme", "float32")
    assert code == 10
    assert message == f"model cannot be written: {model}: File too large"


def test_a_disk_that_is_full_for_tensorflows_own_files_is_told():
    """It saves a network to convert it, and goes on without where it cannot."""
    with full_disk(), pytest.raises(ConversionError, match="is there room"):
        convert(mlp(), SchemeOptions(scheme="float32"))


def test_a_disk_that_is_full_for_a_page_leaves_the_old_one(tmp_path):
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_bytes(OLD)
    before = contents(tmp_path)
    words = ["compare", FLOAT, INT8, "--rows", "16", "--report", "page"]
    with full_disk():
        done = subprocess.run(
            [sys.executable, "-m", "quarl_edge", *map(str, words)],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 10, done.stderr
    assert "cannot be written" in done.stderr
    assert last_line(done.stderr).startswith("quarl-edge: error: "), done.stderr
    assert contents(tmp_path) == before


def test_the_same_commands_work_where_nothing_is_bad(capfd, tmp_path, recorded):
    """Otherwise all of the above could fail for another reason."""
    words = ("export", tmp_path / "m.tflite", "--from", AGENT, "--calibrate", recorded, "--scheme", "float32")
    assert main([*map(str, words), "--format", "json"]) == 0
    assert main(["compare", str(FLOAT), str(INT8), "--observations", str(recorded), "--format", "json"]) == 0
    assert main(["inspect", str(tmp_path / "m.tflite"), "--no-load", "--format", "json"]) == 0
    capfd.readouterr()
