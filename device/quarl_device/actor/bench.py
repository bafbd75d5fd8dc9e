"""How fast the actor loop is, beside the bare environment in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quarl_device.actor.acting import ActingPolicy, Mailbox
from quarl_device.actor.single import SingleLoop
from quarl_device.actor.split import CallClock, StepSplit, TimedEnv, clock_cost, median_split, split_of, time_policy
from quarl_device.actor.stepping import Loop, LoopConfig
from quarl_device.actor.vector import VectorLoop
from quarl_device.board.processor import describe_machine
from quarl_device.environments import EnvSpec, VectorAdapter, check_matches, make_single, make_vector
from quarl_device.errors import UsageError
from quarl_device.heads import float32_bounds
from quarl_device.policy import Policy
from quarl_device.policy_file import PolicyFile, read_policy_path
from quarl_device.runtime import PolicyRuntime
from quarl_device.wire.block import BlockCodec, BlockSpec
from quarl_device.wire.exploration import Exploration

BUILT_IN_POLICY = Path(__file__).with_name("bench_cartpole.tflite")
MAX_ENVS = 4096
_BLOCK_ROWS = 256
_ROUNDS = 5
_EPSILON = Exploration(kind="epsilon", values=(0.05,))
_GAUSSIAN = Exploration(kind="gaussian", values=(0.1,))
_BOOT_ID = "0" * 16


@dataclass(frozen=True, kw_only=True)
class ActorSpeed:
    """What was measured; rates are the median of rounds that alternate with the bare environment's and timed ones.

    Attributes:
        env: id of the environment.
        envs: environments stepped as one batch.
        steps_per_s: environment steps per second of the whole loop, dummy rows left out: act, explore, step, record,
            encode the block.
        bare_env_steps_per_s: of the same environment with actions drawn beforehand, and nothing else.
        act_us_p50: median time of one policy call, in µs, for all environments.
        exploration: how actions were explored, such as "epsilon 0.05".
        encode_share: of the loop's time that encoding blocks took, 0..1.
        split: of the time of a step by part, in rounds of their own with clocks, whose cost is taken out again.
        runtime: that the policy ran in.
        machine: processor architecture, number of CPUs, Python.
        sha256: of the policy file.
    """

    env: str
    envs: int
    steps_per_s: float
    bare_env_steps_per_s: float
    act_us_p50: float
    encode_share: float
    split: StepSplit
    exploration: str
    runtime: str
    machine: str
    sha256: str


def actor_speed(
    file: PolicyFile | None = None,
    *,
    num_envs: int = 1,
    duration_s: float = 3.0,
    runtime: PolicyRuntime | None = None,
) -> ActorSpeed:
    """Run the actor's loop without a broker, and its bare environment, in alternating rounds.

    Args:
        file: the policy; by default a small one for CartPole-v1 that comes with the package.
        num_envs: environments stepped as one batch.
        duration_s: of the whole measurement.
        runtime: see `Policy.load`.

    Raises:
        UsageError: `num_envs` or `duration_s` out of range.
        ModelError, EnvironmentFault: the policy or its environment does not work here.
    """
    if not 1 <= num_envs <= MAX_ENVS or not 0.01 <= duration_s <= 600:
        raise UsageError(f"cannot measure {num_envs} environments for {duration_s} s: at most {MAX_ENVS}, 0.01..600 s")
    file = file or read_policy_path(BUILT_IN_POLICY)
    policy, timed_policy = (Policy.load(file, runtime=runtime, batch_size=num_envs, stacked=True) for _ in range(2))
    loop, codec = bench_loop(file, num_envs)
    timed = _TimedLoop(file, timed_policy, num_envs)
    exploration = _post(loop, file, policy)
    bare = _make_bare(file, num_envs)
    round_s = duration_s / (3 * _ROUNDS)
    try:
        rates, bare_rates, encoding_s, looping_s = [], [], 0.0, 0.0
        # The first block and the first steps meet cold caches.
        _run_loop(loop, codec, 0.0)
        for _ in range(_ROUNDS):
            bare_rates.append(bare(round_s))
            steps, spent_s, encoded_s = _run_loop(loop, codec, round_s)
            rates.append(steps / spent_s)
            encoding_s, looping_s = encoding_s + encoded_s, looping_s + spent_s
            timed.run(round_s)
    finally:
        for opened in (loop, timed, bare):
            opened.close()
    return ActorSpeed(
        env=file.contract.env_id,
        envs=num_envs,
        steps_per_s=round(float(np.median(rates)), 1),
        bare_env_steps_per_s=round(float(np.median(bare_rates)), 1),
        act_us_p50=round(float(np.median(loop.act_us)), 3),
        encode_share=round(encoding_s / looping_s, 4),
        split=timed.split(),
        exploration=f"{exploration.kind} {exploration.values[0]:g}",
        runtime=policy.runtime_name,
        machine=describe_machine(),
        sha256=file.sha256,
    )


def bench_exploration(file: PolicyFile) -> Exploration:
    """Return how a policy is benched: 5 % random actions in a discrete space, gaussian noise of sigma 0.1 in a box."""
    return _EPSILON if file.contract.action.kind == "discrete" else _GAUSSIAN


def bench_loop(
    file: PolicyFile, num_envs: int, *, around: Callable[[Any], Any] = lambda env: env
) -> tuple[Loop, BlockCodec]:
    """Return the actor's loop over the environment of a policy, and the codec of its blocks; see `actor_speed`.

    Args:
        file: the policy.
        num_envs: environments stepped as one batch.
        around: given the environment, returns what the loop steps in its place.
    """
    contract = file.contract
    spec = BlockSpec(observations=contract.observations, action=contract.action)
    rows = min(_BLOCK_ROWS, spec.max_steps(num_envs))
    config = LoopConfig(env_id=contract.env_id, spec=spec, num_envs=num_envs, max_rows=rows, seed=0)
    env_spec = EnvSpec.seen_as(contract.observations, contract.env_id, wrappers=contract.wrappers)
    if num_envs == 1:
        env = make_single(env_spec)
        check_matches(env, contract.observations, contract.action)
        return SingleLoop(around(env), config, Mailbox()), BlockCodec(spec)
    vector = make_vector(env_spec, num_envs)
    check_matches(vector, contract.observations, contract.action)
    return VectorLoop(around(vector), config, Mailbox()), BlockCodec(spec)


def _post(loop: Loop, file: PolicyFile, policy: Policy) -> Exploration:
    """Give the loop its policy; returns how it explores."""
    exploration = bench_exploration(file)
    loop.mailbox.post_policy(ActingPolicy(policy=policy, epoch=1, version=1, exploration=exploration))
    return exploration


class _TimedLoop:
    """The same loop with clocks around the environment and the policy."""

    def __init__(self, file: PolicyFile, policy: Policy, num_envs: int) -> None:
        self._env, self._inference = CallClock(), CallClock()
        self._loop, self._codec = bench_loop(file, num_envs, around=lambda env: TimedEnv(env, self._env))
        _post(self._loop, file, time_policy(policy, self._inference))
        # The first block meets cold caches, as that of the loop without clocks does.
        _run_loop(self._loop, self._codec, 0.0)
        self._cost = clock_cost()
        self._blocks: list[StepSplit] = []

    def run(self, duration_s: float) -> None:
        """Add blocks for so long, at least one."""
        until_s = time.perf_counter() + duration_s
        while True:
            self._env.clear()
            self._inference.clear()
            steps, looping_s, encoding_s = _run_loop(self._loop, self._codec, 0.0, time.thread_time)
            self._blocks.append(
                split_of(
                    steps=steps,
                    looping_s=looping_s,
                    encoding_s=encoding_s,
                    env=self._env,
                    inference=self._inference,
                    cost=self._cost,
                )
            )
            if time.perf_counter() >= until_s:
                return

    def split(self) -> StepSplit:
        """Return the median of the blocks, part by part."""
        return median_split(self._blocks)

    def close(self) -> None:
        self._loop.close()


def _run_loop(
    loop: Loop, codec: BlockCodec, duration_s: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[int, float, float]:
    """Return steps, seconds by `clock`, and seconds of these that encoding took; at least one block is made."""
    before, began, encoded_s = loop.episodes.steps, clock(), 0.0
    while True:
        loop.run_block(loop.recorder.max_rows)
        made = clock()
        codec.encode(loop.recorder.block(boot_id=_BOOT_ID, sequence=0, base=0))
        now = clock()
        encoded_s += now - made
        if now - began >= duration_s:
            return loop.episodes.steps - before, now - began, encoded_s


class _Bare:
    """The environment alone. Called with a duration, it returns steps per second."""

    def __init__(self, env: Any, actions: list[Any]) -> None:
        self._env, self._actions = env, actions

    def __call__(self, duration_s: float) -> float:
        clock, began, steps = time.perf_counter, time.perf_counter(), 0
        while True:
            steps += self._steps()
            spent_s = clock() - began
            if spent_s >= duration_s:
                return steps / spent_s

    def close(self) -> None:
        self._env.close()

    def _steps(self) -> int:
        raise NotImplementedError


class _BareSingle(_Bare):
    def _steps(self) -> int:
        step, reset = self._env.step, self._env.reset
        for action in self._actions:
            _, _, terminated, truncated, _ = step(action)
            if terminated or truncated:
                reset()
        return len(self._actions)


class _BareVector(_Bare):
    def _steps(self) -> int:
        # With NEXT_STEP autoreset the row after an end only resets: not a step.
        step, next_step, dummies = self._env.env.step, self._env.mode == "next_step", 0
        for actions in self._actions:
            _, _, terminated, truncated, _ = step(actions)
            if next_step:
                dummies += int(np.count_nonzero(terminated | truncated))
        return len(self._actions) * int(self._env.num_envs) - dummies


def _make_bare(file: PolicyFile, num_envs: int) -> _Bare:
    contract, action = file.contract, file.contract.action
    env_spec = EnvSpec.seen_as(contract.observations, contract.env_id, wrappers=contract.wrappers)
    rng, size = np.random.default_rng(0), (_BLOCK_ROWS, num_envs)
    if action.kind == "discrete":
        draws = rng.integers(action.n, size=size) + action.start
    else:
        low, high = (bound.astype(np.float32) for bound in float32_bounds(action))
        draws = low + (high - low) * rng.random((*size, *action.shape), np.float32)
    if num_envs == 1:
        env = make_single(env_spec)
        env.reset(seed=0)
        return _BareSingle(env, draws[:, 0].tolist() if action.kind == "discrete" else list(draws[:, 0]))
    vector: VectorAdapter = make_vector(env_spec, num_envs)
    vector.reset(seed=0)
    return _BareVector(vector, list(draws))
