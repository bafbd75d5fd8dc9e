"""What the training loop ties together, and the counters that it goes on from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quarl_edge.config import TrainConfig
from quarl_edge.learner.algorithm import Algorithm
from quarl_edge.learner.auditor import Auditor
from quarl_edge.learner.edge_tpu import EdgeTpuPushes
from quarl_edge.learner.keeper import Keeper
from quarl_edge.learner.metrics import MetricsSink
from quarl_edge.learner.normalization import ObservationNormalizer
from quarl_edge.learner.presence import Presence
from quarl_edge.learner.publisher import PolicyPublisher
from quarl_edge.learner.receiver import FlowReport, Receiver
from quarl_edge.learner.stop import StopSignal
from quarl_edge.local.actors import ActorProcesses
from quarl_edge.local.evaluator import Evaluator
from quarl_edge.progress import Progress
from quarl_edge.replay.experience import Experience


@dataclass(kw_only=True)
class Progression:
    """Counters that a checkpoint keeps.

    Attributes:
        version: latest policy version published.
        updates: gradient steps done.
        normalizer_version: grows whenever the normaliser's constants change.
        reset_due: lockstep: the next push resets every environment.
    """

    version: int = 0
    updates: int = 0
    normalizer_version: int = 0
    reset_due: bool = True


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that the loop ties together; it owns none of it.

    `conversion_reason` says why pushes are converted and not patched; "" where they are patched.
    """

    config: TrainConfig
    algorithm: Algorithm
    experience: Experience
    receiver: Receiver
    publisher: PolicyPublisher
    presence: Presence
    evaluator: Evaluator
    auditor: Auditor
    keeper: Keeper
    normalizer: ObservationNormalizer
    metrics: MetricsSink
    progress: Progress
    stop: StopSignal
    env_steps: Callable[[], int]
    check_broker: Callable[[], None]
    epoch: int = 0
    tell: Callable[[FlowReport], None] = lambda _report: None
    actors: ActorProcesses | None = None
    edge_tpu: EdgeTpuPushes | None = None
    conversion_reason: str = ""
