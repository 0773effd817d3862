"""Plays the recorded traffic to a cursor, call by call, once for all settings.

Pure. Makes every call as the broker made it, and compares the cursor's version after it with the
recorded one. The result is a `Tape`, which replays under any settings use.

    events   published 7:0   acked 7:0 (1 of 2)   acked 7:1   persisted   dispatched   ...
    tape     growth          call 0 ------------------'       outcome     in flight
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ackgate.cursor import MessageLedgers, Position, PositionSet
from ackgate.errors import AckGateError
from ackgate.persistence.deliveries.columns import KINDS, EventKind
from ackgate.persistence.deliveries.details import (
    AckedCall,
    PersistFailed,
    decode_detail,
    detail_of,
)
from ackgate.persistence.records.outcome import PersistOutcome
from ackgate.pipeline.jobs.what_if.differences import Difference
from ackgate.pipeline.jobs.what_if.tape import (
    BudgetChange,
    CumulativeAck,
    CursorMoved,
    GateChange,
    Growth,
    LedgerClosed,
    LedgerOpened,
    LedgersTrimmed,
    MixedAck,
    Recorded,
    RecordedFailure,
    Tape,
    TypeChange,
    grow,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackgate.cursor import ManagedCursor
    from ackgate.persistence.deliveries.details import Opened
    from ackgate.pipeline.jobs.what_if.events import Events
    from ackgate.pipeline.jobs.what_if.tape import Special


BYTES_LOOK_CALLS: Final = 256
"""Number of calls after which the cursor's memory is estimated again."""


class Walk:
    """One life of a subscription, from its recovery or creation to its end."""

    def __init__(
        self,
        cursor: ManagedCursor,
        ledgers: MessageLedgers,
        *,
        start_us: int,
        strict_limits: Sequence[int] = (),
    ) -> None:
        self.cursor = cursor
        self.ledgers = ledgers
        self.until_us = start_us
        """End of the last tape made, in us."""
        self.read_us: int | None = None
        """Time in us of the last delivery of a read that may go on; None: no read goes on."""
        self.differences: list[Difference] = []
        self.in_flight = PositionSet()
        self.acked = 0
        self.budgets = dict.fromkeys(strict_limits, True)
        self.calls_seen = 0
        self.cursor_bytes = cursor.byte_estimate
        self.details: dict[str, Any] = {}

    def digest(self, events: Events, *, is_last: bool = True) -> tuple[Tape, int]:
        """Return the tape of the next events, and how many of the events it holds.

        It holds all, unless the last ACK command is incomplete and more events follow (not
        `is_last`).
        """
        return _Digesting(self, events, is_last=is_last).tape()

    def watch_budgets(self, strict_limits: Sequence[int]) -> None:
        """Let the next tapes have the changes of budget of strict gates with these limits."""
        self.budgets = {limit: self.budget_is_left(limit) for limit in strict_limits}

    def budget_is_left(self, limit: int) -> bool:
        """Whether a strict gate of this limit may send another entry."""
        return self.cursor.entry_budget(limit, entries_enough=1) > 0


class _Digesting:
    """One tape in the making."""

    def __init__(self, walk: Walk, events: Events, *, is_last: bool) -> None:
        self._walk = walk
        self._events = events
        self._is_last = is_last
        self._calls: list[tuple[int, int, int, int, int, int]] = []
        self._offsets = [0]
        self._ledger_ids: list[int] = []
        self._entry_ids: list[int] = []
        self._specials: dict[int, Special] = {}
        self._growths: list[Growth] = []
        self._flights: list[tuple[int, int]] = []
        self._unseen: dict[int, int] = {}
        """Ledger id -> its entry count, not yet added to the ledgers (`_see`)."""
        self._reads: list[int] = []
        self._delayed: list[tuple[int, int, int, int]] = []
        self._outcomes: list[Recorded] = []
        self._failures: list[RecordedFailure] = []
        self._gate_changes: list[GateChange] = []
        self._type_changes: list[TypeChange] = []
        self._budgets: dict[int, list[BudgetChange]] = {limit: [] for limit in walk.budgets}
        self._trimmed: list[int] = []
        self._times = events.numbers["time_us"].tolist()
        self._ledgers = events.numbers["ledger_id"].tolist()
        self._entries = events.numbers["entry_id"].tolist()
        self._versions = events.numbers["version"].tolist()
        self._deliver_at = events.numbers["deliver_at_ms"].tolist()
        self._sequences = events.sequences.tolist()

    def tape(self) -> tuple[Tape, int]:
        handlers: dict[EventKind, Callable[[int], None]] = {
            EventKind.PUBLISHED: self._published,
            EventKind.LEDGER_OPENED: self._ledger_opened,
            EventKind.LEDGER_CLOSED: self._ledger_closed,
            EventKind.LEDGER_TRIMMED: self._ledger_trimmed,
            EventKind.RESET: self._reset,
            EventKind.DISPATCHED: self._dispatched,
            EventKind.NACKED: self._nacked,
            EventKind.PERSISTED: self._persisted,
            EventKind.PERSIST_FAILED: self._persist_failed,
            EventKind.GATE_SHUT: self._gate,
            EventKind.GATE_OPENED: self._gate,
            EventKind.CONSUMER_ADDED: self._typed,
        }
        by_code = [handlers.get(kind) for kind in KINDS]
        code_of_acks = KINDS.index(EventKind.ACKED)
        walk, at, kinds = self._walk, 0, self._events.kinds.tolist()
        size = len(kinds)
        while at < size:
            handler = by_code[kinds[at]]
            if walk.read_us is not None and not self._events.is_normal[at]:
                # The read is over. Budgets do not matter during a read: all of it was allowed.
                self._look_at_budgets(walk.read_us)
                walk.read_us = None
            if kinds[at] == code_of_acks:
                behind = self._ack_call(at, kinds)
                if behind is None:
                    break
                at = behind
            elif handler is None:
                at += 1
            else:
                handler(at)
                at += 1
        return self._made(at), at

    # ------------------------------------------------------------------ calls

    def _called(self, at: int, *, special: Special | None = None) -> None:
        """Add a call to the tape after it was made on the cursor; `at` is its last event."""
        walk = self._walk
        cursor = walk.cursor
        if special is not None:
            self._specials[len(self._calls)] = special
        self._offsets.append(len(self._ledger_ids))
        self._calls.append(
            (
                self._times[at],
                cursor.version,
                self._sequences[at],
                cursor.range_count,
                cursor.partly_acked_count,
                walk.acked,
            )
        )
        walk.calls_seen += 1
        if walk.calls_seen % BYTES_LOOK_CALLS == 0:
            walk.cursor_bytes = max(walk.cursor_bytes, cursor.byte_estimate)
        if not isinstance(special, LedgerOpened | LedgerClosed):  # they cost no budget
            self._look_at_budgets(self._times[at])

    def _look_at_budgets(self, now_us: int) -> None:
        walk = self._walk
        if walk.budgets:
            self._see()
        for limit, was_left in walk.budgets.items():
            is_left = walk.budget_is_left(limit)
            if is_left != was_left:
                walk.budgets[limit] = is_left
                change = BudgetChange(now_us, len(self._calls), is_left)
                self._budgets[limit].append(change)

    def _ack_call(self, at: int, kinds: list[int]) -> int | None:
        """Apply one ACK command; return the index after its events, None if it is incomplete."""
        details = self._events.words["detail"]
        about = self._acked_detail(details[at]) if at in details else _ONE
        behind = at + 1
        while behind - at < about.entries and behind < len(kinds) and kinds[behind] == kinds[at]:
            behind += 1
        if behind - at < about.entries and behind == len(kinds) and not self._is_last:
            return None
        self._apply(list(range(at, behind)), about)
        return behind

    def _apply(self, places: list[int], about: AckedCall) -> None:
        walk, last = self._walk, places[-1]
        self._see()
        masks = self._events.words["unacked_indexes"]
        positions = [Position(self._ledgers[at], self._entries[at]) for at in places]
        for ledger_id, entry_id in positions:
            self._grow(ledger_id, entry_id + 1)
        cursor = walk.cursor
        special: Special | None = None
        try:
            if self._events.numbers["is_cumulative"][places[0]] == 1:
                mask = _mask(masks.get(places[0]))
                special = CumulativeAck(positions[0], mask, about.properties, positions[1:])
                self._count(special)
                walk.in_flight.take_through(
                    positions[0] if mask is None else walk.ledgers.previous(positions[0])
                )
            elif any(at in masks for at in places):
                acks = [(p, _mask(masks.get(at))) for p, at in zip(positions, places, strict=True)]
                special = MixedAck(acks)
                self._count(special)
            elif about.at_once:
                pairs = np.array(positions, dtype=np.int64)
                walk.acked += cursor.ack_many_pairs(pairs[:, 0], pairs[:, 1])
            else:
                walk.acked += sum(map(cursor.ack, positions))
        except AckGateError as error:
            self._differs(last, "ack", "applied", str(error))
            special = None
        else:
            if special is None:
                self._ledger_ids += [position.ledger_id for position in positions]
                self._entry_ids += [position.entry_id for position in positions]
        for position, at in zip(positions, places, strict=True):
            if at not in masks:
                walk.in_flight.discard(*position)
        self._flew(last)
        self._check_version(last)
        self._called(last, special=special)

    def _count(self, special: Special) -> None:
        """Apply the call; add the number of entries by which the backlog shrank to `walk.acked`."""
        walk = self._walk
        self._see()
        before = walk.cursor.backlog_entries
        special(walk)
        walk.acked += before - walk.cursor.backlog_entries

    def _reset(self, at: int) -> None:
        walk, words = self._walk, self._events.words
        reset = detail_of(EventKind.RESET, words["reason"].get(at), words["detail"].get(at))
        move = CursorMoved(reset)  # type: ignore[arg-type]  # detail_of gives resets for this kind
        self._count(move)
        mark_delete = walk.cursor.mark_delete
        if mark_delete != move.reset.mark_delete:
            self._differs(at, "mark_delete", str(move.reset.mark_delete), str(mark_delete))
        walk.in_flight.take_through(mark_delete)
        if words["reason"].get(at) == "seek":
            walk.in_flight.clear()
        self._flew(at)
        self._check_version(at)
        self._called(at, special=move)

    def _check_version(self, at: int) -> None:
        """Compare the cursor's version with the recorded one.

        If it is lower, raise it to that: one difference must not cause thousands.
        """
        recorded, cursor = self._versions[at], self._walk.cursor
        if recorded != cursor.version:
            self._differs(at, "version", str(recorded), str(cursor.version))
            if recorded > cursor.version:
                cursor.catch_up(recorded)

    # --------------------------------------------------------------- the topic

    def _published(self, at: int) -> None:
        deliver_at_ms = self._deliver_at[at]
        if deliver_at_ms > 0:
            place = (self._times[at], self._ledgers[at], self._entries[at], deliver_at_ms)
            self._delayed.append(place)
        self._unseen[self._ledgers[at]] = self._entries[at] + 1

    def _see(self) -> None:
        """Add published entries to the ledgers. Called before anything looks at the ledgers."""
        if self._unseen:
            for ledger_id, entries in self._unseen.items():
                self._grow(ledger_id, entries)
            self._unseen.clear()

    def _grow(self, ledger_id: int, entries: int) -> None:
        ledgers = self._walk.ledgers
        known = ledgers.entry_count(ledger_id)
        if known is not None and entries > known:
            grow(ledgers, ledger_id, entries)
            growths, call = self._growths, len(self._calls)
            if growths and growths[-1][:2] == (call, ledger_id):
                growths.pop()
            growths.append(Growth(call, ledger_id, entries))

    def _ledger_opened(self, at: int) -> None:
        self._on_ledger(at, LedgerOpened(self._ledgers[at]))

    def _ledger_closed(self, at: int) -> None:
        self._on_ledger(at, LedgerClosed(self._ledgers[at], self._entries[at] + 1))

    def _ledger_trimmed(self, at: int) -> None:
        """Collect ledgers trimmed at the same time; at the last of them, apply one call."""
        trimmed = self._trimmed
        trimmed.append(self._ledgers[at])
        kinds, behind = self._events.kinds, at + 1
        is_last = behind == len(kinds) or kinds[behind] != kinds[at]
        if is_last or self._times[behind] != self._times[at]:
            self._trimmed = []
            self._on_ledger(at, LedgersTrimmed(tuple(trimmed)))

    def _on_ledger(self, at: int, special: LedgerOpened | LedgerClosed | LedgersTrimmed) -> None:
        self._see()
        special(self._walk)
        self._called(at, special=special)

    # -------------------------------------------------------------- deliveries

    def _dispatched(self, at: int) -> None:
        walk = self._walk
        position = Position(self._ledgers[at], self._entries[at])
        walk.in_flight.add(*position)
        self._flew(at)
        if self._events.is_normal[at]:
            self._reads.append(self._times[at])
            if walk.budgets:
                self._see()
                self._grow(position.ledger_id, position.entry_id + 1)
                walk.cursor.seek(Position(position.ledger_id, position.entry_id + 1))
                walk.read_us = self._times[at]

    def _nacked(self, at: int) -> None:
        self._walk.in_flight.discard(self._ledgers[at], self._entries[at])
        self._flew(at)

    def _flew(self, at: int) -> None:
        count, flights = self._walk.in_flight.entry_count, self._flights
        if not flights or flights[-1][1] != count:
            flights.append((self._times[at], count))

    # ----------------------------------------------------- what the broker did

    def _persisted(self, at: int) -> None:
        outcome = decode_detail(PersistOutcome, self._events.words["detail"].get(at))
        self._outcomes.append(
            Recorded(self._sequences[at], self._times[at], len(self._calls), outcome)
        )

    def _persist_failed(self, at: int) -> None:
        words = self._events.words
        detail = decode_detail(PersistFailed, words["detail"].get(at))
        store = words["reason"].get(at) or "ledger"
        self._failures.append(
            RecordedFailure(self._sequences[at], self._times[at], len(self._calls), store, detail)
        )

    def _gate(self, at: int) -> None:
        # The broker computes the budget in each round of dispatch; this may be its only trace.
        self._look_at_budgets(self._times[at])
        reasons = self._events.words["reason"].get(at) or ""
        self._gate_changes.append(
            GateChange(
                self._sequences[at],
                self._times[at],
                len(self._calls),
                KINDS[self._events.kinds[at]] is EventKind.GATE_SHUT,
                frozenset(part.strip() for part in reasons.split(",") if part.strip()),
            )
        )

    def _typed(self, at: int) -> None:
        type_name = self._events.words["reason"].get(at)
        self._type_changes.append(TypeChange(self._times[at], len(self._calls), type_name))

    def _acked_detail(self, text: str) -> AckedCall:
        known = self._walk.details
        found = known.get(text)
        if found is None:
            found = decode_detail(AckedCall, text)
            if len(known) < 4096:
                known[text] = found
        return found

    def _differs(self, at: int, field: str, recorded: str, replayed: str) -> None:
        self._walk.differences.append(Difference(self._sequences[at], field, recorded, replayed))

    def _made(self, event_count: int) -> Tape:
        walk = self._walk
        self._see()
        start_us = walk.until_us
        if event_count:
            walk.until_us = max(start_us, self._times[event_count - 1])
        calls = np.array(self._calls, dtype=np.int64).reshape(-1, 6)
        flights = np.array(self._flights, dtype=np.int64).reshape(-1, 2)
        walk.cursor_bytes = max(walk.cursor_bytes, walk.cursor.byte_estimate)
        return Tape(
            owner_epoch=self._events.owner_epoch,
            start_us=start_us,
            end_us=walk.until_us,
            times_us=calls[:, 0],
            versions=calls[:, 1],
            sequences=calls[:, 2],
            ranges=calls[:, 3],
            batch_indexes=calls[:, 4],
            acked=calls[:, 5],
            offsets=np.array(self._offsets, dtype=np.int64),
            ledger_ids=np.array(self._ledger_ids, dtype=np.int64),
            entry_ids=np.array(self._entry_ids, dtype=np.int64),
            specials=self._specials,
            growths=self._growths,
            in_flight_us=flights[:, 0],
            in_flight=flights[:, 1],
            reads_us=np.array(self._reads, dtype=np.int64),
            delayed=np.array(self._delayed, dtype=np.int64).reshape(-1, 4),
            mark_delete=walk.cursor.mark_delete,
            outcomes=self._outcomes,
            failures=self._failures,
            gate_changes=self._gate_changes,
            type_changes=self._type_changes,
            budgets=self._budgets,
            cursor_bytes=walk.cursor_bytes,
        )


_ONE: Final = AckedCall()


def _mask(unacked_indexes: bytes | None) -> int | None:
    return None if unacked_indexes is None else int.from_bytes(unacked_indexes, "little")


def ledgers_of(opened: Opened) -> MessageLedgers:
    """Return the topic's ledgers as they were when it was opened."""
    ledgers = MessageLedgers()
    for ledger in opened.ledgers:
        ledgers.open_ledger(ledger.ledger_id)
        if ledger.is_open:
            ledgers.add_entries(ledger.ledger_id, ledger.entries)
        else:
            ledgers.close_ledger(ledger.ledger_id, ledger.entries)
    return ledgers
