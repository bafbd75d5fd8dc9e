"""What a board tells of itself, read from boards of every kind: whatever is missing or nonsense is unknown."""

import os
import platform
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarl_device.actor.board_bench import bench_board, board_state
from quarl_device.board.energy import EnergyReading, energy_between, read_energy
from quarl_device.board.memory import Memory, parse_status, read_memory
from quarl_device.board.processor import describe_machine, processor_name
from quarl_device.board.sysfs import entries, read_int, read_text
from quarl_device.board.thermal import Throttling, parse_throttled, read_temperature_c, read_throttling


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_file_that_cannot_be_read_is_none(tmp_path):
    assert read_text(tmp_path / "none") is None
    assert read_text(tmp_path) is None
    os.mkfifo(tmp_path / "pipe")
    assert read_text(tmp_path / "pipe") == ""
    write(tmp_path / "words", "N/A\n")
    assert read_int(tmp_path / "words") is None
    write(tmp_path / "huge", "9" * 100_000)
    assert len(read_text(tmp_path / "huge")) == 65_536
    assert entries(tmp_path / "none", "*") == []


def test_memory():
    assert parse_status("Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\t    1024 kB\n") == Memory(
        rss_bytes=2**20, peak_rss_bytes=2 * 2**20
    )
    assert parse_status("VmRSS: many kB") == Memory(rss_bytes=None, peak_rss_bytes=None)
    assert read_memory().rss_bytes > 2**20
    assert read_memory(Path("/no/such")).rss_bytes is None


@pytest.mark.parametrize(
    ("zones", "found"),
    [
        ({}, None),
        ({"0": "48312\n"}, 48.3),
        ({"0": "48312", "1": "61000", "cooling": "99000"}, 61.0),
        ({"0": "-274000", "1": "3000000"}, None),
        ({"0": "", "1": "warm"}, None),
        ({"0": "-5500"}, -5.5),
    ],
)
def test_temperature(tmp_path, zones, found):
    for name, text in zones.items():
        write(tmp_path / (f"thermal_zone{name}" if name.isdigit() else "cooling_device0") / "temp", text)
    assert read_temperature_c(tmp_path) == found


@pytest.mark.parametrize(
    ("text", "now", "since"),
    [
        ("throttled=0x0\n", (), ()),
        ("throttled=0x50005", ("under-voltage", "throttled"), ("under-voltage", "throttled")),
        ("throttled=0xe0008", ("soft temperature limit",), ("frequency capped", "throttled", "soft temperature limit")),
    ],
)
def test_throttling_of_a_raspberry_pi(text, now, since):
    assert parse_throttled(text) == Throttling(now=now, since_boot=since)


@settings(deadline=None)
@given(st.text(max_size=50))
def test_nonsense_is_unknown(text):
    assert parse_throttled(text) is None or text.strip().startswith("throttled=0x")
    parse_status(text)


def python(code):
    return [sys.executable, "-c", code]


def test_the_firmware_is_asked_with_a_deadline():
    assert read_throttling(python("print('throttled=0x4')")) == Throttling(now=("throttled",), since_boot=())
    assert read_throttling(python("print('throttled=0x4'); raise SystemExit(1)")) is None
    assert read_throttling(["/no/such/command"]) is None
    assert read_throttling(python("import time; time.sleep(60)"), timeout_s=0.2) is None


def rapl(folder, zone, name, uj, span="262143328850"):
    write(folder / zone / "name", f"{name}\n")
    write(folder / zone / "energy_uj", uj)
    if span:
        write(folder / zone / "max_energy_range_uj", span)


def test_rapl_counts_packages_and_neither_their_parts_nor_what_holds_them(tmp_path):
    rapl(tmp_path, "intel-rapl:0", "package-0", "1000000")
    rapl(tmp_path, "intel-rapl:1", "package-1", "5", span="")
    rapl(tmp_path, "intel-rapl:0:0", "core", "777")
    rapl(tmp_path, "intel-rapl:2", "psys", "9000000")
    write(tmp_path / "intel-rapl:3" / "energy_uj", "11")
    reading = read_energy(1.0, powercap=tmp_path, hwmon=tmp_path / "none")
    assert reading.counters_uj == ((1_000_000, 262_143_328_850), (5, 0))
    assert reading.power_uw is None


def test_hwmon_sums_its_sensors(tmp_path):
    write(tmp_path / "hwmon0" / "power1_input", "2500000")
    write(tmp_path / "hwmon0" / "power1_average", "9")
    write(tmp_path / "hwmon1" / "power1_average", "500000")
    write(tmp_path / "hwmon2" / "power1_input", "broken")
    assert read_energy(0.0, powercap=tmp_path / "none", hwmon=tmp_path).power_uw == 3_000_000


def reading(at_s, *counters, watts=None, span=1000):
    return EnergyReading(
        at_s=at_s,
        counters_uj=tuple((count, span) for count in counters),
        power_uw=None if watts is None else int(watts * 1e6),
    )


@pytest.mark.parametrize(
    ("readings", "joules", "watts", "method"),
    [
        ([reading(0, 0), reading(2, 4_000_000)], 4.0, 2.0, "rapl"),
        ([reading(0, 900), reading(1, 100)], 0.0002, 0.0, "rapl"),  # began anew at 1000
        ([reading(0, 900, span=0), reading(1, 100, span=0)], 0.0, 0.0, "rapl"),
        ([reading(0, watts=2), reading(1, watts=4), reading(3, watts=4)], 11.0, 3.667, "hwmon"),
        ([reading(0, 1), reading(1, watts=1)], None, None, "none"),
        ([reading(0, watts=1), reading(1)], None, None, "none"),
        ([reading(0), reading(1)], None, None, "none"),
        ([reading(1, 5), reading(1, 9)], None, None, "none"),
        ([reading(0, 5)], None, None, "none"),
        ([], None, None, "none"),
    ],
)
def test_energy(readings, joules, watts, method):
    energy = energy_between(readings)
    assert (energy.energy_j, energy.power_w, energy.energy_method) == (joules, watts, method)


def test_the_bench_of_this_machine():
    found = bench_board(hz=500, duration_s=0.1)
    assert found.rate.periods + found.rate.skipped == 50
    assert 0 < found.latency.act_us_p50 <= found.latency.act_us_p99 <= found.latency.act_us_p999
    assert found.board.rss_bytes <= found.board.peak_rss_bytes
    assert (found.board.energy_j is None) == (found.board.energy_method == "none")


def test_a_board_that_tells_nothing_is_all_unknown(monkeypatch):
    for name in ("read_temperature_c", "read_throttling"):
        monkeypatch.setattr(f"quarl_device.actor.board_bench.{name}", lambda: None)
    state = board_state([reading(0), reading(1)])
    assert (state.temperature_c, state.throttled, state.energy_j, state.energy_method) == (None, None, None, "none")


ARM = "processor\t: 0\nBogoMIPS\t: 108.00\nCPU implementer\t: 0x41\n"
X86 = "processor\t: 0\nvendor_id\t: GenuineIntel\n"


@pytest.mark.parametrize(
    ("machine", "cpuinfo", "name"),
    [
        ("aarch64", ARM, "aarch64"),
        ("armv7l", ARM, "armv7l"),
        ("aarch64", X86, "aarch64 (emulated)"),
        ("armv7l", X86, "armv7l (emulated)"),
        ("x86_64", X86, "x86_64"),
        ("i686", X86, "i686"),
        ("aarch64", None, "aarch64"),
        ("aarch64", "", "aarch64"),
    ],
)
def test_an_emulated_processor_is_called_so(machine, cpuinfo, name):
    assert processor_name(machine, cpuinfo) == name


def test_a_measurement_names_this_machine():
    assert describe_machine().startswith(platform.machine())
    assert describe_machine().endswith(f"Python {platform.python_version()}")
