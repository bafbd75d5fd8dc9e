"""After the installation: is the agent up? By its birth over the broker, else by its state on the board's disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from dataclasses import dataclass, replace

from quarl_device.errors import DeployError, NotBorn, PayloadRefused
from quarl_device.wire.strict_json import loads, one_line
from quarl_edge.deploy.birth import BirthWatch, Expected, judge_birth
from quarl_edge.deploy.events import Event, Tell
from quarl_edge.deploy.host import MAX_OUTPUT_BYTES, Host
from quarl_edge.deploy.settings import STATE_FOLDER
from quarl_edge.deploy.ticking import ticking
from quarl_edge.deploy.wish import Deployed, Wish

_AGENT = "/opt/quarl-edge/current/bin/quarl-device"
_STATUS_TIMEOUT_S = 30.0
_STATUS_PERIOD_S = 2.0
_MAX_LINE = 1000


@dataclass(frozen=True, kw_only=True)
class Start:
    """An agent that was just installed.

    Attributes:
        host: the board.
        wish: what was asked for.
        root: what a command that needs root begins with.
        watch: hears births, `None` without a broker.
        expected: what the birth must say.
        tell: is told how it goes.
    """

    host: Host
    wish: Wish
    root: str
    watch: BirthWatch | None
    expected: Expected
    tell: Tell

    async def born(self, done: Deployed) -> Deployed:
        """Wait until the agent is up.

        Raises:
            NotBorn: it is not, in time; what is known, and the commands that tell more.
        """
        if not self.wish.wait:
            return done
        self.tell(Event(step="birth", state="begins", said=f"waiting for it, {self.wish.timeout_s:.0f} s at most"))
        try:
            async with ticking(self.tell, "birth", self._so_far):
                found = await self._heard(self.watch) if self.watch is not None else await self._read()
        except NotBorn as error:
            error.hint = "; ".join(more_about(self.wish))
            raise
        self.tell(Event(step="birth", state="done", said=found.said))
        return replace(done, said=found.said, boot_id=found.boot_id, digest=found.digest)

    async def foreground(self, done: Deployed, command: str) -> Deployed:
        """Run the agent over the connection until it ends, or this call is cancelled.

        Raises:
            DeployError: it ended with an error, whose code is this one's.
            BoardUnreachable: the connection was lost.
        """
        self.tell(
            Event(step="run", state="begins", said="no systemd there: it runs here, in the foreground, until Ctrl-C")
        )
        born = asyncio.create_task(self._born_beside(done))
        try:
            ran = await self.host.watch(
                f"exec {self.root}sh -c {shlex.quote(f'exec {command}')}", self._show, timeout_s=None, terminal=True
            )
        finally:
            born.cancel()
        if ran.status != 0:
            error = DeployError(f"the agent on {self.host.name} ended with status {ran.status}")
            error.code = ran.status if 0 < ran.status < 126 else DeployError.code
            raise error
        self.tell(Event(step="run", state="done", said="it ended"))
        return done

    async def _born_beside(self, done: Deployed) -> None:
        """Tell of the birth while the agent's output is shown, which says itself what is wrong where there is none."""
        if self.watch is None:
            return
        try:
            await self.born(done)
        except NotBorn as error:
            self.tell(Event(step="birth", state="warning", said=error.message))

    def _show(self, line: str) -> None:
        self.tell(Event(step="run", state="goes on", said=one_line(line, max_length=_MAX_LINE), on_board=True))

    def _so_far(self) -> str:
        if self.watch is None:
            return "the policy does not act yet"
        return judge_birth(self.watch.state, self.expected, learner_there=self.watch.learner_there).said

    async def _heard(self, watch: BirthWatch) -> Deployed:
        judged = await watch.wait(self.expected, timeout_s=self.wish.timeout_s)
        state = watch.state
        return Deployed(
            result="", said=judged.said, boot_id=state.boot_id if state else "", digest=state.digest if state else ""
        )

    async def _read(self) -> Deployed:
        """Ask `quarl-device status` on the board until the policy acts there."""
        said, digest = "the agent has not said anything", self.expected.digest
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.wish.timeout_s):
                while True:
                    acting, said = await _status(self.host, self.root)
                    if acting and (not digest or acting == digest):
                        return Deployed(result="", said=said, digest=acting)
                    await asyncio.sleep(_STATUS_PERIOD_S)
        raise NotBorn(f"the agent does not act with the policy within {self.wish.timeout_s:.0f} s: {said}")


def more_about(wish: Wish) -> tuple[str, ...]:
    """Return the commands that tell more of an agent that was deployed."""
    ssh = wish.target.ssh
    return (
        f"{ssh} sudo journalctl -u quarl-device -n 50 --no-pager",
        f"{ssh} systemctl status quarl-device --no-pager",
    )


async def _status(host: Host, root: str) -> tuple[str, str]:
    """Return the digest of the policy that acts, "" for none, and a line about it."""
    command = f"{root}{_AGENT} status --state-dir {STATE_FOLDER} --format json"
    ran = await host.run(command, timeout_s=_STATUS_TIMEOUT_S)
    try:
        read = loads(ran.stdout, what="the agent's status", cap_bytes=MAX_OUTPUT_BYTES)
        state, slot = read.line("state", max_length=100), read.text("acting", max_length=40)
        if not read.boolean("running") or not slot:
            return "", f"state {state}, no policy acts"
        acting = loads(json.dumps(read.object(slot)).encode(), what="the agent's status", cap_bytes=MAX_OUTPUT_BYTES)
        digest = acting.line("digest", max_length=64)
        return digest, f"acts with policy version {acting.line('name', max_length=40)}, sha256 {digest[:16]} ({state})"
    except PayloadRefused as error:
        return "", f"its status cannot be read: {error.message}"
