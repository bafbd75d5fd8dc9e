"""What the doctor says of boards of every kind; the checks are given readings, nothing is touched."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from quarl_device.delegate_spec import DelegateSpec
from quarl_device.doctor.finding import Finding, ok, problem, warning, worst
from quarl_device.doctor.host_checks import (
    DiskReading,
    check_clock,
    check_disk,
    check_glibc,
    check_python,
    check_writable,
)
from quarl_device.doctor.link_checks import (
    CertificateReading,
    LinkReading,
    check_broker,
    check_certificate,
    check_learner,
    check_modes,
    check_own_certificate,
    check_packets,
    check_rules,
)
from quarl_device.doctor.runtime_checks import check_delegate, check_environment, check_numpy, check_runtimes
from quarl_device.errors import BrokerRefused, BrokerUnreachable, UnknownEnvironment
from quarl_device.inspect.delegate_probe import DelegateFault
from quarl_device.inspect.probe import Probe

NOW = datetime(2026, 6, 1, tzinfo=UTC)
BUILT = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def said(finding, level, *words):
    assert isinstance(finding, Finding)
    assert finding.level == level, finding
    for word in words:
        assert word in f"{finding.found} | {finding.mend}", finding
    # What is wrong always comes with a way out, what is not never does.
    assert bool(finding.mend) == (level != "ok")


@pytest.mark.parametrize(
    ("now", "level", "word"),
    [
        (NOW, "ok", "2026-06-01"),
        (datetime(1970, 1, 1, tzinfo=UTC), "problem", "1970-01-01"),
        (BUILT - 2 * DAY, "problem", "timedatectl"),
        (BUILT - DAY / 2, "ok", ""),  # another zone, not another time
    ],
)
def test_clock(now, level, word):
    said(check_clock(now, BUILT), level, word)


@pytest.mark.parametrize(
    ("version", "level"), [((3, 10, 2), "problem"), ((3, 11, 0), "ok"), ((3, 13, 9), "ok"), ((3, 14, 0), "warning")]
)
def test_python(version, level):
    said(check_python(version, processor="aarch64"), level, ".".join(map(str, version)))
    assert level != "ok" or check_python(version, processor="aarch64").found.endswith("on aarch64")


@pytest.mark.parametrize(
    ("found", "needs", "level", "word"),
    [
        ((2, 36), {"ai-edge-litert": (2, 27)}, "ok", "needs 2.27"),
        ((2, 31), {"tflite-runtime": (2, 34)}, "problem", "tflite-runtime needs 2.34"),
        ((2, 9), {"tflite-runtime": (2, 17)}, "problem", "2.9 is too old"),
        ((2, 36), {}, "ok", "2.36"),
        (None, {}, "warning", "musl"),
        (None, {"ai-edge-litert": (2, 27)}, "problem", "ai-edge-litert"),
    ],
)
def test_glibc(found, needs, level, word):
    said(check_glibc(found, needs), level, word)


def disk(free_mib=5000, inodes=100_000, refused=""):
    return DiskReading(folder=Path("/var/x"), free_bytes=free_mib * 2**20, free_inodes=inodes, refused=refused)


@pytest.mark.parametrize(
    ("reading", "level", "word"),
    [
        (disk(), "ok", "5,000 MiB"),
        (disk(inodes=None), "ok", ""),
        (disk(free_mib=200), "warning", "--spool-mib"),
        (disk(free_mib=3), "problem", "only 3 MiB"),
        (disk(inodes=12), "problem", "inodes"),
    ],
)
def test_disk(reading, level, word):
    said(check_disk(reading), level, word)


def test_writable():
    said(check_writable(disk()), "ok")
    said(check_writable(disk(refused="Read-only file system")), "problem", "Read-only file system", "--state-dir")


LITERT = Probe(runtime="ai-edge-litert", version="2.3.0", loads=True, detail="")
ABSENT = Probe(runtime="tflite-runtime", version="", loads=None, detail="not installed here")
BROKEN = Probe(runtime="tflite-runtime", version="2.14.0", loads=False, detail="its interpreter died of SIGILL")


def test_runtimes():
    [finding] = check_runtimes([LITERT, ABSENT])
    said(finding, "ok", "ai-edge-litert 2.3.0")
    good, bad = check_runtimes([LITERT, BROKEN])
    said(good, "ok")
    said(bad, "warning", "SIGILL", "numpy<2")
    [finding] = check_runtimes([BROKEN])
    said(finding, "problem", "SIGILL")
    [finding] = check_runtimes([ABSENT])
    said(finding, "problem", "pip install ai-edge-litert")


@pytest.mark.parametrize(
    ("numpy", "installed", "level", "word"),
    [
        ("2.4.6", ["ai-edge-litert"], "ok", "2.4.6"),
        ("1.26.4", ["tflite-runtime"], "ok", ""),
        ("2.0.0", ["tflite-runtime"], "problem", "numpy<2"),
        ("2.0.0", ["ai-edge-litert", "tflite-runtime"], "warning", "pip uninstall"),
        ("", ["ai-edge-litert"], "problem", "pip install numpy"),
    ],
)
def test_numpy(numpy, installed, level, word):
    said(check_numpy(numpy, installed), level, word)


def test_delegate():
    spec, fault = DelegateSpec(device="usb"), DelegateFault(found="no device", hint="plug it in")
    said(check_delegate(None, [], None), "ok")
    said(check_delegate(spec, ["usb 18d1:9302"], None), "ok", "edgetpu:usb", "18d1:9302")
    said(check_delegate(spec, [], fault, asked=True), "problem", "no device", "plug it in")
    said(check_delegate(spec, ["usb 18d1:9302"], fault), "warning", "no device", "18d1:9302")


def test_environment():
    said(check_environment("CartPole-v1", None), "ok", "CartPole-v1")
    said(check_environment("X", UnknownEnvironment("no X", hint="try Y")), "problem", "no X", "code 20", "try Y")


@pytest.mark.parametrize(
    ("modes", "level", "word"),
    [
        ({"client.key": 0o600, "client.crt": 0o644}, "ok", ""),
        ({"client.key": 0o640}, "problem", "chmod 600 /c/client.key"),
        ({"client.key": 0o600, "signing.key": 0o604}, "problem", "signing.key"),
        ({"client.key": 0o600, "ca.crt": 0o666}, "warning", "chmod go-w /c/ca.crt"),
        ({}, "ok", ""),
        ({".": 0o755, "client.key": 0o600}, "ok", ""),
        ({".": 0o777, "client.key": 0o600}, "warning", "chmod go-w /c"),
        ({".": 0o775, "ca.crt": 0o666}, "warning", "the files of /c, ca.crt | chmod go-w /c /c/ca.crt"),
    ],
)
def test_modes(modes, level, word):
    said(check_modes("/c", modes), level, word)


@pytest.mark.parametrize(
    ("begins", "ends", "level", "word"),
    [
        (-10, 300, "ok", "holds from"),
        (2, 300, "problem", "timedatectl"),
        (-10, -1, "problem", "ended on"),
        (-10, 5, "warning", "broker init"),
    ],
)
def test_certificate(begins, ends, level, word):
    reading = CertificateReading(begins=NOW + begins * DAY, ends=NOW + ends * DAY)
    said(check_certificate(reading, NOW), level, word)


def test_a_certificate_that_could_not_be_seen_is_not_ok():
    said(check_certificate(None, NOW), "warning", "could not be seen")


@pytest.mark.parametrize(("ends", "level", "word"), [(300, "ok", "2027"), (29, "warning", "--renew")])
def test_the_devices_own_certificate(ends, level, word):
    reading = CertificateReading(begins=NOW - DAY, ends=NOW + ends * DAY)
    said(check_own_certificate(reading, NOW), level, "this device's", word)


def test_the_clock_of_1970_is_told_at_the_certificate_too():
    reading = CertificateReading(begins=NOW, ends=NOW + 300 * DAY)
    said(check_certificate(reading, datetime(1970, 1, 1, tzinfo=UTC)), "problem", "1970")


def link(**values):
    good = {"own": "came back", "foreign": "denied", "learner_seen": True, "large": "came back", "large_bytes": 2**20}
    return LinkReading(address="h:1", **{**good, **values})


def test_broker():
    said(check_broker(link(connect_ms=12.3)), "ok", "h:1", "12 ms")
    said(check_broker(link(error=BrokerUnreachable("nobody", hint="is it running?"))), "problem", "code 30", "running")
    said(check_broker(link(error=BrokerRefused("wrong", hint="--password-file"))), "problem", "code 31")


def test_rules():
    said(check_rules(link()), "ok", "MQTT 3.1.1")
    said(check_rules(link(own="denied")), "problem", "enroll")
    said(check_rules(link(foreign="came back")), "warning", "broker up")


@pytest.mark.parametrize("whose", ["own", "foreign"])
@pytest.mark.parametrize(
    ("fate", "word"),
    [("lost", "lost with the connection"), ("silent", "neither acknowledged"), ("not tried", "was not tried")],
)
def test_what_says_nothing_about_rules_is_a_warning(whose, fate, word):
    said(check_rules(link(**{whose: fate})), "warning", word, "not told")


@pytest.mark.parametrize(("large", "level"), [("came back", "ok"), ("cut", "problem"), ("silent", "warning")])
def test_packets(large, level):
    said(check_packets(link(large=large)), level, "1.00 MiB")


def test_learner():
    said(check_learner(link(), "lab"), "ok", "lab")
    said(check_learner(link(learner_seen=False), "lab"), "warning", "--fleet lab")


def test_the_worst_counts():
    assert worst([]) == "ok"
    assert worst([ok("a", ""), warning("b", "", ""), ok("c", "")]) == "warning"
    assert worst([problem("a", "", ""), warning("b", "", "")]) == "problem"
