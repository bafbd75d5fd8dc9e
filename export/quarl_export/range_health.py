"""How well the ranges of a network in training fit what flows through it: logged, and a gate for pushes.

A range that training has not set yet, that is far wider than its values (bits that nothing uses), or that clips many of
them makes an int8 file that acts unlike its network. The measure runs a few recent observations through the float
weights in numpy: well under a millisecond for small networks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_export.ir.layers import Layer
from quarl_export.ir.reference import run_layer
from quarl_export.networks import Convolution
from quarl_export.quantizers import MIN_ACTIVATION_RANGE
from quarl_export.snapshot import PolicySnapshot

MAX_BITS_LOST = 3.0
# Ranges are float32, in which the narrowest one is a little wider than it is in Python.
_STILL = MIN_ACTIVATION_RANGE * (1 + 1e-6)
MAX_CLIPPED_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class RangeHealth:
    """Fit of all ranges of one snapshot; the head's is set from recent outputs at every push and is not judged.

    Attributes:
        bits_lost: most of the 8 bits that any site leaves unused.
        clipped_share: largest share of values that any site clips.
        faults: what is wrong, in words; empty where nothing is.
    """

    bits_lost: float
    clipped_share: float
    faults: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether a file of this snapshot can be trusted."""
        return not self.faults


def range_health(
    snapshot: PolicySnapshot, observations: NDArray[Any], *, convolutions: tuple[Convolution, ...] = ()
) -> RangeHealth:
    """Judge the ranges of `snapshot`.

    Args:
        snapshot: a network in training.
        observations: ``[rows, *input_shape]``, recent, as the environment gives them, stacked.
        convolutions: of the network.
    """
    lost, clipped, faults = 0.0, 0.0, []
    for site, values in enumerate(_site_values(snapshot, observations, convolutions)):
        low, high = snapshot.ranges[site].tolist()
        name = _site_name(site, len(convolutions))
        if snapshot.range_updates[site] == 0:
            faults.append(f"the range of {name} was never set")
            continue
        # Half a step outside still rounds to the last one.
        slack = (high - low) / 510.0
        share = float(((values < low - slack) | (values > high + slack)).mean())
        # What does not move has the narrowest range there is, so no bits to lose; a layer that died uses nothing, which
        # is for other measures to find.
        bits = bits_lost(low, high, values) if high - low > _STILL and values.any() else 0.0
        lost, clipped = max(lost, bits), max(clipped, share)
        if share > MAX_CLIPPED_SHARE:
            faults.append(f"the range of {name} clips {share:.0%} of its values")
        if bits > MAX_BITS_LOST:
            faults.append(f"the range of {name} leaves {bits:.1f} of 8 bits unused")
    return RangeHealth(bits_lost=lost, clipped_share=clipped, faults=tuple(faults))


def _site_name(site: int, convolutions: int) -> str:
    if site == 0:
        return "the input"
    return f"convolution {site}" if site <= convolutions else f"hidden layer {site - convolutions}"


def _site_values(
    snapshot: PolicySnapshot, observations: NDArray[Any], convolutions: tuple[Convolution, ...]
) -> list[NDArray[Any]]:
    """Return what flows through every site: the normalised input, then the output of each layer before the head."""
    values = observations
    if snapshot.offset is not None and snapshot.scale is not None:
        values = (values - snapshot.offset) * snapshot.scale
    sites = [values]
    for index, (kernel, bias) in enumerate(zip(snapshot.kernels[:-1], snapshot.biases[:-1], strict=True)):
        if index < len(convolutions):
            stride = convolutions[index][2]
            layer = Layer(name="", kind="conv2d", inputs=("",), settings={"strides": (stride, stride)})
            values = np.maximum(run_layer(layer, [values], [kernel, bias]), np.float32(0))
        else:
            values = np.maximum(values.reshape(len(values), -1) @ kernel + bias, np.float32(0))
        sites.append(values)
    return sites


def bits_lost(low: float, high: float, values: NDArray[Any]) -> float:
    """Return how many of 8 bits a range leaves unused: a wider one than the values need, never a narrower one."""
    used = max(float(values.max()), 0.0) - min(float(values.min()), 0.0)
    return max(0.0, math.log2((high - low) / used)) if used > 0.0 else 8.0
