"""A directory of credentials: what is read, and every way in which it can be wrong."""

import ssl
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarl_device.errors import BrokerUnreachable, CredentialsError, UsageError
from quarl_device.link import BrokerURL
from quarl_device.link import credentials as module
from quarl_device.link.credentials import Credentials, credentials_toml, find_credentials, told_apart
from quarl_edge.broker.authority import Authority, utc_now

NOW = utc_now()
AUTHORITY = Authority.create(now=NOW)
ISSUED = AUTHORITY.issue_client("pi-1", lifetime=timedelta(days=9), now=NOW)
URL = BrokerURL(host="broker.local", port=8883, tls=True)


def write(folder, *, name="pi-1", role="device", fleet="lab", issued=ISSUED, authority=AUTHORITY):
    folder.mkdir(exist_ok=True)
    (folder / "credentials.toml").write_text(credentials_toml(name=name, role=role, fleet=fleet, broker=URL))
    (folder / "client.crt").write_bytes(issued.certificate)
    (folder / "ca.crt").write_bytes(authority.certificate_pem)
    (folder / "client.key").write_bytes(issued.key)
    (folder / "client.key").chmod(0o600)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "pi-1")


def test_what_enrolment_wrote_is_read(folder):
    held = Credentials.load(folder)
    assert (held.name, held.role, held.fleet, held.broker) == ("pi-1", "device", "lab", URL)
    assert held.expires == ISSUED.expires
    assert (held.learner_key, held.signing_key) == (None, None)
    (folder / "learner.pub").write_text("00")
    assert held.learner_key == folder / "learner.pub"


def test_the_context_trusts_its_own_authority_alone_and_no_old_tls(folder):
    context = Credentials.load(folder).tls()
    assert [one["subject"] for one in context.get_ca_certs()] == [((("commonName", "quarl-edge broker authority"),),)]
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname


def test_no_secret_shows_in_what_is_printed(folder):
    secret = ISSUED.key.decode().splitlines()[1]
    assert secret not in repr(Credentials.load(folder)) + repr(ISSUED) + repr(AUTHORITY)


@pytest.mark.parametrize("file", ["credentials.toml", "client.key", "client.crt", "ca.crt"])
@pytest.mark.parametrize("harm", ["missing", "empty", "huge", "a directory", "noise"])
def test_whatever_is_wrong_with_a_file_is_code_43(folder, file, harm):
    path = folder / file
    path.unlink()
    if harm == "a directory":
        path.mkdir()
    elif harm != "missing":
        path.write_bytes({"empty": b"", "huge": b"#" * 100_000, "noise": b"\xff\x00=[" * 40}[harm])
        path.chmod(0o600)
    with pytest.raises(CredentialsError) as caught:
        Credentials.load(folder).tls()
    assert caught.value.code == 43


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_may_read_is_refused(folder, mode):
    (folder / "client.key").chmod(mode)
    with pytest.raises(CredentialsError, match=f"{mode:04o}") as caught:
        Credentials.load(folder)
    assert caught.value.hint == f"chmod 600 {folder / 'client.key'}"


@pytest.mark.parametrize(
    ("days", "said", "hint"), [(10, "expired on", "--renew"), (-2, "this host's clock says", "timedatectl")]
)
def test_a_certificate_out_of_its_time_is_refused(folder, days, said, hint):
    with pytest.raises(CredentialsError, match=said) as caught:
        Credentials.load(folder, now=NOW + timedelta(days=days))
    assert hint in caught.value.hint


def test_a_board_whose_clock_is_hours_behind_is_not_refused(folder):
    Credentials.load(folder, now=NOW - timedelta(hours=20))


def test_parts_of_two_clients_do_not_hold_together(tmp_path):
    other = AUTHORITY.issue_client("pi-2", lifetime=timedelta(days=1), now=NOW)
    with pytest.raises(CredentialsError, match="not that of 'pi-1'"):
        Credentials.load(write(tmp_path / "a", issued=other))
    folder = write(tmp_path / "b")
    (folder / "client.key").write_bytes(other.key)
    with pytest.raises(CredentialsError, match="do not hold together"):
        Credentials.load(folder).tls()


def test_an_encrypted_key_never_asks_at_the_terminal(folder):
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(ISSUED.key, password=None)
    locked = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"word")
    )
    (folder / "client.key").write_bytes(locked)
    with pytest.raises(CredentialsError):
        Credentials.load(folder).tls()


@pytest.mark.parametrize(
    "change",
    [
        {"role": "king"}, {"schema": "quarl.credentials.v9"}, {"name": "Pi 1"}, {"fleet": "a/b"}, {"fleet": "+"},
        {"broker": "http://x"}, {"broker": "mqtts://u:hunter2@h"}, {"more": "x"},
    ],
)  # fmt: skip
def test_what_the_file_says_is_checked(folder, change):
    said = {"schema": module.SCHEMA, "name": "pi-1", "role": "device", "fleet": "lab", "broker": "mqtts://h", **change}
    (folder / "credentials.toml").write_text("".join(f'{key} = "{value}"\n' for key, value in said.items()))
    with pytest.raises(CredentialsError) as caught:
        Credentials.load(folder)
    assert "hunter2" not in str(caught.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_refused_as_credentials_not_with_a_traceback(folder, data):
    (folder / "credentials.toml").write_bytes(data)
    with pytest.raises(CredentialsError):
        Credentials.load(folder)


@given(
    name=st.from_regex(r"[a-z0-9][a-z0-9-]{0,30}", fullmatch=True),
    fleet=st.from_regex(r"([a-z0-9][a-z0-9-]{0,30})?", fullmatch=True),
    role=st.sampled_from(module.ROLES),
    user=st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=8),
)
def test_what_is_written_reads_back(tmp_path_factory, name, fleet, role, user):
    path = tmp_path_factory.mktemp("toml") / "credentials.toml"
    broker = BrokerURL(host="h", port=1, user=user, tls=True)
    path.write_text(credentials_toml(name=name, role=role, fleet=fleet, broker=broker))
    said = module._read_toml(path)
    assert (said["name"], said["fleet"], said["role"]) == (name, fleet, role)
    assert BrokerURL.parse(said["broker"]) == broker


def test_the_fleet_is_the_enrolled_one(folder):
    held = Credentials.load(folder)
    assert held.fleet_or("", default="default") == "lab"
    assert held.fleet_or("lab", default="default") == "lab"
    with pytest.raises(UsageError, match="enrolled in fleet 'lab', not 'yard'"):
        held.fleet_or("yard", default="default")
    write(folder, role="learner", fleet="")
    everywhere = Credentials.load(folder)
    assert [everywhere.fleet_or(asked, default="default") for asked in ("", "yard")] == ["default", "yard"]


def test_the_broker_may_be_another_but_never_without_tls(folder):
    held = Credentials.load(folder)
    assert held.broker_or("") == URL
    assert held.broker_or("mqtts://pi-1@near:1").port == 1
    for wrong in ("mqtt://near", "mqtts://other@near"):
        with pytest.raises(UsageError):
            held.broker_or(wrong)


@pytest.mark.parametrize("other", [False, True])
def test_an_error_of_another_broker_than_theirs_says_so(folder, other):
    held = Credentials.load(folder)
    asked = BrokerURL.parse("mqtts://elsewhere:1") if other else held.broker
    with pytest.raises(BrokerUnreachable) as caught, told_apart(held, asked):
        raise BrokerUnreachable("nothing answers", hint="is it running?")
    named = f"the credentials name {held.broker.address}; --broker names elsewhere:1"
    assert caught.value.hint == (named if other else "is it running?")


def test_a_folder_that_may_not_be_looked_into_is_said(folder, monkeypatch):
    def denied(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", denied)
        patch.setattr("quarl_device.files._open_without_waiting", denied)
        with pytest.raises(CredentialsError, match=r"credentials.toml: Permission denied"):
            Credentials.load(folder)


def test_the_variable_names_them_where_nothing_else_does(folder, monkeypatch, tmp_path):
    monkeypatch.delenv("QUARL_CREDENTIALS", raising=False)
    assert find_credentials(None) is None
    monkeypatch.setenv("QUARL_CREDENTIALS", str(folder))
    assert find_credentials(None).name == "pi-1"
    monkeypatch.setenv("QUARL_CREDENTIALS", str(tmp_path / "none"))
    assert find_credentials(folder).name == "pi-1"
    with pytest.raises(CredentialsError, match="no such directory"):
        find_credentials(None)
    monkeypatch.setenv("QUARL_CREDENTIALS", "")
    assert find_credentials(None) is None


@pytest.mark.parametrize(("days", "warned"), [(29, True), (40, False)])
def test_the_last_month_of_a_certificate_is_said(tmp_path, caplog, days, warned):
    issued = AUTHORITY.issue_client("pi-1", lifetime=timedelta(days=days), now=utc_now())
    find_credentials(write(tmp_path / "pi-1", issued=issued))
    assert ("quarl-edge enroll pi-1 --renew" in caplog.text) is warned


def test_the_documented_files_are_the_files():
    documented = (Path(module.__file__).read_text()).partition('"""')[2].partition('"""')[0]
    names = (module.TOML_FILE, module.KEY_FILE, module.CERTIFICATE_FILE, module.CA_FILE)
    assert all(f"`{name}`" in documented for name in (*names, module.LEARNER_PUBLIC_FILE, module.SIGNING_KEY_FILE))
