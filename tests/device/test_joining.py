"""What a device's command line and its credentials make of each other."""

import pytest

from quarl_device.actor.joining import how_to_join
from quarl_device.errors import UsageError
from quarl_edge.broker.directory import BrokerDirectory


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in ("QUARL_CREDENTIALS", "QUARL_MQTT_PASSWORD"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def clients(tmp_path_factory):
    directory = BrokerDirectory.init(tmp_path_factory.mktemp("broker"), hosts=["hub.local"])
    directory.enroll("pi-1", role="device", fleet="lab")
    return directory.path / "clients"


def test_credentials_say_everything(clients):
    joining = how_to_join(credentials=clients / "pi-1")
    assert str(joining.url) == "mqtts://hub.local:8883"
    assert (joining.fleet, joining.name, joining.client_id) == ("lab", "pi-1", "pi-1")
    assert joining.learner_key == clients / "pi-1" / "learner.pub"
    assert joining.tls is not None
    assert joining.password is None


def test_a_key_given_by_hand_goes_before_that_of_the_credentials(clients, tmp_path):
    assert how_to_join(credentials=clients / "pi-1", learner_key=tmp_path / "k").learner_key == tmp_path / "k"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "pi-2"}, "those of 'pi-1'"),
        ({"fleet": "yard"}, "enrolled in fleet 'lab'"),
        ({"broker": "mqtt://hub.local"}, "need TLS"),
        ({"broker": "mqtts://eve@hub.local"}, "names user 'eve'"),
    ],
)
def test_words_against_the_credentials_are_refused(clients, given, said):
    with pytest.raises(UsageError, match=said):
        how_to_join(credentials=clients / "pi-1", **given)


def test_a_learners_credentials_are_not_a_devices(clients):
    with pytest.raises(UsageError, match="enrolled as a learner"):
        how_to_join(credentials=clients / "learner")


def test_without_credentials_it_is_as_before(monkeypatch):
    monkeypatch.setenv("QUARL_MQTT_PASSWORD", "word")
    joining = how_to_join(broker="mqtt://hub", name="pi-3")
    assert (joining.url.user, joining.client_id, joining.password) == ("pi-3", "default.pi-3", "word")
    assert joining.tls is None
    assert "word" not in repr(joining)
    assert how_to_join(broker="mqtt://robot@hub", fleet="f").client_id == "f.robot"


def test_no_broker_at_all_is_said_with_both_ways():
    with pytest.raises(UsageError) as caught:
        how_to_join()
    assert "--broker" in caught.value.hint
    assert "--credentials" in caught.value.hint
