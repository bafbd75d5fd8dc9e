"""Each operator by its rule: what an interpreter could die of does not fit."""

from dataclasses import replace

import numpy as np
import pytest

from quarl_device import lint_rules
from quarl_device.errors import ModelFileError
from quarl_device.flatbuffer import Graph, Operator, Quantization, Tensor
from quarl_device.lint import check_runnable, takes_batches


def tensor(index, shape, dtype="float32", values=None, axis=0, scales=None):
    quantized = dtype in ("int8", "int16", "uint8")
    scales = scales or ([0.1] if quantized else None)
    size = 0 if values is None else np.prod(shape, dtype=int).item() * np.dtype(dtype).itemsize
    return Tensor(
        index=index,
        name=f"t{index}",
        shape=tuple(shape),
        shape_signature=tuple(shape),
        dtype=dtype,
        quantization=None
        if scales is None
        else Quantization(scales=np.array(scales, np.float32), zero_points=np.zeros(len(scales), np.int64), axis=axis),
        buffer=0,
        start=0 if values is None else 8,
        size=size,
        plain=True,
    )


def run(name, inputs, output, options=(), indices=None):
    check_runnable(graph_of(name, inputs, output, options, indices))


def graph_of(name, inputs, output, options=(), indices=None):
    """Return the graph of one operator."""
    tensors = (*inputs, output)
    constants = [t for t in inputs if t.size]
    # Constants of these tests share one place in the file: at most one of them is looked at.
    named = [t.name for t in constants if t.name.startswith("axes")]
    data = b"\0" * 8 + np.array([int(n) for name in named for n in name.split()[1:]] or [0] * 1024, "<i4").tobytes()
    kind_of = lint_rules.KINDS[name]
    call = Operator(
        index=0,
        code=0,
        name=name,
        version=1,
        inputs=tuple(indices if indices is not None else range(len(inputs))),
        outputs=(len(inputs),),
        options_type=kind_of.options_type,
        options=tuple(options),
        plain=True,
    )
    return Graph(
        data=data,
        tensors=tensors,
        operators=(call,),
        inputs=tuple(t.index for t in inputs if not t.size),
        outputs=(len(inputs),),
        metadata={},
        description="",
    )


def axes(index, values):
    """Return constant int32 axes, whose values are told by the name."""
    return replace(tensor(index, (len(values),), "int32", values=values), name=f"axes {' '.join(map(str, values))}")


CONV = (None, 2, 2, 0, 1, 1, None)  # SAME, stride 2
IMAGE = (1, 9, 8, 3)

FITS = [
    ("ADD", [tensor(0, (1, 1)), tensor(1, (1, 3))], tensor(2, (1, 3)), (0, None)),
    ("MUL", [tensor(0, (1, 3)), tensor(1, (3,), values=1)], tensor(2, (1, 3)), (0,)),
    ("SUB", [tensor(0, (1, 3), "int8"), tensor(1, (1, 1), "int8")], tensor(2, (1, 3), "int8"), (0, None)),
    (
        "CONV_2D",
        [tensor(0, IMAGE), tensor(1, (4, 3, 3, 3), values=1), tensor(2, (4,), values=1)],
        tensor(3, (1, 5, 4, 4)),
        CONV,
    ),
    (
        "CONV_2D",
        [tensor(0, IMAGE), tensor(1, (4, 3, 3, 3), values=1), tensor(2, (4,), values=1)],
        tensor(3, (1, 4, 3, 4)),
        (1, 2, 2, 0, None, None, None),
    ),
    (
        "DEPTHWISE_CONV_2D",
        [tensor(0, IMAGE), tensor(1, (1, 3, 3, 6), values=1), tensor(2, (6,), values=1)],
        tensor(3, (1, 9, 8, 6)),
        (0, 1, 1, 2, 0, None, None),
    ),
    ("MAX_POOL_2D", [tensor(0, IMAGE)], tensor(1, (1, 4, 4, 3)), (1, 2, 2, 2, 2, 0)),
    ("CONCATENATION", [tensor(0, (1, 2)), tensor(1, (1, 3))], tensor(2, (1, 5)), (-1, 0)),
    ("RESHAPE", [tensor(0, IMAGE)], tensor(1, (1, 216)), ((1, -1),)),
    ("RESHAPE", [tensor(0, IMAGE), axes(1, [-1, 216])], tensor(2, (1, 216)), ()),
    ("MEAN", [tensor(0, IMAGE), axes(1, [1, 2])], tensor(2, (1, 3)), (0,)),
    ("SUM", [tensor(0, IMAGE), axes(1, [-1])], tensor(2, (1, 9, 8, 1)), (1,)),
    ("SOFTMAX", [tensor(0, (1, 3))], tensor(1, (1, 3)), (1.0,)),
    ("LEAKY_RELU", [tensor(0, (1, 3))], tensor(1, (1, 3)), (0.2,)),
    ("TANH", [tensor(0, (1, 3), "int8")], tensor(1, (1, 3), "int8"), ()),
    ("QUANTIZE", [tensor(0, (1, 3))], tensor(1, (1, 3), "int8"), ()),
    (
        "FULLY_CONNECTED",
        [
            tensor(0, (1, 4), "int8"),
            tensor(1, (2, 4), "int8", values=1, scales=[0.1, 0.2]),
            tensor(2, (2,), "int32", values=1),
        ],
        tensor(3, (1, 2), "int8"),
        (0, 0, 0, 0, 0),
    ),
    (
        "FULLY_CONNECTED",
        [tensor(0, (1, 5, 4)), tensor(1, (2, 4), values=1), tensor(2, (2,), values=1)],
        tensor(3, (1, 5, 2)),
        (0, 0, 1, 0, 0),
    ),
    (  # dynamic range, per channel
        "FULLY_CONNECTED",
        [
            tensor(0, (1, 4)),
            tensor(1, (2, 4), "int8", values=1, scales=[0.1, 0.2]),
            tensor(2, (2,), values=1),
        ],
        tensor(3, (1, 2)),
        (0, 0, 0, 1, 0),
    ),
    (  # int16x8
        "FULLY_CONNECTED",
        [
            tensor(0, (1, 4), "int16"),
            tensor(1, (2, 4), "int8", values=1),
            tensor(2, (2,), "int64", values=1),
        ],
        tensor(3, (1, 2), "int16"),
        (0, 0, 0, 0, 0),
    ),
    ("ELU", [tensor(0, (1, 3), "int8")], tensor(1, (1, 3), "int8"), ()),
    ("RSQRT", [tensor(0, (1, 1))], tensor(1, (1, 1)), ()),
    ("DEQUANTIZE", [tensor(0, (3,), "float16", values=1)], tensor(1, (3,)), ()),
    ("DEQUANTIZE", [tensor(0, (1, 3), "int16")], tensor(1, (1, 3)), ()),
    ("QUANTIZE", [tensor(0, (1, 3), "int16")], tensor(1, (1, 3), "int8"), ()),
]


@pytest.mark.parametrize(
    ("name", "inputs", "output", "options"), FITS, ids=[f"{n}-{case[0]}" for n, case in enumerate(FITS)]
)
def test_operators_that_fit(name, inputs, output, options):
    run(name, inputs, output, options)


BROKEN = [
    ("ADD", [tensor(0, (1, 2)), tensor(1, (1, 3))], tensor(2, (1, 3)), (0, None)),
    ("ADD", [tensor(0, (1,) * 4 + (2,)), tensor(1, (1, 2))], tensor(2, (1,) * 4 + (2,)), (0, None)),
    ("ADD", [tensor(0, (1, 3)), tensor(1, (1, 3), "int8")], tensor(2, (1, 3)), (0, None)),
    (
        "CONV_2D",
        [tensor(0, IMAGE), tensor(1, (4, 3, 3, 3), values=1), tensor(2, (4,), values=1)],
        tensor(3, (1, 9, 8, 4)),
        (0, 0, 0, 0, 1, 1, 0),
    ),
    (
        "CONV_2D",
        [tensor(0, IMAGE), tensor(1, (4, 3, 3, 2), values=1), tensor(2, (4,), values=1)],
        tensor(3, (1, 5, 4, 4)),
        CONV,
    ),
    (
        "CONV_2D",
        [tensor(0, IMAGE), tensor(1, (4, 3, 3, 3), values=1), tensor(2, (3,), values=1)],
        tensor(3, (1, 5, 4, 4)),
        CONV,
    ),
    (
        "CONV_2D",
        [tensor(0, IMAGE), tensor(1, (4, 99, 3, 3), values=1), tensor(2, (4,), values=1)],
        tensor(3, (1, 1, 3, 4)),
        (1, 2, 2, 0, 1, 1, 0),
    ),
    (
        "CONV_2D",
        [tensor(0, (1, 9)), tensor(1, (4, 3, 3, 3), values=1), tensor(2, (4,), values=1)],
        tensor(3, (1, 5, 4, 4)),
        CONV,
    ),
    (
        "DEPTHWISE_CONV_2D",
        [tensor(0, IMAGE), tensor(1, (1, 3, 3, 6), values=1), tensor(2, (6,), values=1)],
        tensor(3, (1, 9, 8, 6)),
        (0, 1, 1, 3, 0, None, None),
    ),
    ("MAX_POOL_2D", [tensor(0, IMAGE)], tensor(1, (1, 4, 4, 3)), (1, 0, 0, 2, 2, 0)),
    ("MAX_POOL_2D", [tensor(0, IMAGE)], tensor(1, (1, 4, 4, 3)), (1, 2, 2, 2**30, 2, 0)),
    ("MAX_POOL_2D", [tensor(0, IMAGE)], tensor(1, (1, 4, 4, 3)), (7, 2, 2, 2, 2, 0)),
    ("CONCATENATION", [tensor(0, (1, 2)), tensor(1, (1, 3))], tensor(2, (1, 5)), (7, 0)),
    ("CONCATENATION", [tensor(0, (1, 2)), tensor(1, (1, 3))], tensor(2, (2, 5)), (0, 0)),
    ("RESHAPE", [tensor(0, IMAGE)], tensor(1, (1, 216)), ((1, -2),)),
    ("RESHAPE", [tensor(0, IMAGE)], tensor(1, (1, 216)), ((-1, -1),)),
    ("RESHAPE", [tensor(0, IMAGE)], tensor(1, (1, 216)), ((1, 217),)),
    ("RESHAPE", [tensor(0, IMAGE)], tensor(1, (1, 216)), ((0, 216),)),
    ("RESHAPE", [tensor(0, IMAGE)], tensor(1, (1, 216)), ()),
    ("RESHAPE", [tensor(0, IMAGE), tensor(1, (2,), "int32")], tensor(2, (1, 216)), ()),
    ("MEAN", [tensor(0, IMAGE), axes(1, [4])], tensor(2, (1, 3)), (0,)),
    ("MEAN", [tensor(0, IMAGE), tensor(1, (1,), "int32")], tensor(2, (1, 3)), (0,)),
    ("SOFTMAX", [tensor(0, (1, 3))], tensor(1, (1, 3)), (float("inf"),)),
    ("LEAKY_RELU", [tensor(0, (1, 3))], tensor(1, (1, 3)), (float("nan"),)),
    ("TANH", [tensor(0, (1, 3), "int8")], tensor(1, (1, 3)), ()),
    ("TANH", [tensor(0, (1, 3), "int32")], tensor(1, (1, 3), "int32"), ()),
    (
        "FULLY_CONNECTED",
        [
            tensor(0, (1, 4), "int8"),
            tensor(1, (4, 4), "int8", values=1, scales=[0.1] * 4, axis=1),
            tensor(2, (4,), "int32", values=1),
        ],
        tensor(3, (1, 4), "int8"),
        (0, 0, 0, 0, 0),
    ),
    (
        "FULLY_CONNECTED",
        [tensor(0, (1, 4), "int8"), tensor(1, (2, 4), values=1), tensor(2, (2,), "int32", values=1)],
        tensor(3, (1, 2), "int8"),
        (0, 0, 0, 0, 0),
    ),
    (
        "FULLY_CONNECTED",
        [tensor(0, (2, 2)), tensor(1, (2, 4), values=1), tensor(2, (2,), values=1)],
        tensor(3, (1, 2)),
        (0, 0, 0, 0, 0),
    ),
    (
        "FULLY_CONNECTED",
        [tensor(0, (1, 5, 3)), tensor(1, (2, 4), values=1), tensor(2, (2,), values=1)],
        tensor(3, (1, 5, 2)),
        (0, 0, 1, 0, 0),
    ),
    (
        "FULLY_CONNECTED",
        [
            tensor(0, (1, 4)),
            replace(
                tensor(1, (2, 4), "int8", values=1),
                quantization=Quantization(
                    scales=np.array([0.1], np.float32), zero_points=np.array([3], np.int64), axis=0
                ),
            ),
            tensor(2, (2,), values=1),
        ],
        tensor(3, (1, 2)),
        (0, 0, 0, 1, 0),
    ),
    (
        "FULLY_CONNECTED",
        [tensor(0, (1, 4)), tensor(1, (2, 4), "uint8", values=1), tensor(2, (2,), values=1)],
        tensor(3, (1, 2)),
        (0, 0, 0, 1, 0),
    ),
    (
        "FULLY_CONNECTED",
        [tensor(0, (1, 4), "int16"), tensor(1, (2, 4), "int8", values=1), tensor(2, (2,), "int32", values=1)],
        tensor(3, (1, 2), "int16"),
        (0, 0, 0, 0, 0),
    ),
    (
        "FULLY_CONNECTED",
        [tensor(0, (1, 4)), tensor(1, (2, 4), "float16", values=1), tensor(2, (2,), values=1)],
        tensor(3, (1, 2)),
        (0, 0, 0, 0, 0),
    ),
    ("ADD", [tensor(0, (1, 3), "float16"), tensor(1, (1, 3), "float16")], tensor(2, (1, 3), "float16"), (0, None)),
    ("ELU", [tensor(0, (1, 3), "int16")], tensor(1, (1, 3), "int16"), ()),
    ("RSQRT", [tensor(0, (1, 3), "int8")], tensor(1, (1, 3), "int8"), ()),
    ("QUANTIZE", [tensor(0, (1, 3), "int8")], tensor(1, (1, 3)), ()),
    ("QUANTIZE", [tensor(0, (1, 3), "float16")], tensor(1, (1, 3), "int8"), ()),
    ("DEQUANTIZE", [tensor(0, (1, 3), "int8")], tensor(1, (1, 3), "int16"), ()),
    ("DEQUANTIZE", [tensor(0, (1, 3))], tensor(1, (1, 3)), ()),
]


@pytest.mark.parametrize(
    ("name", "inputs", "output", "options"), BROKEN, ids=[f"{n}-{case[0]}" for n, case in enumerate(BROKEN)]
)
def test_operators_that_do_not_fit(name, inputs, output, options):
    with pytest.raises(ModelFileError, match="operator 0"):
        run(name, inputs, output, options)


def batchable(name, inputs, output, options=()):
    return takes_batches(graph_of(name, inputs, output, options), 8)


ROWS = [
    ("RESHAPE", [tensor(0, (1, 2, 6)), axes(1, [-1, 12])], tensor(2, (1, 12)), (), True),
    ("RESHAPE", [tensor(0, (1, 2, 6)), axes(1, [1, 12])], tensor(2, (1, 12)), (), False),
    ("RESHAPE", [tensor(0, (1, 2, 6)), axes(1, [1, -1])], tensor(2, (1, 12)), (), False),
    ("MEAN", [tensor(0, (1, 4)), axes(1, [1])], tensor(2, (1, 1)), (1,), True),
    ("MEAN", [tensor(0, (1, 4)), axes(1, [0])], tensor(2, (1, 4)), (1,), False),
    ("CONCATENATION", [tensor(0, (1, 2)), tensor(1, (1, 3))], tensor(2, (1, 5)), (1, 0), True),
    ("CONCATENATION", [tensor(0, (1, 2)), tensor(1, (1, 3), values=1)], tensor(2, (1, 5)), (1, 0), False),
    ("ADD", [tensor(0, (1, 3)), tensor(1, (3,), values=1)], tensor(2, (1, 3)), (0, None), True),
    ("ADD", [tensor(0, (1, 3)), tensor(1, (1,))], tensor(2, (1, 3)), (0, None), False),
    ("SOFTMAX", [tensor(0, (3,))], tensor(1, (3,)), (1.0,), False),
]


@pytest.mark.parametrize(
    ("name", "inputs", "output", "options", "rows"), ROWS, ids=[f"{n}-{case[0]}" for n, case in enumerate(ROWS)]
)
def test_which_operators_compute_each_row_alone(name, inputs, output, options, rows):
    run(name, inputs, output, options)
    assert batchable(name, inputs, output, options) == rows
