"""The spool: blocks on the device's disk until the learner has them safe, over kills, power cuts and restarts."""

from quarl_device.spool.config import SpoolConfig, SyncPolicy
from quarl_device.spool.disk import DiskSpool

__all__ = ["DiskSpool", "SpoolConfig", "SyncPolicy"]
