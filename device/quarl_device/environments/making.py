"""One environment of an id, bare and fast; whatever goes wrong in making or stepping it as an error of ours."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from quarl_device.contract import ObservationSpec
from quarl_device.environments.atari import is_atari, preprocessed, unskipped
from quarl_device.environments.families import family_of_entry, family_of_id
from quarl_device.environments.ids import bare_name, find_spec, first_line, quiet
from quarl_device.environments.spaces import flattened, is_one_vector
from quarl_device.environments.wrappers import wrapped
from quarl_device.errors import EnvironmentMisbehaved, MissingExtra, QuarlError, UnknownEnvironment


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """Which environment to make.

    Attributes:
        env_id: registered gymnasium id.
        kwargs: keyword arguments of its constructor.
        flat: observe one vector whatever its space, see `spaces.flattened`; nothing changes where it is an array.
        wrappers: around it, the first one innermost, see `wrappers`; flattening comes last.
    """

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    flat: bool = False
    wrappers: tuple[str, ...] = ()

    @classmethod
    def seen_as(
        cls,
        observations: Sequence[ObservationSpec],
        env_id: str,
        kwargs: Mapping[str, Any] | None = None,
        *,
        wrappers: tuple[str, ...] = (),
    ) -> EnvSpec:
        """Return an environment as a policy with these observations sees it.

        A policy that observes one vector sees a Dict, a Tuple or a Discrete flattened. Learner and device both know
        that from the observations, which are in the learner's birth and in the file's contract.
        """
        return cls(env_id=env_id, kwargs=kwargs or {}, flat=is_one_vector(observations), wrappers=wrappers)


def make_single(spec: EnvSpec, *, seed: int | None = None, allow_module: bool = False) -> gymnasium.Env[Any, Any]:
    """Return one environment without the checker and order-enforcing wrappers, which cost more than CartPole itself.

    Args:
        spec: what to make. A time limit and the wrappers that the registration names stay.
        seed: resets the environment once and seeds its action space, so that later resets follow from it.
        allow_module: see `check_registered`.

    Raises:
        UnknownEnvironment: no such id.
        MissingExtra: the environment's own dependency is not installed.
        EnvironmentMisbehaved: its constructor or first reset raised.
        UnsupportedSpace: a space that no vector can be made of.
    """
    bare = copy.copy(find_spec(spec.env_id, allow_module=allow_module))
    bare.order_enforce, bare.disable_env_checker = False, True
    with making(spec):
        env = _made(bare, spec)
        if seed is not None:
            env.reset(seed=seed)
            env.action_space.seed(seed)
    return env


def _made(bare: GymnasiumSpec, spec: EnvSpec) -> gymnasium.Env[Any, Any]:
    if is_atari(bare.id):
        return wrapped(preprocessed(gymnasium.make(bare, **unskipped(spec.kwargs))), spec.wrappers)
    env = wrapped(gymnasium.make(bare, **dict(spec.kwargs)), spec.wrappers)
    return flattened(env) if spec.flat else env


@contextmanager
def making(spec: EnvSpec) -> Iterator[None]:
    """Turn what gymnasium and the environment's constructor raise into our errors."""
    try:
        with quiet():
            yield
    except QuarlError:
        raise
    except gymnasium.error.UnregisteredEnv as error:
        raise UnknownEnvironment(f"environment {spec.env_id!r} cannot be made: {first_line(error)}") from error
    # The constructor is anybody's code: whatever it raises becomes one line that says what was asked for.
    except Exception as error:
        given = "".join(f" with {what}" for what in (dict(spec.kwargs), ", ".join(spec.wrappers)) if what)
        raise missing_part(spec.env_id, error) or EnvironmentMisbehaved(
            f"environment {spec.env_id!r} cannot be made{given}: {type(error).__name__}: {first_line(error)}"
        ) from error


def missing_part(env_id: str, error: BaseException) -> MissingExtra | None:
    """Return what is to be installed where an environment's code has raised for want of it, `None` otherwise.

    It may be missed late: gymnasium's environments import what draws them when they first draw.

    Args:
        env_id: the environment; "" where it is not known, and then neither is the command.
        error: what it raised.
    """
    who, hint = f"environment {env_id!r}" if env_id else "an environment", _command(env_id)
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        said = first_line(error)
        # Advice of its own follows after a comma; it is shown where there is no better one.
        return MissingExtra(f"{who} needs a package: {said.split(',')[0] if hint else said}", hint=hint)
    if isinstance(error, ModuleNotFoundError):
        return MissingExtra(f"{who} needs the Python module {error.name!r}, which is not installed", hint=hint)
    return None


def _command(env_id: str) -> str:
    """Return the command that adds what a family of environments needs, "" if none is known."""
    name = bare_name(env_id)
    entry = gymnasium.registry[name].entry_point if name in gymnasium.registry else ""
    family = family_of_id(name) or family_of_entry(entry)
    return "" if family is None else family.command
