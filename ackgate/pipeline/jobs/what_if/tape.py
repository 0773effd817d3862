"""A tape: one stretch of a subscription's recorded traffic, digested once for all settings.

Pure values. In this model settings do not change what consumers do, and so not the cursor's state
in memory. The tape has its version and its number of ranges after each call (an ACK command, a
seek, a ledger trimmed). A replay applies the calls to a cursor of its own, many at once between two
writes.

    calls        0   1   2   3   4
    versions     7   8   9  12  13      as recorded; checked when the tape is made
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
"""Up to so many acks are applied one by one: an array would cost more."""


@dataclass(frozen=True, slots=True)
class MixedAck:
    """Acks of whole entries (None) and of parts: a mask of the indexes that stay unacked."""

    acks: Sequence[tuple[Position, int | None]]

    def __call__(self, on: Played) -> None:
        on.cursor.ack_mixed(self.acks)


@dataclass(frozen=True, slots=True)
class CumulativeAck:
    """Ack of everything up to and including a position."""

    position: Position
    unacked_mask: int | None
    properties: Mapping[str, int] | None
    whole: Sequence[Position] = ()
    """Further entries that the same command acked."""

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
    """The topic opened a new message ledger."""

    ledger_id: int

    def __call__(self, on: Played) -> None:
        self.apply_to(on.ledgers)

    def apply_to(self, ledgers: MessageLedgers) -> None:
        if ledgers.entry_count(self.ledger_id) is None:
            ledgers.open_ledger(self.ledger_id)


@dataclass(frozen=True, slots=True)
class LedgerClosed:
    """The topic closed a message ledger, with this number of entries."""

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
    """The topic deleted message ledgers, all at one time."""

    ledger_ids: tuple[int, ...]

    def __call__(self, on: Played) -> None:
        """Trim the ledgers, and make the cursor forget them."""
        self.apply_to(on.ledgers)
        for ledger_id in self.ledger_ids:
            on.cursor.ledger_trimmed(ledger_id)

    def apply_to(self, ledgers: MessageLedgers) -> None:
        for ledger_id in self.ledger_ids:
            ledgers.trim_ledger(ledger_id)


class Played(Protocol):
    """A cursor with its topic's ledgers, which calls of a tape change."""

    cursor: ManagedCursor
    ledgers: MessageLedgers


class Special(Protocol):
    """A call other than individual acks of whole entries; applies itself to a cursor."""

    def __call__(self, on: Played) -> None: ...


class Growth(NamedTuple):
    """Entry count of the open message ledger when a call was made."""

    call: int
    ledger_id: int
    entries: int


class Recorded(NamedTuple):
    """A durable write of the recording."""

    sequence: int
    time_us: int
    calls: int
    """Number of the tape's calls before it was durable."""
    outcome: PersistOutcome


class RecordedFailure(NamedTuple):
    """A failed write attempt of the recording."""

    sequence: int
    time_us: int
    calls: int
    store: str
    """``ledger`` or ``metadata-store``."""
    detail: PersistFailed


class GateChange(NamedTuple):
    """A change of the recorded gate: it shut or opened."""

    sequence: int
    time_us: int
    calls: int
    is_shut: bool
    reasons: frozenset[str]


class TypeChange(NamedTuple):
    """A consumer was added, which may change the subscription's type."""

    time_us: int
    calls: int
    type_name: str | None


class BudgetChange(NamedTuple):
    """A strict gate's entry budget ran out, or became available again."""

    time_us: int
    calls: int
    is_left: bool


@dataclass(slots=True, eq=False)
class Tape:
    """The calls of one stretch of a recording, and what else happened in it. Times in us."""

    owner_epoch: int
    start_us: int
    end_us: int
    """Time of the tape's last event."""
    times_us: NDArray[np.int64]
    versions: NDArray[np.int64]
    """Version of the ack state after each call."""
    sequences: NDArray[np.int64]
    ranges: NDArray[np.int64]
    batch_indexes: NDArray[np.int64]
    acked: NDArray[np.int64]
    """Entries wholly acked in memory after each call, since the life began."""
    offsets: NDArray[np.int64]
    """Call i acks entries ``offsets[i] : offsets[i + 1]`` of the two arrays below."""
    ledger_ids: NDArray[np.int64]
    entry_ids: NDArray[np.int64]
    specials: Mapping[int, Special]
    growths: Sequence[Growth]
    in_flight_us: NDArray[np.int64]
    in_flight: NDArray[np.int64]
    """Entries delivered and not acked, from each time of `in_flight_us` on."""
    reads_us: NDArray[np.int64]
    """Times at which an entry was delivered after its first read."""
    delayed: NDArray[np.int64]
    """A row for each delayed entry: time published (us), ledger id, entry id, deliver-at (ms)."""
    mark_delete: Position
    """Mark-delete position at the tape's end."""
    outcomes: Sequence[Recorded] = ()
    failures: Sequence[RecordedFailure] = ()
    gate_changes: Sequence[GateChange] = ()
    type_changes: Sequence[TypeChange] = ()
    budgets: Mapping[int, Sequence[BudgetChange]] = field(default_factory=dict)
    """Limit of a strict gate -> changes of its budget."""
    cursor_bytes: int = 0
    """Highest memory estimate of the cursor in this life so far, in bytes."""

    def __len__(self) -> int:
        return int(self.times_us.size)


class TapePlayer:
    """Plays tapes to a cursor of its own, in steps."""

    __slots__ = ("_at", "_growth", "_tape", "cursor", "ledgers")

    def __init__(self, cursor: ManagedCursor, ledgers: MessageLedgers) -> None:
        self.cursor = cursor
        self.ledgers = ledgers
        self._tape: Tape | None = None
        self._at = 0
        self._growth = 0

    @property
    def calls(self) -> int:
        """Number of calls played of the present tape."""
        return self._at

    def load(self, tape: Tape) -> None:
        """Begin the next tape. The one before must have been played to its end."""
        self._tape, self._at, self._growth = tape, 0, 0

    def play(self, calls: int) -> None:
        """Play on until the first `calls` calls of the tape are played."""
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
        """Play the rest of the tape, and add the entries published after its last call."""
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
    """Raise the entry count of the newest ledger to `entries`; leave other ledgers alone."""
    known = ledgers.entry_count(ledger_id)
    if known is not None and entries > known and ledger_id == ledgers.ledger_ids[-1]:
        ledgers.add_entries(ledger_id, entries - known)
