"""`quarl-edge bench stream`: how fast experience gets from actors into replay, with every transition checked."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quarl_device.errors import StreamFault, UsageError
from quarl_device.link import BrokerURL
from quarl_edge.cli.interrupts import ended_by_sigterm
from quarl_edge.cli.output import Format, write_json, write_line
from quarl_edge.machine import describe_machine
from quarl_edge.progress import EpisodeProgress

if TYPE_CHECKING:
    from quarl_edge.bench.stream.measure import StreamSpeed
    from quarl_edge.bench.stream.workload import Workload

SWEEP_ACTORS = (1, 2, 4, 8, 16)
SWEEP_OBSERVATIONS = ("CartPole", "64:float32", "84x84:uint8", "84x84x4:uint8")
_SHARES = 100


def stream(
    actors: Annotated[int, typer.Option(help="Sender processes.", min=1, max=64)] = 1,
    envs: Annotated[int, typer.Option(help="Environments per sender, in one block.", min=1, max=4096)] = 1,
    block_steps: Annotated[
        int, typer.Option(help="Rows of a block; fewer where the wire's cap asks for it.", min=1, max=65_535)
    ] = 256,
    observation: Annotated[
        str, typer.Option(help="CartPole, or a shape and a dtype: 84x84x4:uint8, 64:float32.")
    ] = "CartPole",
    seconds: Annotated[float, typer.Option(help="To measure, after a second of warm-up.", min=0.1, max=86_400)] = 10.0,
    broker: Annotated[str, typer.Option(help="mqtt://[user@]host[:port]. Default: a Mosquitto of its own.")] = "",
    sweep: Annotated[
        bool, typer.Option("--sweep", help="1 to 16 actors, then observations of growing size; one line each.")
    ] = False,
    stages: Annotated[
        bool, typer.Option("--stages", help="Only the CPU time per block of each stage, in one process.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Stream made-up experience through a broker into replay, with journal and durable acks, and check all of it.

    Senders use the actor's own recorder, encoder, outbox and link, without environments; the learner's side is the one
    that trains. Exit 0 only if every transition that was sent is stored once and unchanged.

    Examples:
      quarl-edge bench stream
      quarl-edge bench stream --actors 4 --envs 16 --seconds 30 --format json
      quarl-edge bench stream --observation 84x84x4:uint8
      quarl-edge bench stream --seconds 600     (memory of both ends, from a full replay on)
      quarl-edge bench stream --stages --observation 84x84x4:uint8
      quarl-edge bench stream --sweep --out docs/results/stream.json
    """
    from quarl_edge.bench.stream.measure import stream_speed
    from quarl_edge.bench.stream.workload import Workload

    if broker:
        BrokerURL.parse(broker)
    plan = _plan(sweep, actors=actors, observation=observation)
    loads = [(count, Workload(observation=seen, envs=envs, block_steps=block_steps)) for count, seen in plan]
    for _, load in loads:
        load.block_transitions  # noqa: B018  an observation that does not fit is told before anything starts
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"--out: there is no directory {out.parent}", hint=f"mkdir -p {out.parent}")
    if stages:
        _tell_stages(loads[0][1], out, output)
        return
    speeds: list[StreamSpeed] = []
    with ended_by_sigterm(), EpisodeProgress(len(loads) * _SHARES, what="hundredths") as bar:
        for number, (count, load) in enumerate(loads):
            speeds.append(
                stream_speed(
                    load,
                    actors=count,
                    seconds=seconds,
                    broker=broker,
                    progress=lambda share, done=number * _SHARES: bar.advance(done + round(share * _SHARES)),  # type: ignore[misc]
                )
            )
            if output is Format.TEXT:
                write_line(_line(speeds[-1]))
    rows = [asdict(speed) for speed in speeds]
    told: dict[str, Any] = {"machine": describe_machine(), **({"rows": rows} if sweep else rows[0])}
    if output is Format.JSON:
        write_json(told)
    else:
        write_line(told["machine"])
    if out is not None:
        _write(out, told)
    _check(speeds)


def _tell_stages(load: Workload, out: Path | None, output: Format) -> None:
    from quarl_edge.bench.stream.stages import stage_costs

    costs = stage_costs(load)
    told = {
        "machine": describe_machine(),
        "observation": load.observation,
        "envs": load.envs,
        "block_transitions": load.block_transitions,
        "cpu_us_per_block": costs,
    }
    if output is Format.JSON:
        write_json(told)
    else:
        write_line(f"{load.observation}, {load.block_transitions} a block, {told['machine']}")
        for name, cost_us in costs.items():
            write_line(f"{name:10}{cost_us:10.1f} µs a block")
    if out is not None:
        _write(out, told)


def _plan(sweep: bool, *, actors: int, observation: str) -> list[tuple[int, str]]:
    if not sweep:
        return [(actors, observation)]
    return [(count, observation) for count in SWEEP_ACTORS] + [(actors, seen) for seen in SWEEP_OBSERVATIONS[1:]]


def _write(path: Path, told: dict[str, Any]) -> None:
    import json

    from quarl_device.files import write_atomic

    write_atomic(path, (json.dumps(told, indent=1) + "\n").encode(), error=UsageError, what="result")


def _check(speeds: list[StreamSpeed]) -> None:
    for speed in speeds:
        if speed.lost or speed.duplicates or not speed.verified:
            raise StreamFault(
                f"{speed.actors} senders: of {speed.sent:,} transitions sent {speed.lost:,} are lost and "
                f"{speed.duplicates:,} stored twice"
                + ("" if speed.verified else "; what is stored is not what was sent")
            )


def _line(speed: StreamSpeed) -> str:
    learner = (speed.learner_rss_end_bytes - speed.learner_rss_start_bytes) / 2**20
    senders = (speed.senders_rss_end_bytes - speed.senders_rss_start_bytes) / 2**20
    return (
        f"{speed.actors} × {speed.envs} envs, {speed.observation}, {speed.block_transitions} a block: "
        f"{speed.transitions_per_s:,.0f} transitions/s, {speed.bytes_per_transition:,.1f} B each; durable after "
        f"{speed.latency_ms_p50:.1f} ms (p50), {speed.latency_ms_p99:.1f} ms (p99); {speed.stored:,} of "
        f"{speed.sent:,} stored, {speed.duplicates} twice, {'verified' if speed.verified else 'NOT as sent'}; "
        f"learner {speed.learner_cpu_us_per_block:.0f} µs CPU a block, "
        f"memory {learner:+.1f} MiB, of the senders {senders:+.1f} MiB; {speed.broker}"
    )
