"""The learner's task on this device: the environment that its birth names, made into a loop, and what belongs to it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quarl_device.actor.acting import Mailbox
from quarl_device.actor.identity import AgentConfig
from quarl_device.actor.single import SingleLoop
from quarl_device.actor.stepping import Loop, LoopConfig
from quarl_device.actor.vector import VectorLoop
from quarl_device.contract import spec_to_json
from quarl_device.environments import EnvSpec, check_matches, check_registered, make_single, make_vector
from quarl_device.wire.block import BlockCodec, BlockSpec
from quarl_device.wire.block_spec import extras_for
from quarl_device.wire.messages import LearnerBirth

_LOG = logging.getLogger(__name__)


def make_loop(config: AgentConfig, birth: LearnerBirth, mailbox: Mailbox) -> tuple[Loop, BlockCodec]:
    """Return a loop over the learner's environment, or over the device's own choice, and the codec of its blocks.

    Raises:
        UnknownEnvironment, UnsupportedSpace, SpaceMismatch: no such environment here, or not the learner's spaces.
        MissingExtra: the environment's own dependency is not installed.
        EnvironmentMisbehaved: its constructor raised.
    """
    extras = extras_for(birth.extras, birth.action)
    spec = BlockSpec(observations=birth.observations, action=birth.action, extras=extras)
    loop_config = _loop_config(config, birth, spec)
    kwargs = {} if config.env else birth.env_kwargs
    env_spec = EnvSpec.seen_as(birth.observations, loop_config.env_id, kwargs, wrappers=birth.wrappers)
    # Only the device's own configuration may name a module to import.
    own = config.env is not None
    check_registered(env_spec.env_id, allow_module=own)
    if config.num_envs == 1:
        env = make_single(env_spec, allow_module=own)
        with _closed_on_error(env):
            check_matches(env, birth.observations, birth.action)
            return SingleLoop(env, loop_config, mailbox), BlockCodec(spec)
    vector = make_vector(env_spec, config.num_envs, allow_module=own)
    with _closed_on_error(vector):
        check_matches(vector, birth.observations, birth.action)
        return VectorLoop(vector, loop_config, mailbox), BlockCodec(spec)


def _loop_config(config: AgentConfig, birth: LearnerBirth, spec: BlockSpec) -> LoopConfig:
    lockstep = birth.mode == "lockstep"
    if lockstep and (config.seed is not None or config.block_steps is not None):
        _LOG.warning("the learner runs in lockstep: its seed and block size are used, not this device's")
    rows = birth.block_steps if lockstep else config.block_steps or birth.block_steps
    return LoopConfig(
        env_id=config.env or birth.env_id,
        spec=spec,
        num_envs=config.num_envs,
        max_rows=min(rows, spec.max_steps(config.num_envs), birth.round_steps or rows),
        round_rows=birth.round_steps,
        seed=birth.seed if lockstep or config.seed is None else config.seed,
        actor_index=config.actor_index,
        lockstep=lockstep,
    )


@contextmanager
def _closed_on_error(env: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        env.close()
        raise


def same_task(one: LearnerBirth, other: LearnerBirth) -> bool:
    """Whether what was made for one birth is of use for the other."""
    return _task(one) == _task(other)


def task_name(birth: LearnerBirth) -> str:
    """Return a text that is the same as long as blocks made for one birth are of use to the learner of another.

    A lockstep is made again by each learner, so nothing of it outlives an epoch.
    """
    lockstep = birth.mode == "lockstep"
    spaces = [*(spec_to_json(spec) for spec in birth.observations), spec_to_json(birth.action)]
    fields = [birth.env_id, birth.env_kwargs, spaces, birth.mode, [birth.epoch, birth.block_steps] if lockstep else 0]
    # Only where there are some: the names that are in spools by now stay what they are.
    return json.dumps([*fields, *birth.extras, *([birth.wrappers] if birth.wrappers else [])], sort_keys=True)


def _task(birth: LearnerBirth) -> tuple[object, ...]:
    spaces = (birth.wrappers, birth.observations, birth.action, birth.extras)
    return (birth.env_id, birth.env_kwargs, *spaces, birth.mode, birth.block_steps, birth.round_steps)
