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
from quarl_device.frame_stack import input_shape, is_image
from quarl_export.ir.policy_graph import SATURATED

NETWORK_SCHEMA = 1
MAX_HIDDEN_LAYERS = 16
MAX_UNITS = 16_384
MAX_CONVOLUTIONS = 8
_VECTOR_DTYPES = ("float32", "float64")
Convolution = tuple[int, int, int]
"""Filters, rows and columns of the square kernel, and the stride in both directions; no padding, then ReLU."""

NATURE: tuple[Convolution, ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""The convolutions of Mnih et al. 2015 (methods, model architecture), made for 84x84 pixels."""
_SMALL: tuple[Convolution, ...] = ((16, 4, 2), (32, 4, 2))
_TINY: tuple[Convolution, ...] = ((16, 3, 1),)
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
    """A ReLU policy network: convolutions where it sees images, a body of dense hidden layers, and a head.

    Stacked frames are joined along the last axis, oldest first (`input_shape`). Pixels are divided by 255.

    A head of a box action works in units of the box: -1 and 1 are its bounds, whatever they are (`unit_box`).

    Attributes:
        observations: what goes in, in order; this version takes exactly one key, a vector of floats ``[n]`` or an image
            of uint8, ``[rows, columns]`` or ``[rows, columns, channels]``.
        action: what comes out; a box needs finite bounds, and its `scale` and `offset` are not read.
        hidden: units of each hidden layer, at least one layer.
        head: "q_values" or "logits" of discrete actions: one linear output each; "action" of a box: a last dense layer,
            then tanh; "gaussian" of a box: the mean, linear, beside a log_std that does not depend on the observation.
        quantization: see `QuantizationSpec`.
        dueling: Q values are learned as a value and advantages without their mean: the first half of the last hidden
            layer feeds the value, the rest the advantages. Both are linear, so they add up to one dense layer, and the
            file is that of the same network without (`in_file`).
        convolutions: of an image, in front of the hidden layers, at least one; none of a vector.

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
    convolutions: tuple[Convolution, ...] = ()

    def __post_init__(self) -> None:
        _check_observations(self.observations)
        self._check_convolutions()
        _check_head(self.head, self.action, self.quantization)
        if not 1 <= len(self.hidden) <= MAX_HIDDEN_LAYERS:
            raise UsageError(f"{len(self.hidden)} hidden layers: expected 1-{MAX_HIDDEN_LAYERS}")
        if any(not 1 <= units <= MAX_UNITS for units in self.hidden):
            raise UsageError(f"hidden units {self.hidden}: each must be in 1..{MAX_UNITS}")
        if self.dueling and self.head != "q_values":
            raise UsageError(f"dueling is for q_values heads; the policy has a {self.head} head")
        if self.dueling and self.value_units < 1:
            raise UsageError("dueling halves the last hidden layer: expected at least 2 units")

    def _check_convolutions(self) -> None:
        if bool(self.convolutions) != self.sees_images:
            raise UsageError(
                f"{len(self.convolutions)} convolutions for observation {self.observations[0].key!r} of shape "
                f"{self.observations[0].shape}: images need at least one, vectors take none"
            )
        if len(self.convolutions) > MAX_CONVOLUTIONS:
            raise UsageError(f"{len(self.convolutions)} convolutions: expected at most {MAX_CONVOLUTIONS}")
        if self.sees_images and self.quantization.weight_bits < 8:
            raise UsageError(
                f"{self.quantization.weight_bits} weight bits: kernels of convolutions have a scale per filter, and "
                "TensorFlow's converter, which every push is checked against, knows those of 8 bits alone"
            )
        if self.sees_images:
            feature_shapes(self.input_shape, self.convolutions)

    @property
    def in_file(self) -> NetworkSpec:
        """The network as its file has it."""
        return dataclasses.replace(self, dueling=False)

    @property
    def value_units(self) -> int:
        """Units of the last hidden layer that feed the value of a dueling head."""
        return self.hidden[-1] // 2

    @property
    def sees_images(self) -> bool:
        """Whether the observation is an image, which convolutions take."""
        return is_image(self.observations[0])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one observation as the network sees it: an image with channels, stacked frames in the last axis."""
        return input_shape(self.observations[0])

    @property
    def observation_size(self) -> int:
        """Elements of one observation."""
        return math.prod(self.input_shape)

    @property
    def normalizer_shape(self) -> tuple[int, ...]:
        """Shape of the normaliser's offset and scale: one for all pixels, else one per element."""
        return (1,) if self.sees_images else self.input_shape

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
    def kernel_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of all kernels: ``[rows, columns, channels, filters]``, then ``[inputs, units]``, head last."""
        return kernel_shapes(self.input_shape, self.convolutions, (*self.hidden, self.head_units))

    @property
    def body_layers(self) -> int:
        """Layers in front of the head, each with a ReLU and a range of its own."""
        return len(self.convolutions) + len(self.hidden)

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
        if self.convolutions:
            plain["convolutions"] = [list(convolution) for convolution in self.convolutions]
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
                convolutions=tuple(
                    (int(filters), int(kernel), int(stride)) for filters, kernel, stride in data.get("convolutions", ())
                ),
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


def usual_convolutions(observation: ObservationSpec) -> tuple[Convolution, ...]:
    """Return the convolutions of an image of which nothing else is said, () of a vector: `NATURE` from 64 pixels on."""
    if not is_image(observation):
        return ()
    least = min(observation.shape[:2])
    return NATURE if least >= 64 else _SMALL if least >= 10 else _TINY


def feature_shapes(shape: tuple[int, ...], convolutions: tuple[Convolution, ...]) -> tuple[tuple[int, int, int], ...]:
    """Return what each of `convolutions` gives of an image of `shape`: ``(rows, columns, filters)``.

    Raises:
        UsageError: sizes out of range, or a kernel that is larger than what it reads.
    """
    found = []
    for filters, kernel, stride in convolutions:
        if not (1 <= filters <= MAX_UNITS and 1 <= kernel <= 64 and 1 <= stride <= kernel):
            raise UsageError(
                f"convolution of {filters} filters, kernel {kernel}, stride {stride}: expected 1..{MAX_UNITS} filters, "
                "a kernel of 1..64 and a stride of at most that"
            )
        rows, columns = ((size - kernel) // stride + 1 for size in shape[:2])
        if min(rows, columns) < 1:
            raise UsageError(
                f"a convolution with a kernel of {kernel} reads {shape[0]}x{shape[1]}: it does not fit in",
                hint="fewer or smaller convolutions; images are expected as rows, columns, channels",
            )
        shape = (rows, columns, filters)
        found.append((rows, columns, filters))
    return tuple(found)


def kernel_shapes(
    shape: tuple[int, ...], convolutions: tuple[Convolution, ...], units: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of all kernels of a network, see `NetworkSpec.kernel_shapes`.

    Args:
        shape: of what goes in.
        convolutions: in front; () for none.
        units: of each dense layer.

    Raises:
        UsageError: see `feature_shapes`.
    """
    reads = (shape, *feature_shapes(shape, convolutions))
    kernels = [
        (kernel, kernel, read[-1], filters) for read, (filters, kernel, _) in zip(reads, convolutions, strict=False)
    ]
    return (*kernels, *itertools.pairwise((math.prod(reads[-1]), *units)))


def _check_observations(observations: tuple[ObservationSpec, ...]) -> None:
    if len(observations) != 1:
        raise UnsupportedSpace(f"{len(observations)} observation keys: this version takes one")
    (spec,) = observations
    if not is_image(spec) and (spec.dtype not in _VECTOR_DTYPES or len(spec.shape) != 1):
        raise UnsupportedSpace(
            f"observation {spec.key!r} of dtype {spec.dtype}, shape {spec.shape}, stack {spec.stack}: "
            f"this version takes one vector of {' or '.join(_VECTOR_DTYPES)}, or one image of uint8"
        )
