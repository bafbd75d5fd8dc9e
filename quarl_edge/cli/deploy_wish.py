"""From what a person typed to a `Wish`: names checked, keys and policies read, all refused that can be by now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from quarl_device.delegate_spec import parse_delegate
from quarl_device.environments.ids import MAX_ENV_ID
from quarl_device.errors import UsageError
from quarl_device.link import BrokerURL, read_password
from quarl_device.link.credentials import Credentials, find_credentials
from quarl_device.names import DEFAULT_FLEET, check_name
from quarl_device.paths import cache_dir
from quarl_edge.cli.train import find_learner_key
from quarl_edge.deploy.birth import operator_link
from quarl_edge.deploy.installer import Order
from quarl_edge.deploy.release import Release, note_of, public_key_of, sign_release, signed_release
from quarl_edge.deploy.settings import DeviceSettings
from quarl_edge.deploy.ssh import connect_ssh
from quarl_edge.deploy.target import Target
from quarl_edge.deploy.wish import Wheelhouse, Wish

_SIGNED = ".qpol"
_MIN_MEMORY_MIB = 64
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Typed:
    """Options as typed; "" and `None` where nothing was."""

    board: str
    broker: str = ""
    fleet: str = ""
    name: str = ""
    mode: str = "train"
    policy: Path | None = None
    env: str = ""
    credentials: Path | None = None
    operator: Path | None = None
    password_file: Path | None = None
    learner_key: Path | None = None
    extras: str = ""
    coral: bool = False
    delegate: str = ""
    hz: float = 0.0
    safe_action: Sequence[float] = field(default=())
    memory_mib: int = 0
    port: int = 0
    identity: Path | None = None
    known_hosts: Path | None = None
    wheelhouse: Wheelhouse = "auto"
    wait: bool = True
    dry_run: bool = False
    remove: bool = False
    purge: bool = False
    timeout_s: float = 180.0


def make_wish(typed: Typed) -> Wish:
    """Return what is to be done.

    Raises:
        UsageError: options that do not go together, or a bad name, URL or board.
        CredentialsError, TrustError, ModelError: what was named does not hold.
    """
    target = Target.parse(typed.board, port=typed.port)
    bare = Wish(
        target=target,
        connect=partial(connect_ssh, target, identity=typed.identity, known_hosts=typed.known_hosts),
        order=_order(typed),
        wheelhouse=typed.wheelhouse,
        cache=cache_dir(),
        wait=typed.wait,
        timeout_s=typed.timeout_s,
    )
    if typed.remove:
        return bare
    _check_modes(typed)
    held = _device_credentials(typed)
    name, fleet = _names(typed, held)
    url = held.broker_or(typed.broker) if held is not None else _url(typed, name)
    password = read_password(typed.password_file) if held is None and url is not None else None
    release = _release(typed, bare, fleet, name)
    key = _learner_key(typed, release)
    settings = DeviceSettings(
        mode="deploy" if typed.mode == "deploy" else "train",
        fleet=fleet,
        name=name,
        broker=str(url) if url is not None else "",
        credentials=held is not None,
        password=password is not None,
        learner_key=key is not None,
        env=typed.env,
        delegate=typed.delegate,
        hz=typed.hz,
        safe_action=tuple(typed.safe_action),
    )
    wish = replace(bare, settings=settings, credentials=held, password=password, learner_key=key, release=release)
    if release is not None and typed.policy is not None and typed.policy.suffix != _SIGNED:
        wish = replace(wish, release_note=_note(bare, fleet, name))
    return _with_operator(wish, typed, url)


def _order(typed: Typed) -> Order:
    if typed.purge and not typed.remove:
        raise UsageError("--purge removes the agent's state", hint="add --remove, or leave it out")
    if 0 < typed.memory_mib < _MIN_MEMORY_MIB:
        raise UsageError(f"--memory-mib {typed.memory_mib}: no agent fits in less than {_MIN_MEMORY_MIB}")
    parse_delegate(typed.delegate or "cpu")
    return Order(
        dry_run=typed.dry_run,
        remove=typed.remove,
        purge=typed.purge,
        coral=typed.coral and not typed.remove,
        extras=() if typed.remove else tuple(word.strip() for word in typed.extras.split(",") if word.strip()),
        memory_mib=0 if typed.remove else typed.memory_mib,
    )


def _check_modes(typed: Typed) -> None:
    if typed.mode not in ("train", "deploy"):
        raise UsageError(f"--mode {typed.mode[:40]!r}: expected train or deploy")
    if typed.mode == "train":
        only = {"--policy": typed.policy, "--hz": typed.hz, "--safe-action": typed.safe_action}
        given = [option for option, value in only.items() if value]
        if given:
            raise UsageError(f"{', '.join(given)}: of use with --mode deploy alone", hint="add --mode deploy")
        if not typed.broker and typed.credentials is None:
            raise UsageError("which broker?", hint="--broker mqtt[s]://[user@]host[:port], or --credentials DIR")
    if len(typed.env) > MAX_ENV_ID or not typed.env.isprintable():
        raise UsageError(f"bad environment id {typed.env[:80]!r}")


def _device_credentials(typed: Typed) -> Credentials | None:
    if typed.credentials is None:
        return None
    held = Credentials.load(typed.credentials)
    if held.role != "device":
        raise UsageError(f"{held.name!r} is enrolled as a {held.role}, not as a device", hint="quarl-edge enroll NAME")
    if typed.name and typed.name != held.name:
        raise UsageError(f"--id {typed.name}: the credentials are those of {held.name!r}", hint=f"--id {held.name}")
    return held


def _names(typed: Typed, held: Credentials | None) -> tuple[str, str]:
    if held is not None:
        return held.name, held.fleet_or(typed.fleet, default=DEFAULT_FLEET)
    if not typed.name:
        raise UsageError("what is the device called?", hint="--id NAME, or --credentials DIR")
    return check_name(typed.name, kind="device"), check_name(typed.fleet or DEFAULT_FLEET, kind="fleet")


def _url(typed: Typed, name: str) -> BrokerURL | None:
    if not typed.broker:
        return None
    url = BrokerURL.parse(typed.broker)
    if url.host in _LOOPBACK and Target.parse(typed.board).host not in _LOOPBACK:
        raise UsageError(
            f"the broker {url.address} would be the board itself", hint="the name or address by which the board sees it"
        )
    # As `quarl-device run` does: a password belongs to somebody.
    has_password = read_password(typed.password_file) is not None
    return replace(url, user=name) if has_password and not url.user else url


def _release(typed: Typed, bare: Wish, fleet: str, name: str) -> Release | None:
    if typed.policy is None:
        return None
    if typed.policy.suffix == _SIGNED:
        key = public_key_of(typed.learner_key) if typed.learner_key else find_learner_key(None).public
        return signed_release(typed.policy, key)
    return sign_release(typed.policy, find_learner_key(typed.learner_key), note=_note(bare, fleet, name))


def _note(bare: Wish, fleet: str, name: str) -> Path:
    return note_of(bare.cache / "deployed", board=str(bare.target), fleet=fleet, name=name)


def _learner_key(typed: Typed, release: Release | None) -> bytes | None:
    key = release.key if release is not None else public_key_of(typed.learner_key) if typed.learner_key else None
    return f"{key.hex}\n".encode() if key is not None else None


def _with_operator(wish: Wish, typed: Typed, url: BrokerURL | None) -> Wish:
    """Add how the birth is heard, if it is."""
    if url is None or not wish.wait or wish.order.dry_run:
        return wish
    held = find_credentials(typed.operator)
    if held is None and wish.credentials is not None:
        raise UsageError(
            "who listens for the agent's birth? The device's own credentials would end the agent's session",
            hint="quarl-edge enroll me --role viewer, then --operator broker/clients/me; or --no-wait",
        )
    if held is not None and held.role == "device":
        raise UsageError(
            f"--operator {held.name!r} is a device, which sees itself alone", hint="enroll NAME --role viewer"
        )
    return replace(wish, operator=held, broker=url, link=partial(operator_link, url, held=held, password=wish.password))
