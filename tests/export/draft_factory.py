"""Drafts with random weights, and what they compute, scalings included."""

import numpy as np

from quarl_export.ir.draft import Affine, Draft
from quarl_export.ir.layers import Layer
from quarl_export.ir.policy_graph import GraphInput, PolicyGraph
from quarl_export.ir.reference import run_graph


class Net:
    """A draft under construction with random weights."""

    def __init__(self, seed=0, **inputs):
        self.rng = np.random.default_rng(seed)
        self.inputs, self.steps, self.weights = inputs, [], {}
        self.shapes = dict(inputs)

    def layer(self, kind, name, *inputs, kernel=None, use_bias=True, **config):
        step = Layer(name=name, kind=kind, inputs=inputs, settings=config, use_bias=use_bias and kernel is not None)
        if kernel is not None:
            self.weights[f"{name}/kernel"] = self.rng.normal(0, 0.5, kernel)
            filters = kernel[2] * kernel[3] if kind == "depthwise_conv2d" else kernel[-1]
            if use_bias:
                self.weights[f"{name}/bias"] = self.rng.normal(size=filters)
        self.steps.append(step)
        return name

    def affine(self, name, tensor, shape, *, even=True, positive=False, shift=True):
        draw = (shape[-1],) if even else shape
        scale = self.rng.uniform(0.3, 2, draw) * (1 if positive else self.rng.choice([-1, 1], draw))
        moved = self.rng.normal(size=draw) if shift else np.zeros(draw)
        self.steps.append(
            Affine(
                name=name, input=tensor,
                scale=np.broadcast_to(scale, shape).copy(), shift=np.broadcast_to(moved, shape).copy(),
            )
        )  # fmt: skip
        return name

    def draft(self, **outputs):
        return Draft(inputs=self.inputs, steps=tuple(self.steps), weights=self.weights, outputs=outputs)


def run_draft(draft, inputs):
    """Step by step, scalings included."""
    tensors = dict(inputs)
    for step in draft.steps:
        if isinstance(step, Affine):
            tensors[step.name] = tensors[step.input] * step.scale + step.shift
            continue
        shapes = {name: draft.weights[name].shape for name in step.weight_names()}
        # Given a key as input twice, a graph would not be one.
        keys = {name: f"in{n}" for n, name in enumerate(dict.fromkeys(step.inputs))}
        alone = PolicyGraph(
            inputs=tuple(GraphInput(key=keys[n], shape=np.shape(tensors[n])[1:]) for n in keys),
            layers=(Layer(name=step.name, kind=step.kind, inputs=tuple(keys[n] for n in step.inputs),
                          settings=step.settings, use_bias=step.use_bias),),
            outputs={"out": step.name}, weight_shapes=shapes,
        )  # fmt: skip
        weights = {name: draft.weights[name].astype(np.float32) for name in shapes}
        tensors[step.name] = run_graph(alone, weights, {keys[n]: tensors[n] for n in keys})[step.name]
    return {role: tensors[name] for role, name in draft.outputs.items()}
