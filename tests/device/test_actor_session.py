"""The actor's protocol: whatever is lost, doubled, reordered or restarted, every block arrives exactly once."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.actor.outbox import MemoryOutbox
from quarl_device.actor.session import ActorSession, SessionConfig
from quarl_device.errors import UsageError
from quarl_edge.ingest.sessions import SessionTable, Verdict

BOOT = "0123456789abcdef"


@dataclasses.dataclass
class Learner:
    """Stores what comes next; a crash loses what is not durable."""

    epoch: int = 1
    beat: int = 0
    stored: int = 0
    durable: int = 0
    ahead: int = 2
    credit: int = 0

    def take(self, sequence, base):
        assert base <= self.stored, "the actor freed what was not durable"
        # In order and once (W1): everything else is a duplicate or a gap.
        if sequence == self.stored:
            self.stored += 1

    def ack(self):
        self.credit = max(self.credit, self.stored + self.ahead)
        return {"epoch": self.epoch, "inserted": self.stored - 1, "durable": self.durable - 1, "credit": self.credit}

    def restart(self, clean):
        if clean:
            self.durable = self.stored
        self.stored, self.credit, self.beat = self.durable, 0, 0
        self.epoch += 1


class World:
    """An actor, a learner, and what is in the air between them."""

    def __init__(self, learner, config=None):
        self.now_s = 0.0
        self.learner = learner
        self.session = ActorSession(MemoryOutbox(BOOT), config)
        self.outbox = self.session._outbox
        self.up, self.down = [], []
        self.made = []

    def pump(self):
        """Do what the agent does after every event."""
        while (sequence := self.session.next_to_send(self.now_s)) is not None:
            assert sequence < self.session.credit
            payload = self.outbox.get(sequence)
            assert payload is not None
            self.up.append(payload)
            self.session.sent(sequence)
        if self.session.announce_due(self.now_s):
            self.up.append(b"announce")
            self.session.announced(self.now_s)

    def make(self):
        if self.session.blocked():
            return
        sequence = self.session.next_sequence
        payload = f"{sequence} {self.session.base}".encode()
        assert self.session.block_made(payload, epoch=1, version=1, now_s=self.now_s) == sequence
        self.made.append(sequence)

    def arrive(self, payload):
        """A message reaches the learner, which answers."""
        if payload != b"announce":
            self.learner.take(*map(int, payload.split()))
        self.down.append(self.learner.ack())

    def hear(self, ack):
        self.session.ack(boot_id=BOOT, now_s=self.now_s, **ack)

    def birth(self):
        self.learner.beat += 1
        self.session.learner_online(epoch=self.learner.epoch, beat=self.learner.beat, in_turns=False, now_s=self.now_s)

    def link(self, up):
        self.session.link_changed(up=up, now_s=self.now_s)
        if not up:
            self.up.clear()
            self.down.clear()

    def calm(self, rounds=200):
        """A sound network from here on; returns whether everything became durable and the loop may run."""
        self.link(up=True)
        for number in range(rounds):
            if number % 20 == 0:
                self.birth()
            self.now_s += 0.5
            self.session.tick(self.now_s)
            self.pump()
            for payload in self.up[:]:
                self.arrive(payload)
            for ack in self.down[:]:
                self.hear(ack)
            self.up.clear()
            self.down.clear()
            self.learner.durable = self.learner.stored
            self.down.append(self.learner.ack())
            if not self.session.pending and not self.session.blocked():
                return True
        return False


KINDS = [
    # Most of the time a network works, or no history would come far.
    *["make", "make", "arrive", "hear", "all arrives", "all is heard", "sync"] * 4,
    "restore", "birth", "lose up", "lose down", "double up", "double down", "tick", "cut", "restore", "crash",
    "restart", "gone", "birth", "more credit", "sync",
]  # fmt: skip


def act(world, kind, number):
    up, down = world.up, world.down
    match kind:
        case "make":
            world.make()
        case "arrive" if up:
            world.arrive(up.pop(number % len(up)))
        case "hear" if down:
            world.hear(down.pop(number % len(down)))
        case "all arrives":
            while up:
                world.arrive(up.pop(0))
        case "all is heard":
            while down:
                world.hear(down.pop(0))
        case "lose up" if up:
            up.pop(number % len(up))
        case "lose down" if down:
            down.pop(number % len(down))
        case "double up" if up:
            up.append(up[number % len(up)])
        case "double down" if down:
            down.append(down[number % len(down)])
        case "tick":
            world.now_s += number % 40
            world.session.tick(world.now_s)
        case "cut":
            world.link(up=False)
        case "restore":
            world.link(up=True)
        case "crash" | "restart":
            world.learner.restart(clean=kind == "restart")
            world.birth()
        case "gone":
            world.session.learner_gone(epoch=world.learner.epoch, left=number % 2 == 0)
        case "birth":
            world.birth()
        case "more credit":
            world.learner.ahead = number % 6
            down.append(world.learner.ack())
        case "sync":
            world.learner.durable += number % (world.learner.stored - world.learner.durable + 1)
            down.append(world.learner.ack())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 99)), min_size=40, max_size=120))
def test_every_block_ends_exactly_once_in_the_learner_and_nothing_waits_for_ever(events):
    world = World(Learner(), SessionConfig(max_in_flight_blocks=3))
    world.session.policy_accepted(1, 1)
    world.link(up=True)
    world.birth()
    for kind, number in events:
        act(world, kind, number)
        world.pump()
        assert world.learner.durable <= world.learner.stored <= world.session.next_sequence
        # Nothing is forgotten that a crash of the learner would still need.
        assert world.session.base <= world.learner.durable
    world.learner.ahead = 2
    assert world.calm(), (world.session.blocked(), world.session.pending)
    assert world.learner.stored == len(world.made)
    assert world.made == list(range(len(world.made)))


class Forgetful:
    """The learner's real session table; a restart may know nothing of what was before."""

    def __init__(self):
        self.epoch, self.beat, self.ahead = 1, 0, 3
        self.durable = self.stored = 0
        self.table = SessionTable(1)
        self.table.open("a", BOOT)
        self.accepted = []

    def take(self, sequence, base):
        if self.table.admit("a", BOOT, sequence, base) is Verdict.ACCEPT:
            self.accepted.append(sequence)

    def ack(self):
        self.table.grant("a", self.ahead)
        ack = self.table.ack("a")
        return {"epoch": ack.epoch, "inserted": ack.inserted, "durable": ack.durable, "credit": ack.credit}

    def forget(self):
        self.epoch += 1
        self.table = SessionTable(self.epoch)
        self.table.open("a", BOOT)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 5))
def test_a_learner_that_lost_everything_goes_on_with_a_running_actor(before, between, after):
    learner = Forgetful()
    world = World(learner)
    world.session.policy_accepted(1, 1)
    assert world.calm()
    for _ in range(before):
        world.make()
        assert world.calm()
    for _ in range(between):
        world.make()
    learner.forget()
    world.birth()
    for _ in range(after):
        world.make()
    assert world.calm()
    world.make()
    assert world.calm()
    assert learner.accepted == sorted(set(learner.accepted)), "twice or out of order"
    assert learner.accepted == world.made


def ready(**config):
    session = ActorSession(MemoryOutbox(BOOT), SessionConfig(**config))
    session.link_changed(up=True, now_s=0.0)
    session.learner_online(epoch=1, beat=1, in_turns=False, now_s=0.0)
    session.policy_accepted(1, 1)
    return session


def grant(session, credit, *, inserted=-1, durable=-1, epoch=1, now_s=0.0):
    return session.ack(boot_id=BOOT, epoch=epoch, inserted=inserted, durable=durable, credit=credit, now_s=now_s)


def make(session, count=1, version=1):
    for _ in range(count):
        session.block_made(b"x", epoch=1, version=version, now_s=0.0)


def drain(session):
    sent = []
    while (sequence := session.next_to_send(0.0)) is not None:
        sent.append(sequence)
        session.sent(sequence)
    return sent


def test_it_says_why_it_stands_still():
    session = ActorSession(MemoryOutbox(BOOT, max_bytes=2))
    assert session.blocked() == "link down"
    session.link_changed(up=True, now_s=0.0)
    assert session.blocked() == "no learner"
    session.learner_online(epoch=1, beat=1, in_turns=False, now_s=0.0)
    assert session.blocked() == "no policy"
    session.policy_accepted(1, 1)
    assert session.blocked() == "no credit"
    grant(session, 9)
    assert session.blocked() == ""
    make(session, 2)
    assert session.blocked() == "spool full: learner slow"
    grant(session, 9, inserted=1, durable=1)
    assert session.blocked() == ""
    make(session, 1)
    session.learner_gone(epoch=1, left=False)
    assert session.blocked() == ""
    make(session, 1)
    assert session.blocked() == "spool full: learner lost"


def test_a_full_spool_says_what_is_behind_it_and_since_when():
    session = ready_with(MemoryOutbox(BOOT, max_bytes=2), max_offline_s=100.0)
    grant(session, 3)
    make(session, 1)
    assert drain(session) == [0]
    make(session, 1)
    assert session.blocked() == "spool full: learner slow"
    drain(session)
    grant(session, 3, inserted=1)
    assert session.blocked() == "spool full: learner slow", "it has them, and not safe"
    session.link_changed(up=False, now_s=10.0)
    session.tick(10.0)
    session.tick(25.0)
    assert (session.blocked(), session.absent_s) == ("spool full: link down", 15.0)
    session.link_changed(up=True, now_s=25.0)
    session.tick(25.0)
    assert session.absent_s == 0.0


def test_a_full_spool_whose_next_block_waits_for_credit_says_so():
    session = ready_with(MemoryOutbox(BOOT, max_bytes=2), max_offline_s=100.0)
    session.learner_gone(epoch=1, left=False)
    session.tick(0.0)
    make(session, 2)
    assert session.blocked() == "spool full: learner lost"
    session.learner_online(epoch=1, beat=99, in_turns=False, now_s=0.0)
    assert session.blocked() == "spool full: no credit"
    assert session.meet_task("another", 0.0)
    assert session.blocked() == "spool full: learner of another task"


def test_credit_bounds_what_is_sent_and_made():
    session = ready()
    grant(session, 2)
    make(session, 2)
    assert drain(session) == [0, 1]
    assert session.blocked() == "no credit"
    assert grant(session, 3)
    assert session.blocked() == ""


def test_an_ack_for_many_blocks_at_once_gives_all_its_credit():
    session = ready()
    grant(session, 8)
    make(session, 8)
    assert drain(session) == list(range(8))
    assert session.blocked() == "no credit"
    assert grant(session, 16, inserted=7, durable=7)
    assert (session.credit, session.blocked()) == (16, "")


def test_acks_that_cannot_be_true_say_nothing():
    session = ready()
    make(session, 2)
    for wrong in (
        {"inserted": 2, "durable": 0},
        {"inserted": 0, "durable": 1},
        {"inserted": 1, "durable": 1, "epoch": 0},
        {"inserted": 1, "durable": 1, "epoch": 7},
    ):
        assert not grant(session, 99, **wrong)
    assert (session.inserted, session.durable, session.credit, session.pending) == (-1, -1, 0, 2)


def test_an_older_ack_takes_nothing_back():
    session = ready()
    make(session, 3)
    grant(session, 9, inserted=1, durable=1)
    assert not grant(session, 2, inserted=0, durable=0)
    assert (session.inserted, session.credit, session.base) == (1, 9, 2)


@pytest.mark.parametrize("event", ["link", "epoch", "back", "silence"])
def test_what_may_be_lost_is_sent_again(event):
    session = ready()
    grant(session, 5)
    make(session, 4)
    assert drain(session) == [0, 1, 2, 3]
    grant(session, 5, inserted=1)
    assert drain(session) == []
    match event:
        case "link":
            session.link_changed(up=False, now_s=1.0)
            assert drain(session) == []
            session.link_changed(up=True, now_s=2.0)
        case "epoch":
            assert session.learner_online(epoch=2, beat=1, in_turns=False, now_s=1.0)
            assert drain(session) == []  # no credit of this learner yet
            # What the old learner inserted without its being durable may be gone with it.
            grant(session, 9, epoch=2)
            assert drain(session) == [0, 1, 2, 3]
            return
        case "back":
            session.learner_gone(epoch=1, left=False)
            assert drain(session) == []
            session.learner_online(epoch=1, beat=2, in_turns=False, now_s=1.0)
        case "silence":
            session.tick(0.9)
            assert drain(session) == []
            session.tick(1.1)
    assert drain(session) == [2, 3]
    assert session.resends == 2


def test_silence_is_met_with_growing_patience():
    session = ready(resend_after_s=1.0, resend_max_s=4.0)
    grant(session, 5)
    make(session, 1)
    drain(session)
    again = []
    for tenth in range(1, 200):
        session.tick(tenth / 10)
        if drain(session):
            again.append(tenth / 10)
    gaps = [round(b - a, 1) for a, b in itertools.pairwise(again)]
    assert again[0] == 1.0
    assert gaps == [2.0, 4.0, 4.0, 4.0, 4.0]


def test_an_actor_without_credit_asks_again():
    session = ready()
    assert session.announce_due(0.0)
    session.announced(0.0)
    session.tick(0.5)
    assert not session.announce_due(0.5)
    session.tick(1.5)
    assert session.announce_due(1.5)


def test_the_birth_is_renewed_and_follows_a_new_epoch():
    session = ready(announce_every_s=10.0)
    grant(session, 5)
    session.announced(0.0)
    assert not session.announce_due(9.9)
    assert session.announce_due(10.0)
    session.announced(10.0)
    session.learner_online(epoch=2, beat=1, in_turns=False, now_s=11.0)
    assert session.announce_due(11.0)
    session.announced(11.0)
    session.request_announce()
    assert session.announce_due(11.0)
    session.link_changed(up=False, now_s=12.0)
    assert not session.announce_due(12.0)


def test_an_older_learner_is_ignored():
    session = ready()
    session.learner_online(epoch=5, beat=1, in_turns=False, now_s=0.0)
    grant(session, 3, epoch=5)
    assert not session.learner_online(epoch=4, beat=9, in_turns=True, now_s=0.0)
    assert (session.epoch, session.credit, session.blocked()) == (5, 3, "")
    assert not session.learner_gone(epoch=4, left=True)


def test_a_learner_that_falls_silent_counts_as_gone_until_it_is_heard():
    session = ready(learner_silent_s=30.0)
    session.tick(31.0)
    assert session.blocked() == "learner lost"
    # The same beat again is the retained message, not a sign of life.
    session.learner_online(epoch=1, beat=1, in_turns=False, now_s=32.0)
    assert session.blocked() == "learner lost"
    session.learner_online(epoch=1, beat=2, in_turns=False, now_s=33.0)
    assert session.blocked() == "no credit"


def test_lockstep_makes_one_block_per_policy_of_this_epoch():
    session = ready()
    session.learner_online(epoch=1, beat=2, in_turns=True, now_s=0.0)
    grant(session, 9)
    assert session.blocked() == ""
    make(session)
    assert session.blocked() == "waiting for the next policy"
    session.policy_accepted(1, 2)
    assert session.blocked() == ""
    session.learner_online(epoch=2, beat=1, in_turns=True, now_s=0.0)
    grant(session, 9, epoch=2)
    assert session.blocked() == "waiting for the next policy"
    session.policy_accepted(2, 1)
    assert session.blocked() == ""


def test_a_round_ends_when_it_is_said_to_and_only_then_waits():
    session = ready()
    session.learner_online(epoch=1, beat=2, in_turns=True, now_s=0.0)
    grant(session, 9)

    def make_block(version, *, ends_turn):
        session.block_made(b"x", epoch=1, version=version, now_s=0.0, ends_turn=ends_turn)

    make_block(1, ends_turn=False)
    assert session.blocked() == ""
    # A newer policy waits for the round's end; the round goes on.
    session.policy_accepted(1, 2)
    make_block(1, ends_turn=False)
    make_block(1, ends_turn=True)
    assert session.blocked() == ""
    make_block(2, ends_turn=True)
    assert session.blocked() == "waiting for the next policy"
    session.policy_accepted(1, 3)
    make_block(3, ends_turn=False)
    # The learner was killed inside a round: its next life's policy begins another.
    session.learner_online(epoch=2, beat=1, in_turns=True, now_s=0.0)
    grant(session, 9, epoch=2)
    assert session.blocked() == "waiting for the next policy"
    session.policy_accepted(2, 1)
    assert session.blocked() == ""


def test_giving_up_what_is_pending_shows_in_base():
    session = ready()
    grant(session, 9)
    make(session, 3)
    grant(session, 9, inserted=0, durable=0)
    assert session.begin_task("another", 0.0) == 2
    assert (session.pending, session.base) == (0, 3)
    make(session)
    assert drain(session) == [3]


def test_what_another_task_sets_aside_is_kept_and_sent_when_its_own_comes_back():
    session = ready()
    assert not session.meet_task("its own", 0.0)
    grant(session, 9)
    make(session, 2)
    assert session.meet_task("another", 0.0)
    assert not session.meet_task("another", 1.0), "news once"
    assert (session.sets_aside, session.pending, drain(session), session.awaits_insertion) == (True, 2, [], False)
    assert not session.meet_task("its own", 2.0)
    assert (session.sets_aside, drain(session), session.awaits_insertion) == (False, [0, 1], True)
    assert session.meet_task("another", 3.0)
    assert session.begin_task("another", 3.0) == 2
    assert (session.sets_aside, session.pending, session.base) == (False, 0, 2)


def test_only_so_much_is_in_the_air_at_once():
    session = ready(max_in_flight_blocks=2)
    grant(session, 9)
    make(session, 5)
    assert drain(session) == [0, 1]
    grant(session, 9, inserted=0)
    assert drain(session) == [2]


def test_a_send_that_failed_is_next_again():
    session = ready()
    grant(session, 9)
    make(session, 2)
    session.sent(0)
    session.not_taken(0)
    assert drain(session) == [0, 1]
    assert session.resends == 0


@pytest.mark.parametrize("wrong", [{"resend_after_s": 0}, {"resend_after_s": 20}, {"max_in_flight_blocks": 0}])
def test_impatience_is_refused(wrong):
    with pytest.raises(UsageError):
        SessionConfig(**wrong)


# -- lives, gaps, absence ----------------------------------------------------------------------------------------------


class TwoLives(MemoryOutbox):
    """What a spool shows a session: `earlier` blocks of one life, then this life's own."""

    def __init__(self, earlier, *, missing=()):
        super().__init__(BOOT)
        self.earlier = dict.fromkeys(n for n in range(earlier) if n not in missing)

    @property
    def delivering(self):
        return EARLIER if self.earlier else BOOT

    @property
    def base(self):
        return min(self.earlier) if self.earlier else super().base

    @property
    def end(self):
        return max(self.earlier) + 1 if self.earlier else super().end

    def __len__(self):
        return len(self.earlier) + super().__len__()

    def next_held(self, sequence):
        if self.earlier:
            return min((n for n in self.earlier if n >= sequence), default=None)
        return super().next_held(sequence)

    def free(self, durable):
        if not self.earlier:
            return super().free(durable)
        gone = [n for n in self.earlier if n <= durable]
        for sequence in gone:
            del self.earlier[sequence]
        return len(gone)


EARLIER = "00000000000000ee"


def ready_with(outbox, **config):
    session = ActorSession(outbox, SessionConfig(**config))
    session.link_changed(up=True, now_s=0.0)
    session.learner_online(epoch=1, beat=1, in_turns=False, now_s=0.0)
    session.policy_accepted(1, 1)
    return session


def say(session, boot_id, stored, credit):
    return session.ack(boot_id=boot_id, epoch=1, inserted=stored, durable=stored, credit=credit, now_s=0.0)


def test_an_earlier_life_is_delivered_to_its_end_before_this_one():
    session = ready_with(TwoLives(3))
    assert session.delivering == EARLIER
    assert session.blocked() == "catching up"
    assert not say(session, BOOT, -1, 9), "credit for the next life has to wait"
    say(session, EARLIER, -1, 9)
    assert drain(session) == [0, 1, 2]
    session.announced(0.0)
    say(session, EARLIER, 1, 9)
    assert (session.delivering, session.blocked()) == (EARLIER, "catching up")
    assert session.awaits_insertion
    say(session, EARLIER, 2, 9)
    assert (session.delivering, session.inserted, session.credit) == (BOOT, -1, 0)
    assert session.announce_due(0.0), "the learner hears whose blocks come now"
    say(session, BOOT, -1, 2)
    assert session.blocked() == ""
    make(session)
    assert drain(session) == [0]


def test_a_learner_that_knows_more_of_an_earlier_life_than_is_left_of_it_ends_it():
    """A power cut took blocks that had been sent."""
    session = ready_with(TwoLives(3))
    assert say(session, EARLIER, 7, 12)
    assert session.delivering == BOOT
    make(session)
    assert not say(session, BOOT, 5, 12), "of its own life nobody knows more"


def test_a_gap_uses_no_credit():
    """The learner cannot know of it before the block behind it comes."""
    session = ready_with(TwoLives(500, missing=range(2, 400)))
    say(session, EARLIER, -1, 3)
    assert drain(session) == [0, 1]
    say(session, EARLIER, 1, 5)
    assert drain(session) == [400, 401, 402]


def test_blocks_that_turn_out_damaged_are_passed_over():
    outbox = TwoLives(2)
    session = ready_with(outbox)
    say(session, EARLIER, -1, 9)
    assert session.next_to_send(0.0) == 0
    del outbox.earlier[0]
    session.not_held(0.0)
    assert session.next_to_send(0.0) == 1
    del outbox.earlier[1]
    session.not_held(0.0)
    assert (session.delivering, session.next_to_send(0.0)) == (BOOT, None)


def test_without_a_learner_the_loop_goes_on_for_as_long_as_it_may():
    session = ready(max_offline_s=10.0)
    grant(session, 1)
    make(session)
    drain(session)
    assert session.blocked() == "no credit", "while the learner is there its credit counts"
    session.learner_gone(epoch=1, left=False)
    session.tick(100.0)
    assert session.blocked() == ""
    make(session, 5)
    session.tick(109.9)
    assert session.blocked() == ""
    session.tick(110.1)
    assert session.blocked() == "learner lost"
    session.link_changed(up=False, now_s=111.0)
    assert session.blocked() == "link down"
    session.link_changed(up=True, now_s=112.0)
    session.learner_online(epoch=1, beat=2, in_turns=False, now_s=112.0)
    session.tick(112.0)
    assert session.blocked() == "catching up"
    session.link_changed(up=False, now_s=113.0)
    session.tick(113.0)
    assert session.blocked() == "", "time without a learner is counted anew"


def test_without_a_learner_no_more_blocks_wait_than_may():
    """A fast simulator would make minutes of learning out of a minute without a link."""
    session = ready(max_offline_s=1e9, max_offline_blocks=4)
    grant(session, 1)
    make(session)
    drain(session)
    assert (session.blocked(), session.stopped_by_blocks) == ("no credit", False)
    session.learner_gone(epoch=1, left=False)
    made = 1
    while not session.blocked():
        make(session)
        made += 1
    assert (made, session.blocked(), session.stopped_by_blocks) == (4, "learner lost", True)
    session.learner_online(epoch=1, beat=2, in_turns=False, now_s=9.0)
    assert (session.blocked(), session.stopped_by_blocks) == ("catching up", False)
    grant(session, 99, inserted=1, durable=1)
    session.link_changed(up=False, now_s=10.0)
    assert session.blocked() == "", "credit that was given is used up first"


def test_after_a_goodbye_it_pauses_at_once_whatever_credit_and_patience_are_left():
    session = ready(max_offline_s=60.0)
    grant(session, 9)
    make(session)
    assert session.learner_gone(epoch=1, left=True)
    assert session.blocked() == "learner left"
    assert not session.learner_gone(epoch=1, left=False), "a will that comes late takes no goodbye back"
    session.link_changed(up=False, now_s=1.0)
    session.tick(2.0)
    assert session.blocked() == "link down", "and nothing else does"
    session.link_changed(up=True, now_s=3.0)
    session.learner_online(epoch=2, beat=1, in_turns=False, now_s=4.0)
    grant(session, 9, epoch=2)
    assert session.blocked() == ""


def test_a_goodbye_is_heard_after_silence_and_after_a_will():
    for gone in ("silent", "lost"):
        session = ready(learner_silent_s=30.0)
        grant(session, 9)
        session.tick(31.0)
        if gone == "lost":
            assert session.learner_gone(epoch=1, left=False)
        assert session.learner == gone
        assert session.learner_gone(epoch=1, left=True)
        assert session.blocked() == "learner left"


def test_a_spool_that_cannot_be_written_stops_the_loop_with_and_without_a_learner():
    session = ready(max_offline_s=10.0)
    grant(session, 9)
    session._outbox.fault = "No space left on device"
    assert session.blocked() == "spool cannot be written"
    session.link_changed(up=False, now_s=0.0)
    assert session.blocked() == "spool cannot be written"


def test_bytes_in_the_air_are_bounded_too():
    session = ready(max_in_flight_bytes=250)
    grant(session, 9)
    make(session, 6)
    sent = []
    while (sequence := session.next_to_send(0.0)) is not None:
        session.sent(sequence, 100)
        sent.append(sequence)
    assert sent == [0, 1, 2], "one may go over"
    grant(session, 9, inserted=0)
    assert session.next_to_send(0.0) == 3


def test_catching_up_is_paced():
    session = ready(max_upload_bytes_per_s=1_000.0)
    grant(session, 99)
    make(session, 60)
    sent = {}
    for tenth in range(40):
        now_s = tenth / 10
        while (sequence := session.next_to_send(now_s)) is not None:
            session.sent(sequence, 100)
            sent[sequence] = now_s
        if sent:
            grant(session, 99, inserted=max(sent), now_s=now_s)
    assert list(sent) == list(range(len(sent)))
    # 1,000 bytes a second, a quarter of a second at once, and one block that goes over.
    assert 39 <= len(sent) <= 43
    assert sum(at_s == 0.0 for at_s in sent.values()) <= 4


@pytest.mark.parametrize(
    "wrong",
    [{"max_in_flight_bytes": 0}, {"max_offline_s": -1}, {"max_offline_blocks": -1}, {"max_upload_bytes_per_s": -1}],
)
def test_bounds_that_do_not_hold_are_refused(wrong):
    with pytest.raises(UsageError):
        SessionConfig(**wrong)


@pytest.mark.parametrize(("left", "blocked"), [(True, "learner left"), (False, "")])
def test_a_late_ack_does_not_bring_a_learner_back_that_has_gone(left, blocked):
    session = ready(max_offline_s=10.0)
    grant(session, 1)
    make(session)
    session.learner_gone(epoch=1, left=left)
    assert grant(session, 1, inserted=0, durable=0), "what it says still counts"
    assert session.blocked() == blocked
    session.learner_online(epoch=1, beat=2, in_turns=False, now_s=0.0)
    assert session.blocked() == "no credit"


def test_what_a_slow_link_still_carries_is_not_sent_again():
    """Eight MiB take a minute on some links: sending them again after a second would never end."""
    session = ready(resend_after_s=1.0, stuck_after_s=60.0, learner_silent_s=1e6)
    grant(session, 9)
    make(session, 3)
    assert drain(session) == [0, 1, 2]
    for second in range(1, 60):
        session.tick(float(second), in_air=True)
        assert drain(session) == []
    session.tick(60.0, in_air=True)
    assert drain(session) == [0, 1, 2], "but it is not waited for for ever"
    session.tick(61.0)
    assert drain(session) == []
    session.tick(62.1)
    assert drain(session) == [0, 1, 2]
