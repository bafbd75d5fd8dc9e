"""What is known of a board before anything is sent there: connected, checked, and the wheels that it lacks at hand."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from quarl_device.errors import BoardUnfit, DeployError
from quarl_edge.deploy.board_network import check_root, reaches_index
from quarl_edge.deploy.bundle import Bundle, make_bundle
from quarl_edge.deploy.device_wheel import device_wheel
from quarl_edge.deploy.events import Event, Tell
from quarl_edge.deploy.facts import BoardFacts, ask_board
from quarl_edge.deploy.host import Host
from quarl_edge.deploy.requirements import BoardPython, requirements_of
from quarl_edge.deploy.ticking import ticking
from quarl_edge.deploy.verdicts import Verdict, judge
from quarl_edge.deploy.wheelhouse import wheelhouse
from quarl_edge.deploy.wish import Wish


async def checked_board(host: Host, wish: Wish, tell: Tell) -> BoardFacts:
    """Ask the board, tell every verdict, and make sure that root can be had.

    Raises:
        BoardUnfit: nothing can be deployed there; the first problem, and how many there are.
        BoardRefused: see `check_root`.
        BoardUnreachable, PayloadRefused: see `ask_board`.
    """
    facts = await ask_board(host)
    verdicts = judge(facts)
    if wish.order.remove:
        # A disk that is full, or a Python that is too new, is no reason to keep an agent.
        verdicts = tuple(verdict for verdict in verdicts if verdict.check == "python")
    for verdict in verdicts:
        tell(_event(verdict))
    problems = [verdict for verdict in verdicts if verdict.level == "problem"]
    if problems:
        more = f" (and {len(problems) - 1} more, above)" if len(problems) > 1 else ""
        raise BoardUnfit(f"{host.name}: {problems[0].check}: {problems[0].found}{more}", hint=problems[0].mend)
    await check_root(host, facts)
    return facts


async def ready_bundle(host: Host, wish: Wish, facts: BoardFacts, tell: Tell) -> Bundle:
    """Put together what is sent.

    Raises:
        BoardUnfit: a package has no wheel for the board.
        DeployError: neither the board nor this computer reaches a package index.
        MissingPart: the device's wheel is not there and cannot be built.
        CredentialsError: a file of the credentials cannot be read.
    """

    def note(text: str) -> None:
        tell(Event(step="bundle", state="goes on", said=text))

    wheel = await asyncio.to_thread(device_wheel, note)
    if wish.settings is None:
        return make_bundle(wheel)
    wheels = await _wheels(host, wish, facts, wheel, tell)
    bundle = await asyncio.to_thread(
        make_bundle,
        wheel,
        wheels=wheels,
        settings=wish.settings.toml(),
        credentials=wish.credentials,
        password=wish.password,
        learner_key=wish.learner_key,
        policy=wish.release.data if wish.release is not None else None,
    )
    tell(Event(step="bundle", state="done", said=_contents(bundle, len(wheels))))
    return bundle


async def _wheels(host: Host, wish: Wish, facts: BoardFacts, wheel: Path, tell: Tell) -> tuple[Path, ...]:
    board = BoardPython.of(facts)
    asked = requirements_of(wheel, board, wish.order.extras)
    if wish.wheelhouse == "never":
        return ()
    if wish.wheelhouse == "auto":
        tell(Event(step="wheels", state="begins", said="asking the board's pip whether it reaches a package index"))
        if await reaches_index(host, facts, next((text for text in asked if text.startswith("paho")), asked[0])):
            tell(Event(step="wheels", state="done", said="the board fetches them itself"))
            return ()

    def note(text: str) -> None:
        tell(Event(step="wheels", state="goes on", said=text))

    fetching = partial(wheelhouse, asked, board, cache=wish.cache / "wheelhouses", note=note)
    try:
        async with ticking(tell, "wheels", lambda: "pip is at it"):
            wheels = await asyncio.to_thread(fetching)
    except DeployError as error:
        if wish.wheelhouse == "auto":
            error.message = f"the board's pip reaches no package index, so wheels are sent; but {error.message}"
        raise
    tell(Event(step="wheels", state="done", said=f"{len(wheels)} for {board.machine}, Python {board.version}"))
    return wheels


def _event(verdict: Verdict) -> Event:
    state = {"ok": "done", "warning": "warning", "problem": "failed"}[verdict.level]
    return Event(step=verdict.check, state=state, said=verdict.found, mend=verdict.mend)  # type: ignore[arg-type]


def _contents(bundle: Bundle, wheels: int) -> str:
    others = sorted({path.split("/", 1)[0] for path in bundle.entries} - {"wheels"})
    return f"{', '.join(others)}{f' and {wheels} wheels' if wheels else ''}: {bundle.size / 1024 / 1024:.1f} MiB"
