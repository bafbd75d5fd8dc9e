"""Real processes, a real broker, real kills: in the end every step made is stored once, or declared dropped.

But for the kills of the broker itself, on one more broker by its URL (docs/guides/broker.md)::

    QUARL_TEST_BROKER_URL=mqtt://user@emqx.local:1883 QUARL_MQTT_PASSWORD=... pytest tests/e2e/test_streams.py -k url
    QUARL_TEST_BROKER_URL=mqtts://emqx.local:8883 QUARL_TEST_BROKER_CREDENTIALS=broker/clients \\
      pytest tests/e2e/test_streams.py -k url
"""

import contextlib
import dataclasses
import json
import os
import secrets
import signal
import struct
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from runs_helper import DEVICE, Started
from secured_broker import SecuredBroker

from quarl_device.link import BrokerURL, PahoLink
from quarl_device.link.credentials import Credentials
from quarl_device.testing.mosquitto import Mosquitto
from quarl_device.testing.tcp_proxy import TcpProxy
from quarl_device.wire.block_stamp import read_stamp
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.topics import Topics
from quarl_edge.replay.segments import iterate

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(240)]

BLOCK_STEPS = 16
DEVICE_NAME = "pi"
URL = os.environ.get("QUARL_TEST_BROKER_URL", "")
CREDENTIALS = os.environ.get("QUARL_TEST_BROKER_CREDENTIALS", "")
BROKERS = ["mosquitto", *(["url"] if URL else [])]

COUNTING = """
import gymnasium, mmap, os, struct
class Counting(gymnasium.Wrapper):
    \"\"\"Counts its steps in a file of this process, where a kill does not reach it.\"\"\"
    def __init__(self, env):
        super().__init__(env)
        path = os.path.join(os.environ["COUNTS"], f"{os.getpid()}")
        with open(path, "wb") as file:
            file.write(bytes(8))
        file = os.open(path, os.O_RDWR)
        self.memory, self.count = mmap.mmap(file, 8), 0
    def step(self, action):
        result = self.env.step(action)
        self.count += 1
        struct.pack_into("<Q", self.memory, 0, self.count)
        return result
gymnasium.register("Counting-v0", lambda: Counting(gymnasium.make("CartPole-v1")))
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """A broker that runs already, and that others may use: what is done there is done in a fleet of its own.

    With `credentials`, a directory with those of `learner` and of the device `pi`, that is the fleet of the device.
    """

    url: str
    fleet: str
    credentials: Path | None = None

    @classmethod
    def secured(cls, url, credentials):
        return cls(url=url, fleet=Credentials.load(credentials / DEVICE_NAME).fleet, credentials=credentials)

    @property
    def place(self):
        return BrokerURL.parse(self.url)

    def clear(self):
        """Remove what the fleet has retained."""
        topics = Topics(self.fleet)
        if self.credentials is None:
            link = PahoLink(self.place, client_id=self.fleet, password=os.environ.get("QUARL_MQTT_PASSWORD"))
            return self._clear(link, f"{topics.root}/#")
        mine = f"{topics.root}/d/{DEVICE_NAME}/up/#"
        for name, read in (("learner", topics.learner), ("learner", topics.policy), (DEVICE_NAME, mine)):
            tls = Credentials.load(self.credentials / name).tls()
            self._clear(PahoLink(self.place, client_id=name, tls=tls), read)
        return None

    @staticmethod
    def _clear(link, topic_filter):
        found = set()
        link.subscribe(topic_filter, lambda message: found.add(message.topic))
        link.connect(timeout_s=20)
        with contextlib.closing(link):
            time.sleep(2.0)
            for topic in found:
                link.publish(topic, b"", retain=True)
            assert link.flush(timeout_s=10)


class Scene:
    """A broker, a learner and an actor, each of which can be killed and started again."""

    def __init__(self, folder, broker, *, port=None):
        self.folder, self.broker, self.fleet = folder, broker, getattr(broker, "fleet", "lab")
        place = BrokerURL.parse(broker.url)
        self.port = port or place.port
        host = "127.0.0.1" if port else place.host
        scheme, user = "mqtts" if place.tls else "mqtt", f"{place.user}@" if place.user else ""
        self.actor_url = f"{scheme}://{user}{host}:{self.port}"
        self.epoch, self.started, self.learner, self.actor = int(time.time()), [], None, None
        (folder / "counting_env.py").write_text(COUNTING)
        (folder / "counts").mkdir()
        held = getattr(broker, "credentials", None)
        self.key = held / "learner" / "signing.key" if held else folder / "learner.key"
        self.learner_words = ["--credentials", held / "learner"] if held else []
        self.actor_words = ["--credentials", held / DEVICE_NAME] if held else ["--learner-key", folder / "learner.pub"]
        LearnerKey.load_or_create(self.key).public.save(folder / "learner.pub")

    def start_learner(self):
        self.epoch += 1
        words = [
            sys.executable, "-m", "quarl_edge.soak.learner", "--broker", self.broker.url, "--fleet", self.fleet,
            "--journal", self.folder / "journal", "--epoch", self.epoch, "--key", self.key,
            "--block-steps", BLOCK_STEPS, *self.learner_words,
        ]  # fmt: skip
        self.learner = self._start(words, "learner")

    def start_actor(self, *words):
        words = [
            *DEVICE, "run", "--broker", self.actor_url, "--fleet", self.fleet, "--id", DEVICE_NAME,
            "--env", "counting_env:Counting-v0", *self.actor_words,
            "--block-steps", BLOCK_STEPS, "--state-dir", self.folder / "state", "--format", "json",
            "--max-offline", 60, *words,
        ]  # fmt: skip
        self.actor = self._start(words, "actor")

    def _start(self, words, name):
        paths = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {"PYTHONPATH": os.pathsep.join(paths), "COUNTS": str(self.folder / "counts")}
        number = len(self.started)
        self.started.append(Started(words, cwd=self.folder, log=self.folder / f"{number}-{name}.log", env=env))
        return self.started[-1]

    def kill(self, process):
        os.kill(process.process.pid, signal.SIGKILL)
        process.process.wait(10)

    def close(self):
        for process in self.started:
            process.__exit__()

    def stamps(self):
        """Return the stamps of all stored blocks, in order of arrival."""
        return [read_stamp(record.payload) for record in iterate(self.folder / "journal")]

    def made(self):
        """Return the steps that the environments of all lives have made."""
        counts = [path.read_bytes() for path in (self.folder / "counts").iterdir()]
        return sum(struct.unpack("<Q", data)[0] for data in counts if len(data) == 8)

    def wait_for_more(self, blocks, *, seconds=120):
        """Wait until so many more blocks are stored."""
        wanted = len(self.stamps()) + blocks
        self.wait_until(lambda: len(self.stamps()) >= wanted, f"{blocks} more blocks", seconds)

    def wait_for_life(self, number, *, seconds=120):
        """Wait until the blocks of so many lives are stored."""
        self.wait_until(lambda: len({s.boot_id for s in self.stamps()}) >= number, f"life {number}", seconds)

    def wait_for_steps(self, steps, *, seconds=120):
        """Wait until the environments have made so many more."""
        wanted = self.made() + steps
        self.wait_until(lambda: self.made() >= wanted, f"{steps} more steps", seconds)

    def wait_until(self, condition, what, seconds=120):
        """Wait for a condition; says what everybody said where it does not come."""
        deadline = time.monotonic() + seconds
        while not condition():
            said = "\n".join(f"{process.log.name}: {process.said()[-1500:]}" for process in self.started)
            assert time.monotonic() < deadline, f"{seconds} s passed before {what}\n{said}"
            time.sleep(0.05)

    def end_actor(self):
        """End the actor in order; returns its summary."""
        code, out = self.actor.end()
        assert code == 0, self.actor.said()
        return json.loads(out.splitlines()[-1])

    def deliver_the_rest(self, *words):
        """Start another life, which brings what is left in the spool, and makes a step; returns its summary."""
        self.start_actor("--steps", 1, *words)
        out, _ = self.actor.process.communicate(timeout=60)
        summary = json.loads(out.decode().splitlines()[-1])
        assert (summary["reason"], summary["blocks_pending"]) == ("all steps made", 0)
        return summary

    def ledger(self, *, killed):
        """Check the books: steps made = steps stored + declared drops, 0 duplicates.

        What a killed life had made of a block that was not written yet is in no book: one block per kill at most.
        """
        # What it could not deliver at once is in the spool.
        dropped = self.end_actor()["steps_dropped"] + self.deliver_the_rest()["steps_dropped"]
        return self.books(killed=killed, dropped=dropped)

    def books(self, *, killed, dropped):
        """See `ledger`; no actor runs any more."""
        code, out = self.learner.end()
        assert code == 0, self.learner.said()
        learner = json.loads(out.splitlines()[-1])
        stamps = self.stamps()
        ids = Counter((stamp.boot_id, stamp.sequence) for stamp in stamps)
        assert max(ids.values()) == 1, "stored twice"
        account = learner["account"][DEVICE_NAME]
        unfinished = self.made() - account["stored_steps"] - account["lost_steps"]
        counted = {name: learner[name] for name in ("blocks", "duplicates", "gaps", "transitions", "dropped_rows")}
        print({"made": self.made(), **account, "unfinished": unfinished, **counted})  # noqa: T201
        assert 0 <= unfinished <= killed * BLOCK_STEPS
        assert learner["env_steps"] == account["stored_steps"]
        assert learner["refused"] == {}
        # What was in the air when the actor gave it up may have arrived.
        assert dropped >= account["lost_steps"]
        for boot_id in {stamp.boot_id for stamp in stamps}:
            sequences = [stamp.sequence for stamp in stamps if stamp.boot_id == boot_id]
            assert sequences == sorted(sequences)
            assert dropped or sequences == list(range(len(sequences))), "a life's blocks are all there"
        return stamps, learner


@pytest.fixture(params=BROKERS)
def broker(request):
    if request.param == "mosquitto":
        with Mosquitto() as broker:
            yield broker
        return
    held = Path(CREDENTIALS).resolve() if CREDENTIALS else None
    elsewhere = Elsewhere.secured(URL, held) if held else Elsewhere(url=URL, fleet=f"test-{secrets.token_hex(4)}")
    yield elsewhere
    elsewhere.clear()


@pytest.fixture
def scene(tmp_path, broker):
    one = Scene(tmp_path, broker)
    yield one
    one.close()


@pytest.fixture
def proxy(broker):
    place = BrokerURL.parse(broker.url)
    with TcpProxy(place.port, host=place.host) as proxy:
        yield proxy


@pytest.fixture
def remote_scene(tmp_path, broker, proxy):
    """A scene whose actor comes through `proxy`."""
    one = Scene(tmp_path, broker, port=proxy.port)
    yield one
    one.close()


def test_a_killed_actor_delivers_what_it_left_under_the_name_of_that_life(remote_scene, proxy):
    """It is offline when it is killed: nothing of what it made since is anywhere but in its spool."""
    scene = remote_scene
    scene.start_learner()
    for _ in range(2):
        scene.start_actor()
        scene.wait_for_more(20)
        proxy.refuse()
        proxy.cut()
        stored = len(scene.stamps())
        scene.wait_for_steps(100 * BLOCK_STEPS)
        assert len(scene.stamps()) <= stored + 64, "it is offline"
        scene.kill(scene.actor)
        proxy.refuse(False)
    scene.start_actor()
    scene.wait_for_life(3)
    stamps, learner = scene.ledger(killed=2)
    lives = list(dict.fromkeys(stamp.boot_id for stamp in stamps))
    assert len(lives) == 4
    assert [stamp.boot_id for stamp in stamps] == sorted((s.boot_id for s in stamps), key=lives.index), "life by life"
    # n = 3: of a life that was killed, at most two rows wait for steps that never come; they are no episode's end.
    assert learner["transitions"] + learner["dropped_rows"] >= learner["env_steps"] - 2


def test_an_outage_costs_a_fast_simulator_no_more_than_may_wait(remote_scene, proxy):
    """In seconds it could make more than the learner takes in minutes, all of an old policy."""
    scene = remote_scene
    scene.start_learner()
    scene.start_actor("--max-offline-blocks", 8)
    stands = "8 blocks wait, and it takes them before anything newer"
    for outage in (1, 2):
        scene.wait_for_more(20)
        proxy.refuse()
        proxy.cut()
        scene.wait_until(lambda count=outage: scene.actor.said().count(stands) == count, "that it says why it stops")
        made = scene.made()
        time.sleep(1.0)
        assert scene.made() == made, "it stands still for as long as it lasts"
        # What was in flight at the cut waits too.
        assert made - scene.stamps()[-1].first_step <= (64 + 2) * BLOCK_STEPS
        proxy.refuse(False)
        scene.wait_for_steps(BLOCK_STEPS, seconds=30)
    _, learner = scene.ledger(killed=0)
    assert learner["lost_steps"] == 0


def test_a_killed_learner_that_resumes_has_every_block_once(scene):
    scene.start_learner()
    scene.start_actor()
    for _ in range(2):
        scene.wait_for_more(30)
        scene.kill(scene.learner)
        # The actor goes on without it.
        scene.wait_for_steps(20 * BLOCK_STEPS)
        scene.start_learner()
    scene.wait_for_more(30)
    scene.ledger(killed=0)


@pytest.mark.parametrize("persistent", [False, True], ids=["forgetful broker", "persistent broker"])
def test_a_killed_broker_loses_nothing_whatever_it_remembers(tmp_path, persistent):
    store = tmp_path / "store" if persistent else None
    broker = Mosquitto(persistence=store)
    try:
        scene = Scene(tmp_path, broker)
        scene.start_learner()
        scene.start_actor()
        for _ in range(2):
            scene.wait_for_more(30)
            scene.broker.kill()
            scene.wait_for_steps(20 * BLOCK_STEPS)
            scene.broker = Mosquitto(port=scene.port, persistence=store)
        scene.wait_for_more(30)
        scene.ledger(killed=0)
    finally:
        scene.close()
        scene.broker.stop()


def test_all_of_them_are_killed_while_a_full_spool_stands_still(remote_scene, proxy, tmp_path):
    """A spool of a MiB fills while nobody listens; the actor says why it stands still, and nothing is dropped."""
    scene = remote_scene
    scene.start_learner()
    scene.start_actor("--spool-mib", 1, "--spool-sync", "never")
    scene.wait_for_more(20)
    proxy.refuse()
    proxy.cut()
    scene.wait_until(lambda: "spool full" in scene.actor.said(), "a full spool", 120)
    made = scene.made()
    scene.kill(scene.learner)
    time.sleep(0.5)
    assert scene.made() == made, "it stands still"
    size = sum(path.stat().st_size for path in (tmp_path / "state").rglob("*.qs"))
    assert size <= 1024 * 1024 + 4096
    scene.kill(scene.actor)
    proxy.refuse(False)
    scene.start_learner()
    scene.start_actor("--spool-mib", 1)
    scene.wait_for_life(2)
    scene.ledger(killed=1)


def test_an_actor_that_drops_the_oldest_declares_every_step_of_it(remote_scene, proxy):
    scene = remote_scene
    scene.start_learner()
    scene.start_actor("--spool-mib", 1, "--when-full", "drop-oldest")
    scene.wait_for_more(20)
    proxy.refuse()
    proxy.cut()
    # A block takes some 1.5 KiB, so these are more than a MiB holds.
    scene.wait_for_steps(1_500 * BLOCK_STEPS)
    proxy.refuse(False)
    scene.wait_for_more(20)
    _, learner = scene.ledger(killed=0)
    assert learner["account"][DEVICE_NAME]["lost_steps"] > 100 * BLOCK_STEPS


def test_two_processes_with_one_id_end_as_one_and_both_of_their_books_are_kept(scene):
    """As on two machines. The older ends with code 52; what it could not deliver waits in its own spool."""
    scene.start_learner()
    scene.start_actor()
    older = scene.actor
    scene.wait_for_more(10)
    scene.start_actor("--state-dir", scene.folder / "other")
    assert older.process.wait(60) == 52, older.said()
    scene.wait_for_more(10)
    dropped = scene.end_actor()["steps_dropped"]
    for words in ((), ("--state-dir", scene.folder / "other")):
        dropped += scene.deliver_the_rest(*words)["steps_dropped"]
    scene.books(killed=0, dropped=dropped)
    assert dropped == 0


def test_over_tls_with_certificates_and_access_rules_the_books_are_right_too(tmp_path):
    """As a broker elsewhere is reached by its URL; the actor comes through a proxy, for which its certificate holds."""
    fleet = f"test-{secrets.token_hex(4)}"
    with SecuredBroker({DEVICE_NAME: ("device", fleet)}) as secured, TcpProxy(secured.port) as proxy:
        elsewhere = Elsewhere.secured(f"mqtts://localhost:{secured.port}", secured.path / "clients")
        scene = Scene(tmp_path, elsewhere, port=proxy.port)
        try:
            scene.start_learner()
            scene.start_actor()
            scene.wait_for_more(10)
            scene.kill(scene.learner)
            proxy.cut()
            scene.wait_for_steps(20 * BLOCK_STEPS)
            scene.start_learner()
            scene.wait_for_more(10)
            scene.ledger(killed=0)
        finally:
            scene.close()
        elsewhere.clear()
