"""A push compiled for the Edge TPU: what must hold of the file, and every way in which the compiler fails."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from stub_delegate import COMPILES, DATA, compiled, compiled_cartpole, install_compiler, stub_library

from quarl_device.delegate_spec import DelegateSpec
from quarl_device.errors import ConversionError, MissingExtra, QuarlError
from quarl_device.lint import is_compiled
from quarl_device.policy import Policy
from quarl_device.policy_file import MAX_TOLERANCE_LSB, read_policy
from quarl_device.runtime.delegated import DelegatedRuntime
from quarl_device.runtime.litert import LiteRTRuntime
from quarl_export.edgetpu_push import checked, compile_policy, tpu_tolerance

CARTPOLE, PENDULUM = ((DATA / f"{name}.tflite").read_bytes() for name in ("cartpole", "pendulum"))
SOURCE = read_policy(CARTPOLE)


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Put a compiler with the given Python body on the PATH."""

    def install(body=COMPILES):
        install_compiler(tmp_path, body)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


def gone(pid, within_s=10.0):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def test_contract_and_golden_observations_are_kept_and_it_answers_as_the_source(compiler):
    compiler()
    file = read_policy(compile_policy(CARTPOLE))
    assert is_compiled(file.graph)
    assert file.contract == SOURCE.contract
    runtime = DelegatedRuntime(LiteRTRuntime(), DelegateSpec(library=stub_library()))
    policy = Policy.load(file, runtime=runtime, golden=SOURCE.golden)
    twin = Policy.load(SOURCE)
    for row in SOURCE.golden.observations["observation"]:
        assert policy.act(row) == twin.act(row)


def test_metadata_that_the_compiler_leaves_out_is_written_again():
    bare = compiled(CARTPOLE, metadata=False)
    with pytest.raises(QuarlError, match="no policy contract"):
        read_policy(bare)
    file = read_policy(checked(SOURCE, bare))
    assert is_compiled(file.graph)
    assert (file.contract, file.provenance) == (SOURCE.contract, SOURCE.provenance)
    runtime = DelegatedRuntime(LiteRTRuntime(), DelegateSpec(library=stub_library()))
    Policy.load(file, runtime=runtime, golden=SOURCE.golden)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (CARTPOLE, "left everything on the CPU"),
        (compiled(PENDULUM), "another contract"),
        (b"TFL3" * 8, "TFLite|file|model|metadata"),
        (b"", "TFLite|file|model|metadata"),
        (compiled_cartpole()[:-400], "TFLite|file|model|metadata"),
    ],
    ids=["not compiled", "another policy", "junk", "empty", "cut off"],
)
def test_what_is_not_that_policy_compiled_is_refused(data, why):
    with pytest.raises(QuarlError, match=why):
        checked(SOURCE, data)


def test_without_the_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtra, match="not on the PATH"):
        compile_policy(CARTPOLE)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("sys.exit(3)", "does not take the policy: the compiler wrote no file"),
        ("print('Internal compiler error. Aborting!'); sys.exit(1)", "Internal compiler error"),
        ("os.kill(os.getpid(), 11)", "died of signal 11"),
        ("open(where, 'wb').write(b'nonsense' * 99)", "TFLite|file|model|metadata"),
        ("open(where, 'wb').write(open(model, 'rb').read())", "left everything on the CPU"),
        ("while True: os.write(1, b'x' * 2**20)", "wrote no file|died of signal 25"),
        ("os.mkdir(where)", "TFLite|file|model|metadata"),
        ("import subprocess; subprocess.Popen(['sleep', '60']); time.sleep(60)", r"no result in 1\.5 s"),
    ],
)
def test_a_compiler_that_fails(compiler, body, why):
    compiler(body)
    began_s = time.monotonic()
    with pytest.raises(QuarlError, match=why):
        compile_policy(CARTPOLE, deadline_s=1.5 if "sleep" in body else 60.0)
    assert time.monotonic() - began_s < 30.0


def test_one_that_hangs_takes_what_it_has_started_along(compiler, tmp_path):
    compiler(
        "import subprocess\n"
        f"print(subprocess.Popen(['sleep', '60']).pid, file=open({str(tmp_path / 'pid')!r}, 'w'), flush=True)\n"
        "time.sleep(60)"
    )
    with pytest.raises(ConversionError, match="gave no result"):
        compile_policy(CARTPOLE, deadline_s=5.0)
    assert gone(int((tmp_path / "pid").read_text()))


def test_it_can_be_given_up(compiler):
    compiler("time.sleep(60)")
    asked = threading.Event()
    threading.Timer(0.3, asked.set).start()
    began_s = time.monotonic()
    with pytest.raises(ConversionError, match="not waited for any more"):
        compile_policy(CARTPOLE, cancelled=asked.is_set)
    assert time.monotonic() - began_s < 20.0


def test_it_has_the_lowest_priority(compiler, tmp_path):
    compiler(f"open({str(tmp_path / 'nice')!r}, 'w').write(str(os.nice(0)))\n" + COMPILES)
    compile_policy(CARTPOLE)
    assert (tmp_path / "nice").read_text() == "19"


def test_it_ends_with_the_learner(compiler, tmp_path):
    compiler(f"print(os.getpid(), file=open({str(tmp_path / 'pid')!r}, 'w'), flush=True); time.sleep(60)")
    code = (
        "import sys; from pathlib import Path; from quarl_export.edgetpu_push import compile_policy\n"
        "compile_policy(Path(sys.argv[1]).read_bytes())"
    )
    # What it leaves behind, killed, is the test's.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)}
    learner = subprocess.Popen([sys.executable, "-c", code, str(DATA / "cartpole.tflite")], env=environment)
    try:
        deadline = time.monotonic() + 30.0
        while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()):
            assert time.monotonic() < deadline
            assert learner.poll() is None
            time.sleep(0.02)
        learner.kill()
        learner.wait(10)
        assert gone(int((tmp_path / "pid").read_text()))
    finally:
        learner.kill()
        learner.wait()


def test_the_tolerance_of_a_tpu_is_wider_and_one_that_a_file_may_have():
    assert tpu_tolerance(3) == 6
    assert tpu_tolerance(MAX_TOLERANCE_LSB) == MAX_TOLERANCE_LSB
