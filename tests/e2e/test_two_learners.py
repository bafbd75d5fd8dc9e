"""W8 over a real broker: two learners with one account, one that takes over, and local actors on a user's broker."""

import json
import signal

import pytest
from runs_helper import DEVICE, EDGE, Started, edge, last_json

from quarl_device.testing.mosquitto import Mosquitto

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

NO_GOAL = ["--set", "goal_return=none"]
ENV = {"QUARL_MQTT_PASSWORD": "one"}


@pytest.fixture(scope="module")
def mosquitto():
    with Mosquitto({"lab": "one"}) as broker:
        yield broker


def words_of(broker, tmp_path, *, fleet, run):
    url = broker.url.replace("mqtt://", "mqtt://lab@")
    words = ["train", "CartPole-v1", "--broker", url, "--fleet", fleet, "--run", run, "--actors", 0]
    return [*words, "--learner-key", tmp_path / "key", "--format", "json", *NO_GOAL]


def test_w8_learners_with_one_account_do_not_throw_each_other_off(tmp_path, mosquitto):
    """A broker evicts the older of two clients with one id; an account is not an id."""
    busy = words_of(mosquitto, tmp_path, fleet="busy", run="a")
    with Started([*EDGE, *busy], cwd=tmp_path, log=tmp_path / "a.log", env=ENV) as first:
        first.wait_for(lambda: "waiting for actors" in first.said(), seconds=90, what="its birth")
        same = edge(*words_of(mosquitto, tmp_path, fleet="busy", run="b"), cwd=tmp_path, env=ENV, timeout=90)
        assert same.returncode == 70, same.stderr
        assert "--takeover" in same.stderr
        # Another fleet of the same account trains beside it, with actors of its own on the same broker.
        other = words_of(mosquitto, tmp_path, fleet="other", run="c")
        other[other.index("--actors") + 1] = 1
        other += ["--steps", 1500]
        done = edge(*other, cwd=tmp_path, env=ENV, timeout=120)
        assert done.returncode == 0, done.stderr
        assert last_json(done)["env_steps"] >= 1500
        assert '"one"' not in (tmp_path / "c" / "config.json").read_text()
        assert first.process.poll() is None
        assert "link" not in first.said()
        code, out = first.end(signal.SIGINT)
    assert code == 0
    assert json.loads(out.splitlines()[-1])["reason"] == "interrupted"


def test_w8_a_takeover_ends_the_learner_that_was_there_with_a_checkpoint(tmp_path, mosquitto):
    url = mosquitto.url.replace("mqtt://", "mqtt://lab@")
    actor = [*DEVICE, "run", "--broker", url, "--fleet", "taken", "--id", "pi-1", "--learner-key", tmp_path / "key.pub"]
    first_words = words_of(mosquitto, tmp_path, fleet="taken", run="a")
    with Started([*EDGE, *first_words], cwd=tmp_path, log=tmp_path / "a.log", env=ENV) as first:
        first.wait_for((tmp_path / "a" / "learner.pub").exists, seconds=90, what="its key")
        (tmp_path / "key.pub").write_bytes((tmp_path / "a" / "learner.pub").read_bytes())
        with Started(actor, cwd=tmp_path, log=tmp_path / "actor.log", env=ENV) as device:
            first.wait_for(lambda: "int8 return" in first.said(), seconds=90, what="training")
            second = words_of(mosquitto, tmp_path, fleet="taken", run="b")
            done = edge(*second, "--takeover", "--steps", 1500, cwd=tmp_path, env=ENV, timeout=120)
            assert done.returncode == 0, done.stderr
            assert last_json(done)["env_steps"] >= 1500
            first.process.wait(30)
            assert first.process.returncode == 70, first.said()
            assert "taken this fleet over" in first.said()
            assert list((tmp_path / "a" / "checkpoints").glob("ckpt-*"))
            device.end()
