"""The files of systemd and udev, as text."""

from __future__ import annotations

from quarl_device.install import layout
from quarl_device.supervise import rules

MIN_START_S = 180
_TEMPLATE = """\
# Written by `quarl-device install`, which replaces it. Changes of your own: systemctl edit quarl-device
[Unit]
Description=quarl-edge agent
After=network.target time-set.target
StartLimitIntervalSec={limit_s}
StartLimitBurst={limit_starts}

[Service]
Type=notify
NotifyAccess=main
# An installation that was cut off between two files is undone before anything starts on half of it.
ExecStartPre=-+/bin/sh -c 'test ! -d {switch} || exec {current}/bin/quarl-device install --recover'
ExecStart={current}/bin/quarl-device run --config {config}
Restart=always
RestartSec={restart_s}
RestartPreventExitStatus={not_restarted}
WatchdogSec={watchdog_s}
TimeoutStartSec={start_s}
TimeoutStopSec={stop_s}
User={user}
Group={user}
UMask=0027
StateDirectory=quarl-edge
StateDirectoryMode=0750
WorkingDirectory={state}
LimitCORE=0
{memory}
# What it may not do. A robot's own devices: systemctl edit quarl-device (docs/guides/install.md).
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
{devices}
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
LockPersonality=yes
KeyringMode=private
RemoveIPC=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""
_NO_DEVICES = "PrivateDevices=yes"
_CORAL_DEVICES = "DevicePolicy=closed\nDeviceAllow=char-usb_device rw\nDeviceAllow=char-apex rw"
_UDEV_RULE = """\
# Written by `quarl-device install --coral`. The USB accelerator as it comes up, and with its program; PCIe and M.2.
SUBSYSTEM=="usb", ATTR{idVendor}=="1a6e", ATTR{idProduct}=="089a", MODE="0664", GROUP="plugdev"
SUBSYSTEM=="usb", ATTR{idVendor}=="18d1", ATTR{idProduct}=="9302", MODE="0664", GROUP="plugdev"
SUBSYSTEM=="apex", MODE="0660", GROUP="apex"
"""


def unit_text(*, coral: bool, memory_mib: int, start_timeout_s: int) -> str:
    """Return the unit.

    Args:
        coral: an Edge TPU can be reached, and no other device.
        memory_mib: limit in MiB, 0 for none.
        start_timeout_s: that the agent has until it says that it is ready, in seconds, but never under `MIN_START_S`.
    """
    return _TEMPLATE.format(
        limit_s=rules.LIMIT_S,
        limit_starts=rules.LIMIT_STARTS,
        restart_s=rules.RESTART_S,
        not_restarted=" ".join(map(str, rules.NOT_RESTARTED)),
        watchdog_s=rules.WATCHDOG_S,
        stop_s=rules.STOP_S,
        start_s=max(MIN_START_S, start_timeout_s),
        switch=layout.SWITCH,
        current=layout.CURRENT,
        config=layout.DEVICE_TOML,
        state=layout.STATE,
        user=layout.USER,
        memory=f"MemoryMax={memory_mib}M\n" if memory_mib else "",
        devices=_CORAL_DEVICES if coral else _NO_DEVICES,
    )


def udev_text() -> str:
    """Return the rule that lets the agent's groups reach an Edge TPU."""
    return _UDEV_RULE
