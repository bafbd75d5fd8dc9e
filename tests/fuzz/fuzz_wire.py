"""Coverage-guided fuzzing of one decoder: `make fuzz DECODER=block SECONDS=600`; needs `pip install atheris`.

What crashes it is written to fuzz-crash-* and belongs into `tests/device/test_wire_fuzz.py` as an example.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["quarl_device"]):
    from decoders import decoders

    from quarl_device.errors import QuarlError


def main() -> None:
    """Fuzz until the time is up or something breaks."""
    name, seconds = sys.argv[1], int(sys.argv[2])
    [decoder] = [one for one in decoders() if one.name == name]

    def one_input(data: bytes) -> None:
        with contextlib.suppress(QuarlError):
            decoder.decode(data)

    with tempfile.TemporaryDirectory(prefix="quarl-fuzz-") as folder:
        for number, seed in enumerate(decoder.seeds):
            (Path(folder) / str(number)).write_bytes(seed)
        limits = [f"-max_total_time={seconds}", "-max_len=65536", "-rss_limit_mb=2048", "-artifact_prefix=fuzz-"]
        atheris.Setup([sys.argv[0], *limits, folder], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
