"""Where training numbers go: a `MetricsSink` Protocol, TensorBoard, and nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


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
        self._writer = tf.summary.create_file_writer(str(directory))

    def write(self, env_steps: int, scalars: Mapping[str, float]) -> None:
        """Record `scalars` at `env_steps`."""
        with self._writer.as_default():
            for name, value in scalars.items():
                self._summary.scalar(name, value, step=env_steps)

    def close(self) -> None:
        """Flush and end."""
        self._writer.close()


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
