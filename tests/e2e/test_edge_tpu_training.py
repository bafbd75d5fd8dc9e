"""`train --edge-tpu` with a real broker: a Coral actor, with a stub, acts with compiled pushes; a Pi is undisturbed."""

import json
import os
import re
import signal

import pytest
from runs_helper import DEVICE, EDGE, Started, edge, last_json
from stub_delegate import install_compiler, stub_library

from quarl_device.link import BrokerURL, PahoLink
from quarl_device.testing.mosquitto import Mosquitto
from quarl_device.wire.block import BlockCodec, BlockSpec
from quarl_device.wire.messages import DeviceState
from quarl_device.wire.push import decode_push
from quarl_device.wire.topics import Topics
from quarl_edge.replay.segments import iterate
from quarl_edge.runs import RunDirectory
from quarl_edge.task import look_at

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
TOPICS = Topics("default")
TRAIN = ["train", "CartPole-v1", "--actors", 0, "--run", "r", "--set", "goal_return=none", "--format", "json"]
EVERY = 3


class Watcher:
    """Every compiled push and birth that went over a broker."""

    def __init__(self, url):
        self.compiled, self.states = {}, []
        self.link = PahoLink(BrokerURL.parse(url), client_id="watcher")
        self.link.subscribe(TOPICS.edgetpu, self._on_push)
        self.link.subscribe(TOPICS.any_state, self._on_state)
        self.link.connect(timeout_s=10)

    def _on_push(self, message):
        if message.payload:
            header, _ = decode_push(message.payload, lambda *_: None)
            self.compiled[header.version] = header

    def _on_state(self, message):
        if message.payload:
            self.states.append(DeviceState.decode(message.payload))

    def on_tpu(self, device):
        return {state.digest for state in self.states if state.device == device and state.edge_tpu}


@pytest.fixture
def world(tmp_path):
    with Mosquitto() as broker:
        watcher = Watcher(broker.url)
        yield broker.url, watcher
        watcher.link.close()


def versions_by_device(run):
    """Return every step's policy version by device, in the order in which its blocks were stored."""
    task = look_at(RunDirectory.open(run).config)
    codec = BlockCodec(BlockSpec(observations=(task.observation,), action=task.action))
    found = {}
    for record in iterate(run / "journal"):
        found.setdefault(record.device, []).extend(codec.decode(record.payload).policy_version.tolist())
    return found


def with_compiler(folder, body=None):
    folder.mkdir(exist_ok=True)
    install_compiler(folder, *([] if body is None else [body]))
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def test_a_coral_actor_trains_on_its_tpu_and_a_pi_is_undisturbed(tmp_path, world):
    url, watcher = world
    env = with_compiler(tmp_path / "bin")
    words = [*EDGE, *TRAIN, "--broker", url, "--edge-tpu", "--set", f"edge_tpu_period_pushes={EVERY}"]
    act = [*DEVICE, "run", "--broker", url, "--exit-when-gone"]
    with (
        Started(words, cwd=tmp_path, log=tmp_path / "learner.log", env=env) as learner,
        Started(
            [*act, "--id", "coral", "--delegate", f"edgetpu={stub_library()}", "--delegate-required"],
            cwd=tmp_path, log=tmp_path / "coral.log",
        ) as coral,
        Started([*act, "--id", "pi"], cwd=tmp_path, log=tmp_path / "pi.log") as pi,
    ):  # fmt: skip
        learner.wait_for(lambda: len(watcher.on_tpu("coral")) >= 1, seconds=120, what="the TPU acts")
        top = edge("top", "--broker", url, "--once", "--wait", 10, "--format", "json", cwd=tmp_path)
        shown = {row["device"]: row for row in last_json(top)["actors"]}
        assert (shown["coral"]["edge_tpu"], shown["pi"]["edge_tpu"]) == (True, False)
        before = len(watcher.compiled)
        learner.wait_for(lambda: len(watcher.compiled) >= before + 3, seconds=60, what="more compiled pushes")
        code, out = learner.end(signal.SIGINT, seconds=60)
        assert code == 0, learner.said()
        summary = json.loads(out.splitlines()[-1])
        for actor in (coral, pi):
            assert actor.process.wait(30) == 0, actor.said()
    assert summary["edge_tpu"]["published"] == len(watcher.compiled) >= 4
    assert (summary["edge_tpu"]["failures"], summary["refused"]) == (0, {})
    assert all(header.edge_tpu for header in watcher.compiled.values())
    steps = versions_by_device(tmp_path / "r")
    for versions in steps.values():
        assert versions == sorted(versions), "never backwards"
    # The CPU until the first compiled one; from then on compiled ones alone, since they come within the bound.
    begins = int(re.search(r"policy (\d+) acts on the Edge TPU", coral.said())[1])
    on_tpu = {version for version in steps["coral"] if version >= begins}
    assert len(on_tpu) >= 2
    assert on_tpu <= set(watcher.compiled)
    assert set(steps["pi"]) - set(watcher.compiled), "the other one acts with the newest"
    assert "Edge TPU" not in pi.said()
    assert "refused" not in coral.said() + pi.said()


def test_a_compiler_that_fails_is_said_once_and_training_goes_on(tmp_path, world):
    url, watcher = world
    env = with_compiler(tmp_path / "bin", "os.kill(os.getpid(), 11)")
    words = [*TRAIN, "--broker", url, "--edge-tpu", "--set", "edge_tpu_period_pushes=1", "--steps", 1500]
    act = [*DEVICE, "run", "--broker", url, "--exit-when-gone", "--id", "coral"]
    delegate = ["--delegate", f"edgetpu={stub_library()}"]
    with Started([*act, *delegate], cwd=tmp_path, log=tmp_path / "coral.log"):
        done = edge(*words, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    summary = last_json(done)
    assert summary["env_steps"] >= 1500
    assert summary["edge_tpu"]["failures"] >= 1
    assert "died of signal 11" in summary["edge_tpu"]["last_failure"]
    assert done.stderr.count("is not compiled for the Edge TPU") == 1
    assert not watcher.compiled


def test_without_the_compiler_it_says_so_or_ends_where_it_is_required(tmp_path, world):
    url, _ = world
    words = [*TRAIN, "--broker", url, "--steps", 600]
    required = edge(*words, "--edge-tpu-required", cwd=tmp_path)
    assert required.returncode == 80, required.stderr
    assert "edgetpu_compiler is not on the PATH" in required.stderr
    assert not (tmp_path / "r").exists()
    with Started([*EDGE, *words, "--edge-tpu"], cwd=tmp_path, log=tmp_path / "learner.log") as learner:
        learner.wait_for(
            lambda: "actors that have one train on their CPU" in learner.said(), seconds=90, what="it says"
        )
        learner.end(signal.SIGINT, seconds=60)
