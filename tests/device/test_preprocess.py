"""Observations into input tensors: the rule, the hot path that must equal it, and the runtime that both must equal."""

import dataclasses
import tracemalloc
import warnings
from pathlib import Path
from unittest import mock

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quarl_device import fillers
from quarl_device.contract import Normalizer, ObservationSpec
from quarl_device.errors import ContractError
from quarl_device.fillers import Filler
from quarl_device.flatbuffer import Quantization
from quarl_device.frame_stack import restack
from quarl_device.policy_file import read_policy_path
from quarl_device.preprocess import InputBinding, bind_inputs, layout_of, to_tensor

DATA = Path(__file__).parent.parent / "data"
CARTPOLE = read_policy_path(DATA / "cartpole.tflite")
LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


def bound(shape=(3,), dtype="float32", stack=1, tensor=None, stored="float32", **fields):
    spec = ObservationSpec(key="observation", shape=shape, dtype=dtype, stack=stack)
    joined = (*shape[:-1], shape[-1] * stack)
    return InputBinding(spec=spec, shape=tensor or joined, dtype=np.dtype(stored), **fields)


def quantize_only(scale, zero_point, stored):
    """The CartPole file cut down to its first operator, QUANTIZE."""
    model = schema.ModelT.InitFromPackedBuf(CARTPOLE.data, 0)
    graph = model.subgraphs[0]
    first = graph.operators[0]
    tensor = graph.tensors[first.outputs[0]]
    tensor.quantization.scale, tensor.quantization.zeroPoint = [scale], [zero_point]
    tensor.type = {"int8": schema.TensorType.INT8, "uint8": schema.TensorType.UINT8, "int16": schema.TensorType.INT16}[
        stored
    ]
    graph.operators, graph.outputs, model.signatureDefs = [first], [first.outputs[0]], None
    builder = flatbuffers.Builder(4096)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


@pytest.mark.parametrize("stored", LIMITS)
@pytest.mark.parametrize("scale", [0.25, 0.0078125, 0.037, 1 / 255])
def test_quantizes_as_the_runtime_does(stored, scale):
    """On ties, beside them, and far outside of the range."""
    scale, zero_point = float(np.float32(scale)), 0 if stored == "int16" else LIMITS[stored][0] + 40
    rng = np.random.default_rng(3)
    ties = (rng.integers(-300, 300, (2000, 4)) + 0.5) * scale
    values = np.concatenate([ties, rng.normal(0, 90 * scale, (2000, 4)), rng.normal(0, 1e5, (50, 4))])
    values = values.astype(np.float32)
    interpreter = Interpreter(model_content=quantize_only(scale, zero_point, stored))
    [source], [sink] = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(source["index"], values.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(source["index"], values)
    interpreter.invoke()
    wanted = interpreter.get_tensor(sink["index"])
    found = to_tensor(bound((4,), stored=stored, scale=scale, zero_point=zero_point), values)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def test_an_int8_cast_clips_and_never_wraps():
    """Seen in another exporter's debugger: `astype(int8)` makes -56 of 200."""
    binding = bound((4,), stored="int8", scale=1.0)
    assert to_tensor(binding, np.array([[200.0, -200.0, np.inf, -np.inf]])).tolist() == [[127, -128, 127, -128]]
    filler = Filler(binding)
    filler.fill(np.array([200, -200, 1e30, -1e30], np.float32))
    assert filler.buffer.tolist() == [[127, -128, 127, -128]]


def made_nans():
    """NaN as it comes about: written, negative, of float64, and of sums and products of infinities."""
    inf = np.float32(np.inf)
    with np.errstate(invalid="ignore"):
        return [np.nan, -np.nan, np.float32(np.float64("nan")), inf - inf, inf * np.float32(0.0)]


@pytest.mark.parametrize("size", [4, 12])
@pytest.mark.parametrize(("stored", "zero_point"), [("int8", -128), ("int8", 100), ("uint8", 77), ("int16", 0)])
@pytest.mark.parametrize(
    "normalizer", [{}, {"offset": 3.0, "factor": 0.5}, {"offset": 3.0, "factor": 0.5, "clip": 1.0}]
)
def test_nan_counts_as_0_and_infinity_as_the_end_of_the_range(size, stored, zero_point, normalizer):
    """By the rule, by bisection (up to 8 numbers) and by the low bytes of floats, alone and in a batch."""
    parts = {name: np.full(size, part, np.float32) if name != "clip" else part for name, part in normalizer.items()}
    binding = bound((size,), stored=stored, scale=0.02, zero_point=zero_point, **parts)
    numbers = [*made_nans(), np.inf, -np.inf]
    rows = np.zeros((len(numbers), size), np.float32)
    rows[:, 1] = numbers
    low, high = LIMITS[stored]
    if "clip" in normalizer:
        low, high = max(low, zero_point - 50), min(high, zero_point + 50)
    wanted = [zero_point] * 5 + [high, low]
    single, batch = Filler(binding), Filler(binding, batch_size=len(rows))
    batch.fill(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert to_tensor(binding, rows)[:, 1].tolist() == wanted
        for row, stands in zip(rows, wanted, strict=True):
            single.fill(row)
            assert single.buffer[0, 1] == stands
    assert batch.buffer.tolist() == to_tensor(binding, rows).tolist()


def test_in_a_float_input_nan_stays_nan():
    binding = bound((2,), offset=np.float32([1, 2]), factor=np.float32([1, 1]), clip=3.0)
    filler = Filler(binding)
    filler.fill(np.float32([np.nan, np.inf]))
    for found in (filler.buffer, to_tensor(binding, np.float32([[np.nan, np.inf]]))):
        np.testing.assert_array_equal(found, [[np.nan, 3.0]])


def test_normalises_then_clips():
    binding = bound((2,), offset=np.array([1, 2], np.float32), factor=np.array([10, 0.5], np.float32), clip=3.0)
    assert to_tensor(binding, np.array([[1.1, 4.0], [9.0, -9.0]])).tolist() == [
        [pytest.approx(1.0, abs=1e-6), 1.0],
        [3.0, -3.0],
    ]


STORES = st.sampled_from([("float32", 0.0, 0), ("int8", 0.05, -3), ("uint8", 1 / 255, 0), ("int8", 1 / 255, -128),
                          ("uint8", 1.0, 0), ("int8", 1.0, -128), ("int16", 0.001, 0), ("uint8", 0.4, 17)])  # fmt: skip
NORMALIZERS = st.sampled_from(
    [
        {},
        {"offset": np.float32(0.0), "factor": np.float32(1 / 255)},
        {"offset": np.float32(2.0), "factor": np.float32(0.3), "clip": 5.0},
        {"offset": np.linspace(-1, 1, 6).reshape(3, 2), "factor": np.linspace(0.1, 2, 6).reshape(3, 2), "clip": 1.5},
    ]
)


@settings(max_examples=300)
@given(STORES, NORMALIZERS, st.sampled_from(["float32", "float64", "uint8", "int64", "bool"]), st.data())
def test_the_hot_path_is_the_rule(store, normalizer, dtype, data):
    stored, scale, zero_point = store
    normalizer = {name: np.asarray(v, np.float32) if name != "clip" else v for name, v in normalizer.items()}
    binding = bound((3, 2), dtype, stored=stored, scale=scale, zero_point=zero_point, **normalizer)
    numbers = {"f": st.floats(-300, 300, width=32), "u": st.integers(0, 255), "i": st.integers(-300, 300)}
    kind = np.dtype(dtype).kind
    rows = data.draw(hnp.arrays(dtype, (4, 3, 2), elements=numbers.get(kind, st.booleans())))
    wanted = to_tensor(binding, rows)
    single, batch = Filler(binding), Filler(binding, batch_size=4)
    for row, answer in zip(rows, wanted, strict=True):
        single.fill(row)
        np.testing.assert_array_equal(single.buffer[0], answer)
    batch.fill(rows)
    np.testing.assert_array_equal(batch.buffer, wanted)
    assert single.buffer.dtype == batch.buffer.dtype == wanted.dtype == np.dtype(stored)


def test_every_image_value_goes_by_the_rule():
    """All three ways: as it is, the sign bit, a table."""
    image = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    for stored, scale, zero_point in (("uint8", 1 / 255, 0), ("int8", 1 / 255, -128), ("uint8", 1 / 100, 3)):
        binding = bound(
            (16, 16, 1), "uint8", stored=stored, scale=float(np.float32(scale)), zero_point=zero_point,
            offset=np.zeros((), np.float32), factor=np.array(1 / 255, np.float32),
        )  # fmt: skip
        filler = Filler(binding)
        filler.fill(image)
        exact = np.clip(np.rint(image / 255 / np.float64(np.float32(scale))) + zero_point, *LIMITS[stored])
        np.testing.assert_array_equal(filler.buffer[0], exact.astype(stored))
        np.testing.assert_array_equal(filler.buffer, to_tensor(binding, image[None]))


def frames_of(shape, count=7):
    return np.random.default_rng(1).integers(0, 256, (count, *shape), np.uint8)


@pytest.mark.parametrize(
    ("shape", "tensor", "layout", "place"),
    [
        ((4, 5, 2), (4, 5, 6), "joined", lambda frames: np.concatenate(frames, -1)),
        ((4, 5), (4, 5, 3), "new_axis", lambda frames: np.stack(frames, -1)),
        ((5,), (15,), "joined", np.concatenate),
        ((5,), (5, 3), "new_axis", lambda frames: np.stack(frames, -1)),
        ((5,), (3, 5), "joined", np.stack),
        ((2, 4, 5), (4, 5, 6), "channels_last", lambda frames: np.moveaxis(np.concatenate(frames, 0), 0, -1)),
        ((4, 5, 1), (60,), "joined", lambda frames: np.concatenate(frames, -1).ravel()),
        ((), (3,), "joined", np.stack),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),  # no addresses: workers must collect the same names
)
@pytest.mark.parametrize("stored", ["float32", "int8"])
def test_frames_are_stacked_oldest_first(shape, tensor, layout, place, stored):
    """And an episode begins with its first frame everywhere."""
    scale = {} if stored == "float32" else {"scale": 1.0, "zero_point": -128}
    spec = ObservationSpec(key="observation", shape=shape, dtype="uint8", stack=3)
    assert layout_of(spec, tensor) == layout
    binding = InputBinding(spec=spec, shape=tensor, dtype=np.dtype(stored), layout=layout, **scale)
    shift = 0 if stored == "float32" else -128
    frames, filler = frames_of(shape), Filler(binding)
    for _ in range(2):
        filler.begin()
        seen = [frames[0]] * 2
        for frame in frames:
            seen.append(frame)
            filler.fill(frame)
            wanted = place([f.astype(np.int16) + shift for f in seen[-3:]])
            np.testing.assert_array_equal(filler.buffer[0], wanted)
            np.testing.assert_array_equal(to_tensor(binding, np.stack(seen[-3:])[None])[0], wanted)


PLACES = st.sampled_from([((2, 3, 2), (2, 3, 6)), ((2, 3), (2, 3, 3)), ((2, 3), (18,)), ((3, 2, 4), (2, 4, 9)),
                          ((), (3,)), ((4,), (12,))])  # fmt: skip
KINDS = st.sampled_from(["none", "one", "frame", "stack", "mixed"])


def constants(kind, shape):
    """Offset and factor: none, one value, per element, or per element of each frame of the stack."""
    rng = np.random.default_rng(5)
    shapes = {"one": ((), ()), "frame": (shape, shape), "stack": ((3, *shape),) * 2, "mixed": (shape, (3, *shape))}
    if kind == "none":
        return {}
    offset, factor = (rng.uniform(0.1, 2, size).astype(np.float32) for size in shapes[kind])
    return {"offset": np.asarray(offset), "factor": np.asarray(factor), "clip": 1.5}


@settings(max_examples=200, deadline=None)
@given(STORES, PLACES, KINDS, st.sampled_from([None, (0.0,), (3.0,)]), st.sampled_from(["float32", "uint8"]), st.data())
def test_the_hot_path_of_stacks_is_the_rule(store, place, kind, fill, dtype, data):
    """In every layout, normalised before or after stacking, for one environment and for several that begin apart."""
    stored, scale, zero_point = store
    shape, tensor = place
    spec = ObservationSpec(key="observation", shape=shape, dtype=dtype, stack=3, stack_fill=fill)
    binding = InputBinding(
        spec=spec, shape=tensor, dtype=np.dtype(stored), scale=scale, zero_point=zero_point,
        layout=layout_of(spec, tensor), **constants(kind, shape),
    )  # fmt: skip
    # Large tensors are copied by the channel, and none is large here.
    with mock.patch.object(fillers, "_FEW", data.draw(st.sampled_from([0, 1024]))):
        batch, singles, stacks = Filler(binding, batch_size=2), [Filler(binding), Filler(binding)], [None, None]
    for _ in range(6):
        starts = np.array(data.draw(st.tuples(st.booleans(), st.booleans())))
        frames = data.draw(hnp.arrays(dtype, (2, *shape), elements={"float32": st.floats(-9, 9, width=32)}.get(dtype)))
        batch.begin(starts)
        batch.fill(frames)
        for env, single in enumerate(singles):
            if starts[env]:
                single.begin()
                stacks[env] = None
            single.fill(frames[env])
            stacks[env] = restack(spec, stacks[env], frames[env])
            np.testing.assert_array_equal(single.buffer[0], to_tensor(binding, stacks[env][None])[0])
        np.testing.assert_array_equal(batch.buffer, to_tensor(binding, np.stack(stacks)))


def test_frames_with_normalisers_of_their_own():
    """By hand: 10 and 20 per element in the older frame, 1 and 2 in the newer."""
    normalizer = Normalizer(
        where="device", offset={"observation": (0.0,)}, scale={"observation": (10.0, 20.0, 1.0, 2.0)}
    )
    binding = bind(spec={"shape": (2,), "stack": 2, "stack_fill": (1.0,)}, normalizer=normalizer)
    filler = Filler(binding)
    filler.fill(np.array([3.0, 4.0], np.float32))
    assert filler.buffer.tolist() == [[10.0, 20.0, 3.0, 8.0]]
    filler.fill(np.array([5.0, 6.0], np.float32))
    assert filler.buffer.tolist() == [[30.0, 80.0, 5.0, 12.0]]


def test_a_batch_of_another_size_is_no_broadcast():
    filler = Filler(bound((4,), stored="int8", scale=0.1), batch_size=3)
    with pytest.raises(ValueError, match="reshape"):
        filler.fill(np.zeros(4, np.float32))


@pytest.mark.parametrize("stored", ["float32", "uint8", "int8"])
@pytest.mark.parametrize("stack", [1, 4])
def test_images_are_filled_in_kept_memory(stored, stack):
    scale = {} if stored == "float32" else {"scale": 0.5, "zero_point": 7}
    filler = Filler(bound((84, 84, 1), "uint8", stack, stored=stored, **scale))
    image, buffer = frames_of((84, 84, 1), 1)[0], filler.buffer
    filler.fill(image)
    tracemalloc.start()
    try:
        for _ in range(20):
            filler.fill(image)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4096
    assert filler.buffer is buffer


def bind(spec=None, normalizer=None, **tensor):
    """Bind the CartPole file's observation to its input tensor, either changed."""
    graph = CARTPOLE.graph
    tensors = list(graph.tensors)
    [index] = graph.inputs
    tensors[index] = dataclasses.replace(tensors[index], **tensor)
    contract = dataclasses.replace(
        CARTPOLE.contract,
        observations=(dataclasses.replace(CARTPOLE.contract.observations[0], **(spec or {})),),
        normalizer=normalizer or Normalizer(),
    )
    return bind_inputs(contract, dataclasses.replace(graph, tensors=tuple(tensors)))[0]


SCALES = Quantization(scales=np.array([0.1, 0.2], np.float32), zero_points=np.zeros(2, np.int64), axis=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "int32"}, "goes into a int32 tensor"),
        ({"dtype": "int8"}, "not exactly one scale"),
        ({"dtype": "int8", "quantization": SCALES}, "not exactly one scale"),
        ({"spec": {"shape": (2, 2), "stack": 2}, "shape": (1, 2, 2, 2, 1)}, "do not stack into a tensor"),
        (
            {
                "normalizer": Normalizer(
                    where="device", offset={"observation": (0.0,)}, scale={"observation": (1.0,) * 3}
                )
            },
            "scale of 'observation' has 3 elements, expected 1 or 4",
        ),
        ({"spec": {"shape": (2,), "stack": 2, "stack_fill": (0.5,), "dtype": "uint8"}}, "does not hold the stack_fill"),
        (
            {
                "spec": {"shape": (2,), "stack": 2},
                "normalizer": Normalizer(
                    where="device", offset={"observation": (0.0,)}, scale={"observation": (1.0,) * 3}
                ),
            },
            r"expected 1 or 2 \(one frame\), or 4 \(all 2 frames\)",
        ),
        (
            {"normalizer": Normalizer(where="device", offset={"observation": (1e99,)}, scale={"observation": (1.0,)})},
            "not finite in float32",
        ),
    ],
    ids=["int32", "no scale", "two scales", "stack", "length", "fill", "stack length", "too large"],
)
def test_bindings_that_do_not_fit(changes, message):
    with pytest.raises(ContractError, match=message):
        bind(**changes)


def scale_of(scale):
    quantization = Quantization(scales=np.array([scale], np.float32), zero_points=np.zeros(1, np.int64), axis=0)
    return {"dtype": "int8", "quantization": quantization}


@pytest.mark.parametrize("scale", [0.0, 1e-45, 2.9e-39])
def test_a_scale_without_an_inverse_is_refused(scale):
    with pytest.raises(ContractError, match="float32 has no inverse"):
        bind(**scale_of(scale))


@pytest.mark.parametrize("scale", [3e-39, 1e-38, 0.1, 3e38])
def test_the_least_and_the_largest_scale_fill_by_the_rule(scale):
    binding = bind(**scale_of(scale))
    filler = Filler(binding)
    rows = np.float32(scale) * np.array([[0, 1, -1, 0.25], [-100, 90, 0.5, 1.5]], np.float32).astype(np.float64)
    for row in np.clip(rows, -3.4e38, 3.4e38).astype(np.float32):
        filler.fill(row)
        np.testing.assert_array_equal(filler.buffer, to_tensor(binding, row[None]))


def test_a_normaliser_in_the_graph_is_not_done_twice():
    normalizer = Normalizer(where="graph", offset={"observation": (1.0,) * 4}, scale={"observation": (2.0,) * 4})
    assert bind(normalizer=normalizer).factor is None


def test_a_channel_first_image_is_turned():
    """Stable-Baselines3 gives [channels, rows, columns], TFLite takes channels last."""
    assert bind(spec={"shape": (3, 4, 5)}, shape=(1, 4, 5, 3)).layout == "channels_last"
    assert bind(spec={"shape": (4, 4, 4)}, shape=(1, 4, 4, 4)).layout == "joined"


@pytest.mark.parametrize("stored", ["float32", "int8"])
def test_a_batch_of_channel_first_images(stored):
    spec = ObservationSpec(key="observation", shape=(3, 4, 5), dtype="uint8")
    scale = {} if stored == "float32" else {"scale": 1.0, "zero_point": -128}
    binding = InputBinding(spec=spec, shape=(4, 5, 3), dtype=np.dtype(stored), layout="channels_last", **scale)
    images, filler = frames_of((3, 4, 5), 6), Filler(binding, batch_size=6)
    filler.fill(images)
    wanted = np.moveaxis(images.astype(np.int16), 1, -1) + scale.get("zero_point", 0)
    np.testing.assert_array_equal(filler.buffer, wanted)
    np.testing.assert_array_equal(to_tensor(binding, images), wanted)
