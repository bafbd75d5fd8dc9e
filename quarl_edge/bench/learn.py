"""What a gradient step costs, by algorithm: fused and one a call, with and without quantization-aware training.

All four take turns in one process, on experience of random numbers that is drawn beforehand.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import UsageError
from quarl_edge.algorithms import AlgorithmInfo
from quarl_edge.bench.float_policy import FloatPolicy
from quarl_edge.config import RolloutConfig, TrainConfig, fields
from quarl_edge.configure import algorithm_info, make_config
from quarl_edge.replay.rollouts import Rollout
from quarl_edge.replay.transitions import Batch
from quarl_export.networks import NATURE, NetworkSpec
from quarl_export.qat import QatPolicy

FUSED_UPDATES = 32
ROUNDS = 15
OBSERVATION = ObservationSpec(key="observation", shape=(8,))
PIXELS = ObservationSpec(key="observation", shape=(84, 84, 1), dtype="uint8", stack=4)
ACTIONS: Mapping[str, ActionSpec] = {
    "discrete": ActionSpec(kind="discrete", n=4),
    "box": ActionSpec(kind="box", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)),
}
"""What is acted in, by kind: the first that an algorithm has a head for is taken."""

_ENV_ID = "bench"  # no preset has it, so that the algorithm's own defaults hold


@dataclass(frozen=True, kw_only=True)
class UpdateSpeed:
    """What was measured of one algorithm; its fields are the keys of `--format json`.

    Attributes:
        algorithm: its name.
        qat: whether its policy was trained as int8 computes; else in plain float.
        head: of the policy.
        hidden: sizes of the hidden layers, of the policy and of every other network that it has.
        convolutions: in front of them: filters, size of the kernel, stride; none of vectors.
        batch: transitions, or rows of a round, per gradient step.
        updates_per_call: gradient steps of a fused call.
        ms_per_update: of a fused call, per gradient step, by the clock; median of the rounds, as the next three.
        ms_per_update_unfused: of calls of one gradient step each.
        cpu_ms_per_update: as `ms_per_update`, in CPU time of all threads, which other work on the machine is not in.
        cpu_ms_per_update_unfused: likewise.
        unfused_ratio: unfused to fused CPU time, median of the rounds' own ratios.
        qat_ratio: CPU time of fused updates with QAT to that without, likewise; the same in both rows.
    """

    algorithm: str
    qat: bool
    head: str
    hidden: tuple[int, ...]
    convolutions: tuple[tuple[int, int, int], ...]
    batch: int
    updates_per_call: int
    ms_per_update: float
    ms_per_update_unfused: float
    cpu_ms_per_update: float
    cpu_ms_per_update_unfused: float
    unfused_ratio: float
    qat_ratio: float


@dataclass(frozen=True, kw_only=True)
class _Took:
    """Of one gradient step, in ms."""

    wall_ms: float
    cpu_ms: float


def update_speed(
    algorithm: str,
    *,
    hidden: Sequence[int],
    batch: int,
    rounds: int = ROUNDS,
    pixels: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> list[UpdateSpeed]:
    """Time an algorithm's updates; each round runs `FUSED_UPDATES` gradient steps in each of the four ways.

    Args:
        algorithm: its name.
        hidden: sizes of the hidden layers of all its networks.
        batch: transitions per gradient step.
        rounds: how often.
        pixels: see four stacked frames of 84x84, through the convolutions of Mnih et al. 2015.
        progress: told how many of `rounds` are done.

    Returns:
        With QAT, and without.

    Raises:
        UsageError: an unknown algorithm, one that sees no images, or sizes out of range.
    """
    info = algorithm_info(algorithm)
    if pixels and not info.images:
        raise UsageError(f"{algorithm} sees no images", hint="leave --pixels out, or name an algorithm that does")
    kind = next(kind for kind in ACTIONS if kind in info.heads)
    spec = NetworkSpec(
        observations=(PIXELS if pixels else OBSERVATION,),
        action=ACTIONS[kind],
        hidden=tuple(hidden),
        head=info.heads[kind],
        convolutions=NATURE if pixels else (),
    )
    ways = {
        (qat, steps): _ready(info, spec, qat=qat, steps=steps, batch=batch)
        for qat in (True, False)
        for steps in (FUSED_UPDATES, 1)
    }
    took: dict[tuple[bool, int], list[_Took]] = {way: [] for way in ways}
    for number in range(rounds):
        for way, run in ways.items():
            took[way].append(run())
        progress(number + 1)
    qat_ratio = _ratio(took[True, FUSED_UPDATES], took[False, FUSED_UPDATES])
    return [
        _row(spec, algorithm, qat, batch, took[qat, FUSED_UPDATES], took[qat, 1], qat_ratio=qat_ratio)
        for qat in (True, False)
    ]


def _ready(info: AlgorithmInfo, spec: NetworkSpec, *, qat: bool, steps: int, batch: int) -> Callable[[], _Took]:
    """Build and compile one way; returns what runs `FUSED_UPDATES` gradient steps of it."""
    config = bench_config(info, hidden=spec.hidden, batch=batch, steps=steps)
    policy: Any = QatPolicy(spec, normalize=True) if qat else FloatPolicy(spec)
    algorithm = info.build(config, policy)
    algorithm.compile()
    experience = made_up(config, spec, batch=batch, steps=steps)
    calls = FUSED_UPDATES // steps
    # Whatever comes with the first call on real numbers is not what an update costs.
    algorithm.update(experience)

    def run() -> _Took:
        began_s, cpu_s = time.perf_counter(), time.process_time()
        made = sum(algorithm.update(experience).steps for _ in range(calls))
        spent_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        return _Took(wall_ms=spent_s / made * 1e3, cpu_ms=cpu_s / made * 1e3)

    return run


def bench_config(info: AlgorithmInfo, *, hidden: tuple[int, ...], batch: int, steps: int) -> TrainConfig:
    """Return an algorithm's default configuration with these sizes, and `steps` gradient steps a call.

    A round has `batch` environments and one row for each gradient step, each of which sees `batch` of its rows once.
    """
    sizes: dict[str, Any] = {name: hidden for name in fields.hints(info.config) if name.endswith("hidden")}
    if issubclass(info.config, RolloutConfig):
        sizes |= {
            "actors": 1,
            "envs_per_actor": batch,
            "round_steps": steps,
            "minibatches": steps,
            "epochs": 1,
        }
    else:
        sizes |= {"batch_size": batch, "updates_per_call": steps}
    return make_config(_ENV_ID, algorithm=info.name, asked=sizes)


def made_up(config: TrainConfig, spec: NetworkSpec, *, batch: int, steps: int) -> Batch | Rollout:
    """Return experience of random numbers for one call: leading shape [steps, batch]."""
    rng, lead, action = np.random.default_rng(0), (steps, batch), spec.action
    shape = (*lead, *spec.input_shape)
    observation, after = (_observed(rng, shape, pixels=spec.sees_images) for _ in range(2))
    if action.kind == "discrete":
        acted = rng.integers(0, action.n, lead).astype(action.dtype)
    else:
        acted = rng.uniform(action.low, action.high, (*lead, *action.shape)).astype(np.float32)
    reward = rng.standard_normal(lead, np.float32)
    if isinstance(config, RolloutConfig):
        never = np.zeros(lead, np.bool_)
        extra = {"log_prob": np.full(lead, -1.0, np.float32)}
        if spec.head == "gaussian":
            extra["sample"] = acted
        return Rollout(
            observation=observation,
            action=acted,
            reward=reward,
            next_observation=after,
            terminated=never,
            ended=never,
            valid=~never,
            extra=extra,
        )
    return Batch(
        observation=observation,
        action=acted,
        reward=reward,
        discount=np.full(lead, config.discount, np.float32),
        next_observation=after,
        place=np.zeros(lead, np.int64),
        weight=np.ones(lead, np.float32),
    )


def _observed(rng: np.random.Generator, shape: tuple[int, ...], *, pixels: bool) -> NDArray[Any]:
    return rng.integers(0, 256, shape, np.uint8) if pixels else rng.standard_normal(shape, np.float32)


def _row(
    spec: NetworkSpec,
    algorithm: str,
    qat: bool,
    batch: int,
    fused: Sequence[_Took],
    single: Sequence[_Took],
    *,
    qat_ratio: float,
) -> UpdateSpeed:
    return UpdateSpeed(
        algorithm=algorithm,
        qat=qat,
        head=spec.head,
        hidden=spec.hidden,
        convolutions=spec.convolutions,
        batch=batch,
        updates_per_call=FUSED_UPDATES,
        ms_per_update=_median(took.wall_ms for took in fused),
        ms_per_update_unfused=_median(took.wall_ms for took in single),
        cpu_ms_per_update=_median(took.cpu_ms for took in fused),
        cpu_ms_per_update_unfused=_median(took.cpu_ms for took in single),
        unfused_ratio=_ratio(single, fused),
        qat_ratio=qat_ratio,
    )


def _ratio(ones: Sequence[_Took], others: Sequence[_Took]) -> float:
    """Return the median of the rounds' ratios of CPU time: what slows a round down slows both."""
    return _median(one.cpu_ms / other.cpu_ms for one, other in zip(ones, others, strict=True))


def _median(values: Iterable[float]) -> float:
    return round(float(statistics.median(values)), 4)
