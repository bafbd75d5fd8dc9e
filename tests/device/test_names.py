"""Names of fleets and devices."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.errors import UsageError
from quarl_device.names import DEFAULT_FLEET, check_name, default_device_name, sanitize

PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@pytest.mark.parametrize("name", ["a", "0", "pi-4b", "a" * 63, "a-", "9-9", DEFAULT_FLEET])
def test_allowed(name):
    assert check_name(name, kind="device") == name


@pytest.mark.parametrize(
    "name", ["", "-a", "A", "pi_4", "a" * 64, "a b", "a/b", "+", "#", "a\n", "ä", "a\0", "$SYS", ".."]
)
def test_refused_with_a_suggestion(name):
    with pytest.raises(UsageError, match="bad fleet name") as caught:
        check_name(name, kind="fleet")
    assert PATTERN.fullmatch(re.search(r"'(.*)'", caught.value.hint)[1])


def test_a_long_name_is_not_echoed_whole():
    with pytest.raises(UsageError) as caught:
        check_name("X" * 10_000, kind="device")
    assert len(str(caught.value)) < 500


@given(st.text())
def test_sanitize_gives_an_allowed_name(text):
    assert check_name(sanitize(text), kind="device")


@given(st.from_regex(PATTERN, fullmatch=True))
def test_sanitize_keeps_an_allowed_name_but_for_trailing_dashes(name):
    assert sanitize(name) == name.rstrip("-")


@pytest.mark.parametrize(("host", "name"), [("Raspberry.local", "raspberry-local"), ("___", "device"), ("", "device")])
def test_default_device_name(monkeypatch, host, name):
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert default_device_name() == name
