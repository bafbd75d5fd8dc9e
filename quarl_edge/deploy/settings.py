"""The board's `device.toml`: what is asked for, as flat options of `quarl-device run`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CONFIG_FOLDER = "/etc/quarl-edge"
STATE_FOLDER = "/var/lib/quarl-edge"
_HEAD = "# Made by quarl-edge deploy; the next one replaces it.\n"
Value = str | int | float | bool | Sequence[float]


@dataclass(frozen=True, kw_only=True)
class DeviceSettings:
    """How an agent is to run; what is "", 0, `None` or empty is left to the agent.

    Attributes:
        mode: "train" or "deploy".
        fleet: that it joins.
        name: the device's.
        broker: URL, without a password.
        credentials: it has credentials.
        password: it has a broker password.
        learner_key: it is given the learner's public key.
        env: environment id, also `module:Id`.
        delegate: see `quarl-device run --delegate`.
        hz: steps per second, with mode deploy.
        safe_action: with mode deploy.
    """

    mode: Literal["train", "deploy"]
    fleet: str
    name: str
    broker: str = ""
    credentials: bool = False
    password: bool = False
    learner_key: bool = False
    env: str = ""
    delegate: str = ""
    hz: float = 0.0
    safe_action: tuple[float, ...] = ()

    def values(self) -> dict[str, Value]:
        """Return the keys of the file and their values."""
        given: dict[str, Value | None] = {
            "mode": self.mode,
            "broker": self.broker,
            "credentials": f"{CONFIG_FOLDER}/credentials" if self.credentials else None,
            "password_file": f"{CONFIG_FOLDER}/password" if self.password else None,
            "learner_key": f"{CONFIG_FOLDER}/learner.pub" if self.learner_key else None,
            "fleet": self.fleet,
            "id": self.name,
            "env": self.env,
            "state_dir": STATE_FOLDER,
            "delegate": self.delegate,
            "hz": self.hz,
            "safe_action": self.safe_action,
        }
        return {key: value for key, value in given.items() if value}

    def toml(self) -> bytes:
        """Return the file."""
        return (_HEAD + "".join(f"{key} = {_toml(value)}\n" for key, value in self.values().items())).encode()


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A JSON string of ASCII is a TOML string, but for one escape that TOML has not: surrogate pairs.
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (int, float)):
        return repr(value)
    return f"[{', '.join(_toml(float(each)) for each in value)}]"
