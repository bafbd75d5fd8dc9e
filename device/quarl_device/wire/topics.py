"""The topics of one fleet, `q/v1/<fleet>/...`."""

from __future__ import annotations

import contextlib

from quarl_device.errors import PayloadRefused, UsageError
from quarl_device.names import check_name
from quarl_device.wire.limits import WIRE_VERSION


class Topics:
    """Names every topic of a fleet.

    Args:
        fleet: its name.

    Raises:
        UsageError: the fleet's name, or later a device's, is not allowed (so that none can hold '/', '+' or '#').
    """

    def __init__(self, fleet: str) -> None:
        self.fleet = check_name(fleet, kind="fleet")
        self.root = f"q/v{WIRE_VERSION}/{fleet}"
        self.learner = f"{self.root}/learner"
        self.learner_telemetry = f"{self.root}/learner/telemetry"
        self.policy = f"{self.root}/live/policy"
        self.edgetpu = f"{self.root}/live/edgetpu"
        self.any_state = f"{self.root}/d/+/up/state"
        self.any_xp = f"{self.root}/d/+/up/xp"
        self.any_need = f"{self.root}/d/+/up/need"
        self.any_reported = f"{self.root}/d/+/up/reported"
        self.any_telemetry = f"{self.root}/d/+/up/telemetry"
        self.any_blob = f"{self.root}/blob/+/+"
        self.any_tuf = f"{self.root}/tuf/+"
        self._device_prefix = f"{self.root}/d/"

    def blob(self, sha256: str, offset: int) -> str:
        """One chunk of a policy file."""
        return f"{self.root}/blob/{sha256}/{offset}"

    def blobs(self, sha256: str) -> str:
        """Filter: every chunk of a policy file."""
        return f"{self.root}/blob/{sha256}/+"

    def chunk_of(self, topic: str) -> tuple[str, int]:
        """Return the policy file (its sha256) and the offset that a `blob/<sha256>/<offset>` topic names.

        Raises:
            PayloadRefused: the topic is not of that form.
        """
        prefix = f"{self.root}/blob/"
        sha256, _, offset = topic[len(prefix) :].partition("/") if topic.startswith(prefix) else ("", "", "")
        # Eight digits reach beyond the largest policy, and no further.
        if not (len(sha256) == 64 and 1 <= len(offset) <= 8 and offset.isascii() and offset.isdigit()):
            raise PayloadRefused(f"topic {topic[:200]!r} is not of a chunk of fleet {self.fleet!r}")
        return sha256, int(offset)

    def tuf(self, file: str) -> str:
        """One file of signed update metadata."""
        return f"{self.root}/tuf/{file}"

    def state(self, device: str) -> str:
        """A device's birth and will, retained."""
        return self._up(device, "state")

    def xp(self, device: str) -> str:
        """A device's blocks of experience."""
        return self._up(device, "xp")

    def need(self, device: str) -> str:
        """The chunks that a device lacks."""
        return self._up(device, "need")

    def reported(self, device: str) -> str:
        """A device's part in a rollout, retained."""
        return self._up(device, "reported")

    def telemetry(self, device: str) -> str:
        """A device's rates and latencies."""
        return self._up(device, "telemetry")

    def doctor(self, device: str) -> str:
        """What a device says to itself, to see what the broker lets through; nobody else listens."""
        return self._up(device, "doctor")

    def ack(self, device: str) -> str:
        """The learner's acks to a device."""
        return f"{self._device_prefix}{check_name(device, kind='device')}/down/ack"

    def desired(self, device: str) -> str:
        """A device's target policy, retained."""
        return f"{self._device_prefix}{check_name(device, kind='device')}/down/desired"

    def device_of(self, topic: str) -> str:
        """Return the device that a `d/<device>/...` topic belongs to.

        Raises:
            PayloadRefused: the topic is not one of this fleet's devices, or no device may have that name.
        """
        if topic.startswith(self._device_prefix):
            device, _, rest = topic[len(self._device_prefix) :].partition("/")
            with contextlib.suppress(UsageError):
                if rest:
                    return check_name(device, kind="device")
        raise PayloadRefused(f"topic {topic[:200]!r} is not of a device of fleet {self.fleet!r}")

    def _up(self, device: str, leaf: str) -> str:
        return f"{self._device_prefix}{check_name(device, kind='device')}/up/{leaf}"
