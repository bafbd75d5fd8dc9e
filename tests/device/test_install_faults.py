"""Errors and kills at every single change that an installation makes: the board is as it was, or as it should be."""

import contextlib
import copy
import os
import signal

import pytest
from install_scene import FILES, NEWER, At, count, fail, fresh, installed, kill, make_bundle, run

from quarl_device.install import layout
from quarl_device.install.command import recover_cut_off
from quarl_device.install.installing import StepFailed
from quarl_device.install.interruption import SIGNALS, undisturbed
from quarl_device.testing.install_host import Killed

STARTS = ("first", "upgrade")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return {
        "old": make_bundle(tmp_path_factory.mktemp("old"), FILES),
        "new": make_bundle(tmp_path_factory.mktemp("new"), NEWER),
    }


@pytest.fixture(scope="module")
def boards(bundles):
    """Boards before an installation."""
    upgrade = fresh()
    run(bundles["old"], upgrade)
    return {"first": fresh(), "upgrade": upgrade}


def copied(host):
    # The hook is a closure of a test, which no copy is to have.
    host.before = _nothing
    return copy.deepcopy(host)


def _nothing(_):
    return None


def changes(host, bundle):
    trial = copied(host)
    return count(trial, lambda: run(bundle, trial)), installed(trial)


def is_tidy(host):
    names = set(host.names(layout.HOME))
    releases = {
        host.link_target(link).rpartition("/")[2]
        for link in (layout.CURRENT, layout.PREVIOUS)
        if host.link_target(link)
    }
    return names <= {"releases", "current", "previous"} and set(host.names(layout.RELEASES)) == releases


@pytest.mark.parametrize("start", STARTS)
def test_an_error_at_any_change_leaves_the_old_or_the_new_and_the_next_run_goes_on(boards, bundles, start):
    number, after = changes(boards[start], bundles["new"])
    before = installed(boards[start])
    assert number > 25
    undone = 0
    for index in range(number):
        host = copied(boards[start])
        host.before = at = At(index, fail)
        events = []
        # Every error has its step, and reaches the caller as nothing else.
        with contextlib.suppress(StepFailed):
            run(bundles["new"], host, events=events)
        assert any(state == "failed" for _, state, _ in events) or at.met.split()[0] in (
            "make",
            "move",
            "write",
            "remove",
        )
        now = installed(host)
        assert now in (before, after), (index, at.met)
        undone += now == before
        host.before = _nothing
        assert run(bundles["new"], host).result in ("installed", "unchanged")
        assert installed(host) == after, (index, at.met)
        assert is_tidy(host), (index, at.met)
    assert undone > number / 2


@pytest.mark.parametrize("start", STARTS)
def test_a_disk_that_stays_full_is_mended_by_the_next_run(boards, bundles, start):
    number, after = changes(boards[start], bundles["new"])
    for index in range(number):
        host = copied(boards[start])

        def full(what):
            if what.startswith(("write", "make")):
                fail(what)

        host.before = at = At(index, full, forever=True)
        try:
            run(bundles["new"], host)
        except StepFailed:
            # Nothing that undoing needs takes room.
            assert installed(host) in (installed(boards[start]), after), (index, at.met)
        host.before = _nothing
        run(bundles["new"], host)
        assert installed(host) == after, (index, at.met)


@pytest.mark.parametrize("start", STARTS)
def test_a_kill_at_any_change_is_mended_by_the_next_run(boards, bundles, start):
    number, after = changes(boards[start], bundles["new"])
    for index in range(number):
        host = copied(boards[start])
        host.before = at = At(index, kill, forever=True)
        with pytest.raises(Killed):
            run(bundles["new"], host)
        host.before = _nothing
        run(bundles["new"], host)
        assert installed(host) == after, (index, at.met)
        assert is_tidy(host), (index, at.met)


def test_a_power_cut_at_any_change_boots_into_the_old_or_the_new(boards, bundles):
    number, after = changes(boards["upgrade"], bundles["new"])
    lives = {installed(boards["upgrade"])["life"], after["life"]}
    seen = set()
    for index in range(number):
        host = copied(boards["upgrade"])
        host.before = at = At(index, kill, forever=True)
        with pytest.raises(Killed):
            run(bundles["new"], host)
        host.before = _nothing
        recover_cut_off(host, tell=lambda *_: None)
        host.boot()
        assert host.life is not None, (index, at.met)
        assert (host.life.release, host.life.config) in {(life.release, life.config) for life in lives}, (index, at.met)
        seen.add(host.life.release)
    assert len(seen) == 2


def test_a_kill_while_a_kill_is_mended(boards, bundles):
    number, after = changes(boards["upgrade"], bundles["new"])
    for first in range(0, number, 3):
        host = copied(boards["upgrade"])
        host.before = At(first, kill, forever=True)
        with pytest.raises(Killed):
            run(bundles["new"], host)
        twice, _ = changes(host, bundles["new"])
        for second in range(0, twice, 2):
            again = copied(host)
            again.before = At(second, kill, forever=True)
            with pytest.raises(Killed):
                run(bundles["new"], again)
            again.before = _nothing
            run(bundles["new"], again)
            assert installed(again) == after, (first, second)
            assert is_tidy(again), (first, second)


def test_an_interruption_undoes_what_was_switched(boards, bundles):
    number, after = changes(boards["upgrade"], bundles["new"])

    def interrupt(_):
        raise KeyboardInterrupt

    for index in range(number):
        host = copied(boards["upgrade"])
        host.before = At(index, interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(bundles["new"], host)
        assert installed(host) in (installed(boards["upgrade"]), after), index
        assert host.life is not None


def test_an_agent_that_does_not_start_is_put_back(boards, bundles):
    host = copied(boards["upgrade"])
    before = installed(host)
    host.broken = {run(bundles["new"], copied(host), dry_run=True).release}
    events = []
    with pytest.raises(StepFailed) as failed:
        run(bundles["new"], host, events=events)
    assert failed.value.step == "start"
    assert "ended with code 1; it said: it ended because" in failed.value.cause.message
    assert installed(host) == before
    assert events[-1][:2] == ("undo", "undone")
    assert "its agent runs" in events[-1][2]


def test_a_policy_that_is_refused_and_a_release_that_does_not_work_change_nothing(boards, bundles):
    for step, fault in (("policy", {"refuses": 45}), ("release", {"untried": True})):
        host = copied(boards["upgrade"])
        before, starts = installed(host), host.starts
        release = run(bundles["new"], copied(host), dry_run=True).release
        host.refuses = fault.get("refuses", 0)
        host.untried = {release} if "untried" in fault else set()
        with pytest.raises(StepFailed) as failed:
            run(bundles["new"], host)
        assert failed.value.step == step
        assert installed(host) == before
        # The running agent was not even stopped for a release that does not work.
        assert host.starts - starts == (step == "policy")


WITH_POLICY = {**NEWER, "device.toml": b'mode = "deploy"\n', "policy.qpol": b"the policy of the new one"}


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_policy_that_was_handed_over_goes_with_the_installation_that_is_undone(tmp_path, boards, cut_off):
    host = copied(boards["upgrade"])
    before, bundle = installed(host), make_bundle(tmp_path, WITH_POLICY)
    trial = copied(host)
    release = run(bundle, trial).release
    assert trial.read(f"{layout.SLOTS}/incoming.qpol") == b"the policy of the new one"
    if cut_off:
        host.before = lambda what: kill(what) if host.read(f"{layout.SLOTS}/incoming.qpol") else None
        with pytest.raises(Killed):
            run(bundle, host)
        host.before = _nothing
        recover_cut_off(host, tell=lambda *_: None)
        host.boot()
    else:
        host.broken.add(release)
        with pytest.raises(StepFailed):
            run(bundle, host)
    assert installed(host) == before
    assert host.read(f"{layout.SLOTS}/incoming.qpol") is None


def test_another_policy_stays_and_so_does_a_key_that_was_trusted_before(tmp_path, boards):
    host = copied(boards["upgrade"])
    for path, data in ((f"{layout.SLOTS}/current.qpol", b"the one that acts"), (layout.TRUSTED_KEY, b"trusted")):
        host.make_directory(layout.SLOTS)
        host.write(path, data, mode=0o644)
    bundle = make_bundle(tmp_path, WITH_POLICY)
    host.broken.add(run(bundle, copied(host)).release)
    with pytest.raises(StepFailed):
        run(bundle, host)
    assert host.read(f"{layout.SLOTS}/current.qpol") == b"the one that acts"
    assert host.read(layout.TRUSTED_KEY) == b"trusted"


def test_a_key_that_came_with_an_undone_policy_is_not_trusted_for_good(tmp_path, boards):
    host = copied(boards["upgrade"])
    bundle = make_bundle(tmp_path, WITH_POLICY)
    host.broken.add(run(bundle, copied(host)).release)
    program = host._program

    def keeps_the_key(words):
        done = program(words)
        if "activate" in words:
            host.write(layout.TRUSTED_KEY, b"of the new policy", mode=0o644)
        return done

    host._program = keeps_the_key
    with pytest.raises(StepFailed):
        run(bundle, host)
    assert host.read(layout.TRUSTED_KEY) is None


def test_what_cannot_be_tidied_up_is_told_and_no_failure(boards, bundles):
    host, events = copied(boards["upgrade"]), []
    remove = host.remove

    def refuses(path):
        if path.startswith(f"{layout.SWITCH}.over") and host.entry(path) is not None:
            fail(f"remove {path}")
        remove(path)

    before = installed(host)["current"]
    host.remove = refuses
    assert run(bundles["new"], host, events=events).result == "installed"
    assert installed(host)["current"] != before
    assert ("tidy", "failed") in [event[:2] for event in events]


def test_nothing_disturbs_putting_back():
    def interrupt(*_):
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in SIGNALS}
    try:
        with undisturbed():
            for number in SIGNALS:
                os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
