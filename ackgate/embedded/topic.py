"""A topic of an embedded storage: its messages, and the subscriptions that are open on it.

Edge. Messages lie in ledgers of the storage (`ManagedLedger`), or the host keeps them: then it says which
there are (`MessageLedgers`), and reads them itself::

    publish --> ManagedLedger.add --> durable --> every subscription: a turn
    a subscription's read <-- cache, ledgers, or the host's `read`
    all subscriptions have acked a ledger, durably --> it is deleted, unless the retention keeps it

A ledger is never deleted while a subscription is stored that is not open: its acks are unknown.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from ackgate.cursor import EARLIEST, MessageLedgers, run_of_positions
from ackgate.dispatcher import (
    Exclusive,
    Failover,
    GateSettings,
    KeyShared,
    Shared,
)
from ackgate.embedded.checks import check_entries, check_position, is_time
from ackgate.embedded.message import ENTRY_FORM, TopicEntry, encode_message
from ackgate.embedded.subscription import EmbeddedSubscription
from ackgate.errors import (
    AckGateError,
    CallerError,
    ClosedHandleError,
    ConfigurationError,
    OwnershipError,
)
from ackgate.persistence.messages.managed_ledger import ManagedLedger
from ackgate.persistence.messages.rules import Retention, RolloverLimits, trimmable
from ackgate.persistence.nodes.paths import cursor_path, embedded_topic_path, name_of_node
from ackgate.subscription import EntryRead, SubscriptionSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor import Position, Span
    from ackgate.dispatcher import SubscriptionKind
    from ackgate.persistence import CursorStore, LedgerClient, LedgerOptions, MetadataStore
    from ackgate.persistence.messages.cache import EntryCache
    from ackgate.subscription import EntryFacts

    HostRead: TypeAlias = Callable[[Sequence[Span]], Awaitable[Sequence[EntryFacts]]]

log = logging.getLogger(__name__)

ROLLOVER: Final = RolloverLimits(
    entries_max=50_000,
    size_bytes_max=256 * 1024 * 1024,
    age_ms_min=0,
    age_ms_max=4 * 3_600_000,
)
"""When a topic begins a new ledger: Pulsar's bounds, but for size and the least age."""

PUBLISH_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of a topic on their way to the disk; `publish` waits above it."""

KINDS: Final = (Shared, KeyShared, Exclusive, Failover)


class StoragePort(Protocol):
    """What a topic needs of its storage."""

    metadata: MetadataStore
    ledger_client: LedgerClient
    settings: PersistenceSettings
    cache: EntryCache[TopicEntry]
    now_ms: Callable[[], int]

    @property
    def ledger_options(self) -> LedgerOptions:
        """How message ledgers are stored."""

    async def open_store(
        self, path: str, ledgers: MessageLedgers, *, create_at: Position | None
    ) -> CursorStore:
        """The store of the cursor at this node."""

    def store_closed(self, path: str) -> None:
        """Note that the cursor's store is closed: it may be opened again."""

    def topic_closed(self, topic: EmbeddedTopic) -> None:
        """Note that the topic is closed: it may be opened again."""

    def check_loop(self) -> None:
        """Raise `CallerError` on another event loop."""


class _Publish:
    """One call of `publish`: done when all its messages are durable."""

    __slots__ = ("done", "missing", "positions")

    def __init__(self, messages: int) -> None:
        self.missing = messages
        self.positions: list[Position] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def added(self, position: Position) -> None:
        self.positions.append(position)
        self.missing -= 1
        if not self.missing and not self.done.done():
            self.done.set_result(None)

    def failed(self, error: AckGateError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class _Room:
    """Counts the bytes on their way to the disk, and lets publishers wait until there are fewer."""

    def __init__(self) -> None:
        self._bytes = 0
        self._is_free = asyncio.Event()
        self._is_free.set()

    def take(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        if self._bytes >= PUBLISH_BYTES_MAX:
            self._is_free.clear()

    def give_back(self, size_bytes: int) -> None:
        self._bytes -= size_bytes
        if self._bytes < PUBLISH_BYTES_MAX:
            self._is_free.set()

    async def wait(self) -> None:
        await self._is_free.wait()


class EmbeddedTopic:
    """One open topic. Made by `EmbeddedStorage.topic`."""

    def __init__(
        self,
        storage: StoragePort,
        name: str,
        *,
        ledgers: MessageLedgers | None,
        read: HostRead | None,
        retention: Retention,
    ) -> None:
        self.name = name
        self._storage = storage
        self._path = embedded_topic_path(name)
        self._read = read
        self._retention = retention
        self._room = _Room()
        self._ledger: ManagedLedger[TopicEntry] | None = None
        if ledgers is None:
            self._ledger = ManagedLedger(
                self._path,
                storage.ledger_client,
                storage.metadata,
                form=ENTRY_FORM,
                cache=storage.cache,
                options=storage.ledger_options,
                limits=ROLLOVER,
                clock_ms=storage.now_ms,
                sink=self,
                buffer=self._room,
            )
            ledgers = self._ledger.ledgers
        self.message_ledgers = ledgers
        """Which messages there are. A host that keeps them changes it, and then calls `published`."""
        self._subscriptions: dict[str, EmbeddedSubscription] = {}
        self._opening: set[str] = set()
        self._stored: set[str] = set()
        """Names of all subscriptions, open or not."""
        self._next_sequence_id = 0
        self._trim: asyncio.Task[None] | None = None
        self._error: AckGateError | None = None
        self._ended: asyncio.Future[None] | None = None
        """Done when it is closed; None: that has not begun."""
        self._is_closed = False
        """Whether its subscriptions are closed, and its ledger is about to be."""

    async def open(self) -> None:
        """Recover the ledgers. The storage calls this."""
        metadata = self._storage.metadata
        found = await metadata.get(self._path)
        if self._ledger is None:
            if found is not None and found.value:
                raise CallerError(
                    f"topic {self.name!r} keeps its messages here: open it without ledgers"
                )
        else:
            if found is not None and not found.value:
                raise CallerError(
                    f"topic {self.name!r} has cursors on messages that the host keeps: pass its ledgers"
                )
            await self._ledger.open(create=True)
            self._next_sequence_id = self.message_ledgers.total_entries
        self._stored = set(map(name_of_node, await metadata.children(self._path)))

    # ---------------------------------------------------------------- what is known

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """Names of all subscriptions of the topic, open or not."""
        return tuple(sorted(self._stored))

    @property
    def message_count(self) -> int:
        """Messages in the ledgers, acked or not."""
        return self.message_ledgers.total_entries

    @property
    def last_position(self) -> Position:
        """Position of the last durable message."""
        return self.message_ledgers.last_confirmed

    # ---------------------------------------------------------------- publishing

    async def publish(
        self, payloads: Iterable[bytes], *, key: str = "", deliver_at_ms: int = 0
    ) -> list[Position]:
        """Store messages, in order; returns where they lie, when they are durable.

        `key`: of all of them, for Key_Shared. `deliver_at_ms`: Shared and Key_Shared subscriptions deliver
        them no earlier, in ms since 1970. Raises `CallerError`, `StorageError` (some of them may be stored),
        `OwnershipError` (another owner has opened the topic).
        """
        self.check()
        if self._ledger is None:
            raise CallerError(f"the host keeps the messages of topic {self.name!r}")
        encoded = self._encoded(payloads, key, deliver_at_ms)
        if not encoded:
            return []
        await self._room.wait()
        self.check()
        publish = _Publish(len(encoded))
        for entry in encoded:
            self._ledger.add(entry, 1, publish, deliver_at_ms)
        await publish.done
        return publish.positions

    def _encoded(self, payloads: Iterable[bytes], key: str, deliver_at_ms: int) -> list[bytes]:
        if isinstance(payloads, bytes | bytearray | memoryview | str):
            raise CallerError("publish takes messages in a list, not one message")
        if not isinstance(key, str):
            raise CallerError(f"a key is text, not {key!r}")
        if not is_time(deliver_at_ms):
            raise CallerError(f"a delivery time is in ms since 1970, not {deliver_at_ms!r}")
        try:
            key_bytes = key.encode()
        except UnicodeEncodeError:
            raise CallerError(f"a key is valid Unicode, not {key!r}") from None
        now_ms, bytes_max = self.now_ms(), self._storage.settings.max_entry_bytes
        encoded = []
        try:
            payloads = list(payloads)
        except TypeError:
            raise CallerError(f"publish takes messages in a list, not {payloads!r}") from None
        for number, payload in enumerate(payloads):
            if not isinstance(payload, bytes | bytearray | memoryview):
                raise CallerError(f"message {number} is not bytes but {type(payload).__name__}")
            entry = encode_message(
                bytes(payload),
                sequence_id=self._next_sequence_id + number,
                published_ms=now_ms,
                key=key_bytes,
                deliver_at_ms=deliver_at_ms,
            )
            if len(entry) > bytes_max:
                raise CallerError(
                    f"message {number} takes {len(entry)} bytes, and an entry may have {bytes_max}"
                )
            encoded.append(entry)
        self._next_sequence_id += len(encoded)
        return encoded

    def published(self) -> None:
        """Let subscriptions look for messages that the host has added to its ledgers."""
        self.check()
        self._ask_turns()

    def ledger_trimmed(self, ledger_id: int) -> None:
        """Let subscriptions forget the acks of a ledger that the host trimmed first.

        The host trims it in `message_ledgers`.
        """
        self.check()
        for subscription in self._subscriptions.values():
            subscription.ledger_trimmed(ledger_id)

    # ---------------------------------------------------------------- subscribing

    async def subscribe(
        self,
        name: str,
        *,
        kind: SubscriptionKind | None = None,
        gate: GateSettings | None = None,
        settings: SubscriptionSettings | None = None,
        start: Position = EARLIEST,
    ) -> EmbeddedSubscription:
        """Open a subscription: the one that is stored, or a new one that begins at `start`.

        `kind` None: `Shared()`. `gate` replaces that of the settings. Raises `CallerError` (open already,
        or a wrong argument), `ConfigurationError` (the gate would let through more than is persisted),
        `StorageError`, `OwnershipError`, `CorruptRecordError`.
        """
        self.check()
        kind = Shared() if kind is None else kind
        if not isinstance(kind, KINDS):
            raise CallerError(
                f"kind is one of Shared(), KeyShared(), Exclusive(), Failover(), not {kind!r}"
            )
        if not isinstance(name, str):
            raise CallerError(f"a subscription's name is text, not {name!r}")
        check_position(start)
        settings = self._settings(gate, settings)
        path = cursor_path(self._path, name)
        if name in self._subscriptions or name in self._opening:
            raise CallerError(f"subscription {name!r} of {self.name!r} is open already")
        self._opening.add(name)
        try:
            ledgers = self.message_ledgers
            store = await self._storage.open_store(
                path, ledgers, create_at=ledgers.previous(ledgers.readable_at(start))
            )
        finally:
            self._opening.discard(name)
        if self._ended is not None or self._error is not None:  # in the meantime
            await store.close()
            self._storage.store_closed(path)
            self.check()
        self._stored.add(name)
        opened = EmbeddedSubscription(self, name, store, kind=kind, settings=settings)
        self._subscriptions[name] = opened
        return opened

    def _settings(
        self, gate: GateSettings | None, settings: SubscriptionSettings | None
    ) -> SubscriptionSettings:
        for value, wanted in ((gate, GateSettings), (settings, SubscriptionSettings)):
            if value is not None and not isinstance(value, wanted):
                raise CallerError(f"{wanted.__name__} was expected, not {value!r}")
        kept = self._storage.settings
        settings = settings or SubscriptionSettings(
            receipt_timeout_ms=int(kept.ack_receipt_timeout_seconds * 1000)
        )
        settings = settings if gate is None else replace(settings, gate=gate)
        ranges_max = kept.managed_ledger_max_unacked_ranges_to_persist
        if settings.gate.enabled and settings.gate.ranges_max > ranges_max:
            raise ConfigurationError(
                f"the gate lets through {settings.gate.ranges_max} ranges, and "
                f"managedLedgerMaxUnackedRangesToPersist keeps {ranges_max}"
            )
        return settings

    # ---------------------------------------------------------------- what subscriptions call

    def now_ms(self) -> int:
        return self._storage.now_ms()

    @property
    def average_entry_bytes(self) -> int:
        """Mean bytes of the current ledger's entries; 1 where the host keeps the messages."""
        return 1 if self._ledger is None else self._ledger.average_entry_bytes

    def cached(self, spans: Sequence[Span]) -> Sequence[Any] | None:
        """The entries of the spans if all are in memory; else None."""
        if self._ledger is not None:
            return self._ledger.reads.cached(spans)
        if self._read is not None:
            return None
        return [
            EntryRead(position)
            for span in spans
            for position in run_of_positions(span.ledger_id, span.start, span.stop)
        ]

    async def read(self, spans: Sequence[Span]) -> Sequence[Any]:
        """The entries, from where they are kept. A host's `read` may raise anything."""
        if self._ledger is not None:
            return await self._ledger.reads.read(spans)
        assert self._read is not None
        entries = await self._read(spans)
        check_entries(entries, spans, self.message_ledgers)
        return entries

    def closed(self, subscription: EmbeddedSubscription, *, is_deleted: bool = False) -> None:
        """A subscription was closed, or deleted."""
        self._subscriptions.pop(subscription.name, None)
        self._storage.store_closed(cursor_path(self._path, subscription.name))
        if is_deleted:
            self._stored.discard(subscription.name)
            self.trim_soon()

    def trim_soon(self) -> None:
        """Delete ledgers that are not needed, soon: something may be acked by all."""
        ledger = self._ledger
        if ledger is None or self._trim is not None or self._is_closed or self._error is not None:
            return
        through = self._consumed_through()
        if through is None:
            return
        if trimmable(
            ledger.ledger_records,
            through,
            self._retention,
            size_bytes=ledger.size_bytes,
            now_ms=self.now_ms(),
        ):
            self._trim = asyncio.get_running_loop().create_task(self._run_trim(ledger, through))

    def _consumed_through(self) -> Position | None:
        if not self._stored or self._stored != set(self._subscriptions):
            return None
        return min(each.persisted_mark_delete for each in self._subscriptions.values())

    async def _run_trim(self, ledger: ManagedLedger[TopicEntry], through: Position) -> None:
        try:
            await ledger.trim(through, self._retention)
        except OwnershipError as error:
            self.fail(error)
        except AckGateError as error:
            log.warning("topic %s: not trimmed: %s", self.name, error)
        finally:
            self._trim = None

    # ---------------------------------------------------------------- what the ledger calls

    def on_confirmed(self, entries: list[TopicEntry], contexts: list[Any]) -> None:
        for entry, publish in zip(entries, contexts, strict=True):
            publish.added(entry.position)
        self._ask_turns()

    def on_failed(self, contexts: list[Any], error: AckGateError) -> None:
        """Fail the publishes of these adds, which will not be retried."""
        for publish in contexts:
            publish.failed(error)

    def on_returned(self, entry_count: int) -> None:
        """Let subscriptions read entries that were reported as failed and are stored after all."""
        log.warning("topic %s: %d messages are stored after all", self.name, entry_count)
        self._ask_turns()

    def on_trimmed(self, ledger_ids: Sequence[int]) -> None:
        for ledger_id in ledger_ids:
            for subscription in self._subscriptions.values():
                subscription.ledger_trimmed(ledger_id)

    def on_fenced(self, error: AckGateError) -> None:
        """Another owner has opened the topic."""
        self.fail(error)

    def _ask_turns(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.ask_turn()

    # ---------------------------------------------------------------- the end

    def check_loop(self) -> None:
        """Raise `CallerError` on another event loop than the storage's."""
        self._storage.check_loop()

    def check(self) -> None:
        """Raise if the topic is closed or has failed, or on another event loop."""
        self._storage.check_loop()
        if self._error is not None:
            raise self._error
        if self._ended is not None:
            raise ClosedHandleError(f"topic {self.name!r} is closed")

    def fail(self, error: AckGateError) -> None:
        """End the topic: everybody who waits gets this error."""
        if self._error is not None or self._is_closed:
            return
        self._error = error
        for subscription in list(self._subscriptions.values()):
            subscription.fail(error)
        if self._ledger is not None and isinstance(error, OwnershipError):
            self._ledger.abandon(error)

    async def close(self) -> None:
        """Close its subscriptions, then its ledger. Twice is fine."""
        self.check_loop()
        if self._ended is not None:
            await asyncio.shield(self._ended)
            return
        self._ended = asyncio.get_running_loop().create_future()
        try:
            await self._close()
        finally:
            self._storage.topic_closed(self)
            self._ended.set_result(None)

    async def _close(self) -> None:
        try:
            for subscription in list(self._subscriptions.values()):
                await subscription.close()
        finally:
            self._is_closed = True
            if self._trim is not None:
                await asyncio.wait([self._trim])
            if self._ledger is not None:
                await self._ledger.close()
