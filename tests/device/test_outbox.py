"""Outboxes, in memory and on disk: every block exactly once, in order, until it is durable."""

import pytest

from quarl_device.actor.outbox import MemoryOutbox
from quarl_device.errors import UsageError
from quarl_device.spool.config import SpoolConfig
from quarl_device.spool.disk import DiskSpool
from quarl_device.testing.outbox_conformance import OUTBOX_CHECKS


@pytest.fixture(params=["memory", "disk", "disk, synced always", "disk, synced never"])
def make(request, tmp_path):
    opened = []

    def on_disk(boot_id, *, max_bytes, when_full):
        sync = request.param.split()[-1] if "synced" in request.param else "interval"
        config = SpoolConfig(max_bytes=max_bytes, when_full=when_full, sync=sync)
        opened.append(DiskSpool(tmp_path / "spool", boot_id=boot_id, config=config))
        return opened[-1]

    yield MemoryOutbox if request.param == "memory" else on_disk
    for spool in opened:
        spool.close()


@pytest.mark.parametrize("check", OUTBOX_CHECKS, ids=lambda check: check.__name__)
def test_conforms(check, make):
    check(make)


def test_a_cap_that_holds_nothing_is_refused():
    with pytest.raises(UsageError, match="not positive"):
        MemoryOutbox(max_bytes=0)
    with pytest.raises(UsageError, match="too small"):
        SpoolConfig(max_bytes=1000)
    with pytest.raises(UsageError, match="sync_interval_s"):
        SpoolConfig(sync_interval_s=0)
