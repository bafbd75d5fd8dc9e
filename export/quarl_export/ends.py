"""Names the ends of a converted file: inputs after observation keys, outputs after roles, found by signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ai_edge_litert import schema_py_generated as schema

from quarl_device.errors import ConversionError
from quarl_export.graph import repack


def name_ends(model: bytes, *, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> bytes:
    """Return `model` with its input tensors named after observation keys and its outputs after roles.

    The converter orders both as it likes; its signature alone knows which is which.

    Args:
        model: a converted file with one signature.
        inputs: the signature's name of every input to its observation key.
        outputs: the signature's name of every output to its role.

    Raises:
        ConversionError: the signature does not name them, or two ends are one tensor.
    """
    found_inputs, found_outputs = _signature(model)
    names: dict[int, str] = {}
    for what, wanted, found in (("input", inputs, found_inputs), ("output", outputs, found_outputs)):
        for given, name in wanted.items():
            if given not in found:
                raise ConversionError(
                    f"the converted file has {what}s {sorted(found)}, expected {given!r} for {name!r}"
                )
            if found[given] in names:
                raise ConversionError(f"{name!r} and {names[found[given]]!r} are one tensor of the converted file")
            names[found[given]] = name
    return repack(model, names=names)


def _signature(model: bytes) -> tuple[dict[str, int], dict[str, int]]:
    root = schema.Model.GetRootAsModel(model, 0)
    if root.SignatureDefsLength() != 1:
        raise ConversionError(f"the converted file has {root.SignatureDefsLength()} signatures, expected 1")
    signature = root.SignatureDefs(0)
    return (
        _entries(signature.Inputs, signature.InputsLength()),
        _entries(signature.Outputs, signature.OutputsLength()),
    )


def _entries(entry: Any, count: int) -> dict[str, int]:
    return {entry(place).Name().decode(): int(entry(place).TensorIndex()) for place in range(count)}
