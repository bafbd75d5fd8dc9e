"""Policy lag: how far the policy that made a block was behind the newest one when the block came.

Actors in other places act with the policy that they have, so experience is always somewhat off-policy. How much is
counted three ways (see `Lag`), and can be bounded: a block is refused when its *oldest* row is further behind than the
bound allows. It is then done with as every refused block is: counted, answered, not sent again, never in replay.
DQN learns from any age, so there is no bound unless one is set.

A version is one of a learner's epoch. Of what another session of the learner published, and of what is too long ago to
be remembered, the lag is known to be at least so much, not how much: shown as that, and over every bound.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quarl_device.errors import StaleExperience, UsageError
from quarl_device.wire.block_spec import Block
from quarl_device.wire.learner_telemetry import Lag

MAX_VERSIONS = 4_096
MAX_DEVICES = 4_096
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(versions?|steps?|s)?")


@dataclass(frozen=True, kw_only=True)
class LagBound:
    """The largest lag that is taken; 0 for no bound.

    Attributes:
        versions: see `Lag`.
        steps: likewise.
        age_s: likewise.
    """

    versions: int = 0
    steps: int = 0
    age_s: float = 0.0

    @classmethod
    def parse(cls, text: str) -> LagBound:
        """Read what `--max-policy-lag` says: "10" or "10 versions", "20000 steps", "30 s", several with commas.

        Raises:
            UsageError: none of these.
        """
        found: dict[str, float] = {}
        for part in text.split(","):
            match = _PART.fullmatch(part.strip())
            unit = {"v": "versions", "s": "steps"}[(match[2] or "v")[0]] if match and match[2] != "s" else "age_s"
            if match is None or unit in found or float(match[1]) <= 0 or (unit != "age_s" and "." in match[1]):
                raise UsageError(
                    f"--max-policy-lag {text[:80]!r}: expected a bound such as 10 (versions), '20000 steps' or '30 s'"
                )
            found[unit] = float(match[1])
        return cls(
            versions=int(found.get("versions", 0)), steps=int(found.get("steps", 0)), age_s=found.get("age_s", 0.0)
        )

    def exceeded_by(self, lag: Lag) -> str:
        """Say what of `lag` is over the bound, "" for nothing."""
        if 0 < self.versions < lag.versions:
            return f"{lag.versions} versions behind, at most {self.versions} are allowed"
        if 0 < self.steps < lag.steps:
            return f"{lag.steps:,} steps behind, at most {self.steps:,} are allowed"
        if 0 < self.age_s < lag.age_s:
            return f"replaced {lag.age_s:.1f} s ago, at most {self.age_s:g} s are allowed"
        return ""


class PolicyLag:
    """What was published when, and how far behind each device acts.

    `published` is called by the training thread, the rest by the link's; what they share are single references.

    Args:
        bound: see above.
        epoch: of the learner whose versions are published here.
        clock: monotonic seconds, for tests.
    """

    def __init__(
        self, bound: LagBound | None = None, *, epoch: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.bound = bound or LagBound()
        self._epoch = epoch
        self._clock = clock
        # version: (environment steps behind it, when it was replaced)
        self._versions: OrderedDict[int, tuple[int, float]] = OrderedDict()
        self._newest = (0, 0, clock())  # version, environment steps behind it, when it went out
        self._acted: OrderedDict[str, tuple[int, int]] = OrderedDict()

    @property
    def version(self) -> int:
        """The version published last, 0 before the first."""
        return self._newest[0]

    def published(self, version: int, env_steps: int) -> None:
        """Note a version that went out."""
        now_s, (before, steps, _) = self._clock(), self._newest
        if before:
            versions = OrderedDict(self._versions)
            versions[before] = (steps, now_s)
            while len(versions) > MAX_VERSIONS:
                versions.popitem(last=False)
            self._versions = versions
        self._newest = (version, env_steps, now_s)

    def of(self, version: int, epoch: int | None = None) -> Lag:
        """Return the lag of a policy version; of one that is not remembered, at least so much.

        Args:
            version: as the block says.
            epoch: of the learner that published it, by default this one. All that is published here came since another.
        """
        newest, env_steps, published_s = self._newest
        versions = self._versions
        ours = epoch in (None, self._epoch)
        if ours and version == newest:
            return Lag()
        behind = newest - version if version < newest else newest
        remembered = versions.get(version) if ours else None
        steps, replaced_s = remembered or next(iter(versions.values()), (env_steps, published_s))
        return Lag(versions=behind, steps=max(0, env_steps - steps), age_s=max(0.0, self._clock() - replaced_s))

    def check(self, block: Block) -> None:
        """Refuse a block of which a row is further behind than the bound allows, or than can be known.

        Raises:
            StaleExperience: says how far.
        """
        if self.bound == LagBound():
            return
        if np.any(np.asarray(block.policy_epoch) != self._epoch):
            raise StaleExperience("block: its policy is of another session of the learner, which a bound does not take")
        for version in np.unique(block.policy_version).tolist():
            over = self.bound.exceeded_by(self.of(version))
            if not over and not self._knows(version):
                over = f"version {version}, which is not among the {len(self._versions) + 1} that are remembered"
            if over:
                raise StaleExperience(f"block: its policy was {over}")

    def acted(self, device: str, version: int, epoch: int | None = None) -> None:
        """Note which version made the last row of a device's newest block."""
        self._acted[device] = (version, self._epoch if epoch is None else epoch)
        if len(self._acted) > MAX_DEVICES:
            self._acted.popitem(last=False)

    def _knows(self, version: int) -> bool:
        return version == self._newest[0] or version in self._versions

    def by_device(self) -> dict[str, Lag]:
        """Return how far each device was behind, by now, with its newest block."""
        return {device: self.of(*acted) for device, acted in list(self._acted.items())}
