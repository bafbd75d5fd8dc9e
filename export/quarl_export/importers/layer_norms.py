"""LayerNormalizations in a file of operators, which does not know them as layers: found, named, read as one layer.

Around one inverse root, `n = rsqrt(mean((x - m)²) + epsilon)` with `m = mean(x)`, sources arrange `(x - m) n gamma +
beta` in many ways. So nothing is matched but that root: what the operators behind it compute is followed as a sum of
products of x, m and n with constants, until it is `gamma x n - gamma m n + beta`. Whether it was read rightly is asked
of the file itself, when the whole import is compared with it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import UnsupportedModel
from quarl_device.flatbuffer import Graph, Operator

Float64 = NDArray[np.float64]
Sum = Mapping[str, Float64]
"""A tensor as a sum: product of variables ("1", "x", "m", "n", "xn", "mn") to its constant factor."""

_PRODUCTS = {("x", "n"): "xn", ("m", "n"): "mn"}
_REARRANGED = ("RESHAPE", "TRANSPOSE")
_SHOWN = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerNorm:
    """One LayerNormalization.

    Attributes:
        name: what the names of its tensors share, shortened; "" where they share nothing.
        source: index of the tensor that is normalised.
        end: the operator that gives what it gives; its own activation is none of the normalisation's.
        flattens: whether it takes all elements of an image as one vector.
        inside: indices of the operators that compute it, `end` included.
        gamma: float64 [width], or [1].
        beta: likewise.
        epsilon: added to the variance.
    """

    name: str
    source: int
    end: Operator
    flattens: bool
    inside: frozenset[int]
    gamma: Float64
    beta: Float64
    epsilon: float

    @property
    def arrays(self) -> dict[str, Float64]:
        """Its weights by their last names."""
        return {"gamma": self.gamma, "beta": self.beta}


def find_layer_norms(graph: Graph) -> tuple[LayerNorm, ...]:
    """Return every LayerNormalization of a file, in order.

    Raises:
        UnsupportedModel: one is computed in a way that is not read; names every such.
    """
    search = _Search(graph)
    roots = tuple(search.roots())
    found = [search.norm(root) for root in roots]
    names = [_scope(graph, root.parts) for root, norm in zip(roots, found, strict=True) if norm is None]
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise UnsupportedModel(
            f"layer {', '.join(map(repr, names[:_SHOWN]))}{more} is a LayerNormalization, which this file holds as "
            "single operators in an order that is not read: there is no layer in it that --keep-float could keep",
            hint="export the Keras model itself, model.save('policy.keras'), with --keep-float of its "
            "LayerNormalization layers (quarl-edge inspect policy.keras lists them); or train without",
        )
    return tuple(norm for norm in found if norm is not None)


@dataclass(frozen=True, kw_only=True)
class _Root:
    """Where an inverse root comes from: tensors, and the operators of squares, mean and root."""

    values: int
    mean: int
    epsilon: float
    parts: tuple[Operator, Operator, Operator]


class _Search:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._maker = {output: operator for operator in graph.operators for output in operator.outputs}

    def roots(self) -> Iterator[_Root]:
        """Yield every inverse root of a variance."""
        for operator in self._graph.operators:
            root = self._root(operator) if operator.name == "RSQRT" else None
            if root is not None:
                yield root

    def norm(self, root: _Root) -> LayerNorm | None:
        """Return the normalisation around an inverse root, `None` if nothing behind it is one."""
        source = self._as_given(root.values)
        given = self._graph.tensors[source].shape
        one = {"x": np.ones(1)}
        sums: dict[int, Sum] = {
            source: one, root.values: one, root.mean: {"m": np.ones(1)}, root.parts[-1].outputs[0]: {"n": np.ones(1)},
        }  # fmt: skip
        found: LayerNorm | None = None
        for operator in self._graph.operators:
            if len(operator.outputs) != 1 or operator.outputs[0] in sums or not sums.keys() & {*operator.inputs}:
                continue
            value, shape = self._sum(operator, sums), self._graph.tensors[operator.outputs[0]].shape
            parts = None if value is None else _gamma_and_beta(value, shape[-1])
            if value is None or (found is not None and not self._goes_on(found.end, operator)):
                continue
            if parts is not None and shape in (given, (1, math.prod(given))):
                found = LayerNorm(
                    name=_scope(self._graph, root.parts, unnamed="").rsplit("/", 1)[-1],
                    source=source,
                    end=operator,
                    flattens=shape != given,
                    inside=self._between(source, operator),
                    gamma=parts[0],
                    beta=parts[1],
                    epsilon=root.epsilon,
                )
            # An activation on the way makes it something else.
            if not _activates(operator):
                sums[operator.outputs[0]] = value
        return found

    def _goes_on(self, end: Operator, operator: Operator) -> bool:
        """Return whether `operator` scales or shifts what `end` gives, and nobody else reads that."""
        (given,) = end.outputs
        readers = sum(given in other.inputs for other in self._graph.operators)
        return (
            readers == 1
            and given in operator.inputs
            and given not in self._graph.outputs
            and not (operator.name in _REARRANGED or _activates(end))
        )

    def _root(self, root: Operator) -> _Root | None:
        """Return where `root` comes from if that is a variance: mean((x - mean(x))²), and a constant or none."""
        variance, epsilon = root.inputs[0], 0.0
        shifted = self._maker.get(variance)
        if shifted is not None and shifted.name == "ADD":
            constants = [self._constant(index) for index in shifted.inputs]
            [variance] = [i for i, c in zip(shifted.inputs, constants, strict=True) if c is None][:1] or [-1]
            epsilon = sum(float(c.flat[0]) for c in constants if c is not None)
        mean = self._made(variance, "MEAN")
        squares = None if mean is None else self._made(mean.inputs[0], "SQUARED_DIFFERENCE", "MUL", "SQUARE")
        if mean is None or squares is None or (squares.name == "MUL" and len({*squares.inputs}) != 1):
            return None
        pair = squares if squares.name == "SQUARED_DIFFERENCE" else self._made(squares.inputs[0], "SUB")
        if pair is None or len(pair.inputs) != 2:
            return None
        for values, of in (pair.inputs, pair.inputs[::-1]):
            average = self._made(of, "MEAN")
            if average is not None and average.inputs[0] == values:
                return _Root(values=values, mean=of, epsilon=epsilon, parts=(squares, mean, root))
        return None

    def _made(self, index: int, *kinds: str) -> Operator | None:
        operator = self._maker.get(index)
        return operator if operator is not None and operator.name in kinds else None

    def _as_given(self, index: int) -> int:
        """Return the tensor before it was turned for a kernel that normalises along other axes, as tf_keras does."""
        turned = self._made(index, "TRANSPOSE")
        if turned is None:
            return index
        reshaped = self._made(turned.inputs[0], "RESHAPE")
        return turned.inputs[0] if reshaped is None else reshaped.inputs[0]

    def _constant(self, index: int) -> Float64 | None:
        """Return the values of a constant, filled or widened ones included; `None` if it is computed."""
        if index < 0:
            return None
        tensor = self._graph.tensors[index]
        filled = self._made(index, "FILL")
        widened = self._made(index, "DEQUANTIZE")
        if filled is not None:
            return self._constant(filled.inputs[1])
        if widened is not None:
            return self._constant(widened.inputs[0])
        if not tensor.size or tensor.dtype not in ("float32", "float16"):
            return None
        return np.asarray(self._graph.constant(tensor), np.float64)

    def _sum(self, operator: Operator, sums: Mapping[int, Sum]) -> Sum | None:
        """Return what an operator gives, `None` where that is no such sum."""
        if operator.name in _REARRANGED:
            value = sums.get(operator.inputs[0])
            return value if value is not None and all(factor.size == 1 for factor in value.values()) else None
        operands: list[Sum] = []
        for index in operator.inputs:
            constant = None if index in sums else self._constant(index)
            if index not in sums and constant is None:
                return None
            operands.append(sums[index] if constant is None else {"1": constant})
        if operator.name == "NEG":
            return _scaled(operands[0], -1.0)
        if operator.name in ("ADD", "SUB"):
            return _added(operands[0], _scaled(operands[1], 1.0 if operator.name == "ADD" else -1.0))
        return _multiplied(*operands) if operator.name == "MUL" else None

    def _between(self, source: int, end: Operator) -> frozenset[int]:
        """Return every operator that `end` needs beside those that `source` does."""
        found: dict[int, Operator] = {}
        waiting = [end]
        while waiting:
            operator = waiting.pop()
            if operator.index not in found:
                found[operator.index] = operator
                makers = (self._maker.get(index) for index in operator.inputs if index != source)
                waiting += [maker for maker in makers if maker is not None]
        return frozenset(found)


def _activates(operator: Operator) -> bool:
    return operator.name in ("ADD", "SUB", "MUL") and bool(operator.options and operator.options[0])


def _scaled(value: Sum, factor: float) -> Sum:
    return {product: factor * part for product, part in value.items()}


def _added(left: Sum, right: Sum) -> Sum:
    result = dict(left)
    for product, part in right.items():
        result[product] = result[product] + part if product in result else part
    return result


def _multiplied(left: Sum, right: Sum) -> Sum | None:
    result: Sum = {}
    for one, first in left.items():
        for other, second in right.items():
            product = other if one == "1" else one if other == "1" else None
            product = product or _PRODUCTS.get((one, other)) or _PRODUCTS.get((other, one))
            if product is None:
                return None
            result = _added(result, {product: first * second})
    return result


def _gamma_and_beta(value: Sum, width: int) -> tuple[Float64, Float64] | None:
    """Return the factors of `gamma x n - gamma m n + beta`, `None` if `value` is anything else."""
    if not {"xn", "mn"} <= value.keys() <= {"xn", "mn", "1"}:
        return None
    parts = [value["xn"], value["mn"], value.get("1", np.zeros(1))]
    if any(part.size not in (1, width) for part in parts):
        return None
    gamma, of_mean, beta = (part.reshape(-1) for part in parts)
    return (gamma, beta) if bool((gamma == -of_mean).all()) else None


def _scope(graph: Graph, parts: tuple[Operator, ...], *, unnamed: str = "operator") -> str:
    """Return what the names of a layer's tensors begin with, its place in the file where they share nothing."""
    names = [graph.tensors[part.outputs[0]].name.split(";")[0] for part in parts]
    shared = os.path.commonpath(names) if all(name and not name.startswith("/") for name in names) else ""
    shown = "".join(c if c.isprintable() else "?" for c in shared)[:80]
    return shown or (f"{unnamed} {parts[-1].index}" if unnamed else "")
