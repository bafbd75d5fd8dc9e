"""The options of `quarl-device run --mode deploy`, and what is made of them."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from quarl_device.arguments import at_least
from quarl_device.errors import CredentialsError, KeyFileError, QuarlError, UsageError
from quarl_device.files import is_there
from quarl_device.grid import MAX_HZ
from quarl_device.output import write_result
from quarl_device.runtime_options import chosen_runtime

if TYPE_CHECKING:
    from quarl_device.deploy.agent import DeployAgent
    from quarl_device.deploy.config import DeployConfig, DeploySummary, OnChange
    from quarl_device.deploy.herald import Herald
    from quarl_device.deploy.slots import Slots
    from quarl_device.environments import EnvSpec
    from quarl_device.notify import Notifier
    from quarl_device.wire.keys import PublicKey

_LOG = logging.getLogger(__name__)
_TRAINING_ONLY = (
    *("index", "block_steps", "max_offline", "max_offline_blocks", "max_upload", "exit_when_gone"),
    "edge_tpu_max_lag",
)


def add_deploy_options(run: argparse.ArgumentParser) -> None:
    """Add the options that `deploy_config` reads."""
    group = run.add_argument_group("with --mode deploy")
    group.add_argument("--policy", type=Path, metavar="FILE", help="signed policy to begin with, if it is newer")
    group.add_argument("--hz", type=_number(0.001, MAX_HZ), default=0.0, metavar="N", help="steps per second")
    group.add_argument("--episodes", type=at_least(1), metavar="N", help="end after so many")
    group.add_argument(
        "--safe-action", type=_finite, nargs="+", default=(), metavar="A", help="acts when no good policy is there"
    )
    group.add_argument(
        "--limit", type=_finite, nargs=2, action="append", default=[], metavar=("LOW", "HIGH"),
        help="hard limits of an action: once for all elements, or once for each",
    )  # fmt: skip
    group.add_argument("--limits", type=Path, metavar="FILE", help="low, high and safe_action as TOML or .json")
    group.add_argument("--probation-episodes", type=at_least(1), default=3, metavar="N", help="(default: %(default)s)")
    group.add_argument(
        "--probation-steps", type=at_least(1), default=1000, metavar="N", help="or so many (default: %(default)s)"
    )
    group.add_argument(
        "--budget-ms", type=_number(0.001, 1e6), metavar="MS",
        help="a step of a policy on probation that takes longer is too slow (default: a period of --hz)",
    )  # fmt: skip
    group.add_argument(
        "--probation-share", type=_number(0.0, 1.0), default=0.05, metavar="X",
        help="share of its steps that may be too slow, or beyond the limits (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--swap-within", type=_number(0.0, 1e6), default=60.0, metavar="S",
        help="a new policy waits so long for an episode to end (default: %(default)g)",
    )  # fmt: skip


def refuse_deploy_options(options: argparse.Namespace) -> None:
    """Refuse options that say nothing to an actor of a learner; raises UsageError."""
    given = [name for name in ("policy", "hz", "episodes", "safe_action", "limit", "limits") if getattr(options, name)]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{names}: of use with --mode deploy alone", hint="add --mode deploy")


def make_deploy_agent(options: argparse.Namespace, notifier: Notifier) -> tuple[DeployAgent, Herald | None]:
    """Return the agent of a command line, and what tells its fleet; the state directory is this process's from then on.

    Args:
        options: as parsed.
        notifier: tells the service manager.

    Raises:
        UsageError: an option of the other mode, or no environment.
        AgentInUse: another agent acts with the state directory.
        TrustError, ModelError: no key, or `--policy` does not hold and nothing else may act.
    """
    from quarl_device.deploy.agent import DeployAgent
    from quarl_device.deploy.slots import Slots
    from quarl_device.deploy.telling import make_herald
    from quarl_device.paths import state_dir

    _refuse_training_options(options)
    slots = Slots(options.state_dir or state_dir())
    slots.make()
    slots.take()
    try:
        key = _trusted_key(options, slots)
        runtime = chosen_runtime(options)
        env = _environment(options, slots, key)
        if options.policy is not None:
            _offer(options, slots, key)
        herald = make_herald(options, runtime)
        told: OnChange = herald.report if herald is not None else lambda _: None
        config = _config(options, env)
        agent = DeployAgent(config, slots=slots, key=key, runtime=runtime, on_change=told, notifier=notifier)
        return agent, herald
    except QuarlError:
        slots.release()
        raise


@contextlib.contextmanager
def heralded(herald: Herald | None) -> Iterator[None]:
    """Have the fleet told of what goes on inside, where it is to be told, and of how it ends."""
    if herald is None:
        yield
        return
    herald.start()
    try:
        yield
    except QuarlError as error:
        herald.close(why=f"failed: {error}")
        raise
    finally:
        herald.close()


def show_deploy_summary(summary: DeploySummary, *, as_json: bool) -> None:
    """Write what came of a life of the agent."""
    if as_json:
        write_result(json.dumps({**asdict(summary), "mode": "deploy"}) + "\n")
        return
    acts = f"version {summary.version}" if summary.version else "no policy"
    returns = f", mean return {summary.return_mean:.1f}" if summary.episodes else ""
    write_result(
        f"deploy: {summary.steps:,} steps, {summary.episodes:,} episodes{returns}; {acts} acted, {summary.phase}; "
        f"ended: {summary.reason}\n"
    )


def _config(options: argparse.Namespace, env: EnvSpec) -> DeployConfig:
    from quarl_device.deploy.config import DeployConfig
    from quarl_device.deploy.limits import make_wishes
    from quarl_device.deploy.machine import Rules
    from quarl_device.deploy.probation import ProbationRules

    budget_s = options.budget_ms / 1e3 if options.budget_ms else (1.0 / options.hz if options.hz else 0.0)
    return DeployConfig(
        env=env,
        allow_module=options.env is not None,
        hz=options.hz,
        max_episodes=options.episodes or 0,
        max_steps=options.steps or 0,
        seed=options.seed,
        wishes=make_wishes(limits=options.limit, file=options.limits, safe_action=options.safe_action),
        probation=ProbationRules(
            episodes=options.probation_episodes,
            steps=options.probation_steps,
            budget_s=budget_s,
            share=options.probation_share,
        ),
        rules=Rules(boundary_s=options.swap_within),
    )


def _refuse_training_options(options: argparse.Namespace) -> None:
    given = [name for name in _TRAINING_ONLY if getattr(options, name) not in (None, "", 0, False)]
    if options.envs != 1:
        given.append("envs")
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(
            f"{names}: of no use with --mode deploy, which acts in one environment and sends no experience"
        )


def _trusted_key(options: argparse.Namespace, slots: Slots) -> PublicKey:
    """Return the key to trust: the given one, that of the credentials, or the one that was kept.

    Credentials that have expired, or that a wrong clock says so of, keep nobody from acting with what is here.
    """
    from quarl_device.link.credentials import LEARNER_PUBLIC_FILE, find_credentials, named_folder

    given: Path | None = options.learner_key
    if given is not None:
        return slots.trusted_key(given)
    try:
        held = find_credentials(options.credentials)
        return slots.trusted_key(held.learner_key if held is not None else None)
    except CredentialsError as error:
        folder = named_folder(options.credentials)
        beside = None if folder is None else folder / LEARNER_PUBLIC_FILE
        try:
            return slots.trusted_key(beside if beside is not None and is_there(beside) else None)
        except KeyFileError:
            raise error from None


def _environment(options: argparse.Namespace, slots: Slots, key: PublicKey) -> EnvSpec:
    """Return the environment that a person named, or that the first policy was made for that holds."""
    from quarl_device.deploy.signed import open_signed, read_signed
    from quarl_device.deploy.slots import Slot
    from quarl_device.environments import EnvSpec

    readers: list[Callable[[], bytes]] = [
        lambda slot=slot: slots.read(slot)  # type: ignore[misc]
        for slot in (Slot.CURRENT, Slot.PREVIOUS, Slot.TRIAL, Slot.INCOMING)
        if slots.there(slot)
    ]
    if options.policy is not None:
        readers.append(lambda: read_signed(options.policy))
    why: QuarlError | None = None
    for read in readers:
        try:
            contract = open_signed(read(), key).file.contract
        except QuarlError as error:
            why = error
            continue
        name = options.env or contract.env_id
        if name:
            kwargs = {} if options.env else contract.env_kwargs
            return EnvSpec.seen_as(contract.observations, name, kwargs, wrappers=contract.wrappers)
    if options.env:
        return EnvSpec(env_id=options.env)
    if why is not None:
        raise why
    raise UsageError("which environment?", hint="--env ID, or a policy that names one: --policy model.qpol")


def _offer(options: argparse.Namespace, slots: Slots, key: PublicKey) -> None:
    """Hand over `--policy` where it is newer than what is there; a start must not depend on it while a policy acts."""
    from quarl_device.deploy.activation import check_offer
    from quarl_device.deploy.signed import open_signed, read_signed
    from quarl_device.deploy.slots import Slot
    from quarl_device.errors import OlderVersion

    others = [slot for slot in (Slot.CURRENT, Slot.PREVIOUS, Slot.TRIAL) if slots.there(slot)]
    try:
        data = read_signed(options.policy)
        signed = open_signed(data, key)
        if any(slots.holds(slot, signed.sha256) for slot in others):
            return
        if slots.holds(Slot.REFUSED, signed.sha256):
            _LOG.warning("--policy %s has failed here before: quarl-device activate tries it again", options.policy)
            return
        check_offer(signed, slots, key)
        slots.offer(data)
    except OlderVersion as error:
        _LOG.info("--policy %s is not taken: %s", options.policy, error.message)
    except QuarlError as error:
        if not others and not (options.safe_action or options.limits):
            raise
        _LOG.error("--policy %s is not taken: %s", options.policy, error)


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = _finite(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"expected a number in {low:g}..{high:g}, found {text[:40]}")
        return value

    return parse


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a finite number, found {text[:40]!r}")
    return value
