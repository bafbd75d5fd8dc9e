"""Which layer of one file is which layer of another: matched by what computes what, never by names.

Two conversions of one network differ in names, in the order of branches, in what is fused, and in the operators that
only change a representation. What they share is the structure. So each graph is reduced to its layers (no QUANTIZE,
DEQUANTIZE or RESHAPE, no normaliser in front, activations joined to what they follow), and the layers are matched from
the inputs on: same kind, same sizes, matched inputs. Where two are alike (twin branches), weights decide.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import UsageError
from quarl_device.flatbuffer import Graph, Operator, Tensor
from quarl_device.inspect.tensors import WEIGHTED, fused_activation
from quarl_export.layer_scopes import source_of

Float = NDArray[np.float64]

_REPRESENTATION = ("QUANTIZE", "DEQUANTIZE", "RESHAPE")
_ALL_OF_IT = 1e-6
_PROLOGUE = ("SUB", "ADD", "MUL", "DIV", "MINIMUM", "MAXIMUM")
_JOINED = {"RELU": "relu", "RELU6": "relu6"}
_EITHER_ORDER = ("ADD", "MUL", "MAXIMUM", "MINIMUM")
_OPERATION_WORDS = re.compile(
    r"(MatMul|BiasAdd|Relu6?|Conv2D|depthwise|Tanh|Sigmoid|Softmax|Mean|Add(V2)?|Sub|Mul|ReadVariableOp|MaxPool"
    r"|AvgPool|concat|kernel|bias|const|network)[_\d]*"
    r"|(tf|tfl|arith|quant)\..*|fake_?quant.*|StatefulPartitionedCall.*",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of a file.

    Attributes:
        kind: operator name.
        activation: what is applied to its result, "none" for nothing.
        inputs: layers that it reads, by place; an observation is -1, -2, ... in the order of `Side.observations`.
        output: index of the tensor that holds its result, with the activation.
        elements: of the result, without the batch.
        weights: index of its constant weights, -1 for none.
        operator: its place in the file.
    """

    kind: str
    activation: str
    inputs: tuple[int, ...]
    output: int
    elements: int
    weights: int
    operator: int


class OtherStructure(UsageError):
    """Two files whose layers cannot be matched."""


def layers_of(graph: Graph, inputs: Sequence[int]) -> tuple[Layer, ...]:
    """Return a file's layers in its order.

    Args:
        graph: the file.
        inputs: tensor indices of the observations, in their order.
    """
    owner = {index: -1 - place for place, index in enumerate(inputs)}
    readers = _readers(graph)
    layers: list[Layer] = []
    for operator in graph.operators:
        values = [n for n in operator.inputs if n >= 0 and not graph.tensors[n].size and n in owner]
        if not values or not operator.outputs:
            continue  # unpacks a constant
        source, result = owner[values[0]], operator.outputs[0]
        if _only_represents(operator) or _is_prologue(operator, graph, source, values):
            owner[result] = source
        elif operator.name in _JOINED and source >= 0 and _joins(layers[source], readers):
            layers[source] = replace(layers[source], activation=_JOINED[operator.name], output=result)
            owner[result] = source
        else:
            layers.append(_layer(operator, graph, tuple(owner[n] for n in values)))
            owner |= dict.fromkeys(operator.outputs, len(layers) - 1)
    return tuple(layers)


def output_places(graph: Graph, layers: Sequence[Layer]) -> dict[int, int]:
    """Return which layer gives each of a file's outputs, by tensor index; none where an output is no layer's."""
    owner = {layer.output: place for place, layer in enumerate(layers)}
    for operator in graph.operators:
        if _only_represents(operator) and operator.inputs[0] in owner:
            owner.setdefault(operator.outputs[0], owner[operator.inputs[0]])
    return {index: owner[index] for index in graph.outputs if index in owner}


def _only_represents(operator: Operator) -> bool:
    """Return whether an operator changes how values are written and not what they are.

    So does a leaky ReLU that leaks all: an export puts it where the converter must not see through (`quantized`).
    """
    if operator.name == "LEAKY_RELU" and operator.options:
        alpha = operator.options[0]
        return isinstance(alpha, (int, float)) and abs(alpha - 1.0) < _ALL_OF_IT
    return operator.name in _REPRESENTATION


def _readers(graph: Graph) -> dict[int, int]:
    counts: dict[int, int] = {}
    for operator in graph.operators:
        for index in operator.inputs:
            counts[index] = counts.get(index, 0) + 1
    return counts


def _is_prologue(operator: Operator, graph: Graph, source: int, values: list[int]) -> bool:
    """Return whether the operator normalises an observation: arithmetic with a constant, straight from the input."""
    return (
        source < 0
        and operator.name in _PROLOGUE
        and len(values) == 1
        and fused_activation(operator) == "none"
        and graph.tensors[operator.outputs[0]].dtype == "float32"
    )


def _joins(layer: Layer, readers: dict[int, int]) -> bool:
    return layer.activation == "none" and readers.get(layer.output, 0) == 1


def _layer(operator: Operator, graph: Graph, inputs: tuple[int, ...]) -> Layer:
    result = graph.tensors[operator.outputs[0]]
    weights = operator.inputs[1] if operator.name in WEIGHTED else -1
    return Layer(
        kind=operator.name,
        activation=fused_activation(operator),
        inputs=tuple(sorted(inputs)) if operator.name in _EITHER_ORDER else inputs,
        output=operator.outputs[0],
        elements=math.prod(result.shape[1:]),
        weights=_constant_behind(graph, weights),
        operator=operator.index,
    )


def _constant_behind(graph: Graph, index: int) -> int:
    """Return the constant that a tensor is unpacked from (float16 weights), the tensor itself if it is one, else -1."""
    if index < 0 or graph.tensors[index].size:
        return index
    makers = [op for op in graph.operators if op.name == "DEQUANTIZE" and index in op.outputs]
    return next((n for op in makers for n in op.inputs if n >= 0 and graph.tensors[n].size), -1)


def match(left: Graph, ours: Sequence[Layer], right: Graph, theirs: Sequence[Layer]) -> tuple[tuple[int, int], ...]:
    """Return which layer of `left` is which of `right`, as pairs of places, in `left`'s order.

    Raises:
        OtherStructure: the files are not the same network; says where they part.
    """
    if len(ours) != len(theirs):
        raise OtherStructure(
            f"the files are not the same network: one has {len(ours)} layers ({_kinds(ours)}), the other "
            f"{len(theirs)} ({_kinds(theirs)})",
            hint="compare a float and a quantized export of one policy",
        )
    known: dict[int, int] = {}
    taken: set[int] = set()
    for place, layer in enumerate(ours):
        wanted = _mapped(layer, known)
        fits = [n for n, other in enumerate(theirs) if n not in taken and _alike(layer, wanted, other)]
        if not fits:
            raise OtherStructure(
                f"the files are not the same network: {_show(layer)} (operator {layer.operator}) has no counterpart",
                hint="compare a float and a quantized export of one policy",
            )
        chosen = fits[0] if len(fits) == 1 else max(fits, key=lambda n: _kinship(left, layer, right, theirs[n]))
        known[place] = chosen
        taken.add(chosen)
    return tuple(known.items())


def _mapped(layer: Layer, known: dict[int, int]) -> tuple[int, ...]:
    mapped = tuple(known[n] if n >= 0 else n for n in layer.inputs)
    return tuple(sorted(mapped)) if layer.kind in _EITHER_ORDER else mapped


def _alike(layer: Layer, wanted: tuple[int, ...], other: Layer) -> bool:
    return (layer.kind, layer.activation, layer.elements, wanted) == (
        other.kind, other.activation, other.elements, other.inputs)  # fmt: skip


def _kinds(layers: Sequence[Layer]) -> str:
    shown = [_show(layer) for layer in layers[:6]]
    return ", ".join(shown) + (", …" if len(layers) > 6 else "")


def _show(layer: Layer) -> str:
    fused = f"+{layer.activation}" if layer.activation != "none" else ""
    return f"{layer.kind}{fused} of {layer.elements}"


def _kinship(left: Graph, layer: Layer, right: Graph, other: Layer) -> float:
    """Return the cosine between two layers' weights, -1 where they have none to compare."""
    mine, its = real_constant(left, layer.weights), real_constant(right, other.weights)
    if mine is None or its is None or mine.size != its.size:
        return -1.0
    length = float(np.linalg.norm(mine) * np.linalg.norm(its))
    return float(mine.ravel() @ its.ravel()) / length if length > 0 else 0.0


def real_constant(graph: Graph, index: int) -> Float | None:
    """Return a constant in real numbers, `None` where there is none or its type is not numpy's."""
    if index < 0:
        return None
    tensor = graph.tensors[index]
    if not tensor.size or tensor.dtype.startswith("type-"):
        return None
    return dequantize(graph.constant(tensor), tensor)


def dequantize(stored: NDArray[np.generic], tensor: Tensor) -> Float:
    """Return `stored` values of `tensor` as real numbers, float64 in its shape."""
    values = stored.astype(np.float64)
    quantization = tensor.quantization
    if quantization is None or tensor.dtype.startswith("float"):
        return values
    scales, zeros = quantization.scales.astype(np.float64), quantization.zero_points.astype(np.float64)
    if scales.size != 1:
        shape = [1] * values.ndim
        shape[quantization.axis] = scales.size
        scales, zeros = scales.reshape(shape), zeros.reshape(shape)
    return np.asarray((values - zeros) * scales)


def source_name(graph: Graph, layer: Layer, names: Sequence[str]) -> str:
    """Return the layer of the source that a layer of its file is, by the `names` in the file, "" where unknown."""
    found = (source_of(graph.tensors[n].name, names) for n in (layer.weights, layer.output) if n >= 0)
    return next(filter(None, found), "")


def layer_names(pairs: Sequence[Sequence[tuple[Graph, Layer]]], sources: Sequence[str] = ()) -> tuple[str, ...]:
    """Return a short name for each matched layer: its source's, else of its tensors, "trunk", "conv_0"; unique.

    Args:
        pairs: per layer, it in each file; the first name that says something is taken.
        sources: per layer, what its source calls it, "" where that is unknown.
    """
    names: list[str] = []
    for place, twins in enumerate(pairs):
        word = twins[0][1].kind.lower()
        candidates = (name for graph, layer in twins for name in _candidates(graph, layer))
        known = "".join(c if c.isprintable() else "?" for c in sources[place])[:80] if sources else ""
        base = known or next(candidates, f"{word}_{place}")
        name = base if base not in names else f"{base} {word}"
        names.append(name if name not in names else f"{name} #{place}")
    return tuple(names)


def _candidates(graph: Graph, layer: Layer) -> Iterator[str]:
    for index in (layer.weights, layer.output):
        if index < 0:
            continue
        for full in reversed(graph.tensors[index].name.split(";")):
            # The first part is the model's own name.
            parts = [part for part in full.split("/")[full.count("/") > 0 :] if not _OPERATION_WORDS.fullmatch(part)]
            if parts and parts[-1] and ":" not in full:
                yield "".join(c if c.isprintable() else "?" for c in parts[-1])[:40]
