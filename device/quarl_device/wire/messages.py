"""The JSON payloads: births, acks, telemetry and needs, as frozen dataclasses.

`encode` and `decode` are strict both ways: what one end writes the other end reads back equal, and anything that does
not hold is a `PayloadRefused` (W4). The wire version is *carried* by births and checked by whoever reads them with
`check_wire_version`, so that a peer of another version can still be named (W10).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from quarl_device.contract import (
    MAX_OBSERVATION_KEYS,
    MAX_WRAPPER_CHARS,
    MAX_WRAPPERS,
    ActionSpec,
    ObservationSpec,
    action_from_json,
    observation_from_json,
    spec_to_json,
)
from quarl_device.errors import ContractError, PayloadRefused, WireVersionMismatch
from quarl_device.wire.limits import MAX_NEEDED_CHUNKS, MAX_POLICY_BYTES, WIRE_VERSION
from quarl_device.wire.strict_json import MAX_INT, MAX_REASON, SCHEMA, Reader, dumps, loads, one_line

Status = Literal["online", "gone"]
LearnerMode = Literal["async", "lockstep", "rounds"]
DeviceMode = Literal["train", "deploy"]
LEARNER_MODES: tuple[str, ...] = get_args(LearnerMode)
MAX_ROUND_STEPS = 1_000_000
MAX_EXTRAS = 16

MAX_EPOCH = 2**32 - 1
HIGHEST_BELIEVABLE_EPOCH = 4_000_000_000
"""The year 2096. An epoch has 32 bits: a forged one near their end would leave no room for another."""
MAX_REFUSED = 1024
_BOOT_ID = re.compile(r"[0-9a-f]{16}")
_BOOT_ID_OR_NONE = re.compile(r"([0-9a-f]{16})?")
_PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"([0-9a-f]{64})?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_EXTRA = re.compile(r"[A-Za-z0-9_]{1,64}")


def check_wire_version(found: int, *, peer: str) -> None:
    """Refuse to work with a peer of another wire version (W10).

    Args:
        found: the version in the peer's birth.
        peer: how to name it, such as "the learner" or "device pi-3".

    Raises:
        WireVersionMismatch: says who must upgrade.
    """
    if found == WIRE_VERSION:
        return
    who = f"upgrade {peer}" if found < WIRE_VERSION else "upgrade quarl-edge here"
    raise WireVersionMismatch(f"{peer} speaks wire version {found}, this side speaks {WIRE_VERSION}", hint=who)


@dataclass(frozen=True, kw_only=True)
class LearnerBirth:
    """Retained on `learner`; renewed every 10 s, and its last will with status "gone".

    Attributes:
        status: "online", or "gone" in the will and at a clean end.
        left: of a learner that is gone: it said goodbye itself. A will, which a broken connection sends, does not, and
            that learner may be back in a moment. On the wire where it is true alone: older peers do not know it.
        epoch: of this learner's life; grows with every start.
        wire: wire version.
        beat: counts renewals; a birth whose beat does not change is stale.
        env_id: registered gymnasium id that actors make.
        env_kwargs: JSON keyword arguments for it.
        algorithm: "dqn", ...
        observations: the observation keys that blocks must carry.
        action: the action space that blocks must carry.
        public_key: ed25519 public key, 64 hex digits.
        mode: "async"; "lockstep" where one actor and the learner take turns; or "rounds", where each actor makes
            exactly `round_steps` rows with one policy version and waits for a newer one.
        seed: of the run; actors derive theirs from it.
        block_steps: rows per block that the learner asks for.
        version: package version, shown to people.
        round_steps: rows per round, in as many blocks as it takes; 0 where there are no rounds.
        extras: what blocks carry beside the step, see `block_spec.extras_for`.
        wrappers: around the environment, see `environments.wrappers`.

    The last three are left out of the JSON while they say nothing, so births without them are what they always were.
    """

    status: Status
    left: bool = False
    epoch: int
    wire: int = WIRE_VERSION
    beat: int = 0
    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str
    observations: tuple[ObservationSpec, ...]
    action: ActionSpec
    public_key: str
    mode: LearnerMode
    seed: int
    block_steps: int
    version: str
    round_steps: int = 0
    extras: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the JSON payload; PayloadTooLarge over 64 KiB, PayloadRefused where a value is not JSON."""
        fields = _flat(self)
        if not self.left:
            del fields["left"]
        if not self.round_steps:
            del fields["round_steps"]
        if not self.extras:
            del fields["extras"]
        if not self.wrappers:
            del fields["wrappers"]
        fields["observations"] = [spec_to_json(spec) for spec in self.observations]
        fields["action"] = spec_to_json(self.action)
        return dumps(fields, what="learner birth")

    @classmethod
    def decode(cls, payload: bytes) -> LearnerBirth:
        """Read an untrusted payload; PayloadRefused if it does not hold."""
        data = loads(payload, what="learner birth")
        data.schema()
        observations, action = _specs(data)
        mode = cast(LearnerMode, data.choice("mode", LEARNER_MODES))
        return cls(
            status=cast(Status, data.choice("status", ("online", "gone"))),
            left="left" in data.fields and data.boolean("left"),
            epoch=data.integer("epoch", high=MAX_EPOCH),
            wire=data.integer("wire"),
            beat=data.integer("beat"),
            env_id=data.line("env_id", max_length=256),
            env_kwargs=data.object("env_kwargs"),
            algorithm=data.line("algorithm", max_length=64),
            observations=observations,
            action=action,
            public_key=_matching(data, "public_key", _PUBLIC_KEY),
            mode=mode,
            seed=data.integer("seed"),
            block_steps=data.integer("block_steps", low=1, high=65_535),
            version=data.line("version", max_length=64),
            round_steps=_round_steps(data, mode),
            extras=_extras(data),
            wrappers=_wrappers(data),
        )


@dataclass(frozen=True, kw_only=True)
class DeviceState:
    """Retained on `d/<device>/up/state`: birth, renewals and last will of an actor.

    Attributes:
        status: "online", or "gone" in the will and at a clean end.
        device: its name.
        boot_id: 16 hex digits, new at every start of the agent.
        delivering: the life whose blocks it sends now, an earlier one until all of that are durable; "" for its own.
        wire: wire version.
        beat: counts renewals.
        mode: "train" streams experience, "deploy" only acts.
        epoch: learner epoch of the running policy, 0 before the first.
        policy_version: of the running policy, 0 before the first.
        digest: sha256 of the running policy file as hex, "" before the first.
        num_envs: environments that it steps.
        actor_index: picks this actor's exploration value.
        runtime: name and version of the inference runtime.
        package: version of quarl-edge-device.
        blocked: why it stands still, such as "no learner", "no credit" or "spool full: no learner"; "" if it runs.
        blocked_since_unix_s: since when, 0 if it runs.
        edge_tpu: the running policy is compiled for the Edge TPU and runs there. In the JSON where it is true alone.
        fault: deploy mode: what went wrong last, code and message, "" for nothing; on the wire where it says something.
    """

    status: Status
    device: str
    boot_id: str
    delivering: str = ""
    wire: int = WIRE_VERSION
    beat: int = 0
    mode: DeviceMode = "train"
    epoch: int = 0
    policy_version: int = 0
    digest: str = ""
    num_envs: int = 1
    actor_index: int = 0
    runtime: str = ""
    package: str = ""
    blocked: str = ""
    blocked_since_unix_s: float = 0.0
    edge_tpu: bool = False
    fault: str = ""

    def encode(self) -> bytes:
        """Return the JSON payload; PayloadTooLarge over 64 KiB, PayloadRefused where a value is not JSON."""
        fields = {**_flat(self), "blocked": one_line(self.blocked, max_length=MAX_REASON)}
        if not self.edge_tpu:
            del fields["edge_tpu"]
        fields["fault"] = one_line(self.fault, max_length=MAX_REASON)
        if not self.fault:
            del fields["fault"]
        return dumps(fields, what="device state")

    @classmethod
    def decode(cls, payload: bytes) -> DeviceState:
        """Read an untrusted payload; PayloadRefused if it does not hold."""
        data = loads(payload, what="device state")
        data.schema()
        return cls(
            status=cast(Status, data.choice("status", ("online", "gone"))),
            device=data.line("device", max_length=63),
            boot_id=_matching(data, "boot_id", _BOOT_ID),
            delivering=_matching(data, "delivering", _BOOT_ID_OR_NONE),
            wire=data.integer("wire"),
            beat=data.integer("beat"),
            mode=cast(DeviceMode, data.choice("mode", ("train", "deploy"))),
            epoch=data.integer("epoch", high=MAX_EPOCH),
            policy_version=data.integer("policy_version", high=MAX_EPOCH),
            digest=_matching(data, "digest", _DIGEST),
            num_envs=data.integer("num_envs", low=1, high=65_535),
            actor_index=data.integer("actor_index"),
            runtime=data.line("runtime", max_length=128),
            package=data.line("package", max_length=64),
            blocked=data.line("blocked", max_length=MAX_REASON),
            blocked_since_unix_s=data.unix_s("blocked_since_unix_s"),
            edge_tpu="edge_tpu" in data.fields and data.boolean("edge_tpu"),
            fault=data.line("fault", max_length=MAX_REASON) if "fault" in data.fields else "",
        )


@dataclass(frozen=True, kw_only=True)
class Ack:
    """On `d/<device>/down/ack`: how far the learner has come with one boot id's blocks.

    Attributes:
        boot_id: whose sequences these are.
        epoch: of the learner that says so.
        inserted: every block up to here is in replay, refused, or declared dropped; -1 for none.
        durable: the same, surviving kill -9; -1 for none.
        refused: sequence to error code of recently refused blocks.
        credit: exclusive upper bound of the sequences that may be sent.
    """

    boot_id: str
    epoch: int
    inserted: int = -1
    durable: int = -1
    refused: Mapping[int, int] = field(default_factory=dict)
    credit: int = 0

    def encode(self) -> bytes:
        """Return the JSON payload; PayloadTooLarge over 64 KiB."""
        fields = _flat(self)
        fields["refused"] = {str(sequence): code for sequence, code in self.refused.items()}
        return dumps(fields, what="ack")

    @classmethod
    def decode(cls, payload: bytes) -> Ack:
        """Read an untrusted payload; PayloadRefused if it does not hold."""
        data = loads(payload, what="ack")
        data.schema()
        inserted = data.integer("inserted", low=-1)
        return cls(
            boot_id=_matching(data, "boot_id", _BOOT_ID),
            epoch=data.integer("epoch", high=MAX_EPOCH),
            inserted=inserted,
            # `durable` is never ahead of `inserted`: the journal is written before replay.
            durable=data.integer("durable", low=-1, high=inserted),
            refused=_refused(data),
            credit=data.integer("credit"),
        )


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """On `d/<device>/up/telemetry`, QoS 0, every second: shown, never decided upon.

    Attributes:
        boot_id: of the actor's life that counts.
        steps: environment steps since the start, dummy rows left out.
        episodes: finished episodes since the start.
        steps_per_s: over the last second.
        act_us_p50: median time of one policy call, in µs; 0 where not measured.
        act_us_p99: 99th percentile of the same.
        push_ms_p50: median time from the learner's reading of its variables to a policy that is ready
            to act, in ms; needs one clock.
        pushes: policies swapped in since the start.
        pushes_refused: pushes that did not hold.
        blocks_pending: blocks not yet durable.
        blocks_resent: blocks sent more than once.
        blocks_dropped: blocks given up: to make room, of another task, or damaged.
        steps_dropped: environment steps in them, as far as known.
        spool_bytes: that the blocks not yet durable take.
        return_mean: of the last 100 training episodes, 0 if there are none.
        handler_errors: exceptions that the link caught in handlers.
    """

    boot_id: str
    steps: int = 0
    episodes: int = 0
    steps_per_s: float = 0.0
    act_us_p50: float = 0.0
    act_us_p99: float = 0.0
    push_ms_p50: float = 0.0
    pushes: int = 0
    pushes_refused: int = 0
    blocks_pending: int = 0
    blocks_resent: int = 0
    blocks_dropped: int = 0
    steps_dropped: int = 0
    spool_bytes: int = 0
    return_mean: float = 0.0
    handler_errors: int = 0

    def encode(self) -> bytes:
        """Return the JSON payload; PayloadRefused where a number is not finite."""
        return dumps(_flat(self), what="telemetry")

    @classmethod
    def decode(cls, payload: bytes) -> Telemetry:
        """Read an untrusted payload; PayloadRefused if it does not hold."""
        data = loads(payload, what="telemetry")
        data.schema()
        return cls(
            boot_id=_matching(data, "boot_id", _BOOT_ID),
            steps=data.integer("steps"),
            episodes=data.integer("episodes"),
            steps_per_s=data.number("steps_per_s"),
            act_us_p50=data.number("act_us_p50"),
            act_us_p99=data.number("act_us_p99"),
            push_ms_p50=data.number("push_ms_p50"),
            pushes=data.integer("pushes"),
            pushes_refused=data.integer("pushes_refused"),
            blocks_pending=data.integer("blocks_pending"),
            blocks_resent=data.integer("blocks_resent"),
            blocks_dropped=data.integer("blocks_dropped"),
            steps_dropped=data.integer("steps_dropped"),
            spool_bytes=data.integer("spool_bytes"),
            return_mean=data.number("return_mean"),
            handler_errors=data.integer("handler_errors"),
        )


@dataclass(frozen=True, kw_only=True)
class Need:
    """On `d/<device>/up/need`: chunks of a policy file that a device lacks.

    Attributes:
        sha256: of the policy file, 64 hex digits.
        offsets: where the chunks begin in it, in bytes, ascending; 1-8 of them.
    """

    sha256: str
    offsets: tuple[int, ...]

    def encode(self) -> bytes:
        """Return the JSON payload."""
        return dumps({**_flat(self), "offsets": list(self.offsets)}, what="need")

    @classmethod
    def decode(cls, payload: bytes) -> Need:
        """Read an untrusted payload; PayloadRefused if it does not hold."""
        data = loads(payload, what="need")
        data.schema()
        sha256 = _matching(data, "sha256", _SHA256)
        offsets = data.array("offsets", max_length=MAX_NEEDED_CHUNKS)
        if not offsets or any(type(offset) is not int or not 0 <= offset < MAX_POLICY_BYTES for offset in offsets):
            raise PayloadRefused("need: 'offsets' must be 1-8 integers inside of a policy file")
        if sorted(set(offsets)) != offsets:
            raise PayloadRefused("need: 'offsets' are not ascending")
        return cls(sha256=sha256, offsets=tuple(offsets))


def _flat(message: Any) -> dict[str, Any]:
    fields = {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}
    return {"schema": SCHEMA, **fields}


def _matching(data: Reader, name: str, pattern: re.Pattern[str]) -> str:
    value = data.text(name, max_length=64)
    if not pattern.fullmatch(value):
        raise PayloadRefused(f"{data.what}: {name!r} does not match {pattern.pattern}")
    return value


def _specs(data: Reader) -> tuple[tuple[ObservationSpec, ...], ActionSpec]:
    raw = data.array("observations", max_length=MAX_OBSERVATION_KEYS)
    try:
        observations = tuple(observation_from_json(spec) for spec in raw)
        action = action_from_json(data.object("action"))
    except (ContractError, KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise PayloadRefused(f"{data.what}: a spec does not hold: {one_line(str(error), max_length=200)}") from error
    # The spec classes trust their callers with types; a payload's author is not one.
    numbers = [action.n, *(spec.stack for spec in observations)]
    texts = [text for spec in observations for text in (spec.key, spec.dtype, spec.tensor)]
    if any(type(n) is not int for n in numbers) or any(type(text) is not str for text in texts):
        raise PayloadRefused(f"{data.what}: a spec has a field of the wrong type")
    if type(action.start) is not int or abs(action.start) > MAX_INT:
        raise PayloadRefused(f"{data.what}: the first action is not an integer in ±2^53")
    if not _action_shape_holds(action):
        raise PayloadRefused(f"{data.what}: the action's shape {str(action.shape)[:80]} does not fit its bounds")
    keys = [spec.key for spec in observations]
    if not keys or len(set(keys)) != len(keys):
        raise PayloadRefused(f"{data.what}: observation keys must be one or more and different")
    return observations, action


def _round_steps(data: Reader, mode: LearnerMode) -> int:
    if mode == "rounds":
        return data.integer("round_steps", low=1, high=MAX_ROUND_STEPS)
    if data.fields.get("round_steps", 0) != 0:
        raise PayloadRefused(f"{data.what}: 'round_steps' without the mode 'rounds'")
    return 0


def _extras(data: Reader) -> tuple[str, ...]:
    names = data.array("extras", max_length=MAX_EXTRAS) if "extras" in data.fields else []
    if any(type(name) is not str or not _EXTRA.fullmatch(name) for name in names) or len(set(names)) != len(names):
        raise PayloadRefused(f"{data.what}: 'extras' must be different names of 1-64 letters, digits or '_'")
    return tuple(names)


def _wrappers(data: Reader) -> tuple[str, ...]:
    texts = data.array("wrappers", max_length=MAX_WRAPPERS) if "wrappers" in data.fields else []
    if any(type(text) is not str or len(text) > MAX_WRAPPER_CHARS for text in texts):
        raise PayloadRefused(f"{data.what}: 'wrappers' must be texts of at most {MAX_WRAPPER_CHARS} characters")
    return tuple(texts)


def _action_shape_holds(action: ActionSpec) -> bool:
    if action.kind == "discrete":
        return action.shape == ()
    shape = action.shape
    return len(shape) <= 4 and all(size >= 1 for size in shape) and math.prod(shape) == len(action.low)


def _refused(data: Reader) -> dict[int, int]:
    raw = data.object("refused")
    if len(raw) > MAX_REFUSED:
        raise PayloadRefused(f"{data.what}: {len(raw)} refused entries, at most {MAX_REFUSED}")
    result: dict[int, int] = {}
    for key, code in raw.items():
        if len(key) > 16 or not key.isascii() or not key.isdigit() or int(key) > MAX_INT:
            raise PayloadRefused(f"{data.what}: refused sequence {key[:40]!r} is not a number")
        if type(code) is not int or not 1 <= code <= 255:
            raise PayloadRefused(f"{data.what}: refused code of {key} is not in 1..255")
        result[int(key)] = code
    return result
