"""What every run has, whatever learns in it."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from quarl_device import __version__
from quarl_device.environments import bare_name
from quarl_device.environments.atari import is_atari
from quarl_device.errors import UsageError
from quarl_edge.config import fields
from quarl_edge.config.fields import choice, spec

CONFIG_SCHEMA = 1
# As many as a judgement may play at most, so that the sets of start seeds below have none in common.
_STARTS_APART = 10_000
HEAD_OUTPUTS = ("int8", "float32", "int16")
RUNTIMES = ("litert", "tflite-2.14")


def parse_convolution(text: str) -> tuple[int, int, int]:
    """Read "32x8/4" as filters, rows and columns of the kernel, and stride.

    Raises:
        UsageError: it is no such text.
    """
    found = re.fullmatch(r"(\d{1,5})x(\d{1,2})/(\d{1,2})", text)
    if found is None:
        raise UsageError(
            f"convolutions: {text[:80]!r} is no filters x kernel / stride", hint="--set convolutions=32x8/4,64x4/2"
        )
    filters, kernel, stride = map(int, found.groups())
    return filters, kernel, stride


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A run's hyperparameters. Steps are environment steps unless the name says otherwise.

    Attributes:
        env_id: gymnasium id as the user named it: where it begins with a module, that one registers it.
        wrappers: of gymnasium, around the environment wherever it is made, the first one innermost.
        algorithm: its name; each has a class of configurations of its own.
        seed: of everything random.
        lockstep: one actor and the learner take turns, bit-identical on repeat and resume.
        actors: actor processes on this machine.
        envs_per_actor: environments per local actor.
        block_steps: rows per block of experience, cut to fit the block cap.
        steps: budget of environment steps.
        hidden: sizes of the hidden layers of the policy.
        convolutions: of images, in front of `hidden`: "32x8/4" is 32 filters of 8x8, 4 pixels apart; `None`: those of
            Mnih et al. 2015 from 64 pixels on, fewer of smaller images.
        stack: last frames that the policy sees at once; `None`: 4 of the ALE's games, else 1.
        learning_rate: of Adam, of the policy.
        adam_epsilon: of Adam.
        updates_per_call: K, gradient steps fused into one call.
        discount: gamma per step.
        reward_scale: rewards are multiplied by this before they are learned from.
        max_grad_norm: global norm that gradients are clipped to; 0: not clipped.
        push_period_updates: gradient steps between pushes.
        evaluate_period_pushes: pushes between judgements of the int8 file.
        evaluate_episodes: greedy episodes per judgement.
        evaluate_seed: start seed of the first; the next ones follow. Its bound leaves them room below 2^31.
        evaluate_timeout_s: longest time that anything waits for a judgement.
        goal_return: stop when a judgement reaches it, and the same file does on as many other starts; `None`: use the
            whole budget.
        observation_offset: per dimension, of `(observation - offset) * scale`; `None`: 0, or learned.
        observation_scale: per dimension; `None`: learned, it follows the range of what is observed.
        weight_bits: 2-8, of the network's kernels.
        activation_bits: 2-8, of its hidden layers; fewer than 8 need `runtime` "litert".
        head_output: type of the outputs that the file computes: "int8"; "float32", a head that stays in float; or
            "int16", which needs `runtime` "litert".
        runtime: oldest that actors load policies with: "litert" or "tflite-2.14".
        range_decay: of the moving average of the activation ranges.
        checkpoint_period_steps: between checkpoints; 0: none by steps, and lockstep has no others.
        checkpoint_period_s: longest time that learning goes on without one, unless writing them took more than 2 % of
            it; 0: none by time. Lockstep ignores it.
        audit_period_pushes: pushes between comparisons with a real conversion.
        edge_tpu: compile pushes for the Edge TPU too, for actors that have one.
        edge_tpu_period_pushes: every so many of them; the newest that is due wins while the compiler is busy.
        edge_tpu_timeout_s: longest time that the compiler may take for one.
        max_lag_versions: blocks whose oldest row was made by a policy so many versions behind are taken, none older; 0:
            no bound.
        max_lag_steps: the same in environment steps.
        max_lag_s: the same in seconds since that policy was replaced.
        journal_segment_bytes: size at which a journal segment ends.
        journal_fsync_interval_s: longest time that accepted blocks wait for an fsync.
    """

    NAME: ClassVar[str] = ""

    env_id: str
    wrappers: tuple[str, ...] = ()
    algorithm: str = ""
    seed: int = spec(0, 0, 2**31 - 1)
    lockstep: bool = False
    actors: int = spec(2, 0, 256)
    envs_per_actor: int = spec(1, 1, 4_096)
    block_steps: int = spec(256, 1, 65_535)
    steps: int = spec(100_000, 1, 10**12)
    hidden: tuple[int, ...] = field(default=(256, 256), metadata={"low": 1, "high": 8_192, "above": False})
    convolutions: tuple[str, ...] | None = None
    stack: int | None = spec(None, 1, 16)
    learning_rate: float = spec(5e-4, 0, 1, above=True)
    adam_epsilon: float = spec(1e-7, 0, 1, above=True)
    updates_per_call: int = spec(32, 1, 100_000)
    discount: float = spec(0.99, 0, 1)
    reward_scale: float = spec(1.0, 0, 1e6, above=True)
    max_grad_norm: float = spec(10.0, 0, math.inf)
    push_period_updates: int = spec(128, 1, 10**9)
    evaluate_period_pushes: int = spec(10, 1, 10**9)
    evaluate_episodes: int = spec(20, 1, _STARTS_APART)
    evaluate_seed: int = spec(1_000, 0, 2_000_000_000)
    evaluate_timeout_s: float = spec(120.0, 0, 86_400, above=True)
    goal_return: float | None = None
    observation_offset: tuple[float, ...] | None = None
    observation_scale: tuple[float, ...] | None = None
    weight_bits: int = spec(8, 2, 8)
    activation_bits: int = spec(8, 2, 8)
    head_output: str = choice("int8", *HEAD_OUTPUTS)
    runtime: str = choice("litert", *RUNTIMES)
    range_decay: float = spec(0.99, 0, 0.999_999)
    checkpoint_period_steps: int = spec(20_000, 0, 10**12)
    checkpoint_period_s: float = spec(30.0, 0.0, math.inf)
    audit_period_pushes: int = spec(200, 1, 10**9)
    edge_tpu: bool = False
    edge_tpu_period_pushes: int = spec(20, 1, 10**9)
    edge_tpu_timeout_s: float = spec(60.0, 0, 3_600, above=True)
    max_lag_versions: int = spec(0, 0, 10**9)
    max_lag_steps: int = spec(0, 0, 10**12)
    max_lag_s: float = spec(0.0, 0, 1e9)
    journal_segment_bytes: int = spec(16 * 1024 * 1024, 4_096, 2**40)
    journal_fsync_interval_s: float = spec(5.0, 0, 3_600)

    def __post_init__(self) -> None:
        fields.check(self)
        self.check_together()

    def check_together(self) -> None:
        """Refuse values that do not go together; subclasses add theirs.

        Raises:
            UsageError: naming them.
        """
        if not self.env_id or len(self.env_id) > 256:
            raise UsageError(f"env_id = {self.env_id[:80]!r}: expected a registered gymnasium id")
        if self.algorithm != self.NAME:
            raise UsageError(f"algorithm = {self.algorithm[:80]!r}: these are hyperparameters of {self.NAME!r}")
        if not 1 <= len(self.hidden) <= 16:
            raise UsageError(f"hidden = {self.hidden}: expected 1..16 layers")
        for text in self.convolutions or ():
            parse_convolution(text)
        self._check_lockstep()
        self._check_normalization()
        self._check_edge_tpu()
        self.check_kernels(self.runtime)

    def check_kernels(self, runtime: str) -> None:
        """Refuse a network that the kernels of `runtime` cannot hold.

        Raises:
            UsageError: too few bits, or an output, that `runtime` does not compute.
        """
        if runtime == "litert":
            return
        if self.activation_bits < 8:
            raise UsageError(
                f"activation_bits = {self.activation_bits}: the kernels of {runtime} are off by half a step of 8 "
                "bits, which is a whole level of fewer",
                hint="--set activation_bits=8, or LiteRT on every device and --set runtime=litert",
            )
        if self.head_output == "int16":
            raise UsageError(
                f"head_output = int16: {runtime} has no kernel that turns int8 into int16",
                hint="--set head_output=float32, or LiteRT on every device and --set runtime=litert",
            )

    def _check_lockstep(self) -> None:
        if self.lockstep and self.actors > 1:
            raise UsageError(f"actors = {self.actors}: lockstep takes turns with one actor")
        if self.lockstep and not self.checkpoint_period_steps:
            raise UsageError(
                "checkpoint_period_steps = 0: lockstep writes checkpoints at this period alone, and could not resume",
                hint="--set checkpoint_period_steps=20000",
            )

    def _check_edge_tpu(self) -> None:
        if not self.edge_tpu:
            return
        if self.lockstep:
            raise UsageError("edge_tpu = true: in lockstep every policy acts for one turn, compiled or not")
        if 0 < self.max_lag_versions <= self.edge_tpu_period_pushes:
            raise UsageError(
                f"max_lag_versions = {self.max_lag_versions}: only every {self.edge_tpu_period_pushes}th policy is "
                "compiled (edge_tpu_period_pushes), so all that an Edge TPU makes would be refused",
                hint=f"--set edge_tpu_period_pushes={max(1, self.max_lag_versions // 4)}",
            )

    def _check_normalization(self) -> None:
        scale, offset = self.observation_scale, self.observation_offset
        if scale is None and offset is not None:
            raise UsageError("observation_offset without observation_scale: expected both or neither")
        if scale is not None and (not scale or 0.0 in scale or (offset is not None and len(offset) != len(scale))):
            raise UsageError(
                f"observation_scale = {scale}: expected one value other than 0 for each dimension and offset"
            )

    @property
    def fresh_seed(self) -> int:
        """The first start seed that nothing of a run has seen: for returns that no choice has flattered."""
        return self.evaluate_seed + _STARTS_APART

    @property
    def confirm_seed(self) -> int:
        """The first start seed of confirmations: of files that were judged to reach the goal."""
        return self.evaluate_seed + 2 * _STARTS_APART

    @property
    def frames_stacked(self) -> int:
        """Last frames that the policy sees at once."""
        return self.stack or (4 if is_atari(bare_name(self.env_id)) else 1)

    @property
    def centers_q(self) -> bool:
        """Whether exported Q values are centred over actions; only where an algorithm has some."""
        return False

    @property
    def has_dueling_head(self) -> bool:
        """Whether the policy learns values and advantages apart."""
        return False

    def replace(self, **changes: Any) -> Self:
        """Return a copy with `changes`.

        Raises:
            UsageError: an unknown field, or a value that is not allowed.
        """
        for name in changes:
            fields.known(type(self), name)
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict that `quarl_edge.configure.config_from_json` reads back equal."""
        return {"schema": CONFIG_SCHEMA, "version": __version__, **dataclasses.asdict(self)}
