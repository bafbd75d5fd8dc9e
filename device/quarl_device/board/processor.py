"""Which processor this is, and whether it is an emulated one: figures of an emulator are none of a board."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from quarl_device.board.sysfs import read_text

_CPUINFO = Path("/proc/cpuinfo")


def processor_name(machine: str, cpuinfo: str | None) -> str:
    """Return the processor's architecture, with the word "emulated" where another one is underneath.

    Args:
        machine: what the kernel's `uname` says, or what an emulator has it say.
        cpuinfo: what /proc/cpuinfo says, which qemu's user mode passes on from the machine that it runs on. A
            `vendor_id` is only in that of x86.
    """
    x86 = machine in {"x86_64", "i686", "i386"}
    beneath = any(line.startswith("vendor_id") for line in (cpuinfo or "").splitlines())
    return f"{machine} (emulated)" if beneath and not x86 else machine


def read_processor() -> str:
    """Return `processor_name` of this machine."""
    return processor_name(platform.machine(), read_text(_CPUINFO))


def describe_machine() -> str:
    """Return processor, number of CPUs and Python's version, as every measurement names them."""
    return f"{read_processor()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
