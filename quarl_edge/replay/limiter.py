"""How often a transition is sampled for each time one is inserted, held from both sides.

The rule is Reverb's `SampleToInsertRatio`, in two stages. Until `min_size` items are in, inserting is free and sampling
waits. After that the difference ``inserts * samples_per_insert - samples`` is kept within ``offset ± error_buffer``,
where ``offset = samples_per_insert * min_size``: sampling waits below, inserting above.

Items come in units: a block of `insert_unit` transitions, a fused update of `sample_unit` samples. With a window too
narrow for the units each side can wait for the other for ever. There is none of that where

    2 * error_buffer >= sample_unit + samples_per_insert * insert_unit
        error_buffer >= samples_per_insert * insert_unit

for then, whenever a whole unit of samples does not fit, a whole unit of inserts does (the second line is for the first
items, which may stop just short of `min_size`). The constructor refuses less.
Inserting is asked for ahead of time (credit), never refused when it comes: `inserts` may run over the window by what
was under way, which only lets sampling go on for longer.
"""

from __future__ import annotations

import math

from quarl_device.errors import CheckpointError, UsageError


def smallest_error_buffer(samples_per_insert: float, *, insert_unit: int = 1, sample_unit: int = 1) -> float:
    """Return the narrowest half window that cannot deadlock, in samples."""
    inserting = samples_per_insert * insert_unit
    return max(1.0, samples_per_insert, inserting, (sample_unit + inserting) / 2)


def default_error_buffer(samples_per_insert: float, *, insert_unit: int, sample_unit: int, actors: int) -> float:
    """Return a half window, in samples, that keeps every actor two blocks ahead of what has come in.

    With a block under way and another being made, no actor waits for an ack's round trip.
    """
    # Even when the next call is not yet possible but for one sample, and one more call after it.
    ahead = samples_per_insert * insert_unit * 2 * actors
    return max(1.0, samples_per_insert, (2 * sample_unit + ahead) / 2)


class SampleToInsertRatio:
    """Counts inserts and samples and says which side may go on. Pure: no clock, no lock, no waiting.

    One thread inserts and one samples; each only adds to its own counter.

    Args:
        samples_per_insert: how often each item is sampled, in the long run.
        min_size: items before the first sample.
        error_buffer: half width of the window, in samples.
        insert_unit: most items that are inserted at once.
        sample_unit: most samples that are drawn at once.

    Attributes:
        inserts: items inserted so far.
        samples: samples drawn so far.

    Raises:
        UsageError: a value is out of range, or the window could deadlock.
    """

    def __init__(
        self,
        samples_per_insert: float,
        min_size: int,
        error_buffer: float,
        *,
        insert_unit: int = 1,
        sample_unit: int = 1,
    ) -> None:
        if not (math.isfinite(samples_per_insert) and samples_per_insert > 0):
            raise UsageError(f"samples_per_insert = {samples_per_insert}: expected a number above 0")
        if min_size < 1:
            raise UsageError(f"min_size = {min_size}: expected at least 1")
        smallest = smallest_error_buffer(samples_per_insert, insert_unit=insert_unit, sample_unit=sample_unit)
        if not (math.isfinite(error_buffer) and error_buffer >= smallest):
            raise UsageError(
                f"error_buffer = {error_buffer:g} samples: expected at least {smallest:g}, or updates of {sample_unit} "
                f"samples and blocks of {insert_unit} transitions at {samples_per_insert:g} samples per insert can "
                "wait for each other for ever"
            )
        self.samples_per_insert = samples_per_insert
        self.min_size = min_size
        self._min_diff = samples_per_insert * min_size - error_buffer
        self._max_diff = samples_per_insert * min_size + error_buffer
        self.inserts = 0
        self.samples = 0

    def insert(self, count: int) -> None:
        """Count `count` inserted items; never refused."""
        self.inserts += count

    def sample(self, count: int) -> None:
        """Count `count` drawn samples."""
        self.samples += count

    def can_sample(self, count: int) -> bool:
        """Say whether `count` samples may be drawn now."""
        return self.inserts >= self.min_size and self._diff() - count >= self._min_diff

    def insert_room(self) -> int:
        """Return how many more items may be inserted now, at least 0."""
        by_ratio = math.floor((self._max_diff - self._diff()) / self.samples_per_insert)
        return max(0, self.min_size - self.inserts, by_ratio)

    def why_blocked(self, sample_count: int = 1) -> str:
        """Say in words what the sampling side waits for, "" where it does not wait."""
        if self.inserts < self.min_size:
            return f"{self.inserts:,} of {self.min_size:,} first transitions are in replay"
        if self.can_sample(sample_count):
            return ""
        short = math.ceil((self._min_diff + sample_count - self._diff()) / self.samples_per_insert)
        return f"the next update needs {short:,} more transitions ({self.samples_per_insert:g} samples per insert)"

    def restore(self, *, inserts: int, samples: int) -> None:
        """Go on from the counters of a checkpoint.

        Raises:
            CheckpointError: a counter is negative.
        """
        if inserts < 0 or samples < 0:
            raise CheckpointError(f"the limiter's state does not hold: {inserts} inserts, {samples} samples")
        self.inserts, self.samples = inserts, samples

    def restore_samples(self, samples: int) -> None:
        """Go on from a checkpoint's samples; the inserts come from the journal.

        Raises:
            CheckpointError: negative.
        """
        self.restore(inserts=self.inserts, samples=samples)

    def _diff(self) -> float:
        return self.inserts * self.samples_per_insert - self.samples
