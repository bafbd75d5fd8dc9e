"""W8: one learner per fleet, with an epoch later than all that is known."""

import dataclasses
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
from quarl_edge.learner import presence as module
from quarl_edge.learner.presence import Predecessor, Presence, claim_fleet, gone_birth, next_epoch

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
    monkeypatch.setattr(module, "RETAINED_WAIT_S", 0.0)


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
    connected(broker, "other").publish(TOPICS.learner, gone_birth(birth(epoch=9)), retain=True)
    started = time.monotonic()
    assert claim_fleet(connected(broker), TOPICS, takeover=False, cancelled=lambda: False, watch_s=30) == 9
    assert time.monotonic() - started < 1


def test_watching_ends_when_the_user_asks_for_it():
    predecessor = Predecessor()
    predecessor.on_birth(Message(topic=TOPICS.learner, payload=birth().encode(), retain=True))
    started = time.monotonic()
    assert not predecessor.alive_within(30, cancelled=lambda: True)
    assert time.monotonic() - started < 1


@pytest.mark.parametrize("payload", [b"", b"{", b"QPOL" + bytes(200), bytes(1_000)])
def test_w4_garbage_on_the_retained_topics_is_survived(payload):
    predecessor = Predecessor()
    predecessor.on_birth(Message(topic=TOPICS.learner, payload=payload, retain=True))
    predecessor.on_policy(Message(topic=TOPICS.policy, payload=payload, retain=True))
    assert predecessor.highest_epoch == 0
    assert not predecessor.online


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
    assert LearnerBirth.decode(broker.retained[TOPICS.learner]).status == "gone"
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


def test_the_will_says_gone():
    assert LearnerBirth.decode(gone_birth(birth(epoch=5))) == dataclasses.replace(birth(epoch=5), status="gone")


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

    def __init__(self, broker, **own):
        self.broker, self.link, self.other = broker, connected(broker), connected(broker, "other")
        self.presence = Presence(self.link, TOPICS, birth(**own))

    def hear(self, payload):
        self.other.publish(TOPICS.learner, payload, retain=True)

    def births(self):
        return [LearnerBirth.decode(m.payload) for m in self.broker.log if m.topic == TOPICS.learner and m.payload]


@pytest.mark.parametrize(
    "later", [{"epoch": 101, "beat": 1}, {"epoch": 100, "beat": 9_000}], ids=["a later epoch", "a later beat"]
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
    "heard", [birth(epoch=99).encode(), gone_birth(birth(epoch=101)), birth(epoch=2**32 - 1).encode(), b"{", b""]
)
def test_w8_nothing_else_drives_a_learner_away(broker, heard):
    two = Two(broker)
    two.presence.announce()
    two.hear(heard)
    two.presence.check()


def test_w8_an_older_birth_that_hid_ours_is_answered_at_once(broker):
    two = Two(broker)
    two.presence.announce()
    two.hear(gone_birth(birth(epoch=99)))
    two.presence.tick()
    assert LearnerBirth.decode(broker.retained[TOPICS.learner]).epoch == 100


def test_its_own_words_do_not_drive_a_learner_away(broker):
    two = Two(broker, beat=7)
    for _ in range(5):
        two.presence.announce()
    two.hear(gone_birth(birth(beat=7)))
    two.presence.tick()


def test_a_goodbye_is_the_last_word_whatever_the_link_does(broker):
    two = Two(broker)
    two.presence.announce()
    two.presence.leave(clear=False)
    broker.cut("learner")
    two.link.reconnect()
    two.presence.tick()
    assert two.births()[-1].status == "gone"
