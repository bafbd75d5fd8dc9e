"""What a spool writes: how many bytes per step and hour, and what a block costs the actor's loop."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quarl_device.actor.acting import ActingPolicy
from quarl_device.actor.bench import BUILT_IN_POLICY, MAX_ENVS, bench_exploration, bench_loop
from quarl_device.actor.recorder import Recorder
from quarl_device.board.processor import describe_machine
from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.errors import StateUnwritable, UsageError
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy_path
from quarl_device.runtime import PolicyRuntime
from quarl_device.spool.config import SpoolConfig
from quarl_device.spool.disk import DiskSpool
from quarl_device.wire.block import BlockCodec, BlockSpec

_BOOT_ID = "0" * 16
_BLOCK_ROWS = 256
_HELD_BLOCKS = 4  # as far behind as a learner on a good link is
_UPKEEP_S = 0.1
_MAX_OBSERVATION_BYTES = 256 * 1024

MakeBlock = Callable[[int, int], tuple[bytes, int]]
"""From (sequence, base) to a payload and the steps in it."""


@dataclass(frozen=True, kw_only=True)
class SpoolWear:
    """What was measured.

    Attributes:
        source: where the blocks came from: an environment id, or the observations of synthetic ones.
        envs: environments per block.
        rows_per_block: T.
        steps: environment steps that were written.
        block_bytes: mean size of a block.
        spool_bytes_per_step: written to files, record headers and notes of what is freed included.
        disk_bytes_per_step: handed to the disk by this process, in whole pages, as the kernel counts it; None where it
            counts nothing: the directory is in memory, or there is no /proc/self/io.
        gib_per_hour: of `disk_bytes_per_step`, at `steps_per_s`; None where that is None.
        steps_per_s: the rate that `gib_per_hour` is for.
        put_us_p50: median time of `put`, in µs.
        put_us_p99: 99th percentile of the same.
        sync: policy, with its seconds.
        machine: processor architecture, number of CPUs, Python.
    """

    source: str
    envs: int
    rows_per_block: int
    steps: int
    block_bytes: int
    spool_bytes_per_step: float
    disk_bytes_per_step: float | None
    gib_per_hour: float | None
    steps_per_s: float
    put_us_p50: float
    put_us_p99: float
    sync: str
    machine: str


def spool_wear(
    directory: Path,
    *,
    observation: tuple[int, ...] | None = None,
    num_envs: int = 1,
    steps_per_s: float = 1_000.0,
    duration_s: float = 3.0,
    config: SpoolConfig | None = None,
    runtime: PolicyRuntime | None = None,
) -> SpoolWear:
    """Write blocks into a spool in `directory`, as an actor does towards a learner that keeps up, and remove it again.

    Args:
        directory: on the disk in question; made if it is missing.
        observation: shape of uint8 observations of synthetic blocks; `None` plays CartPole-v1.
        num_envs: environments per block.
        steps_per_s: rate to compute the hour for, and to write at if that is slower than this machine.
        duration_s: of the measurement.
        config: of the spool.
        runtime: see `Policy.load`.

    Raises:
        UsageError: an argument is out of range.
        StateUnwritable: the directory cannot be used.
    """
    if not 1 <= num_envs <= MAX_ENVS or not 0.01 <= duration_s <= 600 or not 0 < steps_per_s <= 1e9:
        raise UsageError(
            f"cannot measure {num_envs} environments at {steps_per_s} steps/s for {duration_s} s: at most {MAX_ENVS}, "
            "1e9 steps/s, 0.01..600 s"
        )
    config = config or SpoolConfig()
    make, source, rows = _played(num_envs, runtime) if observation is None else _synthetic(observation, num_envs)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="spool-bench-", dir=directory) as folder:
            spool = DiskSpool(Path(folder), boot_id=_BOOT_ID, config=config)
            try:
                return _measure(spool, make, source, num_envs, rows, steps_per_s, duration_s, config)
            finally:
                spool.close()
    except OSError as cause:
        raise StateUnwritable(f"{directory} cannot be used: {cause.strerror}") from cause


def _measure(
    spool: DiskSpool,
    make: MakeBlock,
    source: str,
    num_envs: int,
    rows: int,
    steps_per_s: float,
    duration_s: float,
    config: SpoolConfig,
) -> SpoolWear:
    clock, put_us, steps, payload_bytes, sequence = time.perf_counter, [], 0, 0, 0
    began, upkept, written = clock(), 0.0, _written_bytes()
    while (now := clock() - began) < duration_s or not sequence:
        payload, made = make(sequence, spool.base)
        before = clock()
        spool.put(sequence, payload, steps=made)
        put_us.append(1e6 * (clock() - before))
        if spool.fault:
            raise StateUnwritable(f"the spool cannot be written: {spool.fault}")
        spool.free(sequence - _HELD_BLOCKS)
        steps, payload_bytes, sequence = steps + made, payload_bytes + len(payload), sequence + 1
        if now - upkept >= _UPKEEP_S:
            upkept = now
            _run(spool.upkeep(time.monotonic()))
        # No faster than asked: the share of notes and half pages depends on it.
        time.sleep(max(0.0, min(steps / steps_per_s, duration_s) - (clock() - began)))
    _run(spool.upkeep(math.inf))
    # Blocks were written, so 0 says that it does not count here, not that no disk was reached.
    disk_bytes = (_written_bytes() - written) / steps or None
    return SpoolWear(
        source=source,
        envs=num_envs,
        rows_per_block=rows,
        steps=steps,
        block_bytes=payload_bytes // sequence,
        spool_bytes_per_step=round(spool.bytes_written / steps, 2),
        disk_bytes_per_step=None if disk_bytes is None else round(disk_bytes, 2),
        gib_per_hour=None if disk_bytes is None else round(disk_bytes * steps_per_s * 3600 / 2**30, 4),
        steps_per_s=steps_per_s,
        put_us_p50=round(float(np.percentile(put_us, 50)), 1),
        put_us_p99=round(float(np.percentile(put_us, 99)), 1),
        sync=f"every {config.sync_interval_s:g} s" if config.sync == "interval" else config.sync,
        machine=describe_machine(),
    )


def _run(slow: Callable[[], None] | None) -> None:
    if slow is not None:
        slow()


def _written_bytes() -> int:
    """Return the bytes that this process has sent towards disks, 0 where the kernel does not say."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes:")), 0)


def _played(num_envs: int, runtime: PolicyRuntime | None) -> tuple[MakeBlock, str, int]:
    """Return what plays CartPole-v1 with the policy that comes with the package."""
    file = read_policy_path(BUILT_IN_POLICY)
    loop, codec = bench_loop(file, num_envs)
    policy = Policy.load(file, runtime=runtime, batch_size=num_envs, stacked=True)
    loop.mailbox.post_policy(ActingPolicy(policy=policy, epoch=1, version=1, exploration=bench_exploration(file)))

    def make(sequence: int, base: int) -> tuple[bytes, int]:
        loop.run_block(loop.recorder.max_rows)
        block = loop.recorder.block(boot_id=_BOOT_ID, sequence=sequence, base=base)
        return codec.encode(block), loop.recorder.steps

    return make, file.contract.env_id, loop.recorder.max_rows


def _synthetic(shape: tuple[int, ...], num_envs: int) -> tuple[MakeBlock, str, int]:
    """Return what fills blocks of uint8 observations with noise, which no file system compresses away."""
    if not shape or min(shape) < 1 or math.prod(shape) > _MAX_OBSERVATION_BYTES:
        raise UsageError(f"observations of shape {shape} are not in 1..{_MAX_OBSERVATION_BYTES:,} bytes")
    spec = BlockSpec(
        observations=(ObservationSpec(key="observation", shape=shape, dtype="uint8"),),
        action=ActionSpec(kind="discrete", n=4),
    )
    rows = min(_BLOCK_ROWS, spec.max_steps(num_envs))
    recorder, codec = Recorder(spec, num_envs=num_envs, max_rows=rows), BlockCodec(spec)
    noise = np.random.default_rng(0)

    def make(sequence: int, base: int) -> tuple[bytes, int]:
        recorder.begin()
        recorder.observation[1:] = noise.integers(0, 256, recorder.observation[1:].shape, np.uint8)
        recorder.end(rows)
        return codec.encode(recorder.block(boot_id=_BOOT_ID, sequence=sequence, base=base)), recorder.steps

    return make, f"synthetic uint8 {'x'.join(map(str, shape))}", rows
