"""Processes of a soak: killed, starved, ended; and the environment whose count a kill does not reach."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import pytest

from quarl_device.errors import QuarlError
from quarl_edge.soak.books import read_counts
from quarl_edge.soak.cast import Player
from quarl_edge.soak.environment import COUNTS_VARIABLE, ENV_ID, Counted

DEADLINE_S = 60


@pytest.fixture
def player(tmp_path):
    one = Player("p", folder=tmp_path, environment={"HERE": str(tmp_path)})
    yield one
    one.close()


def script(text):
    return [sys.executable, "-c", text]


def wait_for(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_it_says_last_is_returned_and_each_start_has_logs_of_its_own(player, tmp_path):
    for number in (1, 2):
        player.start(script(f'print("word"); print(\'{{"number": {number}}}\')'))
        assert player.end(timeout_s=DEADLINE_S, ask=False) == {"number": number}
    assert sorted(path.name for path in tmp_path.glob("*.out")) == ["p-001.out", "p-002.out"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys; sys.stderr.write('broken'); sys.exit(3)", "p ended with 3: broken"),
        ("print('no json')", "p ended without a summary"),
        ("", "it said nothing"),
        ("import time; time.sleep(60)", "did not end within"),
    ],
)
def test_an_end_that_is_not_in_order_is_an_error(player, text, said):
    player.start(script(text))
    with pytest.raises(QuarlError, match=said):
        player.end(timeout_s=1 if "sleep" in text else DEADLINE_S, ask=False)


def test_a_kill_is_counted_once_and_is_no_fault(player):
    player.start(script("import time; time.sleep(60)"))
    player.kill()
    player.kill()
    player.attend()
    assert (player.kills, player.running, player.faults, player.returns) == (1, False, [], 0)


@pytest.mark.parametrize(("status", "faults"), [(30, 0), (1, 1), (52, 1), (0, 1)])
def test_what_ends_by_itself_is_started_again_and_is_a_fault_but_for_an_unreachable_broker(player, status, faults):
    player.start(script(f"import sys; sys.exit({status})"))
    wait_for(lambda: not player.running)
    player.attend()
    assert (player.returns, len(player.faults)) == (1, faults)


def test_a_full_disk_stops_writes_of_that_process_and_is_mended(player, tmp_path):
    player.start(
        script(
            "import os, time\n"
            "file = open(os.environ['HERE'] + '/data', 'wb', buffering=0)\n"
            "while True:\n"
            "    try: file.write(b'x')\n"
            "    except OSError: open(os.environ['HERE'] + '/refused', 'w').close()\n"
            "    time.sleep(0.005)\n"
        )
    )
    data = tmp_path / "data"
    wait_for(lambda: data.exists() and data.stat().st_size > 2)
    player.fill_disk(True)
    wait_for((tmp_path / "refused").exists)
    size = data.stat().st_size
    time.sleep(0.1)
    assert data.stat().st_size == size
    player.fill_disk(False)
    wait_for(lambda: data.stat().st_size > size)


def test_the_reward_is_the_number_of_the_step_and_the_count_outlives_a_kill(tmp_path):
    (tmp_path / "counts").mkdir()
    program = (
        f"import gymnasium, os, sys, quarl_edge.soak.environment\n"
        f"env = gymnasium.make({ENV_ID!r}); env.reset(seed=0)\n"
        f"rewards = [env.step(0)[1] for _ in range(5)]\n"
        f"assert rewards == [n / 1024 for n in range(1, 6)], rewards\n"
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    done = subprocess.run(
        script(program), env={**os.environ, COUNTS_VARIABLE: str(tmp_path / "counts")}, check=False, timeout=DEADLINE_S
    )
    assert done.returncode == -signal.SIGKILL
    assert read_counts(tmp_path / "counts") == 5


def test_a_rate_holds_it_back(tmp_path):
    env = Counted(gymnasium.make("CartPole-v1"), Path(tmp_path), steps_per_s=200)
    env.reset(seed=0)
    began = time.monotonic()
    for _ in range(32):
        if any(env.step(0)[2:4]):
            env.reset()
    assert time.monotonic() - began >= 0.15
    env.close()
