"""Who is let in by certificate, what a client that is not hears, and how one is shut out while it is connected."""

import json
import logging
import signal
import socket
import ssl
import subprocess
import sys
import time
from datetime import timedelta

import pytest
from runs_helper import DEVICE, edge, last_json
from secured_broker import SecuredBroker, free_port

from quarl_device.errors import BrokerNotTrusted, BrokerRefused, BrokerUnreachable, CertificateRefused, LinkError
from quarl_device.link import BrokerURL, PahoLink, Will
from quarl_device.link.credentials import CA_FILE, CERTIFICATE_FILE, KEY_FILE, tls_context
from quarl_device.testing.link_conformance import Heard, until
from quarl_edge.broker.authority import Authority, utc_now
from quarl_edge.broker.directory import BrokerDirectory
from quarl_edge.broker.revocation import revoke_client

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def broker():
    with SecuredBroker({"pi-1": ("device", "default")}) as running:
        yield running


def context_of(folder, issued, authority):
    (folder / KEY_FILE).write_bytes(issued.key)
    (folder / CERTIFICATE_FILE).write_bytes(issued.certificate)
    (folder / CA_FILE).write_bytes(authority)
    return tls_context(folder)


def stranger(case, broker, tmp_path):
    """A context that the broker must refuse."""
    authority, ca, now = broker.directory.authority(), broker.directory.ca_certificate.read_bytes(), utc_now()
    if case == "none":
        return ssl.create_default_context(cafile=str(broker.directory.ca_certificate))
    if case == "foreign":
        issued = Authority.create(now=now).issue_client("pi-1", lifetime=timedelta(days=1), now=now)
    elif case == "expired":
        issued = authority.issue_client("pi-1", lifetime=timedelta(seconds=-5), now=now)
    elif case == "server's":
        issued = authority.issue_server(["pi-1"], lifetime=timedelta(days=1), now=now)
    else:
        made = broker.enroll("lost")
        context = tls_context(made.folder)
        revoke_client(broker.directory, "lost")
        return context
    return context_of(tmp_path, issued, ca)


SAID = {
    "none": "it wants a client certificate and none was given",
    "foreign": "an authority that the broker does not know",
    "expired": "this client's certificate has expired",
    "server's": "this client's certificate",
    "revoked": "this client's certificate is revoked",
}


@pytest.mark.parametrize("most", [ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2], ids=["1.3", "1.2"])
@pytest.mark.parametrize("case", SAID)
def test_who_is_no_client_is_told_why_with_code_37(broker, case, most, tmp_path):
    context = stranger(case, broker, tmp_path)
    context.maximum_version = most
    link = broker.link("pi-1", tls=context)
    began = time.monotonic()
    with pytest.raises(CertificateRefused) as caught:
        link.connect(timeout_s=10.0)
    assert time.monotonic() - began < 8
    assert caught.value.code == 37
    if (case, most) != ("none", ssl.TLSVersion.TLSv1_2):  # which says no more than that the handshake failed
        assert SAID[case] in caught.value.message
    assert caught.value.hint
    if case == "revoked":
        broker.directory.enroll("lost", role="device", fleet="default")  # the name is free again
        revoke_client(broker.directory, "lost")


def test_an_older_tls_is_refused(broker):
    context = broker.credentials("pi-1").tls()
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises((BrokerUnreachable, BrokerRefused)):
        broker.link("pi-1", tls=context).connect(timeout_s=1.0)


@pytest.mark.parametrize("host", ["127.0.0.2", "other"])
def test_a_broker_under_another_name_is_not_trusted(broker, host, monkeypatch):
    link = broker.link("pi-1")
    link.url = BrokerURL(host="127.0.0.1", port=broker.port, tls=True)
    real = ssl.SSLContext.wrap_socket
    monkeypatch.setattr(
        ssl.SSLContext, "wrap_socket", lambda self, sock, server_hostname=None: real(self, sock, server_hostname=host)
    )
    with pytest.raises(BrokerNotTrusted) as caught:
        link.connect(timeout_s=10.0)
    assert caught.value.code == 38
    assert "mismatch" in caught.value.message
    assert "--host NAME" in caught.value.hint


def test_a_broker_of_another_authority_is_not_trusted(broker, tmp_path):
    now = utc_now()
    other = Authority.create(now=now)
    issued = other.issue_client("pi-1", lifetime=timedelta(days=1), now=now)
    link = broker.link("pi-1", tls=context_of(tmp_path, issued, other.certificate_pem))
    with pytest.raises(BrokerNotTrusted) as caught:
        link.connect(timeout_s=10.0)
    assert "'pi-1' refused the broker at" in caught.value.message
    assert "--credentials" in caught.value.hint


def test_plain_tcp_at_the_tls_port_hears_of_mqtts(broker):
    link = PahoLink(BrokerURL(host="127.0.0.1", port=broker.port), client_id="pi-1")
    with pytest.raises(BrokerUnreachable, match="mqtts://"):
        link.connect(timeout_s=1.0)


def test_a_client_is_enrolled_and_let_in_while_the_broker_runs(broker):
    made = broker.enroll("late")
    # By the command itself, whose last act is to tell the broker.
    done = edge("enroll", "later", "--broker-dir", broker.path, "--broker", broker.url, "--format", "json", cwd="/")
    assert done.returncode == 0, done.stderr
    assert last_json(done)["credentials"] == str(broker.directory.credentials_of("later"))
    for name in ("late", "later"):
        link, heard = broker.link(name), Heard()
        link.subscribe(f"q/v1/default/d/{name}/up/state", heard)
        link.connect(timeout_s=10.0)
        assert until(lambda link=link, name=name, heard=heard: _heard_itself(link, name, heard))
        link.close()
    assert made.folder.exists()


def _heard_itself(link, name, heard):
    link.publish(f"q/v1/default/d/{name}/up/state", b"here")
    return heard.wait(1, timeout_s=0.2)


def test_an_open_session_of_a_revoked_client_is_ended_and_stays_ended(broker, caplog):
    caplog.set_level(logging.WARNING)
    broker.enroll("thief")
    state = "q/v1/default/d/thief/up/state"
    watcher, heard = broker.link("controller"), Heard()
    watcher.subscribe(state, heard)
    watcher.connect(timeout_s=10.0)
    link = broker.link("thief", will=Will(topic=state, payload=b"gone", retain=False))
    link.connect(timeout_s=10.0)
    done = edge("revoke", "thief", "--broker-dir", broker.path, "--format", "json", cwd="/")
    assert done.returncode == 0, done.stderr
    assert last_json(done) == {"name": "thief", "revoked": True, "broker_running": True}
    assert not link.connected
    assert [message.payload for message in heard.wait(1)] == [b"gone"], "others see it go"
    assert not until(lambda: link.connected, timeout_s=1.5)
    assert link.counters.connections == 1
    assert "this client's certificate is revoked" in caplog.text
    link.close()
    assert "user thief" not in broker.directory.acl.read_text()
    for other in (watcher, broker.link("pi-1")):
        if not other.connected:
            other.connect(timeout_s=10.0)
        assert other.connected, "nobody else is hurt"
        other.close()


def test_revoking_twice_and_offline_is_the_same(broker):
    broker.enroll("spare")
    revoke_client(broker.directory, "spare")
    revoke_client(broker.directory, "spare")
    entries = [entry for entry in broker.directory.register() if entry.name == "spare"]
    assert len(entries) == 1
    assert entries[0].revoked


def test_a_session_without_rights_can_do_nothing_even_where_it_could_not_be_ended(broker, monkeypatch):
    broker.enroll("stays")
    link = broker.link("stays")
    link.connect(timeout_s=10.0)
    watcher, heard = broker.link("controller"), Heard()
    watcher.subscribe("q/v1/default/d/+/up/xp", heard)
    watcher.connect(timeout_s=10.0)

    def fail(*_):
        raise LinkError("cannot reach it")

    monkeypatch.setattr("quarl_edge.broker.revocation.end_session", fail)
    with pytest.raises(LinkError):
        revoke_client(broker.directory, "stays")

    def silenced():
        before = len(heard.messages)
        link.publish("q/v1/default/d/stays/up/xp", b"still here")
        link.flush(timeout_s=5.0)
        time.sleep(0.1)
        return len(heard.messages) == before

    assert until(silenced)
    assert link.connected
    link.close()
    watcher.close()


def test_end_session_says_where_a_client_is_still_let_in(broker):
    from quarl_edge.broker.running import end_session, find_running

    broker.enroll("kept")
    link = broker.link("kept")
    link.connect(timeout_s=10.0)
    running = find_running(broker.directory)
    assert (running.pid, running.listen.port, running.engine) == (broker.process.pid, broker.port, "mosquitto")
    with pytest.raises(LinkError, match="still lets 'kept' in"):
        end_session(broker.directory, running, "kept")
    link.close()


def test_what_is_retained_outlives_the_broker_and_signals_are_passed_on():
    with SecuredBroker() as broker:
        link = broker.link("learner")
        link.connect(timeout_s=10.0)
        link.publish("q/v1/default/learner", b"birth", retain=True)
        assert link.flush(timeout_s=10.0)
        link.close()
        broker.process.send_signal(signal.SIGHUP)
        assert not until(lambda: broker.process.poll() is not None, timeout_s=0.5)
        other = broker.link("controller")
        other.connect(timeout_s=10.0)
        other.close()
        assert broker.end(signal.SIGINT) == 0
        broker.start()
        link, heard = broker.link("learner"), Heard()
        link.subscribe("q/v1/default/learner", heard)
        link.connect(timeout_s=10.0)
        assert [message.payload for message in heard.wait(1)] == [b"birth"]
        link.close()


@pytest.mark.parametrize("engine", ["mosquitto", "amqtt"])
def test_the_broker_never_outlives_its_command(engine):
    with SecuredBroker(engine=engine) as broker:
        link = broker.link("learner")
        link.connect(timeout_s=10.0)
        broker.end(signal.SIGKILL)
        assert until(lambda: not link.connected)
        with pytest.raises(BrokerUnreachable):
            broker.link("controller").connect(timeout_s=1.0)
        link.close()


@pytest.mark.parametrize("engine", ["mosquitto", "amqtt"])
def test_two_brokers_on_one_directory_or_one_port_are_refused_with_code_36(broker, engine, tmp_path):
    words = [sys.executable, "-m", "quarl_edge", "broker", "up", "--format", "json", "--engine", engine]
    fresh = BrokerDirectory.init(tmp_path / "fresh").path
    for folder, port, said in ((broker.path, free_port(), "runs on"), (fresh, broker.port, "cannot listen at")):
        done = subprocess.run(
            [*words, folder, "--listen", f"127.0.0.1:{port}"], capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 36, done.stderr
        assert said in json.loads(done.stdout.splitlines()[-1])["error"]["message"]


def test_amqtt_ends_a_revoked_session_too():
    with SecuredBroker({"pi-1": ("device", "default")}, engine="amqtt") as broker:
        link, other = broker.link("pi-1"), broker.link("learner")
        link.connect(timeout_s=10.0)
        other.connect(timeout_s=10.0)
        assert revoke_client(broker.directory, "pi-1")
        assert until(lambda: not link.connected)
        assert not until(lambda: link.connected, timeout_s=1.0)
        assert other.connected
        link.close()
        other.close()


def test_a_device_says_by_its_exit_code_that_it_is_not_let_in(broker):
    made = broker.enroll("shut")
    kept = {path.name: path.read_bytes() for path in made.folder.iterdir()}
    revoke_client(broker.directory, "shut")
    made.folder.mkdir()
    for name, data in kept.items():
        (made.folder / name).write_bytes(data)
        (made.folder / name).chmod(0o600)
    done = subprocess.run(
        [*DEVICE, "run", "--credentials", made.folder, "--format", "json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 37, done.stderr
    assert json.loads(done.stdout)["error"]["kind"] == "CertificateRefused"


def shown_by(broker):
    """The certificate that the broker shows to a client."""
    context = broker.credentials("controller").tls()
    with (
        socket.create_connection(("127.0.0.1", broker.port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        return secured.getpeercert(binary_form=True)


@pytest.mark.parametrize("engine", ["mosquitto", "amqtt"])
def test_a_running_broker_shows_the_renewed_certificate(engine):
    with SecuredBroker(engine=engine) as broker:
        before = shown_by(broker)
        edge("broker", "init", broker.path, "--host", "new.local", cwd="/")
        wanted = ssl.PEM_cert_to_DER_cert(
            "-----BEGIN CERTIFICATE-----" + broker.directory.server.read_text().split("-----BEGIN CERTIFICATE-----")[1]
        )
        assert wanted != before
        assert until(lambda: shown_by(broker) == wanted, timeout_s=10.0)
        link = broker.link("controller")
        link.connect(timeout_s=5.0)
        link.close()
