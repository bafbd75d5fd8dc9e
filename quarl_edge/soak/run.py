"""One soak from an empty folder to closed books."""

from __future__ import annotations

import heapq
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from quarl_device.errors import QuarlError
from quarl_device.testing.packet_faults import FaultyPackets, PacketFaults
from quarl_device.testing.tcp_proxy import TcpProxy
from quarl_device.wire.keys import LearnerKey
from quarl_edge.soak.books import DeviceBooks, StoredBlock, balance, disagreements, read_counts, read_journal
from quarl_edge.soak.cast import Broker, Player
from quarl_edge.soak.environment import COUNTS_VARIABLE, ENV_ID, RATE_VARIABLE
from quarl_edge.soak.learner import soak_spec
from quarl_edge.soak.learners import FLEET, Learner
from quarl_edge.soak.rollback import roll_back
from quarl_edge.soak.schedule import KINDS, LEARNER, LEARNER_RESTORED, Fault, make_schedule

_RECOVERY_S = 90.0
_START_S = 300.0  # TensorFlow on a busy machine
_TRAINER_REST_S = 45.0
_END_S = 60.0
_DELIVERIES = 5
_TICK_S = 0.05
_ODD_SPOOL_MIB = 1
_HASTE = 8  # of the actor that drops the oldest: a fault of seconds fills its spool


@dataclass(frozen=True, kw_only=True)
class SoakConfig:
    """What is soaked.

    Attributes:
        seconds: that faults come for.
        seed: of the schedule and of every draw in it.
        actors: how many.
        block_steps: rows per block.
        steps_per_s: of each actor; 0 for no bound.
        only: kinds of fault, all by default.
        trains: whether the learner is `quarl-edge train`, resumed from its checkpoints; else it only stores.
    """

    seconds: float = 180.0
    seed: int = 0
    actors: int = 3
    block_steps: int = 16
    steps_per_s: float = 500.0
    only: tuple[str, ...] = ()
    trains: bool = False

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the actors."""
        return tuple(f"soak-{index}" for index in range(self.actors))

    @property
    def dropper(self) -> str:
        """The actor that gives up its oldest blocks when its spool is full, "" if there is but one actor."""
        return self.devices[1] if self.actors > 1 else ""

    @property
    def kinds(self) -> tuple[str, ...]:
        """All kinds of fault that its learner knows: one that trains has a journal that only its checkpoints cut."""
        return tuple(kind for kind in KINDS if not (self.trains and kind == LEARNER_RESTORED))

    @property
    def recovery_s(self) -> float:
        """How long it may take until all are back."""
        return _START_S if self.trains else _RECOVERY_S


@dataclass(frozen=True, kw_only=True)
class SoakReport:
    """What came of it.

    Attributes:
        seconds: from the first fault to the last repair.
        recovery_s: from there until every actor had made another step.
        faults: that were played, by kind.
        devices: their books.
        broker_kills: of the broker.
        learner_kills: of the learner, which resumed each time.
        returns: starts of processes that had found no broker.
        left_out: kills of a learner that was still starting: TensorFlow on a busy machine takes its time.
        wrong: what does not hold beside the books, in words.
        learner: counters of the last learner: what came twice (and was not stored) or early, among others.
    """

    seconds: float
    recovery_s: float
    faults: dict[str, int]
    devices: tuple[DeviceBooks, ...]
    broker_kills: int
    learner_kills: int
    returns: int
    left_out: int = 0
    wrong: tuple[str, ...] = ()
    learner: dict[str, Any] = field(default_factory=dict)

    @property
    def faults_found(self) -> tuple[str, ...]:
        """All that does not hold, in words."""
        return (*self.wrong, *(f"{books.device}: {fault}" for books in self.devices for fault in books.faults))

    @property
    def ok(self) -> bool:
        """Whether all books are right, and nothing else went wrong."""
        return not self.faults_found


def soak(config: SoakConfig, folder: Path, *, say: Callable[[str], None] = lambda _: None) -> SoakReport:
    """Put everything up, play the schedule, mend everything, deliver the rest, close the books.

    Args:
        config: see `SoakConfig`.
        folder: for journal, spools, counts and logs; empty.
        say: is told what happens, a line at a time.

    Raises:
        BrokerStartFailed: there is no Mosquitto, or it does not come back.
        QuarlError: something did not begin, or did not end, in time.
    """
    schedule = make_schedule(
        config.seed,
        seconds=config.seconds,
        devices=config.devices,
        only=config.only or config.kinds,
        learner_rest_s=_TRAINER_REST_S if config.trains else 0.0,
    )
    stage = _Stage(config, folder)
    try:
        stage.open()
        began_s = time.monotonic()
        stage.play(schedule, say)
        seconds = time.monotonic() - began_s
        recovery_s = stage.wait_for_steps(timeout_s=config.recovery_s)
        say(f"everything is mended; all act again after {recovery_s:.1f} s; what is left in spools is delivered")
        learner, wrong = stage.finish()
    finally:
        stage.close()
    devices = balance(
        read_journal(stage.kind.journal, soak_spec()),
        made=stage.made(),
        kills={player.name: player.kills for player in stage.actors.values()},
        block_steps=config.block_steps,
        rolled_back=stage.rolled_back,
        may_drop={config.dropper},
    )
    accounts = learner.get("account", {})
    return SoakReport(
        seconds=seconds,
        recovery_s=recovery_s,
        faults=dict(sorted(Counter(fault.kind for fault in schedule).items())),
        devices=devices,
        broker_kills=stage.broker.kills,
        learner_kills=stage.learner.kills,
        left_out=stage.left_out,
        returns=sum(player.returns for player in stage.players),
        wrong=(
            *wrong,
            *disagreements(devices, accounts, restored=bool(stage.rolled_back)),
            *(fault for player in stage.players for fault in player.faults),
        ),
        learner=learner,
    )


def as_json(report: SoakReport) -> dict[str, Any]:
    """Return a report as plain data."""
    return {"ok": report.ok, **asdict(report)}


class _Stage:
    """Broker, learner and actors, with a proxy before the broker for each of them."""

    def __init__(self, config: SoakConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._epoch = int(time.time())
        self.rolled_back: list[StoredBlock] = []
        self.left_out = 0
        self._random = random.Random(config.seed)  # noqa: S311 - faults, no secrets
        logs = folder / "logs"
        logs.mkdir(parents=True)
        LearnerKey.load_or_create(folder / "learner.key").public.save(folder / "learner.pub")
        self.learner = Player(LEARNER, folder=logs, environment={})
        self.actors = {name: self._actor(name, logs) for name in config.devices}
        self.broker = Broker(folder / "broker")
        self.proxies = {name: TcpProxy(self.broker.port) for name in (LEARNER, *config.devices)}
        self.kind = Learner(trains=config.trains, folder=folder, url=self._url(LEARNER), block_steps=config.block_steps)

    def _actor(self, name: str, logs: Path) -> Player:
        counts = self._folder / "counts" / name
        counts.mkdir(parents=True)
        rate = str(self._config.steps_per_s * (_HASTE if name == self._config.dropper else 1))
        return Player(name, folder=logs, environment={COUNTS_VARIABLE: str(counts), RATE_VARIABLE: rate})

    @property
    def players(self) -> tuple[Player, ...]:
        return (self.learner, *self.actors.values())

    def open(self) -> None:
        """Start all; returns when every environment has made a step."""
        self._start_learner()
        for name in self.actors:
            self._start_actor(name)
        self.wait_for_steps(timeout_s=_START_S)
        deadline_s = time.monotonic() + _START_S
        while not self.kind.resumable:
            self._attend()
            if time.monotonic() > deadline_s:
                raise QuarlError(f"no checkpoint of the learner within {_START_S:.0f} s")
            time.sleep(_TICK_S)

    def wait_for_steps(self, *, timeout_s: float) -> float:
        """Wait until every environment has made another step; returns how long that took, in seconds.

        Raises:
            QuarlError: one makes none.
        """
        before, began_s = self.made(), time.monotonic()
        while idle := [name for name, made in self.made().items() if made <= before[name]]:
            self._attend()
            if time.monotonic() > began_s + timeout_s:
                raise QuarlError(f"{', '.join(idle)}: no step within {timeout_s:.0f} s, though nothing is in the way")
            time.sleep(_TICK_S)
        return time.monotonic() - began_s

    def made(self) -> dict[str, int]:
        """Return the steps of each actor's environments, over all of its lives."""
        return {name: read_counts(self._folder / "counts" / name) for name in self.actors}

    def play(self, schedule: Sequence[Fault], say: Callable[[str], None]) -> None:
        """Let every fault come, and mend it, at its time."""
        ends = [(fault.at_s + fault.lasts_s, 1, index) for index, fault in enumerate(schedule)]
        due = sorted([(fault.at_s, 0, index) for index, fault in enumerate(schedule)] + ends)
        began_s = time.monotonic()
        while due:
            now_s = time.monotonic() - began_s
            if due[0][0] > now_s:
                self._attend()
                time.sleep(min(_TICK_S, due[0][0] - now_s))
                continue
            _, ended, index = heapq.heappop(due)
            fault = schedule[index]
            if ended:
                self._mend(fault)
            else:
                say(f"{now_s:6.1f} s  {fault.kind} of {fault.target}, {fault.lasts_s:.1f} s, {fault.amount:.4g}")
                self._begin(fault)

    def finish(self) -> tuple[dict[str, Any], list[str]]:
        """Deliver what is left, end everything; returns the learner's counters and what went wrong."""
        wrong: list[str] = []
        for player in self.actors.values():
            player.end(timeout_s=_END_S)
        for name, player in self.actors.items():
            pending = self._deliver(name, player)
            if pending:
                wrong.append(f"{name} could not deliver {pending} blocks")
        learner = self.learner.end(timeout_s=self._config.recovery_s)
        if refused := learner["refused"]:
            wrong.append(f"the learner refused blocks: {refused}")
        return learner, wrong

    def close(self) -> None:
        for player in self.players:
            player.close()
        for proxy in self.proxies.values():
            proxy.close()
        self.broker.close()

    def _deliver(self, name: str, player: Player) -> int:
        """Start lives that make one step and bring what is left; returns how many blocks remain nevertheless."""
        pending = 0
        for _ in range(_DELIVERIES):
            self._start_actor(name, "--steps", "1")
            # The learner may be just starting: it was killed last.
            pending = int(player.end(timeout_s=self._config.recovery_s, ask=False)["blocks_pending"])
            if not pending:
                break
        return pending

    # -- faults ------------------------------------------------------------------------------------------------------

    def _begin(self, fault: Fault) -> None:
        match fault.kind:
            case "broker kill":
                self.broker.kill()
            case "learner kill" if not self.kind.has_served_since(self.learner.started_unix_s):
                self.left_out += 1
            case "learner kill" | "actor kill" | "learner restored":
                self._player(fault).kill()
            case "learner disk full" | "actor disk full":
                self._player(fault).fill_disk(True)
            case _:
                self._disturb(self.proxies[fault.target], fault)

    def _disturb(self, proxy: TcpProxy, fault: Fault) -> None:
        match fault.kind:
            case "cut":
                proxy.cut()
            case "cut at byte":
                proxy.cut_after("down" if int(fault.amount) % 2 else "up", int(fault.amount))
            case "refuse":
                proxy.refuse()
                proxy.cut()
            case "stall":
                proxy.stall()
            case "half open":
                proxy.half_open()
            case "delay":
                proxy.shape(delay_s=fault.amount)
            case "throttle":
                proxy.shape(bytes_per_s=int(fault.amount))
            case "packets":
                share = fault.amount
                faults = PacketFaults(drop=share, duplicate=share, reorder=share)
                proxy.filter_packets(lambda _: FaultyPackets(faults, self._another_random()))
                proxy.cut()

    def _mend(self, fault: Fault) -> None:
        match fault.kind:
            case "broker kill":
                self.broker.start(forget=bool(fault.amount))
            case "learner restored":
                self.rolled_back += roll_back(self.kind.journal, soak_spec(), share=fault.amount)
                self._start_learner()
            case "learner kill":
                if not self.learner.running:
                    self._start_learner()
            case "actor kill":
                self._start_actor(fault.target)
            case "learner disk full" | "actor disk full":
                self._player(fault).fill_disk(False)
            case "half open":
                self.proxies[fault.target].cut()
            case _:
                self.proxies[fault.target].heal()

    def _another_random(self) -> random.Random:
        return random.Random(self._random.random())  # noqa: S311 - faults, no secrets

    def _player(self, fault: Fault) -> Player:
        return self.learner if fault.target == LEARNER else self.actors[fault.target]

    # -- processes ---------------------------------------------------------------------------------------------------

    def _attend(self) -> None:
        self.learner.attend(self._learner_words())
        for player in self.actors.values():
            player.attend()

    def _start_learner(self) -> None:
        self.learner.start(self._learner_words())

    def _learner_words(self) -> Sequence[str]:
        self._epoch += 1
        return self.kind.words(self._epoch)

    def _start_actor(self, name: str, *words: str) -> None:
        # Every second spool is so small that a longer fault fills it, and one of these drops its oldest blocks then.
        small = ["--spool-mib", str(_ODD_SPOOL_MIB)] if self._config.devices.index(name) % 2 else []
        small += ["--when-full", "drop-oldest"] if name == self._config.dropper else []
        self.actors[name].start([
            sys.executable, "-m", "quarl_device.cli", "run", "--broker", self._url(name), "--fleet", FLEET,
            "--id", name, "--env", f"quarl_edge.soak.environment:{ENV_ID}", "--die-with-parent",
            "--learner-key", str(self._folder / "learner.pub"), "--block-steps", str(self._config.block_steps),
            "--state-dir", str(self._folder / "state" / name), "--format", "json", *small, *words,
        ])  # fmt: skip

    def _url(self, name: str) -> str:
        return f"mqtt://127.0.0.1:{self.proxies[name].port}"
