"""Big pushes in simulated time: both ends' decisions, a queue per device at the broker, and what networks do."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from push_world import CHUNK, Device, World

FAST = 1e6


def versions(device):
    return [version for _, version, _ in device.done]


def test_eight_devices_cost_one_fan_out():
    world = World([FAST] * 8, chunks=130)
    world.push(1)
    world.run(5.0)
    assert all(versions(device) == [1] for device in world.devices)
    assert len({policy for device in world.devices for _, _, policy in device.done}) == 1
    assert world.sent == 130
    # One question says that a device listens; the rest was heard.
    assert world.needs <= 2 * 8


def test_a_gap_that_eight_devices_have_costs_one_chunk():
    world = World([FAST] * 8, chunks=130)
    lost = set()

    def spoil(chunk, device):
        if chunk.offset != 5 * CHUNK or device.name in lost:
            return True
        lost.add(device.name)
        return False

    world.spoil = spoil
    world.push(1)
    world.run(5.0)
    assert len(lost) == 8
    assert all(versions(device) == [1] for device in world.devices)
    assert world.sent == 131


def test_a_device_that_joins_late_asks_for_everything_and_disturbs_nobody():
    world = World([FAST] * 2, chunks=130)
    world.push(1)
    world.run(5.0)
    late = Device(world, "late", FAST, 7)
    world.devices.append(late)
    before = [device.most_queued for device in world.devices[:2]]
    late.deliver(32, lambda: late.manifest(world.retained))
    world.run(10.0)
    assert versions(late) == [1]
    assert (world.shelf.counters.fanned_out, world.shelf.counters.repaired) == (130, 130)
    assert [device.most_queued for device in world.devices[:2]] == before
    # Asking goes on as answers come, it does not wait for silence.
    assert late.done[0][0] - 5.0 < 0.5


def test_a_device_that_restarts_in_the_middle_has_it_in_the_end():
    world = World([20 * CHUNK, FAST], chunks=100)
    world.push(1)
    world.run(2.0)
    slow = world.devices[0]
    assert 10 < slow.fetch.held < 90
    slow.up = False
    slow.free_s = slow.queued = 0
    world.run(3.0)
    slow.up = True
    slow.restart()
    world.run(60.0)
    assert versions(slow) == [1]


def test_what_arrived_before_a_cut_is_not_sent_again():
    world = World([100 * CHUNK], chunks=200)
    world.push(1)
    world.run(1.0)
    device = world.devices[0]
    held = device.fetch.held
    assert 50 < held < 150
    device.up = False
    world.run(4.0)
    device.up = True
    device.free_s = world.now
    device.fetch.reconnected(world.now)
    device.act()
    world.run(30.0)
    assert versions(device) == [1]
    assert world.shelf.counters.repaired <= 200 - held + 8


def test_a_slow_device_skips_versions_and_is_never_starved():
    """Its link needs 3 s a version, and a new one comes every second."""
    chunks = 90
    world = World([FAST, 30 * CHUNK], chunks=chunks)
    for second in range(120):
        world.at(float(second), lambda version=second + 1: world.push(version))
    world.run(125.0)
    fast, slow = world.devices
    assert versions(fast) == list(range(1, 121))
    found = versions(slow)
    assert found == sorted(set(found))
    # A version at least every 1.5 transfer times, and what waits at the broker for it is never more than two.
    times = [0.0, *(time for time, _, _ in slow.done)]
    assert len(found) >= 120 / 4.5
    assert max(later - sooner for sooner, later in itertools.pairwise(times)) < 1.6 * 3 + 1
    assert slow.most_queued <= 2 * chunks * CHUNK + 32 * 120
    lags = [time - (version - 1) for time, version, _ in slow.done]
    assert max(lags) < 3 * 3 + 1


@pytest.mark.parametrize("loss", [0.02, 0.2])
def test_a_slow_device_that_also_loses_chunks_is_not_starved(loss):
    world = World([FAST, 30 * CHUNK], chunks=90, loss=loss, seed=3)
    for second in range(120):
        world.at(float(second), lambda version=second + 1: world.push(version))
    world.run(120.0)
    assert len(versions(world.devices[1])) >= 12


def test_the_newest_waits_while_another_is_fanned_out_and_those_between_never_go_out():
    world = World([FAST] * 2, chunks=100, uplink=100 * CHUNK)
    for version in range(1, 40):
        world.at(version * 0.1, lambda version=version: world.push(version))
    world.run(20.0)
    for device in world.devices:
        assert versions(device) == world.published
        assert versions(device)[-1] == 39
    assert 4 <= len(world.published) <= 7
    assert world.sent == 100 * len(world.published)


def test_nobody_answers_and_asking_becomes_rare():
    world = World([FAST] * 8, chunks=50)
    world.shelf.next = lambda *_: None
    world.push(1)
    world.run(600.0)
    assert all(5 < device.fetch.counters.asks < 35 for device in world.devices)


def test_a_version_that_nobody_has_any_more_is_given_up_for_the_one_that_waits():
    world = World([FAST], chunks=50)
    device = world.devices[0]
    world.spoil = lambda chunk, _: chunk.offset < 30 * CHUNK or world.retained.version[1] > 1
    world.push(1)
    world.run(1.0)
    assert device.fetch.held == 30
    world.shelf.clear()
    world.push(2)
    world.run(60.0)
    assert versions(device) == [2]


@settings(max_examples=30, deadline=None)
@given(
    rates=st.lists(st.sampled_from([200 * CHUNK, 2_000 * CHUNK, FAST]), min_size=1, max_size=4),
    chunks=st.integers(2, 60),
    loss=st.floats(0, 0.3),
    double=st.floats(0, 0.5),
    late=st.floats(0, 0.5),
    pushes=st.integers(1, 5),
    every_s=st.sampled_from([0.01, 0.2, 2.0]),
    seed=st.integers(0, 1_000),
)
def test_whatever_the_network_does_every_device_ends_with_the_newest_policy(
    rates, chunks, loss, double, late, pushes, every_s, seed
):
    world = World(rates, chunks=chunks, loss=loss, double=double, late=late, seed=seed)
    for number in range(pushes):
        world.at(number * every_s, lambda version=number + 1: world.push(version))
    while world.now < 900.0 and not all(device.used[1] == pushes for device in world.devices):
        world.run(world.now + 1.0)
    wanted = world.shelf._held[-1].policy
    for device in world.devices:
        assert versions(device) == sorted(set(versions(device)))
        assert versions(device)[-1] == pushes
        assert device.done[-1][2] == wanted
        assert device.fetch.manifest is None
