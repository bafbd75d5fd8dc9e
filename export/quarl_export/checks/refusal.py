"""Why a runtime refuses a file: it names a node of its own graph, which nobody can look up."""

from __future__ import annotations

from quarl_device.errors import ModelFileError
from quarl_export.int8_reference import Int8Network

# XNNPACK's int8 kernels rescale by less than this: tried, 246 runs and 261 does not.
MAX_RESCALING = 256.0


def explained(error: ModelFileError, network: Int8Network | None) -> ModelFileError:
    """Return `error`, with the layer that no kernel can compute where there is one.

    Args:
        error: what the runtime said.
        network: the int8 network in the file, `None` for other schemes.
    """
    if network is None or not (over := {n: r for n, r in network.rescalings.items() if r >= MAX_RESCALING}):
        return error
    name = max(over, key=over.__getitem__)
    site = network.plan.carrier(network.plan.graph.fused.get(name, name))
    return ModelFileError(
        f"{error.message}: one step of the sums of layer {name!r} is {over[name]:,.0f} steps of the range of {site!r}, "
        f"kernels take less than {MAX_RESCALING:.0f}",
        hint=f"the range is far too narrow for the weights of {name!r}: calibrate with observations that make {site!r} "
        f"move, or keep the layer in float with --keep-float {name}",
    )
