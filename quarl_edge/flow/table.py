"""A fleet as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quarl_device.actor.backlog import lasting
from quarl_device.deploy.signed import version_name
from quarl_device.wire.strict_json import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

SILENT_S = 5.0
"""Telemetry comes every second: who has been silent for longer is shown so."""

DEPLOY_SILENT_S = 25.0
"""Births of a device in deploy mode, which sends no telemetry, come every 10 s."""

MAX_CELL, MAX_LINE = 60, 400
"""Characters that are shown of what others said."""

_COLUMNS = (
    "device",
    "heard",
    "steps/s",
    "steps",
    "policy",
    "behind",
    "pending",
    "spool",
    "delivered in",
    "resent",
    "dropped",
    "stands still",
)


def render(snapshot: Mapping[str, Any]) -> RenderableType:
    """Return what `FleetView.snapshot` gave as lines and a table."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def cell(text: str) -> Text:
        # Never markup: a device chose some of it.
        return Text(one_line(text, max_length=MAX_CELL))

    table = Table(box=box.SIMPLE_HEAD)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in ("device", "stands still") else "right", no_wrap=True)
    for actor in snapshot["actors"]:
        table.add_row(*map(cell, _cells(actor)), style="dim" if actor["status"] == "gone" else "")
    lines = [Text(one_line(line, max_length=MAX_LINE)) for line in learner_lines(snapshot)]
    if not snapshot["actors"]:
        return Group(*lines, Text("no actors"))
    return Group(*lines, table)


def learner_lines(snapshot: Mapping[str, Any]) -> list[str]:
    """Return the learner in a few lines."""
    learner, fleet = snapshot["learner"], snapshot["fleet"]
    if learner is None:
        return [f"fleet {fleet}: no learner"]
    head = f"fleet {fleet}: learner {learner['status']}, {learner['env'] or 'unknown environment'}"
    if "env_steps" not in learner:
        said = "nothing heard of it yet" if learner["heard_s"] is None else f"last heard {_ago(learner['heard_s'])}"
        return [f"{head}, {said}"]
    judged = "-" if learner["int8_return"] is None else f"{learner['int8_return']:.1f}"
    return [
        f"{head}, last heard {_ago(learner['heard_s'])}"
        + (f", waits {learner['blocked_s']:.0f} s for: {learner['blocked']}" if learner["blocked"] else ""),
        f"steps {learner['env_steps']:,} ({learner['env_steps_per_s']:,.0f}/s)  updates {learner['updates']:,} "
        f"({learner['updates_per_s']:,.0f}/s)  policy {learner['policy_version']}  int8 return {judged}",
        f"replay {learner['replay_size']:,} of {learner['replay_capacity']:,}  blocks {learner['blocks']:,}  "
        f"duplicates {learner['duplicates']:,}  gaps {learner['gaps']:,}  refused {learner['refused']:,}  "
        f"lost steps {learner['lost_steps']:,}",
    ]


def _cells(actor: Mapping[str, Any]) -> list[str]:
    lag = actor["lag"]
    shown = "-" if lag is None else f"{lag['versions']} / {lag['steps']:,} / {lag['seconds']:.1f} s"
    blocked = f"{actor['blocked']} ({actor['blocked_s']:.0f} s)" if actor["blocked"] else ""
    if actor["status"] == "gone":
        return [actor["device"], "gone", *["-"] * (len(_COLUMNS) - 3), blocked]
    policy = f"{actor['policy_version']}{' tpu' if actor['edge_tpu'] else ''}" if actor["policy_version"] else "none"
    if actor["mode"] == "deploy":
        heard = _ago(actor["heard_s"], silent_s=DEPLOY_SILENT_S)
        return [actor["device"], heard, *["-"] * (len(_COLUMNS) - 3), _deploys(actor, blocked)]
    if "steps" not in actor:
        return [actor["device"], _ago(actor["heard_s"]), "-", "-", policy, shown, *["-"] * 5, blocked]
    return [
        actor["device"],
        _ago(actor["heard_s"]),
        f"{actor['steps_per_s']:,.0f}",
        f"{actor['steps']:,}",
        policy,
        shown,
        f"{actor['blocks_pending']:,}",
        _size(actor.get("spool_bytes", 0)),
        _delivery(actor),
        f"{actor['blocks_resent']:,}",
        f"{actor['blocks_dropped']:,}",
        blocked,
    ]


def _delivery(actor: Mapping[str, Any]) -> str:
    rate, left_s = actor.get("delivered_bytes_per_s"), actor.get("delivered_in_s")
    if rate is None:
        return ""
    return "no end" if left_s is None else f"{lasting(left_s)} ({_size(rate)}/s)"


def _deploys(actor: Mapping[str, Any], blocked: str) -> str:
    """Return what a device in deploy mode does, and its last fault."""
    acts = blocked or f"deploys version {version_name(actor['policy_epoch'], actor['policy_version'])}"
    return f"{acts}; fault {actor['fault']}" if actor["fault"] else acts


def _ago(heard_s: float | None, *, silent_s: float = SILENT_S) -> str:
    if heard_s is None:
        return "not yet"
    return f"{heard_s:.0f} s ago" + (" (silent)" if heard_s > silent_s else "")


def _size(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} GiB"
