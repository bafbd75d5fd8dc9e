"""The fleet that a learner serves: how it is reached, claimed, and told who serves it."""

from __future__ import annotations

import contextlib
import secrets
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from quarl_device import __version__
from quarl_device.contract import ActionSpec, HeadKind, ObservationSpec
from quarl_device.environments import bare_name
from quarl_device.link import Backoff, BrokerURL, PahoLink, Will
from quarl_device.wire.block_spec import extras_of
from quarl_device.wire.keys import LearnerKey
from quarl_device.wire.limits import WIRE_VERSION
from quarl_device.wire.messages import LearnerBirth
from quarl_device.wire.topics import Topics
from quarl_edge.config import RolloutConfig, TrainConfig
from quarl_edge.learner.claim import CLAIM_BACKOFF, claim_fleet, next_epoch
from quarl_edge.local.access import LEARNER_NAME

CONNECT_TIMEOUT_S = 10.0


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

    @property
    def topics(self) -> Topics:
        """Of this fleet."""
        return Topics(self.name)

    @contextlib.contextmanager
    def connected(self, will: Will | None, *, backoff: Backoff | None = None) -> Iterator[PahoLink]:
        """Connect with `will`, and close at the end.

        Raises:
            BrokerUnreachable, BrokerRefused: no connection.
        """
        # A broker throws the older of two clients with one id off: an account may serve several learners, so the id is
        # not the user. 23 bytes are what every broker takes.
        # A certificate serves one learner: a broker that takes the client id from it does that throwing off anyway.
        client_id = self.client_id or f"{LEARNER_NAME}-{secrets.token_hex(6)}"
        link = PahoLink(self.url, client_id=client_id, password=self.password, will=will, tls=self.tls, backoff=backoff)
        link.connect(timeout_s=CONNECT_TIMEOUT_S)
        try:
            yield link
        finally:
            link.close()

    def claim(self, *, checkpoint_epoch: int, cancelled: Callable[[], bool]) -> int:
        """Make sure that no other learner serves this fleet; return the epoch to serve it with.

        Args:
            checkpoint_epoch: of the checkpoint that is resumed, 0 for none.
            cancelled: see `claim_fleet`.

        Raises:
            LearnerAlive, AskedToStop: see `claim_fleet`.
            BrokerUnreachable, BrokerRefused: no connection.
        """
        with self.connected(None, backoff=CLAIM_BACKOFF) as link:
            highest = claim_fleet(link, self.topics, takeover=self.takeover, cancelled=cancelled)
        return next_epoch(unix_s=time.time(), highest_seen=highest, checkpoint_epoch=checkpoint_epoch)

    def birth(
        self, config: TrainConfig, *, observation: ObservationSpec, action: ActionSpec, epoch: int, head: HeadKind
    ) -> LearnerBirth:
        """Return what the learner of `config` says of itself."""
        in_rounds = isinstance(config, RolloutConfig)
        return LearnerBirth(
            status="online",
            epoch=epoch,
            wire=WIRE_VERSION,
            # Where two learners start in one second, their beats tell them apart.
            beat=secrets.randbelow(2**31),
            # A module prefix is this machine's affair: a device imports what its own --env names.
            env_id=bare_name(config.env_id),
            env_kwargs={},
            wrappers=config.wrappers,
            algorithm=config.algorithm,
            observations=(observation,),
            action=action,
            public_key=self.key.public.hex,
            mode="lockstep" if config.lockstep else "rounds" if in_rounds else "async",
            round_steps=config.round_steps if isinstance(config, RolloutConfig) and not config.lockstep else 0,
            extras=extras_of(head),
            seed=config.seed,
            block_steps=config.block_steps,
            version=__version__,
        )
