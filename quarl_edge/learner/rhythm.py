"""When the next checkpoint is due: with the first push of something learned, then by steps and by time."""

from __future__ import annotations

_SHARE = 0.02  # of the time, at most, that checkpoints by time may take


class CheckpointRhythm:
    """Pure; whoever asks says what time it is.

    Args:
        period_steps: at multiples of so many environment steps, however often the run was resumed; 0: none by steps.
        period_s: so long after the last one, longer where writing it took more than 2 % of that; 0: none by time.
        updates: gradient steps that are kept already, of a run that is resumed.
        env_steps: of the run so far.
        now_s: monotonic time.
    """

    def __init__(self, *, period_steps: int, period_s: float, updates: int, env_steps: int, now_s: float) -> None:
        self._period_steps = period_steps
        self._period_s = period_s
        self._kept_updates = updates
        self._keeps_learning = updates > 0
        self._next_steps = self._following(env_steps)
        self._next_s = now_s + period_s
        self._began_s = now_s

    def passed(self, env_steps: int) -> bool:
        """Whether the next multiple of `period_steps` is reached."""
        return bool(self._period_steps) and env_steps >= self._next_steps

    def due(self, *, updates: int, pushed_updates: int, env_steps: int, now_s: float) -> bool:
        """Whether what was learned since the last one is to be kept now.

        Args:
            updates: gradient steps so far.
            pushed_updates: of them, those that the last push held.
            env_steps: so far.
            now_s: monotonic time.
        """
        if updates == self._kept_updates:
            return False
        if not self._keeps_learning:
            return pushed_updates > 0
        return self.passed(env_steps) or bool(self._period_s and now_s >= self._next_s)

    def begin(self, *, updates: int, env_steps: int, now_s: float) -> None:
        """One is tried; should it fail, it is tried again when the next is due."""
        self._keeps_learning = updates > 0
        self._next_steps = self._following(env_steps)
        self._next_s = now_s + self._period_s
        self._began_s = now_s

    def end(self, *, updates: int, now_s: float) -> None:
        """It is written."""
        self._kept_updates = updates
        self._next_s = now_s + max(self._period_s, (now_s - self._began_s) / _SHARE)

    def _following(self, env_steps: int) -> int:
        period = max(1, self._period_steps)
        return (env_steps // period + 1) * period
