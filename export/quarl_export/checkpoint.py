"""A policy on disk: `policy.json`, which says what it is, and one npz file with all its arrays.

The npz file is named by its digest and written first; replacing `policy.json` is the one moment at which a new policy
takes over. So a save that is cut off anywhere leaves the policy before it whole.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import PolicyContract
from quarl_device.errors import CheckpointError, QuarlError, RunNotFound
from quarl_device.files import read_capped, write_atomic
from quarl_export.networks import NetworkSpec
from quarl_export.snapshot import PolicySnapshot

CHECKPOINT_SCHEMA = 1
MAX_ARRAYS_BYTES = 1 << 30
MAX_MANIFEST_BYTES = 1 << 20
_MANIFEST = "policy.json"
_GOLDEN = "golden/"


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyCheckpoint:
    """All that an export needs.

    Attributes:
        spec: the network.
        snapshot: what it has learned.
        contract: of the file to be exported.
        golden_observations: per observation key, float32 ``[count, *shape]``; may be empty.
        provenance: JSON values that say where the policy comes from (run, env_steps, version, ...).
    """

    spec: NetworkSpec
    snapshot: PolicySnapshot
    contract: PolicyContract
    golden_observations: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)


def save_policy(
    directory: Path,
    *,
    snapshot: PolicySnapshot,
    spec: NetworkSpec,
    contract: PolicyContract,
    golden_observations: Mapping[str, NDArray[Any]] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Write a policy into `directory`, made if missing, replacing the policy there at once.

    Args:
        directory: where to; the only policy in it.
        snapshot: see `PolicyCheckpoint`, as all others.
        spec: the network.
        contract: of the file to be exported.
        golden_observations: may be empty; the export then draws some.
        provenance: JSON values.

    Raises:
        CheckpointError: it cannot be written; a policy already there is untouched.
    """
    golden = {_GOLDEN + key: values for key, values in (golden_observations or {}).items()}
    arrays = pack_arrays({**snapshot.arrays(), **golden})
    digest = hashlib.sha256(arrays).hexdigest()
    manifest = {
        "schema": CHECKPOINT_SCHEMA,
        "arrays": _arrays_name(digest),
        "sha256": digest,
        "network": spec.to_json(),
        "contract": contract.to_json(),
        "provenance": dict(provenance or {}),
    }
    text = json.dumps(manifest, indent=2, allow_nan=False).encode()
    write_atomic(directory / _arrays_name(digest), arrays, error=CheckpointError, what="policy checkpoint")
    write_atomic(directory / _MANIFEST, text, error=CheckpointError, what="policy checkpoint")
    for stale in directory.glob("policy-*.npz"):
        if stale.name != _arrays_name(digest):
            stale.unlink(missing_ok=True)


def load_policy(directory: Path) -> PolicyCheckpoint:
    """Read the policy in `directory`.

    Raises:
        RunNotFound: there is none.
        CheckpointError: it is damaged, incomplete, or of another version.
    """
    if not (directory / _MANIFEST).is_file():
        raise RunNotFound(f"no policy at {directory}", hint="give the policy directory of a run")
    text = read_capped(
        directory / _MANIFEST, cap_bytes=MAX_MANIFEST_BYTES, error=CheckpointError, what="policy manifest"
    )
    try:
        manifest = json.loads(text)
        if not isinstance(manifest, dict) or manifest.get("schema") != CHECKPOINT_SCHEMA:
            raise CheckpointError(f"policy at {directory}: its schema is not {CHECKPOINT_SCHEMA}")
        digest, provenance = str(manifest["sha256"]), dict(manifest["provenance"])
        spec, contract = NetworkSpec.from_json(manifest["network"]), PolicyContract.from_json(manifest["contract"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"policy at {directory} does not hold: {error}") from error
    except CheckpointError:
        raise
    except QuarlError as error:
        raise CheckpointError(f"policy at {directory} does not hold: {error}") from error
    arrays = _read_arrays(directory, digest)
    golden = {name.removeprefix(_GOLDEN): arrays.pop(name) for name in list(arrays) if name.startswith(_GOLDEN)}
    return PolicyCheckpoint(
        spec=spec,
        snapshot=PolicySnapshot.from_arrays(spec, arrays),
        contract=contract,
        golden_observations=golden,
        provenance=provenance,
    )


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return `arrays` as npz bytes, uncompressed; the same arrays always give the same bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def unpack_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of npz bytes from `pack_arrays`.

    Raises:
        CheckpointError: not such bytes, or arrays that are compressed, pickled or larger than the file.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
        # Uncompressed, so nothing can unfold to more than the capped file itself.
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise CheckpointError("arrays are compressed, which no policy of ours is")
        with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError, MemoryError) as error:
        raise CheckpointError(f"arrays cannot be read: {error}") from error


def _read_arrays(directory: Path, digest: str) -> dict[str, NDArray[Any]]:
    data = read_capped(
        directory / _arrays_name(digest), cap_bytes=MAX_ARRAYS_BYTES, error=CheckpointError, what="policy arrays"
    )
    if hashlib.sha256(data).hexdigest() != digest:
        raise CheckpointError(f"policy at {directory}: its arrays are damaged (sha256 differs)")
    return unpack_arrays(data)


def _arrays_name(digest: str) -> str:
    # Only hexadecimal digits reach the file system, whatever a manifest says.
    return f"policy-{''.join(c for c in digest if c in '0123456789abcdef')[:16]}.npz"
