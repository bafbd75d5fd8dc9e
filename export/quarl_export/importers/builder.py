"""Collects layers and scalings under unique names while a source is read, and knows every shape on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quarl_device.errors import ModelFileError, UnsupportedModel, UsageError
from quarl_export.ir.draft import Affine, Draft, Step
from quarl_export.ir.layers import Kind, Layer, Shape, output_shape

ACTIVATION_KINDS: Mapping[str, Kind] = {
    "relu": "relu",
    "relu6": "relu6",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "softmax": "softmax",
    "elu": "elu",
}
_ADVICE: Mapping[str, str] = {
    "swish": "train with relu: int8 kernels need a range inside swish that no file has",
    "silu": "train with relu: int8 kernels need a range inside swish that no file has",
    "leaky_relu": "train with relu",
    "gelu": "train with relu",
    "log_softmax": "give logits: the device takes the softmax in float",
    "softplus": "train with relu, or give log_std in its place",
    "exponential": "give log_std in place of the standard deviation",
    "exp": "give log_std in place of the standard deviation",
}
MAX_STEPS = 1000


class Builder:
    """A draft in the making.

    Attributes:
        shapes: of every input and tensor so far, without batch.
    """

    def __init__(self, inputs: Mapping[str, Shape]) -> None:
        self._inputs = dict(inputs)
        self._steps: list[Step] = []
        self._weights: dict[str, NDArray[np.floating[Any]]] = {}
        self._cuts: dict[str, tuple[float, float]] = {}
        self.shapes: dict[str, Shape] = dict(inputs)

    def unique(self, name: str) -> str:
        """Return `name`, with a number behind it where it is taken."""
        if name not in self.shapes:
            return name
        return next(f"{name}_{n}" for n in range(1, MAX_STEPS + 2) if f"{name}_{n}" not in self.shapes)

    def layer(
        self,
        kind: Kind,
        name: str,
        inputs: Sequence[str],
        *,
        kernel: NDArray[Any] | None = None,
        bias: NDArray[Any] | None = None,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        **settings: Any,
    ) -> str:
        """Add a layer and return its name.

        Args:
            kind: see `Layer`.
            name: made unique.
            inputs: tensors that it reads.
            kernel: of a weighted kind.
            bias: `None` for none.
            arrays: other weights by their last name.
            settings: see `Layer`.

        Raises:
            UsageError: shapes that do not fit.
            UnsupportedModel: a model without end.
        """
        layer = Layer(
            name=self.unique(name), kind=kind, inputs=tuple(inputs), settings=settings, use_bias=bias is not None
        )
        shape = output_shape(layer, [self.shapes[i] for i in inputs], None if kernel is None else kernel.shape)
        parts = {"kernel": kernel, "bias": bias, **(arrays or {})}
        self._weights.update({f"{layer.name}/{part}": array for part, array in parts.items() if array is not None})
        return self._add(layer, shape)

    def affine(self, name: str, tensor: str, scale: ArrayLike, shift: ArrayLike) -> str:
        """Add `tensor * scale + shift`, both broadcast to the tensor's shape, and return its name.

        Raises:
            UsageError: they do not broadcast.
        """
        shape = self.shapes[tensor]
        try:
            full = [np.broadcast_to(_without_batch(part, shape), shape) for part in (scale, shift)]
        except ValueError as error:
            raise UsageError(f"layer {name!r}: its constants do not fit a tensor of shape {shape}: {error}") from None
        return self._add(Affine(name=self.unique(name), input=tensor, scale=full[0], shift=full[1]), shape)

    def activation(self, name: str, tensor: str, function: str) -> str:
        """Add an activation as a layer of its own and return its name; "linear" adds nothing.

        Raises:
            UnsupportedModel: one without a kind; names it and says what to do instead.
        """
        if function in ("linear", "identity"):
            return tensor
        if function not in ACTIVATION_KINDS:
            raise UnsupportedModel(
                f"layer {name!r}: the activation {function!r} has no int8 kernel that every runtime has",
                hint=_ADVICE.get(function, "use relu, relu6, tanh, sigmoid or softmax"),
            )
        return self.layer(ACTIVATION_KINDS[function], name, [tensor])

    def cut(self, tensor: str, *, low: float = -math.inf, high: float = math.inf) -> bool:
        """Note that `tensor` is cut to `low`..`high`; return whether it is an input behind scalings alone."""
        if self._chain(tensor) is None:
            return False
        before = self._cuts.get(tensor, (-math.inf, math.inf))
        self._cuts[tensor] = (max(before[0], low), min(before[1], high))
        return True

    def _chain(self, tensor: str) -> list[str] | None:
        """Return `tensor` and what it comes from back to an input, `None` where that is not scalings alone."""
        scalings = {step.name: step.input for step in self._steps if isinstance(step, Affine)}
        chain = [tensor]
        while chain[-1] in scalings:
            chain.append(scalings[chain[-1]])
        return chain if chain[-1] in self._inputs else None

    def _clips(self) -> dict[str, float]:
        clips = {}
        for tensor, (low, high) in self._cuts.items():
            chain = self._chain(tensor) or [tensor]
            readers = [sum(step.inputs.count(name) for step in self._steps) for name in chain[1:]]
            scaled = any(isinstance(step, Affine) and tensor in step.inputs for step in self._steps)
            if low != -high or scaled or any(count != 1 for count in readers):
                raise UnsupportedModel(
                    f"input {chain[-1]!r} is cut to {low:g}..{high:g} where no normaliser can do it",
                    hint="clip to ±c once, right behind the normalisation, before anything else reads the input",
                )
            clips[chain[-1]] = high
        return clips

    def reshape_input(self, key: str, shape: Shape) -> bool:
        """Give an input another shape of equal size, where nothing reads it yet; return whether that was so."""
        if key not in self._inputs or any(key in step.inputs for step in self._steps):
            return False
        self._inputs[key] = self.shapes[key] = shape
        return True

    def draft(self, outputs: Mapping[str, str]) -> Draft:
        """Return what was collected."""
        return Draft(
            inputs=self._inputs,
            steps=tuple(self._steps),
            weights=self._weights,
            outputs=dict(outputs),
            clips=self._clips(),
        )

    def _add(self, step: Step, shape: Shape) -> str:
        if len(self._steps) >= MAX_STEPS:
            raise UnsupportedModel(f"the model has more than {MAX_STEPS} layers")
        self._steps.append(step)
        self.shapes[step.name] = shape
        return step.name


def _without_batch(values: ArrayLike, shape: Shape) -> NDArray[np.float64]:
    """Return constants without leading axes of one element that stand for the batch."""
    array = np.asarray(values, np.float64)
    while array.ndim > len(shape) and array.shape[0] == 1:
        array = array[0]
    return array


def with_constant(
    builder: Builder,
    name: str,
    operation: str,
    left: str | NDArray[np.float64],
    right: str | NDArray[np.float64],
) -> str:
    """Add "add", "subtract", "multiply" or "divide" of a tensor and a constant, in either order.

    Raises:
        UnsupportedModel: a constant divided by a tensor, or no tensor or two.
    """
    if isinstance(left, str) and not isinstance(right, str):
        if operation in ("multiply", "divide"):
            return builder.affine(name, left, right if operation == "multiply" else 1 / right, 0.0)
        return builder.affine(name, left, 1.0, right if operation == "add" else -right)
    if isinstance(right, str) and not isinstance(left, str) and operation != "divide":
        if operation == "multiply":
            return builder.affine(name, right, left, 0.0)
        return builder.affine(name, right, 1.0 if operation == "add" else -1.0, left)
    raise UnsupportedModel(f"layer {name!r} divides by a tensor or has no tensor", hint="multiply instead")


def reshape(builder: Builder, name: str, tensor: str, target: list[int]) -> str:
    """Add a reshape to `target` (without batch, one size may be -1), where a policy graph can say it.

    Raises:
        UnsupportedModel: anything but flattening, no change, or another shape for an input itself.
    """
    shape = builder.shapes[tensor]
    size = math.prod(shape)
    rest = math.prod(part for part in target if part > 0)
    wanted = tuple(size // max(1, rest) if part < 0 else part for part in target)
    if math.prod(wanted) != size:
        raise ModelFileError(f"layer {name!r} reshapes {shape} to {tuple(target)}, which has another size")
    if wanted == shape:
        return tensor
    if len(wanted) == 1:
        return builder.layer("flatten", name, [tensor])
    if builder.reshape_input(tensor, wanted):
        return tensor
    raise UnsupportedModel(
        f"layer {name!r} reshapes {shape} to {wanted}; a policy file can flatten, or reshape an input",
        hint="give the observation the shape that the network needs",
    )
