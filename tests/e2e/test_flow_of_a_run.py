"""A real run, watched from outside: `quarl-edge top`, and Prometheus' scrapes."""

import re
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from runs_helper import EDGE, Started, edge, last_json
from secured_broker import SecuredBroker

from quarl_device.testing.mosquitto import Mosquitto
from quarl_device.wire.messages import DeviceState
from quarl_device.wire.topics import Topics

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def scrape(url):
    """Return {(name, labels): value}, {} while nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310  our own URL
            text = answer.read().decode()
    except urllib.error.URLError:
        return {}
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def test_a_run_is_seen_from_outside(tmp_path):
    words = [*EDGE, "train", "Acrobot-v1", "--actors", 2, "--steps", 10**9, "--run", "r", "--set", "goal_return=none"]
    with Mosquitto() as broker:
        words += ["--broker", broker.url, "--fleet", "lab", "--metrics-port", 0, "--max-policy-lag", "1000 s"]
        with Started(words, cwd=tmp_path, log=tmp_path / "log") as run:
            run.wait_for(lambda: "/metrics" in run.said(), seconds=60, what="it named its endpoint")
            url = re.search(r"http://127\.0\.0\.1:\d+/metrics", run.said()).group()
            run.wait_for(
                lambda: scrape(url).get(("quarl_learner_updates_total",), 0) > 0
                and ("quarl_actor_policy_lag_versions", "actor-1") in scrape(url),
                seconds=120, what="it learned from both actors",
            )  # fmt: skip
            first = scrape(url)
            seen = edge("top", "--broker", broker.url, "--fleet", "lab", "--once", "--format", "json", cwd=tmp_path)
            shown = edge("top", "--broker", broker.url, "--fleet", "lab", "--once", cwd=tmp_path)
            run.wait_for(
                lambda: scrape(url)["quarl_learner_env_steps_total",] > first["quarl_learner_env_steps_total",],
                seconds=30, what="its numbers grew",
            )  # fmt: skip
            assert run.end()[0] == 0
    assert seen.returncode == shown.returncode == 0, seen.stderr + shown.stderr
    said = last_json(seen)
    learner, actors = said["learner"], {row["device"]: row for row in said["actors"]}
    assert (learner["status"], learner["env"]) == ("online", "Acrobot-v1")
    assert learner["env_steps"] >= first["quarl_learner_env_steps_total",] > 0
    assert set(actors) == {"actor-0", "actor-1"}
    for row in actors.values():
        assert row["steps"] > 0
        assert row["heard_s"] < 5
        assert 0 <= row["lag"]["versions"] <= learner["policy_version"]
    assert "actor-1" in shown.stdout
    assert scrape(url) == {}, "the endpoint ends with the run"


def test_without_prometheus_client_it_says_what_to_install(tmp_path):
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "prometheus_client.py").write_text("raise ImportError\n")
    done = edge(
        "train", "CartPole-v1", "--steps", 1000, "--metrics-port", 0, cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "block")},
    )  # fmt: skip
    assert done.returncode == 80, done.stderr
    assert "pip install 'quarl-edge[metrics]'" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_bound_that_is_none_is_refused_before_anything_starts(tmp_path):
    done = edge("train", "CartPole-v1", "--max-policy-lag", "soon", cwd=tmp_path)
    assert done.returncode == 2
    assert "'30 s'" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_viewer_sees_a_secured_fleet_and_neither_device_nor_learner_looks_on(tmp_path):
    clients = {"watcher": ("viewer", "lab"), "pi": ("device", "lab")}
    state = DeviceState(status="online", device="pi", boot_id="0123456789abcdef")
    with SecuredBroker(clients) as broker:
        pi = broker.link("pi")
        pi.connect(timeout_s=20)
        assert pi.publish(Topics("lab").state("pi"), state.encode(), retain=True)
        assert pi.flush(timeout_s=10)
        words = ["top", "--once", "--wait", 2, "--format", "json"]
        seen = edge(*words, "--credentials", broker.path / "clients" / "watcher", cwd=tmp_path)
        refused = [
            edge(*words, "--credentials", broker.path / "clients" / name, cwd=tmp_path) for name in ("pi", "learner")
        ]
        pi.close()
    assert seen.returncode == 0, seen.stderr
    said = last_json(seen)
    assert (said["fleet"], [row["device"] for row in said["actors"]]) == ("lab", ["pi"])
    assert [done.returncode for done in refused] == [2, 2]
    assert all("--role viewer" in done.stderr for done in refused)
