"""Hatch's build hook: the wheel of quarl-edge carries that of the device package, which `quarl-edge deploy` sends."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilder


class DeviceWheelHook(BuildHookInterface[Any]):
    """Builds `device/` and includes the result as `quarl_edge/wheels/`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it; an editable installation builds from the checkout when it is asked to deploy."""
        if version == "editable":
            return
        self._made = tempfile.TemporaryDirectory(prefix="quarl-device-wheel-")
        for wheel in WheelBuilder(str(Path(self.root) / "device")).build(directory=self._made.name):
            build_data["force_include"][str(wheel)] = f"quarl_edge/wheels/{Path(wheel).name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was built on the way."""
        if version != "editable":
            self._made.cleanup()
