"""MQTT messages that get lost, come twice, or out of order, though TCP itself is whole: what a broker may do.

A lost QoS 1 message is acknowledged to its sender in the receiver's place, as a broker does that has no room for it in
a queue (Mosquitto beyond `max_queued_messages`), or that forgets its sessions in a crash: PUBACK says nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_PUBLISH = 3
_PUBACK = b"\x40\x02"
_DUP = 0x08
_MAX_LENGTH_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class PacketFaults:
    """How often what happens to a PUBLISH, as probabilities that sum to 1 at most.

    Attributes:
        drop: it never arrives.
        duplicate: it arrives twice.
        reorder: it arrives after the packet that follows it.
    """

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0


class FaultyPackets:
    """One direction of one connection; a `PacketFilter`.

    Args:
        faults: see `PacketFaults`.
        rng: decides.

    Attributes:
        dropped: messages so far.
        duplicated: likewise.
        reordered: likewise.
    """

    def __init__(self, faults: PacketFaults, rng: random.Random) -> None:
        self._faults = faults
        self._rng = rng
        self._partial = b""
        self._late = b""
        self.dropped = self.duplicated = self.reordered = 0

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Take bytes as they came.

        Returns:
            What goes on, and what goes back to the sender, in whole packets.

        Raises:
            ConnectionError: this is no MQTT.
        """
        packets, self._partial = split_packets(self._partial + data)
        onward, back = bytearray(), bytearray()
        for packet in packets:
            late, self._late = self._late, b""
            passed, answer = self._judge(packet)
            onward += passed + late
            back += answer
        return bytes(onward), bytes(back)

    def _judge(self, packet: bytes) -> tuple[bytes, bytes]:
        """Return what of a packet goes on, and what its sender is told."""
        if packet[0] >> 4 != _PUBLISH or packet[0] & 0x06 == 0x04:  # QoS 2 is a dialogue of its own
            return packet, b""
        lot = self._rng.random() - self._faults.drop
        if lot < 0:
            self.dropped += 1
            return b"", _acknowledgement(packet)
        lot -= self._faults.duplicate
        if lot < 0:
            self.duplicated += 1
            return packet + _repeated(packet), b""
        if lot < self._faults.reorder:
            self.reordered += 1
            self._late = packet
            return b"", b""
        return packet, b""


def split_packets(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the whole MQTT packets at the beginning of `data`, and the rest.

    Raises:
        ConnectionError: a length of more than four bytes: this is no MQTT.
    """
    packets, start = [], 0
    while (size := _packet_bytes(data, start)) and start + size <= len(data):
        packets.append(data[start : start + size])
        start += size
    return packets, data[start:]


def _packet_bytes(data: bytes, start: int) -> int:
    """Return the size of the packet that begins at `start`, 0 while its length is not all there."""
    length = 0
    for index in range(_MAX_LENGTH_BYTES):
        at = start + 1 + index
        if at >= len(data):
            return 0
        length |= (data[at] & 0x7F) << (7 * index)
        if data[at] < 0x80:
            return 2 + index + length
    raise ConnectionError("no MQTT: a length of more than four bytes")


def _acknowledgement(packet: bytes) -> bytes:
    """Return the PUBACK of a PUBLISH, nothing for QoS 0."""
    if not packet[0] & 0x06:
        return b""
    body = 2
    while packet[body - 1] >= 0x80:
        body += 1
    behind_topic = body + 2 + int.from_bytes(packet[body : body + 2])
    return _PUBACK + packet[behind_topic : behind_topic + 2]


def _repeated(packet: bytes) -> bytes:
    """Return a PUBLISH as it is sent again; at QoS 0 nothing marks that."""
    return bytes([packet[0] | _DUP]) + packet[1:] if packet[0] & 0x06 else packet
