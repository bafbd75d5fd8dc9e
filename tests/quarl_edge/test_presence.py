"""W8: one learner per fleet, with an epoch later than all that is known."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import LearnerAlive
from quarl_device.link import Message
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.messages import HIGHEST_BELIEVABLE_EPOCH, DeviceState, LearnerBirth
from quarl_device.wire.topics import Topics
from quarl_edge.learner import claim
from quarl_edge.learner import presence as module
from quarl_edge.learner.claim import Predecessor, claim_fleet, next_epoch
from quarl_edge.learner.presence import Presence, gone_birth, will_of
from quarl_edge.learner.stop import AskedToStop

TOPICS = Topics("f")


def birth(**changes):
    fields = {
        "status": "online", "epoch": 100, "beat": 1, "env_id": "CartPole-v1", "algorithm": "dqn",
        "observations": (ObservationSpec(key="observation", shape=(4,)),),
        "action": ActionSpec(kind="discrete", n=2), "public_key": "ab" * 32, "mode": "async", "seed": 0,
        "block_steps": 16, "version": "0",
    }  # fmt: skip
    return LearnerBirth(**{**fields, **changes})


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(claim, "RETAINED_WAIT_S", 0.0)


@pytest.fixture
def broker():
    return FakeBroker()


def connected(broker, name="learner"):
    link = broker.link(name)
    link.connect(timeout_s=1)
    return link


@given(unix_s=st.floats(0, 3e9), highest=st.integers(0, 3_999_999_999), checkpoint=st.integers(0, 3_999_999_999))
def test_w8_an_epoch_is_later_than_the_clock_the_wire_and_the_checkpoint(unix_s, highest, checkpoint):
    epoch = next_epoch(unix_s=unix_s, highest_seen=highest, checkpoint_epoch=checkpoint)
    assert epoch >= int(unix_s)
    assert epoch > highest or highest >= unix_s + 10 * 365 * 86_400
    assert epoch > checkpoint


def test_w8_a_forged_epoch_leaves_room_for_all_learners_to_come():
    """Whatever is left behind, learners go on below what actors believe, each later than the one before."""
    now, epoch = 1_800_000_000, 0
    for forged in (3_999_999_999, now + 9 * 365 * 86_400, 2**32 - 1):
        later = next_epoch(unix_s=now, highest_seen=max(epoch, forged), checkpoint_epoch=epoch)
        assert epoch < later < HIGHEST_BELIEVABLE_EPOCH - 10**9
        epoch = later


def test_w8_a_birth_said_just_now_keeps_a_starting_learner_out_even_if_the_claim_missed_it(broker):
    for takeover in (False, True):
        two = Two(broker, epoch=500)
        two.presence = Presence(two.link, TOPICS, birth(epoch=500), takeover=takeover)
        two.hear(birth(epoch=400, beat=7).encode())
        if takeover:
            two.presence.check()
        else:
            with pytest.raises(LearnerAlive):
                two.presence.check()


def test_w8_an_absurd_epoch_left_by_anybody_is_not_believed():
    assert next_epoch(unix_s=1_000, highest_seen=2**32 - 1, checkpoint_epoch=0) == 1_000


def test_w8_an_empty_fleet_is_claimed_at_once(broker):
    started = time.monotonic()
    assert claim_fleet(connected(broker), TOPICS, takeover=False, cancelled=lambda: False) == 0
    assert time.monotonic() - started < 1


def test_w8_a_stale_birth_is_watched_and_then_overruled(broker):
    connected(broker, "old").publish(TOPICS.learner, birth(epoch=700).encode(), retain=True)
    link = connected(broker)
    assert claim_fleet(link, TOPICS, takeover=False, cancelled=lambda: False, watch_s=0.3) == 700


def test_w8_a_birth_that_is_renewed_makes_the_second_learner_leave(broker):
    other = connected(broker, "other")
    other.publish(TOPICS.learner, birth(beat=1).encode(), retain=True)
    renewal = threading.Timer(0.2, other.publish, (TOPICS.learner, birth(beat=2).encode()), {"retain": True})
    renewal.start()
    with pytest.raises(LearnerAlive, match="100") as caught:
        claim_fleet(connected(broker), TOPICS, takeover=False, cancelled=lambda: False, watch_s=10)
    renewal.join()
    assert "--takeover" in caught.value.hint
    assert caught.value.code == 70


def test_w8_takeover_does_not_watch(broker):
    connected(broker, "other").publish(TOPICS.learner, birth().encode(), retain=True)
    started = time.monotonic()
    assert claim_fleet(connected(broker), TOPICS, takeover=True, cancelled=lambda: False, watch_s=30) == 100
    assert time.monotonic() - started < 1


def test_w8_a_learner_that_said_goodbye_is_not_watched(broker):
    connected(broker, "other").publish(TOPICS.learner, gone_birth(birth(epoch=9), left=True), retain=True)
    started = time.monotonic()
    assert claim_fleet(connected(broker), TOPICS, takeover=False, cancelled=lambda: False, watch_s=30) == 9
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("payload", [birth().encode(), gone_birth(birth(), left=False)], ids=["online", "lost"])
def test_w8_a_watch_that_the_user_cuts_short_never_reads_as_a_free_fleet(broker, payload):
    connected(broker, "other").publish(TOPICS.learner, payload, retain=True)
    started = time.monotonic()
    with pytest.raises(AskedToStop):
        claim_fleet(connected(broker), TOPICS, takeover=False, cancelled=lambda: True)
    assert time.monotonic() - started < 1


def test_w8_a_learner_that_was_lost_is_watched_for_a_while_and_that_is_said(broker, caplog):
    connected(broker, "other").publish(TOPICS.learner, gone_birth(birth(epoch=9), left=False), retain=True)
    started = time.monotonic()
    link = connected(broker)
    assert claim_fleet(link, TOPICS, takeover=False, cancelled=lambda: False, lost_watch_s=0.4) == 9
    assert 0.4 <= time.monotonic() - started < 5
    assert "a learner (epoch 9) was lost without a goodbye; watching 0 s whether it comes back" in caplog.text
    assert 3.0 <= claim.LOST_WATCH_S <= 10.0


def test_w8_a_learner_that_comes_back_while_watched_keeps_the_second_one_out(broker):
    other = connected(broker, "other")
    other.publish(TOPICS.learner, gone_birth(birth(beat=1), left=False), retain=True)
    back = threading.Timer(0.2, other.publish, (TOPICS.learner, birth(beat=2).encode()), {"retain": True})
    back.start()
    with pytest.raises(LearnerAlive, match="epoch 100, CartPole-v1, dqn"):
        claim_fleet(connected(broker), TOPICS, takeover=False, cancelled=lambda: False, lost_watch_s=10)
    back.join()


def test_w8_a_goodbye_ends_the_watch(broker):
    other = connected(broker, "other")
    other.publish(TOPICS.learner, birth(beat=1).encode(), retain=True)
    payload = gone_birth(birth(beat=1), left=True)
    bye = threading.Timer(0.2, other.publish, (TOPICS.learner, payload), {"retain": True})
    bye.start()
    started = time.monotonic()
    assert claim_fleet(connected(broker), TOPICS, takeover=False, cancelled=lambda: False, watch_s=30) == 100
    assert time.monotonic() - started < 5
    bye.join()


def said(payload, *, retain=True):
    return Message(topic=TOPICS.learner, payload=payload, retain=retain)


@pytest.mark.parametrize(
    ("messages", "alive"),
    [
        ([said(birth(beat=7).encode()), said(birth(beat=7).encode())], False),
        ([said(birth(beat=7).encode()), said(birth(beat=8).encode())], True),
        ([said(birth(beat=7).encode(), retain=False)], True),
        ([said(birth(beat=7).encode()), said(gone_birth(birth(beat=3), left=False), retain=False)], False),
        ([said(gone_birth(birth(beat=3), left=False))] * 2, False),
        ([said(gone_birth(birth(beat=3), left=False)), said(gone_birth(birth(beat=4), left=False))], True),
        ([said(gone_birth(birth(beat=4), left=False)), said(gone_birth(birth(beat=3), left=False))], False),
        ([said(birth(beat=7).encode(), retain=False), said(gone_birth(birth(beat=7), left=True))], False),
    ],
    ids=["the same again", "renewed", "said just now", "its own will", "the same will", "a later will", "an older will",
         "a goodbye"],
)  # fmt: skip
def test_w8_what_counts_as_a_sign_of_life(messages, alive):
    predecessor = Predecessor()
    for message in messages:
        predecessor.on_birth(message)
    assert predecessor.alive_within(0.0, cancelled=lambda: False) == alive


@pytest.mark.parametrize("payload", [b"", b"{", b"QPOL" + bytes(200), bytes(1_000)])
def test_w4_garbage_on_the_retained_topics_is_survived(payload):
    predecessor = Predecessor()
    predecessor.on_birth(Message(topic=TOPICS.learner, payload=payload, retain=True))
    predecessor.on_policy(Message(topic=TOPICS.policy, payload=payload, retain=True))
    assert predecessor.highest_epoch == 0
    assert predecessor.birth is None


def test_a_birth_is_renewed_with_a_growing_beat(broker, monkeypatch):
    monkeypatch.setattr(module, "RENEW_PERIOD_S", 0.0)
    presence = Presence(connected(broker), TOPICS, birth(beat=0))
    presence.announce()
    presence.tick()
    beats = [LearnerBirth.decode(m.payload).beat for m in broker.log if m.topic == TOPICS.learner]
    assert beats == [1, 2]


def test_a_birth_is_not_renewed_before_its_time(broker):
    presence = Presence(connected(broker), TOPICS, birth())
    presence.announce()
    presence.tick()
    assert len([m for m in broker.log if m.topic == TOPICS.learner]) == 1


def test_the_birth_comes_again_after_a_reconnection(broker):
    link = connected(broker)
    presence = Presence(link, TOPICS, birth(beat=0))
    presence.announce()
    broker.cut("learner")
    link.reconnect()
    assert LearnerBirth.decode(broker.retained[TOPICS.learner]).beat == 2


def test_leaving_says_gone_and_leaves_the_policy_for_latecomers(broker):
    link = connected(broker)
    link.publish(TOPICS.policy, b"policy", retain=True)
    presence = Presence(link, TOPICS, birth())
    presence.announce()
    presence.leave(clear=False)
    last = LearnerBirth.decode(broker.retained[TOPICS.learner])
    assert (last.status, last.left) == ("gone", True)
    assert broker.retained[TOPICS.policy] == b"policy"


def test_a_demo_leaves_nothing_retained(broker):
    link = connected(broker)
    link.publish(TOPICS.policy, b"policy", retain=True)
    presence = Presence(link, TOPICS, birth())
    presence.announce()
    presence.leave(clear=True)
    assert not broker.retained
    gone = [m.payload for m in broker.log if m.topic == TOPICS.learner and m.payload]
    assert LearnerBirth.decode(gone[-1]).status == "gone"


def test_the_will_says_gone_and_only_a_goodbye_that_it_left():
    will = will_of(TOPICS, birth(epoch=5))
    assert (will.topic, will.retain) == (TOPICS.learner, True)
    assert LearnerBirth.decode(will.payload) == birth(epoch=5, status="gone", left=False)
    assert LearnerBirth.decode(gone_birth(birth(), left=True)) == birth(status="gone", left=True)


def test_the_will_of_each_connection_has_a_beat_of_its_own(broker):
    link = broker.link("learner", will=will_of(TOPICS, birth(beat=5)))
    link.connect(timeout_s=1)
    presence = Presence(link, TOPICS, birth(beat=5))
    presence.announce()
    wills = []
    for _ in range(3):
        broker.cut("learner", reconnect=False)
        wills.append(LearnerBirth.decode(broker.retained[TOPICS.learner]))
        link.reconnect()
    assert {(will.status, will.left) for will in wills} == {("gone", False)}
    assert [will.beat for will in wills] == sorted({will.beat for will in wills})


def test_a_retained_push_of_a_dead_learner_counts_for_the_epoch(broker):
    from quarl_device.wire.push import Exploration, PushHeader, encode_push

    policy = b"TFL3 stands for a policy"
    import hashlib

    header = PushHeader(
        epoch=4_242, version=1, env_steps=0, sha256=hashlib.sha256(policy).hexdigest(), exploration=Exploration(),
        normalizer_version=0, golden_outputs={}, lsb={}, tolerance_lsb=0, variables_read_unix_ns=1, reset=False,
    )  # fmt: skip
    connected(broker, "old").publish(
        TOPICS.policy, encode_push(header, policy, LearnerKey.generate().sign), retain=True
    )
    assert claim_fleet(connected(broker), TOPICS, takeover=False, cancelled=lambda: False) == 4_242


def test_w8_a_device_that_runs_a_later_epoch_counts_for_the_epoch(broker):
    state = DeviceState(status="online", device="pi", boot_id="ab" * 8, epoch=8_000)
    connected(broker, "pi").publish(TOPICS.state("pi"), state.encode(), retain=True)
    assert claim_fleet(connected(broker), TOPICS, takeover=False, cancelled=lambda: False) == 8_000


def test_w8_one_absurd_epoch_does_not_hide_the_believable_ones(broker):
    for name, epoch in (("a", 2**32 - 1), ("b", 600)):
        state = DeviceState(status="online", device=name, boot_id="ab" * 8, epoch=epoch)
        connected(broker, name).publish(TOPICS.state(name), state.encode(), retain=True)
    assert claim_fleet(connected(broker), TOPICS, takeover=False, cancelled=lambda: False) == 600


class Two:
    """A learner that serves a fleet, and another one that speaks on its topic."""

    def __init__(self, broker, *, shared_id=False, **own):
        self.broker, self.link, self.other = broker, connected(broker), connected(broker, "other")
        self.presence = Presence(self.link, TOPICS, birth(**own), shared_id=shared_id)

    def hear(self, payload):
        self.other.publish(TOPICS.learner, payload, retain=True)

    def births(self):
        return [LearnerBirth.decode(m.payload) for m in self.broker.log if m.topic == TOPICS.learner and m.payload]


@pytest.mark.parametrize(
    "later",
    [
        {"epoch": 101, "beat": 1},
        {"epoch": 100, "beat": 9_000},
        {"epoch": 101, "status": "gone"},
        {"epoch": 101, "status": "gone", "left": True},
    ],
    ids=["a later epoch", "a later beat", "a later will", "a later goodbye"],
)
def test_w8_a_learner_that_was_overtaken_leaves_without_a_word(broker, later):
    two = Two(broker, beat=50)
    two.presence.announce()
    two.hear(birth(**later).encode())
    with pytest.raises(LearnerAlive, match="taken this fleet over") as caught:
        two.presence.tick()
    assert caught.value.code == 70
    said = len(two.births())
    two.presence.announce()
    two.presence.leave(clear=True)
    broker.cut("learner")
    two.link.reconnect()
    assert len(two.births()) == said
    assert broker.retained[TOPICS.learner] == birth(**later).encode()


def test_w8_one_that_another_overtook_while_it_was_being_built_says_nothing_at_all(broker):
    connected(broker, "other").publish(TOPICS.learner, birth(epoch=101).encode(), retain=True)
    presence = Presence(connected(broker), TOPICS, birth(epoch=100))
    with pytest.raises(LearnerAlive):
        presence.check()
    presence.leave(clear=False)
    assert broker.retained[TOPICS.learner] == birth(epoch=101).encode()


@pytest.mark.parametrize(
    "heard",
    [birth(epoch=99).encode(), gone_birth(birth(epoch=99), left=True), birth(epoch=2**32 - 1).encode(), b"{", b""],
)
def test_w8_nothing_else_drives_a_learner_away(broker, heard):
    two = Two(broker)
    two.presence.announce()
    two.hear(heard)
    two.presence.check()


def test_w8_an_older_birth_that_hid_ours_is_answered_at_once(broker):
    two = Two(broker)
    two.presence.announce()
    two.hear(gone_birth(birth(epoch=99), left=False))
    two.presence.tick()
    assert LearnerBirth.decode(broker.retained[TOPICS.learner]).epoch == 100


@pytest.mark.parametrize("left", [False, True], ids=["its own will, come late", "a forged goodbye"])
def test_w8_what_says_that_it_is_gone_is_answered_at_once(broker, left):
    two = Two(broker, beat=7)
    two.presence.announce()
    two.hear(gone_birth(birth(beat=8), left=left))
    two.presence.tick()
    last = LearnerBirth.decode(broker.retained[TOPICS.learner])
    assert (last.status, last.beat) == ("online", 9)


def test_its_own_words_do_not_drive_a_learner_away(broker):
    two = Two(broker, beat=7)
    for _ in range(5):
        two.presence.announce()
    two.hear(gone_birth(birth(beat=7), left=False))
    two.presence.tick()


def test_a_goodbye_is_the_last_word_whatever_the_link_does(broker):
    two = Two(broker)
    two.presence.announce()
    two.presence.leave(clear=False)
    broker.cut("learner")
    two.link.reconnect()
    two.presence.tick()
    assert two.births()[-1].status == "gone"


class OneId:
    """Learners with one client id at a broker that ends the session of the older one, and links that come back."""

    def __init__(self, broker):
        self.broker, self.links = broker, []

    def join(self, epoch=None, beat=1):
        """A claim without an epoch; with one, a learner with its will."""
        will = None if epoch is None else will_of(TOPICS, birth(epoch=epoch, beat=beat))
        link = self.broker.link("learner", will=will)
        self.links.append(link)
        return link

    def serve(self, epoch, beat=1, **options):
        link = self.join(epoch, beat)
        link.connect(timeout_s=1)
        presence = Presence(link, TOPICS, birth(epoch=epoch, beat=beat), **options)
        presence.announce()
        return presence, link

    def turn(self):
        """Each link that is down comes back, and throws the other one off."""
        for link in [one for one in self.links if not one.connected and not one._closed]:
            link.reconnect()


def test_w8_with_one_certificate_the_second_learner_leaves_and_the_first_goes_on(broker):
    """They are never on the broker together: only the wills tell the second one that the first comes back."""
    world = OneId(broker)
    first, link = world.serve(epoch=100)
    second = world.join()
    second.connect(timeout_s=1)
    assert not link.connected
    ended = threading.Event()

    def fight():
        while not ended.wait(0.05):
            world.turn()

    thread = threading.Thread(target=fight)
    thread.start()
    try:
        with pytest.raises(LearnerAlive, match="epoch 100") as caught:
            claim_fleet(second, TOPICS, takeover=False, cancelled=lambda: False, lost_watch_s=20)
        second.close()
    finally:
        ended.set()
        thread.join()
    assert caught.value.code == 70
    assert "goes on; this one ends" in caught.value.message
    assert "enroll" in caught.value.hint
    world.turn()
    assert link.connected
    first.tick()
    last = LearnerBirth.decode(broker.retained[TOPICS.learner])
    assert (last.status, last.epoch) == ("online", 100)


def test_w8_with_one_certificate_a_takeover_ends_the_first_though_it_never_hears_the_second_online(broker):
    world = OneId(broker)
    first, _ = world.serve(epoch=100)
    second, link = world.serve(epoch=200, takeover=True)
    for _ in range(4):
        world.turn()
    with pytest.raises(LearnerAlive, match=r"another learner \(epoch 200\) has taken this fleet over"):
        first.tick()
    first.leave(clear=True)
    world.links[0].close()
    world.turn()
    second.tick()
    assert link.connected
    last = LearnerBirth.decode(broker.retained[TOPICS.learner])
    assert (last.status, last.epoch) == ("online", 200)


@given(one=st.tuples(st.integers(1, 3), st.integers(1, 99)), two=st.tuples(st.integers(1, 3), st.integers(500, 599)))
def test_w8_of_two_learners_that_both_passed_the_claim_exactly_one_goes_on(one, two):
    """Whatever their epochs and beats, with one client id or with two.

    Beats that are random out of 2**31 lie further apart than these learners count.
    """
    for same_id in (True, False):
        broker = FakeBroker()
        world = OneId(broker)
        presences = [world.serve(epoch, beat, takeover=True)[0] for epoch, beat in (one, two)]
        if not same_id:
            broker = FakeBroker()
            presences = []
            for name, (epoch, beat) in zip("ab", (one, two), strict=True):
                own = birth(epoch=epoch, beat=beat)
                presences.append(Presence(connected(broker, name), TOPICS, own, takeover=True))
                presences[-1].announce()
        standing = list(presences)
        for _ in range(6):
            if same_id:
                world.turn()
            for presence in list(standing):
                try:
                    presence.tick()
                except LearnerAlive:
                    standing.remove(presence)
                    if same_id:
                        world.links[presences.index(presence)].close()
        winner = max(range(2), key=lambda index: (one, two)[index])
        assert standing == [presences[winner]], (one, two, same_id)


def short_connections(two, *, upto, heard=b""):
    """Tell a learner of ever more connections that were cut short; returns (how many ended it, its error)."""
    for times in range(1, upto):
        two.link.counters.cut_short = times
        if heard:
            two.hear(heard)
        try:
            two.presence.tick()
        except LearnerAlive as error:
            return times, error
    return None


def test_w8_of_two_learners_that_throw_each_other_off_the_newcomer_ends_first(monkeypatch):
    newcomer, settled = (Two(FakeBroker(), shared_id=True) for _ in range(2))
    for two in (newcomer, settled):
        two.presence.announce()
    monkeypatch.setattr(module, "SETTLED_S", -1.0)
    settled.presence.tick()
    monkeypatch.undo()
    will = gone_birth(birth(epoch=99), left=False)
    ends = [short_connections(two, upto=12, heard=will) for two in (newcomer, settled)]
    assert ends[0][0] + 2 < ends[1][0] < 12
    assert ends[0][0] >= 3, "a broker that is restarted twice is not another client"
    for _, error in ends:
        assert error.code == 70
        assert "another client (it was heard) has its client id" in error.message
        assert "enroll" in error.hint


class SlowLink:
    """A link whose first publish after `hold` waits inside until it may go on; keeps the order of what went out."""

    def __init__(self, link):
        self._link, self.said = link, []
        self._held = self.inside = self.go = None

    def __getattr__(self, name):
        return getattr(self._link, name)

    def hold(self):
        self._held, self.inside, self.go = True, threading.Event(), threading.Event()

    def publish(self, topic, payload, **words):
        if self._held:
            self._held = False
            self.inside.set()
            assert self.go.wait(10)
        if topic == TOPICS.learner and payload:
            self.said.append(LearnerBirth.decode(payload).status)
        return self._link.publish(topic, payload, **words)


def running(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_no_birth_that_a_reconnection_brings_is_retained_after_the_goodbye(broker):
    link = SlowLink(connected(broker))
    presence = Presence(link, TOPICS, birth())
    presence.announce()
    link.hold()
    reconnecting = running(presence._again)
    assert link.inside.wait(10), "the link's thread is about to hand its birth over"
    leaving = running(lambda: presence.leave(clear=False))
    leaving.join(0.2)
    link.go.set()
    for thread in (reconnecting, leaving):
        thread.join(10)
        assert not thread.is_alive()
    assert link.said == ["online", "online", "gone"]
    assert LearnerBirth.decode(broker.retained[TOPICS.learner]).left


def test_w8_a_learner_that_knows_of_a_later_one_hands_no_birth_over(broker):
    """What it was handing over when it heard is out before it knows: the later one answers that with a renewal."""
    link = SlowLink(connected(broker))
    presence = Presence(link, TOPICS, birth())
    presence.announce()
    link.hold()
    announcing = running(presence.announce)
    assert link.inside.wait(10)
    later = Message(topic=TOPICS.learner, payload=birth(epoch=500).encode(), retain=False)
    hearing = running(lambda: presence._on_birth(later))
    hearing.join(0.2)
    said_when_deposed = None if presence._deposed_by is None else len(link.said)
    link.go.set()
    for thread in (announcing, hearing):
        thread.join(10)
        assert not thread.is_alive()
    assert presence._deposed_by is not None
    assert said_when_deposed in (None, len(link.said)), "a birth went out after another one was known"


def test_the_goodbye_is_waited_for_without_the_lock_that_its_echo_needs(broker):
    link = connected(broker)
    presence = Presence(link, TOPICS, birth())
    presence.announce()
    echoes = []

    def flush(*, timeout_s):
        echo = Message(topic=TOPICS.learner, payload=broker.retained[TOPICS.learner], retain=False)
        hearing = running(lambda: presence._on_birth(echo))
        hearing.join(5)
        echoes.append(not hearing.is_alive())
        return True

    link.flush = flush
    presence.leave(clear=False)
    assert echoes == [True]


def test_w8_a_flapping_link_alone_ends_no_run(broker):
    """Weeks over bad Wi-Fi: a connection that is cut short is no evidence of another learner."""
    own_id, shared_id = Two(broker), Two(FakeBroker(), shared_id=True)
    for two in (own_id, shared_id):
        two.presence.announce()
    own_will = gone_birth(birth(beat=1), left=False)
    assert short_connections(own_id, upto=10_000, heard=own_will) is None
    times, error = short_connections(shared_id, upto=10_000, heard=own_will)
    assert times == module.THROWN_OFF_UNHEARD >= 60
    assert "it was heard" not in error.message


def test_w8_with_a_client_id_of_its_own_no_other_learner_can_throw_one_off(broker):
    two = Two(broker)
    two.presence.announce()
    assert short_connections(two, upto=200, heard=gone_birth(birth(epoch=99), left=False)) is None


def test_w8_what_was_heard_on_a_good_connection_is_no_evidence_of_why_the_next_ones_break(broker):
    two = Two(broker, shared_id=True)
    two.presence.announce()
    two.hear(gone_birth(birth(epoch=99), left=False))
    two.presence.tick()
    assert short_connections(two, upto=module.THROWN_OFF_UNHEARD - 1) is None


def test_w8_a_learner_whose_session_was_taken_says_what_may_have_taken_it(caplog):
    for shared_id in (False, True):
        two = Two(FakeBroker(), shared_id=shared_id)
        two.presence.announce()
        two.broker.cut("learner")
        two.link.reconnect()
        assert ("came with this learner's certificate" in caplog.text) == shared_id
