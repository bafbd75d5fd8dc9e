"""Convert once, then push in milliseconds: complete policy files by patching, where that can be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quarl_device.contract import PolicyContract
from quarl_device.policy_file import METADATA_NAME, encode_metadata
from quarl_export.golden import run_goldens
from quarl_export.metadata import complete
from quarl_export.networks import NetworkSpec
from quarl_export.patcher import ConvertingPatcher, Patcher, build_patcher
from quarl_export.qat import QatPolicy
from quarl_export.snapshot import PolicySnapshot


@dataclass(frozen=True, kw_only=True, eq=False)
class QatTemplate:
    """A patcher whose files carry their contract and golden observations.

    The metadata is the same in every push: the golden outputs in it belong to the policy that the template was made
    of, as does a gaussian head's log_std, and a push brings its own in its header. Not thread-safe.

    Attributes:
        patcher: does the work, by patching or by converting.
        contract: of every file, complete.
        golden_observations: per key float32 ``[count, *shape]``, as in every file.
        metadata: of every file, encoded.
    """

    patcher: Patcher | ConvertingPatcher
    contract: PolicyContract
    golden_observations: Mapping[str, NDArray[np.float32]]
    metadata: bytes

    @classmethod
    def from_model(
        cls,
        policy: QatPolicy,
        contract: PolicyContract,
        golden_observations: Mapping[str, ArrayLike] | ArrayLike,
        *,
        provenance: Mapping[str, Any] | None = None,
    ) -> QatTemplate:
        """Make a template for policies like `policy`, which is only read; takes two conversions, 1-3 s.

        A network that cannot be patched gets a template that converts every time, and says why in `reason`.

        Args:
            policy: its architecture is converted; its current state gives the golden outputs in the metadata.
            contract: tensor names, scheme and the normaliser's place are filled in here.
            golden_observations: per key float32 ``[count, *shape]``, or one such array for a single key.
            provenance: JSON values for the metadata.

        Raises:
            ConversionError: TensorFlow could not convert the architecture.
        """
        patcher = build_patcher(policy.spec, normalized=policy.normalized)
        snapshot = policy.snapshot()
        contract = complete(
            contract, policy.spec, scheme="int8", normalized=policy.normalized, log_std=snapshot.log_std
        )
        golden = run_goldens(patcher.patch(snapshot), contract, golden_observations)
        content = encode_metadata(contract, golden, provenance or {})
        return cls(
            patcher=patcher.with_metadata(METADATA_NAME, content),
            contract=contract,
            golden_observations=golden.observations,
            metadata=content,
        )

    @property
    def spec(self) -> NetworkSpec:
        """The architecture that fits."""
        return self.patcher.spec

    @property
    def reason(self) -> str:
        """Why files are converted, a second or more each; "" where they are patched."""
        return self.patcher.reason

    def converting(self, reason: str) -> QatTemplate:
        """Return one that makes the same files by converting every time, because of `reason`."""
        patcher = ConvertingPatcher(self.spec, normalized=self.patcher.normalized, reason=reason)
        return dataclasses.replace(self, patcher=patcher.with_metadata(METADATA_NAME, self.metadata))

    @property
    def data(self) -> bytes:
        """The file as last made."""
        return self.patcher.data

    def patch(self, snapshot: PolicySnapshot) -> bytes:
        """Return the complete file of `snapshot`, equal in every tensor to its conversion.

        Raises:
            PatchError: another architecture, a degenerate range, or a bias that does not fit int32.
            NonFiniteError: NaN or Inf anywhere.
        """
        return self.patcher.patch(snapshot)
