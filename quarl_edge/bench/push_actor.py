"""One actor of `quarl-edge bench push --end-to-end`: `python -m quarl_edge.bench.push_actor URL FLEET KEY NAME`.

It acts once with every policy that comes, and says on stdout, as one line of JSON each, how long after the learner read
its variables the whole file was here, and it had acted. It ends on SIGTERM, or with its stdin.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np

from quarl_device.actor.acting import ActingPolicy
from quarl_device.actor.fetcher import Fetcher
from quarl_device.actor.inbox import Inbox
from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.link import BrokerURL, Message, PahoLink, read_password
from quarl_device.runtime import find_runtime
from quarl_device.wire.keys import PublicKey
from quarl_device.wire.push import PushHeader
from quarl_device.wire.topics import Topics

ENV_ID = "Bench-v0"
EPOCH = 1
OBSERVATION = ObservationSpec(key="observation", shape=(8,))
ACTION = ActionSpec(kind="discrete", n=4)


def main(arguments: list[str]) -> int:
    """Act until stdin ends."""
    url, fleet, key, name = arguments
    topics = Topics(fleet)
    link = PahoLink(BrokerURL.parse(url), client_id=f"{fleet}-{name}"[:23], password=read_password())
    observation = np.zeros(OBSERVATION.shape, np.float32)

    whole_unix_ns = [0]

    def act(acting: ActingPolicy) -> None:
        read_unix_ns = time.time_ns() - inbox.ready_ms[-1] * 1e6
        acting.policy.act(observation)
        acted_ns, whole_ns = time.time_ns() - read_unix_ns, whole_unix_ns[0] - read_unix_ns
        say(version=acting.version, ms=acted_ns / 1e6, whole_ms=whole_ns / 1e6)

    def offer(message: Message) -> None:
        whole_unix_ns[0] = time.time_ns()
        inbox.offer(message.payload)

    inbox = Inbox(
        runtime=find_runtime(),
        batch_size=1,
        actor_index=0,
        on_ready=act,
        fetcher=_Fetcher(link, topics=topics, device=name, whole_unix_ns=whole_unix_ns),
    )
    inbox.trust(PublicKey.from_hex(key), (OBSERVATION,), ACTION, epoch=EPOCH)
    link.subscribe(topics.policy, offer)
    link.connect(timeout_s=10.0)
    say(ready=1)
    sys.stdin.buffer.read()
    inbox.close()
    link.close()
    return 0


class _Fetcher(Fetcher):
    """Notes when a file is whole."""

    def __init__(self, link: PahoLink, *, topics: Topics, device: str, whole_unix_ns: list[int]) -> None:
        super().__init__(link, topics=topics, device=device)
        self._whole_unix_ns = whole_unix_ns

    def deliver_to(self, on_policy: Callable[[PushHeader, bytes], None]) -> None:
        """Hand every policy file on as `Fetcher` does."""

        def note(header: PushHeader, policy: bytes) -> None:
            self._whole_unix_ns[0] = time.time_ns()
            on_policy(header, policy)

        super().deliver_to(note)


def say(**fields: float) -> None:
    """Write a line at once."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
