"""`quarl-device doctor` from its command line: what a person sees, JSON, exit codes."""

import json

import pytest

from quarl_device import cli
from quarl_device.doctor import examine as examining
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
    monkeypatch.setattr(examining, "check_python", lambda _: warning("python", "old", "new"))
    code, (out, _) = doctor(capsys=capsys)
    assert code == 0
    assert "warning python       old\n                     mend: new\n" in out


def test_a_broker_that_is_not_there(capsys, monkeypatch):
    gone = LinkReading(address="h:1", error=BrokerUnreachable("nobody", hint="is it running?"))
    monkeypatch.setattr(examining, "read_link", lambda _: gone)
    code, (out, _) = doctor("--broker", "mqtt://pi-1@h:1", capsys=capsys)
    assert code == 59
    assert "problem broker       nobody (code 30)" in out
    assert "access" not in out


def test_a_broker_that_is_there(capsys, monkeypatch):
    good = LinkReading(address="h:1", own_came_back=True, learner_seen=True, large="came back", large_bytes=2**20)
    monkeypatch.setattr(examining, "read_link", lambda _: good)
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
