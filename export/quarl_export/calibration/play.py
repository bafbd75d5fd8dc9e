"""Observations from playing an environment, seeded, in three ways that take turns.

With the float policy's own actions come the states that it seeks, with random ones those that it avoids, and with its
own of which some are random those between, which it must find back from. A file acts a little otherwise than its float
policy, so these it meets as well. Episodes are played to their ends, since some observations come late (a cart that
drifts), except that one may take no more than its share of the steps: each way has several starts.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import PolicyContract
from quarl_device.environments import EnvSpec, check_matches, first_line, make_single
from quarl_device.errors import EnvironmentMisbehaved, QuarlError, UsageError
from quarl_device.frame_stack import restack
from quarl_export.acting import greedy_actions
from quarl_export.calibration.data import CalibrationData, most_rows, observation_shape
from quarl_export.calibration.hold_out import HELD_OUT, MIN_ROWS, HoldOut
from quarl_export.ir import ImportedPolicy, run_reference

Way = Literal["random", "noisy", "policy"]
WAYS: tuple[Way, ...] = ("policy", "noisy", "random")
MIXED: tuple[Way, ...] = ("policy", "noisy", "random")
"""Who acts in which episode, in turns."""
DEFAULT_STEPS = 16_384
# Episodes of each way, at least, in what is calibrated with and in what is held out.
STARTS = 2
_NOISE = 0.25
# A judgement on fewer episodes says so: what is rare in them, no check has seen.
FEW_EPISODES = 8
MAX_STEPS = 100_000
# An end for an environment that takes its time. It fails instead of stopping early: ranges would follow the machine.
MAX_S = 900.0
_LOOK_AT_CLOCK_EVERY = 64
Row = dict[str, NDArray[Any]]
Choose = Callable[[Row], Any]


def play(
    policy: ImportedPolicy,
    spec: EnvSpec,
    *,
    steps: int = DEFAULT_STEPS,
    seed: int = 0,
    turns: Sequence[Way] = MIXED,
    allow_module: bool = False,
) -> CalibrationData:
    """Step one environment and keep what it shows.

    The last quarter of the steps is played in episodes of its own and held out. Where there are more steps than rows
    are kept of, those that are kept lie evenly between them.

    Args:
        policy: gives the contract, and the actions.
        spec: which environment.
        steps: how many observations, first ones of episodes included.
        seed: of environment, action space and noise; each episode begins from a seed of its own.
        turns: who acts, an episode each, over and over: "random"; "policy": the float network's greedy actions;
            "noisy": these, but a quarter of them random.
        allow_module: see `environments.check_registered`.

    Raises:
        UsageError: not at least 2 steps, no or another way to act, or more than are played in `MAX_S` here.
        SpaceMismatch: the environment's spaces are not the policy's.
        EnvironmentMisbehaved: it raised, or showed NaN.
        QuarlError: whatever `make_single` raises.
    """
    if not 2 <= steps <= MAX_STEPS:
        raise UsageError(f"cannot calibrate with {steps} steps: expected 2..{MAX_STEPS:,}")
    if not turns or not set(turns) <= set(WAYS):
        raise UsageError(f"cannot calibrate with turns {','.join(turns)[:80]!r}: expected some of {', '.join(WAYS)}")
    contract = policy.contract
    world = make_single(spec, seed=seed, allow_module=allow_module)
    kept = _Kept(contract, steps)
    held = int(HELD_OUT * steps) if steps >= MIN_ROWS else 0
    choosers = _choosers(policy, world, np.random.default_rng(seed))
    seeds = itertools.count(seed)
    held_episodes = 0
    try:
        check_matches(world, contract.observations, contract.action)
        for part in filter(None, (steps - held, held)):
            held_episodes = _part(world, contract, [choosers[way] for way in turns], kept, part, seeds)
    finally:
        world.close()
    held_out = HoldOut(rows=kept.steps >= steps - held, of=_of_episodes(held_episodes)) if held else None
    source = f"{steps} steps of {spec.env_id}, {_told(turns)}, seed {seed}"
    return CalibrationData.checked(contract, kept.rows, source=source, held_out=held_out)


def _part(
    world: gymnasium.Env[Any, Any],
    contract: PolicyContract,
    choosers: Sequence[Choose],
    kept: _Kept,
    steps: int,
    seeds: Iterator[int],
) -> int:
    """Play so many steps, an episode with each of `choosers` in turn, and return how many episodes there were."""
    end, episodes = kept.seen + steps, 0
    longest = max(1, steps // (STARTS * len(choosers)))
    for choose in itertools.cycle(choosers):
        if kept.seen == end:
            break
        _episode(world, contract, choose, kept, min(end, kept.seen + longest), seed=next(seeds))
        episodes += 1
    return episodes


def _choosers(policy: ImportedPolicy, world: gymnasium.Env[Any, Any], rng: np.random.Generator) -> Mapping[Way, Choose]:
    greedy = _greedy(policy)

    def random(_: Row) -> Any:
        return world.action_space.sample()

    def noisy(row: Row) -> Any:
        return random(row) if rng.random() < _NOISE else greedy(row)

    return {"policy": greedy, "noisy": noisy, "random": random}


def _told(turns: Sequence[Way]) -> str:
    return "mixed actions" if tuple(turns) == MIXED else f"actions of {','.join(turns)} in turn"


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
        self._steps, self._deadline_s = steps, time.monotonic() + MAX_S

    def add(self, row: Row) -> None:
        if self._filled < len(self.steps) and self.steps[self._filled] == self.seen:
            for key, array in self.rows.items():
                array[self._filled] = row[key]
            self._filled += 1
        self.seen += 1
        if self.seen % _LOOK_AT_CLOCK_EVERY == 0 and time.monotonic() > self._deadline_s:
            raise UsageError(
                f"playing took more than {MAX_S:g} s for {self.seen:,} of {self._steps:,} steps",
                hint="ask for fewer with --steps, or calibrate with a recording: --calibrate FILE.npz",
            )


def _episode(
    world: gymnasium.Env[Any, Any],
    contract: PolicyContract,
    choose: Choose,
    kept: _Kept,
    end: int,
    *,
    seed: int,
) -> None:
    try:
        observation, _ = world.reset(seed=seed)
        ended = False
        row = None
        while kept.seen < end:
            row = _row(contract, observation, row)
            kept.add(row)
            if ended:
                return
            observation, _, terminated, truncated, _ = world.step(choose(row))
            ended = bool(terminated or truncated)
    except QuarlError:
        raise
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


def _greedy(policy: ImportedPolicy) -> Choose:
    action = policy.contract.action

    def choose(row: Row) -> Any:
        outputs = run_reference(policy, {key: values[None] for key, values in row.items()})
        return greedy_actions(policy.contract, outputs)[0]

    return choose if action.kind == "box" else lambda row: int(choose(row)) + action.start
