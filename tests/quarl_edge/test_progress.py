"""What a person sees while it runs."""

import io

from quarl_edge.progress import LineProgress, Status, format_status

TRAINING = Status(
    phase="training", env_steps=12_800, budget_steps=50_000, updates=6_400, pushes=50, int8_return=212.4,
    goal_return=475.0, actors=2, elapsed_s=3.25, blocked="",
)  # fmt: skip


def test_a_status_line_names_everything_that_the_readme_promises():
    assert format_status(TRAINING) == (
        "   3.2 s  steps 12,800  updates 6,400  int8 return 212.4 (goal 475)  pushes 50  actors 2"
    )


def test_before_the_first_judgement_there_is_no_return_and_no_invented_one():
    assert "int8 return -" in format_status(Status(phase="training", pushes=1))


def test_the_reason_for_waiting_is_shown():
    assert format_status(Status(phase="training", pushes=1, blocked="waiting for actors")).endswith(
        "[waiting for actors]"
    )


def test_lines_are_spaced_out_and_notes_are_not():
    clock = iter([0.0, 0.5, 2.5, 9.0])
    stream = io.StringIO()
    progress = LineProgress(stream, period_s=2.0, clock=lambda: next(clock))
    for updates in range(3):
        progress.show(Status(phase="training", pushes=1, updates=updates))
    progress.note("exported")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert "updates 0" in lines[0]
    assert "updates 2" in lines[1]
    assert lines[2] == "exported"


def test_the_same_line_is_not_repeated():
    stream = io.StringIO()
    progress = LineProgress(stream, period_s=0.0)
    progress.show(TRAINING)
    progress.show(TRAINING)
    assert len(stream.getvalue().splitlines()) == 1
