"""The inbox: pushes into policies, the latest first, and nothing that does not hold."""

import dataclasses
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from quarl_device.actor.inbox import Inbox
from quarl_device.policy_file import read_policy_path
from quarl_device.runtime import find_runtime
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.push import Exploration, PushHeader, encode_push

DATA = Path(__file__).parent.parent / "data"
CARTPOLE, ACROBOT, PENDULUM = (
    read_policy_path(DATA / f"{name}.tflite") for name in ("cartpole", "acrobot", "pendulum")
)
KEY = LearnerKey(bytes(range(32)))


def push(version=1, *, epoch=1, policy=CARTPOLE, key=KEY, **changes):
    fields = {
        "sha256": policy.sha256, "env_steps": 0, "exploration": Exploration(values=(0.1, 0.2, 7.0)),
        "golden_outputs": dict(policy.golden.outputs), "lsb": dict(policy.golden.lsb), **changes,
    }  # fmt: skip
    return encode_push(PushHeader(epoch=epoch, version=version, **fields), policy.data, key.sign)


def eventually(condition, what):
    deadline = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


@pytest.fixture
def make():
    made = []

    def build(on_ready=None, *, actor_index=0):
        ready = []
        inbox = Inbox(runtime=find_runtime(), batch_size=2, actor_index=actor_index, on_ready=on_ready or ready.append)
        made.append(inbox)
        return inbox, ready

    yield build
    for inbox in made:
        inbox.close()
        assert not inbox._thread.is_alive()


def trust(inbox, policy=CARTPOLE, *, epoch=1, **more):
    inbox.trust(KEY.public, policy.contract.observations, policy.contract.action, epoch=epoch, **more)


def test_a_push_waits_until_somebody_is_trusted(make):
    inbox, ready = make()
    inbox.offer(push())
    time.sleep(0.05)
    assert not ready
    trust(inbox)
    eventually(lambda: ready, "looked at")
    assert (ready[0].epoch, ready[0].version, ready[0].reset) == (1, 1, False)
    assert ready[0].policy.batch_size == 2
    assert inbox.latest == (1, 1)


@pytest.fixture
def busy_inbox(make):
    """Return an inbox whose thread is at version 1 until the gate opens, the versions that it gave, and the gate."""
    busy, gate = threading.Event(), threading.Event()
    versions = []

    def slow(acting):
        versions.append(acting.version)
        busy.set()
        gate.wait(5.0)

    inbox, _ = make(slow)
    trust(inbox)
    inbox.offer(push(1))
    assert busy.wait(5.0)
    return inbox, versions, gate


def test_the_latest_wins_and_what_it_overtook_is_not_loaded(busy_inbox):
    inbox, versions, gate = busy_inbox
    for version in range(2, 80):
        inbox.offer(push(version))
    gate.set()
    eventually(lambda: inbox.ignored == 3, "the few that waited beside it")
    assert versions == [1, 79]
    assert (inbox.latest, inbox.accepted) == ((1, 79), 2)


@pytest.mark.parametrize("order", [(3, 2), (4, 2, 3), (5, 4, 3, 2)])
def test_the_newest_is_not_lost_to_an_older_one_that_comes_behind_it(busy_inbox, order):
    inbox, versions, gate = busy_inbox
    for version in order:
        inbox.offer(push(version))
    gate.set()
    eventually(lambda: inbox.latest == (1, max(order)), "the newest")
    assert versions[-1] == max(order)


def test_the_newest_of_two_threads_wins_whoever_is_first(busy_inbox):
    inbox, _, gate = busy_inbox
    together = threading.Barrier(2)

    def offer(payload):
        together.wait(5.0)
        inbox.offer(payload)

    threads = [threading.Thread(target=offer, args=(push(version),)) for version in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5.0)
    gate.set()
    eventually(lambda: inbox.latest == (1, 3), "the newest")


def test_junk_behind_it_does_not_displace_a_push(busy_inbox):
    inbox, _, gate = busy_inbox
    inbox.offer(push(2))
    inbox.offer(b"junk")
    inbox.offer(push(9, key=LearnerKey(bytes(32))))
    gate.set()
    eventually(lambda: inbox.latest == (1, 2), "the push")
    assert inbox.refused == 2


@pytest.mark.parametrize(("index", "epsilon"), [(0, 0.1), (1, 0.2), (2, 7.0), (3, 0.1)])
def test_each_actor_explores_by_its_own_value(make, index, epsilon):
    inbox, ready = make(actor_index=index)
    trust(inbox)
    inbox.offer(push())
    eventually(lambda: ready, "ready")
    assert ready[0].exploration == Exploration(kind="epsilon", values=(epsilon,))


def test_noise_for_a_box_comes_with_its_sigma(make):
    inbox, ready = make(actor_index=1)
    trust(inbox, PENDULUM)
    inbox.offer(push(policy=PENDULUM, exploration=Exploration(kind="gaussian", values=(0.1, 0.2))))
    eventually(lambda: ready, "ready")
    assert ready[0].exploration == Exploration(kind="gaussian", values=(0.2,))


@pytest.mark.parametrize(
    ("policy", "exploration"),
    [
        (CARTPOLE, Exploration(kind="gaussian", values=(0.1,))),
        (CARTPOLE, Exploration(kind="sample", values=())),
        (PENDULUM, Exploration(kind="epsilon", values=(0.1,))),
        (PENDULUM, Exploration(kind="sample", values=())),
    ],
)
def test_exploration_that_does_not_go_with_the_policy_is_refused_and_the_next_push_taken(make, policy, exploration):
    inbox, ready = make()
    trust(inbox, policy)
    inbox.offer(push(1, policy=policy, exploration=exploration))
    eventually(lambda: inbox.refused == 1, "refused")
    inbox.offer(push(2, policy=policy, exploration=Exploration(kind="none", values=())))
    eventually(lambda: ready, "ready")
    assert inbox.latest == (1, 2)


def test_a_push_that_gives_no_extras_is_refused_where_the_birth_asks_for_some(make):
    inbox, ready = make()
    trust(inbox, extras=("log_prob",))
    inbox.offer(push())
    eventually(lambda: inbox.refused == 1, "it lacks what the birth asks for")
    assert not ready


@pytest.mark.parametrize(
    "change", [{"low": (-1.0,)}, {"high": (3.0,)}, {"low": (-2.0, -2.0), "high": (2.0, 2.0), "shape": (2,)}]
)
def test_a_policy_for_another_box_is_refused(make, change):
    inbox, ready = make()
    action = dataclasses.replace(PENDULUM.contract.action, **change)
    inbox.trust(KEY.public, PENDULUM.contract.observations, action, epoch=1)
    inbox.offer(push(policy=PENDULUM, exploration=Exploration(kind="none", values=())))
    eventually(lambda: inbox.refused == 1, "another box")
    assert not ready


def test_a_push_older_than_the_learner_is_ignored(make):
    inbox, ready = make()
    trust(inbox, epoch=5)
    inbox.offer(push(9, epoch=4))
    eventually(lambda: inbox.ignored == 1, "ignored")
    inbox.offer(push(1, epoch=5))
    eventually(lambda: ready, "ready")
    assert inbox.refused == 0


@pytest.mark.parametrize("policy", [CARTPOLE, ACROBOT], ids=["same spaces", "other spaces"])
def test_a_push_that_overtakes_its_learners_birth_waits_for_it(make, policy):
    """Same spaces say nothing of the task: who follows the birth drops what came before it."""
    inbox, ready = make()
    trust(inbox, epoch=1)
    inbox.offer(push(1, epoch=2, policy=policy))
    eventually(lambda: inbox._early, "held")
    trust(inbox, epoch=1)  # renewed, not changed
    time.sleep(0.02)
    assert not ready
    trust(inbox, policy, epoch=2)
    eventually(lambda: ready, "it fits now")
    assert (inbox.latest, inbox.refused, inbox._early) == ((2, 1), 0, None)


def test_another_push_drops_none_that_waits(make):
    inbox, ready = make()
    trust(inbox, epoch=1)
    for number, early in enumerate([(3, 1), (2, 9), (3, 1)]):
        inbox.offer(push(early[1], epoch=early[0]))
        eventually(lambda: inbox._early and not inbox._payloads, "held")
        inbox.offer(push(number + 1, epoch=1))
        eventually(lambda number=number: len(ready) == number + 1, "the one in charge is followed")
    trust(inbox, epoch=3)
    eventually(lambda: inbox.latest == (3, 1), "the newest of those that waited")
    assert inbox.refused == 0


def test_of_those_that_wait_the_newest_is_kept(make):
    inbox, ready = make()
    trust(inbox, epoch=1)
    for version in (1, 2):
        inbox.offer(push(version, epoch=2))
        eventually(lambda version=version: inbox._early and inbox._early[0].version == version, "held")
    trust(inbox, epoch=2)
    eventually(lambda: ready, "ready")
    assert [acting.version for acting in ready] == [2]


def test_a_birth_that_comes_while_its_push_is_looked_at_is_not_missed(make, monkeypatch):
    inbox, ready = make()
    trust(inbox, epoch=1)
    hold = inbox._hold

    def birth_comes_first(*signed):
        trust(inbox, ACROBOT, epoch=2)
        hold(*signed)

    monkeypatch.setattr(inbox, "_hold", birth_comes_first)
    inbox.offer(push(1, epoch=2, policy=ACROBOT))
    eventually(lambda: ready, "looked at again")


def test_what_is_refused_takes_no_other_push_with_it(make):
    busy, gate = threading.Event(), threading.Event()
    versions = []

    def slow(acting):
        versions.append(acting.version)
        busy.set()
        gate.wait(5.0)

    inbox, _ = make(slow)
    trust(inbox)
    inbox.offer(push(1))
    assert busy.wait(5.0)
    inbox._take_fetched(header_of(ACROBOT, version=2), ACROBOT.data)
    inbox.offer(push(3))
    gate.set()
    eventually(lambda: versions == [1, 3], "the other one")
    assert inbox.refused == 1


def header_of(policy, **fields):
    return PushHeader(**{
        "epoch": 1, "version": 1, "env_steps": 0, "sha256": policy.sha256, "exploration": Exploration(values=(0.1,)),
        "golden_outputs": dict(policy.golden.outputs), "lsb": dict(policy.golden.lsb), **fields,
    })  # fmt: skip


@pytest.mark.parametrize("epoch", [1, 2])
def test_chunks_that_are_together_not_the_file_that_the_manifest_names_are_refused(make, caplog, epoch):
    """Each of them is as the manifest says, and the file would load."""
    inbox, ready = make()
    trust(inbox, epoch=1)
    inbox._take_fetched(header_of(CARTPOLE, epoch=epoch, sha256="ab" * 32), CARTPOLE.data)
    eventually(lambda: inbox.refused == 1, "refused")
    assert "its sha256 is" in caplog.text
    assert (ready, inbox._early, inbox.latest) == ([], None, (-1, -1))
    inbox._take_fetched(header_of(CARTPOLE, version=2), CARTPOLE.data)
    eventually(lambda: ready, "the file that it names")


def test_whoever_takes_policies_may_fail(make):
    taken = []

    def fail(acting):
        taken.append(acting)
        raise RuntimeError("a bug")

    inbox, _ = make(fail)
    trust(inbox)
    inbox.offer(push(1))
    eventually(lambda: inbox.refused == 1, "noted")
    inbox.offer(push(2))
    eventually(lambda: len(taken) == 2, "the thread lives")


def test_times_are_those_of_recent_pushes(make):
    inbox, ready = make()
    trust(inbox)
    inbox.offer(push(1, variables_read_unix_ns=time.time_ns() - 5_000_000))
    inbox_ready = inbox.ready_ms
    eventually(lambda: ready, "ready")
    assert 5.0 <= inbox_ready[-1] < 5000
    inbox.offer(push(2))
    eventually(lambda: len(ready) == 2, "ready")
    assert len(inbox_ready) == 1


GREETING = """
import os, sys, threading
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy_path
file = read_policy_path(sys.argv[1])
def load():
    os.write(2, b"ours\\n")
    Policy.load(file, batch_size=4)
threads = [threading.Thread(target=load) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
os.write(2, b"end\\n")
try:
    Policy.load(__import__("dataclasses").replace(file, data=file.data[:200]))
except Exception as error:
    print(type(error).__name__)
"""


def test_the_runtime_does_not_greet_on_stderr_and_nothing_else_is_lost():
    command = [sys.executable, "-c", GREETING, str(DATA / "cartpole.tflite")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "INFO" not in done.stderr
    assert done.stderr.count("ours\n") == 8
    assert "end\n" in done.stderr
