"""Producer de-duplication by sequence id (PIP-6).

Per producer name the topic remembers the highest sequence id that was pushed to the ledger and the
highest that is durable. An entry that was pushed but is not durable yet is neither accepted nor
confirmed again: its outcome is unknown, and the producer must retry. Stored entries are judged in the
same way live and at load, so a crash changes no verdict.

Several entries may share a sequence id, and one entry may hold many:

* **Chunks** of a message all have its id, which counts as pushed and as durable with the last chunk.
  Pulsar lets every other chunk pass. Here a chunk that is stored already is recognised by its
  checksum, since a client fails to join a message that has a chunk twice.
* **Batches** carry one id, and perhaps the highest. The C++ client and those built on it send only
  the first message's id, batch by key, so that the ids of two batches may interlock, and make other
  batches after a restart. Other clients number entries, and their messages have no ids. What Pulsar
  accepts is accepted here; where it would drop a batch because of its id, the messages' own ids
  decide, and the missing rest of a partly stored batch is stored.
* **Markers** (of transactions and of replication) have ids of their own, which are ignored.

Ids are signed, as in Java, whatever the wire calls them.

Pure but for `TopicDeduplication`, which keeps the map as the long properties of the cursor
``pulsar.dedup``; the mark-delete says up to which entry it holds. The map is saved every so many entries;
entries after the last save are replayed at load, so nothing depends on a save. Of chunks of a message
that is not complete, and of batches between whose ids others are missing, the map says nothing: the
cursor stays before them, for as many entries as lie between two saves.
"""

from __future__ import annotations

import enum
from array import array
from operator import lt
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import google_crc32c

from ackgate.broker.wire import repacked, unpack
from ackgate.cursor import Position
from ackgate.persistence.messages.frame import metadata_span, signed64

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ackgate.broker.wire import Batch, Entry
    from ackgate.broker.wire.proto import pulsar_pb2 as pb
    from ackgate.config.broker import BrokerSettings
    from ackgate.errors import OwnershipError
    from ackgate.persistence.cursors.store import CursorStore
    from ackgate.persistence.messages.managed_ledger import ManagedLedger
    from ackgate.persistence.proto.message_pb2 import MessageMetadata as StoredMetadata

CHUNKS_REMEMBERED_MAX: Final = 10_000
"""Checksums kept of an unfinished message. Any further chunk is stored, even if it comes twice."""

UNFINISHED_MAX: Final = 1_000
"""Unfinished messages kept of one producer; beyond that, the chunks of the oldest are forgotten."""

REPLAY_ENTRIES: Final = 1_000
"""Entries per read while the map is rebuilt."""

GAPPED_MAX: Final = 1_000
"""Batches with open gaps kept of one producer; beyond that, the oldest are forgotten."""

_LAST: Final = "\0last"
"""Appended to a producer's name to make the key of its other number. Names have no control
characters."""

_UNKNOWN_ID: Final = -1
"""Last sequence id in PRODUCER_SUCCESS for an unknown producer."""


class Verdict(enum.Enum):
    """What to do with an entry."""

    NEW = "new"
    PARTLY = "partly"
    """Some messages of the batch are durable already: store the others."""
    DUPLICATE = "duplicate"
    """The entry is durable already: confirm it without storing it."""
    UNKNOWN = "unknown"
    """The entry was sent before, and whether it was stored is not known yet."""


MessageKey: TypeAlias = "tuple[int, str, int, int]"
"""Identifies a chunked message of a producer: sequence id, uuid, number of chunks, total bytes."""


class Chunk(NamedTuple):
    """One chunk, but not the last one, of a message."""

    message: MessageKey
    chunk_id: int
    checksum: int


class SequenceIds(NamedTuple):
    """The sequence ids of an entry."""

    first: int
    whole: int
    """Once this entry is stored, all the producer's messages up to this id are. Entries come in the
    order of their first ids, and this one has no gap up to here."""
    last: int
    chunk: Chunk | None = None
    gapped: int | None = None
    """For a batch whose ids have gaps: a checksum of them. Otherwise None."""


class _Mark(NamedTuple):
    """The greatest `whole` and `last` among a producer's entries."""

    whole: int
    last: int

    def raised(self, ids: SequenceIds) -> _Mark:
        return _Mark(max(self.whole, ids.whole), max(self.last, ids.last))


def sequence_ids(
    sequence_id: int,
    highest_sequence_id: int,
    entry: bytes,
    metadata: pb.MessageMetadata | StoredMetadata,
) -> SequenceIds | None:
    """The sequence ids of an entry. None for a marker, which has none."""
    if metadata.HasField("marker_type"):
        return None
    first = signed64(sequence_id)
    highest = max(first, signed64(highest_sequence_id)) if highest_sequence_id else first
    chunk_count = metadata.num_chunks_from_msg
    if 0 <= metadata.chunk_id < chunk_count - 1:
        message = (first, metadata.uuid, chunk_count, metadata.total_chunk_msg_size)
        checksum = google_crc32c.value(entry[metadata_span(entry)[1] :])
        return SequenceIds(first, first, first, Chunk(message, metadata.chunk_id, checksum))
    if metadata.num_messages_in_batch > 1 and highest == first:
        ids = _ids_of_batch(unpack(entry, metadata), first)
        if ids[-1] - first == len(ids) - 1:
            return SequenceIds(first, ids[-1], ids[-1])
        checksum = google_crc32c.value(array("q", ids).tobytes())
        return SequenceIds(first, first, ids[-1], gapped=checksum)
    return SequenceIds(first, highest, highest)


def _ids_of_batch(batch: Batch | None, first: int) -> list[int]:
    """The ids of a batch's messages, ascending; only `first` if they have none of their own."""
    if batch is None or batch.sequence_ids is None or signed64(batch.sequence_ids[0]) != first:
        return [first]
    ids = batch.sequence_ids
    if max(ids) >= 2**63:
        ids = list(map(signed64, ids))
    return ids if all(map(lt, ids, ids[1:])) else [first]


class _Unfinished:
    """A message of which not all chunks are durable yet."""

    __slots__ = ("checksums", "durable_count", "first_position")

    def __init__(self, chunk: Chunk) -> None:
        self.checksums = [chunk.checksum]
        self.durable_count = 0
        self.first_position: Position | None = None
        """Position of its first chunk; None until that is durable."""


_NOTHING: Final = _Mark(-(2**63) - 1, -(2**63) - 1)


class Deduplication:
    """The highest sequence ids of one topic's producers."""

    def __init__(self, saved: Mapping[str, int], producers_max: int) -> None:
        """`saved`: what `saved` last returned, as it was stored."""
        self._producers_max = producers_max
        self._durable: dict[str, _Mark] = {
            name: _Mark(whole, saved.get(name + _LAST, whole))
            for name, whole in saved.items()
            if not name.endswith(_LAST)
        }
        """The least recently confirmed producer is first."""
        self._pushed = dict(self._durable)
        self._unfinished: dict[str, dict[MessageKey, _Unfinished]] = {}
        """Unfinished messages, by producer name."""
        self._gapped: dict[str, dict[tuple[int, int, int], Position]] = {}
        """Durable batches with gaps, by producer name, then by first id, last id and checksum.
        Other batches fill the gaps. Once those are durable, too, the batch is known without
        this."""

    def saved(self) -> dict[str, int]:
        """What is known of durable ids, as numbers to store."""
        marks = {name: mark.whole for name, mark in self._durable.items()}
        for name, mark in self._durable.items():
            if mark.last != mark.whole:
                marks[name + _LAST] = mark.last
        return marks

    def last_sequence_id(self, producer_name: str) -> int:
        """Last sequence id for PRODUCER_SUCCESS; -1 if the producer is not known."""
        mark = self._durable.get(producer_name)
        return _UNKNOWN_ID if mark is None else mark.last

    def needed_positions(self) -> Iterable[Position]:
        """Positions of entries that must be replayed because `saved` does not cover them."""
        chunks = [
            message.first_position
            for messages in self._unfinished.values()
            for message in messages.values()
            if message.first_position is not None
        ]
        return chunks + [at for batches in self._gapped.values() for at in batches.values()]

    # ---------------------------------------------------------------- judging

    def check(self, producer_name: str, ids: SequenceIds) -> Verdict:
        """Decide what to do with an entry, and remember it if it is to be stored."""
        pushed = self._pushed.get(producer_name, _NOTHING)
        if ids.first > pushed.whole:
            if ids.chunk is not None:
                return self._check_chunk(producer_name, ids.chunk)
            self._pushed[producer_name] = pushed.raised(ids)
            return Verdict.NEW
        durable = self._durable.get(producer_name, _NOTHING)
        if ids.first > durable.whole:
            return Verdict.UNKNOWN
        if ids.last <= durable.whole or self._is_known(producer_name, ids):
            return Verdict.DUPLICATE
        if pushed != durable:
            return Verdict.UNKNOWN
        self._pushed[producer_name] = pushed.raised(ids)
        return Verdict.PARTLY

    def _is_known(self, producer_name: str, ids: SequenceIds) -> bool:
        """Whether this is a batch with gaps that is durable already."""
        key = None if ids.gapped is None else (ids.first, ids.last, ids.gapped)
        return key is not None and key in self._gapped.get(producer_name, ())

    def _check_chunk(self, producer_name: str, chunk: Chunk) -> Verdict:
        messages = self._unfinished.setdefault(producer_name, {})
        known = messages.get(chunk.message)
        if known is not None:
            checksums = known.checksums
            if chunk.chunk_id < len(checksums) and checksums[chunk.chunk_id] == chunk.checksum:
                is_durable = chunk.chunk_id < known.durable_count
                return Verdict.DUPLICATE if is_durable else Verdict.UNKNOWN
            if chunk.chunk_id == len(checksums) < CHUNKS_REMEMBERED_MAX:
                checksums.append(chunk.checksum)
                return Verdict.NEW
            del messages[chunk.message]
        if chunk.chunk_id == 0:
            messages[chunk.message] = _Unfinished(chunk)
            if len(messages) > UNFINISHED_MAX:
                del messages[next(iter(messages))]
            if len(self._unfinished) > self._producers_max:
                del self._unfinished[next(iter(self._unfinished))]
        elif not messages:
            del self._unfinished[producer_name]
        return Verdict.NEW

    def without_durable(
        self,
        producer_name: str,
        ids: SequenceIds,
        entry: bytes,
        metadata: pb.MessageMetadata | StoredMetadata,
    ) -> tuple[bytes, int] | None:
        """The messages of a partly durable batch that are missing, as an entry, and their number.

        None if the whole batch must be stored: it cannot be unpacked, or it has gaps, which the new
        entry would hide.
        """
        batch = unpack(entry, metadata) if ids.whole == ids.last else None
        if batch is None or batch.sequence_ids is None:
            return None
        whole = self._durable.get(producer_name, _NOTHING).whole
        wanted = [at for at, number in enumerate(batch.sequence_ids) if signed64(number) > whole]
        return (repacked(batch, wanted), len(wanted)) if wanted else None

    # ---------------------------------------------------------------- what became of it

    def confirmed(self, producer_name: str, ids: SequenceIds, position: Position) -> None:
        """Record that an entry became durable. Only from now on is a repetition a duplicate."""
        messages = self._unfinished.get(producer_name)
        if ids.chunk is None:
            if messages is not None:
                self._keep(producer_name, {m: u for m, u in messages.items() if m[0] > ids.last})
            self._remember(producer_name, ids)
            self._close_gaps(producer_name, ids, position)
        elif messages is not None and ids.chunk.message in messages:
            unfinished = messages[ids.chunk.message]
            unfinished.durable_count = max(unfinished.durable_count, ids.chunk.chunk_id + 1)
            unfinished.first_position = unfinished.first_position or position

    def _keep(self, producer_name: str, messages: dict[MessageKey, _Unfinished]) -> None:
        if messages:
            self._unfinished[producer_name] = messages
        else:
            del self._unfinished[producer_name]

    def _remember(self, producer_name: str, ids: SequenceIds) -> None:
        self._durable[producer_name] = self._durable.pop(producer_name, _NOTHING).raised(ids)
        while len(self._durable) > self._producers_max:
            forgotten = next(iter(self._durable))
            del self._durable[forgotten]
            self._pushed.pop(forgotten, None)
            self._gapped.pop(forgotten, None)

    def _close_gaps(self, producer_name: str, ids: SequenceIds, position: Position) -> None:
        batches = self._gapped.get(producer_name)
        if ids.gapped is None and batches is None:
            return
        whole = self._durable[producer_name].whole
        batches = {key: at for key, at in (batches or {}).items() if key[1] > whole}
        if ids.gapped is not None and ids.last > whole:
            batches[ids.first, ids.last, ids.gapped] = position
            if len(batches) > GAPPED_MAX:
                del batches[next(iter(batches))]
        if batches:
            self._gapped[producer_name] = batches
        else:
            self._gapped.pop(producer_name, None)

    def failed(self, producer_name: str) -> None:
        """Forget ids that are not durable, after a failed add: the producer may send them again."""
        self._pushed[producer_name] = self._durable.get(producer_name, _NOTHING)
        messages = self._unfinished.get(producer_name)
        if messages is not None:
            for unfinished in messages.values():
                del unfinished.checksums[unfinished.durable_count :]
            self._keep(producer_name, {m: u for m, u in messages.items() if u.checksums})

    def replay(self, entry: Entry) -> None:
        """Record a stored entry when the topic is loaded."""
        metadata = entry.metadata
        ids = sequence_ids(
            metadata.sequence_id, metadata.highest_sequence_id, entry.payload, metadata
        )
        if ids is None:
            return
        name = metadata.producer_name
        if ids.chunk is not None:
            if ids.last <= self._durable.get(name, _NOTHING).whole:
                return
            self._check_chunk(name, ids.chunk)
        self.confirmed(name, ids, entry.position)
        self._pushed[name] = self._durable.get(name, _NOTHING)


# ---- what is stored of it


class TopicDeduplication:
    """De-duplication of one topic: checks publishes, and saves the ids. Make it with `load`."""

    def __init__(
        self, ledger: ManagedLedger[Entry], store: CursorStore, settings: BrokerSettings
    ) -> None:
        self.ids = Deduplication(
            store.cursor.properties, settings.broker_deduplication_max_number_of_producers
        )
        self._ledger = ledger
        self._store = store
        self._save_interval_entries = settings.broker_deduplication_entries_interval
        self._unsaved_entries = 0

    async def load(self) -> None:
        """Rebuild the map from the messages after the last save, and save it."""
        cursor, ledgers = self._store.cursor, self._ledger.ledgers
        while cursor.read_position <= ledgers.last_confirmed:
            spans = cursor.unacked_spans(cursor.read_position, REPLAY_ENTRIES)
            if not spans:
                break
            for entry in await self._ledger.reads.read(spans):
                self.ids.replay(entry)
            cursor.seek(Position(spans[-1].ledger_id, spans[-1].stop))
        self.save()

    @property
    def persisted_mark_delete(self) -> Position:
        """Messages up to here are not needed any more to rebuild the map."""
        return self._store.persisted_mark_delete

    def confirmed(self, entries: Sequence[Entry], contexts: Sequence[Any]) -> None:
        """Record entries that became durable. Each context has `producer` and `sequence_ids`."""
        for entry, context in zip(entries, contexts, strict=True):
            if context.sequence_ids is not None:
                self.ids.confirmed(context.producer.name, context.sequence_ids, entry.position)
        self._unsaved_entries += len(contexts)
        if self._unsaved_entries >= self._save_interval_entries:
            self.save()

    def save(self) -> None:
        """Write the map soon, as of the end of the topic.

        Once the cursor is closed nothing is saved: the next owner rebuilds it from the messages.
        """
        cursor = self._store.cursor
        through = self._known_through()
        if through > cursor.mark_delete and not cursor.is_sealed:
            cursor.ack_cumulative(through, properties=self.ids.saved())
            self._store.notify()
        self._unsaved_entries = 0

    def _known_through(self) -> Position:
        """The last position up to which the map alone is sufficient."""
        ledgers = self._ledger.ledgers
        last = ledgers.last_confirmed
        needed = [
            position
            for position in self.ids.needed_positions()
            if ledgers.count_between(position, last) < self._save_interval_entries
        ]
        return ledgers.previous(min(needed)) if needed else last

    async def close(self) -> None:
        self.save()
        await self._store.close()

    def abandon(self, error: OwnershipError) -> None:
        """Stop at once, and write no more."""
        self._store.abandon(error)

    async def delete(self) -> None:
        """Delete the cursor and the stored map."""
        await self._store.delete()
