"""`--config FILE`: keys are the options of `run`, read by their own parsers; the command line wins."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device import cli, commands
from quarl_device.config_file import parse_values, read_config
from quarl_device.delegate_spec import DelegateSpec
from quarl_device.errors import UsageError


def parsed(words):
    """Return what a command would have been given."""
    parser = commands._parser()
    return commands.with_config(parser, words, parser.parse_args(words))


def run_parser():
    return commands._parser().parse_args(["run"]).configurable


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "device.toml"

    def write(text):
        path.write_text(text)
        return str(path)

    return write


WHOLE = """\
mode = "deploy"
broker = "mqtts://broker.local:8883"
credentials = "/etc/quarl-edge/credentials"
fleet = "lab"
id = "pi-1"
env = "my_robot:Arm-v0"
state_dir = "/var/lib/quarl-edge"
delegate = "edgetpu:usb"
hz = 50
threads = 2
spool_sync = 30
safe_action = [0, 0.5]
limit = [[-1, 1], [-0.5, 0.5]]
exit_when_gone = true
"""


def test_every_kind_of_option_is_read(file):
    options = parsed(["run", "--config", file(WHOLE)])
    assert (options.mode, options.fleet, options.id, options.env) == ("deploy", "lab", "pi-1", "my_robot:Arm-v0")
    assert options.broker == "mqtts://broker.local:8883"
    assert options.credentials == Path("/etc/quarl-edge/credentials")
    assert options.state_dir == Path("/var/lib/quarl-edge")
    assert isinstance(options.delegate, DelegateSpec)
    assert (options.hz, options.threads, options.spool_sync) == (50.0, 2, ("interval", 30.0))
    assert options.safe_action == [0.0, 0.5]
    assert options.limit == [[-1.0, 1.0], [-0.5, 0.5]]
    assert options.exit_when_gone is True


def test_what_is_not_named_keeps_its_default(file):
    assert vars(parsed(["run", "--config", file("")])) | {
        "config": None,
        "configurable": 0,
        "configured_as": 0,
    } == vars(parsed(["run"])) | {"config": None, "configurable": 0, "configured_as": 0}


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--mode", "train"], "mode", "train"),
        (["--hz", "10"], "hz", 10.0),
        (["--id", "other"], "id", "other"),
        (["--safe-action", "1"], "safe_action", [1.0]),
        (["--limit", "-2", "2"], "limit", [[-2.0, 2.0]]),
        (["--spool-sync", "never"], "spool_sync", ("never", 3600.0)),
        (["--delegate", "cpu"], "delegate", None),
    ],
)
def test_the_command_line_wins(file, words, name, value):
    path = file(WHOLE)
    assert getattr(parsed(["run", "--config", path, *words]), name) == value
    assert getattr(parsed(["run", *words, "--config", path]), name) == value


def test_relative_paths_are_relative_to_the_file(file, tmp_path):
    options = parsed(["run", "--config", file('credentials = "mine"\nlearner_key = "../key.pub"\n')])
    assert options.credentials == tmp_path / "mine"
    assert options.learner_key == tmp_path / "../key.pub"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("brokr = 'x'", "did you mean broker?"),
        ("password = 'x'", "did you mean password_file?"),
        ("state-dir = '/x'", "did you mean state_dir?"),
        ("zzzzzz = 1", "with underscores"),
        ("config = 'x'", "unknown key 'config'"),
        ("help = true", "unknown key 'help'"),
        ("die_with_parent = true", "unknown key 'die_with_parent'"),
        ("[mode]\nx = 1", "mode: expected text or a number, found a table"),
        ("mode = 'fly'", "mode: expected one of train, deploy, found 'fly'"),
        ("broker = 5", "broker: expected text in quotes, found 5"),
        ("state_dir = 5", "state_dir: expected text in quotes"),
        ("state_dir = ''", "state_dir: expected a path"),
        ("fleet = true", "fleet: expected text or a number, found true"),
        ("envs = 0", "envs: expected a whole number in 1..4096"),
        ("envs = 2.5", "envs: expected a whole number"),
        ("envs = '2'", "envs: expected a number without quotes, found '2'"),
        (f"envs = {'9' * 60}", "envs: expected a whole number"),
        (f"envs = {'9' * 6000}", "is not TOML"),
        (f"envs = 0x{'f' * 6000}", "envs: expected a whole number"),
        ("envs = [2]", "envs: expected text or a number, found a list"),
        ("hz = nan", "hz: expected a finite number"),
        ("hz = 1979-05-27", "hz: expected text or a number, found a date or time"),
        ("exit_when_gone = 1", "exit_when_gone: expected true or false, found 1"),
        ("limit = [0, 1]", "limit: expected a list"),
        ("limit = [[0, 1, 2]]", "limit: expected lists of 2"),
        ("safe_action = []", "safe_action: expected a list"),
        ("safe_action = 1", "safe_action: expected a list, found 1"),
        ("safe_action = [[1]]", "safe_action: expected text or a number"),
        ("delegate = 'gpu'", "delegate: "),
        ('id = "a\\nb"', "id: expected text of one line"),
        (f"id = '{'a' * 5000}'", "id: expected text of one line"),
        ("mode = 'train'\nmode = 'deploy'", "is not TOML"),
        ("mode", "is not TOML"),
        ("a = " + "[" * 5000, "is not TOML"),
        ("# " + "x" * 70_000, "over its cap of 65,536 bytes"),
    ],
)
def test_what_does_not_hold_names_file_and_key(file, text, says, capsys):
    path = file(text)
    assert cli.main(["run", "--config", path]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert path in error
    assert len(error) < 700
    assert "Traceback" not in error


def test_a_secret_that_was_put_under_a_key_of_no_option_is_not_shown(file, capsys):
    assert cli.main(["run", "--config", file("password = 'hunter2'")]) == 2
    assert "hunter2" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("bad", ["missing", "folder", "binary"])
def test_a_file_that_cannot_be_read(tmp_path, bad, capsys):
    path = tmp_path / "device.toml"
    if bad == "folder":
        path.mkdir()
    elif bad == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    assert cli.main(["run", "--config", str(path), "--format", "json"]) == 2
    said = json.loads(capsys.readouterr().out)["error"]
    assert said["code"] == 2
    assert str(path) in said["message"]


@pytest.mark.parametrize("command", [["doctor"], ["status"], ["activate", "model.qpol"]])
def test_other_commands_take_what_they_share(file, command):
    options = parsed([*command, "--config", file(WHOLE + "format = 'json'\n")])
    assert options.state_dir == Path("/var/lib/quarl-edge")
    assert options.format == "text"  # it is of the summary of `run`
    assert not hasattr(options, "hz")
    assert options.command is parsed(command).command


def test_other_commands_refuse_what_run_would(file, capsys):
    assert cli.main(["status", "--config", file("envs = 0")]) == 2
    assert "envs" in capsys.readouterr().err


def test_status_reads_the_directory_that_the_file_names(file, tmp_path, capsys):
    (tmp_path / "state").mkdir()
    assert cli.main(["status", "--format", "json", "--config", file("state_dir = 'state'")]) == 0
    assert json.loads(capsys.readouterr().out)["directory"] == str(tmp_path / "state/deploy")


def test_every_option_that_is_shown_can_be_named(file):
    shown = {
        action.dest
        for action in run_parser()._actions
        if action.option_strings and action.dest not in ("help", "config", "die_with_parent")
    }
    for name in shown:
        with pytest.raises(UsageError, match=f"{name}: expected"):
            read_config(Path(file(f"{name} = {{}}")), run_parser())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=6,
)
NAMES = st.sampled_from(["mode", "broker", "state_dir", "envs", "hz", "limit", "safe_action", "spool_sync", "delegate"])


@given(st.dictionaries(NAMES | st.text(max_size=20), VALUES, max_size=3))
def test_whatever_is_said_is_read_or_refused(said):
    try:
        found = parse_values(said, run_parser(), folder=Path("/somewhere"))
    except UsageError:
        return
    assert found.keys() == said.keys()
