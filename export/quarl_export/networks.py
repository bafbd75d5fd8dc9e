"""What a policy network is made of, said without TensorFlow."""

from __future__ import annotations

import itertools
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

NETWORK_SCHEMA = 1
MAX_HIDDEN_LAYERS = 16
MAX_UNITS = 16_384
_OBSERVATION_DTYPES = ("float32", "float64")
HeadOutput = Literal["int8", "float32", "int16"]
HEAD_OUTPUTS: tuple[HeadOutput, ...] = ("int8", "float32", "int16")


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
    """A dense ReLU policy network.

    Attributes:
        observations: what goes in, in order; this version takes exactly one float key of shape ``[n]``.
        action: what comes out; this version takes discrete actions.
        hidden: units of each hidden layer, at least one layer.
        head: this version takes "q_values".
        quantization: see `QuantizationSpec`.

    Raises:
        UnsupportedSpace: an observation or action that this version does not take.
        UsageError: sizes out of range, or an unsupported head.
    """

    observations: tuple[ObservationSpec, ...]
    action: ActionSpec
    hidden: tuple[int, ...] = (256, 256)
    head: HeadKind = "q_values"
    quantization: QuantizationSpec = field(default_factory=QuantizationSpec)

    def __post_init__(self) -> None:
        _check_observations(self.observations)
        if self.action.kind != "discrete":
            raise UnsupportedSpace(f"head {self.head!r} needs discrete actions, found {self.action.kind!r}")
        if self.head != "q_values":
            raise UsageError(f"head {self.head!r} is not supported: expected 'q_values'")
        if not 1 <= len(self.hidden) <= MAX_HIDDEN_LAYERS:
            raise UsageError(f"{len(self.hidden)} hidden layers: expected 1-{MAX_HIDDEN_LAYERS}")
        if any(not 1 <= units <= MAX_UNITS for units in self.hidden):
            raise UsageError(f"hidden units {self.hidden}: each must be in 1..{MAX_UNITS}")

    @property
    def observation_size(self) -> int:
        """Elements of one observation."""
        return self.observations[0].shape[0] * self.observations[0].stack

    @property
    def num_actions(self) -> int:
        """Number of discrete actions."""
        return self.action.n

    @property
    def kernel_shapes(self) -> tuple[tuple[int, int], ...]:
        """Shapes ``[inputs, units]`` of all kernels, head last."""
        widths = (self.observation_size, *self.hidden, self.num_actions)
        return tuple(itertools.pairwise(widths))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict that `from_json` reads back equal."""
        return {
            "schema": NETWORK_SCHEMA,
            "observations": [spec_to_json(spec) for spec in self.observations],
            "action": spec_to_json(self.action),
            "hidden": list(self.hidden),
            "head": self.head,
            "quantization": vars(self.quantization),
        }

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
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"network does not hold: {error}") from error


def _check_observations(observations: tuple[ObservationSpec, ...]) -> None:
    if len(observations) != 1:
        raise UnsupportedSpace(f"{len(observations)} observation keys: this version takes one")
    (spec,) = observations
    if spec.dtype not in _OBSERVATION_DTYPES or len(spec.shape) != 1 or spec.stack != 1:
        raise UnsupportedSpace(
            f"observation {spec.key!r} of dtype {spec.dtype}, shape {spec.shape}, stack {spec.stack}: "
            f"this version takes one vector of {' or '.join(_OBSERVATION_DTYPES)}"
        )
