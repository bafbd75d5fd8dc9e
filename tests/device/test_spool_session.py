"""A device with a spool and a learner with its session table, over a network that loses, doubles and reorders.

Both ends are killed at any time. In the end the learner has every block that survived, once each, life after life.
"""

import logging
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.actor.outbox import MemoryOutbox
from quarl_device.actor.session import ActorSession, SessionConfig
from quarl_device.spool import appender
from quarl_device.spool.config import SpoolConfig
from quarl_device.spool.disk import DiskSpool
from quarl_device.wire.block_stamp import restamped
from quarl_device.wire.loss import read_loss
from quarl_edge.ingest.sessions import MAX_LIVES, SessionTable, Verdict

STEPS = 10
SESSION = SessionConfig(max_in_flight_blocks=3, max_offline_s=1e9)


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    """Thousands of restarts, each with a line about what it found."""
    logger = logging.getLogger("quarl_device.spool.disk")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


class Device:
    """One process of the actor."""

    def __init__(self, world, directory, life):
        self.world, self.life = world, f"{life:016x}"
        config = SpoolConfig(max_bytes=64 * 1024, sync="never", when_full=world.when_full)
        self.spool = DiskSpool(directory, boot_id=self.life, config=config)
        self.spool.begin_task("task")
        self.session = ActorSession(self.spool, SESSION)
        self.session.policy_accepted(1, 1)

    def make(self):
        if self.session.blocked():
            return
        sequence = self.session.next_sequence
        payload = f"{self.life} {sequence} ".encode() * self.world.copies
        self.session.block_made(payload, epoch=1, version=1, now_s=self.world.now_s, steps=STEPS)
        self.world.made.append((self.life, sequence))

    def pump(self):
        """Do what the agent does after every event; returns what goes up."""
        out, session = [], self.session
        while (sequence := session.next_to_send(self.world.now_s)) is not None:
            payload = self.spool.get(sequence)
            if payload is None:
                session.not_held(self.world.now_s)
                continue
            loss = read_loss(payload)
            if loss is None:
                life, number = payload.split()[:2]
                assert (life.decode(), int(number)) == (session.delivering, sequence)
                out.append((session.delivering, sequence, session.base, self.spool.gap_before(sequence)))
            else:
                stamped = restamped(payload, base=session.base, dropped=self.spool.gap_before(sequence))
                out.append((session.delivering, sequence, read_loss(stamped)))
            session.sent(sequence, len(payload))
        if session.announce_due(self.world.now_s):
            out.append((self.life, session.delivering))
            session.announced(self.world.now_s)
        return out

    def hear(self, ack):
        self.session.ack(
            boot_id=ack.boot_id, epoch=ack.epoch, inserted=ack.inserted, durable=ack.durable, credit=ack.credit,
            now_s=self.world.now_s,
        )  # fmt: skip


class Learner:
    """The real session table, with a journal of what was accepted: everything in it survives a kill."""

    def __init__(self, epoch=1):
        self.beat, self.ahead = 0, 3
        self.table = SessionTable(epoch)
        self.journal = []

    def take(self, message):
        """A message arrives; returns the answer."""
        if len(message) == 2:
            life = message[1]
            self.table.open("pi", life)
        elif len(message) == 3:
            life, sequence, loss = message
            verdict = self.table.examine("pi", life, sequence, loss.base, loss.dropped)
            if verdict is Verdict.ACCEPT:
                self.table.lose("pi", loss)
        else:
            life, sequence, base, dropped = message
            verdict = self.table.admit("pi", life, sequence, base, dropped, first_step=STEPS * sequence, steps=STEPS)
            if verdict is Verdict.ACCEPT:
                self.journal.append((life, sequence))
        self.table.grant("pi", self.ahead)
        return self.table.ack("pi", life) if self.table.remembers("pi", life) else self.table.ack("pi")

    def state(self):
        return self.table.epoch, self.table.snapshot(), list(self.journal)

    @classmethod
    def resumed(cls, state, epoch):
        one = cls(epoch)
        one.table.restore(state[1])
        one.journal = list(state[2])
        return one


class World:
    when_full, copies = "block", 40

    def __init__(self, directory, when_full="block", copies=40):
        self.when_full, self.copies = when_full, copies
        self.directory, self.now_s, self.lives = directory, 0.0, 0
        self.up, self.down, self.made = [], [], []
        self.lost = set()  # what a power cut took
        self.learner = Learner()
        self.checkpoint = self.learner.state()
        self.device = None
        self.start()

    def start(self):
        self.device = Device(self, self.directory, self.lives)
        self.lives += 1
        self.link(up=True)
        self.birth()

    def kill_device(self, torn=0):
        self.device.spool._let_go()
        if torn:
            held = self._held()
            self._tear(torn)
            self.lost |= held - self._held()
        # What it had handed to the network may still arrive.
        self.start()

    def _tear(self, torn):
        """Take bytes off the newest file, as a power cut does: never more than this life wrote."""
        paths = sorted(self.directory.glob("*.qs"))
        own = [path for path in paths if self.device.life.encode() in path.read_bytes()]
        if own:
            os.truncate(own[-1], max(8, own[-1].stat().st_size - torn))

    def _held(self):
        copy = Path(tempfile.mkdtemp(dir=self.directory.parent))
        for path in self.directory.glob("*.qs"):
            shutil.copy(path, copy)
        with_it = DiskSpool(copy, boot_id="f" * 16, config=SpoolConfig(sync="never"))
        held = set()
        for segment in with_it._holdings.segments:
            sequence = segment.next_held(0)
            while sequence is not None:
                held.add((segment.life, sequence))
                sequence = segment.next_held(sequence + 1)
        with_it._let_go()
        shutil.rmtree(copy)
        return held

    def birth(self):
        self.learner.beat += 1
        self.device.session.learner_online(
            epoch=self.learner.table.epoch, beat=self.learner.beat, in_turns=False, now_s=self.now_s
        )

    def link(self, up):
        self.device.session.link_changed(up=up, now_s=self.now_s)

    def replace_learner(self, state):
        epoch = self.learner.table.epoch + 1
        self.learner = Learner(epoch) if state is None else Learner.resumed(state, epoch)
        self.birth()

    def calm(self):
        self.link(up=True)
        self.learner.ahead = 3
        for number in range(600):
            if number % 20 == 0:
                self.birth()
            self.now_s += 0.5
            self.device.session.tick(self.now_s)
            self.up += self.device.pump()
            while self.up:
                self.down.append(self.learner.take(self.up.pop(0)))
            while self.down:
                self.device.hear(self.down.pop(0))
            if not self.device.session.pending and not self.device.session.blocked():
                return True
        return False

    def act(self, kind, number):
        up, down = self.up, self.down
        match kind:
            case "make":
                self.device.make()
            case "arrive" if up:
                down.append(self.learner.take(up.pop(number % len(up))))
            case "hear" if down:
                self.device.hear(down.pop(number % len(down)))
            case "flow":
                while up:
                    down.append(self.learner.take(up.pop(0)))
                while down:
                    self.device.hear(down.pop(0))
            case "lose":
                for queue in (up, down):
                    if queue:
                        queue.pop(number % len(queue))
            case "double":
                for queue in (up, down):
                    if queue:
                        queue.append(queue[number % len(queue)])
            case "tick":
                self.now_s += number % 40
                self.device.session.tick(self.now_s)
                self.device.spool.upkeep(self.now_s)
            case "cut":
                self.link(up=False)
            case "restore":
                self.link(up=True)
            case "kill device":
                self.kill_device()
            case "power cut":
                self.kill_device(torn=number * 20)
            case "kill learner":
                self.replace_learner(self.learner.state())
            case "birth":
                self.birth()
            case "credit":
                self.learner.ahead = number % 5


COMMON = ["make", "make", "arrive", "hear", "flow"] * 5
COMMON += ["lose", "double", "tick", "cut", "restore", "birth", "credit"]
KILLS = ["kill device", "kill device", "power cut", "kill learner"]
EVENTS = st.lists(
    st.tuples(st.sampled_from([*COMMON, *KILLS]), st.integers(0, 99)),
    min_size=30,
    max_size=120,
)


def run(events, **kind):
    root = Path(tempfile.mkdtemp())
    (root / "spool").mkdir()
    world = World(root / "spool", **kind)
    for kind, number in events:
        world.act(kind, number)
        world.up += world.device.pump()
        yield world
    assert world.calm(), (world.device.session.blocked(), world.device.session.pending)
    yield world
    world.device.spool.close()
    shutil.rmtree(root)


def in_order(journal):
    return journal == sorted(journal)


@settings(max_examples=120, deadline=None)
@given(EVENTS)
def test_every_block_that_survives_ends_once_in_the_learner_whoever_is_killed(events):
    for now in run(events):
        world = now
        assert len(set(world.learner.journal)) == len(world.learner.journal), "stored twice"
    assert set(world.made) - set(world.learner.journal) <= world.lost
    for life in {life for life, _ in world.made}:
        sequences = [sequence for one, sequence in world.learner.journal if one == life]
        assert sequences == sorted(sequences)
    account = world.learner.table.account("pi")
    assert account.stored_steps == STEPS * len(world.learner.journal)
    # What a power cut took is on the account as far as a record's beginning is left to tell it.
    missing = set(world.made) - set(world.learner.journal)
    assert account.lost_steps == STEPS * account.lost_blocks <= STEPS * len(missing)


@settings(max_examples=120, deadline=None)
@given(EVENTS, st.integers(0, 10))
def test_what_drop_oldest_gives_up_is_on_the_account_to_the_last_step_whoever_is_killed(events, burst):
    """Eight blocks fill the spool, so whole lives are given up: their heads, their ends, all of them."""
    history = [event for event in events if event[0] != "power cut"]
    history = [*history, ("cut", 0), *[("make", 0), ("kill device", 0)] * burst, *[("make", 0)] * burst]
    for now in run(history, when_full="drop-oldest", copies=400):
        world = now
        assert len(set(world.learner.journal)) == len(world.learner.journal), "stored twice"
    account = world.learner.table.account("pi")
    assert account.stored_steps == STEPS * len(world.learner.journal)
    assert account.stored_steps + account.lost_steps == STEPS * len(world.made)
    assert account.lost_steps == STEPS * account.lost_blocks


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.integers(0, 100), st.integers(0, 100), st.booleans())
def test_a_learner_from_an_older_checkpoint_or_a_new_one_goes_on_without_a_double_or_a_standstill(
    events, saved, back, fresh
):
    saved, back = sorted((saved % len(events), back % len(events)))
    state = None
    for place, world in enumerate(run(events)):
        assert len(set(world.learner.journal)) == len(world.learner.journal), "stored twice"
        if place == saved and not fresh:
            state = world.learner.state()
        if place == back:
            world.replace_learner(state)
    # What the device had freed on the older learner's word is on the newer one's account, as far as it knew the life.
    for known in world.learner.table._devices["pi"].lives.values() if world.learner.journal else ():
        if known.step is not None:
            assert known.step == STEPS * known.expected


@settings(max_examples=40, deadline=None)
@given(EVENTS)
def test_when_it_drops_the_oldest_the_learner_knows_every_step_of_a_life(events):
    """One life, a spool of ten blocks: stored and lost steps are all that lie between its first and last block."""
    root = Path(tempfile.mkdtemp())
    world = World.__new__(World)
    world.__dict__.update(directory=root, now_s=0.0, lives=1, up=[], down=[], made=[], lost=set(), learner=Learner())
    device = world.device = Device.__new__(Device)
    outbox = MemoryOutbox("0" * 16, max_bytes=10 * 760, when_full="drop-oldest")
    device.world, device.life, device.spool = world, "0" * 16, outbox
    device.session = ActorSession(outbox, SESSION)
    device.session.policy_accepted(1, 1)
    world.link(up=True)
    world.birth()
    assert world.calm()
    device.make()
    assert world.calm()
    for kind, number in events:
        if "kill" not in kind and kind != "power cut":
            world.act(kind, number)
            world.up += device.pump()
            assert len(set(world.learner.journal)) == len(world.learner.journal)
    assert world.calm()
    device.make()
    assert world.calm()
    account = world.learner.table.account("pi")
    assert account.stored_steps + account.lost_steps == STEPS * len(world.made)
    assert account.lost_steps == STEPS * account.lost_blocks
    # The device may have dropped what it did not know to be stored; never less than what is lost.
    assert outbox.dropped_blocks >= account.lost_blocks
    shutil.rmtree(root)


def test_more_short_lives_than_a_learner_remembers_are_each_delivered_once():
    root = Path(tempfile.mkdtemp())
    (root / "spool").mkdir()
    world = World(root / "spool")
    world.link(up=False)
    for _ in range(3 * MAX_LIVES):
        world.device.make()
        world.device.spool._let_go()
        world.start()
        world.link(up=False)
    assert len(world.made) == 3 * MAX_LIVES
    assert world.calm()
    assert world.learner.journal == world.made
    world.device.spool.close()
    shutil.rmtree(root)


class Disk:
    """What of a spool's directory has reached the disk: all that was there at its last fsync, and no more."""

    def __init__(self, directory, monkeypatch):
        self.directory, self.certain = directory, {}
        real = appender.sync_directory

        def synced(path):
            real(path)
            self.certain = {one.name: one.read_bytes() for one in directory.glob("*.qs")}

        monkeypatch.setattr(appender, "sync_directory", synced)

    def cut_power(self):
        for path in self.directory.glob("*.qs"):
            path.unlink()
        for name, data in self.certain.items():
            (self.directory / name).write_bytes(data)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3 * MAX_LIVES), st.integers(0, 3 * MAX_LIVES), st.integers(1, 3))
def test_a_power_cut_brings_back_no_more_lives_than_the_learner_remembers(lives, delivered, blocks):
    """All of them were made offline and come in a moment; an fsync is not due yet when the power goes."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as root:
        directory = Path(root) / "spool"
        directory.mkdir()
        disk = Disk(directory, patch)
        learner, made = Learner(), []
        for life in range(lives):
            spool = DiskSpool(directory, boot_id=f"{life:016x}", config=SpoolConfig(max_bytes=64 * 1024))
            for sequence in range(blocks):
                spool.put(sequence, b"x", steps=STEPS)
                made.append((spool.boot_id, sequence))
            spool.close()
        for boot, most in ((lives, delivered * blocks), (lives + 1, 1_000)):
            spool = DiskSpool(directory, boot_id=f"{boot:016x}", config=SpoolConfig(max_bytes=64 * 1024))
            for _ in range(most):
                sequence = spool.next_held(spool.base)
                if sequence is None:
                    break
                life = spool.delivering
                learner.take((life, sequence, spool.base, spool.gap_before(sequence)))
                spool.free(learner.table.expected("pi", life) - 1)
            spool._let_go()
            disk.cut_power()
        assert learner.journal == made, "each once, in order"
