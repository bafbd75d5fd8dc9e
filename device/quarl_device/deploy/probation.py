"""What a policy on probation is watched for. Counting alone: no clock, no IO, and cheap enough for every step."""

from __future__ import annotations

from dataclasses import dataclass

from quarl_device.errors import UsageError

_LEAST_STEPS = 20
"""Fewer steps say nothing about a share."""


@dataclass(frozen=True, kw_only=True)
class ProbationRules:
    """When a probation is passed, and when it is not.

    Attributes:
        episodes: passed after so many whole episodes, in which it has chosen every step,
        steps: or after so many steps that it has chosen, whichever comes first.
        budget_s: a step's time from observation to action that is not too slow; 0 for any.
        share: of the steps that may be over the budget, or beyond the hard limits.
    """

    episodes: int = 3
    steps: int = 1000
    budget_s: float = 0.0
    share: float = 0.05

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.steps < 1 or not 0.0 <= self.share <= 1.0 or not self.budget_s >= 0.0:
            raise UsageError(f"a probation needs at least one episode or step, and a share in 0..1, found {self}")


class Probation:
    """One policy's probation, step by step.

    Args:
        rules: see `ProbationRules`.

    Attributes:
        steps: that it has chosen so far.
        episodes: in which it chose every step.
        slow: steps over the budget.
        limited: steps whose action was beyond the hard limits.
        passed: whether it has done well for long enough.
        failure: what is wrong, "" while nothing is. The first one stays.
    """

    def __init__(self, rules: ProbationRules) -> None:
        self._rules = rules
        self.steps = self.episodes = self.slow = self.limited = 0
        self._steps_before = 0
        self.passed = False
        self.failure = ""

    def step(self, *, took_s: float, finite: bool, inside: bool, limited: bool) -> None:
        """Count one action.

        Args:
            took_s: from observation to action.
            finite: whether the outputs held no NaN or Inf.
            inside: whether the action lies in its space.
            limited: whether a hard limit changed it.
        """
        rules = self._rules
        self.steps += 1
        self.slow += 0.0 < rules.budget_s < took_s
        self.limited += limited
        if not finite:
            self._fail(f"NaN or Inf in the outputs at step {self.steps} of its probation")
        elif not inside:
            self._fail(f"an action outside of its space at step {self.steps} of its probation")
        elif self.steps >= min(_LEAST_STEPS, rules.steps):
            self._judge()
        self._pass_if_due()

    def end_episode(self, steps: int) -> None:
        """Count an episode in which it has chosen all actions: one that another began, or the safe action, says less.

        Args:
            steps: of the environment in this episode.
        """
        chosen, self._steps_before = self.steps - self._steps_before, self.steps
        if not 0 < steps <= chosen:
            return
        self.episodes += 1
        if self.episodes >= self._rules.episodes:
            self._judge()  # short episodes may not have come to a step that judges
        self._pass_if_due()

    def _judge(self) -> None:
        allowed = self._rules.share * self.steps
        if self.slow > allowed:
            budget_ms = self._rules.budget_s * 1e3
            self._fail(f"{self.slow} of {self.steps} steps took longer than {budget_ms:g} ms")
        elif self.limited > allowed:
            self._fail(f"{self.limited} of {self.steps} actions were beyond the hard limits")

    def _pass_if_due(self) -> None:
        done = self.steps >= self._rules.steps or self.episodes >= self._rules.episodes
        self.passed = self.passed or (done and not self.failure)

    def _fail(self, failure: str) -> None:
        self.failure = self.failure or failure
