"""What every test starts from."""

import secrets
import signal

import pytest

# A shell that runs the suite in the background has it ignore Ctrl-C, which every process that a test starts inherits.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config, items):
    """Begin with what takes minutes where several workers share the tests, so that they end together."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("e2e") is None)


@pytest.fixture(autouse=True)
def _state_of_its_own(monkeypatch, tmp_path_factory):
    """Nothing that a test starts finds, or leaves, a spool of somebody else."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / f"state-{secrets.token_hex(4)}"))
