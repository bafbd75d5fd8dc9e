"""Where an installed agent lies on a board; every path is as seen from the board's own root."""

from __future__ import annotations

HOME = "/opt/quarl-edge"
RELEASES = f"{HOME}/releases"
CURRENT = f"{HOME}/current"
PREVIOUS = f"{HOME}/previous"
SWITCH = f"{HOME}/switch"
"""The copies of what a switch replaces; there as long as it may have to be undone."""
HANDED_POLICY = f"{HOME}/handed.qpol"
"""A policy on its way from a bundle, which the system user cannot read, to the agent."""
RECEIPT = "quarl-release.json"
"""In a release's directory: written last, so that a release without it is not complete."""

CONFIG = "/etc/quarl-edge"
DEVICE_TOML = f"{CONFIG}/device.toml"
CREDENTIALS = f"{CONFIG}/credentials"
PASSWORD = f"{CONFIG}/password"  # a path
LEARNER_KEY = f"{CONFIG}/learner.pub"

STATE = "/var/lib/quarl-edge"
SLOTS = f"{STATE}/deploy"
TRUSTED_KEY = f"{SLOTS}/learner.pub"
"""The learner's key that the agent has kept at its first use."""
SERVICE = "quarl-device.service"
UNIT = f"/etc/systemd/system/{SERVICE}"
DROP_INS = f"{UNIT}.d"
UDEV_RULE = "/etc/udev/rules.d/60-quarl-edge-coral.rules"
LOCK = "/run/quarl-edge-install.lock"

USER = "quarl-edge"
CORAL_GROUPS = ("plugdev", "apex")


def release_path(release: str) -> str:
    """Return the directory of a release."""
    return f"{RELEASES}/{release}"


def link_target(release: str) -> str:
    """Return what `CURRENT` points at, relative to its own directory."""
    return f"releases/{release}"
