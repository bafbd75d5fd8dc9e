"""The policy contract: what an int8 file needs and gives, said in the file itself.

A contract is pure data. It travels as JSON in the policy file's `quarl.policy.v1` metadata entry and, in part, in the
learner's birth. It says which observations go in (keys, order, shape, dtype, bounds), how they are normalised, which
output tensors mean what (`Head`), and how they become an action of the environment's space.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quarl_device.errors import ContractError

CONTRACT_SCHEMA = 1
# Key of an observation that is an array by itself, not in a dict.
BARE_KEY = "observation"
MAX_OBSERVATION_KEYS = 64
MAX_ELEMENTS = 4_194_304
MAX_WRAPPERS = 16
MAX_WRAPPER_CHARS = 256

HeadKind = Literal["q_values", "logits", "action", "gaussian"]
_HEADS = ("q_values", "logits", "action", "gaussian")
_OMIT_DEFAULT = {"omit_default": True}
_DTYPES = ("float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool")


def is_observation_key(key: object) -> bool:
    """Return whether `key` may name an observation: 1-64 ASCII characters without "/"."""
    return isinstance(key, str) and 0 < len(key) <= 64 and key.isascii() and "/" not in key


@dataclass(frozen=True, kw_only=True)
class ObservationSpec:
    """One observation key.

    Attributes:
        key: its name; "observation" for a space that is not a dict.
        shape: shape of one frame, without batch and stack.
        dtype: numpy dtype name as the environment gives it and as it travels.
        low: lower bounds, flattened, or one value for all elements; `None` where unbounded.
        high: upper bounds, likewise.
        stack: how many frames the policy sees stacked (1: no stacking).
        stack_fill: what the frames before an episode's first one hold, flattened, or one value for all elements, in
            the environment's own units; `None`: the first frame itself. Not written into JSON where it is `None`, so
            that devices and learners that do not know it read what they always did.
        tensor: name of the file's input tensor; empty where no file is meant (the learner's birth).
    """

    key: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    stack: int = 1
    stack_fill: tuple[float, ...] | None = field(default=None, metadata=_OMIT_DEFAULT)
    tensor: str = ""

    def __post_init__(self) -> None:
        if not is_observation_key(self.key):
            raise ContractError(f"bad observation key {self.key[:80]!r}: expected 1-64 ASCII characters without '/'")
        if self.dtype not in _DTYPES:
            raise ContractError(f"observation {self.key!r}: dtype {self.dtype!r} is not one of {', '.join(_DTYPES)}")
        if any(n < 1 for n in self.shape) or math.prod(self.shape) > MAX_ELEMENTS or len(self.shape) > 4:
            raise ContractError(f"observation {self.key!r}: shape {self.shape} is not allowed")
        if not 1 <= self.stack <= 16:
            raise ContractError(f"observation {self.key!r}: stack {self.stack} is not in 1..16")
        if self.stack_fill is not None and self.stack == 1:
            raise ContractError(f"observation {self.key!r}: a stack_fill without stacked frames")
        for what, values in (("bounds", self.low), ("bounds", self.high), ("stack_fill values", self.stack_fill)):
            if values is not None and len(values) not in (1, math.prod(self.shape)):
                raise ContractError(
                    f"observation {self.key!r}: {len(values)} {what} for {math.prod(self.shape)} elements"
                )


@dataclass(frozen=True, kw_only=True)
class Normalizer:
    """`(observation - offset) * scale`, per element, before the input is quantized.

    Attributes:
        where: "none"; "graph": a float SUB/MUL prologue in the file does it, the device does nothing;
            "device": the device does it in numpy (int8 I/O, Coral).
        offset: per key, flattened: one value, one frame's, or those of all frames of a stack, oldest first; an empty
            mapping for "none" and "graph".
        scale: likewise.
        clip: what was normalised is clipped to ±clip; 0 for never. An int8 input does it by its range.
    """

    where: Literal["none", "graph", "device"] = "none"
    offset: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    scale: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    clip: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.clip < math.inf:
            raise ContractError(f"normaliser: clip {self.clip} is not a positive number or 0")
        if self.where not in ("none", "graph", "device"):
            raise ContractError(f"normaliser place {self.where!r} is not none, graph or device")
        if set(self.offset) != set(self.scale):
            raise ContractError("normaliser: offset and scale name different keys")


@dataclass(frozen=True, kw_only=True)
class Head:
    """What the outputs mean.

    Attributes:
        kind: "q_values": act by argmax; "logits": softmax runs in float on the device; "action": the action itself,
            scaled by `ActionSpec`; "gaussian": mean and log standard deviation, squashed, then scaled.
        outputs: role ("q_values", "logits", "action", "mean", "log_std") to output tensor name.
        log_std: "gaussian" whose standard deviation does not depend on the observation: its logarithm, per action
            element, in place of an output.
        squash: "tanh": what a gaussian gives goes through tanh, in float on the device, before it is scaled.
    """

    kind: HeadKind
    outputs: Mapping[str, str]
    log_std: tuple[float, ...] = ()
    squash: Literal["none", "tanh"] = "none"

    def __post_init__(self) -> None:
        if self.kind not in _HEADS:
            raise ContractError(f"head {self.kind!r} is not one of {', '.join(_HEADS)}")
        if self.squash not in ("none", "tanh") or (self.kind != "gaussian" and (self.log_std or self.squash != "none")):
            raise ContractError(f"head {self.kind!r} takes no squash {self.squash!r} or constant log_std")
        gaussian = {"mean"} if self.log_std else {"mean", "log_std"}
        roles = gaussian if self.kind == "gaussian" else {self.kind}
        if set(self.outputs) != roles:
            raise ContractError(f"head {self.kind!r} needs outputs {sorted(roles)}, found {sorted(self.outputs)}")


@dataclass(frozen=True, kw_only=True)
class ActionSpec:
    """The environment's action space.

    Attributes:
        kind: "discrete" or "box".
        n: number of discrete actions; 0 for a box.
        start: first discrete action (gymnasium's `Discrete.start`).
        shape: shape of a box action; () for discrete.
        low: flattened lower bounds of a box.
        high: flattened upper bounds of a box.
        scale: a box action is `output * scale + offset`, per element; int8 tanh tops out at 127/128, which the
            scale restores to 1.
        offset: see `scale`.
    """

    kind: Literal["discrete", "box"]
    n: int = 0
    start: int = 0
    shape: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    offset: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("discrete", "box"):
            raise ContractError(f"action kind {self.kind!r} is not discrete or box")
        if self.kind == "discrete" and not 1 <= self.n <= 65_536:
            raise ContractError(f"discrete action count {self.n} is not in 1..65536")
        if self.kind == "box" and (not self.low or len(self.low) != len(self.high)):
            raise ContractError("a box action needs as many lower as upper bounds")

    @property
    def space(self) -> tuple[object, ...]:
        """What makes two specs of one space: all but how an output is scaled to it."""
        return (self.kind, self.n, self.start, self.shape, self.low, self.high)

    @property
    def dtype(self) -> str:
        """Dtype of an action on the wire and in replay."""
        if self.kind == "box":
            return "float32"
        return "uint8" if self.n <= 256 else "int32"


@dataclass(frozen=True, kw_only=True)
class PolicyContract:
    """The whole contract of one policy.

    Attributes:
        env_id: gymnasium id that the policy was trained on, "" if none.
        env_kwargs: keyword arguments of `gymnasium.make`, JSON values only.
        wrappers: that the policy was trained behind, see `environments.wrappers`; not written where there are none.
        algorithm: "dqn", ...
        scheme: quantization scheme, "int8" or "float32" for now.
        observations: in the order in which they enter the network.
        normalizer: see `Normalizer`.
        head: see `Head`.
        action: see `ActionSpec`.
    """

    env_id: str
    algorithm: str
    scheme: str
    observations: tuple[ObservationSpec, ...]
    head: Head
    action: ActionSpec
    normalizer: Normalizer = field(default_factory=Normalizer)
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[str, ...] = field(default=(), metadata=_OMIT_DEFAULT)

    def __post_init__(self) -> None:
        keys = [spec.key for spec in self.observations]
        if len(self.wrappers) > MAX_WRAPPERS or any(len(text) > MAX_WRAPPER_CHARS for text in self.wrappers):
            raise ContractError(f"a contract names at most {MAX_WRAPPERS} wrappers of {MAX_WRAPPER_CHARS} characters")
        if not 1 <= len(keys) <= MAX_OBSERVATION_KEYS or len(set(keys)) != len(keys):
            raise ContractError(f"a contract needs 1-{MAX_OBSERVATION_KEYS} different observation keys, found {keys}")

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict that `from_json` reads back equal."""
        return {"schema": CONTRACT_SCHEMA, **_plain(self)}

    @classmethod
    def from_json(cls, data: Any) -> PolicyContract:
        """Build a contract from decoded JSON of an untrusted file.

        Raises:
            ContractError: unknown schema, missing or unknown keys, wrong types or values.
        """
        if not isinstance(data, dict):
            raise ContractError(f"contract: expected a JSON object, found {type(data).__name__}")
        fields = dict(data)
        schema = fields.pop("schema", None)
        if schema != CONTRACT_SCHEMA:
            raise ContractError(
                f"contract schema {schema!r} is not {CONTRACT_SCHEMA}", hint="export again with this version"
            )
        try:
            fields["observations"] = tuple(observation_from_json(spec) for spec in fields["observations"])
            fields["head"] = _head_from_json(fields["head"])
            fields["action"] = action_from_json(fields["action"])
            fields["normalizer"] = Normalizer(
                where=fields["normalizer"]["where"],
                offset={str(k): _floats(v) for k, v in fields["normalizer"]["offset"].items()},
                scale={str(k): _floats(v) for k, v in fields["normalizer"]["scale"].items()},
                clip=float(fields["normalizer"].get("clip", 0.0)),
            )
            if not isinstance(fields["env_kwargs"], dict):
                raise TypeError("env_kwargs is not an object")
            fields["wrappers"] = _texts(fields.get("wrappers", []), what="wrappers")
            for name in ("env_id", "algorithm", "scheme"):
                if not isinstance(fields[name], str):
                    raise TypeError(f"{name} is not a string")
            return cls(**fields)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ContractError(f"contract does not hold: {error}") from error


def observation_from_json(data: Any) -> ObservationSpec:
    """Build an `ObservationSpec` from decoded JSON; raises TypeError, KeyError, ValueError or ContractError."""
    fields = dict(data)
    fields["shape"] = tuple(int(n) for n in fields["shape"])
    for bound in ("low", "high", "stack_fill"):
        if fields.get(bound) is not None:
            fields[bound] = _floats(fields[bound])
    return ObservationSpec(**fields)


def action_from_json(data: Any) -> ActionSpec:
    """Build an `ActionSpec` from decoded JSON; raises TypeError, KeyError, ValueError or ContractError."""
    fields = dict(data)
    fields["shape"] = tuple(int(n) for n in fields.get("shape", ()))
    for name in ("low", "high", "scale", "offset"):
        fields[name] = _floats(fields.get(name, ()))
    return ActionSpec(**fields)


def _head_from_json(data: Any) -> Head:
    fields = dict(data)
    fields["log_std"] = _floats(fields.get("log_std", ()))
    return Head(**fields)


def spec_to_json(spec: ObservationSpec | ActionSpec) -> dict[str, Any]:
    """Return the JSON form of one spec, as the learner's birth carries it."""
    plain: dict[str, Any] = _plain(spec)
    return plain


def _floats(values: Sequence[Any]) -> tuple[float, ...]:
    result = tuple(float(v) for v in values)
    if not all(math.isfinite(v) for v in result):
        raise ValueError("a number is not finite")
    return result


def _texts(values: Any, *, what: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
        raise TypeError(f"{what} is no list of texts")
    return tuple(values)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value) if _is_told(f, value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def _is_told(known: dataclasses.Field[Any], value: Any) -> bool:
    """Return whether JSON has this field: one that came later has not while it says nothing new."""
    return not known.metadata.get("omit_default") or getattr(value, known.name) != known.default
