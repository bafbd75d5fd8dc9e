"""The policy file: one `.tflite` whose metadata says what it is, how to act with it, and what it must answer.

The entry `quarl.policy.v1` is JSON: ``{"schema": 1, "contract": {...}, "golden": {...}, "provenance": {...}}``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.contract import PolicyContract
from quarl_device.errors import ContractError, ModelFileError
from quarl_device.files import naming, read_capped
from quarl_device.flatbuffer import Graph, Tensor, read_graph
from quarl_device.heads import action_size, bind_outputs
from quarl_device.preprocess import bind_inputs
from quarl_device.sources import pointing_at_export
from quarl_device.wire.limits import MAX_POLICY_BYTES

METADATA_NAME = "quarl.policy.v1"
METADATA_SCHEMA = 1
MAX_METADATA_BYTES = 1024 * 1024
MAX_GOLDEN_ROWS = 64
MAX_TOLERANCE_LSB = 32
_ARRAY_DTYPES = ("float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool")


@dataclass(frozen=True, kw_only=True, eq=False)
class GoldenVectors:
    """A few observations and what these very bytes answer to them.

    Attributes:
        observations: key to array [G, *shape] in the contract's dtype; [G, stack, *shape], oldest frame first, where
            frames are stacked.
        outputs: role to float32 [G, ...] in output units (never the stored integers); empty in a push, whose header
            carries them.
        lsb: role to the size of one quantization step of that output, in output units.
        tolerance_lsb: largest difference that still passes, in steps.
    """

    observations: Mapping[str, NDArray[Any]]
    outputs: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    lsb: Mapping[str, float] = field(default_factory=dict)
    tolerance_lsb: int = 0

    def __post_init__(self) -> None:
        rows = {len(array) for array in (*self.observations.values(), *self.outputs.values()) if array.ndim}
        scalars = any(array.ndim == 0 for array in (*self.observations.values(), *self.outputs.values()))
        if scalars or len(rows) != 1 or not 1 <= rows.pop() <= MAX_GOLDEN_ROWS:
            raise ContractError(f"golden vectors need the same 1-{MAX_GOLDEN_ROWS} rows in every array")
        if set(self.lsb) != set(self.outputs):
            raise ContractError(f"golden vectors: outputs {sorted(self.outputs)} but steps of {sorted(self.lsb)}")
        if not all(math.isfinite(step) and step > 0 for step in self.lsb.values()):
            raise ContractError(f"golden vectors: a quantization step is not a positive number: {dict(self.lsb)}")
        if not 0 <= self.tolerance_lsb <= MAX_TOLERANCE_LSB:
            raise ContractError(
                f"golden vectors: tolerance {self.tolerance_lsb} is not in 0..{MAX_TOLERANCE_LSB} steps"
            )
        if not all(np.isfinite(array).all() for array in (*self.observations.values(), *self.outputs.values())):
            raise ContractError("golden vectors hold NaN or Inf")

    @property
    def rows(self) -> int:
        """How many observations there are."""
        return len(next(iter(self.observations.values())))

    def with_outputs(
        self, outputs: Mapping[str, NDArray[np.float32]], *, lsb: Mapping[str, float], tolerance_lsb: int
    ) -> GoldenVectors:
        """Return the same observations with other answers, as a push header brings them.

        Raises:
            ContractError: the answers do not fit the observations.
        """
        return replace(self, outputs=dict(outputs), lsb=dict(lsb), tolerance_lsb=tolerance_lsb)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict that `from_json` reads back equal."""
        return {
            "observations": {key: _array_to_json(array) for key, array in self.observations.items()},
            "outputs": {role: _array_to_json(array) for role, array in self.outputs.items()},
            "lsb": {role: float(step) for role, step in self.lsb.items()},
            "tolerance_lsb": int(self.tolerance_lsb),
        }

    @classmethod
    def from_json(cls, data: Any) -> GoldenVectors:
        """Build golden vectors from decoded JSON of an untrusted file.

        Raises:
            ContractError: missing keys, wrong types, sizes or values.
        """
        try:
            tolerance = data["tolerance_lsb"]
            if type(tolerance) is not int:
                raise TypeError("tolerance_lsb is not an integer")
            outputs = {str(role): _array_from_json(array) for role, array in data["outputs"].items()}
            if any(array.dtype != np.float32 for array in outputs.values()):
                raise TypeError("an output is not float32")
            return cls(
                observations={str(key): _array_from_json(array) for key, array in data["observations"].items()},
                outputs=outputs,
                lsb={str(role): float(step) for role, step in data["lsb"].items()},
                tolerance_lsb=tolerance,
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ContractError(f"golden vectors do not hold: {_short(error)}") from error


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyFile:
    """A policy file that has been read and holds together; running it still needs a lint (`Policy.load` does it).

    Attributes:
        data: the file's bytes.
        graph: its graph, views into `data`.
        contract: what goes in and out.
        golden: see `GoldenVectors`.
        sha256: hex digest of `data`.
        provenance: where it came from (run, env_steps, version of the software), JSON values.
    """

    data: bytes = field(repr=False)
    graph: Graph = field(repr=False)
    contract: PolicyContract
    golden: GoldenVectors = field(repr=False)
    sha256: str
    provenance: Mapping[str, Any] = field(default_factory=dict)


def forced_checks(provenance: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the codes of checks that failed when the file was written with --force, () where none are named."""
    codes = provenance.get("forced")
    return tuple(str(code)[:8] for code in codes[:32]) if isinstance(codes, list) else ()


def assumptions(provenance: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the file's source did not say and was decided for it, in words, () where nothing is named."""
    notes = provenance.get("assumed")
    return tuple(str(note)[:300] for note in notes[:32]) if isinstance(notes, list) else ()


def read_policy(data: bytes, *, sha256: str = "") -> PolicyFile:
    """Return the policy in a file's bytes, of any origin.

    Args:
        data: the file.
        sha256: its digest where the caller has just computed it: of a large file that takes milliseconds.

    Raises:
        ModelFileError: not a TFLite file, damaged, or over the cap.
        ContractError: no contract, or one that does not fit the file's tensors.
    """
    if len(data) > MAX_POLICY_BYTES:
        raise ModelFileError(f"policy file of {len(data):,} bytes is over its cap of {MAX_POLICY_BYTES:,}")
    graph = read_graph(data)
    content = graph.metadata_bytes(METADATA_NAME)
    if content is None:
        raise ContractError(
            f"no policy contract: the TFLite file has no metadata entry {METADATA_NAME!r}",
            hint="quarl-edge export writes one",
        )
    contract, golden, provenance = decode_metadata(bytes(content[: MAX_METADATA_BYTES + 1]))
    _check_tensors(graph, contract)
    _check_golden(contract, golden)
    return PolicyFile(
        data=data,
        graph=graph,
        contract=contract,
        golden=golden,
        sha256=sha256 or hashlib.sha256(data).hexdigest(),
        provenance=provenance,
    )


def read_policy_path(path: Path | str) -> PolicyFile:
    """Return the policy in a file.

    Raises:
        ModelFileError: missing, a directory, unreadable, over the cap, not TFLite, damaged.
        ContractError: no contract, or one that does not fit the file's tensors.
    """
    place = Path(path)
    with pointing_at_export(place):
        data = read_capped(place, cap_bytes=MAX_POLICY_BYTES, error=ModelFileError, what="policy file")
        with naming(place):
            return read_policy(data)


def encode_metadata(contract: PolicyContract, golden: GoldenVectors, provenance: Mapping[str, Any]) -> bytes:
    """Return the content of the metadata entry.

    Raises:
        ContractError: a value is not JSON or not finite, or the whole is over its cap.
    """
    fields = {
        "schema": METADATA_SCHEMA,
        "contract": contract.to_json(),
        "golden": golden.to_json(),
        "provenance": dict(provenance),
    }
    try:
        content = json.dumps(fields, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ContractError(f"policy metadata cannot be written as JSON: {_short(error)}") from error
    if len(content) > MAX_METADATA_BYTES:
        raise ContractError(
            f"policy metadata of {len(content):,} bytes is over its cap of {MAX_METADATA_BYTES:,}",
            hint="use fewer golden observations",
        )
    return content


def decode_metadata(content: bytes) -> tuple[PolicyContract, GoldenVectors, dict[str, Any]]:
    """Return contract, golden vectors and provenance of an untrusted metadata entry.

    Raises:
        ContractError: over the cap, not JSON, another schema, or a part that does not hold.
    """
    if len(content) > MAX_METADATA_BYTES:
        raise ContractError(f"policy metadata is over its cap of {MAX_METADATA_BYTES:,} bytes")
    try:
        fields = json.loads(str(content, "utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"policy metadata is not JSON: {_short(error)}") from None
    if not isinstance(fields, dict):
        raise ContractError(f"policy metadata: expected a JSON object, found {type(fields).__name__}")
    if fields.get("schema") != METADATA_SCHEMA:
        raise ContractError(
            f"policy metadata schema {_short(fields.get('schema'))} is not {METADATA_SCHEMA}",
            hint="export the policy again with this version",
        )
    provenance = fields.get("provenance", {})
    if not isinstance(provenance, dict):
        raise ContractError("policy metadata: provenance is not a JSON object")
    return PolicyContract.from_json(fields.get("contract")), GoldenVectors.from_json(fields.get("golden")), provenance


def _check_tensors(graph: Graph, contract: PolicyContract) -> None:
    """Refuse a contract whose tensors the file does not have, has twice, or has in another size or type."""
    inputs = _by_name(graph, graph.inputs, "input")
    wanted = {spec.tensor for spec in contract.observations}
    if set(inputs) != wanted or len(contract.observations) != len(inputs):
        raise ContractError(f"contract binds inputs {sorted(wanted)}, the file has {sorted(inputs)}")
    for spec in contract.observations:
        shape = inputs[spec.tensor].shape
        size = math.prod(spec.shape) * spec.stack
        if not shape or shape[0] != 1 or math.prod(shape[1:]) != size:
            raise ContractError(
                f"observation {spec.key!r} has {size} elements, its tensor {spec.tensor!r} has shape {shape}"
            )
    stray = (set(contract.normalizer.scale) | set(contract.normalizer.offset)) - {s.key for s in contract.observations}
    if stray:
        raise ContractError(f"the normaliser names {sorted(stray)}, which the policy does not observe")
    bind_inputs(contract, graph)
    _check_outputs(graph, contract)
    _check_action(contract)


def _check_outputs(graph: Graph, contract: PolicyContract) -> None:
    outputs = _by_name(graph, graph.outputs, "output")
    roles = contract.head.outputs
    missing = set(roles.values()) - set(outputs)
    if missing:
        raise ContractError(f"contract binds outputs {sorted(missing)}, the file has {sorted(outputs)}")
    if len(set(roles.values())) != len(roles):
        raise ContractError(f"contract binds one output to two roles: {dict(roles)}")
    width = action_size(contract)
    for role, name in roles.items():
        shape = outputs[name].shape
        if not shape or shape[0] != 1 or math.prod(shape[1:]) != width:
            raise ContractError(f"output {role!r} needs {width} elements, its tensor {name!r} has shape {shape}")
    bind_outputs(contract, graph)


def _check_action(contract: PolicyContract) -> None:
    """Refuse lengths that do not fit, which numpy would broadcast."""
    action, width = contract.action, action_size(contract)
    if len(contract.head.log_std) not in (0, width):
        raise ContractError(
            f"the head's log_std has {len(contract.head.log_std)} elements, expected {width}, one per action element"
        )
    if action.kind == "discrete":
        return
    if any(n < 1 for n in action.shape):
        raise ContractError(f"the action's shape {action.shape} is not allowed")
    for name, least in (("low", width), ("high", width), ("scale", 0), ("offset", 0)):
        if len(getattr(action, name)) not in (least, width):
            raise ContractError(f"the action's {name} has {len(getattr(action, name))} elements, expected {width}")
    if any(low > high for low, high in zip(action.low, action.high, strict=True)):
        raise ContractError("the action has a lower bound above its upper bound")


def _by_name(graph: Graph, indices: tuple[int, ...], what: str) -> dict[str, Tensor]:
    tensors = {graph.tensors[n].name: graph.tensors[n] for n in indices}
    if len(tensors) != len(indices):
        raise ContractError(f"two {what}s of the file share a name; the contract binds by name")
    return tensors


def _check_golden(contract: PolicyContract, golden: GoldenVectors) -> None:
    keys = {spec.key: spec for spec in contract.observations}
    if set(golden.observations) != set(keys):
        raise ContractError(f"golden observations {sorted(golden.observations)} are not of {sorted(keys)}")
    for key, spec in keys.items():
        array = golden.observations[key]
        if array.dtype != np.dtype(spec.dtype) or array[0].size != math.prod(spec.shape) * spec.stack:
            raise ContractError(
                f"golden observation {key!r} is {array.dtype} {array.shape}, not {spec.dtype} {spec.shape}"
            )
        if spec.stack > 1 and array.shape[1:] != (spec.stack, *spec.shape):
            raise ContractError(
                f"golden observation {key!r} has shape {array.shape}, expected rows of {(spec.stack, *spec.shape)}"
            )
    if golden.outputs and set(golden.outputs) != set(contract.head.outputs):
        raise ContractError(f"golden outputs {sorted(golden.outputs)} are not {sorted(contract.head.outputs)}")


def _array_to_json(array: NDArray[Any]) -> dict[str, Any]:
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    data = base64.b64encode(little.tobytes()).decode("ascii")
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def _array_from_json(data: Any) -> NDArray[Any]:
    name, shape = data["dtype"], data["shape"]
    if name not in _ARRAY_DTYPES:
        raise TypeError(f"dtype {_short(name)} is not one of {', '.join(_ARRAY_DTYPES)}")
    if not isinstance(shape, list) or len(shape) > 6 or any(type(n) is not int or not 1 <= n < 2**31 for n in shape):
        raise TypeError(f"shape {_short(shape)} is not allowed")
    dtype = np.dtype(name)
    if not isinstance(data["data"], str):
        raise TypeError("data is not a string")
    try:
        content = base64.b64decode(data["data"], validate=True)
    except binascii.Error as error:
        raise ValueError(f"data is not base64: {error}") from None
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(content)} bytes do not fill {name} {shape}")
    if dtype.kind == "b" and content.strip(b"\0\1"):
        raise ValueError("a bool is neither 0 nor 1")
    array: NDArray[Any] = np.frombuffer(content, dtype=dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(shape)
    return array


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not allowed")


def _short(value: object) -> str:
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
