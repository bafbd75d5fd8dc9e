"""Every runtime that works here, and the fake one, does what `PolicyRuntime` asks; finding one; timing one."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from quarl_device.errors import MissingRuntime, ModelFileError, UsageError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy, read_policy_path
from quarl_device.runtime import PolicyRuntime, discovery, find_runtime, litert, runtime_names
from quarl_device.runtime.bench import act_latency
from quarl_device.runtime.litert import LiteRTRuntime, TFLiteRuntime
from quarl_device.testing.fake_runtime import FakeRuntime
from quarl_device.testing.runtime_conformance import RUNTIME_CHECKS, RuntimeCase

DATA = Path(__file__).parent.parent / "data"
FILE = read_policy_path(DATA / "cartpole.tflite")
CASE = RuntimeCase(
    model=FILE.data,
    source=FILE.contract.observations[0].tensor,
    sink=FILE.contract.head.outputs["q_values"],
    observations=FILE.golden.observations["observation"],
    answers=FILE.golden.outputs["q_values"],
    tolerance=FILE.golden.lsb["q_values"] * 2.01,
)
ANSWERS = {row.tobytes(): answer for row, answer in zip(CASE.observations, CASE.answers, strict=True)}


def remembered(inputs):
    return {CASE.sink: np.stack([ANSWERS[row.tobytes()] for row in inputs[CASE.source]])}


def fake():
    return FakeRuntime(remembered, inputs={CASE.source: (4,)}, outputs=[CASE.sink])


# tflite-runtime needs numpy 1: test_tflite_runtime.py runs the same checks in an environment of its own.
@pytest.mark.parametrize("make", [LiteRTRuntime, fake], ids=["litert", "fake"])
@pytest.mark.parametrize("check", RUNTIME_CHECKS, ids=lambda check: check.__name__)
def test_conforms(make, check):
    check(make(), CASE)


class Liar(FakeRuntime):
    """Says a batch of zeros to everything."""

    def __init__(self):
        super().__init__(
            lambda inputs: {CASE.sink: np.zeros((len(inputs[CASE.source]), 2))},
            inputs={CASE.source: (4,)},
            outputs=[CASE.sink],
        )


class Careless(FakeRuntime):
    """Takes whatever it is given."""

    name = ""

    def __init__(self):
        super().__init__(remembered, inputs={CASE.source: (4,)}, outputs=[CASE.sink])

    def load(self, model, **options):
        options.update(inputs=[CASE.source], outputs=[CASE.sink], batch_size=max(1, options.get("batch_size", 1)))
        return super().load(CASE.model, **options)


@pytest.mark.parametrize(
    ("runtime", "names"),
    [
        (Liar(), {"check_answers", "check_batches", "check_threads"}),
        (Careless(), {"check_names_itself", "check_refuses"}),
    ],
    ids=["liar", "careless"],
)
def test_the_suite_finds_faults(runtime, names):
    failed = set()
    for check in RUNTIME_CHECKS:
        try:
            check(runtime, CASE)
        except AssertionError:
            failed.add(check.__name__)
    assert failed == names


@pytest.fixture
def entry(monkeypatch):
    """Declare runtimes by entry point."""

    def declare(**values):
        points = [EntryPoint(name, value, discovery.RUNTIME_GROUP) for name, value in values.items()]
        monkeypatch.setattr(discovery, "entry_points", lambda group: points)

    discovery._working.cache_clear()
    yield declare
    discovery._working.cache_clear()


def test_the_declared_runtimes():
    assert runtime_names()[:2] == ["litert", "tflite-runtime"]
    assert isinstance(find_runtime("litert"), PolicyRuntime)


def test_the_first_that_works_is_taken(entry):
    entry(broken="no_such_module:Runtime", litert="quarl_device.runtime.litert:LiteRTRuntime")
    assert find_runtime().name == "ai-edge-litert"


def test_one_that_fails_to_import_is_skipped(entry):
    entry(litert="no_such_module:Runtime", zzz="quarl_device.runtime.litert:LiteRTRuntime")
    assert find_runtime().name == "ai-edge-litert"


def test_none_works(entry):
    entry(litert="no_such_module:Runtime", other="sys:no_such_class")
    with pytest.raises(MissingRuntime, match="no_such_module") as caught:
        find_runtime()
    assert "pip install" in caught.value.hint
    assert "other: AttributeError" in str(caught.value)


def test_none_is_declared(entry):
    entry()
    with pytest.raises(MissingRuntime, match="none is declared"):
        find_runtime()


def test_a_named_one_is_not_replaced_by_another(entry):
    entry(litert="quarl_device.runtime.litert:LiteRTRuntime", other="no_such_module:Runtime")
    with pytest.raises(MissingRuntime, match="other"):
        find_runtime("other")


def test_a_named_one_that_is_not_installed_says_what_is_and_how_to_install_it(entry):
    entry(**{"litert": "quarl_device.runtime.litert:LiteRTRuntime", "tflite-runtime": "no_such_module:Runtime"})
    with pytest.raises(MissingRuntime, match="installed are: litert") as caught:
        find_runtime("tflite-runtime")
    assert caught.value.hint == "pip install tflite-runtime 'numpy<2'"


def test_an_unknown_name(entry):
    entry(litert="quarl_device.runtime.litert:LiteRTRuntime")
    with pytest.raises(UsageError, match="declared are: litert"):
        find_runtime("torch")


def test_tflite_runtime_says_that_it_needs_numpy_1(monkeypatch):
    monkeypatch.setattr(np, "__version__", "2.1.0")
    monkeypatch.setattr(litert, "version", lambda _: "2.14.0")
    monkeypatch.setitem(sys.modules, "tflite_runtime", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "tflite_runtime.interpreter", SimpleNamespace(Interpreter=None))
    with pytest.raises(ImportError, match="numpy<2"):
        TFLiteRuntime()


def test_where_no_file_can_be_made_no_descriptor_is_lost(monkeypatch):
    def fail():
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(litert._Greeting, "over", False)
    monkeypatch.setattr(litert.tempfile, "TemporaryFile", fail)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        litert._Greeting.over = False
        LiteRTRuntime().load(CASE.model, inputs=[CASE.source], outputs=[CASE.sink])
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("batch_size", [-1, 0, 5000])
def test_batch_sizes_are_bounded(batch_size):
    with pytest.raises(ModelFileError, match="batch size"):
        LiteRTRuntime().load(CASE.model, inputs=[CASE.source], outputs=[CASE.sink], batch_size=batch_size)


def two_outputs():
    """The same model with its last int8 tensor as a second output."""
    model = schema.ModelT.InitFromPackedBuf(FILE.data, 0)
    model.subgraphs[0].outputs = [*model.subgraphs[0].outputs, FILE.graph.operators[-1].inputs[0]]
    model.signatureDefs = None
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


@pytest.mark.parametrize("batch_size", [1, 3])
def test_several_outputs_come_in_the_order_asked_for(batch_size):
    data = two_outputs()
    second = FILE.graph.tensors[FILE.graph.operators[-1].inputs[0]]
    rows = CASE.observations[:batch_size]
    names = [second.name, CASE.sink]
    model = LiteRTRuntime().load(data, inputs=[CASE.source], outputs=names, batch_size=batch_size)
    stored, real = model.infer(rows)
    assert (stored.dtype, real.dtype) == (np.int8, np.float32)
    scale, zero = second.quantization.scales[0], int(second.quantization.zero_points[0])
    np.testing.assert_allclose((stored.astype(np.int32) - zero) * scale, real, rtol=1e-6)
    assert list(model.run({CASE.source: rows})) == names
    assert read_policy(data).contract == FILE.contract


def test_the_runtime_says_why_it_refuses():
    with pytest.raises(ModelFileError, match=r"ai-edge-litert [\d.]+ refuses the model"):
        LiteRTRuntime().load(b"\x10\0\0\0TFL3" + b"\0" * 8, inputs=[CASE.source], outputs=[CASE.sink])


def test_act_latency_measures_both():
    latency = act_latency(Policy.load(FILE), 500)
    assert latency.raw_us_p50 > 0
    assert latency.act_us_p50 <= latency.act_us_p99
    assert latency.ratio == pytest.approx(latency.act_us_p50 / latency.raw_us_p50, abs=0.01)
    assert latency.calls == 500
    assert latency.runtime.startswith("ai-edge-litert ")


@pytest.mark.parametrize("n", [0, 99, 10**8])
def test_act_latency_refuses_senseless_counts(n):
    with pytest.raises(UsageError, match="expected 100 to"):
        act_latency(Policy.load(FILE), n)
