"""Makes the files of a network in quantization-aware training: patched, by the same writer as every other network.

The converter's file of the training network itself is the oracle: `Patcher.build` compares with it, and so does every
audit. A network that cannot be patched is converted every time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quarl_device.errors import PatchError, QuarlError
from quarl_export.compare import difference
from quarl_export.converter import convert_snapshot
from quarl_export.graph import repack, view
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
        reason: why files are not patched: "", since they are.
    """

    reason = ""

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
        check_snapshot(self.spec, snapshot, normalized=self.normalized)
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


class ConvertingPatcher:
    """Makes the same files by converting each of them, in a second or more.

    Attributes:
        spec: the architecture that fits.
        normalized: whether the file has a normaliser.
        reason: why files are not patched.
        data: the file as last made, empty before the first.
    """

    def __init__(
        self, spec: NetworkSpec, *, normalized: bool, reason: str, metadata: Mapping[str, bytes] | None = None
    ) -> None:
        self.spec = spec
        self.normalized = normalized
        self.reason = reason
        self.data = b""
        self._metadata = dict(metadata or {})

    def patch(self, snapshot: PolicySnapshot) -> bytes:
        """Return the complete file of `snapshot`.

        Raises:
            ConversionError: TensorFlow could not convert it.
            PatchError: another architecture, or a degenerate range.
            NonFiniteError: NaN or Inf anywhere.
        """
        check_snapshot(self.spec, snapshot, normalized=self.normalized)
        # The converter would make a silently wrong file of them.
        snapshot.check_finite()
        model = convert_snapshot(self.spec, for_export(self.spec, snapshot))
        graph = view(model)
        names = {graph.inputs[0]: self.spec.observations[0].key, graph.outputs[0]: self.spec.role}
        self.data = repack(model, names=names, metadata=self._metadata)
        return self.data

    def with_metadata(self, name: str, content: bytes) -> ConvertingPatcher:
        """Return one whose files carry this metadata entry."""
        metadata = {**self._metadata, name: content}
        return ConvertingPatcher(self.spec, normalized=self.normalized, reason=self.reason, metadata=metadata)


def build_patcher(spec: NetworkSpec, *, normalized: bool, verify: bool = True) -> Patcher | ConvertingPatcher:
    """Return what makes the files of `spec`: see `Patcher.build`; of what cannot be patched, by conversion.

    Raises:
        ConversionError: TensorFlow could not convert the architecture.
    """
    try:
        return Patcher.build(spec, normalized=normalized, verify=verify)
    except PatchError as error:
        return ConvertingPatcher(spec, normalized=normalized, reason=error.message)


def check_snapshot(spec: NetworkSpec, snapshot: PolicySnapshot, *, normalized: bool) -> None:
    """Refuse a snapshot that no file of `spec` fits.

    Raises:
        PatchError: another architecture, or a degenerate range.
        NonFiniteError: a range is NaN or Inf.
    """
    shapes = [kernel.shape for kernel in snapshot.kernels]
    if shapes != [*spec.kernel_shapes]:
        raise PatchError(f"policy has kernels {shapes}, the file {[*spec.kernel_shapes]}")
    if snapshot.normalized != normalized:
        raise PatchError("policy and file differ: one has a normaliser, the other none")
    if (snapshot.log_std is not None) != (spec.head == "gaussian"):
        raise PatchError("policy and file differ: one has a log_std, the other none")
    ranges = np.vstack([snapshot.ranges, snapshot.head_range])
    if not ((ranges[:, 0] <= 0.0) & (ranges[:, 1] >= 0.0) & (ranges[:, 0] < ranges[:, 1])).all():
        # Training never makes a degenerate range: one is a fault to be seen, not opened.
        snapshot.check_finite()
        range_quantizations(snapshot)
