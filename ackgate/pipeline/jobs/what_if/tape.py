"""One stretch of recorded traffic of one subscription, digested once for all settings.

Pure values. What consumers did does not depend on settings here, so neither does what the cursor
holds in memory: after each call (an ACK command, a seek, a ledger trimmed) the tape says how many
ranges it had, and in which version. A replay applies the calls to a cursor of its own, many at once
between two of its writes.

    calls        0   1   2   3   4
    versions     7   8   9  12  13      of the recording, verified as the tape is made
    ranges       1   2   2   1   1
    entries      .---+---+---.  special: call 3 is a cumulative ack
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ackgate.cursor import Position

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ackgate.cursor import CursorMove, ManagedCursor, MessageLedgers
    from ackgate.persistence.deliveries.details import PersistFailed
    from ackgate.persistence.records.outcome import PersistOutcome

ONE_BY_ONE_MAX: Final = 16
"""So few acks are applied one by one: an array would cost more."""


@dataclass(frozen=True, slots=True)
class MixedAck:
    """Entries and parts of entries: a mask holds what stays unacked, None is the whole entry."""

    acks: Sequence[tuple[Position, int | None]]

    def __call__(self, on: Played) -> None:
        on.cursor.ack_mixed(self.acks)


@dataclass(frozen=True, slots=True)
class CumulativeAck:
    """Everything up to a position."""

    position: Position
    unacked_mask: int | None
    properties: Mapping[str, int] | None
    whole: Sequence[Position] = ()
    """Further entries that the same command acked: the rest of a batch."""

    def __call__(self, on: Played) -> None:
        on.cursor.ack_cumulative(
            self.position, unacked_mask=self.unacked_mask, properties=self.properties
        )
        for position in self.whole:
            on.cursor.ack(position)


@dataclass(frozen=True, slots=True)
class CursorMoved:
    """A seek, skip, clear or expiry."""

    reset: CursorMove

    def __call__(self, on: Played) -> None:
        self.reset.move(on.cursor)


@dataclass(frozen=True, slots=True)
class LedgerOpened:
    """The topic writes into a new ledger."""

    ledger_id: int

    def __call__(self, on: Played) -> None:
        self.apply_to(on.ledgers)

    def apply_to(self, ledgers: MessageLedgers) -> None:
        if ledgers.entry_count(self.ledger_id) is None:
            ledgers.open_ledger(self.ledger_id)


@dataclass(frozen=True, slots=True)
class LedgerClosed:
    """A ledger of the topic takes no more entries."""

    ledger_id: int
    entries: int

    def __call__(self, on: Played) -> None:
        self.apply_to(on.ledgers)

    def apply_to(self, ledgers: MessageLedgers) -> None:
        if ledgers.entry_count(self.ledger_id) is not None:
            grow(ledgers, self.ledger_id, self.entries)
            ledgers.close_ledger(self.ledger_id, self.entries)


@dataclass(frozen=True, slots=True)
class LedgersTrimmed:
    """Ledgers of the topic were deleted, all at one time."""

    ledger_ids: tuple[int, ...]

    def __call__(self, on: Played) -> None:
        """Note it, and let the cursor forget them."""
        self.apply_to(on.ledgers)
        for ledger_id in self.ledger_ids:
            on.cursor.ledger_trimmed(ledger_id)

    def apply_to(self, ledgers: MessageLedgers) -> None:
        for ledger_id in self.ledger_ids:
            ledgers.trim_ledger(ledger_id)


class Played(Protocol):
    """What a tape is made on, and played on."""

    cursor: ManagedCursor
    ledgers: MessageLedgers


class Special(Protocol):
    """A call that is more than acks of whole entries."""

    def __call__(self, on: Played) -> None: ...


class Growth(NamedTuple):
    """The open ledger had so many entries when a call came."""

    call: int
    ledger_id: int
    entries: int


class Recorded(NamedTuple):
    """A durable write of the recording."""

    sequence: int
    time_us: int
    calls: int
    """Calls of the tape before it was durable."""
    outcome: PersistOutcome


class RecordedFailure(NamedTuple):
    """An attempt to write to a store that failed."""

    sequence: int
    time_us: int
    calls: int
    store: str
    """ledger or metadata-store."""
    detail: PersistFailed


class GateChange(NamedTuple):
    """The recording's gate shut or opened."""

    sequence: int
    time_us: int
    calls: int
    is_shut: bool
    reasons: frozenset[str]


class TypeChange(NamedTuple):
    """A consumer came, and with it perhaps another type of the subscription."""

    time_us: int
    calls: int
    type_name: str | None


class BudgetChange(NamedTuple):
    """From here on a strict gate of this limit may (not) send another entry."""

    time_us: int
    calls: int
    is_left: bool


@dataclass(slots=True, eq=False)
class Tape:
    """The calls of one stretch of a recording, to be played to a cursor."""

    owner_epoch: int
    start_us: int
    end_us: int
    """Time of its last event."""
    times_us: NDArray[np.int64]
    versions: NDArray[np.int64]
    """Version of the ack state after each call."""
    sequences: NDArray[np.int64]
    ranges: NDArray[np.int64]
    batch_indexes: NDArray[np.int64]
    acked: NDArray[np.int64]
    """Entries acked as a whole so far, in memory."""
    offsets: NDArray[np.int64]
    """Call i acks entries ``offsets[i] : offsets[i + 1]`` of the two arrays below."""
    ledger_ids: NDArray[np.int64]
    entry_ids: NDArray[np.int64]
    specials: Mapping[int, Special]
    growths: Sequence[Growth]
    in_flight_us: NDArray[np.int64]
    in_flight: NDArray[np.int64]
    """From each of these times on: entries delivered and not acked."""
    reads_us: NDArray[np.int64]
    """When an entry was read for the first time and delivered."""
    delayed: NDArray[np.int64]
    """Entries that are to wait: published in us, ledger, entry, deliver at in ms; a row each."""
    mark_delete: Position
    """At its end."""
    outcomes: Sequence[Recorded] = ()
    failures: Sequence[RecordedFailure] = ()
    gate_changes: Sequence[GateChange] = ()
    type_changes: Sequence[TypeChange] = ()
    budgets: Mapping[int, Sequence[BudgetChange]] = field(default_factory=dict)
    """Limit of a strict gate -> when its budget ran out, and when there was one again."""
    cursor_bytes: int = 0
    """Most memory that the cursor took, as it estimates itself."""

    def __len__(self) -> int:
        return int(self.times_us.size)


class TapePlayer:
    """A cursor of one's own, and how far it is in the tape."""

    __slots__ = ("_at", "_growth", "_tape", "cursor", "ledgers")

    def __init__(self, cursor: ManagedCursor, ledgers: MessageLedgers) -> None:
        self.cursor = cursor
        self.ledgers = ledgers
        self._tape: Tape | None = None
        self._at = 0
        self._growth = 0

    @property
    def calls(self) -> int:
        """Calls of this tape that were played."""
        return self._at

    def load(self, tape: Tape) -> None:
        """The next stretch. The one before must have been played to its end."""
        self._tape, self._at, self._growth = tape, 0, 0

    def play(self, calls: int) -> None:
        """Up to so many calls of the tape: those that were not played yet."""
        tape = self._tape
        assert tape is not None
        specials = tape.specials
        if specials:
            while self._at < calls:
                stop = self._at
                while stop < calls and stop not in specials:
                    stop += 1
                self._ack(tape, self._at, stop)
                self._at = stop
                if stop < calls:
                    self._grow(tape, stop)
                    specials[stop](self)
                    self.cursor.catch_up(int(tape.versions[stop]))
                    self._at = stop + 1
        elif self._at < calls:
            self._ack(tape, self._at, calls)
            self._at = calls

    def finish(self) -> None:
        """To the end, with what the topic grew by."""
        tape = self._tape
        if tape is not None:
            self.play(len(tape))
            self._grow(tape, len(tape))

    def _ack(self, tape: Tape, start: int, stop: int) -> None:
        first, end = int(tape.offsets[start]), int(tape.offsets[stop])
        if start == stop:
            return
        self._grow(tape, stop - 1)
        cursor = self.cursor
        ledger_ids, entry_ids = tape.ledger_ids[first:end], tape.entry_ids[first:end]
        if end - first <= ONE_BY_ONE_MAX:
            from_pairs = zip(ledger_ids.tolist(), entry_ids.tolist(), strict=True)
            for pair in from_pairs:
                cursor.ack(Position(*pair))
        else:
            cursor.ack_many_pairs(ledger_ids, entry_ids)
        cursor.catch_up(int(tape.versions[stop - 1]))

    def _grow(self, tape: Tape, call: int) -> None:
        growths, at = tape.growths, self._growth
        while at < len(growths) and growths[at].call <= call:
            at += 1
        for growth in growths[self._growth : at]:
            grow(self.ledgers, growth.ledger_id, growth.entries)
        self._growth = at


def grow(ledgers: MessageLedgers, ledger_id: int, entries: int) -> None:
    """The open ledger has so many entries by now."""
    known = ledgers.entry_count(ledger_id)
    if known is not None and entries > known and ledger_id == ledgers.ledger_ids[-1]:
        ledgers.add_entries(ledger_id, entries - known)
