"""The loop alone, among doubles: when it ends, what it keeps, what it waits for, and what ends it early."""

import dataclasses
import time
from types import SimpleNamespace

import numpy as np
import pytest

from quarl_device.errors import (
    ActorFailed,
    CheckpointError,
    EnvironmentMisbehaved,
    LearnerAlive,
    LinkLost,
    ModelError,
    NonFiniteError,
    TrainingStalled,
)
from quarl_device.evaluate import Evaluation
from quarl_device.wire.exploration import Exploration
from quarl_device.wire.learner_telemetry import LearnerTelemetry
from quarl_edge.configure import make_config
from quarl_edge.flow.lag import PolicyLag
from quarl_edge.learner import account
from quarl_edge.learner import loop as module
from quarl_edge.learner.algorithm import Learned
from quarl_edge.learner.edge_tpu_counters import EdgeTpuCounters
from quarl_edge.learner.loop import TrainingLoop
from quarl_edge.learner.metrics import MemoryMetrics
from quarl_edge.learner.parts import Parts, Progression
from quarl_edge.learner.result import StopReason
from quarl_edge.learner.stop import StopSignal
from quarl_edge.local.evaluator import Judged
from quarl_edge.progress import Silent
from quarl_edge.replay.limiter import SampleToInsertRatio

BLOCK = 16


class Algorithm:
    """Counts updates."""

    def __init__(self):
        self.updates = 0
        spec = SimpleNamespace(head="q_values", sees_images=False, convolutions=())
        self.policy = SimpleNamespace(spec=spec, snapshot=lambda: "weights", head_range_from=lambda _: None)

    def update(self, batch):
        self.updates += 1
        return Learned(steps=4, metrics={"loss": 1.0})

    def exploration(self, env_steps):
        return Exploration(kind="epsilon", values=(0.5,))


class Normalizer:
    """Changes at every second call; remembers how many updates were made before each."""

    def __init__(self, algorithm):
        self.algorithm, self.calls = algorithm, []

    def follow(self, experience, algorithm):
        assert algorithm is self.algorithm
        self.calls.append(algorithm.updates)
        return len(self.calls) % 2 == 0


class World:
    """Replay, receiver and actors in one: every wait brings a block, unless `silent`."""

    def __init__(self, limiter):
        self.limiter = limiter
        self.env_steps = 0
        self.silent = False
        self.blocked, self.refused, self.arrivals = "", {}, 0
        self.last_stored_s = 0.0
        self.contributors = {("actor-0", "aa")}
        self.actors = {}
        self.policies_in_use = [(7, 1)]
        self.begun = []
        self.lag, self.connected, self.capacity = PolicyLag(), True, 1_000
        self.on_wait = lambda: None

    def wait(self, arrivals, *, timeout_s):
        self.on_wait()
        if self.silent:
            time.sleep(0.001)
            return self.arrivals
        self.arrivals += 1
        self.env_steps += BLOCK
        self.limiter.insert(BLOCK)
        self.last_stored_s = time.monotonic()
        return self.arrivals

    def send_acks(self):
        pass

    @property
    def counters(self):
        counts = dict.fromkeys(("gaps", "lost_steps", "handler_errors"), 0)
        return {**counts, "blocks": self.arrivals, "duplicates": 2, "refused": dict(self.refused)}

    # as experience
    def __len__(self):
        return 0

    @property
    def samples(self):
        return self.limiter.samples

    def ready(self):
        return self.limiter.can_sample(32)

    def take(self):
        self.limiter.sample(32)

    def learned(self, taken, errors):
        pass

    def begin(self, epoch, version):
        self.begun.append((epoch, version))

    def waits_for(self):
        return "first transitions" if self.limiter.inserts < self.limiter.min_size else "samples per insert"

    def why_blocked(self):
        return self.limiter.why_blocked(32)


class Publisher:
    """Takes every push, or, `deaf`, none at first."""

    def __init__(self):
        self.published = []
        self.renewals = []
        self.deaf = False
        self.owed = False

    def prepare(self, read, *, version, env_steps, **_):
        return SimpleNamespace(
            version=version, env_steps=env_steps, policy=b"", golden=None, prepare_ms=2.0, snapshot=read()
        )

    def publish(self, pushed):
        self.published.append(pushed.version)
        self.owed = self.deaf
        return not self.deaf

    def retry(self):
        taken, self.owed = self.owed and not self.deaf, self.owed and self.deaf
        return taken

    def renew(self, in_use, now_s):
        self.renewals.append((in_use, now_s))


class Evaluator:
    """Answers with the next of `returns`; `slow` never answers.

    A return that is a pair is that of a file which reached the goal, and that of its confirmation.
    """

    def __init__(self, returns):
        self.returns = list(returns)
        self.slow = False
        self.cancelled = 0
        self.fault = None
        self._running = None

    @property
    def busy(self):
        return self._running is not None

    def submit(self, policy, golden, *, version, env_steps):
        if self.busy:
            return False
        self._running = (version, env_steps)
        return True

    def poll(self, *, timeout_s):
        if self.slow or self._running is None:
            time.sleep(min(timeout_s, 0.001))
            return None
        (version, env_steps), self._running = self._running, None
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        mean = self.returns.pop(0) if len(self.returns) > 1 else self.returns[0]
        mean, confirmation = mean if isinstance(mean, tuple) else (mean, None)
        confirmed = None if confirmation is None else evaluation(confirmation)
        return Judged(version=version, env_steps=env_steps, result=evaluation(mean), confirmation=confirmed)

    def cancel(self):
        self.cancelled += 1
        self._running = None


class Keeper:
    """Remembers the best and counts checkpoints."""

    def __init__(self):
        self.best = None
        self.resumable = False
        self.checkpoints = []
        self.full_disk = False
        self.finished = 0

    def consider(self, judged, pushed):
        if self.best is None or judged.return_mean >= self.best.return_mean:
            self.best = judged

    def checkpoint(self, algorithm, progression):
        if self.full_disk:
            raise CheckpointError("checkpoint cannot be written: No space left")
        self.checkpoints.append(dataclasses.replace(progression))
        self.resumable = True

    def sync(self):
        pass

    def finish(self):
        self.finished += 1


class Auditor:
    """Busy for the first `busy` submissions."""

    def __init__(self, busy=0):
        self.busy, self.taken = busy, []
        self.audited = self.failures = 0

    def submit(self, pushed):
        self.busy -= 1
        if self.busy >= 0:
            return False
        self.taken.append(pushed.version)
        return True

    def poll(self):
        pass


class Compiled:
    """What compiles for an Edge TPU: each push is ready at once."""

    def __init__(self):
        self.considered, self.is_ready = [], False
        self.counters = EdgeTpuCounters(failures=2, last_failure="no room")

    def consider(self, pushed):
        self.considered.append(pushed.version)
        self.is_ready = True

    def publish(self):
        assert self.is_ready
        self.is_ready = False
        self.counters.published += 1


class Presence:
    """Overtaken once `overtaken` is set."""

    overtaken = False

    def check(self):
        if self.overtaken:
            raise LearnerAlive("another learner has taken this fleet over")

    tick = check


def evaluation(mean):
    return Evaluation(
        env_id="X-v0", episodes=1, seed=0, return_mean=mean, return_std=0.0, returns=(mean,), runtime="double",
        sha256="", steps=1, act_us_p50=1.0,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(module, "_WAIT_S", 0.001)
    monkeypatch.setattr(module, "_CHORES_PERIOD_S", 0.0)


class Setting:
    """A loop and its doubles."""

    def __init__(
        self,
        *,
        returns=(10.0,),
        progression=None,
        auditor=None,
        actors=None,
        conversion_reason="",
        compiled=None,
        **settings,
    ):
        small = {
            "hidden": (4,), "batch_size": 8, "updates_per_call": 4, "samples_per_insert": 8.0, "learning_starts": 32,
            "push_period_updates": 8, "evaluate_period_pushes": 2, "steps": 2_000, "goal_return": None,
            "checkpoint_period_steps": 10**9, "target_period_updates": 0,
        }  # fmt: skip
        if settings.get("lockstep"):
            small["actors"] = 1
        self.config = make_config("CartPole-v1", asked={**small, **settings})
        self.limiter = SampleToInsertRatio(8.0, 32, 512.0, insert_unit=BLOCK, sample_unit=32)
        self.world = World(self.limiter)
        self.algorithm, self.publisher, self.evaluator = Algorithm(), Publisher(), Evaluator(returns)
        self.normalizer = Normalizer(self.algorithm)
        self.keeper, self.presence, self.stop = Keeper(), Presence(), StopSignal()
        self.auditor = auditor or Auditor()
        self.progress, self.metrics = Silent(), MemoryMetrics()
        self.broker_ends_at = float("inf")
        parts = Parts(
            config=self.config, algorithm=self.algorithm, experience=self.world,
            receiver=self.world, publisher=self.publisher, presence=self.presence, evaluator=self.evaluator,
            auditor=self.auditor, keeper=self.keeper, normalizer=self.normalizer,
            metrics=self.metrics, progress=self.progress, stop=self.stop,
            env_steps=lambda: self.world.env_steps, check_broker=self._check_broker, actors=actors,
            conversion_reason=conversion_reason, epoch=7, tell=self._tell, edge_tpu=compiled,
        )  # fmt: skip
        self.reports = []
        self.loop = TrainingLoop(parts, progression or Progression())

    def run(self):
        return self.loop.run()

    def _tell(self, report):
        self.reports.append(report)

    def _check_broker(self):
        if self.world.env_steps > self.broker_ends_at:
            raise LinkLost("the embedded broker ended with status -9")


class LocalActors:
    """Actors that run, until one fails."""

    names = ("actor-0",)
    fault = None

    def check(self):
        if self.fault is not None:
            raise self.fault


def test_it_ends_at_its_budget_with_the_last_policy_judged_and_a_checkpoint():
    setting = Setting(returns=[3.0, 9.0, 5.0])
    result = setting.run()
    assert result.reason is StopReason.BUDGET
    assert result.env_steps >= 2_000
    assert result.best.result.return_mean == 9.0
    assert result.judgements >= 3
    assert result.last_return_mean == 5.0
    assert result.resumable
    # One at the very start, so that the run can be resumed whatever happens, one with the first push of something
    # learned, so that a resume begins with it, and one at the end.
    assert [kept.updates for kept in setting.keeper.checkpoints] == [0, 8, result.updates]
    assert setting.keeper.finished == 1
    assert result.updates == 4 * setting.algorithm.updates
    # The limiter's ratio: 8 samples per transition, 8 transitions per gradient step.
    assert 0.8 < result.updates / result.env_steps < 1.2


def test_it_ends_as_soon_as_a_judgement_reaches_the_goal():
    setting = Setting(returns=[1.0, 100.0], goal_return=50.0)
    result = setting.run()
    assert result.reason is StopReason.SOLVED
    assert result.env_steps < 2_000


@pytest.mark.parametrize("lockstep", [False, True])
def test_a_goal_that_other_starts_do_not_confirm_is_not_reached(lockstep):
    setting = Setting(returns=[(100.0, 20.0), (60.0, 55.0), 1.0], goal_return=50.0, lockstep=lockstep)
    result = setting.run()
    assert result.reason is StopReason.SOLVED
    assert result.judgements == 2
    assert (result.best.result.return_mean, result.best.confirmation.return_mean) == (60.0, 55.0)
    result = Setting(returns=[(100.0, 49.0)], goal_return=50.0, lockstep=lockstep).run()
    assert result.reason is StopReason.BUDGET
    assert result.judgements > 2


@pytest.mark.parametrize("in_rounds", [False, True])
def test_constants_change_before_a_replays_update_and_behind_a_rounds(in_rounds):
    setting = Setting(steps=400)
    setting.loop._in_rounds = in_rounds
    told = []
    prepare = setting.publisher.prepare
    setting.publisher.prepare = lambda read, **said: (told.append(said["normalizer_version"]), prepare(read, **said))[1]
    setting.run()
    updates = setting.algorithm.updates
    assert setting.normalizer.calls == list(range(in_rounds, updates + in_rounds))
    # The double changes them at every second call, and pushes say how often they changed.
    assert told[0] == 0
    assert told[-1] == len(setting.normalizer.calls) // 2 > 4
    assert told == sorted(told)


def test_asked_to_stop_before_the_first_push_it_publishes_nothing():
    setting = Setting()
    setting.stop.request()
    result = setting.run()
    assert result.reason is StopReason.INTERRUPTED
    assert setting.publisher.published == []
    assert result.prepare_ms_p50 is None


@pytest.mark.parametrize("lockstep", [False, True])
def test_asked_to_stop_while_a_judgement_is_awaited_it_stops(lockstep):
    setting = Setting(lockstep=lockstep)
    setting.evaluator.slow = True
    setting.progress.show = lambda status: setting.evaluator.busy and setting.stop.request()
    started = time.monotonic()
    assert setting.run().reason is StopReason.INTERRUPTED
    assert time.monotonic() - started < 20


def test_chores_go_on_while_a_judgement_is_awaited_and_one_too_slow_is_given_up():
    setting = Setting(lockstep=True, steps=200, evaluate_timeout_s=0.05)
    setting.evaluator.slow = True
    shown = len(setting.progress.statuses)
    assert setting.run().reason is StopReason.BUDGET
    assert setting.evaluator.cancelled >= 1
    assert len(setting.progress.statuses) > shown + 10


def test_a_policy_that_cannot_be_played_is_no_reason_to_end():
    setting = Setting()
    setting.evaluator.fault = ModelError("self-test failed")
    assert setting.run().reason is StopReason.BUDGET
    assert setting.keeper.best is not None


def test_an_environment_that_misbehaves_in_one_judgement_is_no_reason_to_end_but_in_all_of_them():
    setting = Setting()
    setting.evaluator.fault = EnvironmentMisbehaved("reward is NaN")
    assert setting.run().reason is StopReason.BUDGET
    setting = Setting()

    def always(*, timeout_s):
        setting.evaluator._running = None
        raise EnvironmentMisbehaved("reward is NaN")

    setting.evaluator.poll = always
    with pytest.raises(EnvironmentMisbehaved):
        setting.run()


def test_what_a_fatal_error_interrupts_is_kept():
    actors = LocalActors()
    setting = Setting(actors=actors)

    def fail_later():
        if setting.world.env_steps > 600:
            actors.fault = ActorFailed("actor-0 ended 4 times")

    setting.world.on_wait = fail_later
    with pytest.raises(ActorFailed):
        setting.run()
    assert len(setting.keeper.checkpoints) == 3
    assert setting.keeper.checkpoints[-1].updates > 8


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError(5, "Input/output error"), MemoryError()])
def test_what_an_error_of_no_kind_of_ours_interrupts_is_kept_too(error):
    setting = Setting()

    def fail(status):
        if setting.world.env_steps > 600:
            raise error

    setting.progress.show = fail
    with pytest.raises(type(error)):
        setting.run()
    assert setting.keeper.checkpoints[-1].updates == 4 * setting.algorithm.updates > 8


def test_a_policy_that_cannot_be_kept_at_the_end_costs_no_checkpoint():
    setting = Setting()

    def refuse():
        raise CheckpointError("policy cannot be written")

    setting.keeper.finish = refuse
    with pytest.raises(CheckpointError, match="policy"):
        setting.run()
    assert setting.keeper.checkpoints[-1].updates == 4 * setting.algorithm.updates


def test_an_update_that_broke_in_the_middle_is_not_kept(caplog):
    setting = Setting()

    def breaks(batch):
        if setting.algorithm.updates > 10:
            raise RuntimeError("out of memory in an operator")
        return Algorithm.update(setting.algorithm, batch)

    setting.algorithm.update = breaks
    with pytest.raises(RuntimeError, match="operator"):
        setting.run()
    assert [kept.updates for kept in setting.keeper.checkpoints] == [0, 8]
    assert "an update that was not finished" in caplog.text


def test_a_rescue_that_fails_does_not_hide_the_first_error(caplog):
    setting = Setting()

    def refuse(*_):
        raise RuntimeError("a second bug")

    def fail(status):
        if setting.world.env_steps > 600:
            setting.keeper.checkpoint = refuse
            raise RuntimeError("the first bug")

    setting.progress.show = fail
    with pytest.raises(RuntimeError, match="the first bug"):
        setting.run()
    assert "no checkpoint after the error that ends this run" in caplog.text


def test_learning_is_kept_by_time_too(monkeypatch):
    few, many = (Setting(checkpoint_period_s=period_s) for period_s in (0.0, 1e-9))
    monkeypatch.setattr("quarl_edge.learner.rhythm._SHARE", 1e9)
    for setting in (few, many):
        setting.run()
    assert len(few.keeper.checkpoints) == 3
    assert len(many.keeper.checkpoints) > 10


def test_a_checkpoint_that_fails_too_does_not_hide_the_first_error():
    setting = Setting()
    setting.keeper.resumable = setting.keeper.full_disk = True
    setting.world.on_wait = lambda: setattr(setting.presence, "overtaken", setting.world.env_steps > 600)
    with pytest.raises(LearnerAlive):
        setting.run()


def test_weights_that_are_not_finite_are_not_kept():
    setting = Setting()

    def spoil(batch):
        if setting.algorithm.updates > 10:
            raise NonFiniteError("weights hold NaN")
        return Algorithm.update(setting.algorithm, batch)

    setting.algorithm.update = spoil
    with pytest.raises(NonFiniteError):
        setting.run()
    assert [kept.updates for kept in setting.keeper.checkpoints] == [0, 8]


def test_an_overtaken_learner_publishes_no_policy():
    setting = Setting()
    setting.presence.overtaken = True
    with pytest.raises(LearnerAlive):
        setting.run()
    assert setting.publisher.published == []


def test_a_disk_that_fills_up_ends_no_run_before_its_end():
    setting = Setting(checkpoint_period_steps=200)
    setting.world.on_wait = lambda: setattr(setting.keeper, "full_disk", 300 < setting.world.env_steps < 1_500)
    assert setting.run().reason is StopReason.BUDGET
    assert len(setting.keeper.checkpoints) > 3


def test_a_broker_of_ours_that_ended_ends_the_run_with_a_checkpoint():
    setting = Setting()
    setting.broker_ends_at = 600
    with pytest.raises(LinkLost):
        setting.run()
    assert setting.keeper.checkpoints[-1].updates > 0


def test_a_full_disk_is_waited_for_longer_than_silence(monkeypatch):
    monkeypatch.setattr(module, "_STALL_S", 0.05)
    setting = Setting(actors=LocalActors(), steps=200)
    setting.world.silent, setting.world.blocked = True, "No space left on device"
    freed_s = time.monotonic() + 0.4

    def free():
        if time.monotonic() > freed_s:
            setting.world.silent, setting.world.blocked = False, ""

    setting.world.on_wait = free
    assert setting.run().reason is StopReason.BUDGET


def test_a_standstill_with_local_actors_ends_and_says_why(monkeypatch):
    monkeypatch.setattr(module, "_STALL_S", 0.05)
    monkeypatch.setattr(module, "_BLOCKED_S", 0.05)
    setting = Setting(actors=LocalActors())
    setting.world.silent = True
    setting.world.blocked = "journal cannot be written: No space left on device"
    with pytest.raises(TrainingStalled, match="No space left"):
        setting.run()
    assert any("No space left" in status.blocked for status in setting.progress.statuses)


def test_a_standstill_because_every_block_is_refused_names_the_codes(monkeypatch):
    monkeypatch.setattr(module, "_STALL_S", 0.05)
    setting = Setting(actors=LocalActors())
    setting.world.silent, setting.world.refused = True, {"34": 17}
    with pytest.raises(TrainingStalled, match="'34': 17"):
        setting.run()


def test_actors_elsewhere_may_come_tomorrow(monkeypatch):
    monkeypatch.setattr(module, "_STALL_S", 0.0)
    setting = Setting()
    setting.world.silent = True
    started = time.monotonic()
    setting.world.on_wait = lambda: time.monotonic() - started > 0.2 and setting.stop.request()
    assert setting.run().reason is StopReason.INTERRUPTED


def test_lockstep_with_a_second_life_is_refused():
    setting = Setting(lockstep=True)
    setting.world.on_wait = lambda: setting.world.env_steps > 300 and setting.world.contributors.add(("actor-0", "bb"))
    with pytest.raises(ActorFailed, match="one actor in one life") as caught:
        setting.run()
    assert "--resume" in caught.value.hint
    assert [kept.updates for kept in setting.keeper.checkpoints] == [0]


def test_lockstep_judges_its_last_policy_and_keeps_only_checkpoints_of_its_fixed_steps():
    setting = Setting(lockstep=True, steps=400, checkpoint_period_steps=256, returns=[1.0, 2.0])
    result = setting.run()
    assert result.reason is StopReason.BUDGET
    assert setting.evaluator.returns == [2.0]
    assert len(setting.keeper.checkpoints) == 2
    assert result.resumable


def test_only_pushes_that_went_out_are_counted():
    setting = Setting(steps=300)
    setting.publisher.deaf = True
    setting.world.on_wait = lambda: setattr(setting.publisher, "deaf", setting.world.env_steps < 150)
    result = setting.run()
    assert 0 < result.pushes < len(setting.publisher.published)
    assert setting.publisher.renewals[0][0] == [(7, 1)], "asked for what devices act with"


def test_an_audit_that_was_put_off_is_made_with_the_next_push():
    setting = Setting(auditor=Auditor(busy=2), audit_period_pushes=10, steps=3_000)
    setting.run()
    assert setting.auditor.taken[0] == 12


def test_every_push_that_goes_out_may_be_compiled_and_what_is_ready_goes_out():
    setting = Setting(compiled=Compiled(), steps=500)
    result = setting.run()
    compiled = setting.loop._parts.edge_tpu
    assert compiled.considered == setting.publisher.published
    assert result.edge_tpu == compiled.counters
    assert 1 < result.edge_tpu.published <= len(compiled.considered)
    assert setting.metrics.rows[-1][1]["pushes/compiled"] == result.edge_tpu.published


def test_nothing_compiled_is_sent_over_another_learners():
    compiled = Compiled()
    setting = Setting(compiled=compiled)
    compiled.is_ready = True
    setting.presence.overtaken = True
    with pytest.raises(LearnerAlive):
        setting.loop._publish_compiled()
    assert compiled.counters.published == 0


def test_without_an_edge_tpu_the_result_says_nothing_of_it():
    assert Setting(steps=200).run().edge_tpu is None


def test_rates_are_over_the_time_they_were_counted_in():
    setting = Setting(steps=500)
    began = time.monotonic()
    result = setting.run()
    spent_s = time.monotonic() - began
    assert 0 < result.train_s <= spent_s
    assert result.actor_steps_per_s * result.train_s == pytest.approx(result.session_env_steps, abs=4 * BLOCK)


def test_a_resumed_run_past_its_budget_judges_and_ends():
    setting = Setting(progression=Progression(version=7, updates=40), steps=100)
    setting.world.env_steps = 100
    result = setting.run()
    assert result.reason is StopReason.BUDGET
    assert result.session_updates == 0
    assert result.judgements == 1
    assert np.isfinite(result.best.result.return_mean)


def test_the_status_says_what_the_next_call_waits_for():
    setting = Setting(steps=300)
    setting.run()
    assert any("waiting for actors" in status.blocked for status in setting.progress.statuses)


def test_it_tells_every_second_how_it_flows(monkeypatch):
    monkeypatch.setattr(account, "_TELL_PERIOD_S", 0.0)
    monkeypatch.setattr(module, "_CHORES_PERIOD_S", 0.0)
    setting = Setting(steps=500)
    reports = setting.reports
    setting.world.actors = {"pi": SimpleNamespace(telemetry=None)}
    setting.world.lag.acted("pi", 1)
    setting.world.lag.acted("gone", 1)
    setting.run()
    last = reports[-1].learner
    assert last.env_steps >= 500
    assert (last.epoch, last.actors, last.blocks, last.duplicates) == (7, 1, setting.world.arrivals, 2)
    assert last.policy_version == setting.publisher.published[-1]
    assert last.lags["pi"].versions == last.policy_version - 1
    assert "gone" not in last.lags
    assert max(report.learner.env_steps_per_s for report in reports) > 0
    assert LearnerTelemetry.decode(last.encode()).env_steps == last.env_steps
    reasons = {report.learner.blocked for report in reports}
    assert "first transitions" in reasons | set(reports[-1].blocked_s)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "first transitions"),
        ({"actors": {}}, "no actors"),
        ({"connected": False}, "link down"),
        ({"blocked": "No space left", "connected": False}, "journal cannot be written"),
    ],
)
def test_it_says_what_somebody_must_mend_first_and_since_when(change, reason):
    setting = Setting()
    setting.world.actors = {"pi": None}
    for name, value in change.items():
        setattr(setting.world, name, value)
    counts = setting.loop._account
    before = time.time()
    counts.waits()
    time.sleep(0.02)
    counts.waits()
    report = counts.report(time.monotonic())
    assert report.learner.blocked == reason
    assert before - 0.1 <= report.learner.blocked_since_unix_s <= time.time() - 0.01
    assert report.blocked_s[reason] >= 0.01
    counts.updated({"loss": 1.0})
    assert counts.report(time.monotonic()).learner.blocked == ""


def test_it_waits_for_the_limiter_once_there_is_enough():
    setting = Setting()
    setting.world.actors = {"pi": None}
    setting.world.limiter.insert(setting.world.limiter.min_size)
    setting.loop._account.waits()
    assert setting.loop._account.report(time.monotonic()).learner.blocked == "samples per insert"


@pytest.mark.parametrize("reason", ["", "too odd"])
def test_a_run_whose_pushes_are_converted_says_so(reason):
    setting = Setting(conversion_reason=reason, steps=400)
    setting.loop._account.show()
    assert setting.run().conversion_reason == reason
    assert {row["pushes/converted"] for _, row in setting.metrics.rows if "pushes/converted" in row} == {
        float(bool(reason))
    }


def test_the_largest_lag_of_the_devices_online_goes_to_tensorboard():
    setting = Setting()
    lag = setting.world.lag = PolicyLag(epoch=7)
    setting.world.actors = dict.fromkeys(("near", "far"), SimpleNamespace(telemetry=None))
    for version in (1, 2, 3, 4):
        lag.published(version, 100 * version)
    for device, version in (("near", 4), ("far", 2), ("gone", 1)):
        lag.acted(device, version)
    setting.loop._account.show()
    _, scalars = setting.metrics.rows[-1]
    assert (scalars["lag/versions_max"], scalars["lag/env_steps_max"]) == (2.0, 200.0)
    assert scalars["lag/seconds_max"] > 0
    setting.world.actors = {}
    setting.loop._account.show()
    assert not [name for name in setting.metrics.rows[-1][1] if name.startswith("lag/")]
