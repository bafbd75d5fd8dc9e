"""One training session from an empty fleet to a result: everything that surrounds the loop, in order.

The order matters: what can fail fast comes first (environment, broker, another learner), then what takes seconds
(template, audit, compilation), and only then do actors get a policy and the clock starts.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import cast

from quarl_device.contract import Head, PolicyContract
from quarl_device.environments import bare_name
from quarl_device.link import PahoLink
from quarl_device.wire.block import BlockSpec
from quarl_device.wire.block_spec import extras_for, extras_of
from quarl_edge.algorithms import ALGORITHMS
from quarl_edge.checkpoint import Checkpoint
from quarl_edge.config import TrainConfig
from quarl_edge.ingest.ingest import Ingest
from quarl_edge.learner.algorithm import Algorithm
from quarl_edge.learner.auditor import Auditor
from quarl_edge.learner.blobs import BlobServer
from quarl_edge.learner.edge_tpu import EdgeTpuPushes
from quarl_edge.learner.fleet import CONNECT_TIMEOUT_S, Fleet
from quarl_edge.learner.keeper import Keeper
from quarl_edge.learner.loop import TrainingLoop
from quarl_edge.learner.metrics import MetricsSink
from quarl_edge.learner.normalization import ObservationNormalizer
from quarl_edge.learner.parts import Parts
from quarl_edge.learner.presence import Presence, will_of
from quarl_edge.learner.publisher import PolicyPublisher
from quarl_edge.learner.receiver import FlowReport, Receiver
from quarl_edge.learner.result import TrainResult
from quarl_edge.learner.resumption import Resumption
from quarl_edge.learner.stop import AskedToStop, StopSignal
from quarl_edge.local.actors import ActorProcesses
from quarl_edge.local.evaluator import Evaluator
from quarl_edge.progress import Progress
from quarl_edge.replay.stacking import as_seen
from quarl_edge.runs import RunDirectory
from quarl_edge.task import look_at
from quarl_export.audit import AuditChild
from quarl_export.edgetpu import COMPILER, find_compiler
from quarl_export.edgetpu_push import compile_policy
from quarl_export.file_runner import default_runtime
from quarl_export.networks import HeadOutput, NetworkSpec, QuantizationSpec
from quarl_export.qat import QatPolicy
from quarl_export.qat_template import QatTemplate

TFLITE_RUNTIME = "tflite-runtime"


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
        self._resumption = Resumption(run, checkpoint, config)
        self._observers = tuple(observers)
        if default_runtime().name == TFLITE_RUNTIME:
            # Goldens and judgements are its answers, whatever the devices have.
            config.check_kernels("tflite-2.14")
        task = look_at(config)
        self._convolutions = task.convolutions
        self._observation, self._action, self._golden = task.observation, task.action, task.golden_observations
        self._played = as_seen(task.played, task.observation)
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
        except AskedToStop:
            return self._resumption.nothing_happened()

    def _train(self, actors: ActorProcesses | None) -> TrainResult:
        fleet, topics = self._fleet, self._fleet.topics
        epoch = fleet.claim(checkpoint_epoch=self._resumption.epoch, cancelled=lambda: self._stop.requested)
        self._stop_if_asked()
        birth = fleet.birth(
            self._config, observation=self._observation, action=self._action, epoch=epoch, head=self._head
        )
        with contextlib.ExitStack() as stack:
            if actors is not None:
                # They take as long to import as the template takes to convert.
                stack.callback(actors.stop)
                actors.start()
            evaluator = Evaluator(
                env_id=self._config.env_id,
                episodes=self._config.evaluate_episodes,
                seed=self._config.evaluate_seed,
                goal_return=self._config.goal_return,
                confirm_seed=self._config.confirm_seed,
            )
            stack.callback(evaluator.close)
            normalizer = ObservationNormalizer(self._config, self._observation)
            algorithm, template, auditor = self._build(stack, normalizer)
            # Opened before the link and closed after it: whatever comes in has a journal to go to.
            ingest = Ingest.open(self._config, self._block_spec(), self._run.journal, epoch=epoch)
            stack.callback(ingest.close)
            self._resumption.restore_experience(ingest)
            if said := self._resumption.says(ingest.env_steps):
                self._progress.note(said)
            keeper = self._keeper(ingest, template, normalizer, epoch)
            self._stop_if_asked()
            link = stack.enter_context(fleet.connected(will_of(topics, birth)))
            presence = Presence(link, topics, birth, takeover=fleet.takeover, shared_id=bool(fleet.client_id))
            stack.callback(presence.leave, clear=fleet.clear)
            receiver = Receiver(link, topics, ingest)
            receiver.listen()
            blobs = BlobServer(link, topics, audience=lambda: len(receiver.actors))
            stack.callback(blobs.close)
            blobs.start()
            publisher = PolicyPublisher(template, link=link, topics=topics, key=fleet.key, epoch=epoch, blobs=blobs)
            stack.callback(publisher.retire)
            edge_tpu = self._edge_tpu(stack, link, receiver, blobs)
            # Building took a while: another learner may have claimed the fleet meanwhile.
            link.flush(timeout_s=CONNECT_TIMEOUT_S)
            presence.check()
            presence.announce()
            parts = Parts(
                config=self._config,
                algorithm=algorithm,
                experience=ingest.experience,
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
                check_broker=fleet.check_broker,
                actors=actors,
                edge_tpu=edge_tpu,
                epoch=epoch,
                tell=lambda report: self._tell(link, report),
            )
            return TrainingLoop(parts, self._resumption.progression()).run()

    def _tell(self, link: PahoLink, report: FlowReport) -> None:
        # One that is not taken is followed by another in a second.
        link.publish(self._fleet.topics.learner_telemetry, report.learner.encode(), qos=0)
        for observe in self._observers:
            observe(report)

    def _stop_if_asked(self) -> None:
        if self._stop.requested:
            raise AskedToStop

    # -- parts -------------------------------------------------------------------------------------------------------

    def _block_spec(self) -> BlockSpec:
        return BlockSpec(
            observations=(self._observation,),
            action=self._action,
            extras=extras_for(extras_of(self._head), self._action),
        )

    def _network(self) -> NetworkSpec:
        quantization = QuantizationSpec(
            weight_bits=self._config.weight_bits,
            activation_bits=self._config.activation_bits,
            head_output=cast(HeadOutput, self._config.head_output),
            range_decay=self._config.range_decay,
            center_q=self._config.centers_q,
        )
        return NetworkSpec(
            observations=(self._observation,),
            action=self._action,
            hidden=self._config.hidden,
            head=self._head,
            quantization=quantization,
            dueling=self._config.has_dueling_head,
            convolutions=self._convolutions,
        )

    def _build(
        self, stack: contextlib.ExitStack, normalizer: ObservationNormalizer
    ) -> tuple[Algorithm, QatTemplate, Auditor]:
        config = self._config
        self._progress.note("building the network and its int8 template")
        policy = QatPolicy(self._network(), seed=config.seed, normalize=True)
        self._stop_if_asked()
        algorithm = ALGORITHMS[config.algorithm].build(config, policy)
        if self._resumption.is_new:
            normalizer.begin(algorithm, self._played)
        self._resumption.restore_learning(algorithm, normalizer)
        template = QatTemplate.from_model(policy, self._contract(), self._golden)
        self._stop_if_asked()
        auditor = Auditor(lambda: AuditChild(policy.spec))
        stack.callback(auditor.close)
        template = auditor.settle(template, policy.snapshot())
        self._stop_if_asked()
        algorithm.compile()
        return algorithm, template, auditor

    def _edge_tpu(
        self, stack: contextlib.ExitStack, link: PahoLink, receiver: Receiver, blobs: BlobServer
    ) -> EdgeTpuPushes | None:
        """Return what compiles pushes for the Edge TPU; `None` where nobody asked, or the compiler is not here."""
        config, topics = self._config, self._fleet.topics
        if not config.edge_tpu:
            return None
        if find_compiler() is None:
            self._progress.note(
                f"{COMPILER} is not on the PATH: nothing is compiled for the Edge TPU, and actors that have one train "
                "on their CPU (coral.ai/docs/edgetpu/compiler)"
            )
            return None
        own = BlobServer(link, topics, audience=lambda: len(receiver.actors))
        stack.callback(own.close)
        own.start(beside=blobs)
        pushes = EdgeTpuPushes(
            functools.partial(compile_policy, deadline_s=config.edge_tpu_timeout_s),
            link=link,
            topics=topics,
            key=self._fleet.key,
            blobs=own,
            period=config.edge_tpu_period_pushes,
        )
        stack.callback(pushes.close)
        return pushes

    def _contract(self) -> PolicyContract:
        # The tensor names are not known before the conversion, which fills them in.
        spec = self._network()
        spread = (0.0,) * spec.head_units if self._head == "gaussian" else ()
        return PolicyContract(
            env_id=bare_name(self._config.env_id),
            wrappers=self._config.wrappers,
            algorithm=self._config.algorithm,
            scheme="int8",
            observations=(self._observation,),
            head=Head(kind=self._head, outputs={spec.role: ""}, log_std=spread),
            action=self._action,
        )

    def _keeper(self, ingest: Ingest, template: QatTemplate, normalizer: ObservationNormalizer, epoch: int) -> Keeper:
        return Keeper(
            self._run,
            spec=self._network(),
            contract=template.contract,
            golden_observations=template.golden_observations,
            ingest=ingest,
            experience=ingest.experience,
            normalizer=normalizer,
            epoch=epoch,
            seed=self._config.seed,
            best=self._resumption.best(),
        )
