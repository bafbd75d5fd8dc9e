"""What a deployment is to do, made ready: all that can be refused before a board is touched has been looked at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from quarl_device.link import BrokerURL
from quarl_device.link.credentials import Credentials
from quarl_device.link.protocol import Link
from quarl_edge.deploy.host import Host
from quarl_edge.deploy.installer import Order
from quarl_edge.deploy.release import Release
from quarl_edge.deploy.settings import DeviceSettings
from quarl_edge.deploy.target import Target

Wheelhouse = Literal["auto", "always", "never"]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """One deployment.

    Attributes:
        target: the board.
        connect: logs in there.
        order: what the installer is to do.
        settings: how the agent is to run; `None` where it is removed.
        credentials: of the device.
        password: of the device, for the broker.
        learner_key: public key that it is to trust, as the content of `learner.pub`.
        release: policy of mode deploy.
        release_note: remembers what this board was given.
        wheelhouse: whether wheels are sent.
        cache: where wheels are kept here.
        broker: that the agent and that link meet at.
        link: makes the link over which the birth is heard; `None` does not wait for it there.
        operator: credentials of that link.
        wait: whether the birth is waited for at all.
        timeout_s: for the birth.
    """

    target: Target
    connect: Callable[[], Awaitable[Host]]
    order: Order
    settings: DeviceSettings | None = None
    credentials: Credentials | None = None
    password: str | None = field(default=None, repr=False)
    learner_key: bytes | None = None
    release: Release | None = None
    release_note: Path | None = None
    wheelhouse: Wheelhouse = "auto"
    cache: Path
    broker: BrokerURL | None = None
    link: Callable[[], Link] | None = None
    operator: Credentials | None = None
    wait: bool = True
    timeout_s: float = 180.0


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """What came of it.

    Attributes:
        result: the installer's: "installed", "unchanged", "removed" or "planned".
        release: that is installed, "" for none.
        previous: that was before, "" for none.
        supervised_by: "systemd", "none" or "".
        said: how the agent stands, one line; "" where nobody waited for it.
        boot_id: of the agent's life that was seen, "" for none.
        digest: of the policy that it ran then, "" for none.
        sent_bytes: size of the bundle.
    """

    result: str
    release: str = ""
    previous: str = ""
    supervised_by: str = ""
    said: str = ""
    boot_id: str = ""
    digest: str = ""
    sent_bytes: int = 0
