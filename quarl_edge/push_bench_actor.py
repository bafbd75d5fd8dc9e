"""One actor of `quarl-edge bench push --end-to-end`: `python -m quarl_edge.push_bench_actor URL FLEET KEY NAME`.

It acts once with every policy that comes, and says on stdout, as one line of JSON each, how long that took. It ends on
SIGTERM, or with its stdin.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from quarl_device.actor.acting import ActingPolicy
from quarl_device.actor.fetcher import Fetcher
from quarl_device.actor.inbox import Inbox
from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.link import BrokerURL, PahoLink, read_password
from quarl_device.runtime import find_runtime
from quarl_device.wire.keys import PublicKey
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

    def act(acting: ActingPolicy) -> None:
        began_s = time.perf_counter()
        acting.policy.act(observation)
        acted_ms = (time.perf_counter() - began_s) * 1e3
        say(version=acting.version, ms=inbox.ready_ms[-1] + acted_ms)

    inbox = Inbox(
        runtime=find_runtime(),
        batch_size=1,
        actor_index=0,
        on_ready=act,
        fetcher=Fetcher(link, topics=topics, device=name),
    )
    inbox.trust(PublicKey.from_hex(key), (OBSERVATION,), ACTION, epoch=EPOCH)
    link.subscribe(topics.policy, lambda message: inbox.offer(message.payload))
    link.connect(timeout_s=10.0)
    say(ready=1)
    sys.stdin.buffer.read()
    inbox.close()
    link.close()
    return 0


def say(**fields: float) -> None:
    """Write a line at once."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
