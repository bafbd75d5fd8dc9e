"""Whether two files compute the same, looking at nothing but what they compute."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from quarl_export.graph import GraphView, OperatorView, TensorView, view

# What the converter folds away: subtracting zeros, multiplying by ones.
_NEUTRAL = {"SUB": 0.0, "MUL": 1.0}
# Third operand of dense and convolution; one of zeros is as good as none.
_BIAS = 2


def difference(patched: bytes, converted: bytes) -> str:
    """Return the first difference between two models, or "" where every operator and tensor is the same.

    Names, metadata, the order of tensors, and constants that are shared in one file and separate in the other do not
    count. Nor does what the converter makes of particular values and a template cannot: it leaves out a bias of zeros,
    a subtraction of zeros, a multiplication by ones, a change of grid that changes nothing, and all but one of
    operators that compute the same; and a kernel that two layers share gets a scale per channel, which is no
    difference where those are all the same.
    """
    left, right = view(patched), view(converted)
    rows, others = _rows(left), _rows(right)
    for place, (row, other) in enumerate(zip(rows, others, strict=False)):
        if row != other:
            return f"operator {place}: {_explain(row, other)}"
    if len(rows) != len(others):
        return f"{len(rows)} operators against {len(others)}"
    return ""


def _rows(graph: GraphView) -> list[tuple[Any, ...]]:
    """Describe each operator by its operands' content; intermediate tensors are numbered as they appear."""
    numbers: dict[int, int] = {index: place for place, index in enumerate(graph.inputs)}
    rows: list[tuple[Any, ...]] = []
    places: dict[tuple[Any, ...], int] = {}
    for operator in graph.operators:
        if _is_neutral(graph, operator):
            numbers[operator.outputs[0]] = numbers[operator.inputs[0]]
            continue
        operands = [
            _describe(graph.tensors[i], numbers.get(i))
            for place, i in enumerate(operator.inputs)
            if i >= 0 and not (place == _BIAS and _is_zeros(graph.tensors[i]))
        ]
        results = [_describe(graph.tensors[i], -1) for i in operator.outputs]
        row = (operator.name, operator.version, operator.options, tuple(operands), tuple(results))
        if row not in places:
            places[row] = len(rows)
            rows.append(row)
        numbers.update({index: 1000 * places[row] + place + 1000 for place, index in enumerate(operator.outputs)})
    rows.append(("OUTPUTS", tuple(numbers[index] for index in graph.outputs)))
    return rows


def _is_neutral(graph: GraphView, operator: OperatorView) -> bool:
    if operator.name == "QUANTIZE":  # from one grid to the same: ranges that happen to be equal
        source, result = (_describe(graph.tensors[i[0]], 0) for i in (operator.inputs, operator.outputs))
        return source == result
    if operator.name not in _NEUTRAL or operator.activation:
        return False
    constant = graph.tensors[operator.inputs[1]].data
    return constant is not None and constant.dtype == np.float32 and bool((constant == _NEUTRAL[operator.name]).all())


def _is_zeros(tensor: TensorView) -> bool:
    return tensor.data is not None and not tensor.data.any()


def _describe(tensor: TensorView, number: int | None) -> tuple[Any, ...]:
    content = number if tensor.data is None else hashlib.sha256(tensor.data.tobytes()).hexdigest()
    scale, zero_point = (
        None if values is None else tuple(values[:1] if (values == values[0]).all() else values)
        for values in (tensor.scale, tensor.zero_point)
    )
    return (str(np.dtype(tensor.dtype)), tensor.shape, scale, zero_point, content)


def _explain(row: Sequence[Any], other: Sequence[Any]) -> str:
    if row[0] != other[0]:
        return f"{row[0]} against {other[0]}"
    parts = ("name", "version", "settings", "operands", "results")
    for part, mine, theirs in zip(parts, row, other, strict=False):
        if mine != theirs:
            return f"{row[0]}: {part} differ: {_short(mine)} against {_short(theirs)}"
    return f"{row[0]} differs"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
