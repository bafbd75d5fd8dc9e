"""The emulated board itself: what every other test of this folder takes for granted."""

import json

import pytest
from board_memory import MemoryLimit
from board_network import HOST

pytestmark = [pytest.mark.board, pytest.mark.e2e, pytest.mark.timeout(1800)]


def test_it_is_another_processor_with_systemd_as_its_first_process(machine, recipe):
    assert machine.run("uname", "-m").stdout.strip() == recipe.processor
    assert machine.run("cat", "/proc/1/comm").stdout.strip() == "systemd"
    state = machine.run("systemctl", "is-system-running", "--wait", check=False).stdout.strip()
    failed = machine.run("systemctl", "list-units", "--state=failed", "--no-legend", "--plain").stdout
    assert (state, failed) == ("running", "")


def test_a_person_comes_in_by_ssh_and_may_use_sudo(machine):
    done = machine.ssh("sudo -n id -un; id -un; exit 7")
    assert (done.stdout.split(), done.returncode) == (["root", "pi"], 7)


def test_it_reaches_the_other_end_of_its_cable_and_nothing_else(machine):
    routes = json.loads(machine.run("ip", "-json", "route").stdout)
    assert [route["dst"] for route in routes] == [f"{HOST.rpartition('.')[0]}.0/24"]
    links = json.loads(machine.run("ip", "-json", "link").stdout)
    assert sorted(link["ifname"] for link in links if link["operstate"] in {"UP", "UNKNOWN"}) == ["host0", "lo"]


def test_memory_is_limited_from_outside(machine):
    limit = MemoryLimit("quarl-board-trial", mib=96)
    try:
        eat = "b = bytearray(16 << 20); print('small', flush=True); b = bytearray(512 << 20); print('large')"
        done = machine.run("python3", "-c", eat, memory=limit, check=False)
        assert done.stdout.split() == ["small"]
        assert done.returncode != 0
        assert limit.peak_bytes() <= 96 << 20
    finally:
        limit.close()


def test_it_comes_back_from_a_reboot_and_from_a_power_cut_with_what_was_written(machine):
    first = machine.run("cat", "/proc/1/stat").stdout.split()[21]
    machine.run("sh", "-c", "echo kept > /srv/kept && sync")
    machine.reboot()
    second = machine.run("cat", "/proc/1/stat").stdout.split()[21]
    machine.cut_power()
    machine.boot()
    third = machine.run("cat", "/proc/1/stat").stdout.split()[21]
    assert len({first, second, third}) == 3
    assert machine.run("cat", "/srv/kept").stdout == "kept\n"
