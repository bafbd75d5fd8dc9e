"""A whole training run on this machine: broker, learner and local actors, put up and taken down in order."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quarl_device.errors import QuarlError
from quarl_device.files import write_atomic
from quarl_device.link import BrokerURL
from quarl_device.link.url import PASSWORD_VARIABLE
from quarl_device.wire.keys import LearnerKey
from quarl_edge.broker import EmbeddedBroker
from quarl_edge.checkpoint import load_latest
from quarl_edge.config import TrainConfig
from quarl_edge.learner.metrics import TensorBoard
from quarl_edge.learner.result import TrainResult
from quarl_edge.learner.session import LEARNER_NAME, Fleet, Session
from quarl_edge.learner.stop import StopSignal
from quarl_edge.local.actors import ActorCommand, ActorProcesses
from quarl_edge.progress import Progress
from quarl_edge.runs import RunDirectory

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BrokerAccess:
    """A broker and the passwords of who talks to it from this machine.

    Attributes:
        host_port: "host:port", or "host".
        scheme: "mqtt" or "mqtts".
        passwords: by user; a user that is missing connects without one.
        embedded: whether the broker is ours and ends with the run.
    """

    host_port: str
    scheme: str
    passwords: dict[str, str]
    embedded: bool

    def url(self, user: str) -> str:
        """Return the URL for `user`."""
        return f"{self.scheme}://{user}@{self.host_port}"


def actor_names(count: int) -> list[str]:
    """Return the device names of local actors."""
    return [f"actor-{index}" for index in range(count)]


@contextlib.contextmanager
def open_broker(broker: str, *, actors: int, password: str | None, log_dir: Path) -> Iterator[BrokerAccess]:
    """Start the embedded broker, or point at the user's own.

    Args:
        broker: "embedded" or a URL.
        actors: how many local actors need an account.
        password: for a broker of the user's.
        log_dir: where the embedded broker logs.

    Raises:
        UsageError: a bad URL.
        BrokerStartFailed: the embedded broker did not come up.
    """
    if broker != "embedded":
        url = BrokerURL.parse(broker)
        names = [url.user or LEARNER_NAME, *actor_names(actors)]
        passwords = dict.fromkeys(names, password) if password else {}
        yield BrokerAccess(
            host_port=f"{url.host}:{url.port}",
            scheme="mqtts" if url.tls else "mqtt",
            passwords={name: word for name, word in passwords.items() if word},
            embedded=False,
        )
        return
    passwords = {name: secrets.token_urlsafe(24) for name in [LEARNER_NAME, *actor_names(actors)]}
    with EmbeddedBroker(passwords, log_dir=log_dir) as started:
        url = BrokerURL.parse(started.url)
        yield BrokerAccess(host_port=f"{url.host}:{url.port}", scheme="mqtt", passwords=passwords, embedded=True)


def run_training(
    config: TrainConfig,
    run: RunDirectory,
    *,
    broker: str,
    fleet: str,
    key: LearnerKey,
    progress: Progress,
    stop: StopSignal,
    password: str | None = None,
    takeover: bool = False,
    resume: bool = False,
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
        password: for a broker of the user's.
        takeover: serve the fleet even if another learner does.
        resume: continue from the run's latest checkpoint.

    Raises:
        QuarlError: see `Session.train`.
    """
    checkpoint = load_latest(run.checkpoints) if resume else None
    metrics = TensorBoard(run.tensorboard)
    try:
        with open_broker(broker, actors=config.actors, password=password, log_dir=run.logs) as access:
            user = LEARNER_NAME if access.embedded else (BrokerURL.parse(broker).user or LEARNER_NAME)
            session = Session(
                config,
                run,
                Fleet(
                    url=BrokerURL.parse(access.url(user)),
                    password=access.passwords.get(user),
                    name=fleet,
                    key=key,
                    takeover=takeover,
                    clear=access.embedded,
                ),
                progress=progress,
                metrics=metrics,
                stop=stop,
                checkpoint=checkpoint,
            )
            if not access.embedded:
                progress.note(
                    f"actors elsewhere join with: quarl-device run --broker {broker} --fleet {fleet} --id NAME"
                )
            actors = _local_actors(config, run, access, fleet=fleet, key=key)
            return session.train(actors)
    finally:
        metrics.close()


def _local_actors(
    config: TrainConfig, run: RunDirectory, access: BrokerAccess, *, fleet: str, key: LearnerKey
) -> ActorProcesses | None:
    # Written for actors elsewhere too: a person copies it to a board for --learner-key.
    public_key = run.path / "learner.pub"
    write_atomic(public_key, f"{key.public.hex}\n".encode(), error=QuarlError, what="the learner's public key")
    if not config.actors:
        return None
    commands = []
    for index, name in enumerate(actor_names(config.actors)):
        arguments = ["--broker", access.url(name), "--fleet", fleet, "--id", name, "--index", str(index)]
        arguments += ["--envs", str(config.envs_per_actor), "--learner-key", str(public_key)]
        arguments += ["--exit-when-gone", "--die-with-parent", "--quiet"]
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        password = access.passwords.get(name)
        # An empty variable keeps a password that is meant for the learner away from an actor that has none.
        environment[PASSWORD_VARIABLE] = password or ""
        commands.append(ActorCommand(name=name, arguments=arguments, environment=environment))
    return ActorProcesses(commands, log_dir=run.logs)
