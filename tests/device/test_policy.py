"""Acting with a policy: the right action, from a checked file, at the runtime's own speed."""

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from quarl_device.contract import ActionSpec, Head
from quarl_device.errors import ContractError, ModelFileError, SelfTestError, UnsupportedSpace
from quarl_device.policy import Policy, run_self_test
from quarl_device.policy_file import read_policy_path
from quarl_device.runtime import find_runtime
from quarl_device.testing.fake_runtime import FakeRuntime

DATA = Path(__file__).parent.parent / "data"
FILES = {name: read_policy_path(DATA / f"{name}.tflite") for name in ("cartpole", "acrobot")}
CARTPOLE = FILES["cartpole"]
POLICIES = {name: Policy.load(file, batch_size=3) for name, file in FILES.items()}


def changed(file=CARTPOLE, **contract):
    return dataclasses.replace(file, contract=dataclasses.replace(file.contract, **contract))


def outputs_of(file, observations):
    interpreter = Interpreter(model_content=file.data)
    interpreter.allocate_tensors()
    [source], [sink] = interpreter.get_input_details(), interpreter.get_output_details()
    rows = []
    for observation in observations:
        interpreter.set_tensor(source["index"], observation[None])
        interpreter.invoke()
        rows.append(interpreter.get_tensor(sink["index"])[0])
    return np.stack(rows)


def rows(width):
    return hnp.arrays(np.float32, (3, width), elements=st.floats(-30, 30, width=32))


@pytest.mark.parametrize(("name", "width"), [("cartpole", 4), ("acrobot", 6)])
def test_acts_by_the_largest_output(name, width):
    policy, file = POLICIES[name], FILES[name]

    @given(rows(width))
    def check(observations):
        wanted = outputs_of(file, observations).argmax(axis=1)
        assert [policy.act(row) for row in observations] == wanted.tolist()
        assert [policy.act_index(row) for row in observations] == wanted.tolist()
        batch = policy.act_batch(observations)
        assert batch.tolist() == wanted.tolist()
        assert batch.dtype == np.uint8

    check()


def fake(values, width=4, n=None):
    """A runtime whose output is always `values`."""
    row = np.asarray(values, np.float32)
    source, sink = CARTPOLE.contract.observations[0].tensor, CARTPOLE.contract.head.outputs["q_values"]
    return FakeRuntime(
        lambda inputs: {sink: np.repeat(row[None], len(inputs[source]), 0)}, inputs={source: (width,)}, outputs=[sink]
    )


@given(st.lists(st.integers(-2, 2), min_size=2, max_size=40), st.integers(-3, 3))
def test_any_number_of_actions_and_any_start(values, start):
    file = changed(action=ActionSpec(kind="discrete", n=len(values), start=start))
    policy = Policy.load(file, runtime=fake(values), self_test=False, batch_size=2)
    observation = np.zeros(4, np.float32)
    best = int(np.argmax(values))
    assert policy.act(observation) == best + start
    assert type(policy.act(observation)) is int
    assert policy.act_index(observation) == best
    assert policy.act_batch(np.zeros((2, 4), np.float32)).tolist() == [best, best]


def test_many_actions_travel_as_int32():
    file = changed(action=ActionSpec(kind="discrete", n=300))
    policy = Policy.load(file, runtime=fake(np.arange(300)), self_test=False)
    actions = policy.act_batch(np.zeros((1, 4), np.float32))
    assert actions.dtype == np.int32
    assert actions.tolist() == [299]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
def test_observations_are_cast(dtype):
    observation = np.array([0, 1, 2, 3], dtype)
    assert POLICIES["cartpole"].act(observation) == POLICIES["cartpole"].act(observation.astype(np.float32))


def test_a_strided_or_read_only_observation():
    wide = np.arange(8, dtype=np.float32)
    observation = wide[::2]
    observation.flags.writeable = False
    assert POLICIES["cartpole"].act(observation) == POLICIES["cartpole"].act(observation.copy())


def test_images_keep_their_shape():
    """The buffer has the observation's shape, and the model's may differ from it in dimensions."""
    spec = dataclasses.replace(CARTPOLE.contract.observations[0], shape=(2, 2))
    policy = Policy.load(changed(observations=(spec,)), self_test=False, batch_size=2)
    flat = np.array([0.1, -0.2, 0.3, 0.4], np.float32)
    assert policy.act(flat.reshape(2, 2)) == POLICIES["cartpole"].act(flat)
    assert policy.act_batch(np.stack([flat.reshape(2, 2)] * 2)).tolist() == [POLICIES["cartpole"].act(flat)] * 2


def test_says_what_it_is():
    policy = POLICIES["cartpole"]
    assert policy.sha256 == CARTPOLE.sha256
    assert policy.contract == CARTPOLE.contract
    assert policy.batch_size == 3
    assert policy.tensor_shape == (4,)
    runtime = find_runtime()
    assert policy.runtime_name == f"{runtime.name} {runtime.version}"


def test_wrong_shapes_do_not_act():
    with pytest.raises(ValueError, match="broadcast"):
        POLICIES["cartpole"].act(np.zeros(5, np.float32))
    with pytest.raises(ValueError, match="reshape"):
        POLICIES["cartpole"].act_batch(np.zeros((2, 4), np.float32))


def test_the_self_test_passes_on_its_own_file():
    assert (
        run_self_test(CARTPOLE.contract, CARTPOLE.golden, POLICIES["cartpole"].model) <= CARTPOLE.golden.tolerance_lsb
    )


@pytest.mark.parametrize("steps", [3, 50])
def test_other_answers_fail_the_self_test(steps):
    golden = CARTPOLE.golden
    outputs = {role: array + np.float32(steps * golden.lsb[role]) for role, array in golden.outputs.items()}
    wrong = golden.with_outputs(outputs, lsb=golden.lsb, tolerance_lsb=2)
    with pytest.raises(SelfTestError, match=rf"up to {steps}\.\d\d LSB, allowed are 2"):
        Policy.load(CARTPOLE, golden=wrong)
    assert Policy.load(CARTPOLE, golden=wrong, self_test=False)


def test_answers_within_the_tolerance_pass():
    golden = CARTPOLE.golden
    outputs = {role: array + np.float32(2 * golden.lsb[role]) for role, array in golden.outputs.items()}
    assert Policy.load(CARTPOLE, golden=golden.with_outputs(outputs, lsb=golden.lsb, tolerance_lsb=2))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_answers_that_are_no_numbers_fail(value):
    with pytest.raises(SelfTestError, match=r"differ by up to (nan|inf)"):
        Policy.load(CARTPOLE, runtime=fake([0.0, value]))


def test_a_file_without_answers_needs_them_from_elsewhere():
    bare = dataclasses.replace(CARTPOLE.golden, outputs={}, lsb={}, tolerance_lsb=0)
    file = dataclasses.replace(CARTPOLE, golden=bare)
    with pytest.raises(ContractError, match="no golden outputs"):
        Policy.load(file)
    assert Policy.load(file, golden=CARTPOLE.golden)


def test_answers_of_another_size_are_refused():
    golden = CARTPOLE.golden
    wide = golden.with_outputs({"q_values": np.zeros((4, 3), np.float32)}, lsb=golden.lsb, tolerance_lsb=2)
    with pytest.raises(ContractError, match="has 3 elements"):
        Policy.load(CARTPOLE, golden=wide)


BOX = ActionSpec(kind="box", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0), scale=(1.0, 1.0), offset=(0.0, 0.0))
SPEC = CARTPOLE.contract.observations[0]


@pytest.mark.parametrize(
    ("contract", "message"),
    [
        ({"action": BOX}, "head q_values cannot act in a box action space; expected action or gaussian"),
        ({"head": Head(kind="action", outputs={"action": "x"})}, "head action cannot act in a discrete"),
        ({"head": Head(kind="gaussian", outputs={"mean": "x"}, log_std=(0.0,))}, "head gaussian cannot act"),
    ],
    ids=["box", "action", "gaussian"],
)
def test_a_head_that_cannot_act_in_its_space(contract, message):
    with pytest.raises(UnsupportedSpace, match=message):
        Policy.load(changed(**contract))


@pytest.mark.parametrize("fill", [None, (0.0,)])
def test_a_batch_of_stacked_frames_acts_as_one_environment_each(fill):
    """Three environments whose episodes begin apart, beside a policy of its own for each."""
    file = read_policy_path(DATA / "frames.tflite")
    [spec] = file.contract.observations
    file = changed(file, observations=(dataclasses.replace(spec, stack_fill=fill),))
    batch, alone = Policy.load(file, batch_size=3), [Policy.load(file) for _ in range(3)]
    rng = np.random.default_rng(2)
    seen = []
    for step in range(30):
        starts = rng.random(3) < 0.3
        frames = rng.integers(0, 256, (3, *spec.shape), np.uint8)
        batch.begin_episodes(starts if step else None)
        for policy, start in zip(alone, starts, strict=True):
            if start:
                policy.begin_episode()
        wanted = [policy.act_index(frame) for policy, frame in zip(alone, frames, strict=True)]
        assert batch.act_batch(frames).tolist() == wanted
        seen += wanted
    assert len(set(seen)) > 1


def test_what_lies_before_an_episode_changes_the_action():
    file = read_policy_path(DATA / "frames.tflite")
    [spec] = file.contract.observations
    repeated, zeros = (
        Policy.load(changed(file, observations=(dataclasses.replace(spec, stack_fill=fill),)))
        for fill in (None, (0.0,))
    )
    frames = np.random.default_rng(2).integers(0, 256, (60, *spec.shape), np.uint8)
    differing = 0
    for frame in frames:
        for policy in (repeated, zeros):
            policy.begin_episode()
        differing += repeated.act(frame) != zeros.act(frame)
        for later in frames[: spec.stack - 1]:
            last = repeated.act(later), zeros.act(later)
        # All that lay before the episode has left the stack.
        assert last[0] == last[1]
    assert differing > 3


def test_the_lint_comes_before_the_runtime():
    runtime = fake([0, 1])
    operators = tuple(dataclasses.replace(o, plain=False) for o in CARTPOLE.graph.operators)
    file = dataclasses.replace(CARTPOLE, graph=dataclasses.replace(CARTPOLE.graph, operators=operators))
    with pytest.raises(ModelFileError, match="not among the operators"):
        Policy.load(file, runtime=runtime)
    assert runtime.models == []


def test_the_self_test_comes_before_the_batch():
    runtime = fake([100.0, 0.0])
    with pytest.raises(SelfTestError):
        Policy.load(CARTPOLE, runtime=runtime, batch_size=8)
    assert [model.batch_size for model in runtime.models] == [1]


def per_call_us(call, argument, n=400):
    start = time.perf_counter()
    for _ in range(n):
        call(argument)
    return (time.perf_counter() - start) / n * 1e6


@pytest.mark.parametrize("name", ["cartpole", "acrobot"])
def test_acting_costs_little_more_than_the_runtime(name):
    """Set, invoke and get of the smallest nets there are: 1.5 times is the goal, 2 leaves room for a busy machine."""
    policy, file = POLICIES[name], FILES[name]
    interpreter = Interpreter(model_content=file.data)
    interpreter.allocate_tensors()
    source, sink = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
    set_tensor, invoke, get_tensor = interpreter.set_tensor, interpreter.invoke, interpreter.get_tensor

    def raw(batch):
        set_tensor(source, batch)
        invoke()
        get_tensor(sink)

    observation = file.golden.observations["observation"][0]
    batch = observation[None].copy()
    acts, raws = [], []
    for _ in range(40):
        raws.append(per_call_us(raw, batch))
        acts.append(per_call_us(policy.act, observation))
    assert min(acts) <= 2.0 * min(raws)


def test_loading_is_fast_enough_to_swap_at_every_push():
    Policy.load(CARTPOLE)
    start = time.perf_counter()
    for _ in range(20):
        Policy.load(CARTPOLE, batch_size=2)
    assert (time.perf_counter() - start) / 20 < 0.02
