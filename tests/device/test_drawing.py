"""Drawing from a head's distribution with noise that is given: frequencies, densities, one answer for one and many."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.contract import ActionSpec, Head
from quarl_device.drawing import GaussianHead, draw_index, draw_indices
from quarl_device.errors import ModelFileError, UnsupportedSpace
from quarl_device.heads import OutputBinding, real_output, softmax
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy_path

DATA = Path(__file__).parent.parent / "data"


def headed(name, action=None, **head):
    """A policy file with another head on its only output."""
    file = read_policy_path(DATA / f"{name}.tflite")
    [(_, tensor)] = file.contract.head.outputs.items()
    outputs = {"mean" if head["kind"] == "gaussian" else head["kind"]: tensor}
    contract = dataclasses.replace(
        file.contract, head=Head(outputs=outputs, **head), action=action or file.contract.action
    )
    return dataclasses.replace(file, contract=contract)


def load(file, rows=1):
    return Policy.load(file, batch_size=rows, self_test=False)


LOGITS = headed("cartpole", kind="logits")
GAUSSIAN = headed("pendulum", kind="gaussian", log_std=(-0.7,))
TWO_OUTPUTS = read_policy_path(DATA / "pendulum_gaussian.tflite")
POLES = np.random.default_rng(1).normal(0, 0.05, (8, 4)).astype(np.float32)
ANGLES = np.random.default_rng(2).normal(0, 1, (8, 3)).astype(np.float32)


def binding(dtype):
    quantized = {"scale": 0.05, "zero_point": -7, "dtype": "int8"} if dtype == "int8" else {}
    return OutputBinding(role="logits", tensor="l", **quantized)


def log_softmax(logits):
    return np.log(softmax(logits))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@given(values=st.lists(st.integers(-128, 127), min_size=1, max_size=40), fraction=st.floats(0, 1, exclude_max=True))
def test_a_fraction_falls_into_an_actions_share(dtype, values, fraction):
    output, stored = binding(dtype), np.array([values], dtype)
    shares = softmax(real_output(output, stored).astype(np.float64))[0]
    chosen, sample, log_prob = draw_index(output)(stored, fraction)
    assert chosen == sample
    assert type(chosen) is int
    below = shares[:chosen].sum()
    assert below - 1e-9 <= fraction <= below + shares[chosen] + 1e-9
    assert log_prob == pytest.approx(float(log_softmax(real_output(output, stored))[0, chosen]), abs=1e-5)
    many, _, log_probs = draw_indices(output, 3, np.dtype(np.uint8))(np.repeat(stored, 3, 0), np.full(3, fraction))
    assert many.dtype == np.uint8
    assert len(set(many.tolist())) == 1
    # Where the fraction lies on an edge, rounding may put it on either side.
    edge = min(abs(fraction - shares[:n].sum()) for n in range(len(values) + 1))
    assert many[0] == chosen or edge < 1e-9
    if many[0] == chosen:
        np.testing.assert_allclose(log_probs, log_prob, atol=1e-9)


def test_far_logits_neither_overflow_nor_underflow():
    stored = np.array([[-3e4, 3e4, 0.0]], np.float32)
    chosen, _, log_prob = draw_index(binding("float32"))(stored, 0.999999)
    assert (chosen, log_prob) == (1, 0.0)
    many, _, log_probs = draw_indices(binding("float32"), 1, np.dtype(np.int32))(stored, np.array([0.999999]))
    assert (many.tolist(), log_probs.tolist()) == ([1], [0.0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_logits_that_are_not_finite_are_refused(bad, place):
    stored = np.zeros((1, 3), np.float32)
    stored[0, place] = bad
    with pytest.raises(ModelFileError, match="not finite"):
        draw_index(binding("float32"))(stored, 0.5)
    with np.errstate(invalid="ignore"), pytest.raises(ModelFileError, match="not finite"):
        draw_indices(binding("float32"), 1, np.dtype(np.int32))(stored, np.array([0.5]))


def test_actions_come_as_often_as_the_int8_files_own_outputs_say():
    policy = load(LOGITS)
    draw = policy.drawing()
    fractions = (np.arange(4000) + 0.5) / 4000
    logits = real_output(policy._outputs[0], policy._results(POLES[0]))
    chosen = [draw(POLES[0], fraction)[0] for fraction in fractions]
    np.testing.assert_allclose(np.bincount(chosen, minlength=2) / 4000, softmax(logits)[0], atol=1e-3)


def test_one_logits_policy_and_many_draw_alike():
    one, many = load(LOGITS).drawing(), load(LOGITS, 8).drawing(batch=True)
    fractions = np.random.default_rng(3).random(8)
    actions, _, log_probs = many(POLES, fractions)
    wanted = [one(pole, fraction) for pole, fraction in zip(POLES, fractions, strict=True)]
    assert actions.tolist() == [chosen for chosen, _, _ in wanted]
    assert actions.dtype == np.uint8
    np.testing.assert_allclose(log_probs, [log_prob for _, _, log_prob in wanted], atol=1e-9)


def density(sample, mean, log_std):
    """The textbook's log density of independent normals."""
    return sum(
        -((x - m) ** 2) / (2 * math.exp(s) ** 2) - s - math.log(math.sqrt(2 * math.pi))
        for x, m, s in zip(sample, mean, log_std, strict=True)
    )


def distribution(file, observation, log_std):
    """Mean and log_std by the file's outputs, in plain words."""
    policy = load(file)
    results = policy._results(observation)
    outputs = results if isinstance(results, tuple) else (results,)
    real = [
        real_output(bound, values).ravel().astype(np.float64)
        for bound, values in zip(policy._outputs, outputs, strict=True)
    ]
    return real[0], real[1] if len(real) > 1 else np.array(log_std or file.contract.head.log_std)


@pytest.mark.parametrize(
    ("file", "log_std"), [(GAUSSIAN, ()), (GAUSSIAN, (0.4,)), (TWO_OUTPUTS, ())], ids=["constant", "pushed", "two"]
)
@pytest.mark.parametrize("noise", [-2.5, -0.3, 0.0, 1.7])
def test_a_gaussians_sample_and_its_density(file, log_std, noise):
    action, sample, log_prob = load(file).drawing(log_std=log_std)(ANGLES[0], np.array([noise]))
    mean, spread = distribution(file, ANGLES[0], log_std)
    assert sample.dtype == action.dtype == np.float32
    assert (sample.shape, action.shape, np.size(log_prob)) == ((1, 1), (1,), 1)
    np.testing.assert_allclose(sample[0], mean + np.exp(spread) * noise, rtol=1e-6)
    assert np.ravel(log_prob)[0] == pytest.approx(density(sample[0].astype(float), mean, spread), abs=1e-6)
    squashed = np.tanh(sample[0].astype(float)) if file.contract.head.squash == "tanh" else sample[0]
    [scale] = file.contract.action.scale
    np.testing.assert_allclose(action, np.clip(squashed * scale, -2, 2), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("file", [GAUSSIAN, TWO_OUTPUTS], ids=["constant", "two outputs"])
def test_one_gaussian_policy_and_many_draw_alike(file):
    one, many = load(file).drawing(), load(file, 8).drawing(batch=True)
    noise = np.random.default_rng(3).normal(size=(8, 1))
    actions, samples, log_probs = many(ANGLES, noise)
    assert (actions.shape, samples.shape, log_probs.shape) == ((8, 1), (8, 1), (8,))
    for row, wanted in enumerate(one(angle, number) for angle, number in zip(ANGLES, noise, strict=True)):
        for found, alone in zip((actions[row], samples[row], log_probs[row]), wanted, strict=True):
            np.testing.assert_allclose(np.ravel(found), np.ravel(alone), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("squash", ["none", "tanh"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@given(seed=st.integers(0, 2**32 - 1))
def test_few_numbers_one_by_one_are_what_arrays_give(dtype, squash, seed):
    rng = np.random.default_rng(seed)
    low, high = rng.uniform(-5, -1, 6), rng.uniform(1, 5, 6)
    space = {"low": tuple(low.tolist()), "high": tuple(high.tolist())}
    action = ActionSpec(kind="box", shape=(2, 3), **space, scale=(2.0,) * 6, offset=(0.5,) * 6)
    head = Head(kind="gaussian", outputs={"mean": "m"}, log_std=tuple(rng.normal(-1, 1, 6).tolist()), squash=squash)
    contract = dataclasses.replace(GAUSSIAN.contract, action=action, head=head)
    quantized = {"scale": 0.05, "zero_point": -7, "dtype": "int8"} if dtype == "int8" else {}
    outputs = (OutputBinding(role="mean", tensor="m", **quantized),)
    few, arrays = (GaussianHead(contract, outputs, shape=shape) for shape in ((2, 3), (1, 2, 3)))
    stored = rng.integers(-128, 128, (1, 6)).astype(dtype)
    noise = rng.normal(size=(1, 2, 3))
    for found, wanted in zip(few.draw(stored, noise), arrays.draw(stored, noise), strict=True):
        np.testing.assert_allclose(np.ravel(found), np.ravel(wanted), rtol=1e-6, atol=1e-6)


def test_a_tiny_spread_keeps_the_density_of_what_was_rounded():
    """A sample is sent as float32: the ratio that a learner computes must be 1 for the policy that drew it."""
    _, sample, log_prob = load(GAUSSIAN).drawing(log_std=(-12.0,))(ANGLES[0], np.array([0.3]))
    mean, _ = distribution(GAUSSIAN, ANGLES[0], (-12.0,))
    assert log_prob == pytest.approx(density(sample[0].astype(float), mean, [-12.0]), abs=1e-6)


def test_a_head_without_a_distribution_is_refused():
    for name in ("cartpole", "pendulum"):
        with pytest.raises(UnsupportedSpace, match="no distribution"):
            load(read_policy_path(DATA / f"{name}.tflite")).drawing()


def test_a_mean_that_is_not_finite_is_refused():
    policy = load(GAUSSIAN)
    policy._results = lambda _: np.full((1, 1), np.nan, np.float32)
    with np.errstate(invalid="ignore"), pytest.raises(ModelFileError, match="not finite"):
        policy.drawing()(ANGLES[0], np.zeros(1))


def test_drawing_by_a_generator_is_what_it_was():
    """`sample` with numpy's generator, as `evaluate` uses it, is the same transform of other numbers."""
    policy = load(GAUSSIAN)
    [number] = np.random.default_rng(4).standard_normal(1)
    action, _, _ = policy.drawing()(ANGLES[0], np.array([number]))
    np.testing.assert_allclose(policy.sample(ANGLES[0], np.random.default_rng(4)), action, rtol=1e-5)


def test_a_start_that_is_not_zero_is_left_to_the_loop():
    file = headed("cartpole", kind="logits", action=ActionSpec(kind="discrete", n=2, start=5))
    assert load(file).drawing()(POLES[0], 0.5)[0] in (0, 1)
