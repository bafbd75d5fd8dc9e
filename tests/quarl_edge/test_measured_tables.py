"""Tables of whole runs, loops, streams, spools and trainings say what their raw outputs under docs/results hold."""

import json
import re
from pathlib import Path
from statistics import median

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BENCHMARKS = (DOCS / "benchmarks.md").read_text("utf-8")


def raw(name):
    return json.loads((DOCS / "results" / f"{name}.json").read_text("utf-8"))


def rows_below(page, header):
    """Return the rows of cells of the one table whose header begins with `header`, in any section of that name."""
    [block] = re.findall(rf"^{re.escape(header)}.*\n\|[-:|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]


def section(title):
    [found] = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", BENCHMARKS, re.DOTALL | re.MULTILINE)
    return found


def said(text):
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("title", "name"), [("CartPole-v1, five seeds", "cartpole-seeds"), ("Acrobot-v1, three seeds", "acrobot-seeds")]
)
def test_runs_took_and_returned_what_was_measured(title, name):
    assert rows_below(section(title), "| seed | training s |") == [
        [
            str(run["seed"]), f"{run['train_s']:.1f}", f"{run['wall_s']:.1f}", f"{run['env_steps']:,}",
            f"{run['updates']:,}", str(run["pushes"]), f"{run['int8_return_mean']:.1f}",
            f"{run['float_return_mean']:.1f}", f"{run['fresh_return_mean']:.1f}",
        ]
        for run in raw(name)["runs"]
    ]  # fmt: skip


def test_what_is_said_of_the_runs_is_what_was_measured():
    cartpole, acrobot = raw("cartpole-seeds"), raw("acrobot-seeds")
    text = said(section("CartPole-v1, five seeds"))
    assert (
        f"{cartpole['solved']} of {cartpole['seeds']} solved; training {cartpole['train_s_median']:.1f} s median"
        in text
    )
    assert f"{cartpole['train_s_max']:.1f} s at most" in text
    prepared, pushed = (median(run[key] for run in cartpole["runs"]) for key in ("prepare_ms_p50", "push_ms_p50"))
    assert f"{prepared:.1f} ms from variables to signed bytes in the learner, {pushed:.1f} ms until an actor" in text
    assert "All within 100,000 steps" in section("Acrobot-v1, three seeds")
    assert all(run["solved"] and run["env_steps"] <= 100_000 for run in acrobot["runs"])


PUSHES = "Push, end to end: the learner's variables to the first action"


def test_pushes_end_to_end_take_what_was_measured():
    found = [raw(f"push-e2e-{name}") for name in ("256", "2048", "2048-8-actors")]
    shown = rows_below(section(PUSHES), "| network | actors |")
    assert [row[1:4] for row in shown] == [
        [
            str(push["actors"]),
            " / ".join(_three(push[f"first_action_ms_{of}"]) for of in ("p50", "p99")),
            _three(push["prepare_ms_p50"]),
        ]
        for push in found
    ]
    assert [row[4].split(":")[0] for row in shown] == [
        f"{push['chunks_sent']:.0f} of {push['chunks']}" if push["chunks"] else "in one message" for push in found
    ]
    stages = ("read", "patch", "examine", "seal", "travel", "start")
    assert [row[1:] for row in rows_below(section(PUSHES), "| network | read |")] == [
        [f"{push['stages_ms_p50'][stage]:.1f}" for stage in stages] for push in found[:2]
    ]


def test_what_is_said_of_earlier_pushes_is_what_was_measured():
    text, (now, before, after) = said(section(PUSHES)), [raw(f"push-e2e-2048{of}") for of in ("", "-before", "-stages")]
    assert f"missed by {now['first_action_ms_p50'] - 60:.0f}" in text
    both = [f"{push['first_action_ms_p50']:.0f}" for push in (before, after)]
    assert f"{' and '.join(both)} ms (`push-e2e-2048-before.json`, `push-e2e-2048-stages.json`)" in text


def _three(milliseconds):
    """Three digits or so, as a reader needs them."""
    return f"{milliseconds:.1f}" if milliseconds < 20 else f"{milliseconds:.0f}"


def test_the_actor_loop_is_as_fast_as_was_measured():
    assert rows_below(BENCHMARKS, "| environments | steps/s |") == [
        [
            str(loop["envs"]), f"{loop['steps_per_s']:,.0f}", f"{loop['bare_env_steps_per_s']:,.0f}",
            f"{loop['steps_per_s'] / loop['bare_env_steps_per_s']:.2f}", f"{loop['act_us_p50']:.1f} µs",
            f"{loop['encode_share']:.1%}".replace("%", " %"),
        ]
        for loop in (raw("actor-loop-1-env"), raw("actor-loop-64-envs"))
    ]  # fmt: skip


STREAM = "Experience into replay, through Mosquitto, durable acks on"


def test_streams_carry_what_was_measured():
    assert rows_below(section(STREAM), "| observation | actors |") == [
        [
            row["observation"], str(row["actors"]), str(row["block_transitions"]), f"{row['transitions_per_s']:,.0f}",
            f"{row['bytes_per_transition']:,.1f}", f"{row['latency_ms_p50']:.0f} / {row['latency_ms_p99']:.0f}",
            f"{row['learner_cpu_us_per_block']:,.0f}",
            f"{1e6 * row['block_transitions'] / row['learner_cpu_us_per_block']:,.0f}",
            f"{row['sender_cpu_us_per_block']:,.0f}",
        ]
        for row in raw("stream")["rows"]
    ]  # fmt: skip


def test_the_later_sweep_carried_what_is_said_and_lost_nothing():
    rows = raw("stream-with-losses")["rows"]
    *many, vector, image, stack = [row["transitions_per_s"] for row in rows]
    text = said(section(STREAM))
    assert f"{' / '.join(f'{rate / 1e6:.2f}' for rate in many)} M transitions/s" in text
    assert f"{' / '.join(str(row['actors']) for row in rows[:-3])} actors" in text
    assert f"{vector / 1e3:.0f} k at 64 floats, {image / 1e3:.1f} k at 84×84 and {stack / 1e3:.1f} k at 84×84×4" in text
    for row in (*rows, *raw("stream")["rows"], raw("stream-memory")):
        assert (row["lost"], row["duplicates"], row["verified"], row["sent"]) == (0, 0, True, row["stored"])


def test_a_blocks_way_costs_what_was_measured():
    found = [raw(f"stream-stages{of}") for of in ("", "-16-envs", "-pixels")]
    stages = ("encode", "decode", "sessions", "journal", "assemble", "insert", "offer", "ack")
    assert [row[1:] for row in rows_below(section(STREAM), "| stage |")] == [
        [f"{each['cpu_us_per_block'][stage]:.1f}" for each in found] for stage in stages
    ]


def test_a_fused_step_on_a_quiet_machine_takes_what_was_measured():
    with_qat, without = raw("learn-dqn")["rows"]
    text = said(section("A gradient step"))
    assert (
        f"takes {with_qat['ms_per_update']:.2f} ms by the clock with QAT and {without['ms_per_update']:.2f} ms" in text
    )
    unfused = [f"{row['ms_per_update_unfused']:.2f}" for row in (with_qat, without)]
    assert f"{' and '.join(unfused)} ms one a call" in text


def test_options_of_training_are_worth_what_was_measured():
    page = (DOCS / "qat.md").read_text("utf-8")
    assert rows_below(page, "| variant | solved |") == [
        [
            row["variant"], f"{row['solved']} of {row['seeds']}", f"{row['env_steps_median']:,}",
            f"{row['file_fresh_return_mean_mean']:.1f}", f"{row['float_fresh_return_mean_mean']:.1f}",
            f"{row['agreement_mean']:.1%}", f"{row['policy_bytes']:,}",
        ]
        for name in ("qat-heads", "qat-bits")
        for row in raw(name)["summary"]
    ]  # fmt: skip


def test_a_spool_wears_a_disk_as_was_measured():
    page = (DOCS / "guides" / "streams.md").read_text("utf-8")
    assert [row[1:] for row in rows_below(page, "| | bytes per step |")] == [
        [f"{spool['disk_bytes_per_step']:,.0f}", f"{spool['steps_per_s']:,.0f} steps/s", f"{spool['gib_per_hour']:.2f}"]
        for spool in (raw(f"spool-{of}") for of in ("cartpole", "cartpole-64-envs", "pixels"))
    ]


def test_the_books_of_the_long_soak_are_what_was_counted():
    found = raw("soak")
    text = said((DOCS / "guides" / "streams.md").read_text("utf-8"))
    made, stored, dropped, forgotten, unfinished, doubled = (
        sum(device[what] for device in found["devices"])
        for what in ("made", "stored", "declared_dropped", "forgotten", "unfinished", "duplicates")
    )
    assert made == stored + dropped + forgotten + unfinished
    assert f"{made:,} steps made = {stored:,} stored + {dropped:,} declared dropped + {forgotten:,} forgotten" in text
    assert f"+ {unfinished} unfinished, {doubled} duplicates" in text
    faults = found["faults"]
    assert (
        f"{found['seconds']:,.0f} s, seed {found['seed']}, {sum(faults.values())} faults of {len(faults)} kinds" in text
    )
    assert f"{found['broker_kills']} kills of the broker and {found['learner_kills']} of the learner" in text
    assert (found["ok"], found["wrong"]) == (True, [])
