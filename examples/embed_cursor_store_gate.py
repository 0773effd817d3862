"""A host with messages of its own, a cursor, a store and a gate: reads pause, and go on.

The host keeps messages in a ledger of the same storage. Reading stops while the acks could make
more ranges than the limit, and goes on when the holes between them are acked.
"""

import asyncio
import tempfile
import time
from pathlib import Path

from ackgate.cursor.message_ledgers import MessageLedgers
from ackgate.cursor.position import Position
from ackgate.dispatcher.gate import Gate, GateSettings
from ackgate.persistence.cursor_store import CursorStore
from ackgate.persistence.embedded import open_embedded, until_durable
from ackgate.persistence.ports import LedgerEntry, LedgerOptions, LedgerWriter

RANGES_MAX = 100


class Host:
    """One topic with one subscription."""

    def __init__(self, writer: LedgerWriter, ledgers: MessageLedgers, store: CursorStore) -> None:
        self.writer = writer
        self.ledgers = ledgers
        self.store = store
        self.cursor = store.cursor
        settings = GateSettings(enabled=True, is_strict=True, ranges_max=RANGES_MAX)
        self.gate = Gate(settings, now_ms())
        store.on_outcome(self.persisted)

    async def publish(self, payloads: list[bytes]) -> None:
        """Keep messages. Only what is durable can be read."""
        await self.writer.append(payloads).durable
        self.ledgers.add_entries(self.writer.ledger_id, len(payloads))

    async def read(self, entries_max: int) -> list[LedgerEntry]:
        """The next messages; none when there are none, or the gate is shut."""
        budget = self.cursor.entry_budget(RANGES_MAX)
        self.gate.budget(budget, now_ms())
        messages: list[LedgerEntry] = []
        if self.gate.is_open:
            spans = self.cursor.unacked_spans(self.cursor.read_position, min(entries_max, budget))
            for ledger_id, start, stop in spans:
                messages += await self.writer.read(start, stop - 1)
                self.cursor.seek(Position(ledger_id, stop))
        return messages

    def ack(self, message: LedgerEntry) -> None:
        """In any order. Durable a few milliseconds later."""
        self.cursor.ack(Position(self.writer.ledger_id, message.entry_id))
        self.store.notify()
        self.gate.observe(
            ranges_live=self.cursor.range_count, batch_indexes_live=0, now_ms=now_ms()
        )

    def persisted(self) -> None:
        """A write is durable, or failed: the gate judges by that, too."""
        outcome = self.store.outcome
        if outcome is not None:
            self.gate.persisted(
                ranges_in_memory=outcome.ranges_in_memory,
                ranges_persisted=outcome.ranges_persisted,
                entries_dropped=outcome.entries_dropped,
                batch_indexes_dropped=outcome.batch_indexes_dropped,
                size_guard_hit=outcome.size_guard_hit,
                now_ms=now_ms(),
            )
        self.gate.persist_failing(self.store.failing_since_ms, now_ms())


def now_ms() -> int:
    """Wall clock."""
    return time.time_ns() // 1_000_000


async def main(directory: Path) -> None:
    """Ack every second message until reads pause, then the others."""
    async with open_embedded(directory) as storage:
        writer = await storage.ledger_client.create(LedgerOptions())
        ledgers = MessageLedgers()
        ledgers.open_ledger(writer.ledger_id)
        before_first = Position(writer.ledger_id, -1)
        store = await storage.open_cursor("orders", "billing", ledgers, create_at=before_first)
        host = Host(writer, ledgers, store)
        await host.publish([b"order %d" % number for number in range(1_000)])

        held: list[LedgerEntry] = []
        while messages := await host.read(10):
            for message in messages:
                if message.entry_id % 2:
                    host.ack(message)
                else:
                    held.append(message)
        reasons = ", ".join(reason.value for reason in host.gate.reasons)
        print(f"paused ({reasons}): {host.cursor.range_count} ranges, {len(held)} messages held")

        for message in held:
            host.ack(message)
        rest = 0
        while messages := await host.read(10):
            for message in messages:
                host.ack(message)
            rest += len(messages)
        await until_durable(store)
        print(
            f"went on: {rest} more, {host.cursor.backlog_entries} left, gate {host.gate.is_open=}"
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as data:
        asyncio.run(main(Path(data)))
