"""The order of a deployment: look, send, install, wait. Nothing on the board changes before the installer runs."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from quarl_device.wire.topics import Topics
from quarl_edge.deploy.birth import BirthWatch, Expected, watching
from quarl_edge.deploy.bundle import Bundle
from quarl_edge.deploy.events import Event, Tell
from quarl_edge.deploy.host import Host
from quarl_edge.deploy.installer import Outcome, install_command, run_installer
from quarl_edge.deploy.preparing import checked_board, ready_bundle
from quarl_edge.deploy.release import remember
from quarl_edge.deploy.sending import sent_bundle
from quarl_edge.deploy.starting import Start
from quarl_edge.deploy.wish import Deployed, Wish


async def deploy(wish: Wish, tell: Tell) -> Deployed:
    """Carry out one deployment.

    Args:
        wish: what is to be done.
        tell: is told of every step.

    Raises:
        DeployError: not reached, refused, the installer failed, or no birth; see each.
        BoardUnfit: the board cannot take it.
        LinkError: the broker does not let this computer hear the birth; nothing was changed then.
    """
    tell(Event(step="connect", state="begins", said=f"to {wish.target}"))
    host = await wish.connect()
    try:
        tell(Event(step="connect", state="done", said=host.name))
        return await _on_host(host, wish, tell)
    finally:
        await host.close()


async def _on_host(host: Host, wish: Wish, tell: Tell) -> Deployed:
    facts = await checked_board(host, wish, tell)
    bundle = await ready_bundle(host, wish, facts, tell)
    async with contextlib.AsyncExitStack() as stack:
        # Before anything changes: credentials that do not hold are found out now, and who lived before is known.
        watch = await _watch(wish, stack, tell)
        outcome, expected = await _install(host, wish, bundle, facts.root, tell, watch)
        done = _deployed(outcome, bundle)
        if wish.order.dry_run or wish.order.remove:
            return done
        if wish.release is not None and wish.release_note is not None:
            remember(wish.release, note=wish.release_note)
        expected = replace(expected, restarted=outcome.result != "unchanged")
        start = Start(host=host, wish=wish, root=facts.root, watch=watch, expected=expected, tell=tell)
        if outcome.supervised_by == "none" and outcome.command:
            return await start.foreground(done, outcome.command)
        return await start.born(done)


async def _watch(wish: Wish, stack: contextlib.AsyncExitStack, tell: Tell) -> BirthWatch | None:
    if wish.link is None or wish.settings is None or wish.order.dry_run or not wish.wait:
        return None
    where = wish.broker.address if wish.broker is not None else "the broker"
    tell(Event(step="broker", state="begins", said=f"listening at {where} for the agent's birth"))
    heard = watching(wish.link(), Topics(wish.settings.fleet), wish.settings.name, url=wish.broker, held=wish.operator)
    watch = await stack.enter_async_context(heard)
    tell(Event(step="broker", state="done", said=_before(watch)))
    return watch


def _before(watch: BirthWatch) -> str:
    learner = "a learner serves the fleet" if watch.learner_there else "no learner is there"
    if watch.state is None:
        return f"this device is new to it; {learner}"
    return f"this device's last word there: {watch.state.status}, life {watch.state.boot_id}; {learner}"


def _expected(wish: Wish, watch: BirthWatch | None) -> Expected:
    before = watch.state if watch is not None else None
    digest = wish.release.digest if wish.release is not None else ""
    if before is None:
        return Expected(digest=digest)
    return Expected(digest=digest, before=before.boot_id, digest_before=before.digest)


async def _install(
    host: Host, wish: Wish, bundle: Bundle, root: str, tell: Tell, watch: BirthWatch | None
) -> tuple[Outcome, Expected]:
    def note(text: str) -> None:
        tell(Event(step="send", state="goes on", said=text))

    tell(Event(step="send", state="begins", said="into a private directory there, which is removed again"))
    async with sent_bundle(host, bundle, note=note) as folder:
        tell(Event(step="send", state="done", said=folder))
        command = install_command(folder, bundle.wheel, wish.order, root=root)
        # As late as can be: what is retained may come late, and an agent may begin a new life while files are sent.
        expected = _expected(wish, watch)
        return await run_installer(host, command, tell), expected


def _deployed(outcome: Outcome, bundle: Bundle) -> Deployed:
    return Deployed(
        result=outcome.result,
        release=outcome.release,
        previous=outcome.previous,
        supervised_by=outcome.supervised_by,
        sent_bytes=bundle.size,
    )
