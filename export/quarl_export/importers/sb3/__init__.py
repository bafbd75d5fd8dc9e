"""Stable-Baselines3 agents, read without PyTorch and without executing a pickle."""

from quarl_export.importers.sb3.archive import is_sb3
from quarl_export.importers.sb3.importer import read_sb3

__all__ = ["is_sb3", "read_sb3"]
