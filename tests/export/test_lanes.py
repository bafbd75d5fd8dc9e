"""Lanes: every task once, results in order, errors after everything has ended."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_export import lanes as module
from quarl_export.lanes import MAX_LANES, in_lanes, processors
from quarl_export.patch import writer as writing
from quarl_export.patch.builder import build_writer
from quarl_export.patch.values import probe
from quarl_export.qat_graph import normalizer_shapes, spec_plan


@given(count=st.integers(0, 20), lanes=st.integers(1, 6))
def test_every_task_runs_once_and_results_keep_their_order(count, lanes):
    ran = []

    def task(number):
        def run(lane):
            ran.append(number)
            return number, lane

        return run

    done = in_lanes([task(number) for number in range(count)], lanes)
    assert sorted(ran) == list(range(count))
    assert [number for number, _ in done] == list(range(count))
    assert all(lane == number % max(1, min(lanes, count)) for number, lane in done)


def test_lanes_run_side_by_side_and_leave_no_thread():
    before = threading.active_count()
    meet = threading.Barrier(3)
    in_lanes([lambda _lane: meet.wait(30)] * 3, 3)
    assert threading.active_count() == before


def test_one_lane_is_the_callers_thread():
    assert in_lanes([lambda _lane: threading.current_thread()] * 2, 1) == [threading.current_thread()] * 2


@pytest.mark.parametrize("wrong", [0, 1])
def test_an_error_comes_out_when_all_lanes_have_ended(wrong):
    ended = []

    def task(number):
        def run(_lane):
            if number == wrong:
                raise ValueError("wrong")
            ended.append(number)

        return run

    with pytest.raises(ValueError, match="wrong"):
        in_lanes([task(number) for number in range(2)], 2)
    assert ended == [1 - wrong]


def test_there_is_a_processor_and_no_more_lanes_than_allowed(monkeypatch):
    assert 1 <= processors() <= MAX_LANES
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _pid: set(range(64)), raising=False)
    assert processors() == MAX_LANES


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_file_that_lanes_share_is_the_same_byte_for_byte(monkeypatch, per_channel):
    import dataclasses

    from quarl_device.contract import ActionSpec, ObservationSpec
    from quarl_export.networks import NetworkSpec

    spec = NetworkSpec(
        observations=(ObservationSpec(key="observation", shape=(5,)),),
        action=ActionSpec(kind="discrete", n=3),
        hidden=(700, 500),
    )
    plan, shapes = spec_plan(spec), normalizer_shapes(spec, normalized=True)
    if per_channel:
        plan = dataclasses.replace(plan, options=dataclasses.replace(plan.options, per_channel=True))
    monkeypatch.setattr(writing, "processors", lambda: 3)
    files = []
    for least in (1 << 40, 1):
        monkeypatch.setattr(writing, "_SHARED_WEIGHTS", least)
        writer = build_writer(plan, shapes, verify=False)
        assert len(writer._scratch) == (3 if least == 1 else 1)
        files.append([writer.write(probe(plan, shapes, seed=seed)) for seed in range(2)])
    assert files[0] == files[1]
    assert files[0][0] != files[0][1]


def test_a_kernel_is_looked_through_in_pieces(monkeypatch):
    from quarl_export import kernels

    monkeypatch.setattr(kernels, "_BLOCK_WEIGHTS", 4)
    values = np.arange(-11, 8, dtype=np.float32)
    for place in (0, 5, 18):
        rolled = np.roll(values, place)
        assert kernels._magnitude(rolled) == 11
        rolled[place] = np.nan
        assert np.isnan(kernels._magnitude(rolled))
