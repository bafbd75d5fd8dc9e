"""A whole training run on this machine: broker, learner and local actors, put up and taken down in order."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
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
from quarl_edge.learner.receiver import FlowReport
from quarl_edge.learner.result import TrainResult
from quarl_edge.learner.session import LEARNER_NAME, Fleet, Session
from quarl_edge.learner.stop import StopSignal
from quarl_edge.local.actors import ActorCommand, ActorProcesses
from quarl_edge.progress import Progress
from quarl_edge.runs import RunDirectory

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BrokerAccess:
    """A broker, and how the learner and the actors of this machine log in.

    Attributes:
        url: as the learner uses it, its user included.
        passwords: by user; a user that is missing connects without one.
        actors: device names of the local actors.
        embedded: whether the broker is ours and ends with the run. Ours knows every actor by name; on the user's own
            they log in as the learner does.
        check: raises where ours has ended.
    """

    url: BrokerURL
    passwords: Mapping[str, str]
    actors: tuple[str, ...]
    embedded: bool
    check: Callable[[], None] = lambda: None

    @property
    def password(self) -> str | None:
        """The learner's."""
        return self.passwords.get(self.url.user)

    def actor_url(self, name: str) -> BrokerURL:
        """Return the URL for local actor `name`."""
        return replace(self.url, user=name) if self.embedded else self.url

    def join_hint(self, fleet: str) -> str:
        """Return the command by which a device elsewhere joins, under a user of its own."""
        user = "NAME" if self.url.user else ""
        return f"quarl-device run --broker {replace(self.url, user=user)} --fleet {fleet} --id NAME"


def actor_names(count: int) -> tuple[str, ...]:
    """Return the device names of local actors."""
    return tuple(f"actor-{index}" for index in range(count))


@contextlib.contextmanager
def open_broker(broker: str, *, actors: int, password: str | None, log_dir: Path) -> Iterator[BrokerAccess]:
    """Start the embedded broker, or point at the user's own.

    Args:
        broker: "embedded" or a URL.
        actors: how many local actors there will be.
        password: of the URL's user, for a broker of the user's.
        log_dir: where the embedded broker logs.

    Raises:
        UsageError: a bad URL.
        BrokerStartFailed: the embedded broker did not come up.
    """
    if broker == "embedded":
        names = actor_names(actors)
        words = {name: secrets.token_urlsafe(24) for name in (LEARNER_NAME, *names)}
        with EmbeddedBroker(words, log_dir=log_dir) as started:
            url = replace(BrokerURL.parse(started.url), user=LEARNER_NAME)
            yield BrokerAccess(url=url, passwords=words, actors=names, embedded=True, check=started.check)
        return
    url = BrokerURL.parse(broker)
    if password and not url.user:
        url = replace(url, user=LEARNER_NAME)
    yield BrokerAccess(
        url=url,
        passwords={url.user: password} if password else {},
        actors=actor_names(actors),
        embedded=False,
    )


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
        password: for a broker of the user's.
        takeover: serve the fleet even if another learner does.
        resume: continue from the run's latest checkpoint.
        metrics_at: address and port to serve /metrics at, `None` not to.

    Raises:
        QuarlError: see `Session.train`.
    """
    checkpoint = load_latest(run.checkpoints) if resume else None
    metrics = TensorBoard(run.tensorboard)
    try:
        with (
            _exporter(metrics_at, progress) as observers,
            open_broker(broker, actors=config.actors, password=password, log_dir=run.logs) as access,
        ):
            session = Session(
                config,
                run,
                Fleet(
                    url=access.url,
                    password=access.password,
                    name=fleet,
                    key=key,
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
                progress.note(f"actors elsewhere join with: {access.join_hint(fleet)}")
            actors = _local_actors(config, run, access, fleet=fleet, key=key)
            return session.train(actors)
    finally:
        metrics.close()


@contextlib.contextmanager
def _exporter(at: tuple[str, int] | None, progress: Progress) -> Iterator[list[Callable[[FlowReport], None]]]:
    if at is None:
        yield []
        return
    from quarl_edge.flow.prometheus import Exporter

    host, port = at
    with Exporter(port, host=host) as exporter:
        progress.note(f"metrics at http://{host}:{exporter.port}/metrics")
        yield [exporter.observe]


def _local_actors(
    config: TrainConfig, run: RunDirectory, access: BrokerAccess, *, fleet: str, key: LearnerKey
) -> ActorProcesses | None:
    # Written for actors elsewhere too: a person copies it to a board for --learner-key.
    public_key = run.path / "learner.pub"
    write_atomic(public_key, f"{key.public.hex}\n".encode(), error=QuarlError, what="the learner's public key")
    if not access.actors:
        return None
    commands = []
    for index, name in enumerate(access.actors):
        url = access.actor_url(name)
        arguments = ["--broker", str(url), "--fleet", fleet, "--id", name, "--index", str(index)]
        arguments += ["--envs", str(config.envs_per_actor), "--learner-key", str(public_key)]
        # They end with the learner, so what they hold is of no use to a later start.
        arguments += ["--spool", "memory", "--max-offline", "0"]
        arguments += ["--exit-when-gone", "--die-with-parent", "--quiet"]
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        # An empty variable keeps a password that is meant for the learner away from an actor that has none.
        environment[PASSWORD_VARIABLE] = access.passwords.get(url.user, "")
        commands.append(ActorCommand(name=name, arguments=arguments, environment=environment))
    return ActorProcesses(commands, log_dir=run.logs)
