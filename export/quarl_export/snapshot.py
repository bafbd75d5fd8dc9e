"""Everything a policy has learned, as plain numpy: what a checkpoint stores and a patch writes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quarl_device.errors import CheckpointError, NonFiniteError
from quarl_export.networks import NetworkSpec

Float32 = NDArray[np.float32]

# Before any data was seen. tfmot starts every range here; ours leave it with the first batch.
START_RANGE = 6.0
# Half width of the head's first weights: what the first policies do is next to nothing, beside the noise they act with.
HEAD_INIT = 0.03
_QUIET_HEAD_INIT = 0.003
PIXEL_SCALE = 1 / 255
"""What the normaliser of images multiplies pixels with."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicySnapshot:
    """One moment of a policy. All arrays are float32 and are not written to.

    Attributes:
        kernels: of each layer: ``[rows, columns, channels, filters]`` of convolutions, then ``[inputs, units]``, head
            last; of a dueling one what it adds up to.
        biases: ``[filters]`` or ``[units]`` of each layer, head last.
        ranges: ``[sites, 2]``, (minimum, maximum) at the network's input and after each layer in front of the head.
        range_updates: ``[sites]``, training calls that each range has seen.
        head_range: ``[2]``, range of what the last dense layer gives in the file.
        log_std: ``[elements]``, of a gaussian head; `None` for any other.
        offset: ``[inputs]`` of the normaliser, ``[1]`` for images; `None` where the policy has none.
        scale: likewise.
    """

    kernels: tuple[Float32, ...]
    biases: tuple[Float32, ...]
    ranges: Float32
    range_updates: Float32
    head_range: Float32
    log_std: Float32 | None = None
    offset: Float32 | None = None
    scale: Float32 | None = None

    @property
    def normalized(self) -> bool:
        """Whether the policy normalises its observations."""
        return self.offset is not None

    def arrays(self) -> dict[str, Float32]:
        """Return all arrays by name, as `from_arrays` takes them; no copies."""
        named: dict[str, Float32] = {
            "ranges": self.ranges,
            "range_updates": self.range_updates,
            "head_range": self.head_range,
        }
        for index, (kernel, bias) in enumerate(zip(self.kernels, self.biases, strict=True)):
            named[f"kernel_{index}"] = kernel
            named[f"bias_{index}"] = bias
        if self.log_std is not None:
            named["log_std"] = self.log_std
        if self.offset is not None and self.scale is not None:
            named["offset"] = self.offset
            named["scale"] = self.scale
        return named

    @classmethod
    def from_arrays(cls, spec: NetworkSpec, arrays: Mapping[str, Any]) -> PolicySnapshot:
        """Build a snapshot of `spec` from named arrays, checking names, shapes and dtypes.

        Raises:
            CheckpointError: an array is missing, unknown, or has another shape or dtype than `spec` says.
        """
        expected = expected_shapes(spec, normalized="offset" in arrays)
        if set(arrays) != set(expected):
            raise CheckpointError(f"arrays {sorted(set(arrays) ^ set(expected))} are missing or unknown")
        for name, shape in expected.items():
            if arrays[name].shape != shape or arrays[name].dtype != np.float32:
                raise CheckpointError(
                    f"array {name!r} is {arrays[name].dtype}{list(arrays[name].shape)}, expected float32{list(shape)}"
                )
        layers = range(len(spec.kernel_shapes))
        return cls(
            kernels=tuple(arrays[f"kernel_{index}"] for index in layers),
            biases=tuple(arrays[f"bias_{index}"] for index in layers),
            ranges=arrays["ranges"],
            range_updates=arrays["range_updates"],
            head_range=arrays["head_range"],
            log_std=arrays.get("log_std"),
            offset=arrays.get("offset"),
            scale=arrays.get("scale"),
        )

    def check_finite(self) -> None:
        """Refuse NaN and Inf, which TensorFlow's converter turns into a silently wrong file.

        Raises:
            NonFiniteError: naming the array.
        """
        for name, array in self.arrays().items():
            # One pass without a temporary: in float64, a sum of float32 is finite unless an element is not.
            with np.errstate(invalid="ignore"):
                total = array.sum(dtype=np.float64)
            if not np.isfinite(total):
                raise NonFiniteError(f"policy: {name} holds NaN or Inf")


def expected_shapes(spec: NetworkSpec, *, normalized: bool) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every array in a snapshot of `spec`."""
    sites = 1 + spec.body_layers
    shapes: dict[str, tuple[int, ...]] = {"ranges": (sites, 2), "range_updates": (sites,), "head_range": (2,)}
    for index, shape in enumerate(spec.kernel_shapes):
        shapes[f"kernel_{index}"] = shape
        shapes[f"bias_{index}"] = shape[-1:]
    if spec.head == "gaussian":
        shapes["log_std"] = (spec.head_units,)
    if normalized:
        shapes["offset"] = shapes["scale"] = spec.normalizer_shape
    return shapes


def initial_snapshot(spec: NetworkSpec, *, seed: int, normalized: bool = False) -> PolicySnapshot:
    """Return an untrained policy: He-uniform kernels, a nearly silent head, zero biases, identity normaliser.

    The normaliser of images divides pixels by 255, and their range is from 0 to 1 for good: no pixel is rounded.

    A head that starts near zero gives every action about the same value, and a box the middle of its bounds, so the
    first pushes act without a bias. A gaussian's standard deviation starts at half the box.

    Made with numpy, so that a seed gives the same policy on every TensorFlow version.
    """
    rng = np.random.default_rng(seed)
    kernels = []
    head_init = HEAD_INIT if spec.head == "q_values" else _QUIET_HEAD_INIT
    for layer, shape in enumerate(spec.kernel_shapes):
        limit = head_init if layer == spec.body_layers else np.sqrt(6.0 / math.prod(shape[:-1]))
        kernels.append(rng.uniform(-limit, limit, shape).astype(np.float32))
    if spec.dueling:
        kernels[-1] = _dueling(kernels[-1], value_units=spec.value_units)
    sites = 1 + spec.body_layers
    ranges = np.tile(np.array([0.0, START_RANGE], np.float32), (sites, 1))
    ranges[0] = (0.0, 1.0) if spec.sees_images else (-START_RANGE, START_RANGE)
    updates = np.zeros(sites, np.float32)
    updates[0] = float(spec.sees_images)
    head_limit = min(START_RANGE, spec.head_limit)
    return PolicySnapshot(
        kernels=tuple(kernels),
        biases=tuple(np.zeros(shape[-1], np.float32) for shape in spec.kernel_shapes),
        ranges=ranges,
        range_updates=updates,
        head_range=np.array([-head_limit, head_limit], np.float32),
        log_std=np.zeros(spec.head_units, np.float32) if spec.head == "gaussian" else None,
        offset=np.zeros(spec.normalizer_shape, np.float32) if normalized else None,
        scale=np.full(spec.normalizer_shape, PIXEL_SCALE if spec.sees_images else 1.0, np.float32)
        if normalized
        else None,
    )


def _dueling(kernel: Float32, *, value_units: int) -> Float32:
    """Return a head's kernel as a dueling head's: a value that all actions share, above advantages without mean."""
    value, advantage = kernel[:value_units, :1], kernel[value_units:]
    shared = np.repeat(value, kernel.shape[1], axis=1)
    return np.concatenate([shared, advantage - advantage.mean(axis=1, keepdims=True)])


def centered(snapshot: PolicySnapshot) -> PolicySnapshot:
    """Return `snapshot` with the mean over actions taken out of its head: same argmax, smaller outputs."""
    kernel, bias = snapshot.kernels[-1], snapshot.biases[-1]
    return dataclasses.replace(
        snapshot,
        kernels=(*snapshot.kernels[:-1], kernel - kernel.mean(axis=1, keepdims=True)),
        biases=(*snapshot.biases[:-1], bias - bias.mean()),
    )


def for_export(spec: NetworkSpec, snapshot: PolicySnapshot) -> PolicySnapshot:
    """Return what a file of `snapshot` holds: centred if the spec says so."""
    return centered(snapshot) if spec.quantization.center_q else snapshot
