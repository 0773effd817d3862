"""A Pulsar cluster by its metadata and bookies alone, for reading only.

Edge. No broker is asked, no ledger is fenced or recovered, nothing is written::

    cluster = await PulsarCluster.connect("zk:127.0.0.1:2181")
    async for topic in cluster.topics():
        for cursor in await cluster.cursors(topic):
            print(topic, cursor.subscription, cursor.acks.mark_delete, cursor.statistics.hole_count)

What it shows is what a broker that starts now would find. Acks that a running broker has in memory only
are not there (`ackgate.pulsar.admin` has those).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from ackgate.cursor import EARLIEST, Position
from ackgate.errors import (
    AckGateError,
    CallerError,
    CorruptRecordError,
    DigestMismatchError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchNodeError,
    StorageError,
)
from ackgate.persistence.bookkeeper import BookKeeperClient, client_settings
from ackgate.persistence.messages.unpack import unpacked, without_broker_metadata
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.pulsar.formats import (
    BucketPlace,
    DelayedRows,
    PersistedAcks,
    StoredTopic,
    decode_bucket_head,
    decode_bucket_segment,
    decode_cursor_entry,
    decode_cursor_node,
    decode_managed_ledger,
    entry_of_compacted,
    pieces_before,
)
from ackgate.pulsar.nodes import PulsarNodes, PulsarTopic, decoded, encoded, zookeeper_address
from ackgate.pulsar.policies import BrokerKeys, PolicyEvents, policies_in_force
from ackgate.pulsar.schemas import TopicSchema, ValueDecoder, decode_schema
from ackgate.pulsar.views import (
    BucketView,
    CursorView,
    LedgerView,
    PulsarLedgerOwner,
    ReadCursor,
    TopicLook,
    TopicView,
    owner_of_ledger,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.persistence.bookkeeper import BookKeeperSettings
    from ackgate.persistence.ports import LedgerEntry, UnrecoveredReader
    from ackgate.pulsar.policies import PulsarPolicies

_READ_STEP: Final = 200
"""Entries of one read."""

_LOOKS_MAX: Final = 5
"""How often a cursor is read while its topic's ledgers change."""

_LEDGERS_AT_ONCE: Final = 32
_NAMESPACES_KEPT: Final = 64
"""Whose topics' policies are in memory at a time."""

_POLICY_EVENTS_MAX: Final = 500_000
"""Of one namespace: a minute of reading. Brokers read as many when they start."""

_COMPACTION: Final = "__compaction"
"""The cursor of compaction. Its mark-delete's properties name the ledger that compaction has written."""

_GONE: Final = (NoSuchLedgerError, NoSuchEntryError)
"""Reading a cursor's ledger ends so when it was deleted: its broker has begun another, or it is lost."""


class PulsarCluster:
    """A cluster, opened for reading. Make it with `connect`, and close it."""

    def __init__(
        self,
        nodes: PulsarNodes,
        bookkeeper: str,
        session: SessionOptions | None = None,
        settings: BookKeeperSettings | None = None,
        password: bytes = b"",
    ) -> None:
        self._nodes = nodes
        self._bookkeeper = bookkeeper
        self._session = session
        self._settings = settings
        self._password = password
        self._opening: asyncio.Task[BookKeeperClient] | None = None
        self._events: dict[tuple[str, str], asyncio.Task[PolicyEvents]] = {}

    @classmethod
    async def connect(
        cls,
        metadata: str,
        *,
        bookkeeper: str | None = None,
        session: SessionOptions | None = None,
        bookies: BookKeeperSettings | None = None,
        password: bytes = b"",
    ) -> Self:
        """Begin a session to Pulsar's ZooKeeper.

        `metadata`: ``zk:HOST:PORT[,HOST:PORT...][/CHROOT]``, as broker.conf's metadataStoreUrl.
        `bookkeeper`: bookkeeperMetadataServiceUri, where that is set; default: ``/ledgers`` beside
        Pulsar's nodes. It is connected to when the first ledger is read, with `bookies` (TLS and
        SASL are there). `password`: managedLedgerPassword, where that is set. Raises
        `ConfigurationError`, `MetadataStoreError`.
        """
        servers, _, chroot = zookeeper_address(metadata).partition("/")
        beside = "/".join(filter(None, (chroot, "ledgers")))
        default = f"zk+null://{servers.replace(',', ';')}/{beside}"
        nodes = await PulsarNodes.open(metadata, session)
        return cls(nodes, bookkeeper or default, session, bookies, password)

    @classmethod
    async def connect_with(
        cls,
        settings: PersistenceSettings,
        metadata: str,
        *,
        bookkeeper: str | None = None,
        timeout_seconds: float | None = None,
    ) -> Self:
        """As `connect`, with the session, the bookies' TLS and login, and the password of a broker.conf.

        `timeout_seconds`: longest wait for an answer of ZooKeeper; default: the settings'.
        """
        session = SessionOptions.of(settings)
        if timeout_seconds is not None:
            session = replace(session, operation_timeout_seconds=timeout_seconds)
        return await cls.connect(
            metadata,
            bookkeeper=bookkeeper,
            session=session,
            bookies=client_settings(settings),
            password=settings.ledger_password,
        )

    async def close(self) -> None:
        """End the connections to bookies and the session to ZooKeeper."""
        for task in self._events.values():
            task.cancel()
        await asyncio.gather(*self._events.values(), return_exceptions=True)
        if self._opening is not None:
            self._opening.cancel()
            results = await asyncio.gather(self._opening, return_exceptions=True)
            for client in results:
                if isinstance(client, BookKeeperClient):
                    await client.close()
        await self._nodes.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def url(self) -> str:
        return self._nodes.url

    async def bookies(self) -> BookKeeperClient:
        """The client that ledgers are read with, read-only."""
        if self._opening is None:
            self._opening = asyncio.create_task(
                BookKeeperClient.connect(
                    self._bookkeeper,
                    settings=self._settings,
                    session=self._session,
                    is_read_only=True,
                )
            )
        return await asyncio.shield(self._opening)

    async def reader(self, ledger_id: int) -> UnrecoveredReader:
        """Open a ledger without recovery. Raises `NoSuchLedgerError`, `StorageError`."""
        client = await self.bookies()
        if self._password:
            # Of schemas and of delayed messages the password is empty, whatever is set.
            with contextlib.suppress(DigestMismatchError):
                return await client.open_without_recovery(ledger_id, password=self._password)
        return await client.open_without_recovery(ledger_id)

    # -------------------------------------------------------------------------------------- topics

    def topics(self, namespace: str | None = None) -> AsyncIterator[PulsarTopic]:
        """All topics and partitions, or those of one ``TENANT/NAMESPACE``, as they are found."""
        return self._nodes.topics(namespace)

    async def partitions(self, name: str) -> list[PulsarTopic]:
        """The topic of this name, or its partitions that exist. Raises `CallerError`."""
        topic = PulsarTopic.parse(name)
        count = await self._nodes.partition_count(topic)
        partitions = [topic.partition(index) for index in range(count)] or [topic]
        found = await asyncio.gather(*(self._nodes.get(partition.path) for partition in partitions))
        there = [
            partition for partition, node in zip(partitions, found, strict=True) if node is not None
        ]
        if not there:
            raise CallerError(f"there is no topic {topic} in {self.url}")
        return there

    async def node(self, topic: PulsarTopic) -> StoredTopic:
        """The topic's node: its ledgers. Raises `NoSuchNodeError`, `CorruptRecordError`."""
        node = await self._nodes.get(topic.path)
        if node is None:
            raise NoSuchNodeError(f"there is no topic {topic} in {self.url}")
        return decode_managed_ledger(node.value, name=f"{self.url}{topic.path}")

    async def topic(self, topic: PulsarTopic, *, only_confirmed: bool = False) -> TopicView:
        """The topic with the entries of its open ledger counted. Raises as `node`; `StorageError`.

        `only_confirmed`: without those that a crash of the writer might still take away.
        """
        stored = await self.node(topic)
        counts = dict(sorted(stored.entry_counts.items()))
        open_bytes = None
        for ledger in stored.ledgers:
            if ledger.entries is None:
                try:
                    found, open_bytes = await self.extent(
                        ledger.ledger_id, only_confirmed=only_confirmed
                    )
                except NoSuchLedgerError:
                    found = 0
                counts[ledger.ledger_id] = found
        return TopicView(topic, stored, dict(sorted(counts.items())), open_bytes)

    async def extent(self, ledger_id: int, *, only_confirmed: bool = False) -> tuple[int, int]:
        """Entries and bytes of a ledger, of an open one as its bookies have them now.

        Raises `NoSuchLedgerError`, `StorageError`.
        """
        reader = await self.reader(ledger_id)
        confirmed = reader.last_add_confirmed
        found = confirmed if only_confirmed else await reader.last_entry_found()
        length = reader.length_bytes
        for start in range(confirmed + 1, found + 1, _READ_STEP):  # the last adds of a writer
            entries = await reader.read_unconfirmed(start, min(found, start + _READ_STEP - 1))
            length += sum(len(entry.payload) for entry in entries)
        return found + 1, length

    async def subscriptions(self, topic: PulsarTopic) -> list[str]:
        """Names of the topic's cursors, those that brokers keep for themselves among them."""
        return await self._nodes.subscriptions(topic)

    # ------------------------------------------------------------------------------------ policies

    async def broker_keys(self, given: BrokerKeys | None = None) -> BrokerKeys:
        """`given` with what was changed at run time for all brokers. Raises `CorruptRecordError`."""
        dynamic = await self._nodes.dynamic_configuration()
        return (given or BrokerKeys()).updated(dynamic, "dynamic configuration")

    async def policies(
        self, topic: PulsarTopic, broker: BrokerKeys | None = None
    ) -> PulsarPolicies:
        """What is in force for the topic. `broker`: the brokers' keys; default: `broker_keys()`.

        Raises `ConfigurationError`, `CorruptRecordError`, `StorageError`.
        """
        broker = broker or await self.broker_keys()
        of_namespace = await self._nodes.namespace_policies(topic)
        place = topic.tenant, topic.namespace
        if place not in self._events:
            while len(self._events) >= _NAMESPACES_KEPT:
                self._events.pop(next(iter(self._events)))
            self._events[place] = asyncio.create_task(self._policy_events(*place))
        events = await asyncio.shield(self._events[place])
        return policies_in_force(topic, events.of(topic), of_namespace, broker)

    async def _policy_events(self, tenant: str, namespace: str) -> PolicyEvents:
        """The policies of the namespace's topics: its topic of events, read from its beginning."""
        name = PulsarTopic(tenant, namespace, "__change_events")
        try:
            partitions = await self.partitions(str(name))
        except CallerError:
            return PolicyEvents()
        try:
            return await self._read_policy_events(partitions)
        except _GONE:  # compacted and trimmed meanwhile
            return await self._read_policy_events(partitions)

    async def _read_policy_events(self, partitions: Sequence[PulsarTopic]) -> PolicyEvents:
        events = PolicyEvents()
        decoder = ValueDecoder(await self.schemas(partitions[0]))
        count = 0
        for partition in partitions:
            compacted = await self.compacted_ledger_id(partition)
            ledger_ids = [ledger.ledger_id for ledger in (await self.node(partition)).ledgers]
            # What is compacted comes first: all that is left of the topic itself is newer or says the same.
            for ledger_id in ledger_ids if compacted is None else [compacted, *ledger_ids]:
                async for entry in self.entries(ledger_id):
                    count += 1
                    if count > _POLICY_EVENTS_MAX:
                        raise StorageError(f"{partition}: more than {_POLICY_EVENTS_MAX:,} events")
                    payload, position = entry.payload, Position(ledger_id, entry.entry_id)
                    if ledger_id == compacted:
                        payload = entry_of_compacted(payload, name=f"{partition} {position}")
                    _apply_events(events, decoder, payload, partition, position)
        return events

    async def compacted_ledger_id(self, topic: PulsarTopic) -> int | None:
        """The ledger that holds the compacted topic; None: it was never compacted. Raises as `look`."""
        if _COMPACTION not in await self.subscriptions(topic):
            return None
        [cursor] = await self.cursors(topic, [_COMPACTION])
        return cursor.acks.properties.get("CompactedTopicLedger")

    # ------------------------------------------------------------------------------------- cursors

    async def cursors(
        self, topic: PulsarTopic, subscriptions: Sequence[str] | None = None
    ) -> list[CursorView]:
        """The topic's cursors, or these. Raises `CallerError`, `CorruptRecordError`, `StorageError`."""
        found = await self.look(topic, subscriptions)
        for error in found.failures.values():
            raise error
        return found.cursors

    async def look(
        self, topic: PulsarTopic, subscriptions: Sequence[str] | None = None
    ) -> TopicLook:
        """The topic with its cursors, or these. Raises as `topic`."""
        names = await self.subscriptions(topic) if subscriptions is None else subscriptions
        stored = await self.node(topic)
        reads: dict[str, ReadCursor | None] = dict.fromkeys(names)
        failures: dict[str, AckGateError] = {}
        for attempt in range(1, _LOOKS_MAX + 1):
            for name in names:
                reads[name] = None
                try:
                    reads[name] = await self._cursor(topic, name, stored)
                except NoSuchNodeError as error:
                    if subscriptions is not None:  # else it was deleted meanwhile
                        failures[name] = error
                except AckGateError as error:
                    failures[name] = error
            # After the cursors: what they have acked was written before.
            view = await self.topic(topic)
            cursors = [read.against(view) for read in reads.values() if read is not None]
            # A ledger that was begun or trimmed between two reads makes acks seem impossible.
            strange = [
                cursor.subscription
                for cursor in cursors
                if not cursor.misfits.is_clean or cursor.acks.ranges_unread
            ]
            if not strange or view.node == stored or attempt == _LOOKS_MAX:
                break
            names, stored = strange, view.node
        return TopicLook(view, cursors, failures)

    async def _cursor(self, topic: PulsarTopic, name: str, stored: StoredTopic) -> ReadCursor:
        path = f"{topic.path}/{encoded(name)}"
        counts = stored.entry_counts
        seen: set[int] = set()
        while True:
            node = await self._nodes.get(path)
            if node is None:
                raise NoSuchNodeError(f"{topic} has no subscription {name!r}")
            decoded = decode_cursor_node(node.value, name=f"{self.url}{path}", entry_counts=counts)
            acks = decoded.state or PersistedAcks(EARLIEST, {}, {})
            view = ReadCursor(name, decoded, node.modified_ms, acks)
            ledger_id = decoded.cursor_ledger_id
            if ledger_id is None:
                return view
            try:
                return await self._with_ledger(view, ledger_id, counts)
            except _GONE as error:
                if ledger_id not in seen:  # its broker may have begun another one meanwhile
                    seen.add(ledger_id)
                    continue
                return replace(
                    view, source="rolled back", trouble=f"cursor ledger {ledger_id}: {error}"
                )

    async def _with_ledger(
        self, view: ReadCursor, ledger_id: int, counts: Mapping[int, int]
    ) -> ReadCursor:
        reader = await self.reader(ledger_id)
        last = await reader.last_entry_found()
        created_ms = (await (await self.bookies()).metadata(ledger_id)).created_ms
        if last < 0:
            return replace(
                view, source="rolled back", trouble=f"cursor ledger {ledger_id} has no entry"
            )
        acks = await self._state(reader, last, counts)
        first = acks if last == 0 else await self._first_state(reader, counts)
        return replace(
            view,
            source="ledger",
            acks=acks,
            written_entries=last + 1,
            begun_ms=created_ms,
            ranges_then=None if first is None else first.range_count,
        )

    async def _state(
        self, reader: UnrecoveredReader, last: int, counts: Mapping[int, int]
    ) -> PersistedAcks:
        """The newest state of a cursor's ledger."""
        name = f"cursor ledger {reader.ledger_id}, entry {last}"
        [entry] = await reader.read_unconfirmed(last, last)
        payload = entry.payload
        pieces = pieces_before(payload, name=name)
        if pieces > last:
            raise CorruptRecordError(f"{name}: {pieces} pieces before it, which are not there")
        if pieces:
            before = await reader.read_unconfirmed(last - pieces, last - 1)
            payload = b"".join(piece.payload for piece in before)
        return decode_cursor_entry(payload, name=name, entry_counts=counts)

    async def _first_state(
        self, reader: UnrecoveredReader, counts: Mapping[int, int]
    ) -> PersistedAcks | None:
        try:
            return await self._state(reader, 0, counts)
        except (CorruptRecordError, StorageError):
            return None  # for a forecast only

    async def history(
        self, cursor: CursorView, *, states_max: int
    ) -> AsyncIterator[tuple[int, PersistedAcks]]:
        """(entry, state) of the cursor's ledger, oldest first; spread evenly where there are more.

        Entries that cannot be decoded are left out. Raises `NoSuchLedgerError`, `StorageError`.
        """
        if cursor.source != "ledger" or cursor.cursor_ledger_id is None:
            return
        counts = (await self.node(cursor.topic)).entry_counts
        reader = await self.reader(cursor.cursor_ledger_id)
        last = cursor.written_entries - 1
        wanted = min(states_max, cursor.written_entries)
        for entry_id in sorted(
            {last - last * place // max(1, wanted - 1) for place in range(wanted)}
        ):
            with contextlib.suppress(CorruptRecordError):
                yield entry_id, await self._state(reader, entry_id, counts)

    # ------------------------------------------------------------------ delayed messages, entries

    async def bucket(self, place: BucketPlace) -> BucketView:
        """Read a bucket by the first entry of its snapshot.

        Raises `CorruptRecordError`, `StorageError`.
        """
        reader = await self.reader(place.snapshot_ledger_id)
        [head] = await reader.read_unconfirmed(0, 0)
        segments = decode_bucket_head(head.payload, name=f"bucket {place.snapshot_ledger_id}")
        return BucketView(place, tuple(segments), reader.length_bytes)

    async def delayed_rows(self, place: BucketPlace) -> AsyncIterator[tuple[int, DelayedRows]]:
        """(segment, its delayed entries) of a bucket. Raises as `bucket`."""
        async for entry in self.entries(place.snapshot_ledger_id, first=1):
            name = f"bucket {place.snapshot_ledger_id}, segment {entry.entry_id - 1}"
            yield entry.entry_id - 1, decode_bucket_segment(entry.payload, name=name)

    async def entries(
        self, ledger_id: int, *, first: int = 0, last: int | None = None
    ) -> AsyncIterator[LedgerEntry]:
        """Entries of a ledger, up to what its bookies have. Raises `NoSuchLedgerError` and as a read."""
        reader = await self.reader(ledger_id)
        end = await reader.last_entry_found()
        end = end if last is None else min(end, last)
        for start in range(first, end + 1, _READ_STEP):
            for entry in await reader.read_unconfirmed(start, min(end, start + _READ_STEP - 1)):
                yield entry

    async def schemas(self, topic: PulsarTopic) -> list[TopicSchema]:
        """All versions of the topic's schema. Raises `CorruptRecordError`, `StorageError`."""
        places = await self._nodes.schema_places(topic)
        found = []
        for version, at in places:
            reader = await self.reader(at.ledger_id)
            [entry] = await reader.read_unconfirmed(at.entry_id, at.entry_id)
            found.append(decode_schema(entry.payload, version, name=f"schema {version} of {topic}"))
        return found

    # ------------------------------------------------------------------------------------- ledgers

    async def ledgers(
        self,
        *,
        orphans_after_ms: int | None = None,
        failed: Callable[[str, AckGateError], None] | None = None,
    ) -> AsyncIterator[LedgerView]:
        """Every ledger of the BookKeeper cluster, ascending, with its owner.

        `orphans_after_ms`: look whether each is still named by its owner. Younger ones are not judged:
        their brokers may be about to name them. `failed`: takes what cannot be read (its name, the
        error), which is raised otherwise.
        """
        client = await self.bookies()
        now_ms = time.time_ns() // 1_000_000
        ledger_ids = await client.ledger_ids()
        for at in range(0, len(ledger_ids), _LEDGERS_AT_ONCE):
            some = ledger_ids[at : at + _LEDGERS_AT_ONCE]
            found = await asyncio.gather(
                *(self._ledger(client, i, now_ms, orphans_after_ms) for i in some),
                return_exceptions=True,
            )
            for ledger_id, view in zip(some, found, strict=True):
                if isinstance(view, LedgerView):
                    yield view
                elif isinstance(view, AckGateError) and failed is not None:
                    failed(f"ledger {ledger_id}", view)
                elif view is not None:
                    raise view

    async def _ledger(
        self, client: BookKeeperClient, ledger_id: int, now_ms: int, age_ms: int | None
    ) -> LedgerView | None:
        try:
            metadata = await client.metadata(ledger_id)
        except NoSuchLedgerError:
            return None  # deleted meanwhile
        owner = owner_of_ledger(metadata)
        if age_ms is None or now_ms - metadata.created_ms < age_ms:
            return LedgerView(metadata, owner)
        return LedgerView(metadata, owner, await self._is_orphan(ledger_id, owner))

    async def _is_orphan(self, ledger_id: int, owner: PulsarLedgerOwner) -> bool | None:
        path = f"/managed-ledgers/{owner.managed_ledger}"
        match owner.kind:
            case "messages":
                node = await self._nodes.get(path)
                if node is None:
                    return True
                stored = decode_managed_ledger(node.value, name=f"{self.url}{path}")
                return ledger_id not in {ledger.ledger_id for ledger in stored.ledgers}
            case "cursor" | "delayed":
                path = f"{path}/{encoded(owner.cursor)}"
                node = await self._nodes.get(path)
                if node is None:
                    return True
                cursor = decode_cursor_node(node.value, name=f"{self.url}{path}")
                named = {bucket.snapshot_ledger_id for bucket in cursor.buckets}
                return ledger_id not in {cursor.cursor_ledger_id, *named}
            case "schema":
                parts = owner.managed_ledger.split("/")
                topic = PulsarTopic(parts[0], "/".join(parts[1:-1]), decoded(parts[-1]))
                named = {at.ledger_id for _, at in await self._nodes.schema_places(topic)}
                return ledger_id not in named
            case "compacted":
                if owner.topic is None or await self._nodes.get(owner.topic.path) is None:
                    return None if owner.topic is None else True
                return ledger_id != await self.compacted_ledger_id(owner.topic)
            case _:
                return None


def _apply_events(
    events: PolicyEvents, decoder: ValueDecoder, payload: bytes, topic: PulsarTopic, at: Position
) -> None:
    for message in unpacked(without_broker_metadata(payload, at).entry, at):
        about = message.metadata
        own = about if message.single is None else message.single
        event = None
        if message.payload is not None:
            try:
                event = decoder.decode(message.payload, about.schema_version)
            except ValueError as error:
                raise CorruptRecordError(f"{topic} {at}: {error}") from error
        events.apply(own.partition_key, event, clusters=len(about.replicate_to))
