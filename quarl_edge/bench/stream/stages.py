"""Where the time of a block goes in the learner, stage by stage, in one process and without a broker."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quarl_device.wire.block import BlockCodec
from quarl_edge.bench.stream.measure import open_ingest
from quarl_edge.bench.stream.workload import DISCOUNT, Stream, Workload
from quarl_edge.ingest.ingest import MAX_MAGNITUDE, Ingest
from quarl_edge.ingest.sessions import SessionTable
from quarl_edge.replay.journal import Journal
from quarl_edge.replay.nstep import NStepAssembler

DEVICE, BOOT_ID = "actor-0", "0" * 16
_GROUPS = 10
_BLOCKS = 1_000
_BYTES = 64 * 1024 * 1024


def stage_costs(workload: Workload) -> dict[str, float]:
    """Return the CPU time per block of each stage in µs: the least of ten groups, so that other work weighs little.

    `encode` is the actor's; `offer` is the learner's whole way from a payload into replay, of which `decode` (with all
    checks), `sessions`, `journal`, `assemble` (n-step, here 1) and `insert` are parts; `ack` is the answer, one for all
    blocks that came together; `read_back` is the measurement's own.
    """
    stream, codec = Stream(workload, 0), BlockCodec(workload.spec, max_magnitude=MAX_MAGNITUDE)
    payloads: list[bytes] = []

    def encode(sequence: int) -> None:
        stream.fill()
        began_s = time.process_time()
        block = stream.recorder.block(
            boot_id=BOOT_ID, sequence=sequence, base=0, first_step=sequence * workload.block_transitions
        )
        payloads.append(codec.encode(block))
        encoding.append(time.process_time() - began_s)

    encoding: list[float] = []
    encode(0)
    for sequence in range(1, max(_GROUPS, min(_BLOCKS, _BYTES // len(payloads[0])))):
        encode(sequence)
    costs = {"encode": 1e6 * sorted(encoding)[len(encoding) // 2]}
    with tempfile.TemporaryDirectory(prefix="quarl-stages-") as folder:
        blocks = _timed(costs, "decode", codec.decode, payloads)
        table, assembler = SessionTable(1), NStepAssembler(1, DISCOUNT)
        journal = Journal(Path(folder) / "journal")
        ingest = open_ingest(workload, Path(folder) / "ingest")
        try:
            _timed(costs, "sessions", lambda block: _admit(table, block), blocks)
            _timed(costs, "journal", lambda payload: journal.append(DEVICE, payload), payloads)
            made = _timed(costs, "assemble", lambda block: assembler.push(DEVICE, block), blocks)
            _timed(costs, "insert", ingest.replay.insert, made)
            _timed(costs, "read_back", lambda rows: ingest.replay.newest(len(rows)), made)
            # Not the witness's own: what it looks at is timed above.
            _timed(costs, "offer", lambda payload: Ingest.offer(ingest, DEVICE, payload), payloads)
            _timed(costs, "ack", lambda block: _answer(ingest, block), blocks)
        finally:
            journal.close()
            ingest.close()
    return {name: round(cost_us, 1) for name, cost_us in costs.items()}


def _timed(costs: dict[str, float], name: str, do: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    size, results, best_s = max(1, len(items) // _GROUPS), [], float("inf")
    for first in range(0, len(items), size):
        group = items[first : first + size]
        began_s = time.process_time()
        made = [do(item) for item in group]
        best_s = min(best_s, (time.process_time() - began_s) / len(group))
        results += made
    costs[name] = 1e6 * best_s
    return results


def _admit(table: SessionTable, block: Any) -> None:
    table.admit(DEVICE, block.boot_id, block.sequence, 0, (), first_step=block.first_step, steps=block.transitions)


def _answer(ingest: Ingest, block: Any) -> None:
    ingest.opened(DEVICE, block.boot_id)
    for _, ack in ingest.acks():
        ack.encode()
