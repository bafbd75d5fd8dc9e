"""SavedModels that Keras did not describe (of TF-Agents, tf.Module, or Keras 3): the one function in them that acts.

Such a directory holds several functions (act, initial state, train step, ...); only the acting one is taken. Before
anything is loaded its graph is read as data: a function that would read or write files or call Python is refused. What
is left goes through TensorFlow's converter, and the float file that comes out is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quarl_device.errors import ConversionError, ModelFileError, UnsafeSource, UnsupportedModel, UsageError
from quarl_device.files import read_capped
from quarl_export.importers.options import ImportOptions
from quarl_export.importers.tflite_float import import_tflite
from quarl_export.ir.policy_graph import ImportedPolicy
from quarl_export.keras2 import tf
from quarl_export.silence import without_tensorflow_noise

_MODEL = "saved_model.pb"
_MAX_MODEL_BYTES = 1 << 28
_PREFERRED = ("action", "serving_default")
_INTERNAL = "__saved_model_init_op"
# Parts of the names of operators that reach outside of the graph.
_REACHING_OUT = (
    "PyFunc", "File", "Save", "Restore", "Checkpoint", "Dataset", "Iterator", "Summary", "Print", "Debug", "Rpc",
    "Send", "Recv", "Library", "Executable", "Tpu", "Collective", "Reader",
)  # fmt: skip
_HARMLESS = frozenset({"ReadVariableOp"})


def read_signature(path: Path, *, options: ImportOptions) -> ImportedPolicy:
    """Return the policy in one signature of a SavedModel.

    Args:
        path: the directory.
        options: `signature` names it; else "action", "serving_default", or the only one.

    Raises:
        ModelFileError: unreadable or damaged.
        UsageError: no such signature, or several and none of the usual names.
        UnsafeSource: the signature reaches outside of its graph.
        ConversionError: TensorFlow cannot convert it.
        QuarlError: see `import_tflite`.
    """
    what = f"SavedModel {path.name}"
    content = read_capped(path / _MODEL, cap_bytes=_MAX_MODEL_BYTES, error=ModelFileError, what=what)
    graph = _meta_graph(content, what)
    name = _choose(sorted(key for key in graph.signature_def if key != _INTERNAL), options.signature, what)
    _check_operators(graph, name, what)
    data = _convert(path, name, what)
    return import_tflite(data, options=options, name=path.name, kind=f"SavedModel signature {name}")


def _meta_graph(content: bytes, what: str) -> Any:
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise ModelFileError(f"{what}: {_MODEL} is damaged: {error}") from error
    if len(model.meta_graphs) != 1:
        raise ModelFileError(f"{what} has {len(model.meta_graphs)} graphs, expected 1")
    return model.meta_graphs[0]


def _choose(names: list[str], wanted: str, what: str) -> str:
    if wanted:
        if wanted not in names:
            raise UsageError(f"{what} has no signature {wanted!r}; it has {names}")
        return wanted
    if not names:
        raise UnsupportedModel(
            f"{what} has no signatures: nothing says which of its functions acts",
            hint="save it with signatures={'action': function}, one observation in, the outputs of the head out",
        )
    usual = [name for name in _PREFERRED if name in names]
    if not usual and len(names) > 1:
        raise UsageError(f"{what} has the signatures {names}: say which one acts")
    return usual[0] if usual else names[0]


def _check_operators(graph: Any, signature: str, what: str) -> None:
    for operator in _reached(graph, signature):
        if operator not in _HARMLESS and any(part in operator for part in _REACHING_OUT):
            raise UnsafeSource(
                f"{what}: the signature {signature!r} has the operator {operator}, which reaches outside of the graph",
                hint="save a function that computes the head from the observation and nothing else",
            )


def _reached(graph: Any, signature: str) -> Iterator[str]:
    """Yield the operators of the signature's outputs, those of the functions that they call included."""
    library = {function.signature.name: function for function in graph.graph_def.library.function}
    nodes = {node.name: node for node in graph.graph_def.node}
    waiting = [info.name.split(":")[0] for info in graph.signature_def[signature].outputs.values()]
    seen: set[str] = set()
    functions: list[str] = []
    while waiting:
        name = waiting.pop()
        if name in seen or name not in nodes:
            continue
        seen.add(name)
        yield nodes[name].op
        functions.extend(_called(nodes[name], library))
        waiting.extend(item.lstrip("^").split(":")[0] for item in nodes[name].input)
    done: set[str] = set()
    while functions:
        name = functions.pop()
        if name in done:
            continue
        done.add(name)
        for node in library[name].node_def:
            yield node.op
            functions.extend(_called(node, library))


def _called(node: Any, library: dict[str, Any]) -> list[str]:
    values = [value for attribute in node.attr.values() for value in (attribute.func, *attribute.list.func)]
    return [name for name in (node.op, *(value.name for value in values)) if name in library]


def _convert(path: Path, signature: str, what: str) -> bytes:
    try:
        with without_tensorflow_noise():
            converter = tf.lite.TFLiteConverter.from_saved_model(str(path), signature_keys=[signature])
            data: bytes = converter.convert()
    # The loader and the converter raise what they like.
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise ConversionError(
            f"{what}: TensorFlow cannot convert the signature {signature!r}: "
            f"{type(error).__name__}: {lines[0][:200] if lines else ''}"
        ) from error
    return data
