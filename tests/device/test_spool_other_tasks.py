"""What is damaged of one task is told to no learner of another."""

import pytest

from quarl_device.spool.config import SpoolConfig
from quarl_device.spool.disk import DiskSpool
from quarl_device.spool.records import HEADER_BYTES
from quarl_device.wire.loss import read_loss

EARLIER, LATER = "1" * 16, "2" * 16
CONFIG = SpoolConfig(sync="never")


def abandoned(directory, *tasks):
    """An earlier life that put one block of 77 steps for each task, and was killed; returns its files in order."""
    spool = DiskSpool(directory, boot_id=EARLIER, config=CONFIG)
    for sequence, task in enumerate(tasks):
        spool.begin_task(task)
        spool.put(sequence, b"x" * 500, steps=77)
    spool._let_go()
    return sorted(directory.glob("*.qs"))


def spoil(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_block_that_is_damaged_is_a_loss_of_its_own_task(tmp_path):
    (file,) = abandoned(tmp_path / "s", "A")
    spoil(file, -10)
    spool = DiskSpool(tmp_path / "s", boot_id=LATER, config=CONFIG)
    assert len(spool) == 1
    assert (spool.holds_other_task("A"), spool.holds_other_task("B")) == (False, True)
    spool.begin_task("B")
    assert len(spool) == 0
    spool.close()


def test_its_own_learner_is_told_of_it(tmp_path):
    (file,) = abandoned(tmp_path / "s", "A")
    spoil(file, -10)
    spool = DiskSpool(tmp_path / "s", boot_id=LATER, config=CONFIG)
    spool.begin_task("A")
    assert read_loss(spool.get(0)).lost_steps == 77
    spool.close()


@pytest.mark.parametrize("at", [-10, -500 - HEADER_BYTES + 20], ids=["its payload", "its header"])
def test_what_a_file_misses_at_its_end_is_not_of_the_next_ones_task(tmp_path, at):
    """A file of task A that lost its last block, and a file of task B of the same life behind it."""
    directory = tmp_path / "s"
    spool = DiskSpool(directory, boot_id=EARLIER, config=CONFIG)
    spool.begin_task("A")
    for sequence in range(2):
        spool.put(sequence, b"x" * 500, steps=77)
    (first,) = directory.glob("*.qs")
    copy = first.read_bytes()
    spool.begin_task("B")
    spool.put(2, b"y" * 500, steps=5)
    spool._let_go()
    first.write_bytes(copy)  # as a power cut may bring a file back whose removal never reached the disk
    spoil(first, at)
    spool = DiskSpool(directory, boot_id=LATER, config=CONFIG)
    spool.begin_task("B")
    held = []
    while len(spool):
        sequence = spool.next_held(spool.base)
        held.append((sequence, read_loss(spool.get(sequence)) is None))
        spool.free(sequence)
    assert held == [(2, True)]
    spool.close()


def test_what_was_given_up_is_no_noise_about_blocks_that_are_not_there(tmp_path, caplog):
    abandoned(tmp_path / "s", "A")
    spool = DiskSpool(tmp_path / "s", boot_id=LATER, config=CONFIG)
    spool.give_up()
    spool._let_go()
    caplog.clear()
    DiskSpool(tmp_path / "s", boot_id="3" * 16, config=CONFIG).close()
    assert "of 1 blocks the learner is told that they never come" in caplog.text
    assert "0 blocks" not in caplog.text
