"""The four heads on whole files: actions as the raw interpreter's outputs and the contract's words give them."""

import dataclasses
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quarl_device.contract import ActionSpec, Head, PolicyContract
from quarl_device.errors import ContractError, SelfTestError, UnsupportedSpace
from quarl_device.heads import BoxHead, OutputBinding, greedy_index, greedy_indices, softmax
from quarl_device.hot_path import plain_index
from quarl_device.lint import takes_batches
from quarl_device.policy import Policy, run_self_test
from quarl_device.policy_file import read_policy, read_policy_path
from quarl_device.runtime.bench import act_latency

DATA = Path(__file__).parent.parent / "data"
NAMES = ("pendulum", "pendulum_gaussian", "dict_logits", "frames", "cartpole")
SCHEMES = tuple(f"ops_{scheme}" for scheme in ("float32", "float16", "dynamic", "int8", "int16x8"))
FILES = {name: read_policy_path(DATA / f"{name}.tflite") for name in (*NAMES, *SCHEMES)}
POLICIES = {name: Policy.load(file) for name, file in FILES.items()}


def changed(file, **contract):
    return dataclasses.replace(file, contract=dataclasses.replace(file.contract, **contract))


def raw_outputs(file, **inputs):
    """Set tensors by name and return {output name: (stored array, scale, zero point)}, in plain interpreter calls."""
    interpreter = Interpreter(model_content=file.data)
    interpreter.allocate_tensors()
    details = {d["name"]: d for d in interpreter.get_input_details()}
    for name, array in inputs.items():
        [detail] = [d for n, d in details.items() if name in n]
        interpreter.set_tensor(detail["index"], array[None].astype(detail["dtype"]))
    interpreter.invoke()
    return {d["name"]: (interpreter.get_tensor(d["index"])[0], *d["quantization"]) for d in
            interpreter.get_output_details()}  # fmt: skip


def reordered(file, slot):
    """The same file with its inputs or outputs in the other order."""
    model = schema.ModelT.InitFromPackedBuf(file.data, 0)
    setattr(model.subgraphs[0], slot, list(reversed(getattr(model.subgraphs[0], slot))))
    builder = flatbuffers.Builder(8192)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return read_policy(bytes(builder.Output()))


def pendulum_rows(count=50):
    rng = np.random.default_rng(8)
    angle = rng.uniform(-4, 4, count)
    return np.stack([np.cos(angle), np.sin(angle), rng.uniform(-8, 8, count)], 1).astype(np.float32)


def dict_rows(count=20):
    rng = np.random.default_rng(9)
    images = rng.integers(0, 256, (count, 6, 6, 3), np.uint8)
    return [{"image": image, "vector": rng.normal(0, 2, 3)} for image in images]


ODD_NUMBERS = st.sampled_from([np.nan, -np.nan, np.inf, -np.inf, -1.0, 0.0, 1.0])


@given(st.lists(ODD_NUMBERS, min_size=2, max_size=40), st.booleans())
def test_every_path_picks_the_largest_as_argmax_does(values, flat):
    """Two, three, few and many actions; NaN is the largest, as for numpy; alone and in a batch."""
    outputs, n = np.array([values], np.float32), len(values)
    expected = int(outputs.argmax())
    binding = OutputBinding(role="q_values", tensor="q", flat=flat)
    buffer = np.zeros((1, 1), np.float32)
    assert greedy_index(binding, n, 3)(outputs) == expected + 3
    assert plain_index(lambda _: outputs, buffer, buffer[0], n, 3)(np.ones(1)) == expected + 3
    assert greedy_indices(binding, 1, np.dtype(np.uint8))(outputs).tolist() == [expected]


@given(hnp.arrays(np.int8, st.tuples(st.just(1), st.integers(1, 40)), elements=st.integers(-3, 3)))
def test_stored_integers_are_compared_as_they_are_and_of_equal_ones_the_first_wins(outputs):
    binding = OutputBinding(role="q_values", tensor="q", scale=0.1, zero_point=-3, dtype="int8")
    action = greedy_index(binding, outputs.size, 3)(outputs)
    assert (action, type(action)) == (int(outputs.argmax()) + 3, int)


@pytest.mark.parametrize("name", FILES)
def test_its_own_golden_answers(name):
    file = FILES[name]
    assert run_self_test(file.contract, file.golden, POLICIES[name].model, file.graph) <= file.golden.tolerance_lsb
    wrong = {role: values + np.float32(50 * file.golden.lsb[role]) for role, values in file.golden.outputs.items()}
    golden = file.golden.with_outputs(wrong, lsb=file.golden.lsb, tolerance_lsb=3)
    with pytest.raises(SelfTestError, match="differ by up to"):
        Policy.load(file, golden=golden)


def test_an_action_head_scales_and_clips():
    file, policy = FILES["pendulum"], POLICIES["pendulum"]
    for row in pendulum_rows():
        [(output, _, _)] = raw_outputs(file, observation=row).values()
        action = policy.act(row)
        assert (action.shape, action.dtype) == ((1,), np.float32)
        assert action[0] == pytest.approx(np.clip(output[0] * 2 * 128 / 127, -2, 2), rel=1e-6)
        assert np.array_equal(policy.act_index(row), action)


def test_int8_tanh_reaches_its_bound():
    """An int8 tanh tops out at 127/128; the contract's scale of 128/127 makes the bound of it, exactly."""
    policy = POLICIES["pendulum"]
    actions = np.array([policy.act(row * 100)[0] for row in pendulum_rows(200)])
    assert actions.max() == 2.0
    assert actions.min() >= -2.0


@given(st.floats(0.001, 1000), st.sampled_from(["float32", "int8"]))
def test_any_bound_is_reached(bound, dtype):
    bound = float(np.float32(bound))
    action = ActionSpec(kind="box", shape=(1,), low=(-bound,), high=(bound,), scale=(bound * 128 / 127,))
    head = BoxHead(box_contract(action), (OutputBinding(role="action", tensor="a", dtype=dtype,
                   scale=1 / 128 if dtype == "int8" else 0.0),), shape=(1,))  # fmt: skip
    top = np.array([[127]], np.int8) if dtype == "int8" else np.array([[127 / 128]], np.float32)
    assert head.greedy(top)[0] == np.float32(bound)


def box_contract(action, **head):
    head = {"kind": "action", "outputs": {"action": "a"}, **head}
    return PolicyContract(env_id="", algorithm="", scheme="int8", head=Head(**head), action=action,
                          observations=FILES["pendulum"].contract.observations)  # fmt: skip


def box(size, shape=None):
    rng = np.random.default_rng(size)
    low, high = np.sort(rng.uniform(-3, 3, (2, size)).astype(np.float32), axis=0).tolist()
    fields = {"scale": rng.uniform(0.1, 4, size).tolist(), "offset": rng.uniform(-1, 1, size).tolist()}
    return ActionSpec(kind="box", shape=shape or (size,), low=low, high=high, **fields)


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int16"])
@pytest.mark.parametrize(("size", "shape"), [(1, (1,)), (1, ()), (3, (3,)), (6, (2, 3)), (20, (20,))])
@pytest.mark.parametrize("squash", ["none", "tanh"])
def test_every_size_type_and_squash(dtype, size, shape, squash):
    """Few numbers go in Python, or by a table, many as arrays: all by one rule, alone and in batches."""
    rng = np.random.default_rng(4)
    action = dataclasses.replace(box(size), shape=shape)
    head = {"kind": "gaussian", "outputs": {"mean": "a"}, "log_std": (0.0,) * size, "squash": squash}
    contract = box_contract(action, **head)
    stored = rng.normal(0, 2, (5, size)).astype(np.float32)
    scale, zero_point = 0.0, 0
    if dtype != "float32":
        info, scale, zero_point = np.iinfo(dtype), float(np.float32(0.037)), 3 if dtype != "int16" else 0
        stored = rng.integers(info.min, info.max + 1, (5, size)).astype(dtype)
    output = OutputBinding(role="mean", tensor="a", scale=scale, zero_point=zero_point, dtype=dtype)
    real = (stored.astype(np.float64) - zero_point) * (scale or 1.0)
    real = np.tanh(real) if squash == "tanh" else real
    wanted = np.clip(real * action.scale + action.offset, action.low, action.high).astype(np.float32)
    single = BoxHead(contract, (output,), shape=shape)
    found = np.stack([single.greedy(row[None].copy()) for row in stored])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted.reshape(5, *shape), rtol=1e-6, atol=1e-6)
    batch = BoxHead(contract, (output,), shape=(5, *shape)).greedy(stored)
    np.testing.assert_array_equal(batch, found)
    assert (found >= np.reshape(np.float32(action.low), shape)).all()
    assert (found <= np.reshape(np.float32(action.high), shape)).all()


def test_an_action_without_scale_is_the_output():
    action = ActionSpec(kind="box", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))
    head = BoxHead(box_contract(action), (OutputBinding(role="action", tensor="a"),), shape=(2,))
    assert head.greedy(np.array([[0.25, 7.0]], np.float32)).tolist() == [0.25, 1.0]


@pytest.mark.parametrize("name", ["pendulum", "pendulum_gaussian"])
def test_an_earlier_action_stays(name):
    first, second = pendulum_rows(2)
    action = POLICIES[name].act(first)
    kept = action.copy()
    POLICIES[name].act(second)
    assert np.array_equal(action, kept)


def gaussian_parts(row):
    """Mean and log_std of the gaussian file, by its contract's words: normalise, clip, quantize, run, dequantize."""
    file = FILES["pendulum_gaussian"]
    [source] = (file.graph.tensors[n] for n in file.graph.inputs)
    normalizer = file.contract.normalizer
    inner = (row - np.float32(normalizer.offset["observation"])) * np.float32(normalizer.scale["observation"])
    inner = np.clip(inner, -2, 2)
    steps = np.rint(inner / source.quantization.scales[0]) + source.quantization.zero_points[0]
    outputs = raw_outputs(file, observation=np.clip(steps, -128, 127))
    roles = file.contract.head.outputs
    parts = {}
    for role in ("mean", "log_std"):
        stored, scale, zero = outputs[roles[role]]
        parts[role] = (float(stored[0]) - zero) * scale
    return parts["mean"], parts["log_std"]


def test_a_gaussian_acts_by_its_mean():
    for row in pendulum_rows():
        mean, _ = gaussian_parts(row)
        assert POLICIES["pendulum_gaussian"].act(row)[0] == pytest.approx(2 * np.tanh(mean), rel=1e-5, abs=1e-6)


def test_a_gaussian_is_sampled():
    policy, rng = POLICIES["pendulum_gaussian"], np.random.default_rng(1)
    assert policy.stochastic
    row = min(pendulum_rows(), key=lambda row: abs(gaussian_parts(row)[0]))
    mean, log_std = gaussian_parts(row)
    samples = np.array([policy.sample(row, rng) for _ in range(4000)])
    assert (samples.shape, samples.dtype) == ((4000, 1), np.float32)
    assert (np.abs(samples) <= 2).all()
    inner = np.arctanh(np.clip(samples / 2, -0.999999, 0.999999))
    assert np.median(inner) == pytest.approx(mean, abs=0.1 * np.exp(log_std))
    inside = np.mean(np.abs(inner - mean) < np.exp(log_std))
    assert inside == pytest.approx(0.683, abs=0.03)
    again = [policy.sample(row, np.random.default_rng(2)) for _ in range(2)]
    assert np.array_equal(*again)


def test_a_constant_log_std():
    head = Head(kind="gaussian", outputs={"mean": FILES["pendulum"].contract.head.outputs["action"]}, log_std=(-3.0,))
    policy = Policy.load(changed(FILES["pendulum"], head=head), self_test=False)
    row, rng = pendulum_rows(1)[0] * 0.1, np.random.default_rng(3)
    samples = np.array([policy.sample(row, rng)[0] for _ in range(3000)])
    scale = FILES["pendulum"].contract.action.scale[0]
    assert samples.mean() == pytest.approx(policy.act(row)[0], abs=0.02)
    assert samples.std() == pytest.approx(np.exp(-3) * scale, rel=0.1)


@pytest.mark.parametrize("log_std", [5000.0, -5000.0])
def test_an_absurd_log_std_gives_no_nan(log_std):
    contract = box_contract(box(2), kind="gaussian", outputs={"mean": "a"}, log_std=(log_std, log_std))
    head = BoxHead(contract, (OutputBinding(role="mean", tensor="a"),), shape=(2,))
    assert np.isfinite(head.sample(np.zeros((1, 2), np.float32), np.random.default_rng(0))).all()


@pytest.mark.parametrize("name", ["cartpole", "pendulum"])
def test_heads_without_a_distribution(name):
    policy = POLICIES[name]
    assert not policy.stochastic
    with pytest.raises(UnsupportedSpace, match="no distribution"):
        policy.sample(FILES[name].golden.observations["observation"][0], np.random.default_rng(0))


def dict_inputs(observation):
    """The dict file's input arrays by the contract's words."""
    file, inputs = FILES["dict_logits"], {}
    for key, name in (("image", "a_image"), ("vector", "z_vector")):
        [tensor] = [t for n in file.graph.inputs if name in (t := file.graph.tensors[n]).name]
        values = np.asarray(observation[key], np.float32)
        values = values * np.float32(1 / 255) if key == "image" else np.clip(values, -3, 3)
        steps = np.rint(values * (1 / tensor.quantization.scales[0])) + tensor.quantization.zero_points[0]
        inputs[name] = np.clip(steps, 0, 255)
    return inputs


def test_row_17_dict_observations_are_bound_by_name():
    """Never by position: the interpreter's order is not the contract's, and another order changes nothing."""
    file = FILES["dict_logits"]
    order = [file.graph.tensors[n].name for n in file.graph.inputs]
    assert order != [spec.tensor for spec in file.contract.observations]
    twin, seen = Policy.load(reordered(file, "inputs")), set()
    for observation in dict_rows():
        [(logits, _, _)] = raw_outputs(file, **dict_inputs(observation)).values()
        action = POLICIES["dict_logits"].act(observation)
        assert action == 1 + int(logits.argmax())
        assert POLICIES["dict_logits"].act_index(observation) == action - 1
        assert twin.act(dict(reversed(observation.items()))) == action
        seen.add(action)
    assert seen == {1, 2, 3}


def test_outputs_are_bound_by_name():
    """The interpreter's order is not Keras'."""
    file = FILES["pendulum_gaussian"]
    twin = reordered(file, "outputs")
    assert twin.graph.outputs != file.graph.outputs
    policy, rng = Policy.load(twin), np.random.default_rng
    for row in pendulum_rows(20):
        assert np.array_equal(policy.act(row), POLICIES["pendulum_gaussian"].act(row))
        assert np.array_equal(policy.sample(row, rng(1)), POLICIES["pendulum_gaussian"].sample(row, rng(1)))


def test_logits_are_sampled_by_softmax():
    policy, rng = POLICIES["dict_logits"], np.random.default_rng(5)
    file, shares = FILES["dict_logits"], {}
    for number, row in enumerate(dict_rows()):
        [(stored, scale, zero)] = raw_outputs(file, **dict_inputs(row)).values()
        shares[number] = softmax((stored.astype(np.float64) - zero) * scale)
    number = min(shares, key=lambda n: shares[n].max())
    observation = dict_rows()[number]
    actions = [policy.sample(observation, rng) for _ in range(3000)]
    assert {type(action) for action in actions} == {int}
    found = np.bincount(actions, minlength=4)[1:] / 3000
    np.testing.assert_allclose(found, shares[number], atol=0.03)


def test_softmax_of_large_logits():
    assert softmax(np.array([1e4, 1e4 - 1, -1e4])).tolist() == pytest.approx([0.7310586, 0.2689414, 0.0])


def rows_of(name):
    file = FILES[name]
    keys = list(file.golden.observations)
    rows = [{key: file.golden.observations[key][n] for key in keys} for n in range(file.golden.rows)]
    return rows if keys != ["observation"] else [row["observation"] for row in rows]


def stacked(rows):
    if isinstance(rows[0], dict):
        return {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    return np.stack(rows)


@pytest.mark.parametrize("name", [name for name in FILES if name != "frames"])
@pytest.mark.parametrize("count", [1, 4])
def test_a_batch_is_its_rows(name, count):
    rows = rows_of(name)[:count]
    policy = Policy.load(FILES[name], batch_size=count)
    actions = policy.act_batch(stacked(rows))
    assert actions.dtype == np.dtype(FILES[name].contract.action.dtype)
    np.testing.assert_array_equal(actions, np.stack([policy.act_index(row) for row in rows]))


def test_row_12_a_file_for_one_row_alone_is_called_row_by_row():
    """Its RESHAPE says [1, 12], which no resized batch fits (tensorflow #33014, #50695)."""
    file = FILES["frames"]
    spec = dataclasses.replace(file.contract.observations[0], shape=(6, 6, 4), stack=1)
    file = changed(file, observations=(spec,))
    assert not takes_batches(file.graph, 3)
    policy = Policy.load(file, batch_size=3, self_test=False)
    assert policy.batch_size == 3
    images = np.random.default_rng(2).integers(0, 256, (30, 3, 6, 6, 4), np.uint8)
    for batch in images:
        assert policy.act_batch(batch).tolist() == [policy.act(image) for image in batch]


@pytest.mark.parametrize("name", ["pendulum_gaussian", "dict_logits", *SCHEMES])
def test_other_files_take_a_batch_at_once(name):
    assert takes_batches(FILES[name].graph, 64)
    assert not takes_batches(FILES[name].graph, 10**9)


def test_frames_are_stacked_between_steps():
    """Each frame is given once; an episode begins with its first frame four times."""
    policy, file, acted = POLICIES["frames"], FILES["frames"], set()
    frames = np.random.default_rng(3).integers(0, 256, (12, 6, 6), np.uint8)
    for _ in range(2):
        policy.begin_episode()
        seen = [frames[0]] * 3
        for frame in frames:
            seen.append(frame)
            [(values, _, _)] = raw_outputs(file, observation=np.stack(seen[-4:], -1).astype(np.float32)).values()
            action = policy.act(frame)
            assert action == int(values.argmax())
            acted.add(action)
    assert acted == {0, 1}


def test_one_key_of_a_dict_space_comes_alone_or_in_its_dict():
    spec = dataclasses.replace(FILES["pendulum"].contract.observations[0], key="state")
    policy = Policy.load(changed(FILES["pendulum"], observations=(spec,)), self_test=False)
    row = pendulum_rows(1)[0]
    wanted = POLICIES["pendulum"].act(row)
    assert np.array_equal(policy.act(row), wanted)
    assert np.array_equal(policy.act({"state": row}), wanted)


def test_latency_of_any_contract():
    for name in ("dict_logits", "frames", "pendulum_gaussian"):
        latency = act_latency(POLICIES[name], 200)
        assert latency.raw_us_p50 > 0
        assert latency.calls == 200


GAUSSIAN = FILES["pendulum_gaussian"].contract


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": Head(kind="gaussian", outputs={"mean": "x", "log_std": "x"})}, r"contract binds outputs \['x'\]"),
        (
            {"head": Head(kind="gaussian", outputs=dict.fromkeys(("mean", "log_std"), GAUSSIAN.head.outputs["mean"]))},
            "one output to two roles",
        ),
        (
            {"head": Head(kind="gaussian", outputs={"mean": GAUSSIAN.head.outputs["mean"]}, log_std=(0.0, 1.0))},
            "log_std has 2 elements, expected 1",
        ),
        ({"action": dataclasses.replace(GAUSSIAN.action, scale=(1.0, 1.0))}, "scale has 2 elements, expected 1"),
        ({"action": dataclasses.replace(GAUSSIAN.action, offset=(1.0,) * 3)}, "offset has 3 elements"),
        ({"action": dataclasses.replace(GAUSSIAN.action, low=(0.0, 0.0), high=(1.0, 1.0))}, "low has 2 elements"),
        ({"action": dataclasses.replace(GAUSSIAN.action, low=(3.0,), high=(1.0,))}, "lower bound above"),
        ({"action": dataclasses.replace(GAUSSIAN.action, shape=(-1, -1))}, "shape .* is not allowed"),
        (
            {"normalizer": dataclasses.replace(GAUSSIAN.normalizer, offset={"x": ()}, scale={"x": ()})},
            r"normaliser names \['x'\]",
        ),
        (
            {"normalizer": dataclasses.replace(GAUSSIAN.normalizer, offset={"observation": (0.0,) * 2})},
            "offset of 'observation' has 2 elements, expected 1 or 3",
        ),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:24],
)
def test_contracts_whose_lengths_do_not_fit(changes, message):
    """Checked where the file is read: numpy would broadcast."""
    file = changed(FILES["pendulum_gaussian"], **changes)
    with pytest.raises(ContractError, match=message):
        read_policy(with_contract(file))


def with_contract(file):
    from quarl_device.policy_file import METADATA_NAME, encode_metadata

    model = schema.ModelT.InitFromPackedBuf(file.data, 0)
    [entry] = [m for m in model.metadata if m.name == METADATA_NAME.encode()]
    content = encode_metadata(file.contract, file.golden, {})
    model.buffers[entry.buffer].data = np.frombuffer(content, np.uint8)
    builder = flatbuffers.Builder(8192)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def test_golden_stacks_have_their_frames():
    file = FILES["frames"]
    flat = {key: array.reshape(4, 6, 6, 4) for key, array in file.golden.observations.items()}
    with pytest.raises(ContractError, match=r"expected rows of \(4, 6, 6\)"):
        read_policy(
            with_contract(dataclasses.replace(file, golden=dataclasses.replace(file.golden, observations=flat)))
        )
