"""What of a stranger's SavedModel may reach TensorFlow's loader: operators that compute, and one that restores.

The loader runs more than the function that is asked for: initializers of resources, init operators, restore functions.
So every node and every function is checked against a list of operators, reached or not, and the object graph may hold
nothing that has an initializer. The function that writes checkpoints is dropped, never handed over.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from quarl_device.errors import UnsafeSource, UnsupportedModel

_HINT = "convert the acting function to a float .tflite where you trust the file, and import that"
_MEMORY_HINT = (
    "it is one of a recurrent network: a policy file has no memory between calls, so stack frames and train a "
    "feed-forward network"
)
_INIT_SIGNATURE = "__saved_model_init_op"
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_OBJECTS = frozenset({"user_object", "variable", "function", "bare_concrete_function", "constant", "captured_tensor"})
_OWN_CONSTANT = "tf.TrackableConstant"
_INITIALIZERS = frozenset({"_initialize", "_create_resource", "_destroy_resource", "initializer", "_initializer"})

_PLUMBING = frozenset({
    "Assert", "AssignVariableOp", "Const", "DisableCopyOnRead", "EnsureShape", "Identity", "IdentityN", "NoOp",
    "PartitionedCall", "Placeholder", "PlaceholderWithDefault", "PreventGradient", "ReadVariableOp",
    "StatefulPartitionedCall", "StopGradient", "VarHandleOp", "VarIsInitializedOp", "VariableShape",
})  # fmt: skip
_CONTROL = frozenset({"If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase", "LoopCond"})
_ARITHMETIC = frozenset({
    "Abs", "Add", "AddN", "AddV2", "AssignAddVariableOp", "AssignSubVariableOp", "Ceil", "ClipByValue", "Cos",
    "Cumsum", "Div", "DivNoNan", "Erf", "Exp", "Expm1", "Floor", "FloorDiv", "FloorMod", "IsFinite", "IsInf", "IsNan",
    "LeakyRelu", "Log", "Log1p", "LogSoftmax", "Maximum", "Minimum", "Mod", "Mul", "MulNoNan", "Neg", "Pow",
    "RealDiv", "Reciprocal", "Relu", "Relu6", "Rint", "Round", "Rsqrt", "Selu", "Elu", "Sigmoid", "Sign", "Sin",
    "Softmax", "Softplus", "Softsign", "Sqrt", "Square", "SquaredDifference", "Sub", "Tan", "Tanh", "TruncateDiv",
    "TruncateMod", "Xdivy", "Xlogy", "Atan", "Atan2", "Acos", "Asin", "Cosh", "Sinh", "Erfc", "Lgamma",
})  # fmt: skip
_LAYERS = frozenset({
    "AvgPool", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "BiasAdd", "BiasAddV1", "Conv1D", "Conv2D",
    "Conv2DBackpropInput", "DepthwiseConv2dNative", "Einsum", "FusedBatchNorm", "FusedBatchNormV2",
    "FusedBatchNormV3", "L2Loss", "MatMul", "MaxPool", "MaxPoolV2", "ResizeBilinear", "ResizeNearestNeighbor",
    "_FusedMatMul", "_FusedConv2D",
})  # fmt: skip
_COMPARISONS = frozenset({
    "All", "Any", "ApproximateEqual", "Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd",
    "LogicalNot", "LogicalOr", "NotEqual", "Select", "SelectV2", "Where",
})  # fmt: skip
_REDUCTIONS = frozenset({
    "ArgMax", "ArgMin", "Max", "Mean", "Min", "Prod", "Sum", "TopK", "TopKV2", "UnsortedSegmentSum", "SegmentSum",
    "SegmentMean",
})  # fmt: skip
_SHAPES = frozenset({
    "BroadcastArgs", "BroadcastTo", "Cast", "Concat", "ConcatV2", "DepthToSpace", "Diag", "DiagPart", "ExpandDims",
    "Fill", "Gather", "GatherNd", "GatherV2", "LinSpace", "MatrixDiag", "MatrixDiagPart", "MatrixDiagPartV3",
    "MatrixDiagV3", "MatrixBandPart", "MirrorPad", "OneHot", "OnesLike", "Pack", "Pad", "PadV2", "Range", "Rank",
    "Reshape", "ResourceGather", "ReverseV2", "ScatterNd", "Shape", "ShapeN", "Size", "Slice", "SpaceToDepth",
    "Split", "SplitV", "Squeeze", "StridedSlice", "TensorScatterUpdate", "Tile", "Transpose", "Unpack", "ZerosLike",
    "Bitcast", "InvertPermutation", "BroadcastGradientArgs", "Roll",
})  # fmt: skip
_CHANCE = frozenset({
    "Multinomial", "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "StatelessMultinomial",
    "StatelessRandomGetAlg", "StatelessRandomGetKeyCounter", "StatelessRandomNormal", "StatelessRandomNormalV2",
    "StatelessRandomUniform", "StatelessRandomUniformInt", "StatelessRandomUniformV2", "TruncatedNormal",
})  # fmt: skip
ALLOWED = _PLUMBING | _CONTROL | _ARITHMETIC | _LAYERS | _COMPARISONS | _REDUCTIONS | _SHAPES | _CHANCE
"""Operators that compute from their inputs, draw numbers or read and set the model's own variables."""

_RESTORING = frozenset({"AssignVariableOp", "Const", "Identity", "IdentityN", "NoOp", "Reshape", "RestoreV2"})


def check_saved_graph(graph: Any, *, what: str) -> None:
    """Refuse a graph that could do anything but compute, and take out of it what is not needed for that.

    Afterwards the graph has no function that writes checkpoints, no collections and no init operator.

    Args:
        graph: the meta graph of a SavedModel; it is changed.
        what: names the file in errors.

    Raises:
        UnsafeSource: an operator, object, asset or init operator that is not allowed.
        UnsupportedModel: of TensorFlow 1: it has no object graph.
    """
    if not graph.HasField("object_graph_def") or not graph.object_graph_def.nodes:
        raise UnsupportedModel(f"{what} was saved by TensorFlow 1, or without its objects", hint=_HINT)
    if graph.asset_file_def:
        raise _unsafe(what, "has assets, files that its operators read")
    _check_objects(graph.object_graph_def, what)
    _check_init(graph, what)
    _drop_saving(graph)
    library = {function.signature.name for function in graph.graph_def.library.function}
    restoring = _check_restoring(graph, what)
    _check_operators(graph.graph_def.node, library, what)
    for function in graph.graph_def.library.function:
        if function.signature.name != restoring:
            _check_operators(function.node_def, library, what)


def _unsafe(what: str, found: str) -> UnsafeSource:
    return UnsafeSource(f"{what} {found}", hint=_HINT)


def _check_objects(objects: Any, what: str) -> None:
    for node in objects.nodes:
        kind = node.WhichOneof("kind") or "nothing"
        if kind not in _OBJECTS:
            raise _unsafe(what, f"holds an object of kind {kind}, which the loader initializes or which reads files")
        # Of TensorFlow itself: a constant that Keras 3 exports, read from its node.
        own = kind == "constant" and node.registered_name == _OWN_CONSTANT
        if node.saveable_objects or (node.registered_name and not own) or node.registered_saver:
            raise _unsafe(what, "holds an object that restores itself by functions of its own")
        names = _INITIALIZERS & {child.local_name for child in node.children}
        if names:
            raise _unsafe(what, f"holds an object with {min(names)}, which the loader would run")


def _check_init(graph: Any, what: str) -> None:
    """Let pass only what TensorFlow 2 itself writes, an operator that does nothing; even that one is not run."""
    nodes = {node.name: node for node in graph.graph_def.node}
    names = [name for key in _INIT_COLLECTIONS for name in graph.collection_def[key].node_list.value]
    if _INIT_SIGNATURE in graph.signature_def:
        names += [info.name.split(":")[0] for info in graph.signature_def[_INIT_SIGNATURE].outputs.values()]
        del graph.signature_def[_INIT_SIGNATURE]
    for name in names:
        if name not in nodes or nodes[name].op != "NoOp" or nodes[name].input:
            raise _unsafe(what, f"has the init operator {name[:80]!r}, which the loader would run")
    graph.collection_def.clear()


def _drop_saving(graph: Any) -> None:
    """Take out the node that saves and the function that it calls; what else calls that function is refused."""
    name = graph.saver_def.save_tensor_name.split(":")[0]
    if not name or name == graph.saver_def.restore_op_name:
        return
    dropped = {node.attr["f"].func.name for node in graph.graph_def.node if node.name == name and "f" in node.attr}
    _keep(graph.graph_def.node, lambda node: node.name != name)
    _keep(graph.graph_def.library.function, lambda function: function.signature.name not in dropped)


def _keep(items: Any, accept: Any) -> None:
    for place in reversed([number for number, item in enumerate(items) if not accept(item)]):
        del items[place]


def _check_restoring(graph: Any, what: str) -> str:
    """Return the name of the function that restores variables, "" for none; it reads the file that it is given."""
    node = next((node for node in graph.graph_def.node if node.name == graph.saver_def.restore_op_name), None)
    if node is None:
        return ""
    name = str(node.attr["f"].func.name)
    function = next((each for each in graph.graph_def.library.function if each.signature.name == name), None)
    if function is None:
        raise _unsafe(what, f"restores its variables by {node.op[:80]}, not by a function of TensorFlow's saver")
    _check_operators(function.node_def, (), what, allowed=_RESTORING)
    arguments = {argument.name for argument in function.signature.input_arg}
    for each in function.node_def:
        if each.op == "RestoreV2" and each.input[0] not in arguments:
            raise _unsafe(what, "restores variables from another file than its own")
    return name


def _check_operators(
    nodes: Iterable[Any], library: Container[str], what: str, *, allowed: frozenset[str] = ALLOWED
) -> None:
    for node in nodes:
        if node.op not in allowed:
            raise UnsafeSource(
                f"{what} has the operator {node.op[:80]}, which is none of those that policies compute with",
                hint=_MEMORY_HINT if node.op.startswith("TensorList") else _HINT,
            )
        for value in node.attr.values():
            for function in (value.func, *value.list.func):
                # A name that is no function of the file could be an operator's.
                if function.name and function.name not in library:
                    raise _unsafe(what, f"calls {function.name[:80]!r}, which is no function that may be loaded")
