"""Environments by id: find, make, look at their spaces, and step them fast."""

from quarl_device import catch
from quarl_device.environments.ids import bare_name, check_registered, first_line, names_module
from quarl_device.environments.making import EnvSpec, make_single, missing_part
from quarl_device.environments.spaces import (
    check_matches,
    check_unchanged,
    flattened,
    is_one_vector,
    show_action,
    spaces_to_specs,
)
from quarl_device.environments.vectors import VectorAdapter, VectorStep, make_vector

catch.register()

__all__ = [
    "EnvSpec",
    "VectorAdapter",
    "VectorStep",
    "bare_name",
    "check_matches",
    "check_registered",
    "check_unchanged",
    "first_line",
    "flattened",
    "is_one_vector",
    "make_single",
    "make_vector",
    "missing_part",
    "names_module",
    "show_action",
    "spaces_to_specs",
]
