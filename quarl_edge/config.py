"""Every hyperparameter of a run, stated once: its type, its range, its default; presets; `--set key=value`.

A configuration is made in layers, each over the one before: the field defaults, the preset ``default``, the preset of
the environment, what the command line asks for, and `--set`. The result is written to the run's config.json and never
changes.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.resources
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quarl_device import __version__
from quarl_device.errors import CheckpointError, UsageError
from quarl_edge.typed_fields import INF as _INF
from quarl_edge.typed_fields import bounded as _spec
from quarl_edge.typed_fields import check_range, check_type, from_toml, parse_value

CONFIG_SCHEMA = 1
ALGORITHMS = ("dqn",)
HEAD_OUTPUTS = ("int8", "float32", "int16")
RUNTIMES = ("litert", "tflite-2.14")
_CHOICES = {"algorithm": ALGORITHMS, "head_output": HEAD_OUTPUTS, "runtime": RUNTIMES}


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A run's hyperparameters. Steps are environment steps unless the name says otherwise.

    Attributes:
        env_id: registered gymnasium id.
        algorithm: "dqn".
        seed: of everything random.
        lockstep: one actor and the learner take turns, bit-identical on repeat and resume.
        actors: actor processes on this machine.
        envs_per_actor: environments per local actor.
        block_steps: rows per block of experience, cut to fit the block cap.
        steps: budget of environment steps.
        hidden: sizes of the hidden layers.
        learning_rate: of Adam.
        adam_epsilon: of Adam.
        batch_size: transitions per gradient step.
        updates_per_call: K, gradient steps fused into one call.
        samples_per_insert: how often a transition is sampled; gradient steps per environment step are this over
            `batch_size`.
        error_buffer: half width of the limiter's window, in samples; `None`: as wide as blocks and calls need.
        learning_starts: transitions in replay before the first update.
        replay_capacity: transitions.
        n_step: rewards per transition.
        discount: gamma per step.
        double_q: choose the next action with the online network.
        target_period_updates: gradient steps between copies to the target network, whole calls; 0: never.
        target_tau: weight of the online network in the target, per gradient step; 0: no averaging.
        reward_scale: rewards are multiplied by this before they are learned from.
        huber_delta: error above which the loss is linear; a very large one gives the squared error.
        max_grad_norm: global norm that gradients are clipped to; 0: not clipped.
        exploration_initial: epsilon at the start.
        exploration_final: epsilon from `exploration_steps` on.
        exploration_steps: over which epsilon falls linearly.
        push_period_updates: gradient steps between pushes.
        evaluate_period_pushes: pushes between judgements of the int8 file.
        evaluate_episodes: greedy episodes per judgement.
        evaluate_seed: start seed of the first; the next ones follow. Its bound leaves them room below 2^31.
        evaluate_timeout_s: longest time that anything waits for a judgement.
        goal_return: stop when a judgement reaches it; `None`: use the whole budget.
        observation_offset: per dimension, of `(observation - offset) * scale`; `None`: 0, or from data.
        observation_scale: per dimension; `None`: from the first experience.
        weight_bits: 2-8, of the network's kernels.
        activation_bits: 2-8, of its hidden layers; fewer than 8 need `runtime` "litert".
        head_output: type of the Q values that the file computes: "int8"; "float32", a head that stays in float; or
            "int16", which needs `runtime` "litert".
        runtime: oldest that actors load policies with: "litert" or "tflite-2.14".
        range_decay: of the moving average of the activation ranges.
        center_q: subtract the mean over actions from exported Q values.
        checkpoint_period_steps: between checkpoints; 0: none by steps, and lockstep has no others.
        checkpoint_period_s: longest time that learning goes on without one, unless writing them took more than 2 % of
            it; 0: none by time. Lockstep ignores it.
        audit_period_pushes: pushes between comparisons with a real conversion.
        max_lag_versions: blocks whose oldest row was made by a policy so many versions behind are taken, none older; 0:
            no bound.
        max_lag_steps: the same in environment steps.
        max_lag_s: the same in seconds since that policy was replaced.
        journal_segment_bytes: size at which a journal segment ends.
        journal_fsync_interval_s: longest time that accepted blocks wait for an fsync.
    """

    env_id: str
    algorithm: str = "dqn"
    seed: int = _spec(0, 0, 2**31 - 1)
    lockstep: bool = False
    actors: int = _spec(2, 0, 256)
    envs_per_actor: int = _spec(1, 1, 4_096)
    block_steps: int = _spec(256, 1, 65_535)
    steps: int = _spec(100_000, 1, 10**12)
    hidden: tuple[int, ...] = field(default=(256, 256), metadata={"low": 1, "high": 8_192, "above": False})
    learning_rate: float = _spec(5e-4, 0, 1, above=True)
    adam_epsilon: float = _spec(1e-7, 0, 1, above=True)
    batch_size: int = _spec(64, 1, 65_536)
    updates_per_call: int = _spec(32, 1, 100_000)
    samples_per_insert: float = _spec(32.0, 0, 1e6, above=True)
    error_buffer: float | None = _spec(None, 1, _INF)
    learning_starts: int = _spec(1_000, 1, 10**9)
    replay_capacity: int = _spec(100_000, 1, 10**9)
    n_step: int = _spec(1, 1, 100)
    discount: float = _spec(0.99, 0, 1)
    double_q: bool = True
    target_period_updates: int = _spec(128, 0, 10**9)
    target_tau: float = _spec(0.0, 0, 1)
    reward_scale: float = _spec(1.0, 0, 1e6, above=True)
    huber_delta: float = _spec(1.0, 0, _INF, above=True)
    max_grad_norm: float = _spec(10.0, 0, _INF)
    exploration_initial: float = _spec(1.0, 0, 1)
    exploration_final: float = _spec(0.05, 0, 1)
    exploration_steps: int = _spec(10_000, 1, 10**12)
    push_period_updates: int = _spec(128, 1, 10**9)
    evaluate_period_pushes: int = _spec(10, 1, 10**9)
    evaluate_episodes: int = _spec(20, 1, 10_000)
    evaluate_seed: int = _spec(1_000, 0, 2_000_000_000)
    evaluate_timeout_s: float = _spec(120.0, 0, 86_400, above=True)
    goal_return: float | None = None
    observation_offset: tuple[float, ...] | None = None
    observation_scale: tuple[float, ...] | None = None
    weight_bits: int = _spec(8, 2, 8)
    activation_bits: int = _spec(8, 2, 8)
    head_output: str = "int8"
    runtime: str = "litert"
    range_decay: float = _spec(0.99, 0, 0.999_999)
    center_q: bool = True
    checkpoint_period_steps: int = _spec(20_000, 0, 10**12)
    checkpoint_period_s: float = _spec(30.0, 0.0, _INF)
    audit_period_pushes: int = _spec(200, 1, 10**9)
    max_lag_versions: int = _spec(0, 0, 10**9)
    max_lag_steps: int = _spec(0, 0, 10**12)
    max_lag_s: float = _spec(0.0, 0, 1e9)
    journal_segment_bytes: int = _spec(16 * 1024 * 1024, 4_096, 2**40)
    journal_fsync_interval_s: float = _spec(5.0, 0, 3_600)

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):
            check_type(spec.name, _HINTS[spec.name], getattr(self, spec.name))
            check_range(spec.name, getattr(self, spec.name), spec.metadata)
        self._check_together()

    def _check_together(self) -> None:
        if not self.env_id or len(self.env_id) > 256:
            raise UsageError(f"env_id = {self.env_id[:80]!r}: expected a registered gymnasium id")
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise UsageError(
                    f"{name} = {value[:80]!r}: expected one of {', '.join(allowed)}", hint=_nearest(value, allowed)
                )
        if not 1 <= len(self.hidden) <= 16:
            raise UsageError(f"hidden = {self.hidden}: expected 1..16 layers")
        if self.learning_starts > self.replay_capacity:
            raise UsageError(
                f"learning_starts = {self.learning_starts}: expected at most replay_capacity = {self.replay_capacity}"
            )
        if not self.target_period_updates and not self.target_tau:
            raise UsageError("target_period_updates = 0 and target_tau = 0: the target network would never change")
        self._check_target_period()
        self._check_lockstep()
        self._check_normalization()
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

    def _check_target_period(self) -> None:
        """The target is copied after whole calls, so that another period would be a silent lie."""
        period, call = self.target_period_updates, self.updates_per_call
        if not period % call:
            return
        below = period // call * call
        near = " or ".join(f"{n}" for n in (below, below + call) if n)
        raise UsageError(
            f"target_period_updates = {period}: expected a multiple of updates_per_call = {call}",
            hint=f"--set target_period_updates={near}",
        )

    def _check_lockstep(self) -> None:
        if self.lockstep and self.actors > 1:
            raise UsageError(f"actors = {self.actors}: lockstep takes turns with one actor")
        if self.lockstep and not self.checkpoint_period_steps:
            raise UsageError(
                "checkpoint_period_steps = 0: lockstep writes checkpoints at this period alone, and could not resume",
                hint="--set checkpoint_period_steps=20000",
            )

    def _check_normalization(self) -> None:
        scale, offset = self.observation_scale, self.observation_offset
        if scale is None and offset is not None:
            raise UsageError("observation_offset without observation_scale: expected both or neither")
        if scale is not None and (not scale or 0.0 in scale or (offset is not None and len(offset) != len(scale))):
            raise UsageError(
                f"observation_scale = {scale}: expected one value other than 0 for each dimension and offset"
            )

    def epsilon(self, env_steps: int) -> float:
        """Return the exploration epsilon after `env_steps` environment steps."""
        part = min(1.0, max(0.0, env_steps / self.exploration_steps))
        return self.exploration_initial + part * (self.exploration_final - self.exploration_initial)

    def replace(self, **changes: Any) -> TrainConfig:
        """Return a copy with `changes`.

        Raises:
            UsageError: an unknown field, or a value that is not allowed.
        """
        for name in changes:
            _known(name)
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict that `from_json` reads back equal."""
        return {"schema": CONFIG_SCHEMA, "version": __version__, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, data: Any) -> TrainConfig:
        """Build a configuration from decoded JSON of a run.

        Raises:
            CheckpointError: it was written by another version, or does not hold; says which version.
        """
        if not isinstance(data, dict):
            raise CheckpointError(f"config.json: expected an object, found {type(data).__name__}")
        values = dict(data)
        schema, version = values.pop("schema", None), values.pop("version", "unknown")
        hint = f"it was written by quarl-edge {version}, this is {__version__}"
        for name, found in (("schema", schema), ("env_id", values.get("env_id"))):
            if found is None:
                raise CheckpointError(
                    f"config.json has no {name!r}: it is not the whole configuration of a run",
                    hint="restore it from a copy, or start a new run: quarl-edge train ENV",
                )
        if schema != CONFIG_SCHEMA:
            raise CheckpointError(f"config.json: schema {schema!r} is not {CONFIG_SCHEMA}", hint=hint)
        unknown = sorted(set(values) - set(_HINTS))
        if unknown:
            raise CheckpointError(f"config.json: unknown key {unknown[0]!r}", hint=hint)
        try:
            fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
            return cls(**fields)
        except (UsageError, TypeError) as error:
            raise CheckpointError(f"config.json does not hold: {error}", hint=hint) from error


def make_config(
    env_id: str,
    *,
    algorithm: str = "dqn",
    preset: str | None = None,
    asked: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
) -> TrainConfig:
    """Return the configuration of a new run.

    Args:
        env_id: registered gymnasium id.
        algorithm: "dqn".
        preset: take the preset of this environment instead of `env_id`'s own.
        asked: fields that the command line names.
        settings: `key=value` texts; they win.

    Raises:
        UsageError: an unknown preset or key, a value of the wrong type or out of its range.
    """
    values: dict[str, Any] = dict(read_preset("default"))
    if preset is not None or env_id in preset_names():
        values.update(read_preset(preset if preset is not None else env_id))
    values.update({_known(name): value for name, value in (asked or {}).items()})
    values.update(parse_setting(text) for text in settings)
    return TrainConfig(**{"algorithm": algorithm, **values, "env_id": env_id})


def preset_names() -> list[str]:
    """Return the environments that have a preset, and "default"."""
    folder = importlib.resources.files("quarl_edge") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_preset(name: str) -> dict[str, Any]:
    """Return the fields that a preset sets.

    Raises:
        UsageError: no such preset.
    """
    names = preset_names()
    if name not in names:
        raise UsageError(f"no preset {name[:80]!r}: there are {', '.join(names)}", hint=_nearest(name, names))
    text = (importlib.resources.files("quarl_edge") / "presets" / f"{name}.toml").read_text("utf-8")
    values = tomllib.loads(text)
    return {_known(key): from_toml(_HINTS[key], value) for key, value in values.items()}


def parse_setting(text: str) -> tuple[str, Any]:
    """Read `key=value` by the type of the field: `hidden=128,128`, `double_q=false`, `goal_return=none`.

    Raises:
        UsageError: no '=', an unknown key, or a value of another type.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals:
        raise UsageError(f"--set {text[:80]!r}: expected key=value")
    if _known(name) == "env_id":
        raise UsageError("--set env_id: the environment is the command's argument")
    return name, parse_value(name, _HINTS[name], value.strip())


def _known(name: str) -> str:
    if name not in _HINTS:
        settings = sorted(set(_HINTS) - {"env_id"})
        hint = _nearest(name, settings) or f"there are {', '.join(settings)}"
        raise UsageError(f"unknown setting {name[:80]!r}", hint=hint)
    return name


def _nearest(name: str, names: Sequence[str]) -> str:
    lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name[:80].lower(), lower, n=1, cutoff=0.4)
    return f"did you mean {lower[close[0]]!r}?" if close else ""


_HINTS: dict[str, Any] = typing.get_type_hints(TrainConfig)
