"""Agents behind VecFrameStack and VecNormalize, in either order, act on a device as Stable-Baselines3 has them act.

What the two wrappers do is written down here once more, from Stable-Baselines3's `StackedObservations` and
`VecNormalize`: frames before an episode's first are zeros, of the environment or of what was normalised.
"""

import functools
import json

import gymnasium
import numpy as np
import pytest
from sb3_factory import Built, Call, Name, array, box, dqn_settings, field, perceptron, pickled, write_agent

from quarl_device.environments import EnvSpec
from quarl_device.evaluate import evaluate
from quarl_device.policy import Policy
from quarl_edge.cli import main
from quarl_export.calibration import play
from quarl_export.importers import ImportOptions, import_policy
from quarl_export.pipeline import ExportOptions, build_file
from quarl_export.schemes import SchemeOptions

STACK, CLIP = 3, 2.0
CLASS = Name("stable_baselines3.common.vec_env.vec_normalize", "VecNormalize")
RUNNING = Name("stable_baselines3.common.running_mean_std", "RunningMeanStd")
ORDERS = ["no VecNormalize", "stacked, then normalised", "normalised, then stacked"]
# Without biases, which would choose the action where CartPole begins, near zero.
TENSORS = {
    name: values * (not name.endswith("bias")) for name, values in perceptron("q_net.q_net.", 4 * STACK, 16, 2).items()
}


def statistics(order):
    """Mean and variance of about the frames that CartPole begins with, in one order different for each frame."""
    rng = np.random.default_rng(1)
    size = 4 if order == "normalised, then stacked" else 4 * STACK
    return rng.uniform(-0.03, 0.03, size), rng.uniform(0.0004, 0.002, size)


@functools.cache
def imported(tmp_path, order):
    settings = dqn_settings(observation_space=field(box([-9] * 4 * STACK, [9] * 4 * STACK)))
    path = write_agent(tmp_path / "agent.zip", tensors=TENSORS, settings=settings)
    statistics_path = None
    if order != "no VecNormalize":
        mean, var = statistics(order)
        running = Built(Call(RUNNING, ()), {"mean": array(mean, "f8"), "var": array(var, "f8"), "count": 9.0})
        state = {"obs_rms": running, "clip_obs": CLIP, "epsilon": 1e-8, "norm_obs": True}
        statistics_path = tmp_path / "vecnormalize.pkl"
        statistics_path.write_bytes(pickled(Built(Call(CLASS, ()), state)))
    return import_policy(path, options=ImportOptions(env_id="CartPole-v1", vecnormalize=statistics_path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("agents")


class Wrapped:
    """What VecFrameStack and VecNormalize make of one environment's observations."""

    def __init__(self, order):
        self.order, self.frames = order, np.zeros((STACK, 4))

    def normalized(self, values):
        mean, var = statistics(self.order)
        return np.clip((values - mean) / np.sqrt(var + 1e-8), -CLIP, CLIP)

    def see(self, observation, *, begins):
        frame = self.normalized(observation) if self.order == "normalised, then stacked" else observation
        if begins:
            self.frames[...] = 0
        self.frames = np.concatenate([self.frames[1:], frame[None]])
        joined = self.frames.ravel()
        return self.normalized(joined) if self.order == "stacked, then normalised" else joined


def q_values(seen):
    hidden = np.maximum(TENSORS["q_net.q_net.0.weight"] @ seen + TENSORS["q_net.q_net.0.bias"], 0)
    return TENSORS["q_net.q_net.2.weight"] @ hidden + TENSORS["q_net.q_net.2.bias"]


@functools.cache
def played(source):
    return play(source, EnvSpec(env_id="CartPole-v1"), steps=300)


def build(source, **options):
    # Forced: that an agent of random weights balances no pole is not what is tested here.
    return build_file(source, ExportOptions(scheme=SchemeOptions(**options), force=True), data=played(source)).file


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("options", "least"),
    [({"scheme": "float32"}, 1.0), ({"scheme": "int8"}, 0.9), ({"scheme": "int8", "io": "int8"}, 0.9)],
)
def test_an_agent_acts_as_behind_its_wrappers(folder, order, options, least):
    """From an episode's first step on, with the normaliser in the file and on the device."""
    policy = Policy.load(build(imported(folder, order), **options))
    wrapped, env, same, firsts = Wrapped(order), gymnasium.make("CartPole-v1"), [], []
    for seed in range(40):
        observation, _ = env.reset(seed=seed)
        policy.begin_episode()
        for step in range(6):
            wanted = q_values(wrapped.see(observation.astype(np.float64), begins=step == 0))
            if abs(wanted[0] - wanted[1]) > 1e-4:
                same.append(policy.act(observation) == wanted.argmax())
                firsts += [same[-1]] if step < STACK - 1 else []
            else:
                policy.act(observation)
            observation, _, ended, _, _ = env.step(seed % 2)
            if ended:
                break
    assert len(same) > 150
    assert np.mean(same) >= least
    assert np.mean(firsts) >= least


@pytest.mark.parametrize("order", ORDERS)
def test_the_first_steps_differ_from_repeated_frames(folder, order):
    """Else the test above would not notice what lies before an episode."""
    wrapped, differing = Wrapped(order), 0
    env = gymnasium.make("CartPole-v1")
    for seed in range(100):
        observation = env.reset(seed=seed)[0].astype(np.float64)
        wanted = q_values(wrapped.see(observation, begins=True))
        for _ in range(STACK - 1):
            repeated = q_values(wrapped.see(observation, begins=False))
        differing += wanted.argmax() != repeated.argmax()
    assert differing > 3


def test_it_is_played(folder):
    result = evaluate(build(imported(folder, ORDERS[1]), scheme="int8", io="int8"), episodes=3, seed=0)
    assert result.episodes == 3
    assert result.steps >= 24


def test_commands_export_compare_and_evaluate_it(folder, capsys):
    """`--env` alone: how many frames are stacked follows from it, and every command plays with stacks."""
    imported(folder, ORDERS[1])
    agent = ["--from", folder / "agent.zip", "--vecnormalize", folder / "vecnormalize.pkl", "--env", "CartPole-v1"]
    files = {}
    for scheme, io in (("float32", "float32"), ("int8", "float32"), ("int8", "int8")):
        files[io, scheme] = path = folder / f"{scheme}_{io}.tflite"
        told = command(
            capsys,
            "export",
            path,
            *agent,
            "--scheme",
            scheme,
            "--io",
            io,
            "--calibrate",
            "env",
            "--steps",
            300,
            "--force",
        )
        assert told["env"] == "CartPole-v1"
    for quantized in (files["float32", "int8"], files["int8", "int8"]):
        told = command(capsys, "compare", files["float32", "float32"], quantized, "--env", "CartPole-v1", "--rows", 200)
        assert (told["rows"], told["recorded"]) == (200, True)
        assert told["action_agreement"] > 0.9
        assert command(capsys, "evaluate", quantized, "--episodes", 2)["episodes"] == 2


def command(capsys, *words):
    assert main([*map(str, words), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])
