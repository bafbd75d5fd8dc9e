"""One training session from an empty fleet to a result: everything that surrounds the loop, in order.

The order matters: what can fail fast comes first (environment, broker, another learner), then what takes seconds
(template, audit, compilation), and only then do actors get a policy and the clock starts.
"""

from __future__ import annotations

import contextlib
import secrets
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from quarl_device import __version__
from quarl_device.contract import Head, PolicyContract
from quarl_device.errors import CheckpointError, JournalError
from quarl_device.link import BrokerURL, PahoLink, Will
from quarl_device.wire.block import BlockSpec
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.limits import WIRE_VERSION
from quarl_device.wire.messages import LearnerBirth
from quarl_device.wire.topics import Topics
from quarl_edge.algorithms import ALGORITHMS
from quarl_edge.checkpoint import Checkpoint
from quarl_edge.config import TrainConfig
from quarl_edge.ingest.ingest import Ingest
from quarl_edge.learner.algorithm import Algorithm
from quarl_edge.learner.auditor import Auditor
from quarl_edge.learner.blobs import BlobServer
from quarl_edge.learner.keeper import Keeper, better, judged_from_json, kept_judgement
from quarl_edge.learner.loop import TrainingLoop
from quarl_edge.learner.metrics import MetricsSink
from quarl_edge.learner.normalization import NormalizerPlan
from quarl_edge.learner.parts import Parts, Progression
from quarl_edge.learner.presence import Presence, claim_fleet, gone_birth, next_epoch
from quarl_edge.learner.publisher import PolicyPublisher
from quarl_edge.learner.receiver import FlowReport, Receiver
from quarl_edge.learner.result import TrainResult, nothing_happened
from quarl_edge.learner.stop import StopSignal
from quarl_edge.local.access import LEARNER_NAME
from quarl_edge.local.actors import ActorProcesses
from quarl_edge.local.evaluator import Evaluator, Judged
from quarl_edge.progress import Progress
from quarl_edge.runs import RunDirectory
from quarl_edge.task import look_at
from quarl_export.audit import AuditChild
from quarl_export.file_runner import default_runtime
from quarl_export.networks import HeadOutput, NetworkSpec, QuantizationSpec
from quarl_export.qat import QatPolicy
from quarl_export.qat_template import QatTemplate

TFLITE_RUNTIME = "tflite-runtime"
_CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """How a session reaches its actors.

    Attributes:
        url: of the broker.
        password: of the learner's user there, `None` where the broker asks for none.
        client_id: towards the broker; "" takes a random one per connection.
        tls: shows the learner's certificate; `None` where there is none to show.
        name: of the fleet.
        key: signs pushes.
        takeover: serve the fleet even if another learner does.
        clear: remove what this session retained when it ends, as a demo does.
        check_broker: raises where the broker is ours and has ended.
    """

    url: BrokerURL
    password: str | None
    name: str
    key: LearnerKey
    client_id: str = ""
    tls: ssl.SSLContext | None = None
    takeover: bool = False
    clear: bool = False
    check_broker: Callable[[], None] = lambda: None


class _AskedToStop(Exception):
    """A signal came before training began."""


class Session:
    """Builds the parts of a run, trains, and leaves the fleet tidy.

    Args:
        config: hyperparameters.
        run: where everything is kept.
        fleet: how actors are reached.
        progress: what a person watches.
        metrics: where numbers go.
        stop: asks for a clean end.
        checkpoint: to resume from.
        observers: called every second with how it flows.
    """

    def __init__(
        self,
        config: TrainConfig,
        run: RunDirectory,
        fleet: Fleet,
        *,
        progress: Progress,
        metrics: MetricsSink,
        stop: StopSignal,
        checkpoint: Checkpoint | None = None,
        observers: Sequence[Callable[[FlowReport], None]] = (),
    ) -> None:
        self._config = config
        self._run = run
        self._fleet = fleet
        self._progress = progress
        self._metrics = metrics
        self._stop = stop
        self._checkpoint = checkpoint
        self._observers = tuple(observers)
        self._topics = Topics(fleet.name)
        if default_runtime().name == TFLITE_RUNTIME:
            # Goldens and judgements are its answers, whatever the devices have.
            config.check_kernels("tflite-2.14")
        task = look_at(config)
        self._observation, self._action, self._golden = task.observation, task.action, task.golden_observations
        self._head = ALGORITHMS[config.algorithm].heads[task.action.kind]

    def train(self, actors: ActorProcesses | None) -> TrainResult:
        """Train to the end.

        Args:
            actors: local actor processes, started here once the broker answers; `None` when all are elsewhere.

        Raises:
            QuarlError: see `TrainingLoop.run`, `claim_fleet` and `QatTemplate.from_model`.
        """
        try:
            return self._train(actors)
        except _AskedToStop:
            return self._nothing_happened()

    def _train(self, actors: ActorProcesses | None) -> TrainResult:
        epoch = self._claim()
        # Cut short, the watch has not shown that no other learner serves the fleet.
        self._stop_if_asked()
        birth = self._birth(epoch)
        with contextlib.ExitStack() as stack:
            if actors is not None:
                # They take as long to import as the template takes to convert.
                stack.callback(actors.stop)
                actors.start()
            evaluator = Evaluator(episodes=self._config.evaluate_episodes, seed=self._config.evaluate_seed)
            stack.callback(evaluator.close)
            normalizer = NormalizerPlan(self._config, self._observation)
            algorithm, template, auditor = self._build(stack, normalizer)
            # Opened before the link and closed after it: whatever comes in has a journal to go to.
            ingest = Ingest.open(self._config, self._block_spec(), self._run.journal, epoch=epoch)
            stack.callback(ingest.close)
            self._restore_experience(ingest)
            keeper = self._keeper(ingest, template, epoch)
            self._stop_if_asked()
            link = stack.enter_context(self._connected(gone_birth(birth)))
            presence = Presence(link, self._topics, birth, takeover=self._fleet.takeover)
            stack.callback(presence.leave, clear=self._fleet.clear)
            receiver = Receiver(link, self._topics, ingest)
            receiver.listen()
            blobs = BlobServer(link, self._topics, audience=lambda: len(receiver.actors))
            stack.callback(blobs.close)
            blobs.start()
            publisher = PolicyPublisher(
                template, link=link, topics=self._topics, key=self._fleet.key, epoch=epoch, blobs=blobs
            )
            stack.callback(publisher.retire)
            # Building took a while: another learner may have claimed the fleet meanwhile.
            link.flush(timeout_s=_CONNECT_TIMEOUT_S)
            presence.check()
            presence.announce()
            parts = Parts(
                config=self._config,
                algorithm=algorithm,
                replay=ingest.replay,
                limiter=ingest.limiter,
                receiver=receiver,
                publisher=publisher,
                presence=presence,
                evaluator=evaluator,
                auditor=auditor,
                keeper=keeper,
                conversion_reason=template.reason,
                normalizer=normalizer,
                metrics=self._metrics,
                progress=self._progress,
                stop=self._stop,
                env_steps=lambda: ingest.env_steps,
                check_broker=self._fleet.check_broker,
                actors=actors,
                epoch=epoch,
                tell=lambda report: self._tell(link, report),
            )
            return TrainingLoop(parts, self._progression()).run()

    def _tell(self, link: PahoLink, report: FlowReport) -> None:
        # One that is not taken is followed by another in a second.
        link.publish(self._topics.learner_telemetry, report.learner.encode(), qos=0)
        for observe in self._observers:
            observe(report)

    def _stop_if_asked(self) -> None:
        if self._stop.requested:
            raise _AskedToStop

    # -- parts -------------------------------------------------------------------------------------------------------

    def _claim(self) -> int:
        checkpoint_epoch = 0 if self._checkpoint is None else int(self._checkpoint.state["epoch"])
        with self._connected(None) as link:
            highest = claim_fleet(
                link, self._topics, takeover=self._fleet.takeover, cancelled=lambda: self._stop.requested
            )
        return next_epoch(unix_s=time.time(), highest_seen=highest, checkpoint_epoch=checkpoint_epoch)

    @contextlib.contextmanager
    def _connected(self, last_words: bytes | None) -> Iterator[PahoLink]:
        # A broker throws the older of two clients with one id off: an account may serve several learners, so the id is
        # not the user. 23 bytes are what every broker takes.
        # A certificate serves one learner: a broker that takes the client id from it does that throwing off anyway.
        client_id = self._fleet.client_id or f"{LEARNER_NAME}-{secrets.token_hex(6)}"
        will = None if last_words is None else Will(topic=self._topics.learner, payload=last_words, retain=True)
        fleet = self._fleet
        link = PahoLink(fleet.url, client_id=client_id, password=fleet.password, will=will, tls=fleet.tls)
        link.connect(timeout_s=_CONNECT_TIMEOUT_S)
        try:
            yield link
        finally:
            link.close()

    def _birth(self, epoch: int) -> LearnerBirth:
        config = self._config
        return LearnerBirth(
            status="online",
            epoch=epoch,
            wire=WIRE_VERSION,
            # Where two learners start in one second, their beats tell them apart.
            beat=secrets.randbelow(2**31),
            env_id=config.env_id,
            env_kwargs={},
            algorithm=config.algorithm,
            observations=(self._observation,),
            action=self._action,
            public_key=self._fleet.key.public.hex,
            mode="lockstep" if config.lockstep else "async",
            seed=config.seed,
            block_steps=config.block_steps,
            version=__version__,
        )

    def _block_spec(self) -> BlockSpec:
        return BlockSpec(observations=(self._observation,), action=self._action)

    def _network(self) -> NetworkSpec:
        quantization = QuantizationSpec(
            weight_bits=self._config.weight_bits,
            activation_bits=self._config.activation_bits,
            head_output=cast(HeadOutput, self._config.head_output),
            range_decay=self._config.range_decay,
            center_q=getattr(self._config, "center_q", False),
        )
        return NetworkSpec(
            observations=(self._observation,),
            action=self._action,
            hidden=self._config.hidden,
            head=self._head,
            quantization=quantization,
        )

    def _build(self, stack: contextlib.ExitStack, normalizer: NormalizerPlan) -> tuple[Algorithm, QatTemplate, Auditor]:
        config = self._config
        self._progress.note("building the network and its int8 template")
        policy = QatPolicy(self._network(), seed=config.seed, normalize=True)
        self._stop_if_asked()
        if self._checkpoint is None:
            normalizer.begin(policy)
        algorithm = ALGORITHMS[config.algorithm].build(config, policy)
        if self._checkpoint is not None:
            algorithm.restore(self._checkpoint.arrays["algorithm"])
            if self._checkpoint.state["progression"]["normalizer_version"]:
                normalizer.pending = False
        template = QatTemplate.from_model(policy, self._contract(), self._golden)
        self._stop_if_asked()
        auditor = Auditor(lambda: AuditChild(policy.spec))
        stack.callback(auditor.close)
        template = auditor.settle(template, policy.snapshot())
        self._stop_if_asked()
        algorithm.compile()
        return algorithm, template, auditor

    def _contract(self) -> PolicyContract:
        # The tensor names are not known before the conversion, which fills them in.
        return PolicyContract(
            env_id=self._config.env_id,
            algorithm=self._config.algorithm,
            scheme="int8",
            observations=(self._observation,),
            head=Head(kind=self._head, outputs={self._head: ""}),
            action=self._action,
        )

    def _keeper(self, ingest: Ingest, template: QatTemplate, epoch: int) -> Keeper:
        return Keeper(
            self._run,
            spec=self._network(),
            contract=template.contract,
            golden_observations=template.golden_observations,
            ingest=ingest,
            replay=ingest.replay,
            epoch=epoch,
            seed=self._config.seed,
            best=self._best_so_far(),
        )

    def _best_so_far(self) -> Judged | None:
        if self._checkpoint is None:
            return None
        best = judged_from_json(self._checkpoint.state.get("best"))
        # Lockstep judges everything after the checkpoint again. Otherwise a killed learner may have kept a better
        # policy since; a worse one must not take its place.
        return best if self._config.lockstep else better(best, kept_judgement(self._run.policy))

    def _nothing_happened(self) -> TrainResult:
        state = {} if self._checkpoint is None else self._checkpoint.state
        return nothing_happened(
            env_steps=int(state.get("env_steps", 0)),
            updates=int(state["progression"]["updates"]) if state else 0,
            best=self._best_so_far(),
            resumable=self._checkpoint is not None,
        )

    def _restore_experience(self, ingest: Ingest) -> None:
        if self._checkpoint is None:
            return
        state = self._checkpoint.state
        missing = int(state["journal_position"]) - ingest.journal_position
        if missing > 0:
            raise JournalError(
                f"the journal {self._run.journal} ends {missing:,} bytes before the checkpoint: it is damaged or gone",
                hint="restore it from a copy, or start a new run",
            )
        # Lockstep makes the rounds after the checkpoint again; otherwise nothing that was stored is thrown away.
        ingest.rebuild(until=int(state["journal_position"]) if self._config.lockstep else None)
        ingest.replay.set_random_state(state["replay"])
        ingest.limiter.restore_samples(int(state["samples"]))

    def _progression(self) -> Progression:
        if self._checkpoint is None:
            return Progression()
        try:
            return Progression(**{**self._checkpoint.state["progression"], "reset_due": True})
        except TypeError as error:
            raise CheckpointError(f"checkpoint of another version: {error}") from error
