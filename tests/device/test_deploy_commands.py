"""`quarl-device run --mode deploy`, `activate` and `status`, in this process; and what a step gets when it is late."""

import json
import logging
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from deploy_factory import ACROBOT, KEY, OTHER_KEY, RUNTIME, Board, digest, settled, signed, wrong_golden
from stub_delegate import compiled_cartpole, stub_library

from quarl_device import cli
from quarl_device.delegate_spec import parse_delegate
from quarl_device.deploy.machine import Phase
from quarl_device.deploy.slots import Slot, Slots
from quarl_device.errors import EnvironmentMisbehaved
from quarl_device.policy import Policy
from quarl_device.policy_file import read_policy
from quarl_device.runtime.delegated import DelegatedRuntime, ThreadedRuntime
from quarl_device.runtime.litert import LiteRTRuntime
from quarl_device.wire.exploration import Exploration
from quarl_device.wire.push import PushHeader, encode_push


@pytest.fixture(autouse=True)
def as_before():
    """Running the command sets signal handlers, and logging."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    root = logging.getLogger()
    level, kept = root.level, list(root.handlers)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    root.setLevel(level)
    root.handlers[:] = kept


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "learner.pub"
    KEY.public.save(path)
    return str(path)


@pytest.fixture
def asked(tmp_path, capsys):
    """Run a command on the state directory and return its code and its JSON."""

    def ask(*words):
        code = cli.main([*map(str, words), "--state-dir", str(tmp_path / "state"), "--format", "json"])
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    return ask


def stored(tmp_path, data, name="model.qpol"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


# Enough episodes for a policy that is handed over to come through its probation among them.
LONG = ["run", "--mode", "deploy", "--episodes", "150", "--probation-episodes", "1", "--seed", "0"]
RUN = ["run", "--mode", "deploy", "--episodes", "2", "--probation-episodes", "1", "--seed", "0"]


def test_from_nothing_to_a_second_policy(tmp_path, key, asked):
    code, status = asked("status")
    assert (code, status["running"], status["current"], status["last_fault"]) == (0, False, None, None)
    first = stored(tmp_path, signed(1))
    code, summary = asked(*RUN, "--policy", first, "--learner-key", key)
    assert (code, summary["phase"], summary["version"], summary["episodes"]) == (0, "settled", "1", 2)
    # The key is kept, the environment is the policy's own, and the same --policy changes nothing.
    code, summary = asked(*RUN, "--policy", first)
    assert (code, summary["version"]) == (0, "1")
    code, handed = asked("activate", stored(tmp_path, signed(2), "two.qpol"))
    assert (code, handed["name"], handed["running"], handed["already"]) == (0, "2", False, False)
    assert asked("status")[1]["incoming"]["version"] == 2
    assert asked(*LONG)[1]["version"] == "2"
    status = asked("status")[1]
    assert [status[slot]["version"] for slot in ("current", "previous")] == [2, 1]
    assert status["current"]["since_unix_s"] > 1e9
    assert status["ended_cleanly"]
    assert asked("activate", tmp_path / "two.qpol")[1]["already"]
    assert asked("activate", first)[0] == 45
    assert asked("activate", first, "--allow-older")[0] == 0
    assert asked(*LONG)[1]["version"] == "1"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (wrong_golden(2), 12),
        (signed(2, policy=ACROBOT), 22),
        (signed(2, key=OTHER_KEY), 40),
        (signed(2)[:-9], 40),
        (signed(0), 45),
        (b"no such thing", 34),
        (ACROBOT.data, 10),
    ],
    ids=["golden", "spaces", "key", "torn", "older", "junk", "unsigned"],
)
def test_activate_refuses_what_does_not_hold_and_changes_nothing(tmp_path, asked, key, data, code):
    slots = settled(tmp_path / "state")
    before = sorted(path.name for path in slots.directory.iterdir())
    found, said = asked("activate", stored(tmp_path, data), "--learner-key", key)
    assert (found, said["error"]["code"]) == (code, code)
    assert said["error"]["message"]
    assert sorted(path.name for path in slots.directory.iterdir() if path.name != "learner.pub") == before


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["activate", "/no/such/file"], 10, "/no/such/file"),
        ([*RUN, "--env", "CartPole-v1", "--max-upload", "5"], 2, "--max-upload"),
        ([*RUN, "--env", "CartPole-v1", "--envs", "2"], 2, "--envs"),
        ([*RUN, "--env", "CartPole-v1"], 42, "--learner-key"),
        ([*RUN, "--hz", "0"], 2, "--hz"),
        ([*RUN, "--safe-action", "nan"], 2, "finite"),
        (["run", "--hz", "50", "--broker", "mqtt://x"], 2, "--mode deploy"),
    ],
)
def test_wrong_usage_is_one_line_with_a_code(tmp_path, capsys, words, code, says):
    assert cli.main([*words, "--state-dir", str(tmp_path / "state")]) == code
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_broker_that_can_never_be_one_is_wrong_usage(tmp_path, key, asked):
    settled(tmp_path / "state")
    code, said = asked(*RUN, "--learner-key", key, "--broker", "http://x")
    assert (code, said["error"]["code"]) == (2, 2)
    assert "mqtt" in said["error"]["message"]


def test_credentials_that_do_not_hold_keep_nobody_from_acting_who_knows_the_key(tmp_path, key, asked):
    settled(tmp_path / "state")
    broken = tmp_path / "credentials"
    broken.mkdir()
    assert asked(*RUN, "--credentials", broken)[0] == 43
    code, summary = asked(*RUN, "--credentials", broken, "--learner-key", key)
    assert (code, summary["version"]) == (0, "1")
    # The key is kept from then on.
    assert asked(*RUN, "--credentials", broken)[0] == 0


def test_the_key_beside_credentials_that_do_not_hold_today_is_trusted(tmp_path, key, asked):
    settled(tmp_path / "state")
    expired = tmp_path / "credentials"
    expired.mkdir()
    (expired / "learner.pub").write_bytes(Path(key).read_bytes())
    code, summary = asked(*RUN, "--credentials", expired)
    assert (code, summary["version"]) == (0, "1")


def test_a_broker_that_is_not_there_keeps_nobody_from_acting(tmp_path, key, asked):
    settled(tmp_path / "state")
    code, summary = asked(*RUN, "--learner-key", key, "--broker", "mqtt://127.0.0.1:9", "--id", "pi")
    assert (code, summary["version"], summary["episodes"]) == (0, "1", 2)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),
        (["--env", "NoSuchThing-v0"], 20),
        (["--env", "CartPole-v1", "--safe-action", "7"], 2),
        (["--env", "CartPole-v1", "--limit", "-1", "1"], 2),
        (["--env", "CartPole-v1", "--policy", "/no/such/file"], 10),
    ],
)
def test_what_cannot_begin(key, asked, words, code):
    assert asked(*RUN, "--learner-key", key, *words)[0] == code


def test_a_policy_that_does_not_hold_keeps_no_board_from_acting(tmp_path, asked, key):
    bad = stored(tmp_path, signed(9, key=OTHER_KEY))
    assert asked(*RUN, "--policy", bad, "--learner-key", key)[0] == 40
    settled(tmp_path / "state")
    assert asked(*RUN, "--policy", bad, "--learner-key", key)[1]["version"] == "1"


def test_a_policy_that_failed_here_is_not_taken_again_by_itself(tmp_path, asked, key):
    slots = settled(tmp_path / "state")
    slots.path(Slot.REFUSED).write_bytes(signed(2))
    assert asked(*RUN, "--policy", stored(tmp_path, signed(2)), "--learner-key", key)[1]["version"] == "1"
    assert asked("activate", tmp_path / "model.qpol")[0] == 0
    assert asked(*LONG)[1]["version"] == "2"


def test_status_in_words_also_of_what_is_damaged(tmp_path, capsys):
    slots = settled(tmp_path)
    KEY.public.save(slots.directory / "learner.pub")
    slots.path(Slot.PREVIOUS).write_bytes(bytes(99))
    slots.notes_path.write_bytes(bytes(512))
    assert cli.main(["status", "--state", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "current   version 1, sha256" in said
    assert "previous  push: 99 bytes" in said
    assert "not valid JSON" in said
    assert Slots(tmp_path).read(Slot.CURRENT) == signed(1)


class Slow:
    """A runtime whose models take 20 ms."""

    name, version = RUNTIME.name, RUNTIME.version

    def load(self, model, **options):
        return _SlowModel(RUNTIME.load(model, **options))


class _SlowModel:
    def __init__(self, model):
        self.batch_size, self.run, self._infer = model.batch_size, model.run, model.infer

    def infer(self, *inputs):
        time.sleep(0.02)
        return self._infer(*inputs)


def recorded(board):
    """Let the board's environment note what it gets."""
    actions, step = [], board._world.step
    board._world.step = lambda action: actions.append(action) or step(action)
    return actions


def test_at_an_overrun_the_environment_gets_the_safe_action(tmp_path):
    settled(tmp_path)
    board = Board(tmp_path, runtime=Slow(), hz=100.0, safe=(1,))
    actions = recorded(board)
    board.live(episodes=1)
    assert actions == [1] * 8
    counters = board._snapshot().counters
    # The life that settled the policy made no safe step.
    assert (counters.overruns, counters.safe_steps) == (8, 8)


def test_without_a_safe_action_an_overrun_is_counted_alone(tmp_path):
    settled(tmp_path)
    board = Board(tmp_path, runtime=Slow(), hz=100.0)
    board.live(episodes=1)
    counters = board._snapshot().counters
    assert (counters.overruns, counters.safe_steps) == (8, 0)


def test_an_observation_that_is_no_number_is_never_the_policys_fault(tmp_path):
    settled(tmp_path)
    board = Board(tmp_path, safe=(1,))
    board._finite = lambda _: False
    actions = recorded(board)
    board.live(episodes=1)
    assert actions == [1] * 8
    assert (board._snapshot().counters.bad_observations, board.fault) == (8, None)
    blind = Board(tmp_path)
    blind._finite = lambda _: False
    with pytest.raises(EnvironmentMisbehaved, match="NaN or Inf"):
        blind.live(episodes=1)


def compiled(runtime):
    """A signed file that was compiled for the Edge TPU, with the answers that the stub gives."""
    data = compiled_cartpole()
    file = read_policy(data)
    policy = Policy.load(file, runtime=runtime, self_test=False)
    answers = [policy.model.infer(row[None])[0] for row in file.golden.observations["observation"]]
    header = PushHeader(
        epoch=0, version=1, env_steps=0, sha256=file.sha256, exploration=Exploration(kind="none", values=()),
        golden_outputs={"q_values": np.array(answers, np.float32)}, lsb=file.golden.lsb,
    )  # fmt: skip
    return encode_push(header, data, KEY.sign)


def test_a_compiled_file_is_activated_and_acts_through_the_delegate(tmp_path, asked, key):
    delegate = f"edgetpu:usb={stub_library()}"
    runtime = ThreadedRuntime(DelegatedRuntime(LiteRTRuntime(), parse_delegate(delegate)), 2)
    model = stored(tmp_path, compiled(runtime))
    code, said = asked("activate", model, "--learner-key", key)
    assert code == 10
    assert "--delegate edgetpu" in said["error"]["hint"]
    assert asked("activate", model, "--delegate", delegate, "--delegate-required", "--threads", "2")[0] == 0
    board = Board(tmp_path / "state", runtime=runtime).live()
    assert (board.phase, board.acting) == (Phase.SETTLED, digest(model.read_bytes()))
