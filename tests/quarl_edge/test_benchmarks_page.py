"""docs/benchmarks.md says of actions and patches what the raw files hold that it names."""

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "benchmarks.md").read_text()


def raw(name):
    return json.loads((DOCS / "results" / f"{name}.json").read_text())


@pytest.mark.parametrize(
    ("beginning", "name", "digits"),
    [
        ("3×256 | 3", "act-256", 2),
        ("2×64 | 2", "act-64", 2),
        ("2×64 | int8", "act-64-int8", 2),
        ("3×256 | int8", "act-256-int8", 2),
        ("convolutions of Mnih et al. 2015 on 84×84×4 pixels | float32", "act-pixels", 1),
        ("the same | int8", "act-pixels-int8", 1),
    ],
)
def test_actions_take_what_was_measured(beginning, name, digits):
    found = raw(name)
    whole = f"{found['act_us_p50']:.{digits}f} µs"
    [line] = [
        line
        for line in PAGE.splitlines()
        if line.startswith(f"| {beginning}") and line.count("|") >= 6 and "µs" in line
    ]
    cells = [cell.strip() for cell in line.strip("|").split("|")][-4:]
    bare, single = (f"{found[key]:.{digits}f} µs" for key in ("raw_us_p50", "float_us_p50"))
    assert cells == [whole, bare, f"{found['ratio']:.2f}", single]


@pytest.mark.parametrize("head", ["logits", "gaussian", "action"])
def test_explored_actions_take_what_was_measured(head):
    found = raw(f"act-64-{head}")
    assert (found["hidden"], found["head"]) == ([64, 64], head)
    explored = found["explored"]
    [line] = re.findall(rf"^\| `{head}` \| (.*) \|$", PAGE, re.MULTILINE)
    assert line.split(" | ")[1:] == [
        f"{explored['explored_us_p50']:.1f} µs",
        f"{explored['greedy_us_p50']:.1f} µs",
        f"{explored['ratio']:.2f}",
    ]


@pytest.mark.parametrize(
    ("network", "name"),
    [("3×256", "push-256"), ("3×2048", "push-2048"), ("3×2048, for its memory", "push-2048-memory")],
)
def test_patches_take_what_was_measured(network, name):
    found = raw(name)
    [line] = re.findall(rf"^\| {network} \| ([\d,]+ B \|.*)\|$", PAGE, re.MULTILINE)
    grown = found["rss_growth_bytes"]
    size = f"{grown // 1024:,} KiB" if grown >= 1024 else f"{grown} B"
    assert [cell.strip() for cell in line.split("|")] == [
        f"{found['bytes']:,} B",
        f"{found['patch_ms_p50']:.2f} ms",
        f"{found['convert_ms_p50']:,.0f} ms",
        f"{found['ratio']:.0f}",
        f"{found['audited']} of {found['audited']}",
        f"{size} over {found['pushes']:,}",
    ]
    assert found["identical"] is True


def test_memory_is_what_was_measured_and_flat():
    streamed, run = raw("stream-memory"), {each["name"]: each for each in raw("memory")["processes"]}
    assert streamed["seconds"] >= 600 <= raw("memory")["seconds"]
    rows = {
        "learner: ingest": [one["learner_bytes"] for one in streamed["memory"]],
        "two senders": [one["senders_bytes"] for one in streamed["memory"]],
        "learner: all of it": run["learner"]["samples"],
        "an actor process": run["actor-0"]["samples"],
        "the other actor": run["actor-1"]["samples"],
    }
    for beginning, held in rows.items():
        [line] = re.findall(rf"^\| `bench \w+` \| {beginning}[^|]*\|(.*)\|$", PAGE, re.MULTILINE)
        told = [f"{value / 2**20:.1f} MiB" for value in (held[0], held[-1], max(held))]
        assert [cell.strip() for cell in line.split("|")] == told
        assert max(held) < 1.02 * held[0]


def test_every_raw_file_that_is_named_is_there():
    named = re.findall(r"[`(/]([a-z0-9-]+\.json)\b", PAGE)
    assert named
    assert [name for name in named if not (DOCS / "results" / name).is_file()] == []
