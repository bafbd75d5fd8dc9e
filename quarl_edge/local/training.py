"""A whole training run on this machine: broker, learner and local actors, put up and taken down in order."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from quarl_device.environments import names_module
from quarl_device.errors import QuarlError
from quarl_device.files import write_atomic
from quarl_device.link.credentials import CREDENTIALS_VARIABLE
from quarl_device.names import PASSWORD_VARIABLE
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.learner_telemetry import LearnerTelemetry
from quarl_edge.checkpoint import Checkpoint, load_latest
from quarl_edge.config import ReplayConfig, TrainConfig
from quarl_edge.learner.fleet import Fleet
from quarl_edge.learner.metrics import TensorBoard
from quarl_edge.learner.receiver import FlowReport
from quarl_edge.learner.result import TrainResult
from quarl_edge.learner.session import Session
from quarl_edge.learner.stop import StopSignal
from quarl_edge.local.access import BrokerAccess, Login, open_broker
from quarl_edge.local.actors import ActorCommand, ActorProcesses
from quarl_edge.progress import Progress
from quarl_edge.runs import LEARNER_PUBLIC, RunDirectory
from quarl_edge.session_log import noted_session

_LOG = logging.getLogger(__name__)


def run_training(
    config: TrainConfig,
    run: RunDirectory,
    *,
    broker: str,
    fleet: str,
    key: LearnerKey,
    progress: Progress,
    stop: StopSignal,
    login: Login | None = None,
    takeover: bool = False,
    resume: bool = False,
    metrics_at: tuple[str, int] | None = None,
) -> TrainResult:
    """Train in `run` with `config.actors` local actors.

    Args:
        config: hyperparameters.
        run: its directory.
        broker: "embedded" or a URL.
        fleet: name of the fleet.
        key: signs pushes.
        progress: what a person watches.
        stop: asks for a clean end.
        login: for a broker of the user's.
        takeover: serve the fleet even if another learner does.
        resume: continue from the run's latest checkpoint.
        metrics_at: address and port to serve /metrics at, `None` not to.

    Raises:
        RunInUse: another process trains in `run`.
        QuarlError: see `Session.train`.
    """
    # First of all: nobody else reads or writes in this run from here on.
    with noted_session(run.sessions) as noted, contextlib.closing(TensorBoard(run.tensorboard)) as metrics:
        checkpoint = load_latest(run.checkpoints) if resume else None
        with (
            _exporter(metrics_at, progress, _at_start(config, checkpoint)) as observers,
            open_broker(broker, actors=config.actors, login=login or Login(), fleet=fleet, log_dir=run.logs) as access,
        ):
            session = Session(
                config,
                run,
                Fleet(
                    url=access.url,
                    password=access.password,
                    name=fleet,
                    key=key,
                    client_id=access.client_id,
                    tls=access.tls,
                    takeover=takeover,
                    clear=access.embedded,
                    check_broker=access.check,
                ),
                progress=progress,
                metrics=metrics,
                stop=stop,
                checkpoint=checkpoint,
                observers=observers,
            )
            if not access.embedded:
                own = f" --env {config.env_id}" if names_module(config.env_id) else ""
                progress.note(f"actors elsewhere join with: {access.join_hint(fleet)}{own}")
            actors = _local_actors(config, run, access, fleet=fleet, key=key)
            result = session.train(actors)
            noted.ended(result.reason.value, env_steps=result.env_steps, train_s=result.train_s)
            return result


def _at_start(config: TrainConfig, checkpoint: Checkpoint | None) -> FlowReport:
    """Return what is known before training begins: how far the run is."""
    state = {} if checkpoint is None else checkpoint.state
    return FlowReport(
        learner=LearnerTelemetry(
            epoch=0,
            env_steps=int(state.get("env_steps", 0)),
            updates=int(state["progression"]["updates"]) if state else 0,
            replay_capacity=config.replay_capacity if isinstance(config, ReplayConfig) else 0,
        ),
        actors={},
        blocked_s={},
    )


@contextlib.contextmanager
def _exporter(
    at: tuple[str, int] | None, progress: Progress, known: FlowReport
) -> Iterator[list[Callable[[FlowReport], None]]]:
    if at is None:
        yield []
        return
    from quarl_edge.flow.prometheus import Exporter

    host, port = at
    with Exporter(port, host=host) as exporter:
        exporter.observe(known)
        progress.note(f"metrics at http://{host}:{exporter.port}/metrics")
        yield [exporter.observe]


def _local_actors(
    config: TrainConfig, run: RunDirectory, access: BrokerAccess, *, fleet: str, key: LearnerKey
) -> ActorProcesses | None:
    # Written for actors elsewhere too: a person copies it to a board for --learner-key.
    public_key = run.path / LEARNER_PUBLIC
    write_atomic(public_key, f"{key.public.hex}\n".encode(), error=QuarlError, what="the learner's public key")
    if not access.actors:
        return None
    commands = []
    for index, name in enumerate(access.actors):
        url = access.actor_url(name)
        arguments = ["--broker", str(url), "--fleet", fleet, "--id", name, "--index", str(index)]
        if name in access.actor_credentials:
            arguments += ["--credentials", str(access.actor_credentials[name])]
        if names_module(config.env_id):
            arguments += ["--env", config.env_id]
        arguments += ["--envs", str(config.envs_per_actor), "--learner-key", str(public_key)]
        # They end with the learner, so what they hold is of no use to a later start.
        arguments += ["--spool", "memory", "--max-offline", "0"]
        arguments += ["--exit-when-gone", "--die-with-parent", "--quiet"]
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        # Empty variables keep away from an actor what is meant for the learner.
        environment[PASSWORD_VARIABLE] = access.passwords.get(url.user, "")
        environment[CREDENTIALS_VARIABLE] = ""
        commands.append(ActorCommand(name=name, arguments=arguments, environment=environment))
    return ActorProcesses(commands, log_dir=run.logs)
