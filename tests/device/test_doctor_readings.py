"""What the doctor reads: directories, wheels, buses, certificates, brokers that let messages through or do not."""

import getpass
import os
import socket
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from stub_delegate import stub_library

from quarl_device.actor.joining import how_to_join
from quarl_device.delegate_spec import DelegateSpec
from quarl_device.doctor import host_readings, link_readings
from quarl_device.doctor.host_checks import FIRST_RELEASE, check_clock
from quarl_device.doctor.host_readings import (
    needed_glibc,
    parse_version,
    read_built,
    read_disk,
    read_glibc,
    read_needed_glibc,
)
from quarl_device.doctor.link_readings import (
    OTHER_DEVICE,
    read_certificate,
    read_link,
    read_modes,
    read_own_certificate,
)
from quarl_device.doctor.runtime_readings import read_corals, read_environment, read_numpy, read_runtimes, try_delegate
from quarl_device.errors import CredentialsError
from quarl_device.inspect.probe import Probe
from quarl_device.link import BrokerURL
from quarl_device.testing.fake_broker import FakeBroker
from quarl_device.testing.mosquitto import Mosquitto, mosquitto_binary
from quarl_device.wire.limits import MAX_BLOCK_BYTES


def dated(at, monkeypatch, tmp_path):
    file = tmp_path / "__init__.py"
    file.touch()
    os.utime(file, (at.timestamp(), at.timestamp()))
    monkeypatch.setattr(host_readings.quarl_device, "__file__", str(file))


@pytest.mark.parametrize(
    ("now", "package", "level", "word"),
    [
        ((2026, 12, 1), (2026, 11, 30), "ok", "2026-12-01"),
        ((2026, 11, 30), (2026, 11, 30, 12), "ok", "2026-11-30"),  # copied from a host in another zone
        ((2026, 3, 1), (2026, 11, 30), "problem", "the clock or the package's date is wrong"),
        ((2026, 3, 1), (2096, 1, 1), "problem", "set the clock"),
        ((1970, 1, 1), (2026, 11, 30), "problem", "timedatectl"),
        ((1970, 1, 2), (1970, 1, 1), "problem", "timedatectl"),
        ((2026, 3, 1), (1970, 1, 1), "ok", "2026-03-01"),
    ],
)
def test_the_clock_against_the_packages_date(now, package, level, word, monkeypatch, tmp_path):
    dated(datetime(*package, tzinfo=UTC), monkeypatch, tmp_path)
    finding = check_clock(datetime(*now, tzinfo=UTC), read_built())
    assert finding.level == level
    assert word in f"{finding.found} {finding.mend}"


def test_a_package_without_a_date_is_as_old_as_the_project(monkeypatch, tmp_path):
    monkeypatch.setattr(host_readings.quarl_device, "__file__", str(tmp_path / "none"))
    assert read_built() == FIRST_RELEASE


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        (["cp311-cp311-manylinux_2_27_x86_64"], (2, 27)),
        (["cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64"], (2, 17)),
        (["cp311-cp311-manylinux2014_armv7l", "cp311-cp311-manylinux_2_34_armv7l"], (2, 17)),
        (["py3-none-any", "cp311-cp311-linux_aarch64", "nonsense", "a-b-manylinux_x_y_z"], None),
    ],
)
def test_what_a_wheel_needs(tags, found):
    assert needed_glibc(tags) == found


def test_what_is_installed_here():
    assert read_glibc() >= (2, 17)
    assert read_needed_glibc(["ai-edge-litert", "no-such-package"]).keys() == {"ai-edge-litert"}
    assert read_numpy()[0].isdecimal()
    assert parse_version("2.36") == (2, 36)
    assert parse_version("2.x") is None


def test_a_directory_that_is_not_there_yet_is_judged_by_the_one_above(tmp_path):
    reading = read_disk(tmp_path / "a" / "b")
    assert (reading.folder, reading.refused) == (tmp_path, "")
    assert reading.free_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_takes_nothing():
    assert read_disk(Path("/proc/self")).refused


def test_corals_on_their_buses(tmp_path):
    for name, vendor, product in (("1-1", "18d1", "9302"), ("1-2", "1a6e", "089a"), ("2-1", "1d6b", "0002")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "idVendor").write_text(f"{vendor}\n")
        (tmp_path / name / "idProduct").write_text(f"{product}\n")
    (tmp_path / "apex_0").touch()
    assert read_corals(usb=tmp_path, dev=tmp_path) == ["usb 18d1:9302", "usb 1a6e:089a", "pci apex_0"]
    assert read_corals(usb=tmp_path / "none", dev=tmp_path / "none") == []


def test_runtimes_are_tried_and_a_delegate_with_the_one_that_works():
    probes = read_runtimes()
    assert [probe.runtime for probe in probes if probe.loads] == ["ai-edge-litert"]
    assert try_delegate(None, [], probes) == (None, None)
    spec = DelegateSpec(library=stub_library())
    assert try_delegate(spec, [], probes) == (spec, None)
    seen, fault = try_delegate(None, ["usb 18d1:9302"], probes)
    assert seen == DelegateSpec()
    assert "libedgetpu.so.1" in fault.found
    _, fault = try_delegate(spec, [], [Probe(runtime="x", version="", loads=None, detail="")])
    assert "no runtime works" in fault.found


def test_environments():
    assert read_environment("CartPole-v1") is None
    assert read_environment("NoSuch-v0").code == 20


def test_modes(tmp_path):
    (tmp_path / "client.key").touch(mode=0o640)
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "client.key").chmod(0o640)
    tmp_path.chmod(0o750)
    assert read_modes(tmp_path) == {".": 0o750, "client.key": 0o640}


def test_a_folder_that_may_not_be_listed_is_not_taken_for_an_empty_one(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(PermissionError):
        read_modes(tmp_path)


def test_the_devices_own_certificate(tmp_path):
    begins = datetime(2026, 5, 1, tzinfo=UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "pi-1")])
    shown = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, begins, begins + timedelta(days=9))
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    (tmp_path / "client.crt").write_bytes(shown)
    reading = read_own_certificate(tmp_path)
    assert (reading.begins, reading.ends) == (begins, begins + timedelta(days=9))
    with pytest.raises(CredentialsError):
        read_own_certificate(tmp_path / "none")


JOINING = how_to_join(broker="mqtt://pi-1@h", fleet="lab", name="pi-1")


@pytest.fixture
def quick(monkeypatch):
    for name, wait_s in (("CONNECT_S", 2.0), ("ECHO_S", 0.2), ("LARGE_S", 0.2), ("_SILENCE_S", 0.05)):
        monkeypatch.setattr(link_readings, name, wait_s)


OWN, FOREIGN = "q/v1/lab/d/pi-1/up/doctor", f"q/v1/lab/d/{OTHER_DEVICE}/up/doctor"


def read(broker):
    return read_link(JOINING, make_link=lambda joining: broker.link(joining.client_id))


def test_a_broker_without_rules(quick):
    broker = FakeBroker()
    broker.publish("q/v1/lab/learner", b"birth", retain=True)
    reading = read(broker)
    assert (reading.error, reading.own, reading.foreign) == (None, "came back", "came back")
    assert (reading.large, reading.learner_seen, reading.address) == ("came back", True, "h:1883")


def test_a_broker_with_rules(quick):
    broker = FakeBroker()
    broker.drop(FOREIGN)
    reading = read(broker)
    assert (reading.own, reading.foreign, reading.learner_seen) == ("came back", "denied", False)
    assert [(message.topic, len(message.payload)) for message in broker.log] == [
        (OWN, 32), (OWN, MAX_BLOCK_BYTES), (FOREIGN, 32),
    ]  # fmt: skip


class Wrapped:
    """A link on which something happens at a publish to a topic."""

    def __init__(self, link, topic, happens):
        self.link, self.topic, self.happens, self.acknowledges = link, topic, happens, True

    def __getattr__(self, name):
        return getattr(self.link, name)

    def publish(self, topic, payload, **options):
        if topic == self.topic:
            return self.happens(self)
        return self.link.publish(topic, payload, **options)

    def flush(self, *, timeout_s):
        return self.acknowledges and self.link.flush(timeout_s=timeout_s)


def cut(reconnect):
    def happens(wrapped):
        broker = wrapped.link.broker
        broker.cut(wrapped.client_id, reconnect=reconnect)
        return True

    return happens


def stay_silent(wrapped):
    wrapped.acknowledges = False
    return True


def refuse(_):
    return False


@pytest.mark.parametrize(
    ("topic", "happens", "own", "foreign"),
    [
        (OWN, cut(True), "lost", "not tried"),
        (OWN, cut(False), "lost", "not tried"),
        (OWN, refuse, "lost", "not tried"),
        (OWN, stay_silent, "silent", "not tried"),
        (OWN, lambda _: True, "denied", "not tried"),
        (FOREIGN, cut(True), "came back", "denied"),
        (FOREIGN, cut(False), "came back", "denied"),
        (FOREIGN, stay_silent, "came back", "silent"),
        (FOREIGN, lambda _: True, "came back", "denied"),
    ],
)
def test_what_becomes_of_a_message(quick, topic, happens, own, foreign):
    broker = FakeBroker()
    reading = read_link(JOINING, make_link=lambda joining: Wrapped(broker.link(joining.client_id), topic, happens))
    assert (reading.error, reading.own, reading.foreign) == (None, own, foreign)
    assert reading.large == ("came back" if own == "came back" else "not tried")


def test_a_broker_that_denies_everything(quick):
    broker = FakeBroker()
    broker.drop("#", 10)
    reading = read(broker)
    assert (reading.own, reading.large) == ("denied", "not tried")


def test_a_login_without_credentials_leaves_an_agent_its_session():
    assert JOINING.client_id == "lab.pi-1"
    assert link_readings._link(JOINING).client_id == "lab.pi-1.doctor"


def test_a_broker_that_is_down(quick):
    broker = FakeBroker()
    broker.down()
    assert read(broker).error.code == 30


def test_nobody_listens(quick):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    reading = read_link(how_to_join(broker=f"mqtt://127.0.0.1:{port}", name="pi-1"))
    assert reading.error.code == 30
    assert read_certificate(BrokerURL(host="127.0.0.1", port=port, tls=True)) is None


def test_a_server_that_says_nothing():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = BrokerURL(host="127.0.0.1", port=server.getsockname()[1], tls=True)
        assert read_certificate(url, timeout_s=0.3) is None


def test_a_server_that_speaks_no_tls():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            with server.accept()[0] as connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 400\r\n\r\n")

        talker = threading.Thread(target=answer, daemon=True)
        talker.start()
        assert read_certificate(BrokerURL(host="127.0.0.1", port=server.getsockname()[1], tls=True)) is None
        talker.join(5.0)
        assert not talker.is_alive()


def test_a_wrong_password_and_a_right_one(monkeypatch):
    with Mosquitto({"pi-1": "right"}) as broker:
        for password, code in (("wrong", 31), ("right", None)):
            monkeypatch.setenv("QUARL_MQTT_PASSWORD", password)
            reading = read_link(how_to_join(broker=f"mqtt://pi-1@127.0.0.1:{broker.port}"))
            assert (reading.error and reading.error.code) == code
    assert (reading.own, reading.foreign, reading.large) == ("came back", "came back", "came back")


def read_configured(folder, **settings):
    """Read the link to a real broker with these settings."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", "persistence false"]
    (folder / "mosquitto.conf").write_text(
        "\n".join([*lines, *(f"{key} {word}" for key, word in settings.items()), ""])
    )
    folder.chmod(0o755)
    with subprocess.Popen(
        [mosquitto_binary(), "-c", str(folder / "mosquitto.conf")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            return read_link(how_to_join(broker=f"mqtt://127.0.0.1:{port}", name="pi-1"))
        finally:
            process.terminate()
            process.wait(5)


def test_a_broker_that_takes_no_large_packets(tmp_path):
    reading = read_configured(tmp_path, max_packet_size=65_536)
    assert (reading.error, reading.own, reading.large, reading.foreign) == (None, "came back", "cut", "not tried")


@pytest.mark.parametrize(
    ("rules", "own", "foreign"),
    [("topic readwrite q/v1/default/d/pi-1/#", "came back", "denied"), ("topic read nothing", "denied", "not tried")],
)
def test_the_rules_of_a_real_broker(rules, own, foreign, tmp_path, monkeypatch):
    monkeypatch.setattr(link_readings, "ECHO_S", 1.0)
    (tmp_path / "acl").write_text(f"{rules}\n")
    (tmp_path / "acl").chmod(0o644)
    # Started by root it would become a user who may not enter this directory.
    reading = read_configured(tmp_path, user=getpass.getuser(), acl_file=tmp_path / "acl")
    assert (reading.error, reading.own, reading.foreign) == (None, own, foreign)
