"""Patches snapshots of a network in quantization-aware training, by the same writer as every other network.

The converter's file of the training network itself is the oracle: `Patcher.build` compares with it, and so does every
audit.
"""

from __future__ import annotations

import numpy as np

from quarl_device.errors import PatchError, QuarlError
from quarl_export.compare import difference
from quarl_export.converter import convert_snapshot
from quarl_export.networks import NetworkSpec
from quarl_export.patch.builder import build_writer
from quarl_export.patch.values import probe
from quarl_export.patch.writer import Writer
from quarl_export.qat_graph import (
    normalizer_shapes,
    range_quantizations,
    snapshot_values,
    spec_plan,
    values_snapshot,
)
from quarl_export.snapshot import PolicySnapshot, for_export

_PROBE_SEED = 7


class Patcher:
    """Makes the files of one `NetworkSpec`. Not thread-safe.

    Attributes:
        spec: the architecture that fits.
        normalized: whether the file has a normaliser.
    """

    def __init__(self, spec: NetworkSpec, *, normalized: bool, writer: Writer) -> None:
        self.spec = spec
        self.normalized = normalized
        self._writer = writer

    @classmethod
    def build(cls, spec: NetworkSpec, *, normalized: bool = False, verify: bool = True) -> Patcher:
        """Convert a fingerprint to find every value's place, and the training network to verify the patching.

        Takes two conversions, 1-3 s.

        Args:
            spec: the architecture.
            normalized: whether the file has a normaliser.
            verify: false leaves out the second conversion, for a caller that compares its own patch with a conversion.

        Raises:
            ConversionError: TensorFlow could not convert the architecture.
            PatchError: the converted file is not explained by the policy, or a patched file differs from a converted.
        """
        shapes = normalizer_shapes(spec, normalized=normalized)
        writer = build_writer(spec_plan(spec), shapes, verify=False)
        if verify:
            values = probe(writer.plan, shapes, seed=_PROBE_SEED)
            found = difference(writer.write(values), convert_snapshot(spec, values_snapshot(spec, values)))
            if found:
                raise PatchError(f"a patched file differs from a converted one: {found}")
        return cls(spec, normalized=normalized, writer=writer)

    def patch(self, snapshot: PolicySnapshot) -> bytes:
        """Return the complete file of `snapshot`, equal in every tensor to its conversion.

        Raises:
            PatchError: another architecture, a degenerate range, or a bias that does not fit int32.
            NonFiniteError: NaN or Inf anywhere.
        """
        self._check(snapshot)
        try:
            return self._writer.write(snapshot_values(self.spec, for_export(self.spec, snapshot)))
        except QuarlError:
            snapshot.check_finite()  # says it in the snapshot's own names
            raise

    def with_metadata(self, name: str, content: bytes) -> Patcher:
        """Return a patcher whose files carry this metadata entry."""
        return Patcher(self.spec, normalized=self.normalized, writer=self._writer.with_metadata({name: content}))

    @property
    def data(self) -> bytes:
        """The file as last written."""
        return self._writer.data

    def _check(self, snapshot: PolicySnapshot) -> None:
        shapes = [kernel.shape for kernel in snapshot.kernels]
        if shapes != [*self.spec.kernel_shapes]:
            raise PatchError(f"policy has kernels {shapes}, the file {[*self.spec.kernel_shapes]}")
        if snapshot.normalized != self.normalized:
            raise PatchError("policy and file differ: one has a normaliser, the other none")
        ranges = np.vstack([snapshot.ranges, snapshot.head_range])
        if not ((ranges[:, 0] <= 0.0) & (ranges[:, 1] >= 0.0) & (ranges[:, 0] < ranges[:, 1])).all():
            # Training never makes a degenerate range: one is a fault to be seen, not opened.
            snapshot.check_finite()
            range_quantizations(snapshot)
