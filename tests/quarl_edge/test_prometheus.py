"""The endpoint for Prometheus, scraped as Prometheus does."""

import socket
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from quarl_device.errors import QuarlError
from quarl_device.wire.learner_telemetry import Lag, LearnerTelemetry
from quarl_device.wire.messages import DeviceState, Telemetry
from quarl_edge.checkpoint import Checkpoint
from quarl_edge.configure import make_config
from quarl_edge.flow import prometheus as module
from quarl_edge.flow.prometheus import Exporter
from quarl_edge.learner.receiver import ActorView, FlowReport
from quarl_edge.local import training
from quarl_edge.progress import Silent

CONFIG = make_config("CartPole-v1")

BOOT = "0123456789abcdef"
LEARNER = LearnerTelemetry(
    epoch=1, env_steps=1_000, env_steps_per_s=50.0, updates=7, duplicates=2, actors=1, replay_size=900,
    lags={"pi": Lag(versions=3, steps=40, age_s=1.5), "gone": Lag(versions=9)},
)  # fmt: skip


def view(device="pi", **changes):
    state = DeviceState(status="online", device=device, boot_id=BOOT, **changes)
    return ActorView(state=state, telemetry=Telemetry(boot_id=BOOT, steps=11, blocks_pending=4))


REPORT = FlowReport(learner=LEARNER, actors={"pi": view()}, blocked_s={"no actors": 2.5})


def scrape(exporter):
    """Return {(name, labels): value}."""
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


@pytest.fixture
def exporter():
    with Exporter(0) as started:
        yield started


def test_nothing_is_told_before_the_first_report(exporter):
    assert scrape(exporter) == {}


def test_the_last_report_is_told(exporter):
    exporter.observe(REPORT)
    exporter.observe(replace(REPORT, learner=replace(LEARNER, env_steps=2_000)))
    found = scrape(exporter)
    assert found["quarl_learner_env_steps_total",] == 2_000
    assert found["quarl_learner_env_steps_per_second",] == 50
    assert found["quarl_learner_duplicates_total",] == 2
    assert found["quarl_learner_replay_transitions",] == 900
    assert found["quarl_learner_blocked_seconds_total", "no actors"] == 2.5
    assert found["quarl_actor_steps_total", "pi"] == 11
    assert found["quarl_actor_blocks_pending", "pi"] == 4
    assert found["quarl_actor_policy_lag_versions", "pi"] == 3
    assert found["quarl_actor_policy_lag_seconds", "pi"] == 1.5
    assert found["quarl_actor_blocked", "pi"] == 0


def test_it_says_how_old_it_is():
    now = [10.0]
    with Exporter(0, clock=lambda: now[0]) as exporter:
        exporter.observe(REPORT)
        now[0] = 70.0
        assert scrape(exporter)["quarl_learner_report_age_seconds",] == 60


def test_a_return_is_told_once_there_is_one(exporter):
    exporter.observe(REPORT)
    assert ("quarl_learner_int8_return",) not in scrape(exporter)
    exporter.observe(replace(REPORT, learner=replace(LEARNER, int8_return=475.0)))
    assert scrape(exporter)["quarl_learner_int8_return",] == 475


def test_devices_are_told_up_to_a_bound_and_only_while_they_are_online(exporter, monkeypatch):
    monkeypatch.setattr(module, "MAX_DEVICES", 3)
    exporter.observe(replace(REPORT, actors={f"pi-{n}": view(f"pi-{n}", blocked="no credit") for n in range(9)}))
    found = scrape(exporter)
    assert {key[1] for key in found if key[0] == "quarl_actor_steps_total"} == {"pi-0", "pi-1", "pi-2"}
    assert found["quarl_actor_blocked", "pi-0"] == 1
    assert not any("gone" in key for key in found)


def test_a_device_without_telemetry_is_told_without_numbers(exporter):
    exporter.observe(replace(REPORT, actors={"pi": replace(view(), telemetry=None)}))
    found = scrape(exporter)
    assert ("quarl_actor_steps_total", "pi") not in found
    assert found["quarl_actor_blocked", "pi"] == 0


def test_it_listens_on_the_loopback_alone_and_stops(exporter):
    assert exporter._server.server_address[0] == "127.0.0.1"
    exporter.close()
    with pytest.raises(urllib.error.URLError):
        scrape(exporter)


def test_a_port_that_is_taken_is_told_in_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(QuarlError, match="metrics cannot be served at "):
            Exporter(taken.getsockname()[1])


def test_every_name_is_in_the_guide(exporter):
    from pathlib import Path

    guide = (Path(__file__).parents[2] / "docs/guides/flow.md").read_text()
    exporter.observe(replace(REPORT, learner=replace(LEARNER, int8_return=1.0)))
    missing = {key[0] for key in scrape(exporter)} - {word.strip("`,|") for word in guide.split()}
    assert not missing


@pytest.mark.parametrize("steps", [0, 1_216])
def test_before_training_begins_it_tells_how_far_the_run_is(monkeypatch, steps):
    state = {"env_steps": steps, "progression": {"updates": 3 * steps}}
    checkpoint = Checkpoint(state=state, arrays={}) if steps else None
    known = training._at_start(CONFIG, checkpoint)
    with training._exporter(("127.0.0.1", 0), Silent(), known) as (observe,):
        found = scrape(observe.__self__)
    assert found["quarl_learner_env_steps_total",] == steps
    assert found["quarl_learner_updates_total",] == 3 * steps
    assert found["quarl_learner_replay_capacity_transitions",] == CONFIG.replay_capacity
    assert found["quarl_learner_report_age_seconds",] < 60
