"""A learner that learns nothing, as a process: the real ingest, journal, receiver and link, and one policy.

    python -m quarl_edge.soak.learner --broker URL --journal DIR --epoch N --key FILE ...

It is killed and started again on the same journal, as `quarl-edge train --resume` is. At SIGTERM it writes its counters
as JSON and ends.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from quarl_device.actor.bench import BUILT_IN_POLICY
from quarl_device.errors import JournalError
from quarl_device.link import BrokerURL, PahoLink, Will, read_password
from quarl_device.link.credentials import Credentials
from quarl_device.policy_file import PolicyFile, read_policy_path
from quarl_device.wire.block import BlockSpec
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.messages import LearnerBirth
from quarl_device.wire.push import Exploration, PushHeader, encode_push
from quarl_device.wire.topics import Topics
from quarl_edge.algorithms.dqn import DqnConfig
from quarl_edge.ingest.ingest import Ingest
from quarl_edge.learner.receiver import Receiver

_EVERY_S = 0.2
_CONNECT_S = 30.0
_CAPACITY = 2_000_000
_ENV_ID = "CartPole-v1"
_EPSILON = 0.3
_LOG = logging.getLogger(__name__)


def soak_policy() -> PolicyFile:
    """Return the policy that all actors get."""
    return read_policy_path(BUILT_IN_POLICY)


def soak_spec() -> BlockSpec:
    """Return what their blocks carry."""
    contract = soak_policy().contract
    return BlockSpec(observations=contract.observations, action=contract.action)


def main(words: list[str] | None = None) -> None:
    """Run until SIGTERM."""
    options = _parser().parse_args(words)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    ended, parent = threading.Event(), os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    # Room for everything: what is tried is the stream, not the limiter.
    config = DqnConfig(
        env_id=_ENV_ID, block_steps=options.block_steps, learning_starts=_CAPACITY, replay_capacity=_CAPACITY, n_step=3
    )
    ingest = Ingest.open(config, soak_spec(), options.journal, epoch=options.epoch)
    ingest.rebuild()
    policy, key, topics = soak_policy(), LearnerKey.load_or_create(options.key), Topics(options.fleet)
    birth = _birth(policy, key, epoch=options.epoch, block_steps=options.block_steps)
    gone = Will(topic=topics.learner, payload=dataclasses.replace(birth, status="gone").encode())
    link = _link(options, gone)
    receiver = Receiver(link, topics, ingest)
    receiver.listen()
    link.connect(timeout_s=_CONNECT_S)
    push = _push(policy, key, epoch=options.epoch)
    # Nobody is left behind when the soak itself is killed.
    while not ended.wait(_EVERY_S) and os.getppid() == parent:
        birth = dataclasses.replace(birth, beat=birth.beat + 1)
        # Both again and again: a broker that was restarted may know neither.
        link.publish(topics.learner, birth.encode(), retain=True)
        link.publish(topics.policy, push, retain=True)
        receiver.send_acks()
        try:
            ingest.sync()
        except JournalError as error:
            _LOG.warning("%s", error)
    link.close()
    account = {name: vars(ingest.sessions.account(name)) for name in ingest.sessions.snapshot()}
    sys.stdout.write(json.dumps({**ingest.counters, "account": account}) + "\n")
    ingest.close()


def _link(options: argparse.Namespace, will: Will) -> PahoLink:
    if options.credentials is None:
        url = BrokerURL.parse(options.broker)
        return PahoLink(url, client_id=f"learner-{options.epoch}", password=read_password(), will=will)
    held = Credentials.load(options.credentials)
    return PahoLink(held.broker_or(options.broker), client_id=held.name, tls=held.tls(), will=will)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m quarl_edge.soak.learner", description=(__doc__ or "").strip())
    parser.add_argument("--broker", required=True, metavar="URL")
    parser.add_argument("--fleet", required=True, metavar="F")
    parser.add_argument("--journal", required=True, type=Path, metavar="DIR")
    parser.add_argument("--epoch", required=True, type=int, metavar="N")
    parser.add_argument("--key", required=True, type=Path, metavar="FILE", help="the private half; made if missing")
    parser.add_argument("--credentials", type=Path, metavar="DIR", help="of a learner, for a broker with TLS")
    parser.add_argument("--block-steps", required=True, type=int, metavar="T")
    return parser


def _birth(policy: PolicyFile, key: LearnerKey, *, epoch: int, block_steps: int) -> LearnerBirth:
    return LearnerBirth(
        status="online",
        epoch=epoch,
        env_id=_ENV_ID,
        algorithm="none",
        observations=policy.contract.observations,
        action=policy.contract.action,
        public_key=key.public.hex,
        mode="async",
        seed=1,
        block_steps=block_steps,
        version="1",
    )


def _push(policy: PolicyFile, key: LearnerKey, *, epoch: int) -> bytes:
    header = PushHeader(
        epoch=epoch,
        version=1,
        env_steps=0,
        sha256=policy.sha256,
        exploration=Exploration(values=(_EPSILON,)),
        golden_outputs=dict(policy.golden.outputs),
        lsb=dict(policy.golden.lsb),
    )
    return encode_push(header, policy.data, key.sign)


if __name__ == "__main__":
    main()
