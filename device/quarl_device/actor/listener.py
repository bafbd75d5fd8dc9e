"""What an agent hears: the learner's births, pushes and acks, and its own name. All of it runs on the link's thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from quarl_device.actor.acting import ActingPolicy
from quarl_device.actor.fetcher import Fetcher
from quarl_device.actor.identity import AgentConfig
from quarl_device.actor.inbox import Inbox
from quarl_device.actor.namesakes import Namesakes
from quarl_device.actor.pinning import PinnedKey
from quarl_device.actor.shared import Shared
from quarl_device.actor.speaker import Speaker
from quarl_device.actor.task import same_task, task_name
from quarl_device.capped_log import CappedWarnings
from quarl_device.errors import PayloadRefused, QuarlError
from quarl_device.link import Link, Message
from quarl_device.runtime import PolicyRuntime, reaches_edge_tpu
from quarl_device.wire.keys import PublicKey
from quarl_device.wire.messages import Ack, DeviceState, LearnerBirth, check_wire_version
from quarl_device.wire.push import PushHeader
from quarl_device.wire.topics import Topics

_LOG = logging.getLogger(__name__)


class Listener:
    """Turns messages into changes of what the threads share.

    Args:
        config: see `AgentConfig`.
        boot_id: of this life.
        link: to fetch big policies by.
        runtime: for policies.
        shared: what is heard changes it.
        speaker: answers.
        keep: see `Inbox`.

    Attributes:
        inbox: verifies pushes on a thread of its own.

    Raises:
        KeyFileError: the learner's key file is missing or holds no key.
    """

    def __init__(
        self,
        config: AgentConfig,
        *,
        boot_id: str,
        link: Link,
        runtime: PolicyRuntime,
        shared: Shared,
        speaker: Speaker,
        keep: Callable[[PushHeader, bytes, PublicKey], None] = lambda *_: None,
    ) -> None:
        self._config = config
        self._boot_id = boot_id
        self._shared = shared
        self._speaker = speaker
        self._key = PinnedKey(config.learner_key)
        self._namesakes = Namesakes(config.name, boot_id)
        self._last_refused = ("", -1)
        self._refused_blocks = CappedWarnings(_LOG)
        self._refused_messages: list[tuple[str, CappedWarnings]] = []
        self.inbox = Inbox(
            runtime=runtime,
            batch_size=config.num_envs,
            actor_index=config.actor_index,
            on_ready=self._policy_ready,
            fetcher=Fetcher(link, topics=Topics(config.fleet), device=config.name),
            max_lag_s=config.edge_tpu_max_lag_s,
            keep=keep,
        )
        self._edge_tpu = reaches_edge_tpu(runtime)

    def subscribe(self, link: Link) -> None:
        """Listen on a link that is not connected yet."""
        topics = Topics(self._config.fleet)
        link.subscribe(topics.learner, self._guarded("births", self._on_learner))
        link.subscribe(topics.policy, self._guarded("pushes", self._on_policy))
        if self._edge_tpu:
            link.subscribe(topics.edgetpu, self._guarded("compiled pushes", self._on_compiled))
        link.subscribe(topics.ack(self._config.name), self._guarded("acks", self._on_ack), qos=0)
        # Last: what is retained there comes before this life's own birth is heard.
        link.subscribe(topics.state(self._config.name), self._guarded("own states", self._on_own_state), qos=0)
        link.on_connect(self._on_connected)

    def close(self) -> None:
        """End the inbox's thread, and say what was refused in silence."""
        self.inbox.close()
        for what, warnings in self._refused_messages:
            warnings.sum_up(f"refused {what}")
        self._refused_blocks.sum_up("blocks that the learner refused")

    def _guarded(self, what: str, handler: Callable[[Message], None]) -> Callable[[Message], None]:
        warnings = CappedWarnings(_LOG)
        self._refused_messages.append((what, warnings))

        def call(message: Message) -> None:
            try:
                handler(message)
            except QuarlError as error:
                # What a peer sends is refused and counted; what can never work here ends the agent.
                warnings.warning("message on %s refused: %s", message.topic, error)

        return call

    def _on_connected(self) -> None:
        shared = self._shared
        with shared.changed:
            shared.session.link_changed(up=True, now_s=time.monotonic())
            self._speaker.announce()
            self._speaker.send_blocks()
            shared.changed.notify_all()

    # -- its own name --------------------------------------------------------------------------------------------------

    def _on_own_state(self, message: Message) -> None:
        if not message.payload:
            return
        state = DeviceState.decode(message.payload)
        with self._shared.changed:
            error = self._namesakes.heard(state.boot_id, time.monotonic())
            if error is not None:
                self._shared.fail(error)
                self._shared.changed.notify_all()

    # -- births --------------------------------------------------------------------------------------------------------

    def _on_learner(self, message: Message) -> None:
        if not message.payload:
            return
        birth = LearnerBirth.decode(message.payload)
        with self._shared.changed:
            if birth.status == "gone":
                self._part(birth)
            else:
                self._consider(birth)
            self._shared.changed.notify_all()

    def _part(self, birth: LearnerBirth) -> None:
        shared = self._shared
        if not shared.session.learner_gone(epoch=birth.epoch, left=birth.left):
            return
        self._note_learner()
        if not birth.left:
            return
        if birth.mode != "lockstep":
            shared.mailbox.ask_flush()  # the pause begins now, not at the end of the block
        if self._config.exit_when_gone:
            shared.stop("the learner is gone")

    def _note_learner(self) -> None:
        session = self._shared.session
        self._shared.absence.note(session.learner, session.epoch, time.monotonic())

    def _consider(self, birth: LearnerBirth) -> None:
        # Births are not signed: what comes under another key, or from the past, must not end this actor.
        self._key.check(birth)
        if birth.epoch < self._shared.session.epoch:
            self._shared.absence.overhear(birth.epoch, followed=self._shared.session.epoch, now_s=time.monotonic())
            return
        try:
            check_wire_version(birth.wire, peer="the learner")
        except QuarlError as error:
            self._shared.fail(error)
            return
        self._meet(birth)

    def _meet(self, birth: LearnerBirth) -> None:
        shared, key = self._shared, self._key.pin(birth)
        known = shared.birth
        if known is not None and birth.epoch == known.epoch and not same_task(birth, known):
            raise PayloadRefused(f"learner epoch {birth.epoch} changed its task; only a new epoch may")
        if shared.session.meet_task(task_name(birth), time.monotonic()):
            _LOG.warning("a learner with another task: blocks made before wait, and are dropped at its first policy")
        self._give_up_other_task(birth)
        new_epoch = shared.session.learner_online(
            epoch=birth.epoch, beat=birth.beat, in_turns=birth.mode != "async", now_s=time.monotonic()
        )
        self._note_learner()
        shared.birth = birth
        if known is not None and new_epoch and (birth.mode == "lockstep" or not same_task(known, birth)):
            self._begin_again()
        self.inbox.trust(key, birth.observations, birth.action, epoch=birth.epoch, extras=birth.extras)
        if new_epoch:
            self._speaker.announce()
        self._speaker.send_blocks()

    def _give_up_other_task(self, birth: LearnerBirth) -> None:
        """Drop what is set aside once the learner of this birth's epoch has signed a policy, which nobody else can."""
        session = self._shared.session
        if session.sets_aside and self.inbox.latest[0] >= birth.epoch:
            dropped = session.begin_task(task_name(birth), time.monotonic())
            _LOG.warning("%d blocks were made for another task and are dropped", dropped)

    def _begin_again(self) -> None:
        """Drop loop and policies: of another task, or of a lockstep that is made again, they are of no use."""
        shared = self._shared
        shared.rebuild = True
        shared.session.policy_lost()
        shared.mailbox.policy = None
        shared.mailbox.ask_flush()

    # -- pushes --------------------------------------------------------------------------------------------------------

    def _on_policy(self, message: Message) -> None:
        if message.payload:
            self.inbox.offer(message.payload)

    def _on_compiled(self, message: Message) -> None:
        if message.payload:
            self.inbox.offer(message.payload, compiled=True)

    def _policy_ready(self, acting: ActingPolicy) -> None:
        shared = self._shared
        with shared.changed:
            # It may have been on its way while a new learner came, which may have another task (W3).
            if shared.birth is not None and acting.epoch < shared.birth.epoch:
                return
            if shared.birth is not None:
                self._give_up_other_task(shared.birth)
            shared.session.policy_accepted(acting.epoch, acting.version)
            shared.mailbox.post_policy(acting)
            shared.changed.notify_all()

    # -- acks ----------------------------------------------------------------------------------------------------------

    def _on_ack(self, message: Message) -> None:
        ack = Ack.decode(message.payload)
        session = self._shared.session
        with self._shared.changed:
            if ack.boot_id != session.delivering:
                return
            self._note_refused(ack)
            session.ack(
                boot_id=ack.boot_id,
                epoch=ack.epoch,
                inserted=ack.inserted,
                durable=ack.durable,
                credit=ack.credit,
                now_s=time.monotonic(),
            )
            self._speaker.send_blocks()
            self._shared.changed.notify_all()

    def _note_refused(self, ack: Ack) -> None:
        # An ack repeats the refusals of a while.
        for sequence, code in sorted(ack.refused.items()):
            if (ack.boot_id, sequence) > self._last_refused or ack.boot_id != self._last_refused[0]:
                self._last_refused = ack.boot_id, sequence
                self._refused_blocks.warning("the learner refused block %d with code %d", sequence, code)
