"""What a machine needs to run programs of another processor, and a kernel that knows how."""

import os
import shutil
import subprocess
from pathlib import Path

BINFMT = Path("/proc/sys/fs/binfmt_misc")
_FLAGS = "FC"
_RULES = Path("/usr/lib/binfmt.d")
# The command, and Debian's package that brings it.
TOOLS = {
    "debootstrap": "debootstrap",
    "systemd-nspawn": "systemd-container",
    "nsenter": "util-linux",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "mosquitto": "mosquitto",
}


class NoBoard(Exception):
    """This machine cannot run an emulated board; the text says what is missing and what brings it."""


def require_emulation(emulator):
    """See to it that programs of another processor run here.

    Args:
        emulator: file name in /usr/lib/binfmt.d, without its end.

    Raises:
        NoBoard: not root, a package is missing, or the kernel does not take the rule.
    """
    if os.geteuid() != 0:
        raise NoBoard("an emulated board needs root: sudo make test-pi")
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    packages = {package for tool, package in TOOLS.items() if shutil.which(tool, path=path) is None}
    rule = _RULES / f"{emulator}.conf"
    if not rule.exists():
        packages.add("qemu-user-static")
    if packages:
        raise NoBoard(f"packages are missing: sudo apt-get install -y {' '.join(sorted(packages))}")
    _mount()
    _register(rule)


def _mount():
    if (BINFMT / "register").exists():
        return
    done = subprocess.run(
        ["mount", "-t", "binfmt_misc", "binfmt_misc", BINFMT], capture_output=True, text=True, check=False, timeout=20
    )
    if done.returncode != 0:
        raise NoBoard(f"the kernel has no binfmt_misc ({done.stderr.strip()}): sudo modprobe binfmt_misc")


def rule_to_register(text):
    """Return a rule of Debian's qemu-user-static with the flags that a whole system needs.

    F keeps the emulator open for every root, C heeds set-user-ID, without which there is no sudo.

    Raises:
        NoBoard: the text holds no rule.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip() and line.lstrip()[0] not in "#;"]
    if len(lines) != 1 or lines[0].count(lines[0][0]) != 7:
        raise NoBoard("qemu-user-static's rule for binfmt_misc is not in a form that is known")
    head, _, flags = lines[0].rpartition(lines[0][0])
    return f"{head}{lines[0][0]}{flags}{''.join(flag for flag in _FLAGS if flag not in flags)}"


def _register(rule):
    entry = BINFMT / rule.stem
    if entry.exists():
        if set(_FLAGS) <= set(_flags(entry.read_text())):
            return
        entry.write_text("-1")
    try:
        (BINFMT / "register").write_text(rule_to_register(rule.read_text()))
    except OSError as error:
        raise NoBoard(f"the kernel refuses the emulator's rule: {error}") from error


def _flags(entry):
    return next((line.partition(":")[2] for line in entry.splitlines() if line.startswith("flags:")), "")
