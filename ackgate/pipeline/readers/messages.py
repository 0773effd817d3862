"""Rows of the table `messages`: the entries of a range of a topic's message ledger.

Edge: reads files (`storage`). From the entries to Arrow without a look at single ones: numbers become
columns as they are, texts are cut out of the entries' joined bytes by Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ackgate.errors import CorruptRecordError
from ackgate.persistence.messages.columns import PROPERTIES, Spans, decode_message_spans
from ackgate.pipeline.schema.tables import COMPRESSIONS, arrow_schema, record_batch
from ackgate.pipeline.storage.damage import Damage
from ackgate.pipeline.storage.reading import read_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from ackgate.persistence.messages.columns import MessageColumns, Numbers
    from ackgate.pipeline.schema.tables import Column
    from ackgate.pipeline.storage.entry_columns import EntryColumns
    from ackgate.pipeline.storage.ranges import EntryRange
    from ackgate.pipeline.storage.reading import LedgerPlaces, OnCorrupt, OpenPlaces

    Flags = npt.NDArray[np.bool_]

_FIELDS: Final = {
    "producer": ("producer_name",),
    "sequence_id": ("sequence_id",),
    "publish_time_ms": ("publish_time",),
    "event_time_ms": ("event_time",),
    "key": ("partition_key",),
    "ordering_key": ("ordering_key",),
    "properties": (PROPERTIES,),
    "redeliveries": (PROPERTIES,),
    "deliver_at_ms": ("deliver_at_time",),
    "batch_size": ("num_messages_in_batch",),
    "chunk_id": ("chunk_id", "num_chunks_from_msg"),
    "chunk_count": ("num_chunks_from_msg",),
    "compression": ("compression",),
}
"""Columns, and the fields of the metadata that they are made of."""

_REDELIVERIES_KEY: Final = np.frombuffer(b"RECONSUMETIMES", np.uint8)
"""Property that clients give a message which they send on after so many attempts."""

_INT: Final = "^[0-9]{1,9}$"


class PublishTimes(NamedTuple):
    """Messages published from `first_ms` to `last_ms`, both included. None: no bound."""

    first_ms: int | None = None
    last_ms: int | None = None

    @property
    def is_all(self) -> bool:
        """Whether there is nothing to sort out."""
        return self.first_ms is None and self.last_ms is None

    def takes(self, published_ms: int) -> bool:
        """Whether a message published then is wanted."""
        is_early = self.first_ms is not None and published_ms < self.first_ms
        return not is_early and (self.last_ms is None or published_ms <= self.last_ms)


ALL_TIMES: Final = PublishTimes()


def read_messages(
    bookies: LedgerPlaces | OpenPlaces,
    topic: str,
    entry_range: EntryRange,
    columns: Sequence[Column],
    *,
    publish_times: PublishTimes = ALL_TIMES,
    on_corrupt: OnCorrupt = "fail",
    damages: list[Damage] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The range's messages, with these columns of the table, ascending.

    Raises `CorruptRecordError` for what no copy has and for metadata that cannot be parsed, unless
    such entries are skipped (`damages` has them then), `StorageError`.
    """
    batches = read_range(bookies, entry_range, on_corrupt=on_corrupt, damages=damages)
    for batch in batches:
        rows = _Rows(topic, entry_range.ledger_id, batch, columns, publish_times)
        if rows.decoded.damaged:
            found = _unparsed(entry_range, batch, rows.decoded)
            if on_corrupt == "fail":
                raise CorruptRecordError(
                    f"{topic}: ledger {entry_range.ledger_id}: {found[0].why}: the producer sent it so"
                )
            if damages is not None:
                damages += found
        made = rows.record_batch()
        if made.num_rows:
            yield made


def message_rows(
    topic: str,
    ledger_id: int,
    batch: EntryColumns,
    columns: Sequence[Column],
    *,
    publish_times: PublishTimes = ALL_TIMES,
) -> tuple[pa.RecordBatch, Mapping[int, str]]:
    """Rows of these entries, and why some of them cannot be parsed, by their place."""
    rows = _Rows(topic, ledger_id, batch, columns, publish_times)
    return rows.record_batch(), rows.decoded.damaged


def _unparsed(
    entry_range: EntryRange, batch: EntryColumns, decoded: MessageColumns
) -> list[Damage]:
    """All copies are alike, since the digest fits: it is named by ledger and entry."""
    return [
        Damage(
            entry_range.ledger_id,
            ",".join(entry_range.fragment.ensemble),
            f"ledger {entry_range.ledger_id}",
            0,
            0,
            f"entry {batch.entry_ids[row]}: {why}",
            int(batch.entry_ids[row]) - 1,
            entries_lost=1,
        )
        for row, why in sorted(decoded.damaged.items())
    ]


class _Rows:
    """One batch of entries on its way to Arrow."""

    def __init__(
        self,
        topic: str,
        ledger_id: int,
        batch: EntryColumns,
        columns: Sequence[Column],
        publish_times: PublishTimes,
    ) -> None:
        self._topic = topic
        self._ledger_id = ledger_id
        self._batch = batch
        self._columns = columns
        self._times = publish_times
        fields = {f for column in columns for f in _FIELDS.get(column.name, ())}
        if not publish_times.is_all:
            fields.add("publish_time")
        sizes = batch.stops - batch.starts
        self.decoded = decode_message_spans(batch.data, batch.starts, sizes, fields)

    def record_batch(self) -> pa.RecordBatch:
        """Only of those that are wanted and can be parsed."""
        schema = arrow_schema(self._columns)
        arrays = [
            self._array(column.name, field.type)
            for column, field in zip(self._columns, schema, strict=True)
        ]
        made = record_batch(arrays, schema, rows=len(self._batch.entry_ids))
        kept = self._kept()
        return made if kept is None else made.filter(pa.array(kept))

    def _kept(self) -> Flags | None:
        if not self.decoded.damaged and self._times.is_all:
            return None
        kept = np.ones(len(self._batch.entry_ids), np.bool_)
        kept[list(self.decoded.damaged)] = False
        if not self._times.is_all:
            published = self.decoded.numbers["publish_time"].values
            if self._times.first_ms is not None:
                kept &= published >= self._times.first_ms
            if self._times.last_ms is not None:
                kept &= published <= self._times.last_ms
        return kept

    def _array(self, name: str, kind: pa.DataType) -> pa.Array:
        count = len(self._batch.entry_ids)
        numbers, texts = self.decoded.numbers, self.decoded.texts
        match name:
            case "topic":
                return pa.repeat(pa.scalar(self._topic, kind), count)
            case "ledger_id":
                return pa.array(np.full(count, self._ledger_id))
            case "entry_id":
                return pa.array(self._batch.entry_ids)
            case "entry_bytes":
                return pa.array(self.decoded.entry_bytes.astype(np.int32))
            case "payload":
                return self._payloads()
            case "properties":
                return self._properties(kind)
            case "redeliveries":
                return self._redeliveries(kind)
            case "compression":
                codes = pa.array(numbers["compression"].values)
                return pa.array(COMPRESSIONS, kind).take(codes)
            case "batch_size":
                sizes = np.maximum(numbers["num_messages_in_batch"].values, 1)
                return pa.array(sizes.astype(np.int32))
            case "event_time_ms":
                # To a client 0 is "none".
                values = numbers["event_time"].values
                return pa.array(values, mask=values == 0)
            case "deliver_at_ms":
                # As the broker has it.
                values = numbers["deliver_at_time"].values
                return pa.array(values, mask=values <= 0)
            case "chunk_id" | "chunk_count":
                values = numbers[_FIELDS[name][0]].values.astype(np.int32)
                return pa.array(values, mask=~_is_chunk(numbers["num_chunks_from_msg"]))
            case "producer":
                return self._text(texts["producer_name"], kind, is_nullable=False)
            case "key" | "ordering_key":
                return self._text(texts[_FIELDS[name][0]], kind)
        return pa.array(numbers[_FIELDS[name][0]].values)

    def _text(self, spans: Spans, kind: pa.DataType, *, is_nullable: bool = True) -> pa.Array:
        absent = ~spans.is_present if is_nullable and not spans.is_present.all() else None
        return _cut_out(self.decoded.data, spans, absent, kind)

    def _payloads(self) -> pa.Array:
        data, starts, stops = self._batch.data, self.decoded.payload_starts, self._batch.stops
        return pa.array(
            [data[i:j] for i, j in zip(starts.tolist(), stops.tolist(), strict=True)],
            pa.binary(),
        )

    def _properties(self, kind: pa.MapType) -> pa.Array:
        properties = self.decoded.properties
        assert properties is not None
        data = self.decoded.data
        keys = _cut_out(data, properties.keys, None, kind.key_type)
        values = _cut_out(data, properties.values, None, kind.item_type)
        offsets = pa.array(properties.offsets.astype(np.int32))
        return pa.MapArray.from_arrays(offsets, keys, values).cast(kind)

    def _redeliveries(self, kind: pa.DataType) -> pa.Array:
        properties = self.decoded.properties
        assert properties is not None
        keys, values = properties.keys, properties.values
        found = np.flatnonzero(keys.stops - keys.starts == _REDELIVERIES_KEY.size)
        places = keys.starts[found, np.newaxis] + np.arange(_REDELIVERIES_KEY.size)
        is_it = np.frombuffer(self.decoded.data, np.uint8)[places] == _REDELIVERIES_KEY
        found = found[is_it.all(axis=1)]
        numbers_at = Spans(values.starts[found], values.stops[found], values.is_present[found])
        texts = _cut_out(self.decoded.data, numbers_at, None, pa.string())
        numbers = pc.if_else(pc.match_substring_regex(texts, _INT), texts, None).cast(kind)
        # The place of each row's number among them, the last if there are two; none: null.
        place = np.full(len(self._batch.entry_ids), -1)
        place[np.searchsorted(properties.offsets, found, side="right") - 1] = np.arange(found.size)
        return numbers.take(pa.array(place, mask=place < 0))


def _is_chunk(chunk_counts: Numbers) -> Flags:
    """As the broker has it: a message in one piece is none."""
    return chunk_counts.is_present & (chunk_counts.values > 1)


def _cut_out(data: bytes, spans: Spans, absent: Flags | None, kind: pa.DataType) -> pa.Array:
    """These spans of the bytes, as an array of texts or bytes."""
    starts, lengths = spans.starts, spans.stops - spans.starts
    if absent is not None:
        lengths = np.where(absent, 0, lengths)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    # Where each byte of the result comes from.
    origin = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    cut = np.frombuffer(data, np.uint8)[origin]
    validity = None if absent is None else pa.array(~absent).buffers()[1]
    binary = pa.Array.from_buffers(
        pa.binary(),
        len(lengths),
        [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(cut)],
    )
    if not pa.types.is_string(kind):
        return binary
    try:
        return binary.cast(kind)
    except pa.ArrowInvalid:  # no UTF-8, which some clients have sent
        values = [None if v is None else v.decode("utf-8", "replace") for v in binary.to_pylist()]
        return pa.array(values, kind)
