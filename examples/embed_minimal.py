"""Acks out of order, a crash, and nothing is forgotten: cursor, store and gate without a broker."""

import asyncio
import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

from ackgate.cursor.message_ledgers import MessageLedgers
from ackgate.cursor.position import Position
from ackgate.dispatcher.gate import Gate, GateSettings
from ackgate.persistence.embedded import open_embedded, until_durable


async def live(directory: Path, acks: range) -> None:
    """Find out what was acked, ack some more, and crash."""
    ledgers = MessageLedgers()  # which messages there are: entries 0 to 999 of ledger 7
    ledgers.open_ledger(7)
    ledgers.add_entries(7, 1_000)
    gate = Gate(GateSettings(enabled=True, ranges_max=400), now_ms=0)
    async with open_embedded(directory) as storage:
        store = await storage.open_cursor("orders", "billing", ledgers, create_at=Position(7, -1))
        cursor = store.cursor
        print(f"found: {cursor.hole_count} holes, {cursor.backlog_entries} to do", flush=True)
        for entry_id in acks:
            cursor.ack(Position(7, entry_id))
        gate.observe(ranges_live=cursor.range_count, batch_indexes_live=0, now_ms=1)
        await until_durable(store)
        print(f"left:  {cursor.hole_count} holes, gate open: {gate.is_open}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def run(directory: str, acks: range) -> None:
    """One life, in a process of its own."""
    asyncio.run(live(Path(directory), acks))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as data:
        for acks in (range(1, 1_000, 2), range(0, 1_000, 2)):  # every second one, then the holes
            life = multiprocessing.Process(target=run, args=(data, acks))
            life.start()
            life.join()
