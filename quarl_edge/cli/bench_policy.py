"""`quarl-edge bench push | act | schemes`: what a push, an action and a file of each scheme cost and are worth."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from quarl_device.errors import UsageError
from quarl_device.files import read_capped
from quarl_device.wire.limits import MAX_JSON_BYTES
from quarl_edge import __version__
from quarl_edge.cli.export_options import Io
from quarl_edge.cli.output import Format, write_json, write_line
from quarl_edge.extras import require_learner
from quarl_edge.machine import describe_machine
from quarl_edge.progress import EpisodeProgress

_HIDDEN = "256,256,256"
_MAX_UNITS = 16_384  # of `quarl_export.networks`, which may not be installed
_SOURCE_KEYS = {"name", "path", "env", "vecnormalize", "head"}


class BenchHead(StrEnum):
    """Values of `--head`: `HeadKind`."""

    Q_VALUES = "q_values"
    LOGITS = "logits"
    GAUSSIAN = "gaussian"
    ACTION = "action"


_NoModel = Annotated[str | None, typer.Argument(hidden=True)]


def push(
    model: _NoModel = None,
    hidden: Annotated[str, typer.Option(help="Sizes of the hidden layers, with commas.")] = _HIDDEN,
    pushes: Annotated[
        int | None, typer.Option(help="Pushes to time: 1,000 patches, or 100 end to end.", min=1, max=1_000_000)
    ] = None,
    conversions: Annotated[int, typer.Option(help="Conversions among them, timed and compared.", min=1)] = 5,
    per_channel: Annotated[bool, typer.Option("--per-channel", help="One scale per unit of a dense layer.")] = False,
    end_to_end: Annotated[
        bool, typer.Option("--end-to-end", help="Time the learner's variables to an actor's first action instead.")
    ] = False,
    actors: Annotated[int, typer.Option(help="Actor processes, end to end.", min=1, max=64)] = 1,
    broker: Annotated[str, typer.Option(help="URL, end to end; by default a Mosquitto of its own.")] = "",
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Time the patch of a policy file beside TensorFlow's conversion of the same weights, and compare the two.

    With --end-to-end: time pushes through a broker, from the learner's variables to the first action of the last of
    some actors, each a process of its own on this machine.

    Examples:
      quarl-edge bench push
      quarl-edge bench push --hidden 2048,2048,2048 --pushes 100 --format json
      quarl-edge bench push --end-to-end --format json
      quarl-edge bench push --end-to-end --hidden 2048,2048,2048 --actors 8 --format json
    """
    _refuse_model("push", model)
    sizes = sizes_of(hidden)
    require_learner("bench")
    if end_to_end:
        _push_end_to_end(sizes, actors=actors, pushes=pushes or 100, broker=broker, output=output)
        return
    pushes = pushes or 1_000
    if conversions > pushes:
        raise UsageError(f"--conversions {conversions}: there are only {pushes} pushes among which they could be")
    with EpisodeProgress(pushes, what="pushes") as bar:
        bar.stage("loading TensorFlow")
        from quarl_export.bench import push_speed
        from quarl_export.range_plan import QuantizationOptions

        speed = push_speed(
            sizes,
            pushes=pushes,
            conversions=conversions,
            options=QuantizationOptions(per_channel=per_channel),
            progress=bar.advance,
            tell=bar.stage,
        )
    if output is Format.JSON:
        write_json({**asdict(speed), "per_channel": per_channel, "machine": describe_machine()})
        return
    same = "every tensor identical" if speed.identical else "NOT identical"
    write_line(
        f"{hidden}: patch {speed.patch_ms_p50:.2f} ms, conversion {speed.convert_ms_p50:,.0f} ms "
        f"({speed.ratio:,.0f} times as long); {same} in {speed.audited} of {speed.audited} compared; "
        f"{speed.bytes:,} bytes; memory grew by {speed.rss_growth_bytes:,} bytes over {speed.pushes:,} patches\n"
        f"{describe_machine()}"
    )


def _push_end_to_end(sizes: tuple[int, ...], *, actors: int, pushes: int, broker: str, output: Format) -> None:
    with EpisodeProgress(pushes, what="pushes") as bar:
        bar.stage("loading TensorFlow")
        from quarl_edge.bench.push import push_end_to_end

        found = push_end_to_end(
            sizes, actors=actors, pushes=pushes, broker=broker, progress=bar.advance, tell=bar.stage
        )
    if output is Format.JSON:
        write_json({**asdict(found), "machine": describe_machine()})
        return
    carried = f"{found.chunks} chunks, {found.chunks_sent:.1f} sent" if found.chunks else "one message"
    write_line(
        f"{','.join(map(str, sizes))}: {found.bytes:,} bytes ({carried}) to {actors} actors through {found.broker}; "
        f"first action of the last one after {found.first_action_ms_p50:.1f} ms p50, "
        f"{found.first_action_ms_p99:.1f} ms p99; prepared after {found.prepare_ms_p50:.1f} ms; {found.runtime}; "
        f"{describe_machine()}"
    )


def act(
    model: _NoModel = None,
    hidden: Annotated[str, typer.Option(help="Sizes of the hidden layers, with commas.")] = _HIDDEN,
    pixels: Annotated[
        bool, typer.Option("--pixels", help="Mnih et al. 2015's convolutions on stacked 84x84 images instead.")
    ] = False,
    io: Annotated[
        Io, typer.Option(help="Ends of the int8 file; with integer ones the device normalises.")
    ] = Io.FLOAT32,
    head: Annotated[BenchHead, typer.Option(help="What the network gives.")] = BenchHead.Q_VALUES,
    calls: Annotated[int, typer.Option(help="Calls of each kind.", min=100, max=10_000_000)] = 20_000,
    runtime: Annotated[str | None, typer.Option(help="TFLite runtime: litert or tflite-runtime.")] = None,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Time one action, observation in and action out, beside the runtime's bare call and a float file.

    Of every head but Q values, an action as an actor explores with it is timed beside the greedy one: sampled from
    logits or a gaussian, its log probability recorded, or an action with noise.

    Examples:
      quarl-edge bench act
      quarl-edge bench act --hidden 64,64 --io int8 --format json
      quarl-edge bench act --pixels --calls 500
      quarl-edge bench act --hidden 64,64 --head logits

    A policy file of your own: quarl-device bench model.tflite
    """
    _refuse_model("act", model)
    sizes = sizes_of(hidden)
    if pixels and head is not BenchHead.Q_VALUES:
        raise UsageError(f"--pixels --head {head.value}: the network of pixels has Q values", hint="leave one out")
    require_learner("bench")
    from quarl_device.runtime import find_runtime

    found = find_runtime(runtime)
    from quarl_export.bench import act_speed, dense_policy, pixel_policy

    policy = pixel_policy() if pixels else dense_policy(sizes, head=head.value)
    speed = act_speed(policy, io=io.value, calls=calls, runtime=found)
    if output is Format.JSON:
        write_json({**asdict(speed), "machine": describe_machine()})
        return
    write_line(
        f"{speed.observation} → {','.join(map(str, speed.hidden))}, {speed.io} ends: "
        f"int8 {speed.act_us_p50:.2f} µs an action, {speed.ratio:.2f} times the bare call of "
        f"{speed.raw_us_p50:.2f} µs; float {speed.float_us_p50:.2f} µs; {speed.runtime}; {describe_machine()}"
    )
    if (explored := speed.explored) is not None:
        write_line(
            f"{speed.head}, {explored.exploration}: {explored.explored_us_p50:.2f} µs an action, {explored.ratio:.2f} "
            f"times the greedy one of {explored.greedy_us_p50:.2f} µs"
        )


def schemes(
    manifest: Annotated[Path, typer.Argument(help="TOML: [[source]] with name, path, env; vecnormalize, head.")],
    episodes: Annotated[int, typer.Option(help="Greedy episodes each.", min=1, max=10_000)] = 20,
    seed: Annotated[int, typer.Option(help="Start seeds are seed, seed + 1, ...", min=0, max=2_000_000_000)] = 1_000,
    only: Annotated[list[str] | None, typer.Option(help="A source's name; may be given often.")] = None,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Export trained policies of every kind in every scheme and play each file on the same start seeds.

    Examples:
      quarl-edge bench schemes tests/data/trained/sources.toml --format json
    """
    sources = [source for source in _read_manifest(manifest) if not only or source["name"] in only]
    if not sources:
        raise UsageError(f"{manifest} has no source named {', '.join(only or [])}")
    require_learner("bench")
    from quarl_edge.bench.schemes import SCHEME_COLUMNS, calibration_used, play_source

    rows: list[dict[str, Any]] = []
    with EpisodeProgress(len(sources) * len(SCHEME_COLUMNS), what="files") as bar:
        for source in sources:
            finished = len(rows) * len(SCHEME_COLUMNS)
            found = play_source(
                source,
                manifest.parent,
                episodes=episodes,
                seed=seed,
                progress=lambda done, finished=finished: bar.advance(finished + done),  # type: ignore[misc]
            )
            rows.append(found)
            if output is Format.TEXT:
                write_line(_line(found))
    if output is Format.JSON:
        made = {"calibration": calibration_used(), "version": __version__, "machine": describe_machine()}
        write_json({"episodes": episodes, "seed": seed, **made, "rows": rows})


def _refuse_model(figure: str, model: str | None) -> None:
    """Say that a figure is one of networks by their sizes, where somebody names a file."""
    if model is not None:
        raise UsageError(
            f"bench {figure} times a network of random weights, not the file {model[:80]!r}",
            hint=f"sizes: --hidden 64,64; a policy file of your own: quarl-device bench {shlex.quote(model[:80])}",
        )


def sizes_of(text: str) -> tuple[int, ...]:
    """Return the sizes of `--hidden`.

    Raises:
        UsageError: no whole numbers with commas between, or one that is out of range.
    """
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--hidden {text[:80]!r}: expected sizes with commas, such as {_HIDDEN}") from None
    if not all(1 <= size <= _MAX_UNITS for size in sizes):
        raise UsageError(f"--hidden {text[:80]!r}: expected sizes of 1..{_MAX_UNITS:,}, such as {_HIDDEN}")
    return sizes


def _read_manifest(path: Path) -> list[dict[str, str]]:
    data = read_capped(path, cap_bytes=MAX_JSON_BYTES, error=UsageError, what="manifest")
    try:
        sources = tomllib.loads(data.decode())["source"]
    except (ValueError, KeyError) as error:
        raise UsageError(f"manifest {path} is not TOML with [[source]] tables: {error}") from None
    for source in sources if isinstance(sources, list) else [sources]:
        if not isinstance(source, dict) or not {"name", "path", "env"} <= set(source) <= _SOURCE_KEYS:
            raise UsageError(f"manifest {path}: a source needs name, path and env, and may have vecnormalize and head")
    return list(sources)


def _line(row: Mapping[str, Any]) -> str:
    cells = []
    for scheme, cell in row["schemes"].items():
        shown = cell["error"] if "error" in cell else f"{cell['return_mean']:.1f}"
        cells.append(f"{scheme} {shown}")
    return f"{row['name']} ({row['env']}): " + ", ".join(cells)
