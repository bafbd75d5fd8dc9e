"""The command `quarl-device`: help, usage, one-line errors with their codes. Running it is in tests/e2e."""

import json
import logging
import os
import signal
import subprocess
import sys

import pytest

from quarl_device import __version__, cli, commands
from quarl_device.actor import bench, board_bench
from quarl_device.actor.agent import AgentConfig, Summary
from quarl_device.actor.outbox import MemoryOutbox
from quarl_device.runtime.litert import MAX_BATCH_SIZE
from quarl_device.spool.disk import DiskSpool


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


@pytest.mark.parametrize("command", ["run", "bench"])
def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "examples:" in out
    assert f"  quarl-device {command}" in out
    assert "die-with-parent" not in out


def test_version(capsys):
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == f"quarl-device {__version__}\n"


RUN = ["run", "--broker", "mqtt://127.0.0.1:9"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "--help"),
        (["nonsense"], 2, "nonsense"),
        (["run"], 2, "--broker"),
        (["run", "--broker", "http://x"], 2, "mqtt"),
        (["run", "--broker", "mqtt://a:secret@h"], 2, "QUARL_MQTT_PASSWORD"),
        ([*RUN, "--fleet", "My Fleet"], 2, "my-fleet"),
        ([*RUN, "--id", "-"], 2, "device name"),
        ([*RUN, "--envs", "0"], 2, "1..4096"),
        ([*RUN, "--envs", "5000"], 2, "1..4096"),
        ([*RUN, "--steps", "1e6"], 2, "whole number"),
        ([*RUN, "--seed", "-1"], 2, "0.."),
        ([*RUN, "--format", "xml"], 2, "xml"),
        ([*RUN, "--runtime", "none-such"], 2, "none-such"),
        ([*RUN, "--learner-key", "/no/such/file"], 42, "/no/such/file"),
        ([*RUN, "--password-file", "/no/such/file"], None, "/no/such/file"),
        (["bench", "/no/such/file"], 10, "/no/such/file"),
        (["bench", "--envs", "0"], 2, "1..4096"),
        (["bench", "--hz", "0"], 2, "1..10000"),
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_errors_are_one_line_and_have_a_code(words, code, says, as_json, capsys):
    found = cli.main([*words, "--format", "json"] if as_json and "--format" not in words else words)
    out, err = capsys.readouterr()
    assert found == code or (code is None and found not in (0, 1))
    assert says in err
    assert err.startswith("quarl-device: error: ")
    assert err.count("\n") == 1
    assert "secret@" not in err
    if as_json and "--format" not in words:
        error = json.loads(out.splitlines()[-1])["error"]
        assert error["code"] == found
        assert set(error) == {"code", "kind", "message", "hint"}
    else:
        assert not out


def test_no_broker_is_code_30(monkeypatch, capsys):
    monkeypatch.setattr(commands, "_CONNECT_TIMEOUT_S", 0.3)
    assert cli.main([*RUN, "--quiet", "--format", "json"]) == 30
    out, err = capsys.readouterr()
    assert "127.0.0.1:9" in err
    assert json.loads(out)["error"]["kind"] == "BrokerUnreachable"


SUMMARY = Summary(
    steps=1000,
    episodes=3,
    blocks=9,
    blocks_pending=1,
    blocks_dropped=4,
    steps_dropped=640,
    steps_per_s=5.0,
    act_us_p50=1.5,
    policies=2,
    reason="stopped",
)


@pytest.mark.parametrize("form", ["json", "text"])
def test_the_last_line_is_the_summary(form, monkeypatch, capsys, caplog):
    configs = []

    class Stub:
        def __init__(self, config, **_):
            configs.append(config)

        def run(self):
            return SUMMARY

    monkeypatch.setattr("quarl_device.actor.agent.Agent", Stub)
    words = ["run", "--broker", "mqtt://pi-7@127.0.0.1", "--envs", "4", "--steps", "9", "--env", "m:X"]
    with caplog.at_level(logging.INFO):
        assert cli.main([*words, "--format", form]) == 0
    out = capsys.readouterr().out
    assert "pi-7 joins fleet default" in caplog.text
    [config] = configs
    assert (config.name, config.num_envs, config.max_steps, config.env, config.seed) == ("pi-7", 4, 9, "m:X", None)
    if form == "json":
        assert json.loads(out.splitlines()[-1])["steps"] == 1000
    else:
        assert out.startswith("pi-7: 1,000 steps, 3 episodes, 9 blocks (1 not acknowledged, 4 dropped), 2 policies")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], {"max_bytes": 256 * 2**20, "when_full": "block", "sync": "interval", "sync_interval_s": 5.0}),
        (["--spool-mib", "8", "--when-full", "drop-oldest", "--spool-sync", "always"],
         {"max_bytes": 8 * 2**20, "when_full": "drop-oldest", "sync": "always"}),
        (["--spool-sync", "60"], {"sync": "interval", "sync_interval_s": 60.0}),
    ],
)  # fmt: skip
def test_experience_waits_on_disk_unless_told_otherwise(words, expected, monkeypatch, tmp_path):
    made = []

    class Stub:
        def __init__(self, config, *, outbox, **_):
            made.append((config, outbox))

        def run(self):
            made[0][1].close()
            return SUMMARY

    monkeypatch.setattr("quarl_device.actor.agent.Agent", Stub)
    run = ["run", "--broker", "mqtt://h", "--id", "pi-7", "--fleet", "lab", "--state-dir", str(tmp_path)]
    assert cli.main([*run, *words, "--max-offline", "7", "--max-upload", "3", "--edge-tpu-max-lag", "9"]) == 0
    [(config, outbox)] = made
    assert isinstance(outbox, DiskSpool)
    assert {name: getattr(outbox._config, name) for name in expected} == expected
    assert (tmp_path / "spool" / "lab.pi-7" / "lock").exists()
    assert (config.max_offline_s, config.max_upload_bytes_per_s) == (7, 3 * 1024)
    assert config.max_offline_blocks is None
    assert config.edge_tpu_max_lag_s == 9


def test_with_an_edge_tpu_a_replaced_policy_may_act_for_half_a_minute(capsys):
    assert AgentConfig(fleet="lab", name="pi").edge_tpu_max_lag_s == 30.0
    assert cli.main(["run", "--mode", "deploy", "--edge-tpu-max-lag", "9"]) == 2
    assert "--edge-tpu-max-lag: of no use with --mode deploy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "bounds"),
    [
        ([], (60, 64)),
        (["--max-offline", "7200"], (7200, None)),
        (["--max-offline-blocks", "9"], (60, 9)),
        (["--max-offline", "5", "--max-offline-blocks", "0"], (5, 0)),
    ],
)
def test_a_device_bounds_what_it_makes_offline_unless_it_is_told_for_how_long(monkeypatch, words, bounds):
    made = []
    monkeypatch.setattr("quarl_device.actor.agent.Agent.run", lambda self: made.append(self._config) or SUMMARY)
    assert cli.main(["run", "--broker", "mqtt://h", "--id", "pi-7", "--spool", "memory", *words]) == 0
    assert [(config.max_offline_s, config.max_offline_blocks) for config in made] == [bounds]


def test_a_spool_in_memory_touches_no_disk(monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr("quarl_device.actor.agent.Agent.run", lambda self: made.append(self) or SUMMARY)
    words = ["run", "--broker", "mqtt://h", "--state-dir", str(tmp_path / "s"), "--spool", "memory"]
    assert cli.main([*words, "--when-full", "drop-oldest"]) == 0
    outbox = made[0]._shared.outbox
    assert isinstance(outbox, MemoryOutbox)
    assert (outbox._max_bytes, outbox._when_full) == (64 * 2**20, "drop-oldest")
    assert not (tmp_path / "s").exists()
    made[0]._listener.close()


def test_an_interrupt_elsewhere_is_130(monkeypatch):
    monkeypatch.setattr(commands, "_version", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert cli.main(["version"]) == 130


BENCH_KEYS = {
    "env", "envs", "steps_per_s", "bare_env_steps_per_s", "act_us_p50", "encode_share", "split", "exploration",
    "runtime", "machine", "sha256", "latency", "rate", "board"
}  # fmt: skip


@pytest.fixture
def quick_bench(monkeypatch):
    for module, name in ((bench, "actor_speed"), (board_bench, "bench_board")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, real=real, **k: real(*a, **{**k, "duration_s": 0.1}))


@pytest.mark.parametrize("envs", [1, 8])
def test_bench_says_what_it_measured(envs, quick_bench, capsys):
    assert cli.main(["bench", "--envs", str(envs), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == BENCH_KEYS
    assert (report["env"], report["envs"], report["exploration"]) == ("CartPole-v1", envs, "epsilon 0.05")
    assert all(report[key] > 0 for key in ("steps_per_s", "bare_env_steps_per_s", "act_us_p50"))
    assert 0 < report["encode_share"] < 1
    assert set(report["split"]) == {"env_us", "inference_us", "record_us", "encode_us"}
    assert cli.main(["bench", "--envs", str(envs)]) == 0
    said = capsys.readouterr().out
    assert "steps/s" in said
    assert "a step in µs of CPU: env " in said
    assert "at 100 Hz a period begins late by µs: p50" in said


@pytest.mark.parametrize(
    ("name", "env_id", "exploration"),
    [("acrobot", "Acrobot-v1", "epsilon 0.05"), ("pendulum", "Pendulum-v1", "gaussian 0.1")],
)
def test_bench_takes_any_policy_file(request, capsys, quick_bench, name, env_id, exploration):
    model = request.config.rootpath / "tests" / "data" / f"{name}.tflite"
    for envs in ("1", "3"):
        assert cli.main(["bench", str(model), "--envs", envs, "--format", "json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["env"], report["exploration"]) == (env_id, exploration)


@pytest.mark.parametrize(("envs", "duration_s"), [(0, 1), (4097, 1), (1, 0), (1, float("nan"))])
def test_bench_refuses_what_it_cannot_measure(envs, duration_s):
    with pytest.raises(Exception, match="cannot measure"):
        bench.actor_speed(num_envs=envs, duration_s=duration_s)


def test_one_limit_on_environments():
    assert commands.MAX_ENVS == bench.MAX_ENVS == MAX_BATCH_SIZE


def test_help_is_quick_and_quiet():
    code = (
        "import sys; from quarl_device.cli import main\n"
        "try: main(['run', '--help'])\nfinally: print(sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0
    assert not done.stderr
    assert "'numpy'" not in done.stdout
    assert "'gymnasium'" not in done.stdout


def run_process(words, **options):
    command = [sys.executable, "-m", "quarl_device.cli", *words]
    return subprocess.run(command, **{"stderr": subprocess.PIPE, **options}, text=True, timeout=60, check=False)


@pytest.mark.parametrize("words", [["version"], ["run", "--help"], ["bench", "--seconds", "1"]])
def test_nobody_reads_the_result(words):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run_process(words, stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [(1,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize(("words", "status"), [(["version"], 0), (["nonsense", "--format", "json"], 2)])
def test_closed_standard_files(closed, words, status):
    done = run_process(words, preexec_fn=lambda: [os.close(number) for number in closed])
    assert done.returncode == status
    assert "Traceback" not in done.stderr


def test_what_is_opened_never_takes_the_number_of_a_closed_standard_file():
    code = "import os, sys; from quarl_device import cli; cli.main(['version']); sys.exit(os.dup(0))"
    done = subprocess.run(
        [sys.executable, "-c", code], preexec_fn=lambda: [os.close(number) for number in (0, 1, 2)], check=False
    )
    assert done.returncode > 2


def test_a_result_that_cannot_be_written_is_one_line_and_code_1():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = run_process(["version"], stdout=full)
    assert done.returncode == 1
    assert (
        done.stderr == "quarl-device: error: the result cannot be written to standard output: " + os.strerror(28) + "\n"
    )


def test_an_error_that_cannot_be_written_keeps_its_code():
    """As when the log of a supervisor is on a disk that is full (seed 3 of `bench soak`)."""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = run_process(["run", "--broker", "nonsense", "--format", "json"], stdout=subprocess.PIPE, stderr=full)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == 2


def test_an_interrupt_while_it_imports_is_130_and_quiet():
    code = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'argparse': raise KeyboardInterrupt\n"
        "from quarl_device.cli import main\n"
        "sys.meta_path.insert(0, Interrupt()); sys.exit(main(['version']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
