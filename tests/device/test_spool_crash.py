"""The spool is killed at every single thing that it does to the disk, and no step is in no account, or in two."""

import os
from pathlib import Path

import pytest

from quarl_device.spool.config import SpoolConfig
from quarl_device.spool.disk import DiskSpool
from quarl_device.wire.loss import read_loss
from quarl_edge.ingest.sessions import SessionTable, Verdict

LIVES = [f"{number:016x}" for number in range(1, 6)]
STEPS = 4
CONFIG = SpoolConfig(max_bytes=64 * 1024, when_full="drop-oldest")  # seven blocks
BLOCK_BYTES = 8_000


class Crash(BaseException):
    """The process ends here."""


class Crashes:
    """Ends the process before, or in the middle of, one of the things that a spool does to files."""

    def __init__(self, monkeypatch, at, torn):
        self.at, self.torn, self.count = at, torn, 0
        for owner, name in [(os, "pwritev"), (os, "write"), (os, "fdatasync"), (Path, "unlink"), (Path, "rename")]:
            monkeypatch.setattr(owner, name, self._guarded(getattr(owner, name), name))

    def _guarded(self, real, name):
        def call(*args, **named):
            self.count += 1
            if self.count == self.at:
                if self.torn and name == "pwritev":
                    whole = b"".join(args[1])
                    real(args[0], [whole[: len(whole) // 2]], args[2])
                raise Crash
            return real(*args, **named)

        return call


class Learner:
    """Meets the device now and then; everything that it knows survives."""

    def __init__(self):
        self.table, self.stored = SessionTable(), []

    def meet(self, spool, most):
        for _ in range(most):
            sequence = spool.next_held(spool.base)
            payload = None if sequence is None else spool.get(sequence)
            if payload is None:
                return
            life, loss, gap = spool.delivering, read_loss(payload), spool.gap_before(sequence)
            verdict = self.table.examine("pi", life, sequence, spool.base, gap)
            if verdict is Verdict.ACCEPT and loss is not None:
                self.table.lose("pi", loss)
            elif verdict is Verdict.ACCEPT:
                self.stored.append((life, sequence))
                self.table.accept("pi", life, gap, first_step=STEPS * sequence, steps=STEPS)
            spool.free(self.table.expected("pi", life) - 1)


def history(directory, made, learner):
    """Three lives make more than fits; the learner is there for moments of the second and the third."""
    for life, count, meets in zip(LIVES, (12, 11, 9), (0, 3, 30), strict=False):
        spool = DiskSpool(directory, boot_id=life, config=CONFIG)
        try:
            for sequence in range(count):
                made.append((life, sequence))
                spool.put(sequence, f"{life} {sequence} ".encode() * (BLOCK_BYTES // 20), steps=STEPS)
                if sequence % 5 == 4:
                    learner.meet(spool, meets)
        finally:
            spool._let_go()


def settle(directory, learner):
    spool = DiskSpool(directory, boot_id=LIVES[-1], config=CONFIG)
    learner.meet(spool, 1_000)
    assert len(spool) == 0
    spool.close()


def count_of(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        counter = Crashes(patch, 0, torn=False)
        history(tmp_path / "whole", [], Learner())
    return counter.count


@pytest.mark.parametrize("torn", [False, True])
def test_wherever_it_is_killed_stored_and_lost_are_all_that_was_made(tmp_path, monkeypatch, torn, caplog):
    caplog.set_level("CRITICAL")
    total = count_of(tmp_path, monkeypatch)
    assert total > 60
    lost_somewhere = 0
    for at in range(1, total + 1):
        made, learner, directory = [], Learner(), tmp_path / f"{at}"
        with monkeypatch.context() as patch:
            Crashes(patch, at, torn)
            with pytest.raises(Crash):
                history(directory, made, learner)
        settle(directory, learner)
        account = learner.table.account("pi")
        assert len(set(learner.stored)) == len(learner.stored), at
        assert account.stored_steps == STEPS * len(learner.stored), at
        known = account.stored_steps + account.lost_steps
        # The block that was being put may be on the disk, or not.
        assert known in (STEPS * len(made), STEPS * (len(made) - 1)), (at, made[-1], account)
        assert account.lost_steps == STEPS * account.lost_blocks, at
        lost_somewhere += account.lost_steps > 0
    assert lost_somewhere > total // 2
