"""Observations into input tensors: normalise, quantize, stack, each as the contract says.

Two ways to the same numbers. `to_tensor` is the rule, for golden vectors and reports: pure, any number of rows.
`fillers.Filler` is the hot path: it writes one observation into a kept buffer and allocates nothing.

An integer input is `rint(value * (1 / scale)) + zero_point` in float32, clipped before it is cast (a cast alone wraps
200 to -56). That is what LiteRT's QUANTIZE computes, with and without XNNPACK, in every one of 2 million values on and
beside ties. Its reference kernel and tflite-runtime 2.14 round ties away from zero; here one rule holds on every
runtime, so that a file gets the same integers everywhere.

NaN has no integer: it is stored as 0, which behind a normaliser is the mean, and an infinity as the end of the range.
That is one answer on every board, not a good one: who acts looks for NaN (`evaluate` at every step, an actor once per
block). In a float input it stays NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import Normalizer, ObservationSpec, PolicyContract
from quarl_device.errors import ContractError
from quarl_device.flatbuffer import Graph, Tensor
from quarl_device.frame_stack import fill_frame

Array = NDArray[Any]
Layout = Literal["joined", "new_axis", "channels_last"]
MIN_SCALE = 1 / float(np.finfo(np.float32).max)
INPUT_DTYPES = ("float32", "int8", "uint8", "int16")


@dataclass(frozen=True, kw_only=True, eq=False)
class InputBinding:
    """One observation key and the input tensor that takes it.

    Attributes:
        spec: the observation.
        shape: shape of the tensor without batch.
        dtype: dtype of the tensor.
        scale: of a quantized tensor; 0 for float32.
        zero_point: of a quantized tensor.
        offset: float32, of () or [*shape], or of [stack, *shape] where it differs from frame to frame; `None` where the
            device does not normalise.
        factor: likewise; `(frame - offset) * factor`.
        clip: what was normalised is clipped to ±clip; 0 for never.
        layout: where the frames of a stack lie: "joined" along the last axis, oldest first (of flat observations also
            one in each row, which is the same memory), "new_axis" after it, or
            "channels_last" where the environment gives [channels, rows, columns] and the file wants
            [rows, columns, stack * channels].
    """

    spec: ObservationSpec
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    scale: float = 0.0
    zero_point: int = 0
    offset: NDArray[np.float32] | None = None
    factor: NDArray[np.float32] | None = None
    clip: float = 0.0
    layout: Layout = "joined"

    @property
    def by_frame(self) -> bool:
        """Whether the normaliser differs from frame to frame of a stack."""
        return any(part is not None and part.ndim > len(self.spec.shape) for part in (self.offset, self.factor))

    @property
    def limits(self) -> tuple[int, int]:
        """Least and greatest value of an integer tensor."""
        info = np.iinfo(self.dtype)
        return int(info.min), int(info.max)


def bind_inputs(contract: PolicyContract, graph: Graph | None = None) -> tuple[InputBinding, ...]:
    """Return the contract's observations, in order, with their input tensors, found by name.

    Args:
        contract: of the file.
        graph: of the file; without it every input is taken to be float32 in the shape of its observation.

    Raises:
        ContractError: a tensor cannot take its observation, or the normaliser does not fit.
    """
    tensors = {} if graph is None else {graph.tensors[n].name: graph.tensors[n] for n in graph.inputs}
    return tuple(_bind(spec, tensors.get(spec.tensor), contract.normalizer) for spec in contract.observations)


def _bind(spec: ObservationSpec, tensor: Tensor | None, normalizer: Normalizer) -> InputBinding:
    shape = tensor.shape[1:] if tensor is not None else _joined_shape(spec)
    scale, zero_point = _quantization(spec, tensor)
    fill_frame(spec)  # only to refuse what it cannot make
    offset, factor = _normalizer(spec, normalizer)
    return InputBinding(
        spec=spec,
        shape=shape,
        dtype=np.dtype(tensor.dtype if tensor is not None else "float32"),
        scale=scale,
        zero_point=zero_point,
        offset=offset,
        factor=factor,
        clip=normalizer.clip if factor is not None else 0.0,
        layout=layout_of(spec, shape),
    )


def _quantization(spec: ObservationSpec, tensor: Tensor | None) -> tuple[float, int]:
    if tensor is None or tensor.dtype == "float32":
        return 0.0, 0
    if tensor.dtype not in INPUT_DTYPES:
        raise ContractError(
            f"observation {spec.key!r} goes into a {tensor.dtype} tensor; expected {', '.join(INPUT_DTYPES)}"
        )
    if tensor.quantization is None or tensor.quantization.scales.size != 1:
        raise ContractError(f"observation {spec.key!r}: its {tensor.dtype} tensor has not exactly one scale")
    scale = float(tensor.quantization.scales[0])
    if not MIN_SCALE <= scale < np.inf:
        raise ContractError(
            f"observation {spec.key!r}: its {tensor.dtype} tensor has the scale {scale:g}, "
            f"expected at least {MIN_SCALE:.3g}: float32 has no inverse of less"
        )
    return scale, int(tensor.quantization.zero_points[0])


def _normalizer(
    spec: ObservationSpec, normalizer: Normalizer
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    if normalizer.where != "device" or spec.key not in normalizer.scale:
        return None, None
    size = int(np.prod(spec.shape, dtype=np.int64))
    # The last of equal sizes would win, and one value is for all elements.
    shapes = {size * spec.stack: (spec.stack, *spec.shape), size: spec.shape, 1: ()}
    parts = []
    for name, values in (("offset", normalizer.offset[spec.key]), ("scale", normalizer.scale[spec.key])):
        if len(values) not in shapes:
            frames = f", or {size * spec.stack} (all {spec.stack} frames)" if spec.stack > 1 else ""
            raise ContractError(
                f"normaliser: {name} of {spec.key!r} has {len(values)} elements, "
                f"expected 1 or {size} (one frame){frames}"
            )
        with np.errstate(over="ignore"):
            array = np.array(values, np.float64).astype(np.float32)
        if not np.isfinite(array).all():
            raise ContractError(f"normaliser: {name} of {spec.key!r} is not finite in float32")
        parts.append(array.reshape(shapes[array.size]))
    return parts[0], parts[1]


def _joined_shape(spec: ObservationSpec) -> tuple[int, ...]:
    if not spec.shape:
        return (spec.stack,)
    return (*spec.shape[:-1], spec.shape[-1] * spec.stack)


def layout_of(spec: ObservationSpec, shape: tuple[int, ...]) -> Layout:
    """Return where the frames of a stack lie in a tensor of `shape`, without batch.

    Raises:
        ContractError: they do not fit.
    """
    frame, stack = spec.shape, spec.stack
    # A row per frame is the same memory as one frame behind the other.
    if shape == _joined_shape(spec) or (stack > 1 and len(frame) == 1 and shape == (stack, *frame) != (*frame, stack)):
        return "joined"
    if stack > 1 and shape == (*frame, stack):
        return "new_axis"
    if len(frame) == 3 and shape == (frame[1], frame[2], frame[0] * stack):
        return "channels_last"
    if stack > 1 and len(shape) != 1:
        raise ContractError(
            f"observation {spec.key!r}: {stack} frames of {frame} do not stack into a tensor of {shape}",
            hint=f"the file's input must end in {_joined_shape(spec)} or {(*frame, stack)}"
            + (f" or {(stack, *frame)}" if len(frame) == 1 else ""),
        )
    return "joined"


def stack_view(binding: InputBinding, buffer: Array) -> Array:
    """Return `buffer` [B, *tensor shape] as a view [B, stack, *frame], oldest frame first, to be written into."""
    spec, rows = binding.spec, buffer.shape[0]
    if binding.layout == "new_axis":
        return np.moveaxis(buffer, -1, 1)
    if binding.layout == "channels_last":
        channels, *area = spec.shape
        return np.moveaxis(buffer.reshape(rows, *area, spec.stack, channels), (-2, -1), (1, 2))
    width = spec.shape[-1:]
    return np.moveaxis(buffer.reshape(rows, *spec.shape[:-1], spec.stack, *width), -1 - len(width), 1)


def to_tensor(binding: InputBinding, observations: Array) -> Array:
    """Return what the input tensor must hold for B observations.

    Args:
        binding: which tensor.
        observations: [B, *shape]; with a stack [B, stack, *shape], oldest frame first.

    Returns:
        [B, *tensor shape] in the tensor's dtype.

    Raises:
        ValueError: the observations have another size.
    """
    spec = binding.spec
    frames = np.asarray(observations).reshape(len(observations), spec.stack, *spec.shape)
    values = stored(binding, normalized(binding, frames))
    buffer = np.empty((len(frames), *binding.shape), binding.dtype)
    stack_view(binding, buffer)[...] = values
    return buffer


def normalized(binding: InputBinding, frames: Array) -> NDArray[np.float32]:
    """Return frames [..., *shape] of any dtype in float32, normalised where the device does it.

    Where the normaliser differs from frame to frame, [..., stack, *shape].
    """
    values = frames.astype(np.float32)
    if binding.offset is not None and binding.factor is not None:
        values = (values - binding.offset) * binding.factor
        if binding.clip:
            values = np.clip(values, np.float32(-binding.clip), np.float32(binding.clip))
    return values


def _steps(binding: InputBinding, values: NDArray[np.float32]) -> NDArray[np.float32]:
    inverse = np.float32(1.0) / np.float32(binding.scale)
    steps: NDArray[np.float32] = np.rint(values * inverse)
    # What a cast makes of NaN is the processor's choice.
    counted: NDArray[np.float32] = np.where(np.isnan(steps), np.float32(0.0), steps)
    return counted + np.float32(binding.zero_point)


def stored(binding: InputBinding, values: NDArray[np.float32]) -> Array:
    """Return normalised values as the tensor stores them, in its dtype; what it cannot hold is clipped, NaN is 0."""
    if not binding.scale:
        return values
    low, high = binding.limits
    return np.clip(_steps(binding, values), low, high).astype(binding.dtype)
