"""Which input of a source takes which observation of the environment."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

import gymnasium

from quarl_device.contract import ActionSpec, ObservationSpec
from quarl_device.environments import EnvSpec, flattened, make_single, spaces_to_specs
from quarl_device.errors import SpaceMismatch, UnsupportedSpace, UsageError
from quarl_device.frame_stack import fill_frame
from quarl_export.importers.options import MAX_STACK, ImportOptions
from quarl_export.ir.layers import Shape

DEFAULT_KEY = "observation"
_DTYPES = ("float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool")


def environment_specs(
    options: ImportOptions, inputs: Mapping[str, Shape]
) -> tuple[tuple[ObservationSpec, ...], ActionSpec] | None:
    """Return the specs of the environment that the user named, `None` if none was named.

    A source that reads one vector sees what it observes flattened, as a learner's policy does.

    Args:
        options: name it.
        inputs: of the source, by name.

    Raises:
        UnknownEnvironment, MissingExtra, EnvironmentMisbehaved: it cannot be made.
        UnsupportedSpace: its spaces are not carried by this version.
        UsageError, ContractError: frames of an observation that it does not give, or filled with what they cannot hold.
    """
    if not options.env_id:
        return None
    # The user of this machine names it, so it may name a module too.
    spec = EnvSpec(env_id=options.env_id, kwargs=dict(options.env_kwargs), wrappers=options.wrappers)
    env = make_single(spec, allow_module=True)
    try:
        env = _as_read(env, options, inputs)
        observations, action = spaces_to_specs(env.observation_space, env.action_space)
    finally:
        env.close()
    check_stacked_keys(options, [spec.key for spec in observations], f"the environment {options.env_id!r} gives")
    return tuple(_stacked(spec, options) for spec in observations), action


def _as_read(
    env: gymnasium.Env[Any, Any], options: ImportOptions, inputs: Mapping[str, Shape]
) -> gymnasium.Env[Any, Any]:
    """Return the environment as a source with these inputs can read it."""
    space = env.observation_space
    # A Dict of one key is what one input may be bound to.
    of_one_key = isinstance(space, gymnasium.spaces.Dict) and len(space.spaces) == 1
    if options.inputs or of_one_key or [len(shape) for shape in inputs.values()] != [1]:
        return env
    try:
        return flattened(env)
    except UnsupportedSpace:
        # Which of its parts the source does not read is better said by name.
        return env


def bind_inputs(
    inputs: Mapping[str, Shape],
    dtypes: Mapping[str, str],
    environment: tuple[ObservationSpec, ...] | None,
    options: ImportOptions,
) -> dict[str, ObservationSpec]:
    """Return the observation of each of the source's inputs, in the contract's order.

    Args:
        inputs: name to shape of the inputs that the acting function reads.
        dtypes: numpy dtype name per input.
        environment: its observations, `None` where none was named.
        options: `inputs` names keys where they differ.

    Raises:
        UsageError: `options` names an input or an observation that is not there.
        SpaceMismatch: inputs and observations do not fit each other; says which.
    """
    unknown = sorted(set(options.inputs) - set(inputs))
    if unknown:
        raise UsageError(
            f"the model has no inputs {unknown}; it has {sorted(inputs)}", hint="--input NAME=KEY, for each input"
        )
    if environment is None:
        keys = {name: _default_key(name, inputs, options) for name in inputs}
        check_stacked_keys(options, keys.values(), "the model reads")
        return {name: _from_shape(keys[name], shape, dtypes[name], options) for name, shape in inputs.items()}
    specs = {spec.key: spec for spec in environment}
    only = next(iter(specs)) if len(specs) == 1 and len(inputs) == 1 else None
    keys = {name: options.inputs.get(name, only or name) for name in inputs}
    if sorted(keys.values()) != sorted(specs):
        raise SpaceMismatch(
            f"the model reads the inputs {sorted(inputs)} as observations {sorted(keys.values())}, "
            f"the environment {options.env_id!r} gives {sorted(specs)}",
            hint="name the key of each input, --input NAME=KEY, or make the environment give just these "
            "(FilterObservation)",
        )
    names = {key: name for name, key in keys.items()}
    for key, spec in specs.items():
        _check_fits(names[key], inputs[names[key]], spec)
    return {names[key]: spec for key, spec in specs.items()}


def _default_key(name: str, inputs: Mapping[str, Shape], options: ImportOptions) -> str:
    return options.inputs.get(name, DEFAULT_KEY if len(inputs) == 1 else name)


def check_stacked_keys(options: ImportOptions, keys: Collection[str], who: str) -> None:
    """Refuse frames of an observation that is not there.

    Raises:
        UsageError: saying which there are.
    """
    stacked = options.stack if isinstance(options.stack, Mapping) else {}
    unknown = sorted(set(stacked) - set(keys))
    if unknown:
        raise UsageError(f"{who} no observations {unknown} to stack; there are {sorted(keys)}", hint="--stack KEY=K")


def _stacked(spec: ObservationSpec, options: ImportOptions) -> ObservationSpec:
    stack = options.frames(spec.key)
    spec = dataclasses.replace(spec, stack=stack, stack_fill=options.fill() if stack > 1 else None)
    fill_frame(spec)  # only to refuse what it cannot make
    return spec


def _from_shape(key: str, shape: Shape, dtype: str, options: ImportOptions) -> ObservationSpec:
    frame, stack = shape, options.frames(key)
    if stack > 1:
        rows = len(shape) == 2 and shape[0] == stack
        if rows and not shape[-1] % stack:
            raise SpaceMismatch(
                f"input {key!r} of shape {shape} may hold {stack} frames in its first axis or in its last",
                hint="name the environment, which tells: --env ID",
            )
        if not rows and shape[-1] % stack:
            raise SpaceMismatch(f"input {key!r} of shape {shape} does not hold {stack} frames in its last axis")
        frame = shape[1:] if rows else (*shape[:-1], shape[-1] // stack)
    known = dtype if dtype in _DTYPES else "float32"
    low, high = ((0.0,), (255.0,)) if known == "uint8" else (None, None)
    return _stacked(ObservationSpec(key=key, shape=frame, dtype=known, low=low, high=high), options)


def _check_fits(name: str, shape: Shape, spec: ObservationSpec) -> None:
    """Refuse an input whose elements would not be the observation's in the same order."""
    found, frame = math.prod(shape), spec.shape or (1,)
    wanted = math.prod(frame) * spec.stack
    said = f"input {name!r} of shape {shape} does not take observation {spec.key!r} of shape {spec.shape}"
    if found != wanted:
        times, rest = divmod(found, math.prod(frame))
        stacked = 1 < times <= MAX_STACK and not rest
        hint = f"if {times} frames are stacked, say --stack {spec.key}={times}" if stacked else ""
        raise SpaceMismatch(said + (f" and stack {spec.stack}" if spec.stack > 1 else ""), hint=hint)
    if spec.stack > 1 and shape == (spec.stack, spec.stack) == (*frame, spec.stack):
        raise SpaceMismatch(
            f"{said}: whether a frame is a row or a column cannot be told",
            hint=f"let the model read {wanted} numbers in a row, frame behind frame",
        )
    layouts = {(wanted,), (*frame[:-1], frame[-1] * spec.stack)} | (
        {frame} if spec.stack == 1 else {(*frame, spec.stack)} | ({(spec.stack, *frame)} if len(frame) == 1 else set())
    )
    slim = tuple(n for n in shape if n != 1)
    if shape not in layouts and slim not in {tuple(n for n in layout if n != 1) for layout in layouts}:
        hint = "the axes come in another order: let the environment give height, width, channels"
        raise SpaceMismatch(said, hint=hint if sorted(shape) == sorted(frame) else "")
