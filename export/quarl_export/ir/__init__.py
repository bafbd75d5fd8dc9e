"""A policy network as plain data: what importers make and every exporter reads. Needs numpy alone."""

from quarl_export.ir.layers import Layer
from quarl_export.ir.policy_graph import GraphInput, ImportedPolicy, PolicyGraph
from quarl_export.ir.reference import run_reference

__all__ = ["GraphInput", "ImportedPolicy", "Layer", "PolicyGraph", "run_reference"]
