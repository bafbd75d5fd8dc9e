"""What the agent tells the service manager that started it: sd_notify(3), without libsystemd.

systemd names a datagram socket in NOTIFY_SOCKET; where there is none, nothing is said. A message is lost rather than
waited for: whoever acts must not stand still because nobody reads. What must not be lost, READY above all, is said
again with the next message.

The watchdog is told from the thread that steps the environment and from no other one, so an environment that hangs
stops the pings, and the manager starts the service anew.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, MutableMapping

from quarl_device.wire.strict_json import one_line

_MAX_STATUS = 256
_PINGS_PER_PERIOD = 3
_AGAIN_S = 1.0
LINGER_S = 60.0
_LOOK_S = 0.2
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """Tells the service manager; any thread may call. Nothing here raises or blocks.

    Args:
        address: of the manager's datagram socket: a path, or "@name" in the abstract namespace; "" for no manager.
        watchdog_s: the manager ends a process that it has not heard of for so long; 0 for no watchdog.
        clock: monotonic time in seconds.
    """

    def __init__(
        self, address: str = "", *, watchdog_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = _address(address)
        self._clock = clock
        self._period_s = watchdog_s / _PINGS_PER_PERIOD if watchdog_s > 0 and self._address else math.inf
        self._owed: dict[str, str] = {}
        self._lock = threading.Lock()
        self._due_s = clock() if self._period_s < math.inf else math.inf

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Notifier:
        """Return what tells the manager that the environment names.

        The variables are taken out of it, so that no child process speaks in the name of this one.
        """
        address, period, process = (environment.pop(name, "") for name in _VARIABLES)
        # Set for another process, they came to this one by inheritance.
        is_ours = process in ("", str(os.getpid()))
        digits = is_ours and period.isascii() and period.isdigit() and len(period) < 20
        return cls(address, watchdog_s=int(period) / 1e6 if digits else 0.0)

    @property
    def now_s(self) -> float:
        """Monotonic time in seconds."""
        return self._clock()

    @property
    def is_heard(self) -> bool:
        """Whether there is a service manager."""
        return bool(self._address)

    @property
    def is_due(self) -> bool:
        """Whether the stepping thread should say that it lives, or has to say again what was not taken."""
        return self._clock() >= self._due_s

    def ready(self, status: str = "") -> None:
        """The agent acts, or waits for what it needs to act."""
        self._tell(READY="1", **_status(status))

    def status(self, text: str) -> None:
        """Say in a line what goes on; `systemctl status` shows it."""
        self._tell(**_status(text))

    def stopping(self, status: str = "") -> None:
        """The end has begun."""
        self._tell(STOPPING="1", **_status(status))

    def alive(self) -> None:
        """The stepping thread is here. Cheap: between pings, which are as rare as they may be, it looks at a clock."""
        if self._clock() >= self._due_s:
            self._tell(**({"WATCHDOG": "1"} if self._period_s < math.inf else {}))

    def _tell(self, **lines: str) -> None:
        if not self._address:
            return
        with self._lock:
            self._owed.update(lines)
            said = "\n".join(f"{name}={value}" for name, value in self._owed.items()).encode()
            now_s = self._clock()
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaking:
                    speaking.setblocking(False)
                    speaking.sendto(said, self._address)
            # No reader, a full queue, a path too long or with a NUL, no such socket any more: nobody to tell that to.
            except (OSError, ValueError):
                self._owed.pop("WATCHDOG", None)  # an old one would speak for a thread that hangs by then
                self._due_s = now_s + _AGAIN_S if "WATCHDOG" in lines else min(self._due_s, now_s + _AGAIN_S)
                return
            self._owed.clear()
            if "WATCHDOG" in lines or self._period_s == math.inf:
                self._due_s = now_s + self._period_s


def linger(
    notifier: Notifier,
    why: str,
    *,
    ended: Callable[[], bool] = lambda: False,
    for_s: float = LINGER_S,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Stay for a while before an end that only a person can mend, where a service manager starts this process again.

    It gives up a service that ends too often, and a revoked certificate or a wrong clock would then cost the board for
    good. What lies on the disk by then is read by the next start.

    Args:
        notifier: of this process; without a manager nothing is waited for.
        why: this process will end.
        ended: whether to end at once.
        for_s: seconds.
        sleep: between two looks.
    """
    if not notifier.is_heard:
        return
    notifier.ready(f"will be started anew: {why}")
    until_s = notifier.now_s + for_s
    while notifier.now_s < until_s and not ended():
        notifier.alive()
        sleep(_LOOK_S)


def _status(text: str) -> dict[str, str]:
    return {"STATUS": one_line(text, max_length=_MAX_STATUS)} if text else {}


def _address(given: str) -> str:
    """Return what a socket is addressed by, "" where it is none of the two kinds that are known."""
    if given.startswith("@") and len(given) > 1:
        return f"\0{given[1:]}"
    return given if given.startswith("/") else ""
