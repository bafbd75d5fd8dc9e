"""Makes the file that policies of one network are written into."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from quarl_device.errors import PatchError
from quarl_export.compare import difference
from quarl_export.graph import repack, view
from quarl_export.kernels import is_convertible
from quarl_export.patch.places import find_places
from quarl_export.patch.values import fingerprint, probe
from quarl_export.patch.writer import Writer
from quarl_export.quantized import convert_narrow, convert_planned, end_names
from quarl_export.range_plan import RangePlan
from quarl_export.wide import widened

_PROBE_SEED = 7


def build_writer(plan: RangePlan, normalizer_shapes: Mapping[str, tuple[int, ...]], *, verify: bool) -> Writer:
    """Convert a fingerprint, find its values, and hold a patch of other values against their conversion.

    Raises:
        ConversionError: TensorFlow could not convert the network.
        PatchError: the converted file is not explained by the policy, or a patched file differs from a converted.
    """
    whole = plan
    if not is_convertible(plan):
        whole = dataclasses.replace(plan, options=dataclasses.replace(plan.options, weight_bits=8))
    values = fingerprint(whole, normalizer_shapes)
    model = convert_narrow(whole, values)
    graph = view(model)
    places = find_places(graph, whole, values)
    names = {tensor.index: f"tensor_{tensor.index}" for tensor in graph.tensors}
    names.update(places.names(graph))
    names.update(end_names(model, plan.graph))
    model = repack(model, names=names)
    if plan.options.wide_outputs:
        # Appends tensors and moves none.
        model = widened(model)
    if verify:
        writer = Writer(model, plan=whole, places=places, normalizer_shapes=normalizer_shapes)
        values = probe(whole, normalizer_shapes, seed=_PROBE_SEED)
        found = difference(writer.write(values), convert_planned(whole, values))
        if found:
            raise PatchError(f"a patched file differs from a converted one: {found}")
    return Writer(model, plan=plan, places=places, normalizer_shapes=normalizer_shapes)
