"""What an installation does on a board, in which order, and what it does not do again."""

import fcntl
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from install_scene import BOARD, FILES, NEWER, WHEEL, board, fresh, installed, make_bundle, run

from quarl_device.deploy.slots import Slots
from quarl_device.errors import BoardUnfit, UsageError
from quarl_device.install import layout
from quarl_device.install.bundle import read_bundle
from quarl_device.install.checks import check_board, check_rights
from quarl_device.install.doing import runtime_words
from quarl_device.install.installing import StepFailed
from quarl_device.install.lock import only_one
from quarl_device.install.removing import remove
from quarl_device.install.wanted import Order, release_name


@pytest.fixture
def bundle(tmp_path):
    return make_bundle(tmp_path / "bundle")


def states(events):
    return {step: state for step, state, _ in events if state != "goes on"}


def test_a_first_installation(bundle):
    host, events = fresh(), []
    result = run(bundle, host, events=events)
    assert (result.result, result.previous, result.supervised_by, result.command) == ("installed", None, "systemd", "")
    assert states(events) == {
        "bundle": "done",
        "board": "done",
        "user": "done",
        "release": "done",
        "stop": "unchanged",
        "config": "done",
        "coral": "unchanged",
        "unit": "done",
        "switch": "done",
        "start": "done",
        "tidy": "done",
    }
    assert host.life.release == result.release
    assert host.enabled
    found = {path: (host.entry(path).mode, host.entry(path).owner) for path in (layout.PASSWORD, layout.DEVICE_TOML)}
    assert found == {layout.PASSWORD: (0o600, "quarl-edge"), layout.DEVICE_TOML: (0o644, "root")}
    assert host.entry(layout.CREDENTIALS).mode == 0o700
    assert host.entry(f"{layout.CREDENTIALS}/client.key").mode == 0o600
    assert host.entry(layout.STATE).owner == "quarl-edge"


def test_nothing_is_done_twice(bundle):
    host = fresh()
    first = run(bundle, host)
    before, starts, life = installed(host), host.starts, host.life
    host.before = pytest.fail
    events = []
    again = run(bundle, host, events=events)
    assert (again.result, again.release, again.previous) == ("unchanged", first.release, first.release)
    assert installed(host) == before
    assert host.starts == starts
    assert host.life is life
    assert {state for _, state, _ in events[2:]} == {"unchanged"}


def test_no_secret_is_told_or_on_a_command_line(bundle):
    host, events = fresh(), []
    run(bundle, host, events=events)
    shown = repr(events) + repr(host.ran)
    assert "secret key" not in shown
    assert "secret password" not in shown


def test_a_dry_run_changes_nothing(bundle):
    host, events = fresh(), []
    host.before = pytest.fail
    result = run(bundle, host, facts=board(root=False), dry_run=True, events=events)
    assert result.result == "planned"
    assert states(events)["start"] == "planned"
    assert states(events)["coral"] == "unchanged"


def test_an_upgrade_keeps_the_one_before_and_no_other(tmp_path, bundle):
    host = fresh()
    names = [run(bundle, host).release]
    for number in (2, 3):
        folder = make_bundle(tmp_path / str(number), {**FILES, WHEEL: f"wheel {number}".encode()})
        result = run(folder, host)
        assert result.previous == names[-1]
        names.append(result.release)
    assert len(set(names)) == 3
    assert set(host.names(layout.RELEASES)) == set(names[1:])
    assert host.link_target(layout.PREVIOUS) == f"releases/{names[1]}"


def test_a_new_configuration_makes_no_release_and_starts_the_agent_anew(tmp_path, bundle):
    host = fresh()
    release = run(bundle, host).release
    events = []
    changed = make_bundle(tmp_path / "changed", {**FILES, "device.toml": b'mode = "deploy"\n'})
    assert run(changed, host, events=events).release == release
    assert states(events)["release"] == "unchanged"
    assert states(events)["stop"] == states(events)["start"] == "done"
    assert host.life.config == b'mode = "deploy"\n'
    assert set(host.names(layout.HOME)) == {"current", "releases"}
    assert run(changed, host).result == "unchanged"


def test_a_new_policy_alone_is_handed_to_the_agent_that_runs(tmp_path, bundle):
    host = fresh()
    run(bundle, host)
    starts = host.starts
    folder = make_bundle(tmp_path / "policy", {**FILES, "policy.qpol": b"a policy"})
    assert run(folder, host).result == "installed"
    assert host.starts == starts
    assert host.read(f"{layout.SLOTS}/incoming.qpol") == b"a policy"
    assert host.entry(layout.HANDED_POLICY) is None
    assert run(folder, host).result == "unchanged"
    [words] = [words for words in host.ran if "activate" in words]
    assert words[-2:] == ("--learner-key", layout.LEARNER_KEY)


def test_the_first_policy_is_there_before_the_agent_begins(tmp_path):
    host, events = fresh(), []
    run(make_bundle(tmp_path, NEWER), host, events=events)
    order = [step for step, state, _ in events if state == "done"]
    assert order.index("switch") < order.index("policy") < order.index("start")


def test_an_agent_that_was_stopped_is_started(bundle):
    host = fresh()
    run(bundle, host)
    host.life, host.failed = None, True
    assert run(bundle, host).result == "installed"
    assert host.life is not None


def test_credentials_that_are_not_in_a_bundle_any_more_go_and_without_any_they_stay(tmp_path, bundle):
    host = fresh()
    run(bundle, host)
    less = {name: data for name, data in FILES.items() if name != "credentials/ca.crt"}
    run(make_bundle(tmp_path / "less", less), host)
    assert host.names(layout.CREDENTIALS) == ("client.key",)
    none = {name: data for name, data in FILES.items() if not name.startswith("credentials/")}
    assert run(make_bundle(tmp_path / "none", none), host).result == "unchanged"
    assert host.names(layout.CREDENTIALS) == ("client.key",)


def test_a_mode_or_an_owner_that_somebody_changed_is_mended(bundle):
    host = fresh()
    run(bundle, host)
    host.nodes[layout.PASSWORD] = host.nodes[layout.DEVICE_TOML]
    host.write(layout.PASSWORD, FILES["password"], mode=0o644, owner="root")
    assert run(bundle, host).result == "installed"
    assert (host.entry(layout.PASSWORD).mode, host.entry(layout.PASSWORD).owner) == (0o600, "quarl-edge")


def test_coral_is_a_rule_groups_and_devices_and_goes_again(bundle):
    host = fresh()
    run(bundle, host, order=Order(coral=True))
    assert b'ATTR{idVendor}=="1a6e"' in host.read(layout.UDEV_RULE)
    assert b"DeviceAllow=char-apex rw" in host.life.unit
    assert ("usermod", "--append", "--groups", "plugdev,apex", "quarl-edge") in host.ran
    run(bundle, host)
    assert host.read(layout.UDEV_RULE) is None
    assert b"PrivateDevices=yes" in host.life.unit


def test_without_systemd_there_is_a_command_for_the_foreground(bundle):
    host, events = fresh(), []
    result = run(bundle, host, facts=board(systemd=False), events=events)
    assert result.supervised_by == "none"
    assert result.command == (
        "runuser -u quarl-edge -- "
        "/opt/quarl-edge/current/bin/quarl-device supervise --config /etc/quarl-edge/device.toml"
    )
    assert not {"unit", "start", "stop"} & set(states(events))
    assert host.entry(layout.UNIT) is None
    assert not any(words[0] == "systemctl" for words in host.ran)
    assert run(bundle, host, facts=board(systemd=False)).result == "unchanged"


def test_what_is_there_already_and_no_file_is_an_error_before_anything_is_switched(bundle):
    host = fresh()
    host.make_directory(layout.DEVICE_TOML)
    with pytest.raises(StepFailed) as failed:
        run(bundle, host)
    assert failed.value.step == "keep"
    assert "is a directory, expected a file" in str(failed.value.cause)
    assert host.link_target(layout.CURRENT) is None


def test_a_switch_whose_journal_is_damaged_is_left_for_a_person(bundle):
    host = fresh()
    for journal in (b"", b"\0" * 50, b"[]", b'{"schema": "other"}', b'{"schema": "quarl.switch.v1", "files": 3}'):
        host.write(f"{layout.SWITCH}/journal.json", journal, mode=0o600)
        with pytest.raises(StepFailed) as failed:
            run(bundle, host)
        assert failed.value.step == "recover"
        assert "sudo rm -r /opt/quarl-edge/switch" in failed.value.cause.hint


def test_removing_leaves_the_state_unless_it_is_purged(bundle):
    host = fresh()
    run(bundle, host, order=Order(coral=True))
    events = []

    def tell(*event):
        events.append(event)

    planned = remove(host, BOARD, purge=True, dry_run=True, tell=tell)
    assert (planned.result, host.life is not None) == ("planned", True)
    assert remove(host, BOARD, purge=False, dry_run=False, tell=tell).result == "removed"
    assert host.life is None
    assert not host.enabled
    assert [path for path in host.nodes if "quarl" in path] == [layout.STATE]
    assert host.has_user("quarl-edge")
    assert remove(host, BOARD, purge=False, dry_run=False, tell=tell).result == "unchanged"
    assert remove(host, BOARD, purge=True, dry_run=False, tell=tell).result == "removed"
    assert not [path for path in host.nodes if "quarl" in path]
    assert not host.has_user("quarl-edge")
    run(bundle, host)
    assert host.life is not None


def test_nothing_is_removed_under_an_agent_that_nobody_here_can_stop(bundle, tmp_path, monkeypatch):
    host, facts = fresh(), board(systemd=False)
    run(bundle, host, facts=facts)
    slots = Slots(tmp_path)
    slots.make()
    monkeypatch.setattr(host, "place", lambda _: str(tmp_path))
    slots.take()
    try:
        with pytest.raises(StepFailed) as failed:
            remove(host, facts, purge=True, dry_run=False, tell=lambda *_: None)
    finally:
        slots.release()
    assert "acts here still" in failed.value.cause.message
    assert host.entry(layout.CURRENT) is not None
    assert remove(host, facts, purge=True, dry_run=False, tell=lambda *_: None).result == "removed"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"python": (3, 9, 2)}, "3.11 or newer"),
        ({"machine": "riscv64"}, "no runtime is known for riscv64"),
        ({"has_venv": False}, "venv is missing"),
        ({"now": datetime(1970, 1, 1, tzinfo=UTC)}, "clock says 1970-01-01"),
        ({"free_bytes": 2**20}, "1 MiB are free"),
    ],
)
def test_a_board_that_does_not_fit_is_refused_before_anything_is_done(changes, said, bundle):
    host = fresh()
    host.before = pytest.fail
    with pytest.raises(StepFailed) as failed:
        run(bundle, host, facts=board(**changes))
    assert failed.value.step == "board"
    assert isinstance(failed.value.cause, BoardUnfit)
    assert said in failed.value.cause.message
    assert failed.value.cause.hint


def test_pip_comes_from_the_board_or_from_the_bundle(tmp_path, bundle):
    bare = read_bundle(make_bundle(tmp_path / "bare", {WHEEL: b"", "device.toml": b""}))
    check_board(board(has_ensurepip=True), bare, new_release=True)
    check_board(board(has_ensurepip=False), read_bundle(bundle), new_release=True)
    with pytest.raises(BoardUnfit, match="no pip"):
        check_board(board(has_ensurepip=False), bare, new_release=True)
    with pytest.raises(BoardUnfit, match="400 MiB are needed"):
        check_board(board(has_ensurepip=True, free_bytes=2**27), bare, new_release=True)
    check_board(board(has_ensurepip=True, free_bytes=2**27), bare, new_release=False)


def test_root_is_needed_on_the_board_itself():
    check_rights(board(root=False, own_system=False))
    with pytest.raises(UsageError, match="needs root"):
        check_rights(board(root=False))


def test_a_release_is_named_by_what_it_is_made_of():
    wheels = {"a.whl": "1" * 64, "wheels/b.whl": "2" * 64}
    name = release_name(wheels, (3, 11, 2))
    assert len(name) == 12
    assert set(name) <= set("0123456789abcdef")
    assert name == release_name({"x.whl": "2" * 64, "y.whl": "1" * 64}, (3, 11, 2))
    others = [
        release_name({"a.whl": "1" * 64}, (3, 11, 2)),
        release_name(wheels, (3, 11, 3)),
        release_name(wheels, (3, 11, 2), ("box2d",)),
    ]
    assert len({name, *others}) == 4


def test_a_policy_is_tried_in_the_runtime_that_the_agent_uses():
    assert runtime_words(b'delegate = "edgetpu:usb"\nruntime = "litert"\n') == [
        "--runtime", "litert", "--delegate", "edgetpu:usb",
    ]  # fmt: skip
    assert runtime_words(b"delegate = 3\n") == []


def test_two_at_once(tmp_path):
    from quarl_device.install.real_host import RealHost

    host = RealHost(tmp_path)
    with only_one(host), pytest.raises(BoardUnfit, match="another installation is at work"), only_one(host, wait_s=0):
        pytest.fail("both are at work")
    with only_one(host, wait_s=0):
        pass
    lock = Path(host.place(layout.LOCK))
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_release_says_what_it_is_made_of(bundle):
    host = fresh()
    release = run(bundle, host).release
    receipt = json.loads(host.read(f"{layout.release_path(release)}/{layout.RECEIPT}"))
    assert receipt["release"] == release
    assert set(receipt["wheels"]) == {name for name in FILES if name.endswith(".whl")}
