"""The hot push: learner variables to signed bytes on the wire, in milliseconds (DESIGN of the loop, step 1).

A policy that one message carries is one. Of a larger one a signed manifest is published, and a `BlobServer` sends its
chunks. A larger one waits, in a slot of one, while another is being fanned out: so each that begins arrives whole.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from quarl_device.link import Link
from quarl_device.policy_file import GoldenVectors
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.limits import MAX_CHUNK_BYTES, MAX_INLINE_PUSH_BYTES
from quarl_device.wire.manifest import Manifest, chunk_digests
from quarl_device.wire.push import Exploration, PushHeader, newer
from quarl_device.wire.topics import Topics
from quarl_edge.learner.blobs import BlobServer
from quarl_edge.learner.sealing import seal_policy
from quarl_export.golden import run_goldens
from quarl_export.qat_template import QatTemplate
from quarl_export.snapshot import PolicySnapshot

RENEW_S = 15.0
"""Longer than a device takes to say what it acts with."""
_RENEW_MAX_S = 300.0


@dataclass(frozen=True, kw_only=True)
class PrepareTimes:
    """How long each stage took that follows the reading of the learner's variables.

    Attributes:
        read_ms: the variables into a snapshot.
        patch_ms: the snapshot into a policy file.
        examine_ms: golden outputs and digests.
        seal_ms: header, encoding and signature.
    """

    read_ms: float
    patch_ms: float
    examine_ms: float
    seal_ms: float


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """One policy on its way out.

    Attributes:
        version: its policy version.
        env_steps: environment steps behind it.
        snapshot: the learned weights and ranges that it was patched from.
        policy: the int8 file.
        golden: what `policy` answers to the golden observations.
        sha256: hex digest of `policy`.
        header: what the push says of it.
        payload: the signed push or manifest.
        manifest: what `payload` says if it is a manifest, else `None`.
        prepare_ms: variables read to signed bytes.
        times: the same by stage, `None` where it was not made here.
    """

    version: int
    env_steps: int
    snapshot: PolicySnapshot
    policy: bytes
    golden: GoldenVectors
    sha256: str
    header: PushHeader
    payload: bytes
    prepare_ms: float
    manifest: Manifest | None = None
    times: PrepareTimes | None = None


@dataclass(frozen=True, kw_only=True)
class _Examined:
    """What a file answers, and its digests: `chunks` only of one that is too large for a message."""

    golden: GoldenVectors
    sha256: str
    chunks: bytes


class PolicyPublisher:
    """Patches, signs and publishes policies; the latest is republished after a reconnection.

    It is also republished where a device acts with an older one for long: brokers lose messages that they have
    acknowledged, and what an ended connection still had on its way may overwrite what is retained. A learner that waits
    for experience pushes nothing new, so without that both would wait for each other.

    Args:
        template: converted once; each push is patched into it.
        link: to the broker.
        topics: of the fleet.
        key: the learner's key.
        epoch: the learner's epoch.
        blobs: serves the chunks of policies over the inline cap.
    """

    def __init__(
        self, template: QatTemplate, *, link: Link, topics: Topics, key: LearnerKey, epoch: int, blobs: BlobServer
    ) -> None:
        self._template = template
        self._link = link
        self._topics = topics
        self._key = key
        self._epoch = epoch
        self._blobs = blobs
        self._latest: Pushed | None = None
        self._owed = False
        self._sent_meanwhile = 0
        self._renew_at_s, self._patience_s = 0.0, RENEW_S
        self._lock = threading.RLock()
        blobs.on_idle = self._send_owed
        link.on_connect(self._republish)

    def prepare(
        self,
        read: Callable[[], PolicySnapshot],
        *,
        version: int,
        env_steps: int,
        exploration: Exploration,
        normalizer_version: int = 0,
        reset: bool = False,
    ) -> Pushed:
        """Make one policy ready to go out.

        Args:
            read: reads the learner's variables; timed as part of the push.
            version: policy version, growing.
            env_steps: environment steps behind it.
            exploration: what the actors add to the greedy action.
            normalizer_version: grows whenever the normaliser's constants change.
            reset: lockstep: actors reset every environment before they act with it.

        Raises:
            NonFiniteError: a weight or range is NaN or Inf.
            PatchError: the template does not fit.
            PayloadTooLarge: over 64 MiB.
        """
        read_unix_ns = time.time_ns()
        laps = [time.perf_counter()]
        snapshot = read()
        laps.append(time.perf_counter())
        policy = self._template.patch(snapshot)
        laps.append(time.perf_counter())
        examined = self._examine(policy)
        laps.append(time.perf_counter())
        header = PushHeader(
            epoch=self._epoch,
            version=version,
            env_steps=env_steps,
            sha256=examined.sha256,
            exploration=exploration,
            normalizer_version=normalizer_version,
            golden_outputs=examined.golden.outputs,
            lsb=examined.golden.lsb,
            tolerance_lsb=examined.golden.tolerance_lsb,
            variables_read_unix_ns=read_unix_ns,
            reset=reset,
        )
        payload, manifest = seal_policy(header, policy, self._key, chunks=examined.chunks)
        laps.append(time.perf_counter())
        return Pushed(
            version=version,
            env_steps=env_steps,
            snapshot=snapshot,
            policy=policy,
            golden=examined.golden,
            sha256=examined.sha256,
            header=header,
            payload=payload,
            manifest=manifest,
            prepare_ms=(laps[-1] - laps[0]) * 1e3,
            times=_times(laps),
        )

    def publish(self, pushed: Pushed) -> bool:
        """Send a prepared policy out; it is retained, and sent again after a reconnection.

        Returns:
            Whether it is out now; if not, it goes out as soon as it can unless a later one comes first.
        """
        with self._lock:
            self._latest, self._owed = pushed, True
            self._renew_at_s, self._patience_s = time.monotonic() + RENEW_S, RENEW_S
            return not self._must_wait(pushed) and self._send()

    def retry(self) -> int:
        """Send the latest policy if it is not out yet; return how many went out late since the last call."""
        self._send_owed()
        with self._lock:
            sent, self._sent_meanwhile = self._sent_meanwhile, 0
            return sent

    def renew(self, in_use: Iterable[tuple[int, int]], now_s: float) -> None:
        """Send the latest policy again if it is out for long and a device acts with an older one; ever seldomer.

        Args:
            in_use: (epoch, version) that each device online says to act with, (0, 0) without a policy.
            now_s: monotonic time.
        """
        with self._lock:
            latest = self._latest
            if latest is None or self._owed or now_s < self._renew_at_s or self._must_wait(latest):
                return
            if any(newer((self._epoch, latest.version), found) for found in in_use):
                self._patience_s = min(2 * self._patience_s, _RENEW_MAX_S)
                self._renew_at_s = now_s + self._patience_s
                self._send()

    def retire(self) -> None:
        """Publish nothing any more, after a reconnection neither."""
        with self._lock:
            self._latest, self._owed = None, False

    def _examine(self, policy: bytes) -> _Examined:
        answer = functools.partial(run_goldens, policy, self._template.contract, self._template.golden_observations)
        if len(policy) <= MAX_INLINE_PUSH_BYTES:
            return _Examined(golden=answer(), sha256=hashlib.sha256(policy).hexdigest(), chunks=b"")
        # Hashing and inference release the interpreter's lock, and of a large file each takes milliseconds.
        with ThreadPoolExecutor(max_workers=2) as pool:
            hashed = pool.submit(hashlib.sha256, policy)
            chunks = pool.submit(chunk_digests, policy, chunk_bytes=MAX_CHUNK_BYTES)
            return _Examined(golden=answer(), sha256=hashed.result().hexdigest(), chunks=chunks.result())

    def _must_wait(self, pushed: Pushed) -> bool:
        return pushed.manifest is not None and self._blobs.busy

    def _send_owed(self) -> None:
        with self._lock:
            if self._owed and self._latest is not None and not self._must_wait(self._latest):
                self._sent_meanwhile += self._send()

    def _send(self) -> bool:
        # The link's thread sends again what is the latest just then; a newer one must not be overtaken by it.
        with self._lock:
            latest = self._latest
            if latest is None:
                return False
            if latest.manifest is not None:
                self._blobs.put(latest.manifest, latest.policy)
            taken = self._link.publish(self._topics.policy, latest.payload, retain=True)
            self._owed = not taken
            return taken

    def _republish(self) -> None:
        with self._lock:
            owed = self._owed
            self._sent_meanwhile += self._send() and owed


def _times(laps: Sequence[float]) -> PrepareTimes:
    read_ms, patch_ms, examine_ms, seal_ms = (1e3 * (end - start) for start, end in itertools.pairwise(laps))
    return PrepareTimes(read_ms=read_ms, patch_ms=patch_ms, examine_ms=examine_ms, seal_ms=seal_ms)
