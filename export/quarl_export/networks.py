"""What a policy network is made of, said without TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quarl_device.contract import (
    ActionSpec,
    HeadKind,
    ObservationSpec,
    action_from_json,
    observation_from_json,
    spec_to_json,
)
from quarl_device.errors import CheckpointError, UnsupportedSpace, UsageError
from quarl_export.ir.policy_graph import SATURATED

NETWORK_SCHEMA = 1
MAX_HIDDEN_LAYERS = 16
MAX_UNITS = 16_384
_OBSERVATION_DTYPES = ("float32", "float64")
HeadOutput = Literal["int8", "float32", "int16"]
HEAD_OUTPUTS: tuple[HeadOutput, ...] = ("int8", "float32", "int16")
HEADS: Mapping[HeadKind, str] = {"q_values": "discrete", "logits": "discrete", "action": "box", "gaussian": "box"}
"""Every head with the kind of action space that it acts in."""


@dataclass(frozen=True, kw_only=True)
class QuantizationSpec:
    """How many bits training computes with, how ranges follow the data, and how the head leaves it.

    Attributes:
        weight_bits: 2-8, of the kernels; fewer than 8 are stored in int8.
        activation_bits: 2-8, of hidden layers; the input keeps 8. Fewer than 8 need LiteRT 2 with XNNPACK.
        head_output: "int8": the head is quantized, and its outputs are on a grid of 255 steps over their range;
            "float32": the head's kernel and outputs stay in float, in training and in the file; "int16": its kernel is
            quantized, and its outputs are on a grid of 65,535 steps.
        range_decay: decay of the debiased moving average of activation ranges, per training call.
        input_range: "peak": the input range opens at once to any new extreme and closes by the moving average, so
            that no observation of a batch is clipped; "average": the moving average alone.
        head_margin: the head's range is widened by this fraction of its width on both sides.
        center_q: export Q values minus their mean over actions. The greedy action is the same, and a large common
            value no longer eats the int8 resolution; the file's outputs are then advantages, not returns.
    """

    weight_bits: int = 8
    activation_bits: int = 8
    head_output: HeadOutput = "int8"
    range_decay: float = 0.99
    input_range: Literal["peak", "average"] = "peak"
    head_margin: float = 0.05
    center_q: bool = False

    def __post_init__(self) -> None:
        for name, bits in (("weight", self.weight_bits), ("activation", self.activation_bits)):
            if type(bits) is not int or not 2 <= bits <= 8:
                raise UsageError(f"{bits} {name} bits: expected 2-8")
        if self.head_output not in HEAD_OUTPUTS:
            raise UsageError(f"head output {self.head_output!r} is not one of {', '.join(HEAD_OUTPUTS)}")
        if not 0.0 <= self.range_decay < 1.0:
            raise UsageError(f"range decay {self.range_decay} is not in [0, 1)")
        if self.input_range not in ("peak", "average"):
            raise UsageError(f"input range rule {self.input_range!r} is not peak or average")
        if not 0.0 <= self.head_margin <= 1.0:
            raise UsageError(f"head margin {self.head_margin} is not in [0, 1]")


@dataclass(frozen=True, kw_only=True)
class NetworkSpec:
    """A dense ReLU policy network: a body of hidden layers, and a head.

    A head of a box action works in units of the box: -1 and 1 are its bounds, whatever they are (`unit_box`).

    Attributes:
        observations: what goes in, in order; this version takes exactly one float key of shape ``[n]``.
        action: what comes out; a box needs finite bounds, and its `scale` and `offset` are not read.
        hidden: units of each hidden layer, at least one layer.
        head: "q_values" or "logits" of discrete actions: one linear output each; "action" of a box: a last dense layer,
            then tanh; "gaussian" of a box: the mean, linear, beside a log_std that does not depend on the observation.
        quantization: see `QuantizationSpec`.
        dueling: Q values are learned as a value and advantages without their mean: the first half of the last hidden
            layer feeds the value, the rest the advantages. Both are linear, so they add up to one dense layer, and the
            file is that of the same network without (`in_file`).

    Raises:
        UnsupportedSpace: an observation or action that this version or the head does not take.
        UsageError: sizes out of range, an unknown head, or a quantization that the head has no form of.
    """

    observations: tuple[ObservationSpec, ...]
    action: ActionSpec
    hidden: tuple[int, ...] = (256, 256)
    head: HeadKind = "q_values"
    quantization: QuantizationSpec = field(default_factory=QuantizationSpec)
    dueling: bool = False

    def __post_init__(self) -> None:
        _check_observations(self.observations)
        _check_head(self.head, self.action, self.quantization)
        if not 1 <= len(self.hidden) <= MAX_HIDDEN_LAYERS:
            raise UsageError(f"{len(self.hidden)} hidden layers: expected 1-{MAX_HIDDEN_LAYERS}")
        if any(not 1 <= units <= MAX_UNITS for units in self.hidden):
            raise UsageError(f"hidden units {self.hidden}: each must be in 1..{MAX_UNITS}")
        if self.dueling and self.head != "q_values":
            raise UsageError(f"dueling is for q_values heads; the policy has a {self.head} head")
        if self.dueling and self.value_units < 1:
            raise UsageError("dueling halves the last hidden layer: expected at least 2 units")

    @property
    def in_file(self) -> NetworkSpec:
        """The network as its file has it."""
        return dataclasses.replace(self, dueling=False)

    @property
    def value_units(self) -> int:
        """Units of the last hidden layer that feed the value of a dueling head."""
        return self.hidden[-1] // 2

    @property
    def observation_size(self) -> int:
        """Elements of one observation."""
        return self.observations[0].shape[0] * self.observations[0].stack

    @property
    def head_units(self) -> int:
        """Elements of the head's output: discrete actions, or elements of a box action."""
        return self.action.n if self.action.kind == "discrete" else math.prod(self.action.shape)

    @property
    def role(self) -> str:
        """The contract's name for what the network gives, and the name of the file's output tensor."""
        return "mean" if self.head == "gaussian" else self.head

    @property
    def head_layer(self) -> str:
        """Name of the last dense layer, which has the head's range: a tanh gives the output itself, and has none."""
        return "pre_tanh" if self.head == "action" else self.role

    @property
    def head_limit(self) -> float:
        """How far from zero the head's range may reach: to where a tanh saturates, else anywhere."""
        return SATURATED["tanh"] if self.head == "action" else math.inf

    @property
    def kernel_shapes(self) -> tuple[tuple[int, int], ...]:
        """Shapes ``[inputs, units]`` of all kernels, head last."""
        widths = (self.observation_size, *self.hidden, self.head_units)
        return tuple(itertools.pairwise(widths))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict that `from_json` reads back equal; without what is not used, as it always was."""
        plain: dict[str, Any] = {
            "schema": NETWORK_SCHEMA,
            "observations": [spec_to_json(spec) for spec in self.observations],
            "action": spec_to_json(self.action),
            "hidden": list(self.hidden),
            "head": self.head,
            "quantization": vars(self.quantization),
        }
        return {**plain, "dueling": True} if self.dueling else plain

    @classmethod
    def from_json(cls, data: Any) -> NetworkSpec:
        """Build a spec from decoded JSON.

        Raises:
            CheckpointError: unknown schema, missing or mistyped fields.
            QuarlError: fields that no network can have.
        """
        if not isinstance(data, Mapping) or data.get("schema") != NETWORK_SCHEMA:
            raise CheckpointError(f"network: expected a JSON object of schema {NETWORK_SCHEMA}")
        try:
            return cls(
                observations=tuple(observation_from_json(spec) for spec in data["observations"]),
                action=action_from_json(data["action"]),
                hidden=tuple(int(units) for units in data["hidden"]),
                head=data["head"],
                quantization=QuantizationSpec(**data["quantization"]),
                dueling=data.get("dueling", False) is True,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"network does not hold: {error}") from error


def unit_box(action: ActionSpec) -> ActionSpec:
    """Return the box `action` with the scale and offset that take -1 and 1 to its bounds; a discrete one as it is."""
    if action.kind != "box":
        return action
    # Halved first: the width of float32's own bounds leaves float32.
    halves = [(low / 2, high / 2) for low, high in zip(action.low, action.high, strict=True)]
    return dataclasses.replace(
        action, scale=tuple(high - low for low, high in halves), offset=tuple(high + low for low, high in halves)
    )


def _check_head(head: HeadKind, action: ActionSpec, quantization: QuantizationSpec) -> None:
    if head not in HEADS:
        raise UsageError(f"head {head!r} is not one of {', '.join(HEADS)}")
    if HEADS[head] != action.kind:
        raise UnsupportedSpace(f"head {head!r} needs {HEADS[head]} actions, found {action.kind!r}")
    if action.kind == "box":
        _check_box(action)
    if quantization.center_q and head != "q_values":
        raise UsageError(f"center_q is for q_values heads; the policy has a {head} head")
    if quantization.head_output == "int16" and head == "action":
        raise UsageError(
            "an int16 head ends in a dense layer, and an action head in a tanh", hint="use head output int8 or float32"
        )


def _check_box(action: ActionSpec) -> None:
    size = math.prod(action.shape)
    if not 1 <= size <= MAX_UNITS or size != len(action.low):
        raise UnsupportedSpace(
            f"a box action of shape {action.shape} with {len(action.low)} bounds: expected 1-{MAX_UNITS} elements, "
            "bounds for each"
        )
    for place, (low, high) in enumerate(zip(action.low, action.high, strict=True)):
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise UnsupportedSpace(
                f"the action's element {place} is unbounded or empty: {low}..{high}; a policy's output needs finite "
                "bounds to be scaled to",
                hint="wrap the environment in one whose action space has bounds",
            )


def _check_observations(observations: tuple[ObservationSpec, ...]) -> None:
    if len(observations) != 1:
        raise UnsupportedSpace(f"{len(observations)} observation keys: this version takes one")
    (spec,) = observations
    if spec.dtype not in _OBSERVATION_DTYPES or len(spec.shape) != 1 or spec.stack != 1:
        raise UnsupportedSpace(
            f"observation {spec.key!r} of dtype {spec.dtype}, shape {spec.shape}, stack {spec.stack}: "
            f"this version takes one vector of {' or '.join(_OBSERVATION_DTYPES)}"
        )
