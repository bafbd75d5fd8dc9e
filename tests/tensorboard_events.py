"""Reading what was written for TensorBoard, as TensorBoard does."""

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util import tensor_util


def read_events(folder):
    """Return (step, value) pairs by tag, in the order in which they were written."""
    found = {}
    for path in sorted(folder.glob("events.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                number = float(tensor_util.make_ndarray(value.tensor))
                found.setdefault(value.tag, []).append((event.step, number))
    return found
