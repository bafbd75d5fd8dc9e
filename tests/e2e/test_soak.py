"""The soak itself, on processes, links and a broker that are real. Its seed gives every kind of fault."""

import pytest
from runs_helper import edge, last_json

from quarl_edge.soak.run import SoakConfig
from quarl_edge.soak.schedule import KINDS, make_schedule

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(430)]

SECONDS, SEED = 180, 4


def test_the_schedule_has_every_kind_of_fault_in_it():
    schedule = make_schedule(SEED, seconds=SECONDS, devices=SoakConfig().devices)
    assert {fault.kind for fault in schedule} == set(KINDS)


def test_every_step_is_accounted_for_after_kills_cuts_full_disks_and_lost_packets(tmp_path):
    done = edge(
        "bench", "soak", "--seconds", SECONDS, "--seed", SEED, "--work", "soak", "--format", "json",
        cwd=tmp_path, timeout=410,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = last_json(done)
    print(report)  # noqa: T201
    assert report["ok"]
    assert report["broker_kills"] > 1
    assert report["learner_kills"] > 1
    assert sum(books["kills"] for books in report["devices"]) > 1
    for books in report["devices"]:
        accounted = books["stored"] + books["declared_dropped"] + books["forgotten"] + books["unfinished"]
        assert accounted == books["made"] > 5_000
        drops = books["device"] == SoakConfig().dropper
        assert not drops or books["declared_dropped"] > 0
        assert books["unfinished"] <= books["kills"] * SoakConfig().block_steps
        assert books["duplicates"] == 0
