"""Whether the agent has come up: what its births say, judged purely, and heard over the broker."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from quarl_device.errors import NotBorn
from quarl_device.link import BrokerURL, PahoLink
from quarl_device.link.credentials import Credentials, told_apart
from quarl_device.link.protocol import Link, Message
from quarl_device.wire.messages import DeviceState, LearnerBirth
from quarl_device.wire.topics import Topics

_CONNECT_TIMEOUT_S = 10.0
_SETTLE_S = 1.0
_VIEWER = "viewer"


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a birth must say.

    Attributes:
        digest: sha256 of the policy that must run, "" where any may, or none.
        restarted: it must be of a life that began after the deployment; else the one that runs is as good.
        before: boot id that was retained before, "" for none.
        digest_before: that ran then. An agent that takes another policy without a restart has shown that it lives.
    """

    digest: str = ""
    restarted: bool = True
    before: str = ""
    digest_before: str = ""

    def same_life(self, state: DeviceState) -> bool:
        """Whether a state tells nothing of what was deployed, since it is as old as that or may be."""
        took_over = self.digest and state.digest == self.digest != self.digest_before
        return self.restarted and state.boot_id == self.before and not took_over


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What a device's state means.

    Attributes:
        born: the deployment has succeeded.
        said: one line.
    """

    born: bool
    said: str


def judge_birth(state: DeviceState | None, expected: Expected, *, learner_there: bool) -> Judged:
    """Judge what was heard last.

    Args:
        state: the device's, `None` before any.
        expected: what it must say.
        learner_there: a learner is known to serve the fleet, so waiting for one is not enough.
    """
    if state is None:
        return Judged(born=False, said="no birth was heard")
    if state.status != "online":
        return Judged(born=False, said=f"its last word is {state.status!r}")
    if expected.same_life(state):
        return Judged(born=False, said="it is still in the life before (the broker keeps its last birth)")
    if expected.digest:
        return _of_policy(state, expected.digest)
    return _deploying(state) if state.mode == "deploy" else _training(state, learner_there=learner_there)


def _deploying(state: DeviceState) -> Judged:
    return Judged(born=True, said=f"acts{_policy(state)}" if state.digest else f"it has no policy yet{_blocked(state)}")


def _training(state: DeviceState, *, learner_there: bool) -> Judged:
    if state.digest:
        return Judged(born=True, said=f"trains, acts{_policy(state)}{_blocked(state)}")
    if not learner_there and ("learner" in state.blocked or not state.blocked):
        return Judged(born=True, said="waits for a learner")
    return Judged(born=False, said=f"it is online and has no policy yet{_blocked(state)}")


def _of_policy(state: DeviceState, digest: str) -> Judged:
    if state.digest == digest:
        return Judged(born=True, said=f"acts{_policy(state)}{_blocked(state)}")
    if state.digest:
        return Judged(born=False, said=f"it runs another policy, sha256 {state.digest[:16]}{_blocked(state)}")
    return Judged(born=False, said=f"it is online and has no policy yet{_blocked(state)}")


def _policy(state: DeviceState) -> str:
    return f" with policy version {state.policy_version}, sha256 {state.digest[:16]}"


def _blocked(state: DeviceState) -> str:
    return f", blocked: {state.blocked}" if state.blocked else ""


class BirthWatch:
    """Hears a device's births and its fleet's learner.

    Args:
        link: not connected yet.
        topics: of the fleet.
        device: its name.
    """

    def __init__(self, link: Link, topics: Topics, device: str) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self.state: DeviceState | None = None
        self.learner_there = False
        link.subscribe(topics.state(device), self._on_state)
        link.subscribe(topics.learner, self._on_learner)

    async def wait(self, expected: Expected, *, timeout_s: float) -> Judged:
        """Wait for the birth.

        Raises:
            NotBorn: it did not come; says what is known.
        """
        judged = Judged(born=False, said="")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    self._changed.clear()
                    judged = judge_birth(self.state, expected, learner_there=self.learner_there)
                    if judged.born:
                        return judged
                    await self._changed.wait()
        raise NotBorn(f"no birth of the new agent within {timeout_s:.0f} s: {judged.said}")

    def _on_state(self, message: Message) -> None:
        # A payload that does not hold is logged by the link, and is no birth.
        self._loop.call_soon_threadsafe(self._take_state, DeviceState.decode(message.payload))

    def _take_state(self, state: DeviceState) -> None:
        self.state = state
        self._changed.set()

    def _on_learner(self, message: Message) -> None:
        there = bool(message.payload) and LearnerBirth.decode(message.payload).status == "online"
        self._loop.call_soon_threadsafe(self._take_learner, there)

    def _take_learner(self, there: bool) -> None:
        self.learner_there = there
        self._changed.set()


@contextlib.asynccontextmanager
async def watching(
    link: Link, topics: Topics, device: str, *, url: BrokerURL | None = None, held: Credentials | None = None
) -> AsyncIterator[BirthWatch]:
    """Connect and hear what is retained.

    Args:
        link: not connected yet.
        topics: of the fleet.
        device: its name.
        url: where the link leads.
        held: credentials that it shows.

    Raises:
        BrokerUnreachable, BrokerRefused: no connection from this computer.
    """
    watch = BirthWatch(link, topics, device)
    try:
        with told_apart(held, url):
            await asyncio.to_thread(link.connect, timeout_s=_CONNECT_TIMEOUT_S)
        # What is retained follows the subscription's acknowledgement at once; there may be nothing.
        await asyncio.sleep(_SETTLE_S)
        yield watch
    finally:
        await asyncio.to_thread(link.close)


def operator_link(url: BrokerURL, *, held: Credentials | None, password: str | None) -> PahoLink:
    """Return a link of the person who deploys, not connected yet.

    Args:
        url: of the broker.
        held: credentials of that person; else the URL's user is taken, with a client id of its own.
        password: of that user.
    """
    if held is not None:
        return PahoLink(held.broker_or(str(replace(url, user=""))), client_id=held.name, tls=held.tls())
    return PahoLink(url, client_id=f"{_VIEWER}-{secrets.token_hex(6)}", password=password)
