"""Checks of the file's operators: Q06 versions, Q07 float, Q08 custom, Q12 loads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from quarl_device.errors import QuarlError
from quarl_device.flatbuffer import Graph, Operator
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy
from quarl_export.checks.op_versions import Runtime, is_runtime, runtime_title, unknown_operators
from quarl_export.checks.report import CheckResult
from quarl_export.checks.subject import Subject
from quarl_export.ir.layers import WEIGHTED
from quarl_export.kernels import file_shape

_PROLOGUE = frozenset({"SUB", "MUL", "MAXIMUM", "MINIMUM"})
# Keeps the converter from making int8 of what stands between int8 layers: see `quantized`.
_BARRIER = "LEAKY_RELU"
_WITH_KERNEL = frozenset({"FULLY_CONNECTED", "CONV_2D", "DEPTHWISE_CONV_2D"})
# What a layer of each kind becomes in float, operator by operator.
_FLOAT_OPERATORS: Mapping[str, tuple[str, ...]] = {
    "dense": ("FULLY_CONNECTED",),
    "conv2d": ("CONV_2D",),
    "depthwise_conv2d": ("DEPTHWISE_CONV_2D",),
    "max_pool2d": ("MAX_POOL_2D",),
    "average_pool2d": ("AVERAGE_POOL_2D",),
    "global_average_pool2d": ("MEAN",),
    "flatten": ("RESHAPE",),
    "mean": ("MEAN",),
    "add": ("ADD",),
    "subtract": ("SUB",),
    "multiply": ("MUL",),
    "concatenate": ("CONCATENATION",),
    "relu": ("RELU",),
    "relu6": ("RELU6",),
    "tanh": ("TANH",),
    "sigmoid": ("LOGISTIC",),
    "softmax": ("SOFTMAX",),
    "elu": ("ELU",),
    "layer_norm": ("SUM", "MUL", "SUB", "MUL", "MEAN", "ADD", "RSQRT", "MUL", "MUL", "ADD"),
}
# An operator by name, and by the shape of its kernel where it has one: which of two dense layers is in float matters.
_Named = tuple[str, tuple[int, ...]]


def check_versions(subject: Subject) -> CheckResult:
    """Q06: an operator version that is newer than the target makes the whole file unloadable there."""
    unknown = unknown_operators(subject.graph, subject.options.runtime)
    unknown = tuple(found for found in unknown if not _is_custom(found.name))
    title = runtime_title(subject.options.runtime)
    message = f"{title} has every operator version"
    if unknown:
        message = f"{title} does not load {', '.join(map(str, unknown))}"
        if any(found.name == "FULLY_CONNECTED" for found in unknown):
            message += "; per-tensor dense weights need an older version"
    return CheckResult(code="Q06", passed=not unknown, value=float(len(unknown)), limit=0.0, message=message)


def check_float(subject: Subject) -> CheckResult:
    """Q07: what an integer file still computes in float, beside its prologue and what was to be kept so."""
    if subject.options.scheme not in ("int8", "int16x8"):
        return CheckResult(code="Q07", passed=True, message=f"scheme {subject.options.scheme} computes in float")
    graph = subject.graph
    spare = Counter(_kept_operators(subject))
    prologue = _prologue(graph)
    floats = [op for op in graph.operators if op.index not in prologue and _in_float(graph, op)]
    faults = []
    for op in floats:
        named = _named(graph, op)
        if spare[named] > 0:
            spare[named] -= 1
        elif op.name != _BARRIER or not subject.options.keep_float:
            faults.append(f"{op.name} ({graph.tensors[op.outputs[0]].name!r})")
    message = "nothing but the ends is float"
    if floats:
        # One kept layer may be many operators, and each change between float and integer costs time.
        message = f"layers kept in float are {len(floats)} operators: {', '.join(op.name for op in floats)}"
    if faults:
        message = f"computed in float: {', '.join(faults[:4])}"
    return CheckResult(code="Q07", passed=not faults, value=float(len(faults)), limit=0.0, message=message)


def _kept_operators(subject: Subject) -> Iterable[_Named]:
    graph = subject.policy.graph
    for name in graph.float_layers(subject.options.keep_float):
        layer = graph.layer(name)
        kernel: tuple[int, ...] = ()
        if layer.kind in WEIGHTED:
            kernel = file_shape(layer, graph.weight_shapes[f"{name}/kernel"])
        for operator in _FLOAT_OPERATORS[layer.kind]:
            yield operator, kernel


def _named(graph: Graph, operator: Operator) -> _Named:
    return operator.name, tuple(graph.tensors[operator.inputs[1]].shape) if operator.name in _WITH_KERNEL else ()


def _in_float(graph: Graph, operator: Operator) -> bool:
    """Whether `operator` computes in float: QUANTIZE and DEQUANTIZE only carry over."""
    if operator.name in ("QUANTIZE", "DEQUANTIZE"):
        return False
    return any(graph.tensors[index].dtype in ("float32", "float16") for index in operator.outputs)


def _prologue(graph: Graph) -> set[int]:
    """Return the operators of the normaliser: float arithmetic on what only such arithmetic has touched."""
    raw = set(graph.inputs)
    found = set()
    for operator in graph.operators:
        sources = [index for index in operator.inputs if index >= 0 and not graph.tensors[index].size]
        if operator.name in _PROLOGUE and len(sources) == 1 and sources[0] in raw:
            found.add(operator.index)
            raw.update(operator.outputs)
    return found


def check_custom(subject: Subject) -> CheckResult:
    """Q08: SELECT_TF_OPS and other custom operators need a delegate that boards do not have."""
    custom = sorted({operator.name for operator in subject.graph.operators if _is_custom(operator.name)})
    message = f"needs TensorFlow's own kernels or a plugin: {', '.join(custom)}" if custom else "builtin operators only"
    return CheckResult(code="Q08", passed=not custom, value=float(len(custom)), limit=0.0, message=message)


def _is_custom(name: str) -> bool:
    # The reader gives custom operators their own name in lower case, builtin ones in upper case.
    return name != name.upper() or name.startswith("operator-")


def check_loads(data: bytes, *, target: Runtime) -> CheckResult:
    """Q12: read, lint, load and self-test the complete file as a device does.

    Args:
        data: the complete file.
        target: the runtime that it is for. Where another one is installed here, the entry says that the file was not
            run in its own: of that, Q06 alone has spoken.
    """
    try:
        policy = Policy.load(read_policy(data))
    except QuarlError as error:
        return CheckResult(code="Q12", passed=False, message=f"a device refuses the file: {error.message}")
    message = f"self-tested in {policy.runtime_name}"
    ran = is_runtime(policy.runtime_name, target)
    if not ran:
        message += f"; not run in {runtime_title(target)}, which is not what is installed here: see Q06"
    return CheckResult(code="Q12", passed=True, message=message, detail={"run_in_target": ran})
