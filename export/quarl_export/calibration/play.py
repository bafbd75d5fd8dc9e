"""Observations from playing an environment, seeded: with random actions or with the float policy's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import gymnasium
import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import PolicyContract
from quarl_device.environments import EnvSpec, check_matches, first_line, make_single
from quarl_device.errors import EnvironmentMisbehaved, UsageError
from quarl_device.frame_stack import restack
from quarl_export.acting import greedy_actions
from quarl_export.calibration.data import CalibrationData, most_rows, observation_shape
from quarl_export.calibration.hold_out import HELD_OUT, MIN_ROWS, HoldOut
from quarl_export.ir import ImportedPolicy, run_reference

Actions = Literal["random", "policy", "mixed"]
# A judgement on fewer episodes says so: what is rare in them, no check has seen.
FEW_EPISODES = 8
MAX_STEPS = 100_000
Row = dict[str, NDArray[Any]]


def play(
    policy: ImportedPolicy,
    spec: EnvSpec,
    *,
    steps: int = 4_096,
    seed: int = 0,
    actions: Actions = "mixed",
    allow_module: bool = False,
) -> CalibrationData:
    """Step one environment and keep what it shows.

    The last quarter of the steps is played in episodes of its own, at least two, and held out. Where there are more
    steps than rows are kept of, those that are kept lie evenly between them.

    Args:
        policy: gives the contract, and the actions of "policy".
        spec: which environment.
        steps: how many observations, first ones of episodes included.
        seed: of environment and action space.
        actions: "random"; "policy": the float network's greedy ones; "mixed": every second episode each, so that the
            data hold what the policy seeks and what it avoids.
        allow_module: see `environments.check_registered`.

    Raises:
        UsageError: not at least 2 steps.
        SpaceMismatch: the environment's spaces are not the policy's.
        EnvironmentMisbehaved: it raised, or showed NaN.
        QuarlError: whatever `make_single` raises.
    """
    if not 2 <= steps <= MAX_STEPS:
        raise UsageError(f"cannot calibrate with {steps} steps: expected 2..{MAX_STEPS:,}")
    contract = policy.contract
    world = make_single(spec, seed=seed, allow_module=allow_module)
    kept = _Kept(contract, steps)
    try:
        check_matches(world, contract.observations, contract.action)
        ends, held_episodes = _ends(steps), 0
        for episode in itertools.count():
            greedy = actions == "policy" or (actions == "mixed" and episode % 2 == 1)
            choose = _greedy(policy) if greedy else lambda _row: world.action_space.sample()
            end = next(end for end in ends if end > kept.seen)
            held_episodes += kept.seen >= ends[0]
            _episode(world, contract, choose, kept, end, seed=seed + episode)
            if kept.seen == steps:
                break
    finally:
        world.close()
    held_out = None
    if len(ends) > 1:
        held_out = HoldOut(rows=kept.steps >= ends[0], of=_of_episodes(held_episodes))
    source = f"{steps} steps of {spec.env_id}, {actions} actions, seed {seed}"
    return CalibrationData.checked(contract, kept.rows, source=source, held_out=held_out)


def _of_episodes(count: int) -> str:
    """Return what held-out rows are of; a judgement that rests on few episodes says so."""
    if count >= FEW_EPISODES:
        return f"of {count} other episodes"
    return f"of only {count} other episode{'' if count == 1 else 's'} (few: more --steps play more)"


class _Kept:
    """The rows that are kept of what is played, written into place as they come.

    Attributes:
        seen: how many there were so far.
        steps: int64 ``[kept]``, which of them are kept.
        rows: per key ``[kept, *shape]``.

    Args:
        contract: whose observations.
        steps: how many there will be.
    """

    def __init__(self, contract: PolicyContract, steps: int) -> None:
        self.seen = 0
        most = min(steps, most_rows(contract.observations))
        self.steps = np.linspace(0, steps - 1, most).astype(np.int64)
        self.rows = {spec.key: np.empty((most, *observation_shape(spec)), spec.dtype) for spec in contract.observations}
        self._filled = 0

    def add(self, row: Row) -> None:
        if self._filled < len(self.steps) and self.steps[self._filled] == self.seen:
            for key, array in self.rows.items():
                array[self._filled] = row[key]
            self._filled += 1
        self.seen += 1


def _ends(steps: int) -> tuple[int, ...]:
    """Return the rows at which an episode is cut, if it has not ended: none is both calibrated with and judged by.

    What is held out is cut in the middle, so that it holds one of random and one of the policy's own actions.
    """
    held = int(HELD_OUT * steps)
    return (steps - held, steps - held // 2, steps) if steps >= MIN_ROWS else (steps,)


def _episode(
    world: gymnasium.Env[Any, Any],
    contract: PolicyContract,
    choose: Callable[[Row], Any],
    kept: _Kept,
    steps: int,
    *,
    seed: int,
) -> None:
    try:
        observation, _ = world.reset(seed=seed)
        ended = False
        row = None
        while kept.seen < steps:
            row = _row(contract, observation, row)
            kept.add(row)
            if ended:
                return
            observation, _, terminated, truncated, _ = world.step(choose(row))
            ended = bool(terminated or truncated)
    # The environment is anybody's code.
    except Exception as error:
        raise EnvironmentMisbehaved(
            f"the environment raised while it was played for calibration: {type(error).__name__}: {first_line(error)}"
        ) from error


def _row(contract: PolicyContract, observation: Any, before: Row | None) -> Row:
    """Return `observation` by key; a stack is that of the row before, moved on, or filled as the contract says."""
    keyed = isinstance(observation, Mapping)
    row = {}
    for spec in contract.observations:
        frame = np.array(observation[spec.key] if keyed else observation, spec.dtype).reshape(spec.shape)
        if spec.stack > 1:
            frame = restack(spec, None if before is None else before[spec.key], frame)
        row[spec.key] = frame
    return row


def _greedy(policy: ImportedPolicy) -> Callable[[Row], Any]:
    action = policy.contract.action

    def choose(row: Row) -> Any:
        outputs = run_reference(policy, {key: values[None] for key, values in row.items()})
        return greedy_actions(policy.contract, outputs)[0]

    return choose if action.kind == "box" else lambda row: int(choose(row)) + action.start
