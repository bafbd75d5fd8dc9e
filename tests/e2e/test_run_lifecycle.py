"""Runs: resume, clean ends, kills, other actors, wrong neighbours. Real brokers and processes."""

import json
import signal
from collections import Counter

import pytest
from runs_helper import DEVICE, EDGE, Started, edge, last_json

from quarl_device.testing.mosquitto import Mosquitto
from quarl_device.wire.block import BlockCodec, BlockSpec
from quarl_edge.replay.segments import iterate
from quarl_edge.runs import RunDirectory
from quarl_edge.task import look_at

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
NO_GOAL = ["--set", "goal_return=none"]


def digests(run):
    """Return the digests of all arrays in each checkpoint of a run, by environment steps."""
    found = {}
    for path in sorted((run / "checkpoints").glob("ckpt-*")):
        manifest = json.loads((path / "manifest.json").read_text())
        arrays = {name: part["sha256"] for name, part in manifest["parts"].items() if name.endswith(".npz")}
        found[manifest["env_steps"]] = arrays
    return found


def ledger(run):
    """Return the (device, boot id, sequence) of every block in a run's journal, in order of arrival."""
    task = look_at(RunDirectory.open(run).config)
    codec = BlockCodec(BlockSpec(observations=(task.observation,), action=task.action))
    blocks = [(record.device, codec.decode(record.payload)) for record in iterate(run / "journal")]
    return [(device, block.boot_id, block.sequence) for device, block in blocks]


def test_a_run_resumes_where_it_ended(tmp_path):
    first = edge("train", "CartPole-v1", "--steps", 1200, "--run", "r", *NO_GOAL, "--format", "json", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    before = last_json(first)
    assert before["reason"] == "budget"
    again = edge("train", "--resume", "--run", "r", "--steps", 2000, "--format", "json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    after = last_json(again)
    assert after["env_steps"] >= 2000
    assert after["session_env_steps"] == after["env_steps"] - before["env_steps"]
    assert after["session_updates"] == after["updates"] - before["updates"]
    assert after["updates"] > before["updates"] > 0
    used_up = edge("train", "--resume", "--run", "r", "--steps", 1500, cwd=tmp_path)
    assert used_up.returncode == 2, used_up.stderr
    assert f"{after['env_steps']:,} steps" in used_up.stderr
    assert len(set(ledger(tmp_path / "r"))) == len(ledger(tmp_path / "r"))


def test_sigint_ends_a_run_cleanly_with_a_checkpoint(tmp_path):
    words = [*EDGE, "train", "CartPole-v1", "--run", "r", "--format", "json", *NO_GOAL]
    with Started(words, cwd=tmp_path, log=tmp_path / "log") as learner:
        learner.wait_for(lambda: "int8 return" in learner.said(), seconds=90, what="training")
        # A broker of its own, so no claim of a fleet keeps a second one out of the run.
        second = edge("train", "--resume", "--run", "r", "--steps", 1_000_000, cwd=tmp_path)
        assert second.returncode == 77, second.stderr
        assert f"process {learner.process.pid} on " in second.stderr
        code, out = learner.end(signal.SIGINT)
    assert code == 0
    assert json.loads(out.splitlines()[-1])["reason"] == "interrupted"
    assert list((tmp_path / "r" / "checkpoints").glob("ckpt-*"))
    actors = [path.read_text() for path in (tmp_path / "r" / "logs").glob("actor-*.log")]
    assert len(actors) == 2
    assert all("ended: the learner is gone" in text for text in actors)


@pytest.fixture(scope="module")
def mosquitto():
    with Mosquitto({"learner": "one", "pi-1": "two"}) as broker:
        yield broker


def url(broker, user):
    return broker.url.replace("mqtt://", f"mqtt://{user}@")


def test_a_device_elsewhere_joins_and_a_killed_learner_loses_and_repeats_nothing(tmp_path, mosquitto):
    learner_env, device_env = {"QUARL_MQTT_PASSWORD": "one"}, {"QUARL_MQTT_PASSWORD": "two"}
    words = ["--broker", url(mosquitto, "learner"), "--fleet", "killed", "--learner-key", tmp_path / "key"]
    words += ["--actors", 0, "--format", "json"]
    actor = [*DEVICE, "run", "--broker", url(mosquitto, "pi-1"), "--fleet", "killed", "--id", "pi-1"]
    actor += ["--format", "json", "--max-offline", 0]
    # None by steps: what was learned is kept with the first push of it, or a resume would start the network anew.
    fresh = [*EDGE, "train", "CartPole-v1", "--run", "r", "--set", "checkpoint_period_steps=0", *NO_GOAL, *words]
    run = tmp_path / "r"
    with Started(actor, cwd=tmp_path, log=tmp_path / "actor.log", env=device_env) as device:
        with Started(fresh, cwd=tmp_path, log=tmp_path / "first.log", env=learner_env) as first:
            first.wait_for(lambda: len(digests(run)) >= 2 if run.exists() else False, seconds=120, what="checkpoints")
            first.process.kill()
            first.process.wait(10)
        stored = ledger(run)
        resumed = edge(
            "train", "--resume", "--run", "r", "--steps", 2500, *words, cwd=tmp_path, env=learner_env, timeout=120
        )
        assert resumed.returncode == 0, resumed.stderr
        code, out = device.end()
    assert code == 0
    after = ledger(run)
    # W2: what was acknowledged before the kill is there after it; W1: once; and no gap in one life of the device.
    assert after[: len(stored)] == stored
    assert max(Counter(after).values()) == 1
    assert len({boot for _, boot, _ in after}) == 1
    assert [sequence for _, _, sequence in after] == list(range(len(after)))
    said = json.loads(out.splitlines()[-1])
    assert said["blocks"] - said["blocks_pending"] <= len(after)
    result = last_json(resumed)
    assert result["env_steps"] >= 2500
    assert result["updates"] > result["session_updates"] > 0, "it went on from what was learned"
    assert "resuming from the checkpoint at " in resumed.stderr
    assert "was lost without a goodbye; watching 5 s" in resumed.stderr


def test_a_wrong_password_is_one_clear_line(tmp_path, mosquitto):
    words = ["--broker", url(mosquitto, "learner"), "--actors", 0, "--learner-key", tmp_path / "key"]
    done = edge("train", "CartPole-v1", *words, cwd=tmp_path, env={"QUARL_MQTT_PASSWORD": "wrong-secret"}, timeout=60)
    assert done.returncode == 31, done.stderr
    assert "Traceback" not in done.stderr
    assert "wrong-secret" not in done.stderr + done.stdout


def test_many_environments_per_actor_and_a_normaliser_from_data(tmp_path):
    words = ["train", "CartPole-v1", "--actors", 1, "--envs-per-actor", 32, "--steps", 6000, "--run", "r", *NO_GOAL]
    words += ["--set", "observation_scale=none", "--set", "observation_offset=none", "--set", "samples_per_insert=16"]
    done = edge(*words, "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = last_json(done)
    assert report["env_steps"] >= 6000
    assert report["int8_return_mean"] > 15
    assert 8 < report["samples_per_insert"] < 24


def test_an_environment_without_a_preset_trains(tmp_path):
    done = edge(
        "train", "Acrobot-v1", "--preset", "default", "--steps", 1500, "--set", "hidden=16",
        "--set", "learning_starts=200", "--actors", 1, "--format", "json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert last_json(done)["updates"] > 0


def test_a_checkpoint_with_a_part_missing_is_refused(tmp_path):
    done = edge("train", "CartPole-v1", "--steps", 700, "--run", "r", *NO_GOAL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    checkpoint = max((tmp_path / "r" / "checkpoints").glob("ckpt-*"))
    (checkpoint / "algorithm.npz").unlink()
    again = edge("train", "--resume", "--run", "r", "--steps", 2000, cwd=tmp_path)
    assert again.returncode == 71, again.stderr
    assert "algorithm.npz" in again.stderr
    assert "Traceback" not in again.stderr


def test_a_run_in_six_bits_with_a_float_head_exports_what_it_trained(tmp_path):
    words = ["--set", "weight_bits=6", "--set", "activation_bits=6", "--set", "head_output=float32"]
    done = edge(
        "train", "CartPole-v1", "--steps", 1500, "--run", "r", *NO_GOAL, *words, "--format", "json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    report = last_json(done)
    assert (report["audit_failures"], report["conversion_reason"]) == (0, "")
    assert report["int8_return_mean"] > 50
    done = edge("export", "m.tflite", "--from", "r", "--format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    checks = {check["name"]: check for check in last_json(done)["checks"]}
    assert "q_values" not in checks["float"]["message"]
    assert "FULLY_CONNECTED" in checks["float"]["message"]
    played = edge("evaluate", "m.tflite", "--episodes", 20, "--seed", 1000, "--format", "json", cwd=tmp_path)
    assert last_json(played)["return_mean"] == report["int8_return_mean"]
