"""Families of environments whose packages are installed separately, and the command that adds each.

A family is told by what is known before anything of it is imported: the namespace of its ids (``dm_control/...``), or
the entry point that gymnasium itself has registered for it.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

_DISTRIBUTION = "quarl-edge-device"


@dataclass(frozen=True, kw_only=True)
class Family:
    """Environments that come with one extra.

    Attributes:
        extra: of quarl-edge-device, and of quarl-edge; "" where none of ours adds it.
        namespace: of its ids, up to the slash; "" where gymnasium has registered them.
        entry: how their entry points begin; "" where the namespace tells.
        registrar: the module whose import registers them; "" where gymnasium has.
        modules: that must be there for that.
        by_hand: the command where it is more than an extra, or none.
    """

    extra: str = ""
    namespace: str = ""
    entry: str = ""
    registrar: str = ""
    modules: tuple[str, ...] = ()
    by_hand: str = ""

    @property
    def command(self) -> str:
        """What a person types to add it."""
        return self.by_hand or f"pip install '{_DISTRIBUTION}[{self.extra}]'"

    def missing(self) -> str:
        """Return the first of its modules that is not installed, "" if none is."""
        return next((name for name in self.modules if importlib.util.find_spec(name) is None), "")


FAMILIES = (
    # Where there is no wheel for the machine, as on 64-bit ARM, it is built, and that takes swig.
    Family(
        extra="box2d",
        entry="gymnasium.envs.box2d",
        by_hand=f"pip install swig && pip install '{_DISTRIBUTION}[box2d]'",
    ),
    Family(extra="mujoco", entry="gymnasium.envs.mujoco"),
    Family(extra="dm-control", modules=("shimmy", "dm_control", "mujoco"), namespace="dm_control", registrar="shimmy"),
    Family(extra="atari", modules=("ale_py", "cv2"), namespace="ALE", registrar="ale_py"),
    Family(entry="gymnasium.envs.phys2d", by_hand="pip install 'gymnasium[jax]'"),
    Family(entry="gymnasium.envs.tabular", by_hand="pip install 'gymnasium[jax]'"),
)


def family_of_id(name: str) -> Family | None:
    """Return the family that an id's namespace names, registered or not.

    Args:
        name: without a module prefix.
    """
    namespace, slash, _ = name.partition("/")
    if not (namespace and slash):
        return None
    return next((family for family in FAMILIES if family.namespace == namespace), None)


def family_of_entry(entry_point: object) -> Family | None:
    """Return the family of a registered entry point."""
    text = str(entry_point)
    return next((family for family in FAMILIES if family.entry and text.startswith(family.entry)), None)
