"""How patient an actor's session is, and how much it has under way."""

from __future__ import annotations

from dataclasses import dataclass

from quarl_device.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """Patience of a session.

    Attributes:
        resend_after_s: silence after which blocks that are out are sent again; doubles up to `resend_max_s`.
        resend_max_s: see above.
        stuck_after_s: the same while the broker has not even taken them, as on a slow link.
        announce_every_s: how often the device's birth is renewed.
        learner_silent_s: a learner not heard of for so long counts as lost.
        max_in_flight_blocks: most blocks sent and not yet inserted. Times the number of devices it should stay below
            the broker's queue (Mosquitto: 1,000 messages), beyond which brokers drop QoS 1 messages silently.
        max_in_flight_bytes: the same in bytes, so that a slow link is not stuffed; one block may go over it.
        max_offline_s: how long the loop goes on beyond its credit while the link is down or the learner is lost.
        max_offline_blocks: with so many that wait it goes on no longer then: the learner takes them one by one before
            anything newer, at the pace at which it learns. `None` for no bound.
        max_upload_bytes_per_s: of blocks, also while catching up; 0 for no bound.
    """

    resend_after_s: float = 1.0
    resend_max_s: float = 10.0
    stuck_after_s: float = 60.0
    announce_every_s: float = 10.0
    learner_silent_s: float = 30.0
    max_in_flight_blocks: int = 64
    max_in_flight_bytes: int = 8 * 1024 * 1024
    max_offline_s: float = 0.0
    max_offline_blocks: int | None = None
    max_upload_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.resend_after_s <= self.resend_max_s:
            raise UsageError(f"resend_after_s {self.resend_after_s} is not in 0..resend_max_s {self.resend_max_s}")
        if self.max_in_flight_blocks < 1:
            raise UsageError(f"max_in_flight_blocks {self.max_in_flight_blocks} is below 1")
        if self.max_offline_blocks is not None and self.max_offline_blocks < 0:
            raise UsageError(f"max_offline_blocks {self.max_offline_blocks} is below 0")
        if self.max_in_flight_bytes < 1 or self.max_offline_s < 0 or self.max_upload_bytes_per_s < 0:
            raise UsageError(
                f"max_in_flight_bytes {self.max_in_flight_bytes} (at least 1), max_offline_s {self.max_offline_s} and "
                f"max_upload_bytes_per_s {self.max_upload_bytes_per_s} (at least 0) do not hold"
            )
