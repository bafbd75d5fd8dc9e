"""Takes the common value out of Q values: the greedy action stays, and the int8 steps go to what tells actions apart.

Q values near 100 in int8 have steps of about 0.4, coarser than many gaps between actions. Subtracting their mean over
actions changes no argmax; the outputs are then advantages, not returns.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from quarl_device.errors import UsageError
from quarl_export.ir import ImportedPolicy


def centered_q(policy: ImportedPolicy) -> ImportedPolicy:
    """Return `policy` with the mean over actions taken out of its head's weights; its range there is forgotten.

    Raises:
        UsageError: the head is not of Q values, or no dense layer gives them.
    """
    head = policy.contract.head
    if head.kind != "q_values":
        raise UsageError(f"--center-q is for q_values heads; the policy has a {head.kind} head")
    name = policy.graph.outputs["q_values"]
    layer = next((layer for layer in policy.graph.layers if layer.name == name), None)
    if layer is None or layer.kind != "dense" or policy.graph.consumers(name):
        kind = "an input" if layer is None else layer.kind
        raise UsageError(f"--center-q needs a dense layer as the last one, found {name!r} ({kind})")
    kernel = policy.weights[f"{name}/kernel"].astype(np.float64)
    weights = {**policy.weights, f"{name}/kernel": (kernel - kernel.mean(axis=1, keepdims=True)).astype(np.float32)}
    if layer.use_bias:
        bias = policy.weights[f"{name}/bias"].astype(np.float64)
        weights[f"{name}/bias"] = (bias - bias.mean()).astype(np.float32)
    ranges = {site: limits for site, limits in policy.ranges.items() if site != name}
    return dataclasses.replace(policy, weights=weights, ranges=ranges)
