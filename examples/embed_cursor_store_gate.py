"""A host with messages, a cursor, a store and a gate of its own: reads pause, and go on.

Its messages lie in a ledger of the same storage. It reads on only while no choice of acks among
what it has read could make more ranges than the limit; acks of the holes let it go on.
"""

import asyncio
import tempfile
import time
from pathlib import Path

from ackgate import open_embedded, until_durable
from ackgate.cursor import MessageLedgers, Position
from ackgate.dispatcher import Gate, GateSettings
from ackgate.persistence import CursorStore, LedgerEntry, LedgerOptions, LedgerWriter

RANGES_MAX = 100


class Host:
    """One topic with one subscription."""

    def __init__(self, writer: LedgerWriter, ledgers: MessageLedgers, store: CursorStore) -> None:
        self.writer, self.ledgers, self.store = writer, ledgers, store
        settings = GateSettings(enabled=True, is_strict=True, ranges_max=RANGES_MAX)
        self.gate = Gate(settings, now_ms())
        store.on_outcome(self.on_outcome)

    async def publish(self, payloads: list[bytes]) -> None:
        """Keep messages; what is durable can be read."""
        await self.writer.append(payloads).durable
        self.ledgers.add_entries(self.writer.ledger_id, len(payloads))

    async def read(self, entries_max: int) -> list[LedgerEntry]:
        """The next messages. None: all are read, or the gate is shut."""
        cursor = self.store.cursor
        budget = cursor.entry_budget(RANGES_MAX)
        self.gate.budget(budget, now_ms())
        messages: list[LedgerEntry] = []
        if self.gate.is_open:
            spans = cursor.unacked_spans(cursor.read_position, min(entries_max, budget))
            for ledger_id, start, stop in spans:
                messages += await self.writer.read(start, stop - 1)
                cursor.seek(Position(ledger_id, stop))
        return messages

    def ack(self, message: LedgerEntry) -> None:
        """In any order; durable some milliseconds later."""
        self.store.cursor.ack(Position(self.writer.ledger_id, message.entry_id))
        self.store.notify()

    def on_outcome(self) -> None:
        """Acks were made durable, or could not be: then the gate shuts after a while."""
        if self.store.outcome is not None and self.store.failing_since_ms is None:
            self.gate.persisted(self.store.outcome, now_ms())
        self.gate.persist_failing(self.store.failing_since_ms, now_ms())


def now_ms() -> int:
    """Wall clock."""
    return time.time_ns() // 1_000_000


async def main(directory: Path) -> None:
    """Ack every second message until reads pause, then the others, then the rest."""
    async with open_embedded(directory) as storage:
        writer = await storage.ledger_client.create(LedgerOptions())
        ledgers = MessageLedgers()
        ledgers.open_ledger(writer.ledger_id)
        begin = Position(writer.ledger_id, -1)
        store = await storage.open_cursor("orders", "billing", ledgers, create_at=begin)
        host = Host(writer, ledgers, store)
        await host.publish([b"order %d" % number for number in range(1_000)])

        held = []
        while messages := await host.read(10):
            held += messages[::2]
            for message in messages[1::2]:
                host.ack(message)
        reasons = ", ".join(reason.value for reason in host.gate.reasons)
        print(f"paused ({reasons}): {store.cursor.range_count} ranges, {len(held)} messages held")

        for message in held:
            host.ack(message)
        rest = 0
        while messages := await host.read(10):
            rest += len(messages)
            for message in messages:
                host.ack(message)
        outcome = await until_durable(store)
        assert outcome.is_complete, "nothing was left out"
        print(f"went on: {rest} more messages, {store.cursor.backlog_entries} left")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as data:
        asyncio.run(main(Path(data)))
