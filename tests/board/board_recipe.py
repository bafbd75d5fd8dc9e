"""What an emulated board is made of, as plain data; its digest names the root file system in the cache."""

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

# A 64-bit Raspberry Pi OS has all of these, and more that only takes time here. Nothing of ours is in it: that is
# installed by what is tested.
_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "iproute2", "procps",
    "python3", "python3-venv",
)  # fmt: skip

# Run inside after the second stage. A person's account as on Raspberry Pi OS: sudo without a password.
_FINISH = """
set -e
useradd --create-home --shell /bin/bash pi
echo 'pi ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/010_pi-nopasswd
chmod 0440 /etc/sudoers.d/010_pi-nopasswd
echo quarl-board > /etc/hostname
echo '127.0.0.1 localhost quarl-board' > /etc/hosts
# Neither keys nor an id that two boards would share.
rm -f /etc/ssh/ssh_host_* /etc/machine-id /var/lib/dbus/machine-id
touch /etc/machine-id
# What an emulated machine cannot do and would only wait for.
systemctl mask systemd-networkd.service systemd-networkd.socket systemd-resolved.service systemd-timesyncd.service \
  e2scrub_reap.service console-getty.service >/dev/null 2>&1
systemctl disable apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer \
  >/dev/null 2>&1 || true
# Emulated, systemd has no credentials; these would fail for want of some that nobody set.
for unit in systemd-sysusers systemd-tmpfiles-setup systemd-tmpfiles-setup-dev; do
  mkdir -p /etc/systemd/system/$unit.service.d
  printf '[Service]\\nLoadCredential=\\nSetCredential=\\n' > /etc/systemd/system/$unit.service.d/emulated.conf
done
rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/*
"""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A Debian for another processor.

    Attributes:
        architecture: Debian's name of it.
        processor: what `uname -m` says there.
        emulator: of which file in /usr/lib/binfmt.d, without its end.
        suite: release of Debian.
    """

    architecture: str
    processor: str
    emulator: str
    suite: str = "bookworm"
    packages: tuple[str, ...] = _PACKAGES
    finish: str = _FINISH

    @property
    def digest(self) -> str:
        """Return 12 hex digits that change with anything that the tree is made of."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]


RECIPES = {
    "arm64": Recipe(architecture="arm64", processor="aarch64", emulator="qemu-aarch64"),
    # numpy and cffi have no armv7l wheel outside of Raspberry Pi's own index: Debian's stand in.
    "armhf": Recipe(
        architecture="armhf", processor="armv7l", emulator="qemu-arm",
        packages=(*_PACKAGES, "python3-numpy", "python3-cffi"),
    ),
}  # fmt: skip


def cache_folder() -> Path:
    """Return where root file systems and wheels outlive a run."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "quarl-edge" / "board"


def mirror(texts: list[str]) -> str | None:
    """Return the address that apt takes Debian's main archive from.

    Args:
        texts: what is in /etc/apt/sources.list and /etc/apt/sources.list.d, in both of apt's forms.
    """
    for text in texts:
        for stanza in re.split(r"\n\s*\n", text):
            lines = [line for line in stanza.splitlines() if not line.lstrip().startswith("#")]
            fields = {key.strip().lower(): value.split() for key, _, value in (line.partition(":") for line in lines)}
            suites = [suite for suite in fields.get("suites", []) if _is_release(suite)]
            if "deb" in fields.get("types", []) and suites and "main" in fields.get("components", []):
                return fields["uris"][0].rstrip("/")
            for line in lines:
                words = re.sub(r"\[[^]]*\]", " ", line).split()
                if len(words) > 3 and words[0] == "deb" and _is_release(words[2]) and "main" in words[3:]:
                    return words[1].rstrip("/")
    return None


def _is_release(suite: str) -> bool:
    """Tell a release from its updates; another vendor's archive has names of its own."""
    return suite in {"bookworm", "trixie", "forky", "stable", "testing", "sid"}


def machine_mirror() -> str | None:
    """Return `mirror` of this machine."""
    apt = Path("/etc/apt")
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    return mirror([file.read_text() for file in files if file.suffix in {".list", ".sources"} and file.is_file()])
