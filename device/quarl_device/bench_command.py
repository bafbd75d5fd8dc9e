"""`quarl-device bench`: the actor's loop, one action, a fixed rate, and what the board says meanwhile."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quarl_device.arguments import between
from quarl_device.grid import MAX_HZ
from quarl_device.output import write_result
from quarl_device.runtime_options import add_runtime_options, chosen_runtime
from quarl_device.spool.options import add_spool_bench_options, bench_spool, is_spool_bench

if TYPE_CHECKING:
    from quarl_device.actor.bench import ActorSpeed
    from quarl_device.actor.board_bench import BoardBench

MAX_ENVS = 4096
_DEFAULT_HZ = 100
_EXAMPLES = """\
examples:
  quarl-device bench
  quarl-device bench --envs 64 --format json
  quarl-device bench pendulum.tflite --envs 16 --seconds 10
  quarl-device bench arm.tflite --hz 500 --threads 2
  quarl-device bench arm_edgetpu.tflite --delegate edgetpu:usb --delegate-required
  quarl-device bench --spool /var/lib/quarl-edge --rate 1000 --seconds 60
  quarl-device bench --spool . --observation 84x84x4 --rate 50 --format json

Actions are explored with epsilon 0.05 in a discrete space, with gaussian noise of sigma 0.1 in a box. The split of a
step is in CPU time: environment, inference, recording (all the rest of the loop), encoding; rates are by the clock.
Single actions are timed, then the policy acts at --hz by an absolute clock: how late periods began is the board's
jitter. Memory, temperature, throttling and energy are read where the board can tell them.
With --spool: what the spool of an actor writes to that disk, per step and hour, at --rate steps per second.
"""


def add_bench(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand `bench` to a parser's commands."""
    bench = commands.add_parser(
        "bench",
        help="measure the actor loop, one action and the jitter of a fixed rate on this machine; needs no broker",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.add_argument(
        "model", nargs="?", type=Path, metavar="MODEL", help="policy file (default: one for CartPole-v1)"
    )
    bench.add_argument("--envs", type=between(1, MAX_ENVS), default=1, metavar="N", help="stepped as one batch")
    bench.add_argument(
        "--seconds", type=between(1, 600), default=3, metavar="S", help="of the loop, and of the rate (default: 3)"
    )
    bench.add_argument(
        "--hz", type=between(1, MAX_HZ), default=_DEFAULT_HZ, metavar="N", help="control rate (default: %(default)s)"
    )
    add_runtime_options(bench)
    add_spool_bench_options(bench)
    bench.add_argument("--format", choices=("text", "json"), default="text")
    bench.set_defaults(command=_bench)


def _bench(options: argparse.Namespace) -> int:
    if is_spool_bench(options):
        return bench_spool(options)
    # Imported here, so that --help and errors of usage are quick on a small board.
    from quarl_device.actor import bench, board_bench
    from quarl_device.policy_file import read_policy_path

    logging.basicConfig(level=logging.WARNING, format="quarl-device: %(message)s", stream=sys.stderr)
    file = read_policy_path(options.model) if options.model else None
    runtime = chosen_runtime(options)
    speed = bench.actor_speed(file, num_envs=options.envs, duration_s=options.seconds, runtime=runtime)
    board = board_bench.bench_board(file, hz=options.hz, duration_s=options.seconds, runtime=runtime)
    if options.format == "json":
        write_result(json.dumps({**asdict(speed), **asdict(board)}) + "\n")
    else:
        write_result(_loop_text(speed) + board_text(board) + f"{speed.runtime} on {speed.machine}\n")
    return 0


def _loop_text(speed: ActorSpeed) -> str:
    split = speed.split
    return (
        f"{speed.env} x {speed.envs}: {speed.steps_per_s:,.0f} steps/s "
        f"(bare environment {speed.bare_env_steps_per_s:,.0f}), one policy call {speed.act_us_p50:.1f} µs, "
        f"{speed.encode_share:.1%} of the time to encode, {speed.exploration}\n"
        f"a step in µs of CPU: env {split.env_us:.2f}, inference {split.inference_us:.2f}, "
        f"record {split.record_us:.2f}, encode {split.encode_us:.2f}\n"
    )


def board_text(bench: BoardBench) -> str:
    """Return what a person sees of `BoardBench`."""
    latency, rate, board = bench.latency, bench.rate, bench.board
    memory = "unknown" if board.rss_bytes is None else f"{board.rss_bytes / 2**20:,.0f} MiB"
    heat = "unknown" if board.temperature_c is None else f"{board.temperature_c:.1f} °C"
    throttled = "unknown" if board.throttled is None else ", ".join(board.throttled) or "no"
    past = "" if not board.throttled_since_boot else f" (since boot: {', '.join(board.throttled_since_boot)})"
    energy = "unknown (no RAPL counter or power sensor that may be read)"
    if board.energy_j is not None:
        energy = f"{board.energy_j:,.2f} J at that rate, {board.power_w:,.2f} W ({board.energy_method})"
    return (
        f"one action in µs: p50 {latency.act_us_p50:,.1f}, p99 {latency.act_us_p99:,.1f}, "
        f"p99.9 {latency.act_us_p999:,.1f} ({latency.calls:,} calls)\n"
        f"at {rate.hz:g} Hz a period begins late by µs: p50 {rate.late_us_p50:,.0f}, p99 {rate.late_us_p99:,.0f}, "
        f"max {rate.late_us_max:,.0f}; {rate.overruns:,} of {rate.periods:,} overran, {rate.skipped:,} skipped\n"
        f"memory {memory}, temperature {heat}, throttled: {throttled}{past}\nenergy {energy}\n"
    )
