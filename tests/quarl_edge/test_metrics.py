"""Numbers for TensorBoard are never worth a run."""

from pathlib import Path

import pytest
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
