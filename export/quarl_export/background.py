"""A program at the lowest priority that does not outlive who started it.

``python -m quarl_export.background PID PROGRAM WORDS`` is started by the process PID, and becomes PROGRAM.

The priority, the wish to end with a parent and the largest file that it may write stay with the process when the
program takes its place.
"""

from __future__ import annotations

import os
import resource
import sys

from quarl_device.parent import end_with_parent_or_now
from quarl_device.wire.limits import MAX_POLICY_BYTES

# A program that writes without end, its log too, must not fill the disk that a run is on.
_MAX_FILE_BYTES = 2 * MAX_POLICY_BYTES


def main() -> None:
    """Become the program that the arguments name, as a child of the process that they begin with."""
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, _MAX_FILE_BYTES))
    end_with_parent_or_now(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - of whoever starts this


if __name__ == "__main__":
    main()
