"""The register of clients."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_device.errors import AuthorityError, UsageError
from quarl_device.link.credentials import ROLES
from quarl_edge.broker.enrolment import Enrolled, Register

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = int(NOW.timestamp()) + 86_400


def entry(name="pi-1", serial="a", **changes):
    return Enrolled(**{"name": name, "role": "device", "fleet": "lab", "serial": serial, "expires": LATER, **changes})


def test_the_newest_entry_of_a_client_counts():
    register = Register((entry(serial="a", fleet="old"), entry(serial="b", fleet="new"), entry("pi-2", "c")))
    assert [(one.name, one.fleet) for one in register.current()] == [("pi-1", "new"), ("pi-2", "lab")]


def test_revoking_takes_every_certificate_of_a_client_and_a_name_may_come_back():
    register = Register((entry(serial="a"), entry(serial="b"), entry("pi-2", "c"))).revoke("pi-1", now=NOW)
    assert [bool(one.revoked) for one in register] == [True, True, False]
    assert register.find("pi-1") is None
    again = register.add(entry(serial="d"))
    assert again.find("pi-1").serial == "d"
    assert [one.revocation for one in again if one.revoked] == [(10, NOW), (11, NOW)]


def test_revoking_again_keeps_the_first_time():
    once = Register((entry(),)).revoke("pi-1", now=NOW)
    assert once.revoke("pi-1", now=datetime(2027, 1, 1, tzinfo=UTC)) == once


def test_who_was_never_enrolled_cannot_be_revoked():
    with pytest.raises(UsageError, match="no client 'pi-9'"):
        Register((entry(),)).revoke("pi-9", now=NOW)


def test_states():
    assert entry().state(NOW) == "enrolled"
    assert entry(expires=1).state(NOW) == "expired"
    assert entry(expires=1, revoked=2).state(NOW) == "revoked"


def test_a_device_trusts_its_fleets_learner_before_that_of_all():
    everywhere = entry("learner", "1", role="learner", fleet="", learner_key="aa")
    own = entry("lab-2", "2", role="learner", fleet="lab", learner_key="bb")
    register = Register((everywhere, own))
    assert [register.learner_key_for(fleet) for fleet in ("lab", "yard")] == ["bb", "aa"]
    second = register.add(entry("more", "3", role="learner", fleet="", learner_key="cc"))
    assert second.learner_key_for("yard") == "aa", "one more learner changes nobody's key"
    assert register.revoke("lab-2", now=NOW).learner_key_for("lab") == "aa"
    assert Register().learner_key_for("lab") == ""


entries = st.builds(
    Enrolled,
    name=st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True),
    role=st.sampled_from(ROLES),
    fleet=st.from_regex(r"([a-z0-9][a-z0-9-]{0,20})?", fullmatch=True),
    serial=st.integers(1, 2**159).map("{:x}".format),
    expires=st.integers(0, 2**33),
    revoked=st.integers(0, 2**33),
    learner_key=st.sampled_from(["", "ab" * 32]),
)


@given(st.lists(entries, max_size=6).map(tuple).map(Register))
def test_what_is_written_reads_back(tmp_path_factory, register):
    path = tmp_path_factory.mktemp("register") / "enrolled.json"
    register.write(path)
    assert Register.read(path) == register
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "null", '{"schema": "quarl.enrolled.v2", "clients": []}', '{"schema": "quarl.enrolled.v1"}',
        '{"schema": "quarl.enrolled.v1", "clients": [{}]}', '{"schema": "quarl.enrolled.v1", "clients": 3}', "[" * 9999,
    ],
)  # fmt: skip
def test_a_damaged_file_is_code_44_and_never_an_empty_register(tmp_path, text):
    path = tmp_path / "enrolled.json"
    path.write_text(text)
    with pytest.raises(AuthorityError, match=r"damaged.*restore it") as caught:
        Register.read(path)
    assert caught.value.code == 44


@pytest.mark.parametrize(
    "change",
    [
        {"name": "+"}, {"name": "a\nuser learner"}, {"fleet": "a/#"}, {"role": "king"}, {"serial": "xyz"},
        {"expires": "soon"}, {"revoked": -1}, {"revoked": None}, {"more": 1},
    ],
)  # fmt: skip
def test_an_entry_that_could_widen_a_rule_is_refused(tmp_path, change):
    import json

    said = {"name": "pi", "role": "device", "fleet": "lab", "serial": "1", "expires": 1, "revoked": 0, **change}
    path = tmp_path / "enrolled.json"
    path.write_text(json.dumps({"schema": "quarl.enrolled.v1", "clients": [said]}))
    with pytest.raises(AuthorityError):
        Register.read(path)
