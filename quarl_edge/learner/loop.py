"""The training loop: experience in, fused updates, hot pushes out, the int8 file judged.

Two ways to run it. `run_async` never waits for anything but its limiter: actors step while the learner learns.
`run_lockstep` alternates strictly (push, one block, updates), so that repeating and resuming are bit-identical.
"""

from __future__ import annotations

import logging
import time

from quarl_device.errors import (
    ActorFailed,
    EnvironmentMisbehaved,
    ModelError,
    QuarlError,
    TrainingStalled,
)
from quarl_edge.config import RolloutConfig
from quarl_edge.learner.account import SessionAccount
from quarl_edge.learner.gate import PushGate
from quarl_edge.learner.head_range import fit_head_range
from quarl_edge.learner.parts import Parts, Progression
from quarl_edge.learner.publisher import Pushed
from quarl_edge.learner.result import StopReason, TrainResult
from quarl_edge.learner.rhythm import CheckpointRhythm

_LOG = logging.getLogger(__name__)
_WAIT_S = 0.05
_CHORES_PERIOD_S = 0.5
_STALL_S = 120.0
_BLOCKED_S = 3_600.0
_MAX_UNJUDGED = 5


class TrainingLoop:
    """One session of training.

    Args:
        parts: what it ties together.
        progression: counters of a resumed run, or fresh ones.
    """

    def __init__(self, parts: Parts, progression: Progression) -> None:
        self._parts = parts
        self._progression = progression
        self._config = parts.config
        self._gate = PushGate(parts.experience, parts.algorithm.policy.spec.convolutions)
        self._account = SessionAccount(parts, progression, self._gate)
        self._in_rounds = isinstance(parts.config, RolloutConfig)
        self._last_publish_s = 0.0
        self._audit_owed = False
        self._unjudged = 0
        self._last_push_updates = progression.updates
        self._judging: dict[int, Pushed] = {}
        self._next_chores_s = 0.0
        self._rhythm = CheckpointRhythm(
            period_steps=parts.config.checkpoint_period_steps,
            period_s=parts.config.checkpoint_period_s,
            updates=progression.updates,
            env_steps=parts.env_steps(),
            now_s=time.monotonic(),
        )
        self._updating = False

    def run(self) -> TrainResult:
        """Train until solved, out of budget, or asked to stop.

        What a fatal error interrupts, one of ours or any other, is kept in a checkpoint first, where it is sound.

        Raises:
            TrainingStalled: nothing was stored within two minutes although actors run on this machine.
            ActorFailed: a local actor keeps ending; in lockstep, another one joined or took its place.
            LearnerAlive: another learner has taken the fleet.
            NonFiniteError: weights or ranges became NaN or Inf.
        """
        if not self._parts.keeper.resumable:
            # Whatever happens from here on, the run can be resumed.
            self._checkpoint()
        self._account.start()
        self._last_publish_s = time.monotonic()
        try:
            reason = self._run_lockstep() if self._config.lockstep else self._run_async()
            self._judge_last(reason)
            self._parts.keeper.finish()
        except Exception:
            self._rescue()
            raise
        if not self._config.lockstep:
            # In lockstep a checkpoint resets the environments, so it may stand at its fixed steps only.
            self._checkpoint()
        if self._best_meets_goal():
            reason = StopReason.SOLVED
        return self._account.result(reason)

    # -- the two ways ------------------------------------------------------------------------------------------------

    def _run_async(self) -> StopReason:
        if (reason := self._stop_reason()) is not None:
            return reason
        self._publish(self._prepare())
        arrivals = self._parts.receiver.arrivals
        while (reason := self._stop_reason()) is None:
            if self._learn():
                if self._push_due():
                    pushed = self._prepare()
                    if self._may_go_out(pushed):
                        self._publish(pushed)
                        self._submit_judge(pushed)
                    else:
                        # Audits and judgements go by versions: one that never went out is none.
                        self._progression.version -= 1
            else:
                self._account.waits()
                arrivals = self._parts.receiver.wait(arrivals, timeout_s=_WAIT_S)
                self._check_stalled()
                self._begin_round_anew()
            self._poll_judge(timeout_s=0.0)
            if self._checkpoint_due():
                self._checkpoint_if_possible()
            self._chores()
        return reason

    def _run_lockstep(self) -> StopReason:
        while True:
            pushed = self._prepare()
            # Judged before it goes out: what follows must not depend on how long judging takes.
            self._submit_judge(pushed)
            self._await_judgement()
            if (reason := self._stop_reason()) is not None:
                return reason
            before = self._parts.env_steps()
            self._gate.judge(pushed.snapshot, updates=self._progression.updates)
            self._publish(pushed)
            if not self._await_block(before):
                # The round is made again after a resume, from the last checkpoint.
                return StopReason.INTERRUPTED
            while self._learn():
                self._chores()
            if self._rhythm.passed(self._parts.env_steps()):
                self._progression.reset_due = True
                self._checkpoint()

    def _await_block(self, before: int) -> bool:
        arrivals = self._parts.receiver.arrivals
        while self._parts.env_steps() == before:
            if self._parts.stop.requested:
                return False
            self._account.waits("the actor's block")
            arrivals = self._parts.receiver.wait(arrivals, timeout_s=_WAIT_S)
            self._check_stalled()
            self._chores()
        contributors = self._parts.receiver.contributors
        if len(contributors) > 1:
            raise ActorFailed(
                f"lockstep takes one actor in one life; experience came from {sorted(contributors)}",
                hint="go on from the last checkpoint with --resume and one actor",
            )
        return True

    # -- steps -------------------------------------------------------------------------------------------------------

    def _learn(self) -> bool:
        """Run one fused call if there is experience for it."""
        parts = self._parts
        if not parts.experience.ready():
            return False
        taken = parts.experience.take()
        if not self._in_rounds:
            # Before the update: no policy goes out with constants that it has not learned with.
            self._follow_observations()
        self._updating = True
        learned = parts.algorithm.update(taken)
        parts.experience.learned(taken, learned.errors)
        self._progression.updates += learned.steps
        self._updating = False
        if self._in_rounds:
            # Behind the update: until then a round has the constants of the file that acted, as its log probabilities.
            self._follow_observations()
        self._account.updated(learned.metrics)
        parts.receiver.send_acks()
        return True

    def _follow_observations(self) -> None:
        """Let the normaliser's constants follow what was observed."""
        parts = self._parts
        self._progression.normalizer_version += parts.normalizer.follow(parts.experience, parts.algorithm)

    def _push_due(self) -> bool:
        """Say whether enough was learned since the last push; in rounds every update is followed by one."""
        since = self._progression.updates - self._last_push_updates
        return self._in_rounds or since >= self._config.push_period_updates

    def _may_go_out(self, pushed: Pushed) -> bool:
        """Ask the gate. In rounds actors wait for this policy, so it is measured and never held back."""
        if self._in_rounds:
            self._gate.judge(pushed.snapshot, updates=self._progression.updates)
            return True
        return self._gate.passes(pushed.snapshot, updates=self._progression.updates)

    def _begin_round_anew(self) -> None:
        """Open another round where one cannot become whole: an actor has gone, or its rows were lost."""
        config = self._config
        if not isinstance(config, RolloutConfig) or not self._parts.receiver.actors:
            return
        silent_s = time.monotonic() - max(self._parts.receiver.last_stored_s, self._last_publish_s)
        if silent_s > config.round_timeout_s:
            _LOG.warning("%s, and nothing came for %.0f s: a new round", self._parts.experience.why_blocked(), silent_s)
            self._publish(self._prepare())

    def _prepare(self) -> Pushed:
        """Make the next policy version ready to go out."""
        parts, progression = self._parts, self._progression
        progression.version += 1
        fit_head_range(parts.algorithm.policy, parts.experience, in_rounds=self._in_rounds)
        env_steps = parts.env_steps()
        pushed = parts.publisher.prepare(
            parts.algorithm.policy.snapshot,
            version=progression.version,
            env_steps=env_steps,
            exploration=parts.algorithm.exploration(env_steps),
            normalizer_version=progression.normalizer_version,
            reset=self._config.lockstep and progression.reset_due,
        )
        progression.reset_due = False
        self._last_push_updates = progression.updates
        self._account.prepared(pushed)
        return pushed

    def _publish(self, pushed: Pushed) -> None:
        # What another learner serves is not overwritten.
        self._parts.presence.check()
        # Known before it is out: an actor may have acted with it before `publish` returns.
        self._parts.receiver.lag.published(pushed.version, pushed.env_steps)
        self._parts.experience.begin(self._parts.epoch, pushed.version)
        self._account.pushes += self._parts.publisher.publish(pushed)
        self._last_publish_s = time.monotonic()
        if self._parts.edge_tpu is not None:
            self._parts.edge_tpu.consider(pushed)
        self._audit_owed |= pushed.version % self._config.audit_period_pushes == 0
        if self._audit_owed:
            self._audit_owed = not self._parts.auditor.submit(pushed)

    def _submit_judge(self, pushed: Pushed) -> None:
        """Have every so many versions judged; a judge that is busy skips one."""
        if self._progression.updates and pushed.version % self._config.evaluate_period_pushes == 0:
            self._judge(pushed)

    def _judge(self, pushed: Pushed) -> None:
        taken = self._parts.evaluator.submit(
            pushed.policy, pushed.golden, version=pushed.version, env_steps=pushed.env_steps
        )
        if taken:
            self._judging = {pushed.version: pushed}

    def _poll_judge(self, *, timeout_s: float) -> None:
        try:
            judged = self._parts.evaluator.poll(timeout_s=timeout_s)
        except (ModelError, EnvironmentMisbehaved) as error:
            # One version that cannot be played is no reason to end a run; the next one is judged again.
            _LOG.warning("policy version %s was not judged: %s", next(iter(self._judging), "?"), error)
            self._unjudged += 1
            if self._unjudged >= _MAX_UNJUDGED:
                raise
            return
        if judged is None:
            return
        self._unjudged = 0
        self._account.judge(judged)
        self._parts.keeper.consider(judged, self._judging.pop(judged.version))

    def _judge_last(self, reason: StopReason) -> None:
        """At the end of the budget, wait for what is being judged, then judge the last policy too."""
        if reason is not StopReason.BUDGET or not self._progression.updates:
            return
        self._await_judgement()
        if not self._best_meets_goal():
            self._judge(self._prepare())
            self._await_judgement()

    def _await_judgement(self) -> None:
        """Wait for what is being judged, with an eye on everything else; given up at its deadline."""
        evaluator = self._parts.evaluator
        deadline = time.monotonic() + self._config.evaluate_timeout_s
        while evaluator.busy and not self._parts.stop.requested:
            self._poll_judge(timeout_s=_WAIT_S)
            self._chores()
            if time.monotonic() > deadline:
                _LOG.warning("a policy was not judged within %.0f s", self._config.evaluate_timeout_s)
                evaluator.cancel()

    def _checkpoint_due(self) -> bool:
        return self._rhythm.due(
            updates=self._progression.updates,
            pushed_updates=self._last_push_updates,
            env_steps=self._parts.env_steps(),
            now_s=time.monotonic(),
        )

    def _checkpoint_if_possible(self) -> None:
        """Write a checkpoint, not in lockstep; where the disk refuses, the last one is still there."""
        if self._config.lockstep or not self._progression.updates:
            return
        try:
            self._checkpoint()
        except QuarlError as error:
            _LOG.warning("no checkpoint now: %s", error)

    def _checkpoint(self) -> None:
        updates = self._progression.updates
        self._rhythm.begin(updates=updates, env_steps=self._parts.env_steps(), now_s=time.monotonic())
        self._parts.keeper.checkpoint(self._parts.algorithm, self._progression)
        self._rhythm.end(updates=updates, now_s=time.monotonic())

    def _rescue(self) -> None:
        """Keep what a fatal error interrupts, unless it broke an update in the middle; never hides that error."""
        if self._updating:
            _LOG.warning("no checkpoint of an update that was not finished; the last one stands")
            return
        try:
            self._checkpoint_if_possible()
        except Exception:
            _LOG.exception("no checkpoint after the error that ends this run")

    # -- chores ------------------------------------------------------------------------------------------------------

    def _stop_reason(self) -> StopReason | None:
        if self._parts.stop.requested:
            return StopReason.INTERRUPTED
        if self._best_meets_goal():
            return StopReason.SOLVED
        return StopReason.BUDGET if self._parts.env_steps() >= self._config.steps else None

    def _best_meets_goal(self) -> bool:
        goal, best = self._config.goal_return, self._parts.keeper.best
        return goal is not None and best is not None and best.return_mean >= goal

    def _check_stalled(self) -> None:
        receiver, actors = self._parts.receiver, self._parts.actors
        silent_s = time.monotonic() - max(receiver.last_stored_s, self._last_publish_s)
        # Actors elsewhere may come tomorrow; local ones have no excuse. A full disk waits for somebody to free it.
        if actors is not None and silent_s > (_BLOCKED_S if receiver.blocked else _STALL_S):
            said = {name: view.state.blocked or "running" for name, view in receiver.actors.items()}
            raise TrainingStalled(
                f"no experience was stored for {silent_s:.0f} s; "
                f"{self._why_nothing_is_stored() or f'actors say {said}'}",
                hint="their logs are in the run's logs/ directory",
            )

    def _why_nothing_is_stored(self) -> str:
        receiver = self._parts.receiver
        if receiver.blocked:
            return receiver.blocked
        return f"blocks were refused, by error code: {receiver.refused}" if receiver.refused else ""

    def _chores(self) -> None:
        now = time.monotonic()
        if now < self._next_chores_s:
            return
        self._next_chores_s = now + _CHORES_PERIOD_S
        parts = self._parts
        parts.check_broker()
        parts.presence.tick()
        self._account.pushes += parts.publisher.retry()
        parts.publisher.renew(parts.receiver.policies_in_use, now)
        if parts.actors is not None:
            parts.actors.check()
        parts.receiver.send_acks()  # who fell silent is noticed though nobody speaks
        parts.keeper.sync()
        parts.auditor.poll()
        self._publish_compiled()
        self._account.show()

    def _publish_compiled(self) -> None:
        """Send a push that was compiled for the Edge TPU; what another learner serves is not overwritten."""
        compiled = self._parts.edge_tpu
        if compiled is not None and compiled.is_ready:
            self._parts.presence.check()
            compiled.publish()
