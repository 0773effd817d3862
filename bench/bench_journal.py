"""What the delivery journal costs the broker: the same work with it and without, in turns.

A real client in a process of its own sends messages of 100 bytes unbatched, then receives and acks
them one by one. Rates depend on whatever else the machine does; the broker's own processor time for
each message does not, so both are told. Each run is on a fresh broker, and the runs alternate: what
changes between them is the journal only.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ackgate.persistence.nodes.paths import delivery_journal_path
from bench.bench_broker import load
from bench.brokers import Ackgate, running
from bench.usage import cpu_seconds
from tests.support.delivery_journals import read_stored_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping

JOURNAL_ON = {"deliveryJournalEnabled": "true"}


class Sizes(NamedTuple):
    """How much work one run does."""

    messages: int
    rounds: int


FULL = Sizes(100_000, 15)
SMOKE = Sizes(2_000, 1)


class Measured(NamedTuple):
    """One run."""

    sent_per_s: float
    received_acked_per_s: float
    cpu_us_per_message: float
    journal_events: int
    journal_bytes: int


def run(*, smoke: bool) -> dict[str, Any]:
    """Medians with the journal on and off, and the difference in per cent."""
    sizes = SMOKE if smoke else FULL
    runs: dict[str, list[Measured]] = {"off": [], "on": []}
    with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as work:
        for number in range(2 * sizes.rounds):
            # off on on off off on ...: neither is always the first of a pair.
            name = "on" if (number + 1) // 2 % 2 else "off"
            settings = JOURNAL_ON if name == "on" else {}
            runs[name].append(_measure(Path(work) / str(number), settings, sizes))
    off, on = (_median(runs[name]) for name in ("off", "on"))
    return {
        "off": _rates(off),
        "on": _rates(on),
        "overhead_percent": {
            "sent": round(100 * (off.sent_per_s / on.sent_per_s - 1), 1),
            "received_acked": round(
                100 * (off.received_acked_per_s / on.received_acked_per_s - 1), 1
            ),
            "broker_cpu": round(100 * (on.cpu_us_per_message / off.cpu_us_per_message - 1), 1),
        },
        "events_per_message": round(on.journal_events / sizes.messages, 2),
        "journal_bytes_per_event": round(on.journal_bytes / max(1, on.journal_events), 2),
    }


def _rates(measured: Measured) -> dict[str, float]:
    return {
        "sent_per_s": round(measured.sent_per_s),
        "received_acked_per_s": round(measured.received_acked_per_s),
        "broker_cpu_us_per_message": round(measured.cpu_us_per_message, 2),
    }


def _median(runs: list[Measured]) -> Measured:
    return Measured(*(statistics.median(column) for column in zip(*runs, strict=True)))


def _measure(work: Path, settings: Mapping[str, str], sizes: Sizes) -> Measured:
    broker = Ackgate(work, settings)
    with running(broker):
        url, count = broker.service_url, sizes.messages
        load("publish", url=url, topic="warm", count=sizes.messages // 10, batched=False)
        began = cpu_seconds(broker.process.pid)
        sent = load("publish", url=url, topic="t", count=count, batched=False)
        got = load("consume", url=url, topic="t", count=count)
        used = cpu_seconds(broker.process.pid) - began
        broker.process.terminate()  # and not killed: the journal is whole then
        broker.process.wait(timeout=60)
        events, size = _journal(work / "data") if settings else (0, 0)
    return Measured(sent["per_second"], got["per_second"], 1e6 * used / count, events, size)


def _journal(data_directory: Path) -> tuple[int, int]:
    """Events of the topic's journal, and bytes of its blocks."""
    path = delivery_journal_path("public", "default", "t")
    blocks = asyncio.run(read_stored_blocks(data_directory, path))
    return sum(len(each.block) for each in blocks), sum(each.size_bytes for each in blocks)


if __name__ == "__main__":
    print(json.dumps(run(smoke="--smoke" in sys.argv), indent=2))
