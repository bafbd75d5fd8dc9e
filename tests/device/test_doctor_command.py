"""`quarl-device doctor` from its command line: what a person sees, JSON, exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quarl_device import cli
from quarl_device.doctor import examine as examining
from quarl_device.doctor import examine_link as examining_link
from quarl_device.doctor.finding import ok, problem, warning
from quarl_device.doctor.link_checks import LinkReading
from quarl_device.errors import BrokerUnreachable
from quarl_device.inspect.probe import Probe


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No child processes, no broker."""
    works = Probe(runtime="ai-edge-litert", version="2.3.0", loads=True, detail="")
    monkeypatch.setattr(examining, "read_runtimes", lambda: [works])
    monkeypatch.setattr(examining, "read_corals", list)
    monkeypatch.delenv("QUARL_CREDENTIALS", raising=False)


def doctor(*words, capsys):
    code = cli.main(["doctor", *words])
    return code, capsys.readouterr()


def test_a_good_board(capsys, tmp_path):
    code, (out, err) = doctor("--state-dir", str(tmp_path), "--env", "CartPole-v1", capsys=capsys)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("ok      clock        20")
    assert "ok      environment  CartPole-v1 is registered" in lines
    assert lines[-1] == "10 findings, of which problems: 0, warnings: 0"


def test_as_json(capsys, tmp_path):
    code, (out, _) = doctor("--state-dir", str(tmp_path), "--format", "json", capsys=capsys)
    report = json.loads(out)
    assert (code, report["level"]) == (0, "ok")
    checks = [finding["check"] for finding in report["findings"]]
    assert checks == ["clock", "python", "disk", "state", "glibc", "numpy", "runtime", "delegate", "broker"]
    assert all(set(finding) == {"check", "level", "found", "mend"} for finding in report["findings"])


def test_a_problem_has_its_own_exit_code_and_says_what_mends_it(capsys):
    code, (out, _) = doctor("--state-dir", "/proc/self", "--env", "NoSuch-v0", capsys=capsys)
    assert code == 59
    assert "problem state" in out
    assert "mend: sudo chown" in out
    assert "problem environment" in out
    code, (out, _) = doctor("--env", "NoSuch-v0", "--format", "json", capsys=capsys)
    assert (code, json.loads(out)["level"]) == (59, "problem")


def test_a_warning_is_no_failure(capsys, monkeypatch):
    monkeypatch.setattr(examining, "check_python", lambda _, **__: warning("python", "old", "new"))
    code, (out, _) = doctor(capsys=capsys)
    assert code == 0
    assert "warning python       old\n                     mend: new\n" in out


def test_a_broker_that_is_not_there(capsys, monkeypatch):
    gone = LinkReading(address="h:1", error=BrokerUnreachable("nobody", hint="is it running?"))
    monkeypatch.setattr(examining_link, "read_link", lambda _: gone)
    code, (out, _) = doctor("--broker", "mqtt://pi-1@h:1", capsys=capsys)
    assert code == 59
    assert "problem broker       nobody (code 30)" in out
    assert "access" not in out


def test_a_broker_that_is_there(capsys, monkeypatch):
    good = LinkReading(
        address="h:1", own="came back", foreign="denied", learner_seen=True, large="came back", large_bytes=2**20
    )
    monkeypatch.setattr(examining_link, "read_link", lambda _: good)
    code, (out, _) = doctor("--broker", "mqtt://pi-1@h:1", "--format", "json", capsys=capsys)
    checks = [finding["check"] for finding in json.loads(out)["findings"]]
    assert code == 0
    assert checks[-4:] == ["broker", "access", "packets", "learner"]


def test_credentials_that_do_not_hold_are_a_finding(capsys, tmp_path):
    code, (out, _) = doctor("--credentials", str(tmp_path / "none"), capsys=capsys)
    assert code == 59
    assert "problem credentials  no such directory" in out
    (tmp_path / "client.key").touch(mode=0o600)
    (tmp_path / "client.key").chmod(0o644)
    code, (out, _) = doctor("--credentials", str(tmp_path), capsys=capsys)
    assert code == 59
    assert f"mend: chmod 600 {tmp_path}/client.key" in out


@pytest.mark.parametrize(
    "words", [["--broker", "http://x"], ["--broker", "mqtt://a:secret@h"], ["--delegate", "gpu"], ["--id", "-"]]
)
def test_wrong_usage_is_2_and_one_line(words, capsys):
    if words[0] == "--id":
        words = [*words, "--broker", "mqtt://h"]
    code, (_, err) = doctor(*words, capsys=capsys)
    assert code == 2
    assert "secret@" not in err
    assert err.count("\n") == 1


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["doctor", "--help"])
    assert end.value.code == 0
    assert "  quarl-device doctor --credentials pi-1" in capsys.readouterr().out


def test_every_level_has_a_helper():
    assert [make("a", "b", *more).level for make, more in ((ok, ()), (warning, ("c",)), (problem, ("c",)))] == [
        "ok",
        "warning",
        "problem",
    ]


def doctor_without(module, tmp_path, *words):
    """Ask in a process of its own, in which a module cannot be imported, nor in its children."""
    (tmp_path / "path" / module).mkdir(parents=True)
    (tmp_path / "path" / module / "__init__.py").write_text(f"raise ImportError('no {module} today')")
    code = "import sys; from quarl_device.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor", "--state-dir", str(tmp_path), "--format", "json", *words],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "path"), *filter(None, sys.path)])},
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_without_numpy_it_says_so_and_looks_at_the_rest(tmp_path):
    code, found = doctor_without("numpy", tmp_path, "--env", "CartPole-v1", "--broker", "mqtt://pi-1@127.0.0.1:9")
    assert code == 59
    assert "no numpy today" in found["runtime"]["found"]
    assert found["environment"]["level"] == "problem"
    assert "could not look: ImportError" in found["environment"]["found"]
    assert [found[check]["level"] for check in ("clock", "disk", "state", "glibc", "delegate")] == ["ok"] * 5
    assert "code 30" in found["broker"]["found"]


@pytest.mark.parametrize("module", ["cryptography", "paho"])
def test_without_a_wheel_of_the_link_the_board_is_looked_at(module, tmp_path):
    code, found = doctor_without(module, tmp_path, "--broker", "mqtt://pi-1@127.0.0.1:9")
    assert code == 59
    assert f"could not look: ImportError: no {module} today" in found["broker"]["found"]
    assert "pip install" in found["broker"]["mend"]
    assert found["runtime"]["level"] == "ok"


def test_metadata_cut_short_is_told(capsys, monkeypatch):
    monkeypatch.setattr("quarl_device.inspect.probe.version", lambda _: None)
    code, (out, _) = doctor(capsys=capsys)
    assert code == 59
    assert "numpy is missing or broken: 'unknown'" in out


@pytest.mark.parametrize(
    ("name", "check"),
    [("read_built", "clock"), ("read_disk", "disk"), ("read_runtimes", "runtime"), ("read_glibc", "glibc"),
     ("read_numpy", "numpy"), ("read_corals", "delegate"), ("read_environment", "environment")],
)  # fmt: skip
def test_a_reading_that_fails_is_a_finding_and_the_others_are_made(name, check, capsys, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(examining, name, fail)
    code, (out, err) = doctor("--env", "CartPole-v1", "--format", "json", capsys=capsys)
    found = {finding["check"]: finding for finding in json.loads(out)["findings"]}
    assert (code, err) == (59, "")
    assert found[check]["found"] == "could not look: OSError: [Errno 5] Input/output error"
    assert found[check]["mend"]
    assert "broker" in found


@pytest.mark.parametrize(
    ("option", "call", "check"), [("--state-dir", "is_dir", "disk"), ("--credentials", "stat", "credentials")]
)
def test_a_folder_that_may_not_be_looked_at_is_a_finding(option, call, check, capsys, monkeypatch, tmp_path):
    real = getattr(Path, call)

    def look(self, **how):
        if self.name == "shut":
            raise PermissionError(13, "Permission denied")
        return real(self, **how)

    monkeypatch.setattr(Path, call, look)
    code, (out, err) = doctor(option, str(tmp_path / "shut"), capsys=capsys)
    assert (code, err) == (59, "")
    assert f"problem {check:13}could not look: PermissionError" in out
