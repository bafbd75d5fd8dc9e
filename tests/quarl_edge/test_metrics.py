"""Numbers for TensorBoard are never worth a run."""

from pathlib import Path

import pytest
from native_heap import growth_bytes
from tensorboard_events import read_events

from quarl_edge.learner.metrics import TensorBoard


def test_scalars_are_read_back_at_their_environment_steps(tmp_path):
    board = TensorBoard(tmp_path / "tb")
    board.write(3, {"learner/loss": 1.5, "lag/versions_max": 2.0})
    board.write(7, {"learner/loss": 0.5})
    board.close()
    assert read_events(tmp_path / "tb") == {"learner/loss": [(3, 1.5), (7, 0.5)], "lag/versions_max": [(3, 2.0)]}


@pytest.mark.parametrize("in_the_way", ["a file", "a place without files"])
def test_a_directory_that_cannot_be_written_costs_the_numbers_alone(tmp_path, caplog, in_the_way):
    place = tmp_path / "tb"
    if in_the_way == "a file":
        place.write_text("")
    else:
        place = Path("/proc/none/tb")
    board = TensorBoard(place)
    board.write(3, {"loss": 1.5})
    board.write(4, {"loss": 1.5})
    board.close()
    assert len([record for record in caplog.records if "not written" in record.message]) == 1


def test_numbers_leave_nothing_behind_in_memory(tmp_path):
    """TensorFlow would keep each number of Python's: some 900 bytes, for ever."""
    board = TensorBoard(tmp_path)

    def write(step):
        board.write(step, {f"learner/{name}": step + name / 16 for name in range(16)})

    assert growth_bytes(write, times=500, warm_up=100) < 1_000_000
    board.close()
