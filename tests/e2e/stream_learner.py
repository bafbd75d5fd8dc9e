"""A learner without learning, as a process: the real ingest, journal and receiver, one policy, births every 0.2 s.

    python stream_learner.py BROKER_URL FLEET JOURNAL EPOCH

A test kills it, starts it again on the same journal, and reads the journal.
"""

import dataclasses
import json
import logging
import signal
import sys
import threading
from pathlib import Path

from quarl_device.errors import JournalError
from quarl_device.link import BrokerURL, PahoLink, Will
from quarl_device.policy_file import read_policy_path
from quarl_device.wire.block import BlockSpec
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.messages import LearnerBirth
from quarl_device.wire.push import Exploration, PushHeader, encode_push
from quarl_device.wire.topics import Topics
from quarl_edge.config import TrainConfig
from quarl_edge.ingest.ingest import Ingest
from quarl_edge.learner.receiver import Receiver

POLICY = read_policy_path(Path(__file__).parents[1] / "data" / "cartpole.tflite")
KEY = LearnerKey(bytes(range(32)))  # for tests only
BLOCK_STEPS = 16
# Room for everything: what is tested is the stream, not the limiter.
CONFIG = TrainConfig(
    env_id="CartPole-v1", block_steps=BLOCK_STEPS, learning_starts=2_000_000, replay_capacity=2_000_000, n_step=3
)


def main(url, fleet, journal, epoch):
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    contract, topics = POLICY.contract, Topics(fleet)
    spec = BlockSpec(observations=contract.observations, action=contract.action)
    ingest = Ingest.open(CONFIG, spec, Path(journal), epoch=epoch)
    ingest.rebuild()
    birth = LearnerBirth(
        status="online", epoch=epoch, env_id="CartPole-v1", algorithm="dqn", observations=contract.observations,
        action=contract.action, public_key=KEY.public.hex, mode="async", seed=1, block_steps=BLOCK_STEPS, version="1",
    )  # fmt: skip
    gone = Will(topic=topics.learner, payload=dataclasses.replace(birth, status="gone").encode())
    link = PahoLink(BrokerURL.parse(url), client_id=f"learner-{epoch}", will=gone)
    receiver = Receiver(link, topics, ingest)
    receiver.listen()
    link.connect(timeout_s=20.0)
    header = PushHeader(
        epoch=epoch, version=1, env_steps=0, sha256=POLICY.sha256, exploration=Exploration(values=(0.3,)),
        golden_outputs=dict(POLICY.golden.outputs), lsb=dict(POLICY.golden.lsb),
    )  # fmt: skip
    push = encode_push(header, POLICY.data, KEY.sign)
    while not ended.wait(0.2):
        birth = dataclasses.replace(birth, beat=birth.beat + 1)
        # A broker that was restarted may know nothing of either.
        link.publish(topics.learner, birth.encode(), retain=True)
        link.publish(topics.policy, push, retain=True)
        receiver.send_acks()
        try:
            ingest.sync()
        except JournalError as error:
            logging.getLogger("learner").warning("%s", error)
    link.close()
    account = {name: vars(ingest.sessions.account(name)) for name in ingest.sessions.snapshot()}
    sys.stdout.write(json.dumps({**ingest.counters, "account": account}) + "\n")
    ingest.close()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
