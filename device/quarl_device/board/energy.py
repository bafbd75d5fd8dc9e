"""How much energy a board took between two moments, where it has a meter.

Two kinds are known. RAPL counts the joules of a processor's package (x86; since 2020 only root may read it). A power
sensor of the kernel's hwmon class (an INA219 at the board's supply, say) says watts at a moment, which are averaged
over the readings. A Raspberry Pi without an added sensor has neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from quarl_device.board.sysfs import entries, read_int, read_text

Method = Literal["rapl", "hwmon", "none"]
_POWERCAP, _HWMON = Path("/sys/class/powercap"), Path("/sys/class/hwmon")


@dataclass(frozen=True, kw_only=True)
class EnergyReading:
    """What the meters said at one moment.

    Attributes:
        at_s: when, by any clock that goes evenly.
        counters_uj: RAPL counters of the packages, in microjoules; each with the value at which it begins anew, 0 if
            unknown.
        power_uw: sum of the power sensors, in microwatts; `None` where there is none.
    """

    at_s: float
    counters_uj: tuple[tuple[int, int], ...] = ()
    power_uw: int | None = None


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Energy between the first reading and the last.

    Attributes:
        energy_j: joules, `None` where nothing measures them.
        power_w: the same per second.
        energy_method: "rapl", "hwmon" or "none".
    """

    energy_j: float | None
    power_w: float | None
    energy_method: Method


def read_energy(at_s: float, *, powercap: Path = _POWERCAP, hwmon: Path = _HWMON) -> EnergyReading:
    """Read all meters that may be read."""
    counters = []
    # The other zones count what a package has counted already: its parts (core, dram), and psys, which holds it whole.
    for zone in entries(powercap, "intel-rapl:*"):
        is_package = (read_text(zone / "name") or "").startswith("package")
        count = read_int(zone / "energy_uj") if is_package else None
        if count is not None and count >= 0:
            counters.append((count, read_int(zone / "max_energy_range_uj") or 0))
    powers = []
    for sensor in entries(hwmon, "hwmon*"):
        inputs = entries(sensor, "power*_input") or entries(sensor, "power*_average")
        powers += [value for value in map(read_int, inputs) if value is not None and value >= 0]
    return EnergyReading(at_s=at_s, counters_uj=tuple(counters), power_uw=sum(powers) if powers else None)


def energy_between(readings: Sequence[EnergyReading]) -> Energy:
    """Return the energy over all readings, by the counters if each has them, else by the sensors, else unknown."""
    nothing = Energy(energy_j=None, power_w=None, energy_method="none")
    spent_s = readings[-1].at_s - readings[0].at_s if readings else 0.0
    if spent_s <= 0:
        return nothing
    counters = {len(reading.counters_uj) for reading in readings}
    method: Method
    if counters == {0} or len(counters) != 1:
        powers = [reading.power_uw for reading in readings if reading.power_uw is not None]
        if len(powers) != len(readings):
            return nothing
        # By trapezoids: the readings are not evenly apart.
        steps = zip(pairwise(readings), pairwise(powers), strict=True)
        joules = sum((later.at_s - earlier.at_s) * (a + b) / 2e6 for (earlier, later), (a, b) in steps)
        method = "hwmon"
    else:
        joules = sum(_counted_uj(earlier, later) for earlier, later in pairwise(readings)) / 1e6
        method = "rapl"
    return Energy(energy_j=round(joules, 6), power_w=round(joules / spent_s, 3), energy_method=method)


def _counted_uj(earlier: EnergyReading, later: EnergyReading) -> int:
    counted = 0
    for (begin, span), (end, _) in zip(earlier.counters_uj, later.counters_uj, strict=True):
        # A counter that went back has begun anew; one that does not say where is taken for nothing.
        counted += end - begin if end >= begin else max(0, end + span - begin)
    return counted
