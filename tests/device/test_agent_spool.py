"""An agent with a spool: the next life delivers what one leaves, and a disk that refuses stops it with a reason."""

import errno
import os
import time

import pytest
from actor_scene import NAME, TOPICS, Learner, Running, wait_for

from quarl_device.actor.agent import AgentConfig, will_of
from quarl_device.spool.disk import DiskSpool
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.wire.messages import DeviceState, Telemetry
from quarl_edge.ingest.sessions import SessionTable


@pytest.fixture
def broker():
    return FakeBroker()


@pytest.fixture
def spool(tmp_path):
    """Return what makes the outbox of an agent: one directory for all lives."""
    return lambda boot_id: DiskSpool(tmp_path / "spool", boot_id=boot_id)


def bring_back(broker, learner, actor):
    broker.up()
    for link in (learner.link, actor.link):
        link.reconnect()
    learner.announce()


def standing(actor):
    with actor.agent._shared.changed:
        return actor.agent._shared.standstill.reason


def ids(learner):
    return [(block.boot_id, block.sequence) for block in learner.stored]


def test_what_a_life_leaves_the_next_delivers_first_and_its_births_say_so(broker, spool):
    first = Learner(broker, ahead=5)
    first.push()
    with Running(broker, outbox=spool, max_offline_s=60.0) as one:
        wait_for(lambda: len(first.stored) > 3)
        first.leave()
        wait_for(lambda: one.agent._shared.session.pending > 20)
    left = one.summary.blocks_pending
    assert left > 20
    second = Learner(broker, epoch=101, key=first.key, sessions=first.sessions)
    second.push()
    with Running(broker, outbox=spool) as two:
        wait_for(lambda: any(boot_id == two.boot_id for boot_id, _ in ids(second)))
        wait_for(lambda: two.agent._shared.session.pending < 5)
    assert two.summary.blocks_pending == 0
    stored = ids(first) + ids(second)
    assert len(set(stored)) == len(stored)
    earlier = [sequence for boot_id, sequence in stored if boot_id == one.boot_id]
    assert earlier == list(range(one.summary.blocks))
    assert [boot_id for boot_id, _ in stored] == [one.boot_id] * len(earlier) + [two.boot_id] * two.summary.blocks
    said = list(dict.fromkeys(state.delivering for state in second.states if state.boot_id == two.boot_id))
    assert [life for life in said if life] == [one.boot_id, two.boot_id]
    steps = sum(block.transitions for block in first.stored + second.stored)
    assert steps == one.summary.steps + two.summary.steps == second.sessions.account(NAME).stored_steps


def test_a_learner_that_never_saw_the_earlier_life_takes_what_is_left_of_it(broker, spool):
    first = Learner(broker, ahead=5)
    first.push()
    with Running(broker, outbox=spool, max_offline_s=60.0) as one:
        wait_for(lambda: len(first.stored) > 10)
        first.leave()
        wait_for(lambda: one.agent._shared.session.pending > 10)
    second = Learner(broker, epoch=101, key=first.key, sessions=SessionTable(101))
    second.push()
    with Running(broker, outbox=spool) as two:
        wait_for(lambda: any(boot_id == two.boot_id for boot_id, _ in ids(second)))
    stored = [sequence for boot_id, sequence in ids(second) if boot_id == one.boot_id]
    assert stored == list(range(one.summary.blocks - one.summary.blocks_pending, one.summary.blocks))


def test_blocks_of_another_task_are_dropped_and_counted(broker, spool, caplog):
    first = Learner(broker, ahead=2)
    first.push()
    with Running(broker, outbox=spool, max_offline_s=60.0) as one:
        wait_for(lambda: len(first.stored) > 3)
        first.leave()
        wait_for(lambda: one.agent._shared.session.pending > 5)
    second = Learner(broker, epoch=101, key=first.key, env_kwargs={"sutton_barto_reward": True})
    second.push()
    with Running(broker, outbox=spool) as two:
        wait_for(lambda: len(second.stored) > 3)
    assert {boot_id for boot_id, _ in ids(second)} == {two.boot_id}
    assert two.summary.blocks_dropped == one.summary.blocks_pending
    assert two.summary.steps_dropped > 0
    assert "blocks were made for another task and are dropped" in caplog.text


def test_a_birth_alone_costs_no_block_however_late_its_epoch(broker, spool, caplog):
    """It is not signed: only a policy of that learner, which is, makes room for another task."""
    first = Learner(broker, ahead=2)
    first.push()
    with Running(broker, outbox=spool, max_offline_s=60.0) as one:
        wait_for(lambda: len(first.stored) > 3)
        first.leave()
        wait_for(lambda: one.agent._shared.session.pending > 5)
        forged = Learner(broker, epoch=101, key=first.key, env_kwargs={"sutton_barto_reward": True})
        wait_for(lambda: one.agent._shared.session.sets_aside)
        forged.leave()
    assert (one.summary.blocks_dropped, forged.stored) == (0, [])
    assert one.summary.blocks_pending > 5
    assert "blocks made before wait" in caplog.text
    back = Learner(broker, epoch=102, key=first.key, sessions=first.sessions)
    back.push()
    with Running(broker, outbox=spool) as two:
        wait_for(lambda: any(boot_id == two.boot_id for boot_id, _ in ids(back)))
    assert two.summary.blocks_dropped == 0
    assert len([boot_id for boot_id, _ in ids(back) if boot_id == one.boot_id]) >= one.summary.blocks_pending - 3


def test_a_full_disk_stops_it_with_a_reason_loses_nothing_and_is_got_over(broker, spool, monkeypatch):
    learner = Learner(broker)
    learner.push()
    real, state = os.pwritev, {"full": False}

    def pwritev(file, parts, offset):
        if state["full"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, parts, offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    with Running(broker, outbox=spool, max_offline_s=60.0) as actor:
        wait_for(lambda: len(learner.stored) > 5)
        # Without a learner the block that could not be written is nowhere else.
        broker.down()
        state["full"] = True
        wait_for(lambda: standing(actor) == "spool cannot be written")
        steps = actor.agent._shared.tally.steps
        time.sleep(0.3)
        assert actor.agent._shared.tally.steps == steps
        state["full"] = False
        wait_for(lambda: actor.agent._shared.tally.steps > steps, "it goes on")
        bring_back(broker, learner, actor)
        wait_for(lambda: sum(block.transitions for block in learner.stored) > steps)
    assert actor.summary.blocked_s["spool cannot be written"] > 0
    assert sum(block.transitions for block in learner.stored) == actor.summary.steps
    assert (actor.summary.blocks_dropped, learner.sessions.account(NAME).lost_steps) == (0, 0)


def test_offline_it_goes_on_as_long_as_it_may_and_catches_up(broker, spool):
    learner = Learner(broker, ahead=2)
    learner.push()
    with Running(broker, outbox=spool, max_offline_s=0.7) as actor:
        wait_for(lambda: len(learner.stored) > 5)
        broker.down()
        wait_for(lambda: actor.agent._shared.session.pending > 10)
        wait_for(lambda: standing(actor) == "link down")
        made = actor.agent._shared.tally.steps
        bring_back(broker, learner, actor)
        wait_for(lambda: sum(block.transitions for block in learner.stored) > made)
    assert sum(block.transitions for block in learner.stored) == actor.summary.steps


def test_the_default_stops_at_its_credit(broker):
    """As for actors on the learner's machine, which end with it."""
    learner = Learner(broker, ahead=2)
    learner.push()
    with Running(broker) as actor:
        wait_for(lambda: len(learner.stored) > 5)
        broker.down()
        wait_for(lambda: standing(actor) == "link down")
        assert actor.agent._shared.session.pending <= 2 + 2


def test_telemetry_says_what_waits_and_what_was_given_up(broker, spool, monkeypatch):
    monkeypatch.setattr("quarl_device.actor.ticker._TELEMETRY_PERIOD_S", 0.05)
    learner, told = Learner(broker, ahead=3), []
    learner.link.subscribe(TOPICS.any_telemetry, lambda message: told.append(Telemetry.decode(message.payload)))
    learner.push()
    with Running(broker, outbox=spool, max_offline_s=60.0) as actor:
        wait_for(lambda: len(learner.stored) > 5)
        learner.announce(status="gone")
        wait_for(lambda: told and told[-1].spool_bytes > 10_000)
        assert told[-1].blocks_pending > 5
    assert (told[-1].blocks_dropped, told[-1].steps_dropped, actor.summary.blocks_dropped) == (0, 0, 0)


def test_it_gives_the_spool_back_whatever_ends_it(broker, spool):
    config = AgentConfig(fleet="lab", name=NAME)
    for number in range(2):
        broker.down()
        with Running(broker, outbox=spool, connect_timeout_s=0.1) as actor:
            actor.join()
        assert actor.error is not None
        broker.up()
        held = spool(f"{number:016x}")
        held.close()
    assert DeviceState.decode(will_of(config, "0" * 16).payload).delivering == ""
