"""What is sent: settings, signed policies that keep their version, and a bundle that lists all it holds."""

import hashlib
import json
import tomllib
from pathlib import Path

import pytest
from deploy_world import make_wheel

from quarl_device.deploy.signed import open_signed, sign_policy
from quarl_device.errors import BadSignature, CredentialsError, KeyFileError, ModelFileError
from quarl_device.link.credentials import Credentials
from quarl_device.policy_file import read_policy_path
from quarl_device.wire.keys import LearnerKey
from quarl_edge.broker.directory import BrokerDirectory
from quarl_edge.deploy.bundle import make_bundle
from quarl_edge.deploy.release import note_of, public_key_of, remember, sign_release, signed_release
from quarl_edge.deploy.settings import DeviceSettings

MODEL = Path(__file__).parent.parent / "data" / "cartpole.tflite"


@pytest.fixture
def key():
    return LearnerKey.generate()


def test_settings_are_options_of_the_agent():
    settings = DeviceSettings(
        mode="deploy", fleet="lab", name="pi-1", broker="mqtts://b:8883", credentials=True, password=True,
        learner_key=True, env='my_robot:Arm-v0 "é"\\', delegate="edgetpu:usb", hz=50.0, safe_action=(0.0, -1.5),
    )  # fmt: skip
    assert tomllib.loads(settings.toml().decode()) == {
        "mode": "deploy",
        "broker": "mqtts://b:8883",
        "credentials": "/etc/quarl-edge/credentials",
        "password_file": "/etc/quarl-edge/password",
        "learner_key": "/etc/quarl-edge/learner.pub",
        "fleet": "lab",
        "id": "pi-1",
        "env": 'my_robot:Arm-v0 "é"\\',
        "state_dir": "/var/lib/quarl-edge",
        "delegate": "edgetpu:usb",
        "hz": 50.0,
        "safe_action": [0.0, -1.5],
    }


def test_what_is_not_asked_for_is_left_to_the_agent():
    assert set(DeviceSettings(mode="train", fleet="lab", name="pi-1").values()) == {"mode", "fleet", "id", "state_dir"}


def test_settings_are_names_that_the_agent_knows():
    """The keys are options of `quarl-device run`."""
    from quarl_device.commands import _parser

    run = next(action for action in _parser()._actions if action.choices)
    known = {action.dest for action in run.choices["run"]._actions}
    every = DeviceSettings(
        mode="deploy", fleet="f", name="n", broker="b", credentials=True, password=True, learner_key=True, env="e",
        delegate="d", hz=1.0, safe_action=(1.0,),
    )  # fmt: skip
    assert set(every.values()) <= known


def test_the_same_policy_keeps_its_version_and_another_one_is_newer(tmp_path, key, monkeypatch):
    note = note_of(tmp_path, board="pi@a", fleet="lab", name="pi-1")
    clock = iter([100, 200, 300, 400])
    monkeypatch.setattr("time.time", lambda: next(clock))
    first = sign_release(MODEL, key, note=note)
    remember(first, note=note)
    assert sign_release(MODEL, key, note=note).data == first.data
    assert open_signed(first.data, key.public).header.version == 100
    other = MODEL.with_name("acrobot.tflite")
    second = sign_release(other, key, note=note)
    assert second.version == "200"
    remember(second, note=note)
    assert sign_release(MODEL, key, note=note).version == "300"  # back again, which a board takes as newer
    assert sign_release(other, LearnerKey.generate(), note=note).version == "400"


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"[]", b"{}", b'{"sha256": 1, "key": 2, "version": 3}'])
def test_a_damaged_note_costs_itself(tmp_path, key, content):
    note = tmp_path / "note"
    note.write_bytes(content)
    assert int(sign_release(MODEL, key, note=note).version) > 1_700_000_000


def test_a_note_that_cannot_be_written_is_no_error(tmp_path, key):
    (tmp_path / "file").write_text("")
    remember(sign_release(MODEL, key, note=tmp_path / "none"), note=tmp_path / "file" / "note")


def test_a_signed_policy_is_looked_at_before_it_is_sent(tmp_path, key):
    file = tmp_path / "model.qpol"
    file.write_bytes(sign_policy(read_policy_path(MODEL), key, version=7))
    release = signed_release(file, key.public)
    assert (release.version, release.digest) == ("7", hashlib.sha256(MODEL.read_bytes()).hexdigest())
    assert release.env_id
    with pytest.raises(BadSignature) as caught:
        signed_release(file, LearnerKey.generate().public)
    assert "learner.pub" in caught.value.hint
    with pytest.raises(ModelFileError, match="nobody has signed"):
        signed_release(MODEL, key.public)


def test_a_signing_key_never_becomes_a_public_one(tmp_path):
    secret = tmp_path / "learner.key"
    key = LearnerKey.load_or_create(secret)
    public = tmp_path / "learner.pub"
    key.public.save(public)
    assert public_key_of(public) == public_key_of(secret) == key.public
    assert secret.read_text().strip() != key.public.hex
    with pytest.raises(KeyFileError):
        public_key_of(tmp_path / "none")
    # On a disk without modes both are open to all, or to nobody else: the name decides.
    public.chmod(0o600)
    assert public_key_of(public) == key.public
    secret.chmod(0o644)
    with pytest.raises(KeyFileError, match="open to others") as refused:
        public_key_of(secret)
    assert secret.read_text()[:16] not in str(refused.value)


def test_a_bundle_lists_all_that_it_holds(tmp_path):
    wheel = make_wheel(tmp_path / "device")
    other = make_wheel(tmp_path / "wheels", "one-1.0-py3-none-any.whl", "Name: one\n", {})
    bundle = make_bundle(wheel, wheels=[other], settings=b"mode", password="pass", learner_key=b"key", policy=b"policy")
    assert set(bundle.entries) == {
        wheel.name,
        f"wheels/{other.name}",
        "device.toml",
        "password",
        "learner.pub",
        "policy.qpol",
    }
    listed = json.loads(bundle.listing())
    assert listed["schema"] == "quarl.bundle.v1"
    for path, entry in bundle.entries.items():
        data = entry.source if isinstance(entry.source, bytes) else entry.source.read_bytes()
        assert listed["files"][path] == hashlib.sha256(data).hexdigest()
        assert entry.size == len(data)
    assert {path for path, entry in bundle.entries.items() if entry.kept} == {wheel.name, f"wheels/{other.name}"}
    assert "pass" not in repr(bundle).replace("password", "")


def test_of_credentials_what_a_device_needs_and_nothing_else(tmp_path):
    directory = BrokerDirectory.init(tmp_path / "broker", hosts=["localhost"])
    made = directory.enroll("pi-1", role="device", fleet="lab", days=2, renew=False, learner_key=None, broker=None)
    held = Credentials.load(made.folder)
    (held.folder / "notes.txt").write_text("mine")
    bundle = make_bundle(make_wheel(tmp_path / "device"), credentials=held)
    assert {path for path in bundle.entries if path.startswith("credentials/")} >= {
        "credentials/client.key", "credentials/client.crt", "credentials/ca.crt", "credentials/credentials.toml",
    }  # fmt: skip
    assert "credentials/notes.txt" not in bundle.entries
    (held.folder / "ca.crt").unlink()
    with pytest.raises(CredentialsError):
        make_bundle(make_wheel(tmp_path / "device"), credentials=held)
