"""A broker's directory: made once, brought up to date, never half written, never open to others."""

import os
import shutil
import signal
import stat
import threading
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509

from quarl_device.errors import AuthorityError, QuarlError, UsageError
from quarl_device.link import BrokerURL
from quarl_device.link.credentials import Credentials
from quarl_device.wire.keys import LearnerKey, PublicKey
from quarl_edge.broker import directory as module
from quarl_edge.broker import disk, foreground
from quarl_edge.broker.address import Address
from quarl_edge.broker.directory import BrokerDirectory
from quarl_edge.broker.mosquitto import configuration, find_mosquitto


@pytest.fixture
def made(tmp_path):
    return BrokerDirectory.init(tmp_path / "broker", hosts=["hub.local"])


def snapshot(path):
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_init_twice_changes_nothing(made):
    before = snapshot(made.path)
    again = BrokerDirectory.init(made.path)
    assert snapshot(again.path) == before
    assert again.hosts() == ("hub.local", "localhost", "127.0.0.1", "::1")


def test_a_further_host_renews_the_brokers_certificate_alone(made):
    before = snapshot(made.path)
    BrokerDirectory.init(made.path, hosts=["10.0.0.7"])
    after = snapshot(made.path)
    assert {name for name in after if after[name] != before[name]} == {"server.pem"}
    assert made.hosts()[:2] == ("10.0.0.7", "hub.local")


def test_a_certificate_in_its_last_month_is_renewed(made, monkeypatch):
    before = snapshot(made.path)
    soon = module.utc_now() + timedelta(days=module.DEFAULT_DAYS - 29)
    monkeypatch.setattr(module, "utc_now", lambda: soon)
    BrokerDirectory.init(made.path)
    assert snapshot(made.path)["server.pem"] != before["server.pem"]
    assert snapshot(made.path)["ca.crt"] == before["ca.crt"]


def test_a_new_authority_is_made_when_asked_for_alone_and_learners_keep_their_signing_key(made):
    before = snapshot(made.path)
    made.enroll("pi-1", role="device", fleet="lab")
    BrokerDirectory.init(made.path, replace_ca=True)
    after = snapshot(made.path)
    changed = {"ca.crt", "ca.key", "server.pem", "clients/learner/client.key", "clients/controller/ca.crt", "crl.pem"}
    assert all(after[name] != before[name] for name in changed)
    assert after["clients/learner/signing.key"] == before["clients/learner/signing.key"]
    assert [entry.name for entry in made.register().current()] == ["learner", "controller"]


def test_what_is_secret_is_ours_alone(made):
    made.enroll("pi-1", role="device", fleet="lab")
    for path in made.path.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.suffix == ".key" or path.name in ("acl", "enrolled.json", "clients", "signing"):
            assert mode & 0o077 == 0, path
        assert mode & 0o022 == 0, path


def test_a_devices_credentials_say_everything_that_it_needs(made):
    done = made.enroll("pi-1", role="device", fleet="lab", days=10)
    held = Credentials.load(done.folder)
    assert (held.name, held.fleet, str(held.broker)) == ("pi-1", "lab", "mqtts://hub.local:8883")
    assert held.expires <= module.utc_now() + timedelta(days=10)
    held.tls()
    learner = Credentials.load(made.credentials_of("learner"))
    signing = LearnerKey.load_or_create(learner.signing_key)
    assert PublicKey.from_file(held.learner_key) == signing.public
    assert not (done.folder / "signing.key").exists()
    assert not (made.credentials_of("controller") / "signing.key").exists()


def test_a_learner_of_a_fleet_is_the_one_that_its_devices_trust(made):
    made.enroll("lab-2", role="learner", fleet="lab")
    near, far = (made.enroll(name, role="device", fleet=fleet) for name, fleet in (("a", "lab"), ("b", "yard")))
    keys = {name: LearnerKey.load_or_create(made.credentials_of(name) / "signing.key") for name in ("lab-2", "learner")}
    assert PublicKey.from_file(near.folder / "learner.pub") == keys["lab-2"].public
    assert PublicKey.from_file(far.folder / "learner.pub") == keys["learner"].public


def test_a_key_given_by_hand_is_the_one_that_is_trusted(made):
    key = LearnerKey.generate().public
    done = made.enroll("pi-1", role="device", fleet="lab", learner_key=key)
    assert PublicKey.from_file(done.folder / "learner.pub") == key


def test_a_name_is_given_once_unless_renewed(made):
    first = made.enroll("pi-1", role="device", fleet="lab")
    key = (first.folder / "client.key").read_bytes()
    with pytest.raises(UsageError, match=r"enrolled already, as device of lab.*--renew"):
        made.enroll("pi-1", role="device", fleet="lab")
    for name in ("learner", "controller"):
        with pytest.raises(UsageError):
            made.enroll(name, role="device", fleet="lab")
    assert (first.folder / "client.key").read_bytes() == key
    made.enroll("pi-1", role="device", fleet="lab", renew=True)
    assert (first.folder / "client.key").read_bytes() != key
    assert made.acl.read_text().count("user pi-1\n") == 1
    made.revoke("pi-1")
    assert [bool(entry.revoked) for entry in made.register() if entry.name == "pi-1"] == [True, True]


@pytest.mark.parametrize(("name", "fleet"), [("Pi", "lab"), ("a/b", "lab"), ("", "lab"), ("pi", "+"), ("pi", "")])
def test_bad_names_leave_nothing_behind(made, name, fleet):
    before = snapshot(made.path)
    with pytest.raises(UsageError):
        made.enroll(name, role="device", fleet=fleet)
    assert snapshot(made.path) == before


def test_revoking_removes_the_credentials_and_lists_the_serial(made):
    done = made.enroll("pi-1", role="device", fleet="lab")
    made.revoke("pi-1")
    listed = x509.load_pem_x509_crl(made.revoked.read_bytes())
    assert [f"{entry.serial_number:x}" for entry in listed] == [done.entry.serial]
    assert not done.folder.exists()
    assert "user pi-1" in made.acl.read_text(), "its rights go with `write_rules`, after its session"
    made.write_rules()
    assert "user pi-1" not in made.acl.read_text()
    assert '"pi-1"' not in (made.path / "acl.conf").read_text()


def test_enrolments_at_once_are_all_kept(made):
    threads = [
        threading.Thread(target=made.enroll, args=(f"pi-{n}",), kwargs={"role": "device", "fleet": "lab"})
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    names = {f"pi-{n}" for n in range(8)}
    assert names <= {entry.name for entry in made.register()}
    assert all(f"user {name}\n" in made.acl.read_text() for name in names)


@pytest.mark.parametrize("at", ["client.crt", "enrolled.json", "acl"])
def test_an_enrolment_that_fails_leaves_whole_files_and_can_be_repeated(made, monkeypatch, at):
    real = disk.write_atomic

    def failing(path, *args, **options):
        if path.name == at:
            raise AuthorityError("disk full")
        return real(path, *args, **options)

    monkeypatch.setattr(disk, "write_atomic", failing)
    monkeypatch.setattr("quarl_edge.broker.enrolment.write_atomic", failing)
    with pytest.raises(AuthorityError, match="disk full"):
        made.enroll("pi-1", role="device", fleet="lab")
    monkeypatch.undo()
    folder = made.credentials_of("pi-1")
    assert not folder.exists() or Credentials.load(folder).tls()
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]
    made.enroll("pi-1", role="device", fleet="lab", renew=True)
    Credentials.load(folder).tls()
    assert "user pi-1\n" in made.acl.read_text()


def test_credentials_stay_where_new_ones_cannot_take_their_place(made, monkeypatch):
    folder = made.enroll("pi-1", role="device", fleet="lab").folder
    before, real = snapshot(folder), Path.rename

    def rename(self, target):
        if target == folder and not self.name.endswith(".old"):
            raise OSError(5, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(AuthorityError, match="Input/output error"):
        made.enroll("pi-1", role="device", fleet="lab", renew=True)
    assert snapshot(folder) == before
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []


def test_rules_are_not_written_while_an_enrolment_is_under_way(made, monkeypatch):
    monkeypatch.setattr(disk, "_LOCK_WAIT_S", 0.1)
    with disk.locked(made.path), pytest.raises(AuthorityError, match="has been locked"):
        made.write_rules()
    made.write_rules()


def test_a_reload_asked_for_while_mosquitto_starts_is_made_up_for(made, monkeypatch):
    reloads = []

    class Starting:
        def __init__(self, *_):
            os.kill(os.getpid(), signal.SIGHUP)

        def reload(self):
            reloads.append("reload")

        def wait(self):
            return 3

        def stop(self):
            pass

    monkeypatch.setattr(foreground, "find_mosquitto", lambda: "mosquitto")
    monkeypatch.setattr(foreground, "MosquittoServer", Starting)
    with pytest.raises(QuarlError, match="status 3"):
        foreground.run_broker(made, Address(host="127.0.0.1", port=1), engine="mosquitto", ready=lambda _: None)
    assert reloads == ["reload"]


def test_without_the_authoritys_key_nobody_is_enrolled_but_the_broker_still_starts(made, tmp_path):
    (made.path / "ca.key").rename(tmp_path / "kept")
    with pytest.raises(AuthorityError, match="not found"):
        made.enroll("pi-1", role="device", fleet="lab")
    again = BrokerDirectory.init(made.path)
    again.write_rules()
    with pytest.raises(AuthorityError):
        BrokerDirectory.init(made.path, hosts=["new.local"])


def test_an_authoritys_key_that_is_open_to_others_is_refused(made):
    (made.path / "ca.key").chmod(0o644)
    with pytest.raises(AuthorityError, match="open to others") as caught:
        made.enroll("pi-1", role="device", fleet="lab")
    assert "chmod 600" in caught.value.hint


def test_what_is_no_brokers_directory_is_code_44(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(AuthorityError, match="no broker's directory") as caught:
            BrokerDirectory(path)
        assert caught.value.hint == f"quarl-edge broker init {path}"
    (tmp_path / "file").write_text("")
    with pytest.raises(AuthorityError):
        BrokerDirectory.init(tmp_path / "file")


def test_a_bad_host_makes_nothing(tmp_path):
    with pytest.raises(UsageError):
        BrokerDirectory.init(tmp_path / "broker", hosts=["a b"])
    assert not (tmp_path / "broker").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a broker as another user")
def test_root_hears_where_the_brokers_user_cannot_come(made, tmp_path):
    tmp_path.chmod(0o700)
    with pytest.raises(AuthorityError, match="cannot reach") as caught:
        made.hand_over()
    assert "elsewhere" in caught.value.hint


@pytest.mark.parametrize("file", ["server.pem", "acl", "crl.pem"])
def test_a_file_that_the_broker_could_not_read_is_named_before_it_starts(made, file, monkeypatch):
    monkeypatch.setattr(module, "broker_user", lambda: None)
    made.hand_over()
    (made.path / file).unlink()
    with pytest.raises(AuthorityError, match=f"{file} is missing") as caught:
        made.hand_over()
    assert "broker init" in caught.value.hint
    BrokerDirectory.init(made.path)
    made.hand_over()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a broker as another user")
def test_root_never_gives_away_what_the_brokers_user_has_linked_to(made, tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("root's")
    made.data.mkdir(exist_ok=True)
    (made.data / "mosquitto.db").symlink_to(kept)
    made.revoked.unlink()
    made.revoked.symlink_to(kept)
    with pytest.raises(AuthorityError, match="cannot reach"):
        made.hand_over()
    assert kept.stat().st_uid == 0


LISTEN = Address(host="0.0.0.0", port=8883)  # noqa: S104


def settings_of(made):
    lines = configuration(made, LISTEN).splitlines()
    return dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))


def test_mosquittos_configuration_is_hardened(made):
    said = settings_of(made)
    assert said["listener"] == "8883 0.0.0.0"
    for name in ("require_certificate", "use_identity_as_username", "use_username_as_clientid", "set_tcp_nodelay"):
        assert said[name] == "true"
    assert said["allow_anonymous"] == "false"
    assert said["tls_version"] == "tlsv1.2"
    assert said["crlfile"] == str(made.revoked)
    assert int(said["max_packet_size"]) >= 2 * 1024 * 1024
    assert int(said["autosave_interval"]) <= 60
    assert {"max_inflight_messages", "max_queued_messages", "max_queued_bytes", "persistence_location"} <= set(said)


def test_a_line_break_in_the_directorys_name_never_reaches_a_configuration(tmp_path):
    with pytest.raises(UsageError, match="line break"):
        BrokerDirectory.init(tmp_path / "a\nallow_anonymous true")


def test_a_missing_mosquitto_is_code_82_with_the_line_that_installs_it(monkeypatch):
    from quarl_device.errors import MissingTool

    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(MissingTool) as caught:
        find_mosquitto()
    assert caught.value.code == 82
    assert caught.value.hint == "sudo apt-get install -y mosquitto"


@pytest.mark.parametrize(
    ("text", "nearby", "local"),
    [
        ("0.0.0.0:8883", ("127.0.0.1", 8883), False), ("[::]:1", ("::1", 1), False),
        ("127.0.0.1:9", ("127.0.0.1", 9), True),
        ("localhost", ("localhost", 8883), True), ("hub.local:1", ("hub.local", 1), False),
    ],
)  # fmt: skip
def test_addresses(text, nearby, local):
    address = Address.parse(text)
    assert (address.nearby, address.local_only) == (nearby, local)


@pytest.mark.parametrize("text", ["", ":", "a:b", "a:99999", "a/b", "mqtts://a", "a b:1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(UsageError):
        Address.parse(text)


def test_credentials_may_name_another_broker(made):
    done = made.enroll("pi-1", role="device", fleet="lab", broker=BrokerURL.parse("mqtts://far.example:9"))
    assert str(Credentials.load(done.folder).broker) == "mqtts://far.example:9"


class Killed(BaseException):
    """A kill: nothing of ours cleans up after it."""


def killed_at(monkeypatch, number, work):
    """Run `work` up to the `number`-th rename or fsync; returns whether it came that far."""
    calls = 0

    def counting(real):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls >= number:
                raise Killed
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patched:
        for name in ("rename", "replace", "fsync", "unlink", "rmdir"):
            patched.setattr(os, name, counting(getattr(os, name)))
        try:
            work()
        except Killed:
            return True
        return False


def whole(path):
    """Check everything that a broker and its own clients need; returns the directory."""
    directory = BrokerDirectory(path)
    directory.check_served()
    for name in ("learner", "controller"):
        folder = directory.credentials_of(name)
        Credentials.load(folder).tls()
        authority = x509.load_pem_x509_certificate(directory.ca_certificate.read_bytes())
        shown = x509.load_pem_x509_certificate((folder / "client.crt").read_bytes())
        shown.verify_directly_issued_by(authority)
        assert f"user {name}\n" in directory.acl.read_text()
        assert f"{shown.serial_number:x}" in {entry.serial for entry in directory.register() if not entry.revoked}
    assert not [one for one in (path / "clients").iterdir() if one.name.startswith(".")]
    return directory


def test_an_init_that_was_killed_anywhere_is_finished_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # for speed
    for number in range(1, 200, 2):
        path = tmp_path / str(number)
        if not killed_at(monkeypatch, number, lambda path=path: BrokerDirectory.init(path)):
            break
        BrokerDirectory.init(path)
        whole(path)
    assert 20 < number < 199


@pytest.mark.parametrize("replace_ca", [False, True])
def test_an_update_that_was_killed_anywhere_leaves_what_works_or_says_what_to_do(
    made, tmp_path, monkeypatch, replace_ca
):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # for speed
    for number in range(1, 200, 2):
        path = tmp_path / str(number)
        shutil.copytree(made.path, path)
        change = partial(BrokerDirectory.init, path, hosts=["new.local"], replace_ca=replace_ca)
        if not killed_at(monkeypatch, number, change):
            break
        if not replace_ca:
            whole(path)
        elif (path / "replacing").exists():
            with pytest.raises(AuthorityError, match="new authority") as caught:
                BrokerDirectory(path)
            assert "broker init" in caught.value.hint
        BrokerDirectory.init(path)
        whole(path)
    assert 3 < number < 199


def test_credentials_that_a_kill_left_moved_aside_come_back(made):
    folder = made.enroll("pi-1", role="device", fleet="lab").folder
    folder.rename(folder.with_name(".pi-1.abcdefgh.old"))
    (folder.parent / ".pi-1.ijklmnop").mkdir()
    BrokerDirectory.init(made.path)
    Credentials.load(folder).tls()
    assert sorted(path.name for path in folder.parent.iterdir()) == ["controller", "learner", "pi-1"]


def test_credentials_that_were_moved_are_not_made_again(made):
    shutil.move(made.credentials_of("learner"), made.path / "elsewhere")
    BrokerDirectory.init(made.path)
    assert not made.credentials_of("learner").exists()
    assert [entry.name for entry in made.register()] == ["learner", "controller"]


def test_a_revoked_learner_stays_out(made):
    made.revoke("learner")
    BrokerDirectory.init(made.path)
    assert made.register().find("learner") is None
    assert not made.credentials_of("learner").exists()
    assert "user learner\n" not in made.acl.read_text()


@pytest.mark.parametrize("file", ["ca.crt", "server.pem", "crl.pem"])
def test_files_of_another_authority_are_told_before_a_broker_starts(made, tmp_path, file):
    other = BrokerDirectory.init(tmp_path / "other")
    shutil.copy(other.path / file, made.path / file)
    with pytest.raises(AuthorityError, match="not of the authority") as caught:
        made.check_served()
    assert f"broker init {made.path}" in caught.value.hint
    if file != "ca.crt":
        BrokerDirectory.init(made.path)
        made.check_served()


def test_a_key_and_a_certificate_that_do_not_fit_are_told(made, tmp_path):
    other = BrokerDirectory.init(tmp_path / "other").server.read_bytes()
    key, mark, _ = other.partition(b"-----BEGIN CERTIFICATE-----")
    made.server.write_bytes(key + mark + made.server.read_bytes().partition(mark)[2])
    with pytest.raises(AuthorityError, match="do not belong together"):
        made.check_served()


def test_a_renewal_keeps_the_role(made):
    made.enroll("pi-1", role="device", fleet="lab")
    before = snapshot(made.path)
    with pytest.raises(UsageError, match="enrolled as a device"):
        made.enroll("pi-1", role="controller", fleet="", renew=True)
    assert snapshot(made.path) == before
