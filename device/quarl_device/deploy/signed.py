"""The signed policy file (`.qpol`): a policy in the framing of a push, and the order in which it is trusted.

Size cap, then signature, then digest, then contract, then the golden self-test: nothing is parsed that the learner's
key has not signed, and nothing acts that does not compute what it should.

A live push carries its golden answers in the header, since each push changes them. A file that was exported has its
own, and its header has none.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from quarl_device.errors import ContractError, ModelFileError
from quarl_device.files import naming, read_capped
from quarl_device.policy import Policy
from quarl_device.policy_file import GoldenVectors, PolicyFile, read_policy
from quarl_device.runtime import PolicyRuntime
from quarl_device.wire.exploration import Exploration
from quarl_device.wire.keys import LearnerKey, PublicKey
from quarl_device.wire.limits import MAX_SIGNED_FILE_BYTES
from quarl_device.wire.push import PushHeader, decode_push, encode_push

RELEASE_EPOCH = 0
"""Epoch of what a person signs: no learner's, whose epochs are times."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SignedPolicy:
    """A signed file that holds together; it has not computed anything yet.

    Attributes:
        data: the whole file.
        header: as the learner's key signed it.
        file: the policy in it.
        sha256: hex digest of `data`; `header.sha256` is that of the policy alone.
    """

    data: bytes = field(repr=False)
    header: PushHeader
    file: PolicyFile
    sha256: str

    @property
    def order(self) -> tuple[int, int]:
        """What decides which of two is older: (epoch, version)."""
        return self.header.epoch, self.header.version

    @property
    def name(self) -> str:
        """The version as a person reads it: "7" of a release, "1767225600.12" of a learner's epoch."""
        return version_name(self.header.epoch, self.header.version)

    @property
    def golden(self) -> GoldenVectors:
        """Observations, and the answers that hold for these very bytes.

        Raises:
            ContractError: header and file do not fit each other.
        """
        header = self.header
        if not header.golden_outputs:
            return self.file.golden
        return self.file.golden.with_outputs(header.golden_outputs, lsb=header.lsb, tolerance_lsb=header.tolerance_lsb)


def version_name(epoch: int, version: int) -> str:
    """Return a version as a person reads it."""
    return str(version) if epoch == RELEASE_EPOCH else f"{epoch}.{version}"


def sign_policy(file: PolicyFile, key: LearnerKey, *, version: int) -> bytes:
    """Return a signed policy file.

    Args:
        file: a policy with golden answers of its own.
        key: the learner's.
        version: 0 to 2^32 - 1; a device refuses one that is older than what it has.

    Raises:
        ContractError: the file has no golden answers, so no device could test it.
        PayloadTooLarge: over 64 MiB.
    """
    if not file.golden.outputs:
        raise ContractError(
            "the policy file has no golden answers, so no device could test it", hint="quarl-edge export writes them"
        )
    header = PushHeader(
        epoch=RELEASE_EPOCH,
        version=version,
        env_steps=0,
        sha256=file.sha256,
        exploration=Exploration(kind="none", values=()),
        tolerance_lsb=file.golden.tolerance_lsb,
    )
    return encode_push(header, file.data, key.sign, cap_bytes=MAX_SIGNED_FILE_BYTES)


def open_signed(data: bytes, key: PublicKey) -> SignedPolicy:
    """Check an untrusted file up to its contract. It is still to be loaded, see `load_signed`.

    Raises:
        PayloadRefused: over the cap, truncated, no such file, or another digest than the header's.
        BadSignature: not signed by `key`.
        ModelFileError: what was signed is no TFLite file.
        ContractError: its contract does not hold.
    """
    header, policy = decode_push(data, key.verify, cap_bytes=MAX_SIGNED_FILE_BYTES)
    file = read_policy(policy, sha256=header.sha256)
    return SignedPolicy(data=data, header=header, file=file, sha256=hashlib.sha256(data).hexdigest())


def read_signed(path: Path) -> bytes:
    """Return the bytes of a signed file, unchecked.

    Raises:
        ModelFileError: missing, unreadable, over the cap, or a policy file that is not signed.
    """
    data = read_capped(path, cap_bytes=MAX_SIGNED_FILE_BYTES, error=ModelFileError, what="signed policy file")
    if data[4:8] == b"TFL3":
        raise ModelFileError(f"{path} is a policy file that nobody has signed", hint=f"quarl-edge sign {path}")
    return data


def load_signed(signed: SignedPolicy, runtime: PolicyRuntime, *, path: Path | None = None) -> Policy:
    """Return the policy, ready to act: linted, in an interpreter, its golden answers checked.

    Raises:
        SelfTestError: it answers otherwise than recorded.
        ModelFileError, ContractError, UnsupportedSpace: see `Policy.load`.
    """
    with naming(path or Path(f"version {signed.name}")):
        return Policy.load(signed.file, runtime=runtime, golden=signed.golden)
