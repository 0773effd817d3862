"""The message store of one topic: an ordered list of ledgers, the last one open for writing.

Edge. Owns the topic's metadata node, the current `LedgerWriter`, and the `MessageLedgers`
that the topic's cursors read. It refuses to confirm an entry before its ledger says that it is
durable, and to point the node at a ledger that does not exist.

Way of an entry::

    add ---> pending ---(end of loop tick)---> writer.append ---> in flight
                                                                     | durable, in order
    on_confirmed(entries, contexts) <--- ledgers, cache <------------+

When a write fails, the ledger is recovered: what the bookies have is confirmed (it is durable, and
adding it again would store it twice), the rest is appended to a new ledger in the same order.

Order of steps that a crash may interrupt: a new ledger is created before the node names it, and a
ledger leaves the node before it is deleted. What is left over carries the topic's path in its
custom metadata and is found at the next start.

The metadata store may fail to answer. `FencedNode` settles its writes; an opening that was not
answered begins again, with a higher epoch. While there is no ledger to write to for the store's
sake, adds wait, within bounds.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol
from zlib import crc32

from ackgate.cursor import MessageLedgers, Position, run_of_positions
from ackgate.errors import (
    AckGateError,
    CallerError,
    ClosedHandleError,
    InternalError,
    LedgerFencedError,
    MetadataConflictError,
    MetadataStoreError,
    NodeTooLargeError,
    NoSuchLedgerError,
    NoSuchNodeError,
    OutcomeUnknownError,
    OwnershipError,
    StorageError,
    StoreSuspendedError,
)
from ackgate.persistence.messages.entries import AddBatch, EntryT
from ackgate.persistence.messages.reads import MessageReads
from ackgate.persistence.messages.rules import trimmable
from ackgate.persistence.nodes.changes import until_answered
from ackgate.persistence.nodes.fenced_node import WRITES_MAX, FencedNode
from ackgate.persistence.nodes.topic_node import (
    TOPIC_PATH_KEY,
    MessageLedgerRecord,
    TopicNode,
    decode_topic_node,
    encode_topic_node,
)
from ackgate.persistence.ports import SessionState
from ackgate.persistence.system.backoff import backoff_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ackgate.persistence.messages.cache import EntryCache
    from ackgate.persistence.messages.entries import EntryForm
    from ackgate.persistence.messages.rules import Retention, RolloverLimits
    from ackgate.persistence.ports import (
        AppendTicket,
        LedgerClient,
        LedgerOptions,
        LedgerWriter,
        MetadataStore,
    )

log = logging.getLogger(__name__)

SWITCH_SECONDS_MAX: Final = 30.0
"""How long adds wait for a new ledger while the metadata store fails; the producers' own time-out."""

RETRY_SECONDS_FIRST: Final = 0.1
RETRY_SECONDS_MAX: Final = 2.0

CLOSE_SECONDS_MAX: Final = 30.0
"""How long a close waits for stores that hang. Long, since thousands may be closed at once."""


class ConfirmedSink(Protocol[EntryT]):
    """Receives durable entries, in order, and the failure of the store."""

    def on_confirmed(self, entries: list[EntryT], contexts: list[Any]) -> None:
        """These entries are durable; `contexts` are those of `add`, one per entry."""

    def on_failed(self, contexts: list[Any], error: AckGateError) -> None:
        """These adds will not be retried."""

    def on_returned(self, entry_count: int) -> None:
        """So many entries that were reported as failed are stored after all, and can be read."""

    def on_trimmed(self, ledger_ids: Sequence[int]) -> None:
        """These ledgers do not exist any more."""

    def on_fenced(self, error: AckGateError) -> None:
        """The topic has another owner now."""


class ByteBudget(Protocol):
    """Who counts the bytes of adds, from `add` until they are durable or have failed."""

    def take(self, size_bytes: int) -> None: ...

    def give_back(self, size_bytes: int) -> None: ...


class LedgerObserver(Protocol):
    """Who records the ledgers that come and go: a delivery journal."""

    def note_ledger_opened(self, ledger_id: int) -> None:
        """Entries are added to this one from now on."""

    def note_ledger_closed(self, ledger_id: int, entry_count: int) -> None:
        """This one has so many entries, for good."""


class ManagedLedger(Generic[EntryT]):
    """The message store of one topic. Call `open` first."""

    __slots__ = (
        "_buffer",
        "_cache",
        "_client",
        "_clock_ms",
        "_drained",
        "_form",
        "_in_flight",
        "_is_abandoned",
        "_is_closed",
        "_is_crowding_reported",
        "_is_fenced",
        "_is_flush_scheduled",
        "_is_forsaken",
        "_metadata",
        "_node",
        "_options",
        "_pending",
        "_refusal",
        "_sink",
        "_switch",
        "_unsettled",
        "_writer",
        "_writer_bytes",
        "_writer_entries",
        "_writer_opened_ms",
        "added_bytes",
        "added_entries",
        "average_entry_bytes",
        "journal",
        "ledgers",
        "limits",
        "path",
        "reads",
    )

    def __init__(
        self,
        path: str,
        client: LedgerClient,
        metadata: MetadataStore,
        *,
        form: EntryForm[EntryT],
        cache: EntryCache[EntryT],
        options: LedgerOptions,
        limits: RolloverLimits,
        clock_ms: Callable[[], int],
        sink: ConfirmedSink[EntryT],
        buffer: ByteBudget | None = None,
        refusal: Callable[[int], AckGateError | None] = lambda _: None,
    ) -> None:
        """`form`: how entries are made. `buffer` None: bytes are not counted.

        `refusal`: why so many bytes may not be stored now, whatever the ledgers could take.
        """
        self.path = path
        self.ledgers = MessageLedgers()
        self.limits = limits
        self.average_entry_bytes = 1024
        self.added_entries = 0
        self.added_bytes = 0
        self._client = client
        self._metadata = metadata
        self._cache = cache
        self._options = replace(options, custom_metadata={TOPIC_PATH_KEY: path.encode()})
        self._clock_ms = clock_ms
        self._sink = sink
        self._buffer = buffer
        self._form = form
        self._refusal = refusal
        self._node = FencedNode(
            metadata,
            path,
            empty=TopicNode(),
            encode=encode_topic_node,
            decode=decode_topic_node,
            of="topic",
        )
        self._writer: LedgerWriter | None = None
        self._writer_entries = 0
        self._writer_bytes = 0
        self._writer_opened_ms = 0
        self._pending = AddBatch()
        self._in_flight: list[AddBatch] = []
        self._is_flush_scheduled = False
        self._switch: asyncio.Task[None] | None = None
        self._unsettled: LedgerWriter | None = None
        """A ledger whose write failed, until it has been recovered."""
        self._is_forsaken = False
        """Whether what was in flight to it has been answered already, with an error."""
        self._is_fenced = False
        """Whether it failed since it was fenced: by a later owner, or by BookKeeper's AutoRecovery."""
        self._drained: asyncio.Event | None = None
        """Made for who waits until nothing is in flight."""
        self.reads = MessageReads(client, options.password, cache, self.ledgers, form=form)
        self.journal: LedgerObserver | None = None
        """Notified of new and deleted ledgers, if the topic has one."""
        self._is_closed = False
        self._is_abandoned = False
        self._is_crowding_reported = False

    # ---------------------------------------------------------------- opening

    async def open(self, *, create: bool, properties: Mapping[str, str] | None = None) -> None:
        """Read the node, recover the last ledger, begin a new one.

        `properties`: of a topic that is created. Raises `NoSuchNodeError` when the topic does not exist
        and `create` is false.
        """
        new = TopicNode(owner_epoch=1, properties=dict(properties or {})) if create else None

        async def attempt(is_doubtful: bool) -> tuple[LedgerWriter | None, list[int]]:  # noqa: FBT001
            try:
                return await self._claim(new)
            except MetadataConflictError as conflict:
                if is_doubtful:  # perhaps with our own, which came late
                    raise OutcomeUnknownError(self.path) from conflict
                raise

        writer, dropped = await until_answered(
            attempt, of=f"topic {self.path}", attempts_max=WRITES_MAX
        )
        for record in self._node.value.ledgers:
            if writer is None or record.ledger_id != writer.ledger_id:
                self.ledgers.open_ledger(record.ledger_id)
                self.ledgers.close_ledger(record.ledger_id, record.entry_count or 0)
        if writer is not None:
            self._write_to(writer)
        for ledger_id in dropped:
            await self._delete_ledger(ledger_id)

    async def _claim(self, new: TopicNode | None) -> tuple[LedgerWriter | None, list[int]]:
        """Recover, and put our epoch into the node, with a new ledger unless it is terminated.

        `new`: the node of a topic that does not exist; None: it is not to be created.

        Returns the ledger's writer, and the ledgers that hold nothing and are named no more.
        """
        node = await self._node.read()
        if node is None:
            if new is None:
                raise NoSuchNodeError(f"no topic at {self.path}")
            node = new
        else:
            ledgers = await self._recovered(node.ledgers)
            node = replace(node, owner_epoch=node.owner_epoch + 1, ledgers=ledgers)
        kept = tuple(record for record in node.ledgers if record.entry_count)
        dropped = [r.ledger_id for r in node.ledgers if not r.entry_count]
        node, writer = replace(node, ledgers=kept), None
        if not node.is_terminated:
            writer = await self._client.create(self._options)
            node = replace(node, ledgers=(*kept, self._record_of(writer)))
        try:
            await self._node.claim(node)
        except (MetadataConflictError, StoreSuspendedError, NodeTooLargeError) as error:
            if writer is not None:
                await self._delete_ledger(writer.ledger_id)  # nothing names it, and nothing will
            if not isinstance(error, NodeTooLargeError):
                raise
            log.error("topic %s can be read, and rejects messages: %s", self.path, error)  # noqa: TRY400
            await self._node.claim(replace(node, ledgers=kept))
            return None, dropped
        return writer, dropped

    async def _recovered(
        self, records: tuple[MessageLedgerRecord, ...]
    ) -> tuple[MessageLedgerRecord, ...]:
        recovered = []
        for record in records:
            if record.entry_count is not None:
                recovered.append(record)
                continue
            try:
                reader = await self._client.open(record.ledger_id, password=self._options.password)
            except NoSuchLedgerError:
                log.warning("topic %s: ledger %d is gone", self.path, record.ledger_id)
                recovered.append(replace(record, entry_count=0))
                continue
            recovered.append(
                replace(
                    record,
                    entry_count=reader.last_add_confirmed + 1,
                    size_bytes=reader.length_bytes,
                    closed_ms=self._clock_ms(),
                )
            )
            self.reads.keep(reader)
        return tuple(recovered)

    @property
    def owner_epoch(self) -> int:
        """Grows with every opening of the topic."""
        return self._node.value.owner_epoch

    @property
    def is_terminated(self) -> bool:
        """Whether the topic takes no more messages, for good."""
        return self._node.value.is_terminated

    @property
    def properties(self) -> Mapping[str, str]:
        return self._node.value.properties

    @property
    def ledger_records(self) -> tuple[MessageLedgerRecord, ...]:
        """The ledgers as the node names them, the current one with its present size."""
        if self._writer is None or not self._node.value.ledgers:
            return self._node.value.ledgers
        current = replace(self._node.value.ledgers[-1], size_bytes=self._writer_bytes)
        return (*self._node.value.ledgers[:-1], current)

    @property
    def size_bytes(self) -> int:
        """Payload bytes of all ledgers."""
        return sum(record.size_bytes for record in self.ledger_records)

    # ---------------------------------------------------------------- adding

    @property
    def pending_adds(self) -> int:
        """Entries that are not confirmed yet."""
        return len(self._pending) + sum(map(len, self._in_flight))

    def add(
        self, payload: bytes, message_count: int, context: object, deliver_at_ms: int = 0
    ) -> None:
        """Add an entry; the sink is called when it is durable. Never blocks."""
        pending = self._pending
        if deliver_at_ms > 0:
            pending.deliver_at_ms[len(pending.payloads)] = deliver_at_ms
        pending.payloads.append(payload)
        pending.message_counts.append(message_count)
        pending.contexts.append(context)
        pending.size_bytes += len(payload)
        if self._buffer is not None:
            self._buffer.take(len(payload))
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if not self._pending.payloads or self._switch is not None:
            return
        refusal = self._refusal(self._pending.size_bytes)
        if self._is_closed or self._node.value.is_terminated:
            refusal = ClosedHandleError(f"topic {self.path} takes no messages")
        if refusal is not None:
            refused, self._pending = self._pending, AddBatch()  # what is in flight goes on
            self._fail(refused, refusal)
            return
        if self._writer is None or self._may_roll():
            self._begin_switch()
            return
        batch, self._pending = self._pending, AddBatch()
        self._append(batch)

    def _append(self, batch: AddBatch) -> None:
        writer = self._writer
        if writer is None:
            raise InternalError(f"append without a ledger on {self.path}")
        self._in_flight.append(batch)
        try:
            ticket = writer.append(batch.payloads)
        except (StorageError, OwnershipError, ClosedHandleError) as error:
            self._on_write_failed(writer, error)
            return
        except CallerError as error:  # too large for an entry: the ledger is unharmed
            self._in_flight.pop()
            self._fail(batch, error)
            return
        self._writer_entries += len(batch.payloads)
        self._writer_bytes += batch.size_bytes
        self.added_bytes += batch.size_bytes
        self.average_entry_bytes = max(1, self._writer_bytes // self._writer_entries)
        ticket.durable.add_done_callback(lambda done: self._on_durable(writer, batch, ticket, done))

    def _on_durable(
        self,
        writer: LedgerWriter,
        batch: AddBatch,
        ticket: AppendTicket,
        done: asyncio.Future[None],
    ) -> None:
        if done.cancelled() or (error := done.exception()) is not None:
            if writer is self._writer:
                failure = error if not done.cancelled() else None
                self._on_write_failed(
                    writer,
                    failure
                    if isinstance(failure, AckGateError)
                    else StorageError(f"add to ledger {writer.ledger_id} failed: {failure!r}"),
                )
            return
        if writer is not self._writer:
            return  # a failed ledger: its recovery has decided about this batch
        self._in_flight.pop(0)
        self._confirm(writer.ledger_id, ticket.first_entry_id, batch)
        if not self._in_flight:
            self._nothing_in_flight()

    def _confirm(self, ledger_id: int, first_entry_id: int, batch: AddBatch) -> None:
        positions = run_of_positions(ledger_id, first_entry_id, first_entry_id + len(batch))
        entries = list(map(self._form.added, positions, batch.payloads, batch.message_counts))
        for place, deliver_at_ms in batch.deliver_at_ms.items():
            entries[place].deliver_at_ms = deliver_at_ms
        self.added_entries += len(entries)
        self.ledgers.add_entries(ledger_id, len(entries))
        self._cache.insert(ledger_id, entries)
        if self._buffer is not None:
            self._buffer.give_back(batch.size_bytes)
        self._sink.on_confirmed(entries, batch.contexts)

    def _fail_pending(self, error: AckGateError) -> None:
        failed = AddBatch.joined([*self._in_flight, self._pending])
        self._in_flight.clear()
        self._is_forsaken = True
        self._pending = AddBatch()
        self._nothing_in_flight()
        if failed.contexts:
            self._fail(failed, error)

    def _fail(self, batch: AddBatch, error: AckGateError) -> None:
        if self._buffer is not None:
            self._buffer.give_back(batch.size_bytes)
        self._sink.on_failed(batch.contexts, error)

    # ---------------------------------------------------------------- changing the ledger

    def _is_full(self) -> bool:
        if self._writer_entries == 0:
            return False
        return self.limits.is_full(
            entries=self._writer_entries,
            size_bytes=self._writer_bytes,
            age_ms=self._clock_ms() - self._writer_opened_ms,
        )

    def _may_roll(self) -> bool:
        """Not while the metadata store is out of touch: the ledger there is needs none of it.

        Nor when the node has little room for more ledgers: the one there is grows on.
        """
        return (
            self._is_full()
            and self._metadata.session_state is SessionState.CONNECTED
            and not self._is_crowded()
        )

    def _is_crowded(self) -> bool:
        if self._node.is_crowded and not self._is_crowding_reported:
            log.warning(
                "topic %s has %d ledgers, and its node little room for more: its ledger is kept, "
                "whatever its size, until older ones are consumed or retention ends",
                self.path,
                len(self._node.value.ledgers),
            )
        self._is_crowding_reported = self._node.is_crowded
        return self._is_crowding_reported

    def _on_write_failed(self, writer: LedgerWriter, error: AckGateError) -> None:
        if writer is not self._writer:
            return
        self._writer = self.reads.current = None
        log.warning("topic %s: ledger %d: %s", self.path, writer.ledger_id, error)
        self._is_fenced = isinstance(error, LedgerFencedError)
        if isinstance(error, OwnershipError) and not self._is_fenced:
            self._fail_pending(error)
            self._sink.on_fenced(error)
            return
        self._unsettled, self._is_forsaken = writer, False
        self._nothing_in_flight()  # a switch that waits for this ledger's entries waits no more
        self._begin_switch()

    def _begin_switch(self) -> None:
        if self._switch is None and not self._is_closed:
            self._switch = asyncio.get_running_loop().create_task(self._run_switch())

    async def _run_switch(self) -> None:
        """Close the current (or the failed) ledger and go on in a new one."""
        try:
            await self._switch_within_bounds()
        except OwnershipError as error:
            self._fail_pending(error)
            self._sink.on_fenced(error)
        except AckGateError as error:
            log.warning("topic %s: no ledger to write to: %s", self.path, error)
            self._fail_pending(error)
        finally:
            self._switch = None
        self._flush()

    async def _switch_within_bounds(self) -> None:
        """Take the steps, each again while the metadata store is only out of touch."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SWITCH_SECONDS_MAX
        attempt = 0
        while True:
            try:
                if self._writer is not None:
                    await self._close_writer()
                await self._settle_failed()
                if not self._is_closed:
                    await self._begin_ledger()
            except MetadataStoreError as error:
                attempt += 1
                seconds = backoff_seconds(
                    attempt,
                    first=RETRY_SECONDS_FIRST,
                    longest=RETRY_SECONDS_MAX,
                    seed=crc32(self.path.encode()),
                )
                is_hopeless = self._is_closed or not self._is_out_of_touch(error)
                if is_hopeless or loop.time() + seconds > deadline:
                    raise
                log.warning("topic %s: no ledger to write to yet: %s", self.path, error)
                await asyncio.sleep(seconds)
            else:
                return

    def _is_out_of_touch(self, error: MetadataStoreError) -> bool:
        """Whether waiting may help. A store that refuses (its disk is full) says so at once."""
        return (
            isinstance(error, StoreSuspendedError | OutcomeUnknownError)
            or self._metadata.session_state is not SessionState.CONNECTED
        )

    def _nothing_in_flight(self) -> None:
        if self._drained is not None:
            self._drained.set()

    async def _close_writer(self) -> None:
        writer = self._writer
        if writer is None:
            return
        while self._in_flight and self._writer is writer:
            drained = self._drained = self._drained or asyncio.Event()
            drained.clear()
            await drained.wait()
        if self._writer is not writer:  # it failed while draining
            await self._settle_failed()
            return
        await writer.close()
        self._close_record(writer.ledger_id, self._writer_entries, self._writer_bytes)
        self._writer = self.reads.current = None

    async def _settle_failed(self) -> None:
        """Recover a ledger whose write failed; confirm what it holds, requeue the rest."""
        writer = self._unsettled
        if writer is None:
            return
        if self._is_fenced:
            await self._node.check_owner()
            self._is_fenced = False
        self._node.check_ours()
        try:
            reader = await self._client.open(writer.ledger_id, password=self._options.password)
        except NoSuchLedgerError as error:
            # Only the topic's owner deletes its ledgers; without one, the next load of the topic does.
            raise OwnershipError(f"topic {self.path}: {error}") from error
        stored = reader.last_add_confirmed + 1
        next_entry = self.ledgers.entry_count(writer.ledger_id) or 0
        if not self._is_forsaken:
            waiting = AddBatch.joined([*self._in_flight, self._pending])
            self._in_flight.clear()
            self._nothing_in_flight()
            survivors = stored - next_entry
            self._pending = waiting[survivors:]
            if survivors > 0:
                self._confirm(writer.ledger_id, next_entry, waiting[:survivors])
        elif stored > next_entry:
            self._sink.on_returned(stored - next_entry)
            self._node.check_ours()
        self._unsettled = None
        self._close_record(writer.ledger_id, stored, reader.length_bytes)
        self.reads.keep(reader)

    def _close_record(self, ledger_id: int, entry_count: int, size_bytes: int) -> None:
        self.ledgers.close_ledger(ledger_id, entry_count)
        if self.journal is not None:
            self.journal.note_ledger_closed(ledger_id, entry_count)
        self._node.value = replace(
            self._node.value,
            ledgers=tuple(
                replace(
                    record,
                    entry_count=entry_count,
                    size_bytes=size_bytes,
                    closed_ms=self._clock_ms(),
                )
                if record.ledger_id == ledger_id
                else record
                for record in self._node.value.ledgers
            ),
        )

    async def _begin_ledger(self) -> None:
        writer = await self._client.create(self._options)
        record = self._record_of(writer)
        try:
            await self._node.change(lambda node: replace(node, ledgers=(*node.ledgers, record)))
        except (StoreSuspendedError, NodeTooLargeError):
            await self._delete_ledger(writer.ledger_id)  # nothing names it, and nothing will
            raise
        self._node.check_ours()
        self._write_to(writer)

    def _record_of(self, writer: LedgerWriter) -> MessageLedgerRecord:
        return MessageLedgerRecord(writer.ledger_id, None, 0, self._clock_ms(), None)

    def _write_to(self, writer: LedgerWriter) -> None:
        self.ledgers.open_ledger(writer.ledger_id)
        if self.journal is not None:
            self.journal.note_ledger_opened(writer.ledger_id)
        self._writer = self.reads.current = writer
        self._writer_entries = 0
        self._writer_bytes = 0
        self._writer_opened_ms = self._node.value.ledgers[-1].opened_ms

    # ---------------------------------------------------------------- trimming, ending

    async def trim(self, consumed_through: Position, retention: Retention) -> list[int]:
        """Delete closed ledgers that lie wholly at or below `consumed_through`, oldest first.

        Stops at the first that the retention keeps. Returns the ids of those that are gone.
        """
        gone = trimmable(
            self._node.value.ledgers,
            consumed_through,
            retention,
            size_bytes=self.size_bytes,
            now_ms=self._clock_ms(),
        )
        if gone:
            leaving = set(gone)
            await self._client.announce_deletion(gone)
            await self._node.change(
                lambda node: replace(
                    node, ledgers=tuple(r for r in node.ledgers if r.ledger_id not in leaving)
                )
            )
            for ledger_id in gone:
                self.ledgers.trim_ledger(ledger_id)
            self._sink.on_trimmed(gone)  # at once: cursors and ledgers must agree at every moment
            for ledger_id in gone:
                await self._delete_ledger(ledger_id)
        return gone

    async def _delete_ledger(self, ledger_id: int) -> None:
        self.reads.forget(ledger_id)
        try:
            await self._client.delete(ledger_id)
        except NoSuchLedgerError:
            pass
        except StorageError as error:
            log.warning("topic %s: ledger %d could not be deleted: %s", self.path, ledger_id, error)

    async def roll(self) -> None:
        """Close the current ledger, if it holds anything, and begin a new one."""
        if self._writer_entries and self._switch is None:
            self._begin_switch()
        if self._switch is not None:
            await asyncio.shield(self._switch)

    async def roll_if_due(self) -> None:
        """Roll when the current ledger is full or old (for topics without producers)."""
        if self._writer is not None and self._switch is None and self._may_roll():
            await self.roll()

    async def confirm_owner(self) -> None:
        """Return when it is certain that the topic had no later owner at some moment since the call.

        A read would not do: a server that lags may answer it. So the node is written as it is. Raises
        `OwnershipError`, `MetadataStoreError`.
        """
        await self._node.change()

    async def change_properties(
        self, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Replace the properties, durably. `change` may be called more than once.

        Raises what `change` raises, `OwnershipError`, `MetadataStoreError`, `NodeTooLargeError`.
        """
        await self._node.change(
            lambda node: replace(node, properties=dict(change(node.properties)))
        )

    async def terminate(self) -> Position:
        """Take no more messages, for good. Returns the last position."""
        self._node.value = replace(self._node.value, is_terminated=True)
        if self._switch is not None:
            await asyncio.shield(self._switch)
        await self._close_writer()
        await self._node.change()
        return self.ledgers.last_confirmed

    async def close(self) -> None:
        """Confirm what is in flight, close the current ledger, note its length. Twice is fine."""
        if self._is_closed:
            return
        if self._pending.payloads:
            self._flush()
        self._is_closed = True
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                if self._switch is not None:
                    await asyncio.shield(self._switch)
                if self._writer is not None:
                    await self._close_writer()
                    await self._node.change()
        except (AckGateError, TimeoutError) as error:
            log.warning("topic %s: not closed cleanly: %r", self.path, error)
        self._fail_pending(ClosedHandleError(f"topic {self.path} is closed"))
        self.forget_cached()

    def abandon(self, error: OwnershipError) -> None:
        """Release it at once, and write no more: it may have another owner.

        What is in flight fails, whatever becomes of it.
        """
        if not self._is_abandoned:
            self._is_abandoned = self._is_closed = True
            self._node.abandon(error)
            self._writer = self.reads.current = None
            self._fail_pending(error)
            self.forget_cached()

    async def delete(self) -> None:
        """Remove the topic's node and its ledgers. The cursors must be gone."""
        await self.close()
        ledgers = self._node.value.ledgers
        await self._client.announce_deletion(record.ledger_id for record in ledgers)
        await self._node.remove()
        for record in ledgers:
            await self._delete_ledger(record.ledger_id)

    def forget_cached(self) -> None:
        """Drop this topic's entries from the cache."""
        for ledger_id in self.ledgers.ledger_ids:
            self._cache.drop_ledger(ledger_id)
