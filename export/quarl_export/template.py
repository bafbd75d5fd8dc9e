"""Convert once, then push in milliseconds: the files of a network, patched.

A template is the conversion of invented values whose places are known. A patch writes a policy's own values there,
by the converter's rounding rules; the result equals a conversion in every tensor, which is verified when the template
is made, by patching and converting other invented values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quarl_device.contract import PolicyContract
from quarl_device.errors import ConversionError, PatchError, UsageError
from quarl_device.policy_file import METADATA_NAME, encode_metadata
from quarl_export.compare import difference
from quarl_export.golden import run_goldens
from quarl_export.graph import repack
from quarl_export.ir import ImportedPolicy, PolicyGraph
from quarl_export.kernels import is_convertible
from quarl_export.metadata import complete_policy
from quarl_export.patch.builder import build_writer
from quarl_export.patch.values import NormalizerArrays, PolicyValues, is_tied, normalizer_arrays, untied
from quarl_export.patch.writer import Writer
from quarl_export.quantized import convert_planned
from quarl_export.range_plan import QuantizationOptions, Range, RangePlan, plan_ranges

Float32 = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What `Template.audit` has compared, and found.

    Attributes:
        compared: "these values": their patch with their conversion; "untied values": the converter treats layers of
            equal values otherwise than others, so values were compared that differ from these by little more than a
            rounding (`quarl_export.patch.values.untied`); "nothing": the template converts every time, and a
            conversion is no evidence for itself.
        difference: the first one, "" where there is none.
    """

    compared: Literal["these values", "untied values", "nothing"]
    difference: str = ""

    @property
    def identical(self) -> bool:
        """Whether something was compared, and is the same."""
        return self.compared != "nothing" and not self.difference


class Template:
    """Makes the int8 files of one network. Not thread-safe.

    Attributes:
        graph: the network whose policies fit.
        options: see `QuantizationOptions`.
        patched: whether files are patched, in milliseconds; otherwise each one is converted, in a second or more.
        reason: why not; "" where they are.
    """

    def __init__(
        self,
        plan: RangePlan,
        normalizer: NormalizerArrays,
        contract: PolicyContract,
        *,
        writer: Writer | None = None,
        reason: str = "",
    ) -> None:
        self.graph = plan.graph
        self.options = plan.options
        self.reason = reason
        self._plan = plan
        self._normalizer = dict(normalizer)
        self._contract = contract
        self._writer = writer
        self._metadata: dict[str, bytes] = {}

    @classmethod
    def from_model(
        cls, policy: ImportedPolicy, *, options: QuantizationOptions | None = None, verify: bool = True
    ) -> Template:
        """Make a template for the network of `policy`; takes two conversions, 1-4 s.

        A network that cannot be patched gets a template that converts every time, and says why.

        Args:
            policy: its graph is converted; its normaliser is the one that `patch` writes by default.
            options: default: float32 ends, one scale per dense layer.
            verify: false leaves out the second conversion, for a caller that compares its own patch with a conversion.

        Raises:
            ConversionError: TensorFlow cannot convert the network at all.
            PatchError: it cannot be patched, and fewer than 8 bits per channel cannot be converted.
            UsageError: `options` does not fit the graph.
        """
        options = options or QuantizationOptions()
        normalizer = policy.contract.normalizer
        plan = plan_ranges(policy.graph, options, normalizer=normalizer)
        arrays = _arrays_in_file(policy, plan)
        contract = complete_policy(policy, scheme="int8", io=options.io, keep_float=options.keep_float)
        try:
            writer = build_writer(plan, {key: scale.shape for key, (_, scale) in arrays.items()}, verify=verify)
        except PatchError as error:
            if not is_convertible(plan):
                raise
            return cls(plan, arrays, contract, reason=str(error))
        return cls(plan, arrays, contract, writer=writer)

    @property
    def patched(self) -> bool:
        """Whether files are patched; see the class."""
        return self._writer is not None

    def patch(
        self,
        weights: Mapping[str, Float32],
        ranges: Mapping[str, Range],
        *,
        normalizer: NormalizerArrays | None = None,
    ) -> bytes:
        """Return the file of these values, equal in every tensor, scale and zero point to their conversion.

        Args:
            weights: float32, every array of the graph by name.
            ranges: (low, high) per site, at least of `sites`.
            normalizer: per key offset and scale, float32 of the input's shape or ``[1]``; default: the model's. A file
                with integer ends has none.

        Raises:
            PatchError: the values are of another network, or beyond what int8 can hold.
            UsageError: a range is missing or the wrong way round.
            NonFiniteError: NaN or Inf anywhere.
        """
        values = self._values(weights, ranges, normalizer)
        if self._writer is not None:
            return self._writer.write(values)
        return self._with_metadata(convert_planned(self._plan, values))

    def patch_policy(self, policy: ImportedPolicy, ranges: Mapping[str, Range] | None = None) -> bytes:
        """Return the file of `policy`, which may come from anywhere.

        Args:
            policy: of the template's network, layer by layer.
            ranges: default: those that it brings.

        Raises:
            PatchError, UsageError, NonFiniteError: as `patch`; a graph that differs in any layer is another network,
                and what the file cannot say of the policy is refused: another clip of its normaliser, constants that
                the device would have to know, anything that the contract in the file says otherwise.
        """
        self._check_said(self._contract_of(policy))
        return self._file_of(policy, ranges)

    def _file_of(self, policy: ImportedPolicy, ranges: Mapping[str, Range] | None) -> bytes:
        """Return the file of `policy`, whatever contract it will stand beside."""
        found = graph_difference(self.graph, policy.graph)
        if found:
            raise PatchError(f"the template is of another network: {found}", hint="make a template of this model")
        clip = plan_ranges(self.graph, self.options, normalizer=policy.contract.normalizer).clip
        if clip != self._plan.clip:
            raise PatchError(
                f"the template clips what it normalised to ±{self._plan.clip:g}, the policy to ±{clip:g} (0: never)",
                hint="make a template of this model",
            )
        arrays = _arrays_in_file(policy, self._plan)
        return self.patch(policy.weights, policy.ranges if ranges is None else ranges, normalizer=arrays)

    def _check_said(self, contract: PolicyContract) -> None:
        """Refuse a policy of which a file says something else, or leaves to the device what the device does not know.

        A file without a contract says nothing but where it is normalised; with integer ends the device has to do it,
        and by the constants of the model that the template was made of.
        """
        parts = (
            [part.name for part in dataclasses.fields(contract)] if METADATA_NAME in self._metadata else ["normalizer"]
        )
        for name in parts:
            ours, theirs = getattr(self._contract, name), getattr(contract, name)
            if ours != theirs:
                raise PatchError(
                    f"the template's files go with {name} {str(ours)[:200]}, the policy has {str(theirs)[:200]}",
                    hint="with_contract(policy, ...) gives a template whose files say what this policy is",
                )

    def audit(
        self,
        weights: Mapping[str, Float32],
        ranges: Mapping[str, Range],
        *,
        normalizer: NormalizerArrays | None = None,
    ) -> Audit:
        """Patch and convert these values; return what was compared, and the first difference.

        Raises:
            ConversionError: TensorFlow could not convert them, or has no grid of so few bits per channel.
            PatchError, UsageError, NonFiniteError: as `patch`.
        """
        if not is_convertible(self._plan):
            raise ConversionError("the converter has no grid of fewer than 8 bits per channel to compare with")
        values = self._values(weights, ranges, normalizer)
        if self._writer is None:
            return Audit(compared="nothing")
        tied = is_tied(values, self._plan)
        values = untied(values, self._plan) if tied else values
        return Audit(
            compared="untied values" if tied else "these values",
            difference=difference(self._writer.write(values), convert_planned(self._plan, values)),
        )

    def with_metadata(self, entries: Mapping[str, bytes]) -> Template:
        """Return a template whose files carry these metadata entries."""
        writer = None if self._writer is None else self._writer.with_metadata(entries)
        copy = Template(self._plan, self._normalizer, self._contract, writer=writer, reason=self.reason)
        copy._metadata = {**self._metadata, **entries}
        return copy

    def with_contract(
        self,
        policy: ImportedPolicy,
        golden_observations: Mapping[str, ArrayLike],
        *,
        ranges: Mapping[str, Range] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> Template:
        """Return a template of complete policy files: contract and golden vectors are in their metadata.

        The metadata is the same in every file: the golden outputs in it are those of `policy`, and a push brings its
        own in its header.

        Args:
            policy: of this network.
            golden_observations: per key ``[count, *shape]``, as the environment gives them.
            ranges: of `policy`; default: those that it brings.
            provenance: JSON values for the metadata; default: the policy's.

        Raises:
            PatchError, UsageError, NonFiniteError: as `patch_policy`; the contract may be another than before.
        """
        contract = self._contract_of(policy)
        golden = run_goldens(self._file_of(policy, ranges), contract, golden_observations)
        content = encode_metadata(contract, golden, policy.provenance if provenance is None else provenance)
        copy = self.with_metadata({METADATA_NAME: content})
        copy._contract = contract
        return copy

    def _contract_of(self, policy: ImportedPolicy) -> PolicyContract:
        options = self.options
        return complete_policy(policy, scheme="int8", io=options.io, keep_float=options.keep_float)

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites whose ranges `patch` needs, in graph order."""
        return self._plan.sites

    @property
    def data(self) -> bytes:
        """The file as last patched, of the size of every patch; empty where files are converted."""
        return b"" if self._writer is None else self._writer.data

    def _values(
        self, weights: Mapping[str, Float32], ranges: Mapping[str, Range], normalizer: NormalizerArrays | None
    ) -> PolicyValues:
        if normalizer and self.options.io != "float32":
            raise UsageError(f"a file with {self.options.io} ends has no normaliser: it is the device's work")
        return PolicyValues(
            weights=weights, ranges=ranges, normalizer=self._normalizer if normalizer is None else normalizer
        )

    def _with_metadata(self, model: bytes) -> bytes:
        return repack(model, metadata=self._metadata) if self._metadata else model


def _arrays_in_file(policy: ImportedPolicy, plan: RangePlan) -> NormalizerArrays:
    """Return the constants of the normaliser that a file of `plan` has: with integer ends it is the device's work."""
    return normalizer_arrays(policy.contract.normalizer, plan) if plan.options.io == "float32" else {}


def graph_difference(one: PolicyGraph, other: PolicyGraph) -> str:
    """Return the first difference between two networks, "" where they are the same."""
    pairs = (
        ("inputs", one.inputs, other.inputs),
        ("number of layers", len(one.layers), len(other.layers)),
        *((f"layer {mine.name!r}", mine, theirs) for mine, theirs in zip(one.layers, other.layers, strict=False)),
        ("weights", dict(one.weight_shapes), dict(other.weight_shapes)),
        ("outputs", list(one.outputs.items()), list(other.outputs.items())),
    )
    return next((f"{what}: {mine} against {theirs}" for what, mine, theirs in pairs if mine != theirs), "")
