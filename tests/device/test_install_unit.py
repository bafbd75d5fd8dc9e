"""The texts of systemd and udev, and what is made of systemctl's answers."""

import shutil
import subprocess

import pytest

from quarl_device.deploy.machine import Rules
from quarl_device.errors import InstallFailed
from quarl_device.install import service
from quarl_device.install.host import Done
from quarl_device.install.unit import udev_text, unit_text
from quarl_device.supervise import rules
from quarl_device.testing.install_host import FakeHost


def fields(text):
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def plain(**changes):
    return unit_text(**{"coral": False, "memory_mib": 0, "start_timeout_s": 100, **changes})


def test_the_unit_says_what_was_agreed():
    said = fields(plain())
    assert said["ExecStart"] == "/opt/quarl-edge/current/bin/quarl-device run --config /etc/quarl-edge/device.toml"
    assert (said["Type"], said["NotifyAccess"], said["Restart"]) == ("notify", "main", "always")
    assert (said["WatchdogSec"], said["User"], said["StateDirectory"]) == ("60", "quarl-edge", "quarl-edge")
    assert (said["RestartPreventExitStatus"], said["TimeoutStartSec"]) == ("2", "180")
    assert "MemoryMax" not in said


def test_the_agents_own_crash_loop_ends_before_systemd_gives_up():
    assert int(fields(plain())["StartLimitBurst"]) > 2 * Rules().max_starts
    assert rules.LIMIT_STARTS * rules.RESTART_S < rules.LIMIT_S


def test_what_is_asked_for_is_in_it():
    assert fields(plain(memory_mib=512))["MemoryMax"] == "512M"
    assert fields(plain(start_timeout_s=600))["TimeoutStartSec"] == "600"
    assert "PrivateDevices=yes" in plain()
    assert "PrivateDevices" not in plain(coral=True)
    assert plain(coral=True).count("DeviceAllow=") == 2
    for group in ("plugdev", "apex"):
        assert f'GROUP="{group}"' in udev_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
@pytest.mark.parametrize("changes", [{}, {"coral": True, "memory_mib": 256}])
def test_systemd_takes_every_line_and_finds_little_exposed(changes, tmp_path):
    text = plain(**changes)
    unit = tmp_path / "quarl-device.service"
    unit.write_text(text.replace("/opt/quarl-edge/current/bin/quarl-device", "/bin/true"))
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert str(unit.name) not in said.stderr, said.stderr
    security = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(unit)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert security.returncode == 0, security.stdout[-500:]


class Answers(FakeHost):
    """Says of the service what a test orders, the last answer for ever."""

    def __init__(self, *answers):
        super().__init__()
        self.answers = list(answers)

    def run(self, words, **others):
        if words[:2] == ["systemctl", "show"]:
            said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            return Done(code=0, said=said)
        if words[0] == "journalctl":
            return Done(code=0, said="-- No entries --\nerror: broker refused")
        return Done(code=0, said="")


def start(*answers, timeout_s=30.0):
    told = []
    return service.start(Answers(*answers), timeout_s=timeout_s, tell=told.append), told


COMING = "ActiveState=activating\nSubState=start\nResult=success\nNRestarts=0\nStatusText=loads its runtime"


def test_it_is_waited_for_until_it_is_ready():
    assert start(COMING, COMING, "ActiveState=active\nSubState=running\nStatusText=waits for a learner")[0] == (
        "waits for a learner"
    )


def test_a_wait_that_is_long_is_told():
    _, told = start(*[COMING] * 30, "ActiveState=active\nStatusText=")
    assert told == ["10 s: loads its runtime"]


def test_what_is_left_of_an_earlier_life_is_no_failure():
    start("ActiveState=inactive\nNRestarts=7", "ActiveState=active")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            "ActiveState=failed\nResult=exit-code\nExecMainStatus=31",
            "it ended with code 31; it said: error: broker refused",
        ),
        ("ActiveState=activating\nSubState=auto-restart\nResult=exit-code\nExecMainStatus=2", "it ended with code 2"),
        (
            "ActiveState=activating\nSubState=start\nNRestarts=1\nResult=watchdog\nExecMainStatus=6",
            "systemd says 'watchdog'",
        ),
        (COMING, "was not ready within 30 s [(]it is activating: loads its runtime[)]"),
        ("", "was not ready within 30 s [(]it is unknown[)]"),
        ("nonsense\n=\n", "was not ready"),
    ],
)
def test_an_agent_that_does_not_come_up_is_told_with_its_last_words(answer, said):
    with pytest.raises(InstallFailed, match=said):
        start(answer)
