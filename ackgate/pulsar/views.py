"""What is read of a Pulsar cluster, as values: topics, cursors, buckets of delayed messages, ledgers.

Pure. `PulsarCluster` reads; a cursor is counted here against the ledgers of its topic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ackgate.cursor import ManagedCursor, MessageLedgers
from ackgate.errors import CallerError
from ackgate.pulsar.nodes import PulsarTopic, decoded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.cursor import CursorStatistics, RecoveredStateReport
    from ackgate.errors import AckGateError
    from ackgate.persistence.ports import LedgerMetadata
    from ackgate.pulsar.formats import (
        BucketPlace,
        PersistedAcks,
        StoredSegment,
        StoredSubscription,
        StoredTopic,
    )
    from ackgate.pulsar.restarts import Acks

_INTERNAL: Final = "#pulsar.internal."


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic, or a partition, as its node and its bookies have it."""

    topic: PulsarTopic
    node: StoredTopic
    entry_counts: Mapping[int, int]
    """Entries of each ledger, ascending; of the one that is being written as found on the bookies."""
    open_bytes: int | None = None
    """Bytes of the ledger that is being written."""

    @property
    def entries(self) -> int:
        return sum(self.entry_counts.values())

    @property
    def bytes(self) -> int:
        return sum(ledger.bytes or 0 for ledger in self.node.ledgers) + (self.open_bytes or 0)

    def message_ledgers(self, acks: Acks) -> MessageLedgers:
        """For a cursor. An open ledger has at least the entries that are acked."""
        ledgers = MessageLedgers()
        for stored in self.node.ledgers:
            ledger_id, entries = stored.ledger_id, self.entry_counts[stored.ledger_id]
            if stored.entries is None:
                bitmap = acks.acked.get(ledger_id)
                marked = acks.mark_delete.entry_id if acks.mark_delete[0] == ledger_id else -1
                entries = max(entries, marked + 1, bitmap.max() + 1 if bitmap else 0)
            ledgers.open_ledger(ledger_id)
            ledgers.close_ledger(ledger_id, entries)
        return ledgers


@dataclass(frozen=True, slots=True)
class CursorView:
    """A subscription as persisted, counted against the ledgers of its topic."""

    topic: PulsarTopic
    subscription: str
    source: Literal["ledger", "node", "rolled back"]
    """Where the state was read. Rolled back: a restart cannot read the cursor's ledger, and takes the
    mark-delete that the node has from before, without ranges."""
    acks: PersistedAcks
    statistics: CursorStatistics
    """Holes, ranges and backlog against the ledgers that exist."""
    misfits: RecoveredStateReport
    """Acks that concern no existing entry."""
    cursor_ledger_id: int | None
    written_entries: int
    """Entries of the cursor's ledger: how often its state was written since it was begun."""
    begun_ms: int | None
    """When that ledger was begun."""
    ranges_then: int | None
    """Ranges of the first state in it."""
    changed_ms: int
    """When the node was changed last."""
    buckets: tuple[BucketPlace, ...]
    """Sealed buckets of delayed messages."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties of the subscription, without Pulsar's internal ones."""
    trouble: str | None = None
    """Why a restart would lose acks: the ledger cannot be read."""


class TopicLook(NamedTuple):
    """A topic and its cursors, read one after the other."""

    view: TopicView
    cursors: list[CursorView]
    failures: dict[str, AckGateError]
    """Cursors that cannot be read, and why."""

    @property
    def ledger_ids(self) -> set[int]:
        """All ledgers that the topic and its cursors name."""
        named = {ledger.ledger_id for ledger in self.view.node.ledgers}
        for cursor in self.cursors:
            named.update(place.snapshot_ledger_id for place in cursor.buckets)
            if cursor.cursor_ledger_id is not None:
                named.add(cursor.cursor_ledger_id)
        return named


@dataclass(frozen=True, slots=True)
class ReadCursor:
    """A cursor as it was read, before it is counted against its topic's ledgers."""

    subscription: str
    stored: StoredSubscription
    changed_ms: int
    acks: PersistedAcks
    source: Literal["ledger", "node", "rolled back"] = "node"
    written_entries: int = 0
    begun_ms: int | None = None
    ranges_then: int | None = None
    trouble: str | None = None

    def against(self, topic: TopicView) -> CursorView:
        acks = self.acks
        ledgers = topic.message_ledgers(acks)
        cursor, misfits = ManagedCursor.from_snapshot(ledgers, acks.snapshot(version=0))
        properties = self.stored.properties
        return CursorView(
            topic=topic.topic,
            subscription=self.subscription,
            source=self.source,
            acks=acks,
            statistics=cursor.statistics(),
            misfits=misfits,
            cursor_ledger_id=self.stored.cursor_ledger_id,
            written_entries=self.written_entries,
            begun_ms=self.begun_ms,
            ranges_then=self.ranges_then,
            changed_ms=self.changed_ms,
            buckets=tuple(self.stored.buckets),
            properties={k: v for k, v in properties.items() if not k.startswith(_INTERNAL)},
            trouble=self.trouble,
        )


@dataclass(frozen=True, slots=True)
class BucketView:
    """A sealed bucket of delayed messages, by its snapshot."""

    place: BucketPlace
    segments: tuple[StoredSegment, ...]
    bytes: int
    """Bytes of the snapshot."""

    @property
    def entries(self) -> int:
        """Delayed entries, those delivered since among them."""
        return sum(len(b) for segment in self.segments for b in segment.entries.values())

    def due_by(self, now_ms: int) -> int:
        """Entries of segments whose whole time has passed."""
        past = [segment for segment in self.segments if segment.max_due_ms <= now_ms]
        return sum(len(b) for segment in past for b in segment.entries.values())


@dataclass(frozen=True, slots=True)
class PulsarLedgerOwner:
    """The owner of a ledger, as the ledger's own metadata name it."""

    kind: Literal["messages", "cursor", "delayed", "schema", "compacted", "other"]
    managed_ledger: str = ""
    """``tenant/namespace/persistent/topic``, encoded; of a schema its id."""
    cursor: str = ""

    @property
    def topic(self) -> PulsarTopic | None:
        return PulsarTopic.of_managed_ledger(self.managed_ledger)


@dataclass(frozen=True, slots=True)
class LedgerView:
    """A ledger of the cluster."""

    metadata: LedgerMetadata
    owner: PulsarLedgerOwner
    is_orphan: bool | None = None
    """Whether its owner names it no more, so that it is never deleted. None: not known."""


def owner_of_ledger(metadata: LedgerMetadata) -> PulsarLedgerOwner:
    """The owner of a ledger, by the custom metadata that Pulsar gives it."""
    custom = {k: v.decode(errors="replace") for k, v in metadata.custom_metadata.items()}
    name = custom.get("pulsar/managed-ledger", "")
    match custom.get("component"):
        case "managed-ledger":
            cursor = decoded(custom.get("pulsar/cursor", ""))
            return PulsarLedgerOwner("cursor" if cursor else "messages", name, cursor)
        case "delayed-index-bucket":
            topic = _managed_ledger(custom.get("pulsar/delayedIndexTopic", ""))
            cursor = decoded(custom.get("pulsar/delayedIndexCursor", ""))
            return PulsarLedgerOwner("delayed", topic, cursor)
        case "schema":
            return PulsarLedgerOwner("schema", custom.get("pulsar/schemaId", ""))
        case "compacted-ledger":
            return PulsarLedgerOwner(
                "compacted", _managed_ledger(custom.get("pulsar/compactedTopic", ""))
            )
    return PulsarLedgerOwner("other", name)


def _managed_ledger(topic: str) -> str:
    try:
        return PulsarTopic.parse(topic).managed_ledger
    except CallerError:
        return topic
