"""The options of `quarl-device run` that say where experience waits, and `quarl-device bench --spool`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from quarl_device.arguments import at_least, between
from quarl_device.errors import UsageError
from quarl_device.output import write_result

if TYPE_CHECKING:
    from quarl_device.actor.identity import AgentConfig
    from quarl_device.actor.outbox import Outbox
    from quarl_device.spool.config import SyncPolicy

DISK_MIB = 256
MEMORY_MIB = 64
_MAX_MIB = 1024 * 1024
_MAX_SYNC_S = 3600
_DEFAULT_SYNC = "5"
_DEFAULT_RATE = 1000


def add_spool_options(run: argparse.ArgumentParser) -> None:
    """Add the options that `make_outbox` reads."""
    run.add_argument(
        "--spool",
        choices=("disk", "memory"),
        default="disk",
        help="where experience waits; memory wears no card, and is lost with the process (default: %(default)s)",
    )
    run.add_argument(
        "--state-dir",
        "--state",
        type=Path,
        metavar="DIR",
        help="of the spool, or of the deployed policies (default: /var/lib/quarl-edge or XDG)",
    )
    run.add_argument(
        "--spool-mib",
        type=between(1, _MAX_MIB),
        metavar="M",
        help=f"its size (default: {DISK_MIB}; memory: {MEMORY_MIB})",
    )
    run.add_argument(
        "--spool-sync",
        type=_sync_policy,
        default=_DEFAULT_SYNC,
        metavar="S|always|never",
        help="fsync every S seconds, which is what a power cut may take (default: %(default)s)",
    )
    run.add_argument(
        "--when-full",
        choices=("block", "drop-oldest"),
        default="block",
        help="stand still, or give up the oldest blocks (default: %(default)s)",
    )


def make_outbox(options: argparse.Namespace, config: AgentConfig, boot_id: str) -> Outbox:
    """Return where the experience of a life waits.

    Raises:
        StateUnwritable: the state directory cannot be used.
        SpoolInUse: another process has this device's spool.
    """
    from quarl_device.actor.outbox import MemoryOutbox
    from quarl_device.paths import state_dir
    from quarl_device.spool.config import SpoolConfig
    from quarl_device.spool.directory import spool_of
    from quarl_device.spool.disk import DiskSpool

    in_memory = options.spool == "memory"
    max_bytes = (options.spool_mib or (MEMORY_MIB if in_memory else DISK_MIB)) * 1024 * 1024
    if in_memory:
        return MemoryOutbox(boot_id, max_bytes=max_bytes, when_full=options.when_full)
    policy, interval_s = options.spool_sync
    spool = SpoolConfig(max_bytes=max_bytes, when_full=options.when_full, sync=policy, sync_interval_s=interval_s)
    directory = spool_of(options.state_dir or state_dir(), fleet=config.fleet, device=config.name)
    return DiskSpool(directory, boot_id=boot_id, config=spool)


def add_spool_bench_options(bench: argparse.ArgumentParser) -> None:
    """Add the options that `bench_spool` reads."""
    bench.add_argument("--spool", type=Path, metavar="DIR", help="measure a spool there instead, and remove it again")
    bench.add_argument(
        "--rate", type=at_least(1), metavar="N", help=f"with --spool: steps per second (default: {_DEFAULT_RATE})"
    )
    bench.add_argument("--observation", type=_shape, metavar="AxBxC", help="with --spool: synthetic uint8 observations")
    bench.add_argument(
        "--spool-sync",
        type=_sync_policy,
        metavar="S|always|never",
        help=f"with --spool: see run (default: {_DEFAULT_SYNC})",
    )


def is_spool_bench(options: argparse.Namespace) -> bool:
    """Say whether the spool is to be measured.

    Raises:
        UsageError: it is not, and an option is given that belongs to it.
    """
    if options.spool is None and (options.rate or options.observation or options.spool_sync):
        raise UsageError("--rate, --observation and --spool-sync go with --spool DIR", hint="quarl-device bench --help")
    return options.spool is not None


def bench_spool(options: argparse.Namespace) -> int:
    """Measure what a spool writes, and say it.

    Raises:
        UsageError: a model is named, which is not what is measured.
        StateUnwritable: the directory cannot be used.
    """
    from quarl_device.runtime_options import chosen_runtime
    from quarl_device.spool.config import SpoolConfig
    from quarl_device.spool.wear import spool_wear

    if options.model is not None:
        raise UsageError("--spool measures the built-in policy or --observation, not a model", hint="leave MODEL out")
    policy, interval_s = options.spool_sync or _sync_policy(_DEFAULT_SYNC)
    wear = spool_wear(
        options.spool,
        observation=options.observation,
        num_envs=options.envs,
        steps_per_s=float(options.rate or _DEFAULT_RATE),
        duration_s=options.seconds,
        config=SpoolConfig(sync=policy, sync_interval_s=interval_s),
        runtime=chosen_runtime(options),
    )
    if options.format == "json":
        write_result(json.dumps(asdict(wear)) + "\n")
        return 0
    if wear.disk_bytes_per_step is None or wear.gib_per_hour is None:
        disk = "and what reaches a disk is not counted here (a directory in memory?)\n"
    else:
        disk = (
            f"{wear.disk_bytes_per_step:,.1f} to the disk\n"
            f"{wear.gib_per_hour:,.3f} GiB per hour at {wear.steps_per_s:,.0f} steps/s; "
        )
    write_result(
        f"{wear.source} x {wear.envs}, blocks of {wear.rows_per_block} rows and {wear.block_bytes:,} bytes, synced "
        f"{wear.sync}: {wear.spool_bytes_per_step:,.1f} bytes per step into files, {disk}"
        "one block takes "
        f"{wear.put_us_p50:,.0f} µs (p99 {wear.put_us_p99:,.0f}); {wear.machine}\n"
    )
    return 0


def _shape(text: str) -> tuple[int, ...]:
    parts = text.split("x")
    if not 1 <= len(parts) <= 4 or not all(part.isdecimal() and len(part) < 7 for part in parts):
        raise argparse.ArgumentTypeError(f"expected a shape such as 84x84x4, found {text[:40]!r}")
    return tuple(map(int, parts))


def _sync_policy(text: str) -> tuple[SyncPolicy, float]:
    # Compared one by one: mypy learns nothing from a membership test.
    if text == "always":
        return "always", float(_MAX_SYNC_S)
    if text == "never":
        return "never", float(_MAX_SYNC_S)
    return "interval", float(between(1, _MAX_SYNC_S)(text))
