"""What can be said of a command line before TensorFlow is loaded: seconds that nobody should wait for a typo.

Nothing is decided here. Each look asks the very part that would refuse later, as far as it needs no TensorFlow.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from quarl_device.environments import EnvSpec, make_single
from quarl_device.errors import UsageError
from quarl_edge.cli.calibration import PLAY
from quarl_edge.cli.source_options import SourceWishes


def look_at_source(path: Path, wishes: SourceWishes) -> None:
    """Refuse a source of no known kind, options that say nothing of its kind, and an environment that cannot be made.

    Args:
        path: what the policy is read from.
        wishes: what was said of it.

    Raises:
        ModelFileError: nothing there, or nothing that is known.
        UsageError: an option that cannot be, or that would be ignored.
        EnvironmentFault, MissingExtra: see `make_single`.
    """
    from quarl_export.importers import detect

    options = wishes.options()
    importer = detect(path)
    options.refuse_all_but(importer.takes, f"a source of the kind {importer.kind!r}")
    if wishes.vecnormalize is not None and not wishes.vecnormalize.exists():
        raise UsageError(f"--vecnormalize {wishes.vecnormalize}: no such file")
    look_at_environment(wishes.env_id, wishes.wrappers)


def look_at_environment(env_id: str, wrappers: tuple[str, ...] = ()) -> None:
    """Refuse an environment of the user's own that cannot be made here, or not behind wrappers; "" is none.

    Raises:
        EnvironmentFault, MissingExtra: see `make_single`.
    """
    if env_id:
        make_single(EnvSpec(env_id=env_id, wrappers=wrappers), allow_module=True).close()


def look_at_calibration(calibrate: str) -> None:
    """Refuse a `--calibrate` that names nothing, or a file that is no npz.

    Raises:
        UsageError: see above.
    """
    from quarl_export.npz import read_npz

    path = Path(calibrate)
    if calibrate in ("", PLAY) or path.is_dir():
        return
    if not path.exists():
        raise UsageError(f"--calibrate {path}: no such file", hint="give an npz file, a run, or env")
    if path.is_file() and not zipfile.is_zipfile(path):
        read_npz(path, what="calibration file")
