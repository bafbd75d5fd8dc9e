"""An oracle beside Q09's: what the fake-quant Keras network of a run computes, apart from our own numpy reference."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from quarl_export.arithmetic import snap_bias
from quarl_export.kernels import layer_scales
from quarl_export.networks import NetworkSpec
from quarl_export.qat import QatPolicy
from quarl_export.qat_graph import layer_names, snapshot_values, spec_plan
from quarl_export.snapshot import PolicySnapshot, for_export

Float32 = NDArray[np.float32]


def twin_outputs(spec: NetworkSpec, snapshot: PolicySnapshot, observations: Float32) -> Float32:
    """Return what the fake-quant Keras network makes of `observations`, with its biases on the file's int32 grid.

    Bias rounding is the one thing that fake quantization leaves out; without it the network and a right file agree
    in every step of the output, and any difference is a fault.

    Args:
        spec: the network.
        snapshot: as learned; centred here if the spec says so.
        observations: float32 ``[batch, inputs]``.

    Returns:
        float32 ``[batch, actions]``.
    """
    policy = QatPolicy(spec.in_file, normalize=snapshot.normalized)
    policy.restore(with_snapped_biases(spec, for_export(spec, snapshot)))
    outputs: Float32 = policy.export_model(observations, training=False).numpy()
    return outputs


def with_snapped_biases(spec: NetworkSpec, snapshot: PolicySnapshot) -> PolicySnapshot:
    """Return `snapshot` of `spec` with every bias rounded as the file's integer bias is; one in float stays.

    Raises:
        PatchError: a range is degenerate, or a bias does not fit.
    """
    plan, values = spec_plan(spec), snapshot_values(spec, snapshot)
    grids = plan.quantizations(plan.effective(values.ranges))
    biases = []
    for name, kernel, bias in zip(layer_names(spec), snapshot.kernels, snapshot.biases, strict=True):
        if name in plan.floats:
            biases.append(bias)
            continue
        layer = plan.graph.layer(name)
        source = grids[str(plan.read_as(layer.inputs[0]))].scale
        scales = layer_scales(layer, kernel, bias, source, options=plan.options)
        biases.append(snap_bias(bias, scales.bias))
    return dataclasses.replace(snapshot, biases=tuple(biases))


def lsb_errors(file_outputs: Float32, network_outputs: Float32, *, lsb: float) -> NDArray[np.int64]:
    """Return the absolute differences in whole LSB."""
    differences = np.abs(file_outputs.astype(np.float64) - network_outputs.astype(np.float64)) / lsb
    return np.rint(differences).astype(np.int64)
