"""The process that runs amqtt: `python -m quarl_edge.broker.child`.

It reads one line of JSON from stdin, `{"users": {name: password}, "host": ..., "port": ...}`, prints `ready PORT` once
it accepts connections, and ends on SIGTERM or when stdin ends, so it never outlives the process that started it.
Passwords come by stdin only: arguments and environments of a process can be read by others.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from amqtt.broker import Broker
from amqtt.contexts import Action, BrokerConfig, ListenerConfig
from amqtt.mqtt.constants import QOS_1, QOS_2
from amqtt.plugins.base import BaseAuthPlugin

if TYPE_CHECKING:
    from amqtt.session import Session

_PLUGIN = "quarl_edge.broker.child.UserAuthPlugin"
# A fixed one, compared where there is no such user, so that names cannot be told apart by time.
_NO_PASSWORD = "\0"  # noqa: S105


class UserAuthPlugin(BaseAuthPlugin):  # type: ignore[misc]  # amqtt has no stubs
    """Lets in exactly the users that it was given."""

    @dataclass
    class Config:
        """What `Broker` hands to the plugin: user name to password."""

        users: dict[str, str] = field(default_factory=dict)

    async def authenticate(self, *, session: Session) -> bool | None:
        """Whether user name and password fit."""
        users: dict[str, str] = self.config.users
        expected = users.get(session.username or "", _NO_PASSWORD)
        given = session.password or ""
        fits = hmac.compare_digest(expected.encode(), given.encode())
        return fits and session.username in users


class LeanBroker(Broker):  # type: ignore[misc]  # amqtt has no stubs
    """amqtt with a broadcast that does not format every payload into a debug message that nobody reads."""

    async def _run_broadcast(self, running_tasks: Any) -> None:
        broadcast = await self._broadcast_queue.get()
        topic, data = broadcast["topic"], broadcast["data"]
        for topic_filter, subscriptions in self._subscriptions.items():
            if not self._matches(topic, topic_filter):
                continue
            for session, subscribed_qos in subscriptions:
                qos = broadcast.get("qos", subscribed_qos)
                if not await self._topic_filtering(session, topic=topic, action=Action.RECEIVE):
                    continue
                if session.transitions.state != "connected":
                    if not session.clean_session and qos in (QOS_1, QOS_2) and not session.is_anonymous:
                        await self._retain_broadcast_message(broadcast, qos, session)
                    continue
                handler = self._get_handler(session)
                if handler:
                    publish = handler.mqtt_publish(topic, data, qos, retain=False)
                    running_tasks.append(asyncio.ensure_future(publish))


def main() -> int:
    """Run until stdin ends."""
    # Ctrl-C in a terminal reaches the whole process group; the parent decides when the broker may go.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    # amqtt warns about every client that vanishes or comes back, which is normal life here.
    logging.getLogger("amqtt").setLevel(logging.ERROR)
    request = json.loads(sys.stdin.buffer.readline())
    asyncio.run(_serve(request["users"], request["host"], request["port"]))
    return 0


async def _serve(users: dict[str, str], host: str, port: int) -> None:
    config = BrokerConfig(
        listeners={"default": ListenerConfig(bind=f"{host}:{port}")},
        plugins={_PLUGIN: {"users": users}},
    )
    broker = LeanBroker(config)
    await broker.start()
    bound = broker._servers["default"].instance.sockets[0].getsockname()[1]
    sys.stdout.write(f"ready {bound}\n")
    sys.stdout.flush()
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, done.set)
    loop.add_reader(sys.stdin.fileno(), lambda: done.set() if not os.read(sys.stdin.fileno(), 4096) else None)
    await done.wait()
    loop.remove_reader(sys.stdin.fileno())
    with contextlib.suppress(Exception):
        await asyncio.wait_for(broker.shutdown(), timeout=1.0)


if __name__ == "__main__":
    sys.exit(main())
