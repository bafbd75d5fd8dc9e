"""Takes `x * scale + shift` steps out of a network that is being read: no policy graph has a kind for them.

Batch norm, rescaling, normalisation and arithmetic with constants are all such steps. One goes, in this order, into the
normaliser of an input, into the weights of the layer before it, into the weights of the layers behind it (through
flatten, pooling and concatenation), or, at an open output, into the action's scaling. What is left becomes a layer
of its own: a dense layer with a diagonal kernel, or a 1x1 depthwise convolution. All of it is exact but for rounding to
float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import UnsupportedModel
from quarl_export.ir.draft import Affine, Draft, Step, needed_steps, rewired, rewired_layer, step_shapes
from quarl_export.ir.layers import WEIGHTED, Layer, Shape

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

MAX_DIAGONAL = 1024
"""Widest vector for which a scale may become a dense layer of its own."""

_POOLS = ("average_pool2d", "global_average_pool2d", "max_pool2d")


@dataclass(frozen=True, kw_only=True, eq=False)
class Folded:
    """A network of layers alone, and what was taken to its ends.

    Attributes:
        inputs: those that an output depends on, name to shape.
        layers: those that an output depends on.
        weights: of these layers.
        outputs: as in the draft.
        normalizers: input name to (scale, shift) in its shape: the network sees `x * scale + shift`.
        output_affines: open output to (scale, shift): the source gives `output * scale + shift`.
        notes: what became a layer of its own, and why.
    """

    inputs: Mapping[str, Shape]
    layers: tuple[Layer, ...]
    weights: Mapping[str, Float32]
    outputs: Mapping[str, str]
    normalizers: Mapping[str, tuple[Float64, Float64]]
    output_affines: Mapping[str, tuple[Float64, Float64]]
    notes: tuple[str, ...] = ()


def fold(draft: Draft, *, open_outputs: frozenset[str] = frozenset()) -> Folded:
    """Return `draft` without affine steps, and without what no output depends on.

    Args:
        draft: what was read.
        open_outputs: outputs whose last scaling may be taken out of the network.

    Raises:
        UnsupportedModel: a scaling that fits nowhere; names it.
        UsageError: shapes that do not fit.
    """
    return _Folding(draft, open_outputs).run()


@dataclass(kw_only=True, eq=False)
class _State:
    """What changes while folding."""

    inputs: dict[str, Shape]
    steps: dict[str, Step]
    weights: dict[str, Float64]
    outputs: dict[str, str]
    shapes: dict[str, Shape]
    normalizers: dict[str, tuple[Float64, Float64]] = field(default_factory=dict)
    output_affines: dict[str, tuple[Float64, Float64]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class _Folding:
    def __init__(self, draft: Draft, open_outputs: frozenset[str]) -> None:
        steps = needed_steps(draft)
        read = {name for step in steps for name in step.inputs} | set(draft.outputs.values())
        inputs = {name: shape for name, shape in draft.inputs.items() if name in read}
        weights = {
            name: np.asarray(draft.weights[name], np.float64)
            for step in steps if isinstance(step, Layer) for name in step.weight_names()
        }  # fmt: skip
        self._open = open_outputs
        self._state = _State(
            inputs=inputs,
            steps={step.name: step for step in steps},
            weights=weights,
            outputs=dict(draft.outputs),
            shapes=step_shapes(inputs, steps, weights),
        )

    def run(self) -> Folded:
        rules: tuple[Callable[[Affine], bool], ...] = (
            self._drop_identity, self._into_next_affine, self._into_producer, self._into_input,
            self._back_through_flatten, self._back_through_concatenation,
            self._forward, self._into_open_output, self._into_own_layer,
        )  # fmt: skip
        while affines := [step for step in self._state.steps.values() if isinstance(step, Affine)]:
            # The first rule that takes any of them; cheap ones come first, so a step of its own is the last resort.
            next(rule for rule in rules if any(rule(affine) for affine in affines))
        state = self._state
        layers = tuple(step for step in state.steps.values() if isinstance(step, Layer))
        names = [name for layer in layers for name in layer.weight_names()]
        with np.errstate(over="ignore"):  # what becomes Inf is refused by name where the policy is made
            weights = {name: state.weights[name].astype(np.float32) for name in names}
        return Folded(
            inputs=state.inputs,
            layers=layers,
            weights=weights,
            outputs=state.outputs,
            normalizers=state.normalizers,
            output_affines=state.output_affines,
            notes=tuple(state.notes),
        )

    # Looking around

    def _users(self, name: str) -> list[Step]:
        return [step for step in self._state.steps.values() if name in step.inputs]

    def _is_output(self, name: str) -> bool:
        return name in self._state.outputs.values()

    def _feeds_only(self, name: str, affine: Affine) -> bool:
        return not self._is_output(name) and self._users(name) == [affine]

    # Changing

    def _redirect(self, old: str, new: str, *, but: str = "") -> None:
        """Let whoever reads `old` read `new`."""
        for step in self._users(old):
            if step.name != but:
                self._state.steps[step.name] = rewired(step, {old: new})
        outputs = self._state.outputs
        outputs.update({role: new for role, name in outputs.items() if name == old})

    def _remove(self, affine: Affine, replacement: str) -> None:
        del self._state.steps[affine.name]
        self._redirect(affine.name, replacement)

    def _insert(self, new: Step, *, after: str) -> None:
        """Put a step behind the step or input `after`; it must read nothing later than that."""
        items = list(self._state.steps.items())
        place = next((n for n, (name, _) in enumerate(items) if name == after), -1) + 1
        items.insert(place, (new.name, new))
        self._state.steps = dict(items)
        self._state.shapes[new.name] = self._state.shapes[after]

    def _weights_of(self, layer: Layer) -> tuple[Float64, Float64]:
        """Return kernel and bias, zeros where it has none."""
        kernel = np.asarray(self._state.weights[f"{layer.name}/kernel"], np.float64)
        filters = math.prod(kernel.shape[2:]) if layer.kind == "depthwise_conv2d" else kernel.shape[-1]
        bias = self._state.weights[f"{layer.name}/bias"] if layer.use_bias else np.zeros(filters)
        return kernel, np.asarray(bias, np.float64)

    def _set_weights(self, layer: Layer, kernel: Float64, bias: Float64) -> None:
        self._state.weights[f"{layer.name}/kernel"] = kernel
        if layer.use_bias or bias.any():
            self._state.weights[f"{layer.name}/bias"] = bias
            self._state.steps[layer.name] = replace(layer, use_bias=True)

    # Rules: each takes an affine step and says whether it could do something with it

    def _drop_identity(self, affine: Affine) -> bool:
        if affine.is_identity:
            self._remove(affine, affine.input)
        return affine.is_identity

    def _into_next_affine(self, affine: Affine) -> bool:
        users = self._users(affine.name)
        after = users[0] if len(users) == 1 and not self._is_output(affine.name) else None
        if not isinstance(after, Affine):
            return False
        scale, shift = affine.scale * after.scale, affine.shift * after.scale + after.shift
        self._state.steps[after.name] = Affine(name=after.name, input=affine.input, scale=scale, shift=shift)
        del self._state.steps[affine.name]
        return True

    def _into_producer(self, affine: Affine) -> bool:
        producer = self._state.steps.get(affine.input)
        if not isinstance(producer, Layer) or producer.kind not in WEIGHTED or not affine.per_channel:
            return False
        if not self._feeds_only(producer.name, affine):
            return False
        scale, shift = affine.channels
        kernel, bias = self._weights_of(producer)
        along = scale.reshape(kernel.shape[2:]) if producer.kind == "depthwise_conv2d" else scale
        self._set_weights(producer, kernel * along, bias * scale + shift)
        self._remove(affine, producer.name)
        return True

    def _into_input(self, affine: Affine) -> bool:
        key = affine.input
        if key not in self._state.inputs or not affine.is_normalizer or not self._feeds_only(key, affine):
            return False
        scale, shift = self._state.normalizers.get(key, (np.ones_like(affine.scale), np.zeros_like(affine.shift)))
        self._state.normalizers[key] = (scale * affine.scale, shift * affine.scale + affine.shift)
        self._remove(affine, key)
        return True

    def _back_through_flatten(self, affine: Affine) -> bool:
        flatten = self._state.steps.get(affine.input)
        if not isinstance(flatten, Layer) or flatten.kind != "flatten" or not self._feeds_only(flatten.name, affine):
            return False
        (key,) = flatten.inputs
        if key not in self._state.inputs or not affine.is_normalizer or self._users(key) != [flatten]:
            return False
        shape = self._state.shapes[key]
        self._remove(affine, flatten.name)
        scale, shift = affine.scale.reshape(shape), affine.shift.reshape(shape)
        moved = Affine(name=affine.name, input=key, scale=scale, shift=shift)
        self._insert(moved, after=key)
        self._redirect(key, moved.name, but=moved.name)
        return True

    def _back_through_concatenation(self, affine: Affine) -> bool:
        joint = self._state.steps.get(affine.input)
        if not isinstance(joint, Layer) or joint.kind != "concatenate" or not self._feeds_only(joint.name, affine):
            return False
        widths = [self._state.shapes[name][-1] for name in joint.inputs]
        edges = np.cumsum(widths)[:-1].tolist()
        pieces = [
            Affine(name=f"{affine.name}_{n}", input=name, scale=scale, shift=shift)
            for n, (name, scale, shift) in enumerate(
                zip(joint.inputs, np.split(affine.scale, edges, -1), np.split(affine.shift, edges, -1), strict=True)
            )
        ]
        if not all(piece.is_identity or self._takes(piece, joint) for piece in pieces):
            return False
        self._remove(affine, joint.name)
        for piece in pieces:
            self._insert(piece, after=piece.input)
            joint = rewired_layer(joint, {piece.input: piece.name})
        self._state.steps[joint.name] = joint
        return True

    def _takes(self, piece: Affine, joint: Layer) -> bool:
        """Return whether what feeds a concatenation could take a scaling into itself."""
        source = self._state.steps.get(piece.input)
        if self._is_output(piece.input) or self._users(piece.input) != [joint] or joint.inputs.count(piece.input) > 1:
            return False
        weighted = isinstance(source, Layer) and source.kind in WEIGHTED and piece.per_channel
        return weighted or isinstance(source, Affine) or self._is_lone_input(piece)

    def _is_lone_input(self, piece: Affine) -> bool:
        """Return whether a scaling reads an input, flattened or as it is, that nothing else reads."""
        source = self._state.steps.get(piece.input)
        name = piece.input
        if isinstance(source, Layer) and source.kind == "flatten":
            (name,) = source.inputs
            if self._users(name) != [source]:
                return False
        return name in self._state.inputs and piece.is_normalizer

    def _forward(self, affine: Affine) -> bool:
        users = self._users(affine.name)
        if not users or self._is_output(affine.name) or not all(self._passes(user, affine) for user in users):
            return False
        for name in [user.name for user in users]:
            user = self._state.steps[name]
            if isinstance(user, Layer) and user.kind in WEIGHTED:
                self._into_consumer(user, affine)
            elif isinstance(user, Layer):
                self._behind(user, affine)
        del self._state.steps[affine.name]
        return True

    def _passes(self, user: Step, affine: Affine) -> bool:
        if not isinstance(user, Layer):
            return False
        if user.kind in ("dense", "flatten"):
            return True
        if user.kind in ("conv2d", "depthwise_conv2d"):
            # What pads an image is zero before the scaling, so a shift could not be told from it.
            return affine.per_channel and (user.padding == "valid" or not affine.shift.any())
        if user.kind in _POOLS:
            return affine.per_channel and (user.kind != "max_pool2d" or bool((affine.scale > 0).all()))
        return user.kind == "concatenate" and user.inputs.count(affine.name) == 1

    def _into_consumer(self, user: Layer, affine: Affine) -> None:
        kernel, bias = self._weights_of(user)
        scale, shift = affine.channels
        if user.kind == "dense":
            bias = bias + shift @ kernel
            kernel = scale[:, None] * kernel
        elif user.kind == "conv2d":
            bias = bias + np.einsum("hwio,i->o", kernel, shift)
            kernel = kernel * scale[:, None]
        else:
            bias = bias + np.einsum("hwcm,c->cm", kernel, shift).ravel()
            kernel = kernel * scale[:, None]
        rewired = rewired_layer(user, {affine.name: affine.input})
        self._state.steps[user.name] = rewired
        self._set_weights(rewired, kernel, bias)

    def _behind(self, user: Layer, affine: Affine) -> None:
        shape = self._state.shapes[user.name]
        scale, shift = self._seen_behind(user, affine, shape)
        moved = Affine(name=f"{affine.name}_{user.name}", input=user.name, scale=scale, shift=shift)
        self._state.steps[user.name] = rewired_layer(user, {affine.name: affine.input})
        self._insert(moved, after=user.name)
        self._redirect(user.name, moved.name, but=moved.name)

    def _seen_behind(self, user: Layer, affine: Affine, shape: Shape) -> tuple[Float64, Float64]:
        if user.kind == "flatten":
            return affine.scale.reshape(shape), affine.shift.reshape(shape)
        if user.kind == "concatenate":
            start = sum(self._state.shapes[name][-1] for name in user.inputs[: user.inputs.index(affine.name)])
            scale, shift = np.ones(shape), np.zeros(shape)
            scale[..., start : start + affine.scale.shape[-1]] = affine.scale
            shift[..., start : start + affine.scale.shape[-1]] = affine.shift
            return scale, shift
        scale, shift = affine.channels
        return np.broadcast_to(scale, shape).copy(), np.broadcast_to(shift, shape).copy()

    def _into_open_output(self, affine: Affine) -> bool:
        roles = [role for role, name in self._state.outputs.items() if name == affine.name]
        if self._users(affine.name) or not roles or not set(roles) <= self._open:
            return False
        for role in roles:
            self._state.output_affines[role] = (affine.scale, affine.shift)
        self._remove(affine, affine.input)
        return True

    def _into_own_layer(self, affine: Affine) -> bool:
        shape = affine.scale.shape
        if len(shape) == 1 and shape[0] <= MAX_DIAGONAL:
            layer = Layer(name=affine.name, kind="dense", inputs=affine.inputs)
            kernel = np.diag(affine.scale)
        elif len(shape) == 3 and affine.per_channel:
            layer = Layer(name=affine.name, kind="depthwise_conv2d", inputs=affine.inputs)
            kernel = affine.channels[0].reshape(1, 1, -1, 1)
        else:
            raise UnsupportedModel(
                f"layer {affine.name!r} scales each of {math.prod(shape):,} elements differently at a place where no "
                "layer beside it can take that over",
                hint="put the normalisation directly behind an input, a dense layer or a convolution",
            )
        self._state.steps[layer.name] = layer
        self._state.weights[f"{layer.name}/kernel"] = kernel
        self._state.weights[f"{layer.name}/bias"] = affine.channels[1]
        self._state.notes.append(f"layer {layer.name!r} became a {layer.kind} of its own: no layer beside it takes it")
        return True
