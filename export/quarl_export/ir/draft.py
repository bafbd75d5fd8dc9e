"""A network as it is read from a source: layers, and `x * scale + shift` steps that no policy graph has a kind for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_export.ir.layers import WEIGHTED, Layer, Shape, output_shape

Float64 = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Affine:
    """`x * scale + shift`, element by element.

    Attributes:
        name: unique among steps and inputs.
        input: name of the step or input that it reads.
        scale: float64 in the input's shape, without batch.
        shift: likewise.
    """

    name: str
    input: str
    scale: Float64
    shift: Float64

    @property
    def inputs(self) -> tuple[str, ...]:
        """What it reads, as a layer says it."""
        return (self.input,)

    @property
    def per_channel(self) -> bool:
        """Whether it differs along the last axis only."""
        rows = (part.reshape(-1, part.shape[-1]) for part in (self.scale, self.shift))
        return all(bool((part == part[0]).all()) for part in rows)

    @property
    def channels(self) -> tuple[Float64, Float64]:
        """Scale and shift along the last axis; meaningful where `per_channel`."""
        return self.scale.reshape(-1, self.scale.shape[-1])[0], self.shift.reshape(-1, self.shift.shape[-1])[0]

    @property
    def is_normalizer(self) -> bool:
        """Whether `(x - offset) * scale` can say it, which cannot say a constant."""
        return not bool(((self.scale == 0) & (self.shift != 0)).any())

    @property
    def is_identity(self) -> bool:
        """Whether it changes nothing."""
        return bool((self.scale == 1).all() and (self.shift == 0).all())


Step = Layer | Affine


@dataclass(frozen=True, kw_only=True, eq=False)
class Draft:
    """A network as it was read.

    Attributes:
        inputs: name to shape without batch.
        steps: in an order in which each one's inputs come before it.
        weights: of the layers among the steps, by name.
        outputs: role, or the source's own name, to the step that gives it.
        clips: input name to what it is clipped to ± behind its first scaling; all that read it read that.
    """

    inputs: Mapping[str, Shape]
    steps: tuple[Step, ...]
    weights: Mapping[str, NDArray[np.floating[Any]]]
    outputs: Mapping[str, str]
    clips: Mapping[str, float] = field(default_factory=dict)


def rewired(step: Step, names: Mapping[str, str]) -> Step:
    """Return `step` with every input that `names` names replaced."""
    if isinstance(step, Layer):
        return rewired_layer(step, names)
    return replace(step, input=names.get(step.input, step.input))


def rewired_layer(layer: Layer, names: Mapping[str, str]) -> Layer:
    """Return `layer` with every input that `names` names replaced."""
    return replace(layer, inputs=tuple(names.get(name, name) for name in layer.inputs))


def needed_steps(draft: Draft) -> list[Step]:
    """Return the steps that an output depends on, in order."""
    wanted = set(draft.outputs.values())
    kept: list[Step] = []
    for step in reversed(draft.steps):
        if step.name in wanted:
            wanted.update(step.inputs)
            kept.append(step)
    return kept[::-1]


def step_shapes(
    inputs: Mapping[str, Shape], steps: list[Step], weights: Mapping[str, NDArray[np.floating[Any]]]
) -> dict[str, Shape]:
    """Return the shape of every input and step; raises UsageError where they do not fit."""
    shapes = dict(inputs)
    for step in steps:
        if isinstance(step, Affine):
            shapes[step.name] = shapes[step.input]
            continue
        kernel = weights[f"{step.name}/kernel"].shape if step.kind in WEIGHTED else None
        shapes[step.name] = output_shape(step, [shapes[name] for name in step.inputs], kernel)
    return shapes
