"""Delegates: what may be asked for, libraries of every temper in a child process, files compiled for an Edge TPU."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from stub_delegate import DATA, compiled_cartpole, stub_library

from quarl_device import cli
from quarl_device.actor import bench, board_bench
from quarl_device.delegate_spec import EDGE_TPU_LIBRARY, LIBRARY_VARIABLE, DelegateSpec, parse_delegate
from quarl_device.errors import MissingDelegate, ModelFileError, UsageError
from quarl_device.flatbuffer import read_graph
from quarl_device.inspect import probe as probing
from quarl_device.inspect.delegate_probe import fault_of, probe_delegate
from quarl_device.inspect.probe import Probe
from quarl_device.lint import check_runnable, takes_batches
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy, read_policy_path
from quarl_device.runtime import reaches_edge_tpu
from quarl_device.runtime.delegated import DelegatedRuntime, ThreadedRuntime, with_delegate
from quarl_device.runtime.litert import LiteRTRuntime
from quarl_device.testing.fake_runtime import FakeRuntime

LITERT = "ai-edge-litert"
FILE = read_policy_path(DATA / "cartpole.tflite")
NAMES = {"inputs": [FILE.contract.observations[0].tensor], "outputs": [FILE.contract.head.outputs["q_values"]]}


@pytest.fixture
def stub(monkeypatch, tmp_path):
    """The stub's spec; `stub.log()` are the options of each creation."""

    class Stub:
        spec = DelegateSpec(device="usb", library=stub_library())
        said = tmp_path / "options"

        def log(self):
            return self.said.read_text().splitlines() if self.said.exists() else []

        def fail(self, where):
            monkeypatch.setenv("STUB_DELEGATE_FAIL", where)

    monkeypatch.setenv("STUB_DELEGATE_LOG", str(Stub.said))
    return Stub()


@pytest.mark.parametrize(
    ("text", "device", "options", "shown"),
    [
        ("edgetpu", "", {}, "edgetpu"),
        ("edgetpu:usb", "usb", {"device": "usb"}, "edgetpu:usb"),
        ("edgetpu:pci", "pci", {"device": "pci"}, "edgetpu:pci"),
        ("edgetpu:0", ":0", {"device": ":0"}, "edgetpu:0"),
        ("edgetpu:12", ":12", {"device": ":12"}, "edgetpu:12"),
        ("edgetpu:usb:1", "usb:1", {"device": "usb:1"}, "edgetpu:usb:1"),
    ],
)
@pytest.mark.parametrize("library", ["", "/opt/lib/other=2.so"])
def test_every_form(text, device, options, shown, library, monkeypatch):
    monkeypatch.delenv(LIBRARY_VARIABLE, raising=False)
    spec = parse_delegate(text + ("=" + library) * bool(library))
    assert (spec.device, spec.options, str(spec)) == (device, options, shown)
    assert spec.library == (library or EDGE_TPU_LIBRARY)


def test_the_cpu_is_no_delegate_and_the_environment_names_a_library(monkeypatch):
    monkeypatch.setenv(LIBRARY_VARIABLE, "/x.so")
    assert parse_delegate("cpu") is None
    assert parse_delegate("edgetpu").library == "/x.so"
    assert parse_delegate("edgetpu=/y.so").library == "/y.so"


@pytest.mark.parametrize(
    "text", ["", "gpu", "CPU", "edgetpu:", "edgetpu:gpu", "edgetpu:-1", "edgetpu:100", "edgetpu:usb:", "edgetpu=",
             "edgetpu=/a\0b", "edgetpu:usb:usb", "edgetpu:١", "edgetpu::1", "edgetpu:usb1", "edgetpu:pci07",
             "edgetpu::", "edgetpu:1:2", "edgetpu:=/a.so", "edgetpu:usb:=/a.so"]
)  # fmt: skip
def test_anything_else_is_refused(text):
    with pytest.raises(UsageError, match="expected cpu, edgetpu"):
        parse_delegate(text)


def test_a_good_one_is_given_its_options(stub):
    assert probe_delegate(LITERT, stub.spec) is None
    assert stub.log() == ["device=usb;"]


@pytest.mark.parametrize(
    ("where", "found", "hint"),
    [
        ("create", "no device of that kind is here", "lsusb"),
        ("prepare", "no device answers", "another process"),
        ("crash", "died of SIGSEGV", "do not fit"),
    ],
)
def test_one_that_fails_is_told(stub, where, found, hint):
    stub.fail(where)
    fault = probe_delegate(LITERT, stub.spec)
    assert found in fault.found
    assert "edgetpu:usb through " in fault.found
    assert hint in fault.hint


def test_one_that_hangs_is_killed(stub):
    stub.fail("hang")
    fault = probe_delegate(LITERT, stub.spec, deadline_s=2.0)
    assert "gave no answer in 2 s" in fault.found
    assert "unplug" in fault.hint


PROBE_AND_HANG = """
import sys
from quarl_device.delegate_spec import DelegateSpec
from quarl_device.inspect.delegate_probe import probe_delegate
probe_delegate("ai-edge-litert", DelegateSpec(device="usb", library=sys.argv[1]), deadline_s=50.0)
"""


def soon(condition, within_s=30.0):
    until_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def gone(pid):
    """It is no more, or dead with nobody here to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_that_hangs_ends_with_its_parent(stub, number):
    stub.fail("hang")
    path = os.pathsep.join(filter(None, sys.path))
    parent = subprocess.Popen(
        [sys.executable, "-c", PROBE_AND_HANG, stub.spec.library], env={**os.environ, "PYTHONPATH": path}
    )
    try:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        soon(lambda: parent.poll() is None and children.read_text())
        child = int(children.read_text())
        soon(stub.log)  # in the library, which never returns
        assert not gone(child)
        parent.send_signal(number)
        assert parent.wait(10) == -number
        soon(lambda: gone(child), within_s=10.0)
    finally:
        parent.kill()
        parent.wait()


def test_a_child_whose_parent_is_gone_or_too_late_ends_by_itself():
    for parent, code in ((1, 1), (os.getpid(), -signal.SIGALRM)):
        words = f"from {probing.__name__} import tie_to_parent; tie_to_parent({parent}, 1); import time; time.sleep(60)"
        done = subprocess.run([sys.executable, "-c", words], env=probing._child_env(), timeout=30, check=False)
        assert done.returncode == code


def test_a_child_that_cannot_be_killed_is_given_up(monkeypatch):
    monkeypatch.setattr(probing, "_KILLED_S", 0.1)
    killed = []

    def kill(self):
        killed.append(self)

    monkeypatch.setattr(subprocess.Popen, "kill", kill)
    answer = probing.probe(b"", LITERT, deadline_s=0.2, command=[sys.executable, "-c", "import time; time.sleep(30)"])
    assert "gave no answer in 0.2 s" in answer.detail
    [child] = killed
    child.send_signal(signal.SIGKILL)
    assert child.wait(10) == -signal.SIGKILL


def test_a_child_never_has_the_brokers_password(monkeypatch):
    monkeypatch.setenv("QUARL_MQTT_PASSWORD", "secret")
    code = "import os, json; print(json.dumps({'loads': False, 'detail': str('QUARL_MQTT_PASSWORD' in os.environ)}))"
    assert probing.probe(b"", LITERT, command=[sys.executable, "-c", code]).detail == "False"


def test_a_library_that_is_not_there():
    fault = probe_delegate(LITERT, DelegateSpec(library="/no/such/libedgetpu.so.1"))
    assert "cannot open shared object file" in fault.found
    assert "libedgetpu1-std" in fault.hint


def test_a_runtime_without_an_answer_of_its_own():
    fault = fault_of(Probe(runtime="x", version="", loads=None, detail="not installed here"), DelegateSpec())
    assert "not installed here" in fault.found


def test_the_cpu_takes_over_with_one_warning(stub):
    stub.fail("create")
    inner, said = LiteRTRuntime(), []
    assert with_delegate(inner, stub.spec, warn=said.append) is inner
    [line] = said
    assert "the CPU is used instead" in line
    assert "lsusb" in line


def test_one_that_is_required_is_an_error_with_its_own_code(stub):
    stub.fail("prepare")
    with pytest.raises(MissingDelegate, match="no device answers") as caught:
        with_delegate(LiteRTRuntime(), stub.spec, required=True)
    assert caught.value.code == 83


def test_no_delegate_changes_nothing_and_other_runtimes_take_none():
    inner = LiteRTRuntime()
    assert with_delegate(inner, None) is inner
    with pytest.raises(UsageError, match="takes no delegates"):
        with_delegate(FakeRuntime(dict, inputs={}, outputs=[]), DelegateSpec())


def test_a_file_that_is_not_compiled_stays_on_the_cpu_and_says_so_once(stub, caplog):
    runtime = DelegatedRuntime(LiteRTRuntime(), stub.spec)
    with caplog.at_level(logging.WARNING):
        policies = [Policy.load(FILE, runtime=runtime) for _ in range(3)]
    assert [record.getMessage() for record in caplog.records] == [
        "edgetpu:usb is not used: the file is not compiled for it and runs on the CPU"
    ]
    assert policies[0].act(np.zeros(4, np.float32)) in (0, 1)
    assert policies[0].runtime_name.endswith(" with edgetpu:usb")
    assert not stub.log()


def test_a_compiled_file_runs_through_the_delegate(stub):
    runtime = DelegatedRuntime(LiteRTRuntime(), stub.spec)
    policy = Policy.load(read_policy(compiled_cartpole()), runtime=runtime, self_test=False, batch_size=3)
    # Once in the child process that tries it, then once for the model.
    assert stub.log() == ["device=usb;"] * 2
    graph = read_graph(compiled_cartpole())
    source, sink = (
        graph.tensors[n].quantization for n in (graph.operators[0].outputs[0], graph.operators[1].outputs[0])
    )
    rows = FILE.golden.observations["observation"][:3]
    for row in rows:
        stored = np.clip(np.round(row / source.scales[0]) + source.zero_points[0], -128, 127)[:2]
        wanted = (stored - sink.zero_points[0]) * sink.scales[0]
        np.testing.assert_allclose(policy.model.infer(row[None])[0], wanted, rtol=1e-6)
        assert policy.act(row) == int(wanted.argmax())
    assert policy.act_batch(rows).tolist() == [policy.act(row) for row in rows]
    runtime.load(compiled_cartpole(), **NAMES)
    assert len(stub.log()) == 3


def test_a_compiled_file_that_kills_is_refused_and_nothing_dies(stub):
    runtime = DelegatedRuntime(LiteRTRuntime(), stub.spec)
    stub.fail("invoke-crash")
    for _ in range(2):
        with pytest.raises(ModelFileError, match=r"compiled file cannot run here.*SIGSEGV"):
            runtime.load(compiled_cartpole(), **NAMES)


def test_a_delegate_that_is_gone_later_is_an_error_of_the_file(stub):
    runtime = DelegatedRuntime(LiteRTRuntime(), stub.spec)
    runtime.load(compiled_cartpole(), **NAMES)
    stub.fail("create")
    with pytest.raises(ModelFileError, match="refuses the model"):
        runtime.load(compiled_cartpole(), **NAMES)


def test_a_compiled_file_without_a_delegate_says_the_way_out():
    with pytest.raises(ModelFileError, match="compiled for the Edge TPU") as caught:
        Policy.load(read_policy(compiled_cartpole()), runtime=LiteRTRuntime())
    assert "--delegate edgetpu" in caught.value.hint


@pytest.mark.parametrize(
    ("inputs", "outputs"), [((), (7,)), ((-1,), (7,)), ((6,), (7,)), ((5,), ()), ((5,), (7, 7)), ((5,), (5,))]
)
def test_a_malformed_compiled_operator_is_refused(inputs, outputs):
    graph = read_graph(compiled_cartpole())
    first, middle, last = graph.operators
    broken = replace(graph, operators=(first, replace(middle, inputs=inputs, outputs=outputs), last))
    with pytest.raises(ModelFileError, match="edgetpu-custom-op"):
        check_runnable(broken, edge_tpu=True)
    check_runnable(graph, edge_tpu=True)
    assert not takes_batches(graph, 2)


def test_threads_reach_the_runtime_below():
    asked = []

    class Asked(LiteRTRuntime):
        def load(self, model, *, num_threads=1, **options):
            asked.append(num_threads)
            return super().load(model, num_threads=num_threads, **options)

    runtime = ThreadedRuntime(Asked(), 3)
    policy = Policy.load(FILE, runtime=runtime)
    runtime.load(FILE.data, num_threads=5, **NAMES)
    assert asked == [3, 5]
    assert policy.act(np.zeros(4, np.float32)) in (0, 1)
    assert policy.runtime_name.endswith(", 3 threads")
    assert not reaches_edge_tpu(runtime)
    assert reaches_edge_tpu(ThreadedRuntime(DelegatedRuntime(LiteRTRuntime(), DelegateSpec()), 2))


BENCH = ["bench", "--seconds", "1", "--format", "json"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--delegate", "gpu"], 2, "edgetpu:usb"),
        (["--delegate-required"], 2, "--delegate edgetpu"),
        (["--delegate", "cpu", "--delegate-required"], 2, "--delegate edgetpu"),
        (["--threads", "0"], 2, "1..64"),
        (["--delegate", "edgetpu=/no/such.so", "--delegate-required"], 83, "/no/such.so"),
    ],
)
@pytest.mark.parametrize("command", [BENCH, ["run", "--broker", "mqtt://127.0.0.1:9", "--quiet"]])
def test_the_command_line(command, words, code, says, capsys):
    assert cli.main([*command, *words]) == code
    assert says in capsys.readouterr().err


def test_the_bench_goes_on_with_the_cpu(stub, capsys, monkeypatch, caplog):
    for module, name in ((bench, "actor_speed"), (board_bench, "bench_board")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, real=real, **k: real(*a, **{**k, "duration_s": 0.05}))
    stub.fail("create")
    assert cli.main([*BENCH, "--delegate", f"edgetpu:pci={stub_library()}", "--threads", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["runtime"].endswith(", 2 threads")
    [record] = caplog.records
    assert "edgetpu:pci" in record.getMessage()
    assert "the CPU is used instead" in record.getMessage()
