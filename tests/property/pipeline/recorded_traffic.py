"""A subscription as the broker drives it, in virtual time, with the journal that it would leave.

The pure parts and the cursor store are the real ones; the stores below are in memory, and late or
broken as a plan says. ``traffic(seed, ...)`` gives the blocks of the journal, an owner's epoch after
the other: crashed, or closed in order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from ackgate.config.settings import Given, Settings
from ackgate.cursor import ARRAY_PATH_POSITIONS_MIN, ManagedCursor, MessageLedgers, Position
from ackgate.dispatcher import Gate, gate_settings
from ackgate.errors import AckGateError, OwnershipError
from ackgate.persistence import (
    CursorStore,
    MemoryMetadataStore,
    PersistOutcome,
    PersistWhere,
    RecoverySource,
)
from ackgate.persistence.deliveries.columns import (
    DeliveryEvent,
    EventColumns,
    EventKind,
    columns_of,
)
from ackgate.persistence.deliveries.details import (
    AckedCall,
    Cleared,
    Expired,
    MessageLedger,
    Opened,
    PersistFailed,
    Skipped,
    Sought,
    Subscribed,
    TopicPolicies,
    encode_detail,
)
from ackgate.persistence.metadata.memory import MemoryTree
from ackgate.persistence.records.codec import encode_record
from ackgate.persistence.records.envelope import Packing
from ackgate.persistence.records.values import SnapshotRecord
from ackgate.testing import MemoryLedgerClient, MemoryLedgers
from tests.support.faults import Fault, FaultPlan
from tests.support.faulty_ledgers import FaultyLedgerClient
from tests.support.faulty_metadata import FaultyMetadataStore
from tests.support.virtual_time import run_in_virtual_time

TOPIC = "persistent://public/default/t"
NAME = "s"
PATH = "/managed-ledgers/public/default/persistent/t/s"
START_US = 1_767_225_600_000_000


def settings_of(texts: Mapping[str, str]) -> Settings:
    return Settings().with_given({key: Given(text, "test") for key, text in texts.items()})


class Recorder:
    """One life of the subscription under one owner, and what its journal says."""

    def __init__(self, rng: Random, texts: Mapping[str, str], ledgers: MessageLedgers) -> None:
        self.rng = rng
        self.settings = settings_of(texts)
        self.ledgers = ledgers
        self.events: list[DeliveryEvent] = []
        self.in_flight: list[Position] = []
        self.cursor: ManagedCursor
        self.store: CursorStore
        self.gate = Gate(gate_settings(self.settings, is_pausing=False), self.now_ms())
        self.was_open = True
        self.is_closing = False

    def now_us(self) -> int:
        return START_US + round(asyncio.get_running_loop().time() * 1e6)

    def now_ms(self) -> int:
        return self.now_us() // 1000

    def note(self, kind: EventKind, *, own: bool = True, **columns: Any) -> None:
        detail = columns.pop("detail", None)
        self.events.append(
            DeliveryEvent(
                kind=kind,
                time_us=self.now_us(),
                subscription=NAME if own else None,
                detail=None if detail is None else encode_detail(detail),
                **columns,
            )
        )

    # ------------------------------------------------------------------ life and death

    async def open(self, ledger_client: Any, metadata: Any, epoch: int) -> None:
        counts = self.ledgers.entry_counts
        newest = self.ledgers.ledger_ids[-1]
        opened = tuple(MessageLedger(i, counts[i], i == newest) for i in self.ledgers.ledger_ids)
        detail = Opened(self.settings.texts(), TopicPolicies(), opened)
        self.note(EventKind.OPENED, own=False, detail=detail)
        self.store = await CursorStore.open(
            path=PATH,
            ledgers=self.ledgers,
            ledger_client=ledger_client,
            metadata=metadata,
            settings=self.settings.persistence,
            batch_index_acks=True,
            owner_epoch=epoch,
            clock_ms=self.now_ms,
            create_at=Position(self.ledgers.ledger_ids[0], -1),
        )
        self.cursor = self.store.cursor
        if self.store.report.source is RecoverySource.NEW:
            subscribed = Subscribed(self.cursor.mark_delete, is_durable=True)
            self.note(EventKind.SUBSCRIBED, detail=subscribed)
        else:
            snapshot = self.cursor.snapshot()
            record = SnapshotRecord(
                epoch, 0, snapshot, snapshot.range_count, 0, len(snapshot.unacked_indexes)
            )
            self.note(
                EventKind.RECOVERED,
                version=self.cursor.version,
                detail=self.store.report,
                state=encode_record(record, Packing()),
            )
        self.store.report_attempts(self)
        self.store.on_outcome(self.on_outcome)
        self.gate.configure(gate_settings(self.settings, is_pausing=True), self.now_ms())
        self.note(EventKind.CONSUMER_ADDED, consumer="c#1", reason="Key_Shared")
        self.note_gate()

    def wrote(self, outcome: PersistOutcome) -> None:
        self.note(EventKind.PERSISTED, version=outcome.version, detail=outcome)

    def attempt_failed(
        self, where: PersistWhere, version: int, error: str, failing_since_ms: int | None
    ) -> None:
        detail = PersistFailed(error, failing_since_ms)
        self.note(EventKind.PERSIST_FAILED, version=version, reason=where.value, detail=detail)

    def on_outcome(self) -> None:
        outcome, now_ms = self.store.outcome, self.now_ms()
        if outcome is not None and self.store.failing_since_ms is None:
            self.gate.persisted(outcome, now_ms)
        self.gate.persist_failing(self.store.failing_since_ms, now_ms)
        self.note_gate()

    def changed(self) -> None:
        self.gate.observe(
            ranges_live=self.cursor.range_count,
            batch_indexes_live=self.cursor.partly_acked_count,
            now_ms=self.now_ms(),
        )
        self.look_at_budget()
        self.note_gate()
        self.store.notify()

    def look_at_budget(self) -> None:
        if self.gate.settings.is_strict and self.gate.settings.enabled:
            budget = self.cursor.entry_budget(self.gate.settings.ranges_max, entries_enough=1)
            self.gate.budget(budget, self.now_ms())

    def note_gate(self) -> None:
        if self.gate.is_open is not self.was_open:
            self.was_open = self.gate.is_open
            kind = EventKind.GATE_OPENED if self.was_open else EventKind.GATE_SHUT
            reasons = ",".join(reason.value for reason in self.gate.reasons)
            self.note(kind, reason=reasons or "budget")

    # ------------------------------------------------------------------------- traffic

    async def step(self) -> None:
        rng = self.rng
        self.gate.advance(self.now_ms())
        self.note_gate()
        actions = [
            (self.publish, 4),
            (self.dispatch, 6),
            (self.ack, 10),
            (self.ack_some, 3),
            (self.ack_part, 3),
            (self.ack_through, 0.5),
            (self.nack, 1),
            (self.move, 0.3),
            (self.roll, 0.5),
            (self.trim, 0.5),
        ]
        rng.choices([a for a, _ in actions], [w for _, w in actions])[0]()
        await asyncio.sleep(rng.choice((0, 0.0005, 0.001, 0.004, 0.1)))

    def publish(self) -> None:
        ledger_id = self.ledgers.ledger_ids[-1]
        first = self.ledgers.entry_counts[ledger_id]
        count = self.rng.choice((1, 5, 100))
        self.ledgers.add_entries(ledger_id, count)
        for entry_id in range(first, first + count):
            self.note(EventKind.PUBLISHED, own=False, ledger_id=ledger_id, entry_id=entry_id)

    def dispatch(self) -> None:
        if not self.gate.is_open:
            return
        spans = self.cursor.unacked_spans(self.cursor.read_position, self.rng.choice((1, 20, 100)))
        for span in spans:
            for entry_id in range(span.start, span.stop):
                position = Position(span.ledger_id, entry_id)
                self.in_flight.append(position)
                self.note(
                    EventKind.DISPATCHED,
                    consumer="c#1",
                    ledger_id=position.ledger_id,
                    entry_id=entry_id,
                    redelivery_count=0,
                    reason="normal",
                )
                self.cursor.seek(Position(span.ledger_id, entry_id + 1))
        self.look_at_budget()
        self.note_gate()

    def take(self, count: int) -> list[Position]:
        self.in_flight = [p for p in self.in_flight if self.ledgers.exists(p)]
        taken = self.rng.sample(self.in_flight, min(count, len(self.in_flight)))
        self.in_flight = [p for p in self.in_flight if p not in set(taken)]
        return taken

    def note_acked(
        self, positions: Sequence[Position], about: AckedCall | None, **columns: Any
    ) -> None:
        for place, position in enumerate(positions):
            self.note(
                EventKind.ACKED,
                consumer="c#1",
                ledger_id=position.ledger_id,
                entry_id=position.entry_id,
                version=self.cursor.version,
                detail=about if place == 0 else None,
                **{"is_cumulative": False, **columns},
            )

    def ack(self) -> None:
        for position in self.take(1):
            self.cursor.ack(position)
            self.note_acked([position], None)
            self.changed()

    def ack_some(self) -> None:
        positions = self.take(self.rng.choice((2, 10, 70, 150)))
        if positions:
            at_once = len(positions) >= ARRAY_PATH_POSITIONS_MIN
            self.cursor.ack_individual(positions)
            self.note_acked(positions, AckedCall(entries=len(positions), at_once=at_once))
            self.changed()

    def ack_part(self) -> None:
        for position in self.take(1):
            mask = self.rng.randrange(1, 256)
            self.in_flight.append(position)
            if self.cursor.is_acked(position):
                return
            self.cursor.ack_mixed([(position, mask)])
            after = self.cursor.unacked_mask(position)
            stored = None if after is None else after.to_bytes(4, "little")
            self.note_acked([position], None, unacked_indexes=stored)
            self.changed()

    def ack_through(self) -> None:
        for position in self.take(1):
            if position <= self.cursor.mark_delete:
                return
            properties = {"n": self.rng.randrange(3)} if self.rng.random() < 0.5 else None
            self.cursor.ack_cumulative(position, properties=properties)
            about = None if properties is None else AckedCall(properties=properties)
            self.note_acked([position], about, is_cumulative=True)
            self.changed()

    def nack(self) -> None:
        for position in self.take(3):
            self.note(
                EventKind.NACKED,
                consumer="c#1",
                ledger_id=position.ledger_id,
                entry_id=position.entry_id,
                reason="asked",
            )

    def move(self) -> None:
        cursor, reset = self.cursor, self.rng.choice(("seek", "skip", "clear", "expire"))
        if reset == "seek":
            ids = self.ledgers.ledger_ids
            ledger_id = self.rng.choice(list(ids))
            entries = self.ledgers.entry_counts[ledger_id]
            target = self.ledgers.at_or_after(Position(ledger_id, self.rng.randrange(entries + 1)))
            cursor.reset(target)
            detail: Any = Sought(cursor.mark_delete, target, None)
            self.in_flight.clear()
        elif reset == "skip":
            skipped = cursor.skip(self.rng.randrange(20))
            detail = Skipped(cursor.mark_delete, skipped)
        elif reset == "clear":
            detail = Cleared(cursor.mark_delete, cursor.clear_backlog())
            detail = Cleared(cursor.mark_delete, detail.entries)
        else:
            position = self.ledgers.position_after(cursor.mark_delete, 1)
            cursor.ack_cumulative(position)
            detail = Expired(cursor.mark_delete, position)
        self.note(EventKind.RESET, reason=reset, version=cursor.version, detail=detail)
        self.changed()

    def roll(self) -> None:
        ledger_id = self.ledgers.ledger_ids[-1]
        entries = self.ledgers.entry_counts[ledger_id]
        self.ledgers.close_ledger(ledger_id, entries)
        self.note(EventKind.LEDGER_CLOSED, own=False, ledger_id=ledger_id, entry_id=entries - 1)
        self.ledgers.open_ledger(ledger_id + 2)
        self.note(EventKind.LEDGER_OPENED, own=False, ledger_id=ledger_id + 2)

    def trim(self) -> None:
        kept = self.store.persisted_mark_delete.ledger_id
        gone = [i for i in self.ledgers.ledger_ids[:-1] if i < kept]
        for ledger_id in gone:
            self.ledgers.trim_ledger(ledger_id)
        for ledger_id in gone:
            self.note(EventKind.LEDGER_TRIMMED, own=False, ledger_id=ledger_id)
        for ledger_id in gone:
            self.cursor.ledger_trimmed(ledger_id)
            self.changed()


def copied(ledgers: MessageLedgers) -> MessageLedgers:
    """As the next owner finds them: with nothing of what is trimmed, and a ledger of its own."""
    again = MessageLedgers()
    for ledger_id in ledgers.ledger_ids:
        again.open_ledger(ledger_id)
        again.close_ledger(ledger_id, ledgers.entry_counts[ledger_id])
    again.open_ledger(ledgers.ledger_ids[-1] + 2)
    return again


def traffic(
    seed: int,
    texts: Mapping[str, str],
    *,
    epochs: int = 2,
    steps: int = 100,
    rates: Mapping[Fault, float] | None = None,
) -> list[EventColumns]:
    """Blocks of the journal, one for each epoch."""

    async def run() -> list[EventColumns]:
        rng = Random(seed)
        stored, tree = MemoryLedgers(), MemoryTree()
        ledgers = MessageLedgers()
        ledgers.open_ledger(3)
        blocks = []
        for epoch in range(1, epochs + 1):
            plan = FaultPlan(seed=seed, rates=rates or {Fault.LATE_ANSWER: 0.5}, seconds_max=0.02)
            plan.is_quiet = True
            client = FaultyLedgerClient(MemoryLedgerClient(stored), plan)
            metadata = FaultyMetadataStore(MemoryMetadataStore(tree), plan)
            recorder = Recorder(rng, texts, ledgers)
            await recorder.open(client, metadata, epoch)
            plan.is_quiet = False
            for _ in range(steps):
                await recorder.step()
            plan.is_quiet = True
            if rng.random() < 0.5:
                with contextlib.suppress(AckGateError):
                    await recorder.store.close()
            else:
                recorder.store.abandon(OwnershipError("crashed"))
            blocks.append(
                columns_of(recorder.events, topic=TOPIC, owner_epoch=epoch, first_sequence=0)
            )
            ledgers = copied(ledgers)
        return blocks

    return run_in_virtual_time(run())
