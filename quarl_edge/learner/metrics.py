"""Where training numbers go: a `MetricsSink` Protocol, TensorBoard, and nothing."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

_LOG = logging.getLogger(__name__)


class MetricsSink(Protocol):
    """Takes named numbers at an environment step."""

    def write(self, env_steps: int, scalars: Mapping[str, float]) -> None:
        """Record `scalars` at `env_steps`; may buffer."""

    def close(self) -> None:
        """Flush and end."""


class TensorBoard:
    """Writes scalars for TensorBoard; the step axis is environment steps, so that runs compare.

    Args:
        directory: the run's `tb/`.
    """

    def __init__(self, directory: Path) -> None:
        import tensorflow as tf

        self._summary = tf.summary
        self._op_error = tf.errors.OpError
        self._failed = False
        self._writer: Any = None
        with self._tolerating():
            self._writer = tf.summary.create_file_writer(str(directory))

    def write(self, env_steps: int, scalars: Mapping[str, float]) -> None:
        """Record `scalars` at `env_steps`."""
        if self._writer is None:
            return
        with self._tolerating(), self._writer.as_default():
            # TensorFlow remembers every number of Python's that it is given, for ever; numpy's it does not.
            step = np.int64(env_steps)
            for name, value in scalars.items():
                self._summary.scalar(name, np.float32(value), step=step)

    def close(self) -> None:
        """Flush and end."""
        if self._writer is not None:
            with self._tolerating():
                self._writer.close()

    @contextlib.contextmanager
    def _tolerating(self) -> Iterator[None]:
        """Let a disk that refuses cost the numbers, not the run."""
        try:
            yield
        except (self._op_error, OSError) as error:
            if not self._failed:
                _LOG.warning("TensorBoard numbers are not written: %s", str(error).splitlines()[0][:200])
            self._failed = True


class MemoryMetrics:
    """Keeps everything; the test double of `MetricsSink`."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def write(self, env_steps: int, scalars: Mapping[str, float]) -> None:
        """Record `scalars` at `env_steps`."""
        self.rows.append((env_steps, dict(scalars)))

    def close(self) -> None:
        """Mark as ended."""
        self.closed = True
