"""Whom a deploying agent tells, by its command line: what can never work is refused, what may mend is tried again."""

import pytest

from quarl_device import commands
from quarl_device.deploy.telling import make_herald
from quarl_device.errors import UsageError
from quarl_device.runtime import find_runtime

RUNTIME = find_runtime()


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch):
    for name in ("QUARL_CREDENTIALS", "QUARL_MQTT_PASSWORD"):
        monkeypatch.delenv(name, raising=False)


def herald(*words):
    return make_herald(commands._parser().parse_args(["run", "--mode", "deploy", *words]), RUNTIME)


def test_no_broker_is_nobody():
    assert herald() is None


def test_a_broker_that_can_be_met_some_day():
    assert herald("--broker", "mqtt://127.0.0.1:1", "--id", "pi-1") is not None
    assert herald("--credentials", "/nowhere") is not None


def test_what_can_never_work_is_refused():
    with pytest.raises(UsageError):
        herald("--broker", "nonsense://x")


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_a_password_that_is_not_there_yet_keeps_no_robot_from_acting(tmp_path, content):
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    words = ("--broker", "mqtt://127.0.0.1:1", "--id", "pi-1", "--password-file", str(file))
    made = herald(*words)
    assert made is not None
    with pytest.raises(UsageError, match="password file"):
        made._join()
    file.write_text("secret\n")
    assert made._join().name == "pi-1"
