"""The tables that the ledgers are read as: their columns, with units.

Pure: imports neither Spark nor Arrow, which make their own schemas of this (`spark_schema`,
`arrow_schema`). Times are whole milliseconds or microseconds since 1970, UTC, as the name says; a
position is the pair of ``ledger_id`` and ``entry_id``. A column that is `is_heavy` is read only when
it is asked for by name (option ``columns``), all others by default.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Kind(enum.Enum):
    """A column's type, by Spark's name of it."""

    LONG = "bigint"
    INT = "int"
    BOOLEAN = "boolean"
    STRING = "string"
    BINARY = "binary"
    STRING_MAP = "map<string,string>"
    STRINGS = "array<string>"
    BITMAPS = "array<struct<ledger_id:bigint,entry_ids:binary>>"
    """Entry ids per message ledger, as Roaring bitmaps in the portable format."""
    PARTLY_ACKED = "array<struct<ledger_id:bigint,entry_id:bigint,unacked_indexes:binary>>"
    """Bit i of the bytes (least significant first) is set when message i is not acked."""
    FILES = "array<struct<bookie:string,file:string,bytes:bigint>>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    kind: Kind
    doc: str
    is_nullable: bool = False
    is_heavy: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the data source."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column:
        """The column of this name. Raises `CallerError` naming those that there are."""
        for column in self.columns:
            if column.name == name:
                return column
        known = ", ".join(column.name for column in self.columns)
        raise CallerError(f"table {self.name} has no column {name!r}; it has {known}")

    @property
    def default_columns(self) -> tuple[Column, ...]:
        """Those that are read when none are named."""
        return tuple(column for column in self.columns if not column.is_heavy)

    def select(self, names: Sequence[str]) -> tuple[Column, ...]:
        """Columns by name, in this order. Raises `CallerError` for unknown ones and repetitions."""
        if len(set(names)) != len(names):
            raise CallerError(f"table {self.name}: a column is named twice in {', '.join(names)}")
        return tuple(self.column(name) for name in names)


def _long(name: str, doc: str, *, null: bool = False) -> Column:
    return Column(name, Kind.LONG, doc, is_nullable=null)


def _int(name: str, doc: str, *, null: bool = False) -> Column:
    return Column(name, Kind.INT, doc, is_nullable=null)


def _text(name: str, doc: str, *, null: bool = False) -> Column:
    return Column(name, Kind.STRING, doc, is_nullable=null)


_TOPIC: Final = _text("topic", "Full name of the topic (of the partition, if it is one).")
_SUBSCRIPTION: Final = _text("subscription", "Name of the subscription.")

MESSAGES: Final = Table(
    "messages",
    "One row for each entry of a topic's message ledgers: a message, or a batch of them.",
    (
        _TOPIC,
        _long("ledger_id", "Message ledger."),
        _long("entry_id", "Entry in it."),
        _text("producer", "Name of the producer."),
        _long(
            "sequence_id", "The producer's number of the message (of a batch: of its first one)."
        ),
        _long("publish_time_ms", "When the producer sent it, by the producer's clock."),
        _long("event_time_ms", "The application's own time for it.", null=True),
        _text("key", "Partition key; of a batch: of the whole entry.", null=True),
        Column(
            "ordering_key", Kind.BINARY, "What Key_Shared uses before the key.", is_nullable=True
        ),
        Column(
            "properties",
            Kind.STRING_MAP,
            "The application's properties (of a batch: those of the entry).",
        ),
        _int(
            "redeliveries",
            "Redeliveries before a client sent it on to this retry or dead letter topic (its property "
            "RECONSUMETIMES); null: not known. `delivery_journal` has the deliveries to subscriptions.",
            null=True,
        ),
        _long("deliver_at_ms", "Not to be delivered before; null: at once.", null=True),
        _int("batch_size", "Messages in the entry; 1 if it is no batch."),
        _int("chunk_id", "Which piece of a large message it is, from 0.", null=True),
        _int("chunk_count", "Pieces of that large message.", null=True),
        _text("compression", "Of the payload: LZ4, ZLIB, ZSTD or SNAPPY.", null=True),
        _int("entry_bytes", "Size of the entry: header, metadata and payload."),
        Column(
            "payload",
            Kind.BINARY,
            "What follows the metadata, as sent: compressed, encrypted, a batch as one.",
            is_heavy=True,
        ),
    ),
)

UNPACKED_MESSAGES: Final = Table(
    "unpacked_messages",
    "One row for each message: batches are unpacked, payloads decompressed. An encrypted entry, and a piece "
    "of a chunked message, is one row as it is stored.",
    (
        _TOPIC,
        _long("ledger_id", "Message ledger."),
        _long("entry_id", "Entry in it."),
        _int("batch_index", "Place in its batch, from 0; null: it is in none.", null=True),
        _text("producer", "Name of the producer."),
        _long("sequence_id", "The producer's number of the message."),
        _long("publish_time_ms", "When the producer sent it, by the producer's clock."),
        _long("broker_time_ms", "When Pulsar's broker added it, if it notes that.", null=True),
        _long("event_time_ms", "The application's own time for it.", null=True),
        _text("key", "Partition key, as the client sent it (bytes in base64).", null=True),
        Column(
            "ordering_key", Kind.BINARY, "What Key_Shared uses before the key.", is_nullable=True
        ),
        Column("properties", Kind.STRING_MAP, "The application's properties."),
        _long("deliver_at_ms", "Not to be delivered before; null: at once.", null=True),
        _int("chunk_id", "Which piece of a large message it is, from 0.", null=True),
        _int("chunk_count", "Pieces of that large message.", null=True),
        _text("compression", "Of the entry: LZ4, ZLIB, ZSTD or SNAPPY.", null=True),
        Column("is_encrypted", Kind.BOOLEAN, "Whether only its consumers can read the payload."),
        _long("schema_version", "Version of its topic's schema; null: sent without.", null=True),
        _int("payload_bytes", "Size of the payload; null: a null value.", null=True),
        Column(
            "payload",
            Kind.BINARY,
            "As the application sent it; null: a null value. Of an encrypted entry or a piece: as stored.",
            is_nullable=True,
            is_heavy=True,
        ),
        Column(
            "value",
            Kind.STRING,
            "With `pulsar`: the payload by the topic's schema, in JSON (`from_json` makes columns of it); "
            "null: no schema, or it does not fit. Bytes in base64, times in ms.",
            is_nullable=True,
            is_heavy=True,
        ),
    ),
)

CURSORS: Final = Table(
    "cursors",
    "With `pulsar`: one row for each subscription of the cluster as persisted.",
    (
        _TOPIC,
        _SUBSCRIPTION,
        _text(
            "source",
            "ledger, node, or rolled back: its ledger cannot be read, and a restart goes back to the node's "
            "mark-delete of before.",
        ),
        _long("mark_delete_ledger_id", "Every entry up to the mark-delete is acked."),
        _long("mark_delete_entry_id", "Its entry; -1: before the ledger's first."),
        _long("range_count", "Ack ranges above it."),
        _long("hole_count", "Runs of unacked entries before an acked one."),
        _long("acked_entries", "Acked entries above the mark-delete."),
        _long("partly_acked_count", "Batches that are acked in part."),
        _long("backlog_entries", "Existing entries that are not acked."),
        _long("cursor_ledger_id", "Ledger of its states; null: it is in the node.", null=True),
        _long("written_entries", "Entries of that ledger."),
        _long("begun_ms", "When that ledger was begun.", null=True),
        _long("changed_ms", "When the node was changed last."),
        _long("record_bytes", "Size of the newest state."),
        _int("buckets", "Sealed buckets of delayed messages."),
        Column("properties", Kind.STRING_MAP, "Of the subscription."),
        _text("trouble", "Why a restart would lose acks.", null=True),
    ),
)

CURSOR_RECORDS: Final = Table(
    "cursor_records",
    "One row for each snapshot and delta of a subscription's ack state that ledgers still hold, and for "
    "the state in its metadata node.",
    (
        _TOPIC,
        _SUBSCRIPTION,
        _text("place", "ledger or node."),
        _long("cursor_ledger_id", "Ledger that holds it; null in the node.", null=True),
        _long("entry_id", "Its (first) entry there; null in the node.", null=True),
        _text("kind", "snapshot or delta."),
        _long("owner_epoch", "Epoch of the broker that wrote it. With version it orders records."),
        _long("version", "Mutations of the cursor so far."),
        _long("base_version", "Of a delta: version of the record that it builds on.", null=True),
        _long(
            "base_snapshot_version",
            "Version of the snapshot since which nothing was done but acknowledge; null: this "
            "snapshot, or an earlier version of ackgate wrote the delta.",
            null=True,
        ),
        _long("written_ms", "When the write began."),
        _long("mark_delete_ledger_id", "Every entry up to the mark-delete is acked."),
        _long("mark_delete_entry_id", "Its entry; -1: before the ledger's first."),
        _long("range_count", "Ack ranges of the whole state that are persisted at this version."),
        _long("ranges_in_memory", "Ranges that the cursor had then."),
        _long("entries_dropped", "Acked entries that a limit left out."),
        _long("partly_acked_count", "Partly acked entries in this record."),
        _long("batch_indexes_in_memory", "Partly acked entries that the cursor had.", null=True),
        _long("acked_entries", "Acked entries above the mark-delete in this record."),
        _long("held_nacks", "Held back entries in this record; null: as before.", null=True),
        _long("record_bytes", "Bytes of the record as stored."),
        _int("chunk_count", "Ledger entries that it takes."),
        Column("acked", Kind.BITMAPS, "The acked entries of this record.", is_heavy=True),
        Column(
            "unacked_indexes",
            Kind.PARTLY_ACKED,
            "The partly acked entries of this record.",
            is_heavy=True,
        ),
    ),
)

ACK_STATE: Final = Table(
    "ack_state",
    "The ack state of each subscription as storage has it, at its newest version or at the one that "
    "options `version` or `at_ms` ask for: one row for the mark-delete, for each range and for each "
    "partly acked entry.",
    (
        _TOPIC,
        _SUBSCRIPTION,
        _long("owner_epoch", "Epoch of the state."),
        _long("version", "Version of the state."),
        _long("written_ms", "When its newest record was written."),
        _text("kind", "mark_delete, range or partly_acked."),
        _long("ledger_id", "Message ledger."),
        _long(
            "first_entry_id", "First acked entry; of mark_delete: 0; of partly_acked: the entry."
        ),
        _long("end_entry_id", "After the last acked entry; of partly_acked: after the entry."),
        Column(
            "unacked_indexes",
            Kind.BINARY,
            "Of partly_acked: bit i (least significant first) is set when message i is not acked.",
            is_nullable=True,
        ),
    ),
)

LEDGERS: Final = Table(
    "ledgers",
    "One row for each fragment of each ledger, whatever it holds.",
    (
        _long("ledger_id", "Ledger."),
        _text(
            "role",
            "messages, cursor, delayed, journal or other; with `pulsar` schema and compacted, too.",
        ),
        _text("topic", "Topic that it belongs to.", null=True),
        _text("subscription", "Subscription that it belongs to.", null=True),
        _text(
            "state",
            "OPEN, IN_RECOVERY or CLOSED; with `pulsar` OFFLOADED, too: it lies in tiered storage only, and "
            "what is null of it is not known.",
        ),
        _long("created_ms", "When it was created.", null=True),
        _long("last_entry_id", "Last entry of a closed ledger; -1: empty.", null=True),
        _long("length_bytes", "Payload bytes of a closed ledger.", null=True),
        _text("digest_type", "CRC32C or MAC; with `pulsar` CRC32 and DUMMY, too.", null=True),
        _int("write_quorum", "Copies of each entry.", null=True),
        _int("ack_quorum", "Copies that make it confirmed.", null=True),
        _int("fragment", "Number of the fragment, from 0."),
        _long("first_entry_id", "First entry of the fragment."),
        _long("end_entry_id", "After its last one; null: it is still open.", null=True),
        Column("ensemble", Kind.STRINGS, "Bookies that hold it, in order."),
        Column("files", Kind.FILES, "Its files as found, with the bookie that each lies on."),
    ),
)

DELIVERY_JOURNAL: Final = Table(
    "delivery_journal",
    "One row for each event of a topic that its broker recorded (deliveryJournalEnabled).",
    (
        _TOPIC,
        _long(
            "journal_ledger_id",
            "Ledger of the journal that holds the event. A block whose write failed may be in two: events "
            "of an epoch in a later ledger are repetitions up to the last number in an earlier one.",
        ),
        _long("owner_epoch", "Epoch of the broker's ownership of the topic."),
        _long(
            "sequence", "Number of the event in that epoch, from 0: the order in which it happened."
        ),
        _long("time_us", "When, by the broker's clock, in microseconds."),
        _text(
            "event",
            "opened, configured, ledger_opened, ledger_closed, ledger_trimmed, published, "
            "subscribed, unsubscribed, recovered, consumer_added, consumer_removed, dispatched, "
            "acked, nacked, reset, receipt, gate_shut, gate_opened, persisted, persist_failed or "
            "dropped.",
        ),
        _text("subscription", "Subscription, if it is about one.", null=True),
        _text(
            "consumer",
            "Consumer, as `name#number`; its number tells connections apart. Of acked: null when no "
            "consumer did it (an entry that was cancelled).",
            null=True,
        ),
        _text("producer", "Of published: the producer.", null=True),
        _long("ledger_id", "Message ledger.", null=True),
        _long("entry_id", "Entry. Of ledger_closed: its last one, -1: it is empty.", null=True),
        _int("batch_size", "Of published and dispatched: messages in the entry.", null=True),
        Column(
            "unacked_indexes",
            Kind.BINARY,
            "Of dispatched: messages of the batch that were sent, of acked and nacked: that stay "
            "unacked after it; bit i (least significant first). Null: the whole entry.",
            is_nullable=True,
        ),
        Column(
            "is_cumulative",
            Kind.BOOLEAN,
            "Of acked: everything up to the position, too.",
            is_nullable=True,
        ),
        _int("redelivery_count", "Of dispatched: how often before.", null=True),
        _text(
            "reason",
            "Of dispatched: normal, redelivery or delayed. Of nacked: asked, or consumer_closed. Of "
            "gate_shut and gate_opened: the reasons, joined by commas. Of reset: seek, skip, clear "
            "or expire. Of persist_failed: the store, ledger or metadata-store; each attempt is an "
            "event. Of consumer_added: the type of the subscription.",
            null=True,
        ),
        _long(
            "version",
            "Of acked and reset: the cursor's version after it. Of receipt, persisted and "
            "persist_failed: the version that it covers. Of dropped: how many events were.",
            null=True,
        ),
        _text("key", "Of published: partition key (ordering key in hexadecimal).", null=True),
        _long("publish_time_ms", "Of published: by the producer's clock.", null=True),
        _long("deliver_at_ms", "Of published: not to be delivered before.", null=True),
        _int("entry_bytes", "Of published: size of the entry.", null=True),
        _text(
            "detail",
            "A flat JSON object; its values are those of ackgate.persistence.deliveries.details. Of "
            "opened: settings (as they hold for the topic), policies, ledgers (ledger_id, entries, "
            "is_open). Of configured: settings that changed, policies. Of subscribed: position "
            "([ledger, entry]), is_durable. Of recovered: the recovery report. Of acked, on the first "
            "event of a call that acked several: entries (events of the call), at_once (the version "
            "grew by one for each ledger), properties. Of consumer_added, where so: is_out_of_order "
            "(Key_Shared, and a key may go to several consumers). Of persisted: the outcome "
            "(entries_dropped, ranges_in_memory, ...), written_ms, is_ledger_begun, is_last (written at "
            "closing). Of persist_failed: error, failing_since_ms (null: something can be written). "
            "Of reset: mark_delete ([ledger, entry], as it is after it), and of seek target and "
            "unacked_mask, of skip and clear entries, of expire position.",
            null=True,
        ),
        Column(
            "state",
            Kind.BINARY,
            "Of recovered: the state to begin with, as a stored snapshot of the cursor.",
            is_nullable=True,
            is_heavy=True,
        ),
    ),
)

DELAYED_INDEX: Final = Table(
    "delayed_index",
    "One row for each delayed entry in the stored buckets of a subscription (or of a topic's shared "
    "index), acked and passed ones included.",
    (
        _TOPIC,
        _text("subscription", "Name of the subscription; null: the shared index.", null=True),
        _long("snapshot_id", "Ledger that holds the bucket's snapshot."),
        _int("segment", "Segment of the snapshot, from 0."),
        _long("ledger_id", "Message ledger."),
        _long("entry_id", "Entry in it."),
        _long("key_ms", "When it is due, rounded as the tracker rounds."),
    ),
)

CORRUPT: Final = Table(
    "corrupt",
    "One row for each damaged place that reading the other tables would meet.",
    (
        _long("ledger_id", "Ledger; null: a cursor's node is damaged.", null=True),
        _text(
            "bookie", "Bookie that holds the damaged copy; null: all copies are alike.", null=True
        ),
        _text(
            "file",
            "File, by path or address; `ledger N`: what all copies hold cannot be read; "
            "`node PATH`: a node of the metadata store.",
        ),
        _long("offset", "First damaged byte."),
        _long("end_offset", "After the last one."),
        _long("entries_lost", "Entries of this place that no copy could give."),
        _text("why", "What is wrong."),
    ),
)

TABLES: Final = {
    table.name: table
    for table in (
        MESSAGES,
        UNPACKED_MESSAGES,
        CURSORS,
        CURSOR_RECORDS,
        ACK_STATE,
        LEDGERS,
        DELIVERY_JOURNAL,
        DELAYED_INDEX,
        CORRUPT,
    )
}


COMPRESSIONS: Final = (None, "LZ4", "ZLIB", "ZSTD", "SNAPPY")
"""Names by the number in a message's metadata."""


def table_named(name: str) -> Table:
    """Raises `CallerError` naming the tables that there are."""
    try:
        return TABLES[name]
    except KeyError:
        raise CallerError(f"there is no table {name!r}; there are {', '.join(TABLES)}") from None


def spark_schema(columns: Sequence[Column]) -> Any:  # noqa: ANN401 - Spark has no types here
    """Spark's schema of these columns. Needs no session."""
    from pyspark.sql import types as t  # noqa: PLC0415

    def struct(**fields: Any) -> Any:  # noqa: ANN401
        return t.ArrayType(t.StructType([t.StructField(n, kind) for n, kind in fields.items()]))

    long, text, binary = t.LongType(), t.StringType(), t.BinaryType()
    types = {
        Kind.LONG: long,
        Kind.INT: t.IntegerType(),
        Kind.BOOLEAN: t.BooleanType(),
        Kind.STRING: text,
        Kind.BINARY: binary,
        Kind.STRING_MAP: t.MapType(text, text),
        Kind.STRINGS: t.ArrayType(text),
        Kind.BITMAPS: struct(ledger_id=long, entry_ids=binary),
        Kind.PARTLY_ACKED: struct(ledger_id=long, entry_id=long, unacked_indexes=binary),
        Kind.FILES: struct(bookie=text, file=text, bytes=long),
    }
    return t.StructType(
        [
            t.StructField(
                column.name, types[column.kind], column.is_nullable, {"comment": column.doc}
            )
            for column in columns
        ]
    )


def arrow_schema(columns: Sequence[Column]) -> Any:  # noqa: ANN401 - nor has Arrow
    """Arrow's schema of these columns."""
    import pyarrow as pa  # noqa: PLC0415

    def struct(**fields: Any) -> Any:  # noqa: ANN401
        return pa.list_(pa.struct([pa.field(name, kind) for name, kind in fields.items()]))

    types = {
        Kind.LONG: pa.int64(),
        Kind.INT: pa.int32(),
        Kind.BOOLEAN: pa.bool_(),
        Kind.STRING: pa.string(),
        Kind.BINARY: pa.binary(),
        Kind.STRING_MAP: pa.map_(pa.string(), pa.string()),
        Kind.STRINGS: pa.list_(pa.string()),
        Kind.BITMAPS: struct(ledger_id=pa.int64(), entry_ids=pa.binary()),
        Kind.PARTLY_ACKED: struct(
            ledger_id=pa.int64(), entry_id=pa.int64(), unacked_indexes=pa.binary()
        ),
        Kind.FILES: struct(bookie=pa.string(), file=pa.string(), bytes=pa.int64()),
    }
    return pa.schema(
        [pa.field(column.name, types[column.kind], column.is_nullable) for column in columns]
    )


def record_batch(arrays: Sequence[Any], schema: Any, *, rows: int) -> Any:  # noqa: ANN401 - nor has Arrow
    """These arrays as a batch, which has its rows even without a column."""
    import pyarrow as pa  # noqa: PLC0415

    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
