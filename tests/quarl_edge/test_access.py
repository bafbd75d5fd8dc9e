"""Rights as pure data: who may do what, and that the brokers' rules say the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from quarl_device.errors import UsageError
from quarl_device.link.credentials import ROLES
from quarl_device.wire.topics import Topics
from quarl_edge.broker.access import allows, emqx_acl, grants_of, mosquitto_acl
from quarl_edge.broker.enrolment import Enrolled


def client(name="pi-1", role="device", fleet="lab"):
    return Enrolled(name=name, role=role, fleet=fleet, serial="1", expires=1)


def can(who, verb, topic):
    return allows(grants_of(who), verb, topic)


LAB = Topics("lab")


def test_w9_a_device_may_do_all_that_the_wire_asks_of_it():
    device = client()
    for topic in (LAB.state("pi-1"), LAB.xp("pi-1"), LAB.need("pi-1"), LAB.reported("pi-1"), LAB.telemetry("pi-1")):
        assert can(device, "write", topic)
    reads = [LAB.learner, LAB.policy, LAB.edgetpu, LAB.blob("00", 0), LAB.tuf("index")]
    for topic in [*reads, LAB.ack("pi-1"), LAB.desired("pi-1"), LAB.state("pi-1")]:
        assert can(device, "read", topic)
    for topic in (LAB.policy, LAB.edgetpu, LAB.learner, LAB.blob("00", 0)):
        assert not can(device, "write", topic)
    assert not can(device, "read", Topics("other").edgetpu)


def test_w9_a_learner_may_do_all_that_the_wire_asks_of_it():
    for learner in (client("l", "learner"), client("l", "learner", "")):
        assert all(
            can(learner, "write", t) for t in (LAB.learner, LAB.policy, LAB.edgetpu, LAB.blob("0", 0), LAB.ack("pi-1"))
        )
        assert all(
            can(learner, "read", t) for t in (LAB.learner, LAB.policy, LAB.any_state, LAB.xp("x"), LAB.need("x"))
        )
        assert not can(learner, "write", LAB.state("pi-1"))
        assert not can(learner, "write", LAB.desired("pi-1"))
        assert not can(learner, "write", LAB.tuf("index"))


names = st.from_regex(r"[a-z0-9][a-z0-9-]{0,8}", fullmatch=True)
levels = st.one_of(
    names, st.sampled_from(["", "$SYS", "q", "v1", "v2", "lab", "d", "up", "down", "learner", "live", "blob"])
)


@given(topic=st.lists(levels, min_size=1, max_size=8).map("/".join), name=names, fleet=names)
def test_w9_whatever_a_device_may_write_is_its_own(topic, name, fleet):
    device = client(name, "device", fleet)
    if can(device, "write", topic):
        assert topic == f"q/v1/{fleet}/d/{name}/up" or topic.startswith(f"q/v1/{fleet}/d/{name}/up/")
    if can(device, "read", topic):
        assert topic.startswith(f"q/v1/{fleet}/")
        assert not topic.startswith(f"q/v1/{fleet}/d/") or topic.split("/")[4] == name


@given(one=names, other=names, fleet=names, leaf=st.sampled_from(["state", "xp", "need", "x/y"]))
def test_w9_no_device_writes_or_reads_as_another(one, other, fleet, leaf):
    topic = f"q/v1/{fleet}/d/{other}/up/{leaf}"
    assert can(client(one, "device", fleet), "write", topic) == (one == other)
    assert can(client(one, "device", fleet), "read", topic) == (one == other)


@pytest.mark.parametrize("bad", [{"name": "+"}, {"name": "a/b"}, {"name": "#"}, {"fleet": "+"}, {"fleet": "a/#"}])
def test_a_name_that_would_reach_beyond_itself_is_refused(bad):
    with pytest.raises(UsageError):
        grants_of(client(**bad))


PLACES = [(role, fleet) for role in ROLES for fleet in ("lab", "") if fleet or role != "device"]
CLIENTS = [client(f"{role}-{fleet or 'all'}", role, fleet) for role, fleet in PLACES]


def parsed(acl):
    """Mosquitto's file, read as its manual says."""
    rules, user = {}, None
    for line in acl.splitlines():
        words = line.split()
        if not words or words[0] == "#":
            continue
        if words[0] == "user":
            user = words[1]
            continue
        assert words[0] == "topic", line
        rules.setdefault(user, []).append(tuple(words[1:]))
    return rules


def test_mosquittos_file_says_the_same_and_nothing_for_everybody():
    rules = parsed(mosquitto_acl([client("pi-1"), client("eye", "viewer", "")]))
    assert None not in rules
    assert set(rules) == {"pi-1", "eye"}
    assert ("write", "q/v1/lab/d/pi-1/up/#") in rules["pi-1"]
    assert sum(verb == "write" for verb, _ in rules["pi-1"]) == 1
    assert {verb for verb, _ in rules["eye"]} == {"read"}
    assert "pattern" not in mosquitto_acl(CLIENTS)


@pytest.mark.parametrize("who", CLIENTS, ids=lambda who: who.name)
def test_each_clients_lines_are_its_grants(who):
    rules = parsed(mosquitto_acl([*CLIENTS, client("zz")]))
    found = [(grant.verb, grant.topics) for grant in grants_of(who)]
    assert rules[who.name][: len(found)] == found


def test_emqxs_file_ends_with_a_denial_and_names_each_client():
    text = emqx_acl([client("pi-1"), client("eye", "viewer", "")])
    lines = text.splitlines()
    assert lines[-1] == "{deny, all}."
    assert '{allow, {username, "pi-1"}, publish, ["q/v1/lab/d/pi-1/up/#"]}.' in lines
    assert not any('"eye"' in line and "publish" in line for line in lines)


def test_a_filter_with_a_tail_is_also_the_topic_itself():
    assert topic_matches_sub("q/v1/lab/learner/#", "q/v1/lab/learner")
