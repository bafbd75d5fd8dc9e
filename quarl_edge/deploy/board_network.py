"""Whether a board can fetch packages by itself, and whether it lets a command run as root."""

from __future__ import annotations

import shlex

from quarl_device.errors import BoardRefused
from quarl_edge.deploy.facts import BoardFacts
from quarl_edge.deploy.host import Host
from quarl_edge.deploy.scripts import said_of

_SUDO_TIMEOUT_S = 30.0
_INDEX_TIMEOUT_S = 90.0


async def check_root(host: Host, facts: BoardFacts) -> None:
    """Make sure that commands can be run as root without a password being asked for.

    Raises:
        BoardRefused: they cannot; says what mends it.
        BoardUnreachable: see `Host.run`.
    """
    if facts.uid == 0:
        return
    user = host.name.rpartition("@")[0] or "that user"
    if not facts.sudo:
        raise BoardRefused(
            f"{host.name} has no sudo, and {user} is not root", hint="deploy as root@..., or install sudo"
        )
    ran = await host.run("sudo -n true", timeout_s=_SUDO_TIMEOUT_S)
    if ran.status != 0:
        raise BoardRefused(
            f"sudo on {host.name} wants a password, or denies: {said_of(ran)}",
            hint='there, once: echo "$USER ALL=(ALL) NOPASSWD: ALL" | sudo tee /etc/sudoers.d/quarl-edge; or deploy as '
            "root@...",
        )


async def reaches_index(host: Host, facts: BoardFacts, requirement: str) -> bool:
    """Return whether the board's own pip fetches a package, by its own configuration.

    Args:
        host: the board.
        facts: of it.
        requirement: a small one.

    Raises:
        BoardUnreachable: see `Host.run`.
    """
    if not facts.pip or not facts.ensurepip:
        return False
    # A network that swallows everything holds pip up for as long as it has addresses to try.
    words = [
        "timeout",
        "60",
        "python3",
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "-q",
        "--no-deps",
        "--no-cache-dir",
    ]
    words += ["--retries", "0", "--timeout", "10"]
    command = f'd=$(mktemp -d) || exit 1; {shlex.join(words)} -d "$d" {shlex.quote(requirement)} </dev/null; s=$?; '
    ran = await host.run(f'{command}rm -rf "$d"; exit $s', timeout_s=_INDEX_TIMEOUT_S)
    return ran.status == 0
