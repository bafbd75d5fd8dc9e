"""What a person sees while it runs."""

import dataclasses
import io

import pytest

from quarl_edge.progress import EpisodeProgress, LineProgress, LiveProgress, Status, format_status
from quarl_edge.replay.limiter import SampleToInsertRatio

TRAINING = Status(
    env_steps=12_800, budget_steps=50_000, updates=6_400, pushes=50, int8_return=212.4,
    goal_return=475.0, actors=2, elapsed_s=3.25, blocked="",
)  # fmt: skip


def test_a_status_line_names_everything_that_the_readme_promises():
    assert format_status(TRAINING) == (
        "   3.2 s  steps 12,800  updates 6,400  int8 return 212.4 (goal 475)  pushes 50  actors 2"
    )


def test_before_the_first_judgement_there_is_no_return_and_no_invented_one():
    assert "int8 return -" in format_status(Status(pushes=1))


def test_the_reason_for_waiting_is_shown():
    assert format_status(Status(pushes=1, blocked="waiting for actors")).endswith("[waiting for actors]")


def test_lines_are_spaced_out_and_notes_are_not():
    clock = iter([0.0, 0.5, 2.5, 9.0])
    stream = io.StringIO()
    progress = LineProgress(stream, period_s=2.0, clock=lambda: next(clock))
    for updates in range(3):
        progress.show(Status(pushes=1, updates=updates))
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


def test_a_run_that_waits_for_hours_fills_no_log():
    """On change, then after 10 s, 1 min, 5 min, and every 5 min."""
    stream, clock = io.StringIO(), [0.0]
    progress = LineProgress(stream, period_s=2.0, clock=lambda: clock[0])
    shown = []
    for second in range(1_000):
        clock[0] = float(second)
        before = stream.tell()
        progress.show(dataclasses.replace(ALONE, elapsed_s=clock[0]))
        if stream.tell() > before:
            shown.append(second)
    assert shown == [0, 10, 60, 300, 600, 900]
    progress.show(dataclasses.replace(ALONE, actors=1, elapsed_s=1_000.0))
    assert "actors 1" in stream.getvalue().splitlines()[-1]


BUSY = dataclasses.replace(TRAINING, blocked="the next update needs 3 more transitions (128 samples per insert)")
ALONE = dataclasses.replace(TRAINING, actors=0, blocked="waiting for actors")


@pytest.mark.parametrize("status", [TRAINING, BUSY, ALONE])
@pytest.mark.parametrize("width", [10, 20, 40, 60, 77, 110, 200])
def test_a_line_never_takes_more_than_its_width(status, width):
    assert len(format_status(status, width)) <= width
    assert format_status(status, 1_000) == format_status(status)


def test_what_matters_least_goes_first():
    assert format_status(BUSY, 77) == "   3.2 s  steps 12,800  updates 6,400  int8 return 212.4 (goal 475)  actors 2"
    assert format_status(BUSY, 60) == "   3.2 s  steps 12,800  int8 return 212.4 (goal 475)"
    assert format_status(BUSY, 40) == "steps 12,800  int8 return 212.4"


def test_without_actors_the_reason_stays_longest():
    assert "[waiting for actors]" in format_status(ALONE, 77)
    assert format_status(ALONE, 22) == "[waiting for actors]"


def test_a_reason_that_stays_is_never_the_first_to_go():
    full = dataclasses.replace(TRAINING, blocked="the journal cannot be written: no space left")
    assert "[the journal cannot be written: no space left]" in format_status(full, 77)


def test_the_limiters_reasons_are_known_as_passing_ones():
    limiter = SampleToInsertRatio(2.0, 10, 100.0)
    assert "[" not in format_status(dataclasses.replace(TRAINING, blocked=limiter.why_blocked()), 77)
    limiter.insert(10)
    limiter.sample(115)
    assert limiter.why_blocked(64)
    assert "[" not in format_status(dataclasses.replace(TRAINING, blocked=limiter.why_blocked(64)), 77)


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left on device")])
def test_a_reader_that_has_gone_or_a_log_on_a_full_disk_does_not_end_a_run(error):
    class Full(io.StringIO):
        refuses = True

        def write(self, text):
            if self.refuses:
                raise error
            return super().write(text)

    log = Full()
    progress = LineProgress(log)
    progress.note("nobody reads this")
    progress.show(TRAINING)
    log.refuses = False
    progress.note("this again")
    assert log.getvalue() == "this again\n"


def test_the_live_line_shows_what_stands_in_brackets(monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    live = LiveProgress()
    live.show(ALONE)
    live._spinner._live.refresh()
    live.close()
    assert "[waiting for actors]" in terminal.getvalue()


def test_a_bar_says_its_stage_at_a_terminal_and_as_a_line_elsewhere(monkeypatch):
    elsewhere = io.StringIO()
    monkeypatch.setattr("sys.stderr", elsewhere)
    with EpisodeProgress(3, what="pushes") as bar:
        bar.stage("loading TensorFlow")
    assert elsewhere.getvalue() == "loading TensorFlow\n"
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    with EpisodeProgress(3, what="pushes") as bar:
        bar.stage("converting [the network]")
        bar._bar.refresh()
    assert "converting [the network]" in terminal.getvalue()
