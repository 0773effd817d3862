"""Many entries of a ledger, as arrays of their places in the bytes of its blocks, without copies.

Pure. Blocks are read side by side: step k finds the k-th entry of every block at once, since where an
entry begins is known only when the one before it has been measured::

    block 0    entry 0 | entry 1 | entry 2 | ...
    block 1    entry 219 | entry 220 | ...
    block 2    entry 437 | entry 438 | ...
    step            0          1         2

Numbers are measured eight bytes at a time: a byte below 128 ends one. All checks come at
the end: every entry must match its CRC32C, which covers its numbers, and every block must end where its
last entry does. Otherwise the result is None, and the caller reads one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from google_crc32c import value as crc32c

from ackgate.persistence.bookies.avro_container import encode_long
from ackgate.persistence.bookies.entry_codec import CRC_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ackgate.persistence.bookies.entry_codec import StoredEntry

    Ints = npt.NDArray[np.int64]
    Words = npt.NDArray[np.uint64]
    Sizes = npt.NDArray[np.uint8]

FIRST_ENTRIES: Final = 1024
"""Entries in the first batch of a read."""

ENTRIES_MAX: Final = 16_384
BATCH_BYTES: Final = 8 * 1024 * 1024
"""A batch is about that large, or has `ENTRIES_MAX` entries; bounds the memory of a task."""

PADDING: Final = bytes(64)
"""Follows the bytes, so that numbers at their end can be measured eight bytes at a time."""

_HIGH_BITS: Final = np.uint64(0x8080808080808080)
_ONE: Final = np.uint64(1)
_NUMBER_BYTES_MAX: Final = 8
"""A longer one (of 2^55 or more) is out of the ordinary."""

_ENTRY_BYTES_MIN: Final = 10
"""Four numbers, a CRC32C, and two lengths. A count that promises more is not believed."""

_ROOM_PER_ENTRY: Final = 4
_ROOM: Final = 65_536
"""Places in the table of blocks and steps: few blocks with many entries would make it large."""

_PAST_NUMBERS: Final = 16
"""Bytes read after an entry's numbers: the digest, and a word for the payload's length."""


class EntryColumns(NamedTuple):
    """Entries of one ledger, in the order of their file."""

    entry_ids: Ints
    data: bytes
    """What payloads are spans of; at least `PADDING` follows the last one."""
    starts: Ints
    stops: Ints

    @property
    def size(self) -> int:
        return int((self.stops - self.starts).sum())

    @property
    def payloads(self) -> list[bytes]:
        """A copy of each entry's payload."""
        data = self.data
        return [
            data[start:stop]
            for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        ]

    def part(self, first: int, behind: int) -> EntryColumns:
        """Those at these places; shares the bytes."""
        some = slice(first, behind)
        return EntryColumns(self.entry_ids[some], self.data, self.starts[some], self.stops[some])


def next_entries(entries: int, size: int) -> int:
    """How many entries to read after a batch of so many, which had so many bytes."""
    return max(1, min(ENTRIES_MAX, 2 * entries, entries * BATCH_BYTES // max(size, 1)))


def columns_of(entries: Sequence[StoredEntry]) -> EntryColumns:
    """Entries that were read one by one."""
    return columns_of_payloads(
        np.array([entry.entry_id for entry in entries], np.int64),
        [entry.payload for entry in entries],
    )


def columns_of_payloads(entry_ids: Ints, payloads: Sequence[bytes]) -> EntryColumns:
    """Payloads one after the other."""
    stops = np.cumsum(np.fromiter(map(len, payloads), np.int64, len(payloads)))
    starts = np.zeros(len(payloads), np.int64)
    starts[1:] = stops[:-1]
    return EntryColumns(entry_ids, b"".join([*payloads, PADDING]), starts, stops)


def joined(batches: Sequence[EntryColumns]) -> EntryColumns:
    """Several in a row as one; none of them is empty."""
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return columns_of_payloads(np.zeros(0, np.int64), [])
    firsts = [int(batch.starts[0]) for batch in batches]
    pieces = [
        batch.data[i : int(batch.stops[-1])] for batch, i in zip(batches, firsts, strict=True)
    ]
    places = np.cumsum([0, *map(len, pieces)])[:-1]
    placed = list(zip(batches, (places - firsts).tolist(), strict=True))
    return EntryColumns(
        np.concatenate([batch.entry_ids for batch in batches]),
        b"".join([*pieces, PADDING]),
        np.concatenate([batch.starts + shift for batch, shift in placed]),
        np.concatenate([batch.stops + shift for batch, shift in placed]),
    )


def decode_side_by_side(
    data: bytes, starts: Sequence[int], sizes: Sequence[int], counts: Sequence[int], ledger_id: int
) -> EntryColumns | None:
    """The entries of blocks of this ledger with CRC32C digests, all of them verified.

    Of each block: where its records begin in `data`, their bytes, their count. `data` ends with
    `PADDING`. None: something is out of the ordinary, or damaged.
    """
    ledger_size = len(encode_long(ledger_id))
    total, room = sum(counts), len(counts) * max(counts)
    if total * _ENTRY_BYTES_MIN > sum(sizes) or room > _ROOM_PER_ENTRY * total + _ROOM:
        return None
    blocks = (np.array(each, np.int64) for each in (starts, sizes, counts))
    spans = _measured(data, *blocks, ledger_size=ledger_size)
    if spans is None or not _is_of(data, spans, ledger_id) or not _fits_digests(data, spans):
        return None
    words = _words(data)
    at = spans.number_starts + ledger_size
    entry_ids = _values(words[at], _number_sizes(words[at]))
    if (entry_ids & 1).any() or (np.diff(entry_ids) <= 0).any():  # negative, or out of order
        return None
    return EntryColumns(entry_ids >> 1, data, spans.starts, spans.stops)


class _Spans(NamedTuple):
    """The four numbers and the payload of every entry, as spans."""

    number_starts: Ints
    number_stops: Ints
    starts: Ints
    stops: Ints


def _words(data: bytes) -> Words:
    """The eight bytes from each byte on, as a number."""
    return np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))


def _measured(
    data: bytes, starts: Ints, sizes: Ints, counts: Ints, *, ledger_size: int
) -> _Spans | None:
    """None when a block does not end with its last entry."""
    words = _words(data)
    steps, last = int(counts.max()), len(words) - 1
    # Blocks with many entries first: those that are over drop out at the end of the row.
    order = np.argsort(-counts, kind="stable")
    left = np.searchsorted(-counts[order], -np.arange(steps), side="left")
    shape = (len(counts), steps)
    found = [np.zeros(shape, np.int64) for _ in range(4)]
    at = starts[order]
    for step, blocks in enumerate(left.tolist()):
        at = at[:blocks]
        found[0][:blocks, step] = at
        at = at + ledger_size
        for _ in range(3):  # entry id, last add confirmed, confirmed bytes
            at = at + _number_sizes(words[np.minimum(at, last)])
        found[1][:blocks, step] = at
        at = at + (1 + CRC_BYTES)
        word = words[np.minimum(at, last)]
        length_sizes = _number_sizes(word)
        at = at + length_sizes
        found[2][:blocks, step] = at
        at = at + (_values(word, length_sizes) >> 1)
        found[3][:blocks, step] = at
    ends = found[3][np.arange(len(order)), counts[order] - 1]
    if (ends != (starts + sizes)[order]).any():
        return None
    rows = np.argsort(order, kind="stable")
    is_there = np.arange(steps) < counts[:, None]
    return _Spans(*(each[rows][is_there] for each in found))


def _number_sizes(words: Words) -> Sizes:
    """Bytes of the number that each word begins with; 8 when it does not end there."""
    ends = ~words & _HIGH_BITS
    sizes: Sizes = np.bitwise_count(ends ^ (ends - _ONE)) >> np.uint8(3)
    return sizes


def _values(words: Words, sizes: Sizes) -> Ints:
    """The numbers, as they are encoded (twice their value, or an odd one)."""
    most = min(int(sizes.max()), _NUMBER_BYTES_MAX)
    values = words & np.uint64(127)
    for i in range(1, most):
        group = (words >> np.uint64(8 * i)) & np.uint64(127)
        values |= np.where(sizes > i, group << np.uint64(7 * i), np.uint64(0))
    return values.astype(np.int64)


def _is_of(data: bytes, spans: _Spans, ledger_id: int) -> bool:
    """Whether all are of this ledger, with a digest of `CRC_BYTES`."""
    array = np.frombuffer(data, np.uint8)
    return (
        int(spans.number_stops.max()) + _PAST_NUMBERS < len(data)
        and all(
            (array[spans.number_starts + i] == byte).all()
            for i, byte in enumerate(encode_long(ledger_id))
        )
        and bool((array[spans.number_stops] == 2 * CRC_BYTES).all())
    )


def _fits_digests(data: bytes, spans: _Spans) -> bool:
    made = [
        crc32c(data[first:behind] + data[start:stop])
        for first, behind, start, stop in zip(*(each.tolist() for each in spans), strict=True)
    ]
    stored = np.ndarray((len(data) - 3,), ">u4", data, strides=(1,))[spans.number_stops + 1]
    return bool((stored == np.array(made, np.uint32)).all())
