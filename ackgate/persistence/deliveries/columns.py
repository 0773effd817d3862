"""Events of the delivery journal: one as a row, many as the columns that a block is stored as.

Pure values. The pipeline's table ``delivery_journal`` describes the columns. A block has one topic,
owner's epoch and range of sequence numbers.

    rows      published 7:0 producer p   dispatched 7:0 consumer c#1   acked 7:0 consumer c#1
    columns   kinds     0 4 5            ledger_id  7 7 7              entry_id   0 0 0
              producer  0 - -  of (p)    consumer   - 0 0  of (c#1)
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import numpy as np

from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

WordT = TypeVar("WordT", str, bytes)


class EventKind(enum.StrEnum):
    """Kinds of events, with their stored names."""

    OPENED = "opened"
    """The topic was opened: always the first event of an epoch."""
    CONFIGURED = "configured"
    """Settings changed while it was open."""
    LEDGER_OPENED = "ledger_opened"
    LEDGER_CLOSED = "ledger_closed"
    LEDGER_TRIMMED = "ledger_trimmed"
    PUBLISHED = "published"
    """The producer got the receipt of its entry."""
    SUBSCRIBED = "subscribed"
    UNSUBSCRIBED = "unsubscribed"
    RECOVERED = "recovered"
    CONSUMER_ADDED = "consumer_added"
    CONSUMER_REMOVED = "consumer_removed"
    DISPATCHED = "dispatched"
    ACKED = "acked"
    NACKED = "nacked"
    RESET = "reset"
    RECEIPT = "receipt"
    """The consumer got the receipt of its acks."""
    GATE_SHUT = "gate_shut"
    GATE_OPENED = "gate_opened"
    PERSISTED = "persisted"
    PERSIST_FAILED = "persist_failed"
    DROPPED = "dropped"
    """So many events were not written down, and are missing at this place."""


KINDS: Final = tuple(EventKind)
_KIND_CODES: Final = {kind: code for code, kind in enumerate(KINDS)}


class DeliveryEvent(NamedTuple):
    """One event. What does not concern its kind is None."""

    kind: EventKind
    time_us: int
    subscription: str | None = None
    consumer: str | None = None
    producer: str | None = None
    ledger_id: int | None = None
    entry_id: int | None = None
    batch_size: int | None = None
    unacked_indexes: bytes | None = None
    is_cumulative: bool | None = None
    redelivery_count: int | None = None
    reason: str | None = None
    version: int | None = None
    key: str | None = None
    publish_time_ms: int | None = None
    deliver_at_ms: int | None = None
    entry_bytes: int | None = None
    detail: str | None = None
    state: bytes | None = None


NUMBER_COLUMNS: Final = (
    "time_us",
    "ledger_id",
    "entry_id",
    "batch_size",
    "is_cumulative",
    "redelivery_count",
    "version",
    "publish_time_ms",
    "deliver_at_ms",
    "entry_bytes",
)
TEXT_COLUMNS: Final = ("subscription", "consumer", "producer", "reason", "key", "detail")
BLOB_COLUMNS: Final = ("unacked_indexes", "state")


@dataclass(frozen=True, slots=True, eq=False)
class NumberColumn:
    """Whole numbers, some of them null. Truth values are 0 and 1."""

    values: NDArray[np.int64]
    """0 where there is none."""
    is_set: NDArray[np.bool_]

    def take(self, rows: NDArray[np.intp] | slice) -> NumberColumn:
        """These rows, in this order."""
        return NumberColumn(self.values[rows], self.is_set[rows])


@dataclass(frozen=True, slots=True, eq=False)
class WordColumn(Generic[WordT]):
    """Texts or bytes, some of them null, by a dictionary."""

    codes: NDArray[np.int64]
    """Index into `words`; -1: null."""
    words: tuple[WordT, ...]

    def take(self, rows: NDArray[np.intp] | slice) -> WordColumn[WordT]:
        """These rows, in this order, with the words that they need."""
        codes = self.codes[rows]
        used = np.unique(codes[codes >= 0])
        if used.size == len(self.words):
            return WordColumn(codes, self.words)
        kept = np.where(codes >= 0, np.searchsorted(used, codes), -1).astype(np.int64)
        return WordColumn(kept, tuple(self.words[code] for code in used.tolist()))


@dataclass(frozen=True, slots=True, eq=False)
class EventColumns:
    """One block of events of one topic, in the order in which they happened.

    A column that is missing from its mapping is null everywhere.
    """

    topic: str
    owner_epoch: int
    first_sequence: int
    kinds: NDArray[np.int64]
    """Indexes into `KINDS`."""
    numbers: Mapping[str, NumberColumn] = field(default_factory=dict)
    texts: Mapping[str, WordColumn[str]] = field(default_factory=dict)
    blobs: Mapping[str, WordColumn[bytes]] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.kinds.size)

    @property
    def sequences(self) -> NDArray[np.int64]:
        """Number of each event in its epoch."""
        return np.arange(self.first_sequence, self.first_sequence + len(self), dtype=np.int64)

    def part(self, start: int, stop: int) -> EventColumns:
        rows = slice(start, stop)
        return replace(
            self,
            first_sequence=self.first_sequence + start,
            kinds=self.kinds[rows],
            numbers={name: column.take(rows) for name, column in self.numbers.items()},
            texts={name: column.take(rows) for name, column in self.texts.items()},
            blobs={name: column.take(rows) for name, column in self.blobs.items()},
        )

    def rows(self) -> list[DeliveryEvent]:
        """The events one by one: for a few of them."""
        columns: dict[str, list[Any]] = {}
        for name, numbers in self.numbers.items():
            pairs = zip(numbers.values.tolist(), numbers.is_set.tolist(), strict=True)
            convert = bool if name == "is_cumulative" else int
            columns[name] = [convert(value) if is_set else None for value, is_set in pairs]
        dictionaries: dict[str, WordColumn[Any]] = {**self.texts, **self.blobs}
        for name, column in dictionaries.items():
            with_null = (*column.words, None)
            columns[name] = [with_null[code] for code in column.codes.tolist()]
        columns["kind"] = [KINDS[code] for code in self.kinds.tolist()]
        nulls = [None] * len(self)
        ordered = [columns.get(name, nulls) for name in DeliveryEvent._fields]
        return [DeliveryEvent(*row) for row in zip(*ordered, strict=True)]


def columns_of(
    events: Sequence[DeliveryEvent], *, topic: str, owner_epoch: int, first_sequence: int
) -> EventColumns:
    """The block of these events. Raises `CallerError` when there are none."""
    if not events:
        raise CallerError("a block holds at least one event")
    lists = dict(zip(DeliveryEvent._fields, zip(*events, strict=True), strict=True))
    size = len(events)
    kinds = np.fromiter(map(_KIND_CODES.__getitem__, lists["kind"]), np.int64, size)
    numbers = {name: _numbers(lists[name]) for name in NUMBER_COLUMNS if _is_used(lists[name])}
    texts = {name: _words(lists[name]) for name in TEXT_COLUMNS if _is_used(lists[name])}
    blobs = {name: _words(lists[name]) for name in BLOB_COLUMNS if _is_used(lists[name])}
    return EventColumns(topic, owner_epoch, first_sequence, kinds, numbers, texts, blobs)


def _is_used(values: Sequence[object]) -> bool:
    return values.count(None) < len(values)


def _numbers(values: Sequence[int | None]) -> NumberColumn:
    size = len(values)
    if values.count(None) == 0:
        return NumberColumn(np.array(values, dtype=np.int64), np.ones(size, dtype=np.bool_))
    is_set = np.fromiter((value is not None for value in values), np.bool_, size)
    return NumberColumn(np.fromiter((value or 0 for value in values), np.int64, size), is_set)


def _words(values: Sequence[Any]) -> WordColumn[Any]:
    codes: dict[Any, int] = {None: -1}
    for value in values:
        if value not in codes:
            codes[value] = len(codes) - 1
    array = np.fromiter(map(codes.__getitem__, values), np.int64, len(values))
    del codes[None]
    return WordColumn(array, tuple(codes))
