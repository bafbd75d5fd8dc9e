"""Puts a run's configuration together, and reads one back.

It is made in layers, each over the one before: the field defaults, the algorithm's preset ``default``, its preset of
the environment, what the command line asks for, and `--set`. The result is written to the run's config.json and never
changes.
"""

from __future__ import annotations

import importlib.resources
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import Any

from quarl_device import __version__
from quarl_device.environments import bare_name
from quarl_device.errors import CheckpointError, UsageError
from quarl_edge.algorithms import ALGORITHMS, AlgorithmInfo
from quarl_edge.config import CONFIG_SCHEMA, TrainConfig, fields

DEFAULT_ALGORITHM = "dqn"


def make_config(
    env_id: str,
    *,
    algorithm: str = "",
    preset: str | None = None,
    asked: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
) -> TrainConfig:
    """Return the configuration of a new run.

    Args:
        env_id: gymnasium id, with the module that registers it where it needs one.
        algorithm: its name; "": the first that has a preset for `env_id`, or DQN.
        preset: take the preset of this environment instead of `env_id`'s own.
        asked: fields that the command line names.
        settings: `key=value` texts; they win.

    Raises:
        UsageError: an unknown algorithm, preset or key, a value of the wrong type or out of its range.
    """
    known_as = bare_name(env_id)
    info = algorithm_info(algorithm or usual_algorithm(preset or known_as))
    cls, name = info.config, info.name
    values: dict[str, Any] = dict(read_preset("default", name))
    if preset is not None or known_as in preset_names(name):
        values.update(read_preset(preset if preset is not None else known_as, name))
    values.update({fields.known(cls, key): value for key, value in (asked or {}).items()})
    values.update(parse_setting(text, cls) for text in settings)
    return cls(**{**values, "env_id": env_id})


def algorithm_info(name: str) -> AlgorithmInfo:
    """Return an algorithm by name.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in ALGORITHMS:
        raise UsageError(
            f"algorithm = {name[:80]!r}: expected one of {', '.join(ALGORITHMS)}",
            hint=fields.nearest(name, list(ALGORITHMS)),
        )
    return ALGORITHMS[name]


def usual_algorithm(env_id: str) -> str:
    """Return the first algorithm that has a preset for an environment, or DQN."""
    return next((name for name in ALGORITHMS if env_id in preset_names(name)), DEFAULT_ALGORITHM)


def preset_names(algorithm: str = DEFAULT_ALGORITHM) -> list[str]:
    """Return the environments that an algorithm has a preset for, and "default"; ids with a slash lie in folders."""
    return sorted(_names_below(_presets(algorithm), ""))


def read_preset(name: str, algorithm: str = DEFAULT_ALGORITHM) -> dict[str, Any]:
    """Return the fields that a preset sets.

    Raises:
        UsageError: no such preset.
    """
    names, cls = preset_names(algorithm), algorithm_info(algorithm).config
    if name not in names:
        raise UsageError(
            f"{algorithm} has no preset {name[:80]!r}: there are {', '.join(names)}", hint=fields.nearest(name, names)
        )
    values = tomllib.loads((_presets(algorithm) / f"{name}.toml").read_text("utf-8"))
    return {fields.known(cls, key): fields.from_toml(cls, key, value) for key, value in values.items()}


def parse_setting(text: str, cls: type[TrainConfig]) -> tuple[str, Any]:
    """Read `key=value` by the type of the field: `hidden=128,128`, `double_q=false`, `goal_return=none`.

    Args:
        text: of one `--set`.
        cls: the configuration's class.

    Raises:
        UsageError: no '=', an unknown key, or a value of another type.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals:
        raise UsageError(f"--set {text[:80]!r}: expected key=value")
    if fields.known(cls, name) == "env_id":
        raise UsageError("--set env_id: the environment is the command's argument")
    if name == "algorithm":
        raise UsageError("--set algorithm: it has an option of its own", hint="--algorithm NAME")
    return name, fields.parse(cls, name, value.strip())


def config_from_json(data: Any) -> TrainConfig:
    """Build a configuration from decoded JSON of a run.

    Raises:
        CheckpointError: it was written by another version, or does not hold; says which version.
    """
    if not isinstance(data, dict):
        raise CheckpointError(f"config.json: expected an object, found {type(data).__name__}")
    values = dict(data)
    schema, version = values.pop("schema", None), values.pop("version", "unknown")
    hint = f"it was written by quarl-edge {version}, this is {__version__}"
    for name, found in (("schema", schema), ("env_id", values.get("env_id")), ("algorithm", values.get("algorithm"))):
        if found is None:
            raise CheckpointError(
                f"config.json has no {name!r}: it is not the whole configuration of a run",
                hint="restore it from a copy, or start a new run: quarl-edge train ENV",
            )
    if schema != CONFIG_SCHEMA:
        raise CheckpointError(f"config.json: schema {schema!r} is not {CONFIG_SCHEMA}", hint=hint)
    try:
        cls = algorithm_info(str(values["algorithm"])).config
        unknown = sorted(set(values) - set(fields.hints(cls)))
        if unknown:
            raise CheckpointError(f"config.json: unknown key {unknown[0]!r}", hint=hint)
        given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**given)
    except (UsageError, TypeError) as error:
        raise CheckpointError(f"config.json does not hold: {error}", hint=hint) from error


def _names_below(folder: Traversable, prefix: str) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _names_below(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".toml"):
            yield prefix + entry.name.removesuffix(".toml")


def _presets(algorithm: str) -> Traversable:
    return importlib.resources.files("quarl_edge") / "presets" / algorithm_info(algorithm).name
