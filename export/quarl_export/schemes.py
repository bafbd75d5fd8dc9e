"""One policy in, the bytes of one file out, by quantization scheme.

| scheme | weights | activations | ends |
|---|---|---|---|
| float32 | float32 | float32 | float32 |
| float16 | float16, widened when the file is loaded | float32 | float32 |
| dynamic | int8 where it pays (the converter skips small kernels) | float32 | float32 |
| int8 | int8 | int8, by explicit ranges | float32, int8 or uint8 |
| int16x8 | int8 | int16, by the extremes of calibration samples | float32 |

With float32 ends the normaliser is a float prologue inside the file; with integer ends the device does it in numpy.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import ConversionError, UsageError
from quarl_export.converter import ConverterSettings, convert_with
from quarl_export.float_models import build_float, input_name
from quarl_export.graph import repack
from quarl_export.ir import ImportedPolicy, PolicyGraph
from quarl_export.ir.layers import FLOAT_ONLY, WEIGHTED
from quarl_export.ir.reference import normalize
from quarl_export.prologue import prepend_prologue
from quarl_export.quantized import convert_quantized, end_names
from quarl_export.range_plan import QuantizationOptions
from quarl_export.scheme_options import IO_TYPES, SCHEMES, Scheme, SchemeOptions

__all__ = [
    "IO_TYPES",
    "SCHEMES",
    "Ranges",
    "Samples",
    "Scheme",
    "SchemeOptions",
    "check_layers",
    "convert",
    "head_layers",
    "quantization",
    "resolved",
]

_SHOWN_LAYERS = 24
Ranges = Mapping[str, tuple[float, float]]
Samples = Mapping[str, NDArray[Any]]

_INT16_MARGIN = np.float32(1.5)


def resolved(options: SchemeOptions, policy: ImportedPolicy) -> SchemeOptions:
    """Return `options` with the layers of `policy` that `head_output` means among `keep_float` or `wide_outputs`.

    "float32" keeps what gives the outputs: a dense layer, the layers that a dueling head adds up, a tanh behind them,
    and its dense layers. "int16" takes dense layers alone.

    Raises:
        UsageError: the head has no dense layer of its own.
    """
    if options.head_output == "int8":
        return options
    if options.head_output == "int16":
        return dataclasses.replace(options, wide_outputs=frozenset(policy.graph.outputs.values()))
    return dataclasses.replace(options, keep_float=options.keep_float | head_layers(policy.graph))


def head_layers(graph: PolicyGraph) -> frozenset[str]:
    """Return the layers from the last dense ones to the outputs of `graph`.

    Raises:
        UsageError: something else than sums, means and a tanh stands between them.
    """
    found: set[str] = set()
    waiting = list(graph.outputs.values())
    layers = {layer.name: layer for layer in graph.layers}
    while waiting:
        name = waiting.pop()
        kind = layers[name].kind if name in layers else "an input"
        if kind not in ("dense", "add", "subtract", "mean", "tanh"):
            raise UsageError(f"the head ends in {name!r} ({kind}): expected dense layers, sums of them, or their tanh")
        found.add(name)
        if kind != "dense":
            waiting += layers[name].inputs
    return frozenset(found)


def check_layers(policy: ImportedPolicy, options: SchemeOptions) -> None:
    """Refuse layers that the scheme cannot hold, and `keep_float` names that are none.

    Raises:
        UsageError: a name in `keep_float` that is no layer, or the scheme quantizes nothing that it could keep.
        ConversionError: a layer without an integer kernel that `keep_float` does not name.
    """
    layers = {layer.name: layer for layer in policy.graph.layers}
    unknown = sorted(options.keep_float - set(layers))
    if unknown:
        more = f" and {len(layers) - _SHOWN_LAYERS} more" if len(layers) > _SHOWN_LAYERS else ""
        raise UsageError(
            f"--keep-float {unknown[0][:80]!r} is no layer",
            hint=f"layers: {', '.join([*layers][:_SHOWN_LAYERS])}{more}; quarl-edge inspect SOURCE lists them",
        )
    if options.scheme == "int16x8" and any(layers[name].kind not in FLOAT_ONLY for name in options.keep_float):
        raise UsageError(
            "--keep-float means nothing with scheme int16x8: it keeps no layer in float that it can quantize",
            hint="leave it out, or use --scheme int8",
        )
    if options.scheme not in ("int8", "int16x8"):
        if options.keep_float:
            raise UsageError(f"--keep-float means nothing with scheme {options.scheme}: it has no integer activations")
        return
    weighted = {layer.name for layer in layers.values() if layer.kind in WEIGHTED}
    if options.keep_float and weighted <= options.keep_float:
        raise UsageError("all layers with weights are kept in float: nothing is quantized", hint="--scheme float32")
    needed = [layer for layer in layers.values() if layer.kind in FLOAT_ONLY and layer.name not in options.keep_float]
    if needed:
        words = " ".join(f"--keep-float {shlex.quote(layer.name)}" for layer in needed)
        raise ConversionError(
            f"layer {needed[0].name!r} is {needed[0].kind}, which has no {options.scheme} kernel",
            hint=f"keep in float what has none: {words}; or train with relu",
        )


def convert(
    policy: ImportedPolicy, options: SchemeOptions, *, ranges: Ranges | None = None, samples: Samples | None = None
) -> bytes:
    """Return the bare file of `policy`: ends named by key and role, no contract in it yet.

    Args:
        policy: what to convert; its contract's normaliser is applied.
        options: how.
        ranges: of every site of the graph, needed by int8 and only there.
        samples: raw observations per key ``[count, *shape]``, needed by int16x8 and only there.

    Raises:
        UsageError: ranges or samples are missing, or `options` do not fit the policy.
        ConversionError: a layer that the scheme cannot hold, or TensorFlow's converter failed.
    """
    options = resolved(options, policy)
    check_layers(policy, options)
    if options.scheme == "int8":
        if ranges is None:
            raise UsageError("int8 needs a range for every site", hint="calibrate first")
        return convert_quantized(policy, ranges, options=quantization(options))
    if options.scheme == "int16x8":
        return _int16x8(policy, options, samples)
    settings = ConverterSettings(
        weights="int8" if options.scheme == "dynamic" else options.scheme, per_channel_dense=options.per_channel
    )
    model = build_float(policy.graph, policy.weights, normalizer=policy.contract.normalizer)
    return _named(convert_with(model, settings), policy)


def _int16x8(policy: ImportedPolicy, options: SchemeOptions, samples: Samples | None) -> bytes:
    if samples is None:
        raise UsageError("int16x8 takes its ranges from observations", hint="give some with --calibrate")
    rows = normalize(policy, samples)
    # The converter knows no margin, and a value beyond the extremes that it saw is clipped. Larger copies of the inputs
    # open every range by about half a bit of 16.
    rows = {key: np.concatenate([values, _INT16_MARGIN * values]) for key, values in rows.items()}

    def representative() -> Iterator[dict[str, NDArray[np.float32]]]:
        for row in range(len(next(iter(rows.values())))):
            yield {input_name(n): rows[item.key][row : row + 1] for n, item in enumerate(policy.graph.inputs)}

    settings = ConverterSettings(
        activations_int16=True,
        float_fallback=bool(options.keep_float),
        per_channel_dense=options.per_channel,
        representative=representative,
    )
    model = convert_with(build_float(policy.graph, policy.weights), settings)
    return prepend_prologue(_named(model, policy), policy.contract.normalizer)


def quantization(options: SchemeOptions) -> QuantizationOptions:
    """Return how the int8 file of `options` is quantized."""
    return QuantizationOptions(
        io=options.io,
        per_channel=options.per_channel,
        keep_float=options.keep_float,
        weight_bits=options.weight_bits,
        activation_bits=options.activation_bits,
        wide_outputs=options.wide_outputs,
    )


def _named(model: bytes, policy: ImportedPolicy) -> bytes:
    return repack(model, names=end_names(model, policy.graph))
