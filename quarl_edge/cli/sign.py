"""`quarl-edge sign`: a policy file that devices in deploy mode take, signed with the learner's key."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from quarl_device.deploy.signed import sign_policy
from quarl_device.errors import KeyFileError, KeyMismatch, ModelFileError, UsageError
from quarl_device.files import check_target, write_atomic
from quarl_device.policy_file import read_policy_path
from quarl_device.wire.keys import PublicKey
from quarl_device.wire.messages import MAX_EPOCH
from quarl_edge.cli.output import Format, write_json, write_table
from quarl_edge.cli.train import find_learner_key

_PUBLIC = "learner.pub"


def sign(
    model: Annotated[Path, typer.Argument(help="A policy file made by 'quarl-edge export'.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to. Default: the same name with .qpol.")
    ] = None,
    learner_key: Annotated[
        Path | None, typer.Option(help="Signing key; made at first use. Default: the one that train uses.")
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(
            help="Devices refuse an older one than they have. Default: seconds since 1970.", min=0, max=MAX_EPOCH
        ),
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="text or json.")] = Format.TEXT,
) -> None:
    """Sign a policy file for devices that run with --mode deploy, and write the public key beside it.

    Examples:
      quarl-edge sign model.tflite
      quarl-edge sign model.tflite -o release.qpol --version 7
      quarl-edge sign model.tflite --learner-key learner.key --format json
    """
    target = out or model.with_suffix(".qpol")
    file = read_policy_path(model)
    if target.resolve() == model.resolve():
        raise UsageError(f"{target} is the policy file itself", hint="-o FILE.qpol")
    check_target(target)
    key = find_learner_key(learner_key)
    number = min(max(int(time.time()), 0), MAX_EPOCH) if version is None else version
    data = sign_policy(file, key, version=number)
    public = target.parent / _PUBLIC
    _keep_public(key.public, public)
    write_atomic(target, data, error=ModelFileError, what="signed policy file")
    _show(file.contract.env_id, target, public, {"version": number, "sha256": file.sha256, "bytes": len(data)}, output)


def _show(env_id: str, target: Path, public: Path, made: Mapping[str, int | str], output: Format) -> None:
    if output is Format.JSON:
        write_json({"path": str(target), **made, "public_key": str(public), "env": env_id})
        return
    rows = [
        ("version", str(made["version"])),
        ("environment", env_id or "none named"),
        ("size", f"{made['bytes']:,} bytes"),
        ("public key", str(public)),
    ]
    signed, trusted = shlex.quote(str(target)), shlex.quote(str(public))
    steps = [
        f"quarl-device run --mode deploy --policy {signed} --learner-key {trusted}",
        f"quarl-device activate {signed}",
    ]
    write_table(str(target), rows, steps, below=[f"sha256 {made['sha256']}"])


def _keep_public(key: PublicKey, path: Path) -> None:
    if not path.exists():
        key.save(path)
        return
    try:
        same = PublicKey.from_file(path) == key
    except KeyFileError:
        same = False
    if not same:
        raise KeyMismatch(
            f"{path} holds another public key than the one of the signing key",
            hint=f"-o in another directory, or: rm {shlex.quote(str(path))}",
        )
