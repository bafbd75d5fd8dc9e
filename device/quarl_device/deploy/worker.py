"""What takes time, off the stepping thread: one thing after another, and given up where it hangs."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable

Job = Callable[[], object]
_LOG = logging.getLogger(__name__)


class Worker:
    """A thread that does jobs in order. A job catches what it raises, and answers in its own way."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = self._start()

    def do(self, job: Job) -> None:
        """Have a job done after those that wait."""
        self._jobs.put(job)

    def abandon(self) -> None:
        """Give up the job that is being done, which no thread can be made to end; what waits is done by another one."""
        abandoned, self._jobs = self._jobs, queue.SimpleQueue()
        # The job under way may end at this very moment, and its thread take one too: nothing here waits for another.
        with contextlib.suppress(queue.Empty):
            while True:
                self._jobs.put(abandoned.get_nowait())
        abandoned.put(None)
        self._thread = self._start()

    def close(self, *, timeout_s: float) -> None:
        """Have the jobs that wait done, and end, within `timeout_s`."""
        self._jobs.put(None)
        self._thread.join(timeout_s)

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=_work, args=(self._jobs,), name="deploy", daemon=True)
        thread.start()
        return thread


def _work(jobs: queue.SimpleQueue[Job | None]) -> None:
    told = False
    while (job := jobs.get()) is not None:
        try:
            job()
        # The jobs behind it are to be done all the same.
        except Exception:
            if not told:
                _LOG.exception("the worker goes on after an error that nobody foresaw, told once")
            told = True
