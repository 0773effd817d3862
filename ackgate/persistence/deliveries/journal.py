"""The delivery journal of one topic: ledgers that hold blocks of events, and the node that lists them.

Edge: the ledger client and the metadata store.

    node      [ ledger 12: closed, 64 MB ]  [ ledger 19: closed ]  [ ledger 23: open ]
    trimming   from here: first out of the node, then deleted       appended to here

A ledger is in the node before anything is written into it, and out of the node before it is deleted;
`find_orphan_journals` finds what a crash leaves between the two. The closing of a ledger is written
with the next change: opening the journal closes every ledger that the node calls open.

The journal never holds up a broker: the caller drops and counts a block that cannot be written. An
owner that has lost the topic never writes the node again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self
from zlib import crc32

from ackgate.errors import (
    AckGateError,
    CallerError,
    ClosedHandleError,
    LedgerFencedError,
    NoSuchLedgerError,
    OwnershipError,
    StorageError,
)
from ackgate.persistence.cursors.ledger import ledger_options
from ackgate.persistence.deliveries.events import encode_events
from ackgate.persistence.deliveries.node import (
    JOURNAL_PATH_KEY,
    JOURNAL_TOPIC_KEY,
    DeliveryJournalNode,
    JournalLedgerRecord,
    decode_journal_node,
    encode_journal_node,
    ledgers_of_journal,
)
from ackgate.persistence.nodes.changes import until_won
from ackgate.persistence.nodes.fenced_node import WRITES_MAX, FencedNode
from ackgate.persistence.nodes.unnamed_ledgers import find_unnamed
from ackgate.persistence.records.envelope import Compression, Packing
from ackgate.persistence.system.backoff import backoff_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ackgate.config.journal import JournalSettings
    from ackgate.config.persistence import PersistenceSettings
    from ackgate.persistence.deliveries.columns import EventColumns
    from ackgate.persistence.ports import LedgerClient, LedgerWriter, MetadataStore

log = logging.getLogger(__name__)

LEDGERS_MAX: Final = 1_000
"""Most ledgers of one journal: its node is to stay small, however often a ledger is replaced."""

RETRY_SECONDS_FIRST: Final = 0.5
RETRY_SECONDS_MAX: Final = 60.0

_PACKING: Final = Packing(Compression.ZSTD)


@dataclass(slots=True)
class _OpenLedger:
    writer: LedgerWriter
    opened_at: float
    event_count: int | None = 0
    """None: unknown, since a block was under way."""

    @property
    def ledger_id(self) -> int:
        return self.writer.ledger_id

    @property
    def size_bytes(self) -> int:
        return self.writer.length_bytes


class DeliveryJournal:
    """The journal of one topic, as its owner writes it. Calls wait for each other."""

    def __init__(
        self,
        client: LedgerClient,
        metadata: MetadataStore,
        path: str,
        *,
        topic_path: str,
        settings: PersistenceSettings,
        journal_settings: JournalSettings,
        clock_ms: Callable[[], int],
    ) -> None:
        self.path = path
        self._client = client
        self._topic_path = topic_path
        self._settings = settings
        self._journal_settings = journal_settings
        self._clock_ms = clock_ms
        self._node = FencedNode(
            metadata,
            path,
            empty=DeliveryJournalNode(),
            encode=encode_journal_node,
            decode=decode_journal_node,
            of="delivery journal",
        )
        self._current: _OpenLedger | None = None
        self._unnamed: set[int] = set()
        """Ledgers that the node surely does not name: to be deleted."""
        self._doubtful: set[int] = set()
        """Those of which only the next write of the node makes that sure."""
        self._failures = 0
        self._last_failure = ""
        self._try_at = 0.0
        self._is_closed = False
        self._lock = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        client: LedgerClient,
        metadata: MetadataStore,
        path: str,
        *,
        topic_path: str,
        owner_epoch: int,
        settings: PersistenceSettings,
        journal_settings: JournalSettings,
        clock_ms: Callable[[], int],
    ) -> Self:
        """Take the journal at `path`; ledgers that an owner before left open are closed.

        Raises `OwnershipError` when a later owner has it, `CorruptRecordError`, `StorageError`.
        """
        journal = cls(
            client,
            metadata,
            path,
            topic_path=topic_path,
            settings=settings,
            journal_settings=journal_settings,
            clock_ms=clock_ms,
        )
        await journal._claim(owner_epoch)
        await journal.trim()
        return journal

    @property
    def ledgers(self) -> tuple[JournalLedgerRecord, ...]:
        return self._node.value.ledgers

    # ------------------------------------------------------------------------ writing

    async def append(self, block: EventColumns) -> int:
        """Write a block and wait until it is durable. Returns its bytes.

        Raises `StorageError` when that failed, or the journal still waits after a failure: the block
        may be there nonetheless. Appended once more, it is recognised by its epoch and its sequence
        numbers. Raises `OwnershipError` when the topic has another owner, and `CallerError` for an
        event that is larger than an entry may be: nothing was written then.
        """
        async with self._lock:
            self._check_usable()
            payloads = self._encoded(block)
            ledger = await self._writable()
            events, ledger.event_count = ledger.event_count, None
            try:
                await ledger.writer.wait_for_room()
                await ledger.writer.append(payloads).durable
            except LedgerFencedError as error:
                await self._give_up(ledger, error)
                await self._change()  # fails if the topic has another owner
                raise StorageError(f"journal ledger {ledger.ledger_id} was fenced") from error
            except AckGateError as error:
                await self._give_up(ledger, error)
                raise
            if events is not None:
                ledger.event_count = events + len(block)
            self._failures = 0
            return sum(map(len, payloads))

    def configure(self, journal_settings: JournalSettings) -> None:
        """Use these settings from the next call on."""
        self._journal_settings = journal_settings

    def _encoded(self, block: EventColumns) -> list[bytes]:
        """The block, in as many pieces as entries need."""
        encoded = encode_events(block, _PACKING)
        if len(encoded) <= self._settings.max_entry_bytes:
            return [encoded]
        if len(block) == 1:
            raise CallerError(
                f"delivery journal {self.path}: an event of {len(encoded)} bytes is too large"
            )
        middle = len(block) // 2
        return [
            *self._encoded(block.part(0, middle)),
            *self._encoded(block.part(middle, len(block))),
        ]

    async def _writable(self) -> _OpenLedger:
        """The ledger to append to. One that is full is used on while there can be no other."""
        current, now = self._current, asyncio.get_running_loop().time()
        if current is not None and (not self._is_full(current, now) or now < self._try_at):
            return current
        if now < self._try_at:
            raise StorageError(
                f"delivery journal {self.path}: waits {self._try_at - now:.1f} s after a failure: "
                f"{self._last_failure}"
            )
        try:
            return await self._begin(now)
        except OwnershipError:
            raise
        except AckGateError as error:
            self._failed(error)
            if current is None:
                raise
            return current

    def _is_full(self, ledger: _OpenLedger, now: float) -> bool:
        return (
            ledger.size_bytes >= self._journal_settings.delivery_journal_max_ledger_bytes
            or now - ledger.opened_at
            >= self._journal_settings.delivery_journal_max_ledger_age_seconds
        )

    async def _begin(self, now: float) -> _OpenLedger:
        writer = await self._client.create(
            replace(
                ledger_options(self.path, self._settings),
                custom_metadata={
                    "application": b"ackgate",
                    "component": b"delivery-journal",
                    JOURNAL_PATH_KEY: self.path.encode(),
                    JOURNAL_TOPIC_KEY: self._topic_path.encode(),
                },
            )
        )
        record = JournalLedgerRecord(writer.ledger_id, opened_ms=self._clock_ms())
        try:
            await self._change(lambda node: replace(node, ledgers=(*node.ledgers, record)))
        except BaseException as error:
            self._doubtful.add(writer.ledger_id)
            if isinstance(error, AckGateError):
                with contextlib.suppress(AckGateError):
                    await writer.close()
            raise
        before, self._current = self._current, _OpenLedger(writer, now)
        if before is not None:
            await self._end(before)
        await self._trim_if_possible()
        return self._current

    async def _end(self, ledger: _OpenLedger) -> None:
        """Close a ledger and note that. If that fails, the next `trim` or `open` closes it."""
        try:
            await ledger.writer.close()
        except AckGateError as error:
            log.warning("journal ledger %d could not be closed yet: %s", ledger.ledger_id, error)
            return
        self._note_closed(ledger.ledger_id, ledger.size_bytes, ledger.event_count)

    async def _give_up(self, ledger: _OpenLedger, error: AckGateError) -> None:
        """Stop writing to a ledger after an error; the next block goes to another one."""
        self._current = None
        self._failed(error)
        await self._end(ledger)

    def _failed(self, error: AckGateError) -> None:
        self._failures += 1
        self._last_failure = str(error)
        delay = backoff_seconds(
            self._failures,
            first=RETRY_SECONDS_FIRST,
            longest=RETRY_SECONDS_MAX,
            seed=crc32(self.path.encode()),
        )
        self._try_at = asyncio.get_running_loop().time() + delay
        log.warning("delivery journal %s: again in %.1f s: %s", self.path, delay, error)

    # ----------------------------------------------------------------------- trimming

    async def trim(self) -> None:
        """Delete what is too old or too much, and close what an owner before left open.

        Raises `StorageError`, `OwnershipError`. To be called now and then.
        """
        async with self._lock:
            self._check_usable()
            if await self._close_left_open():
                await self._change()
            await self._trim()

    async def _trim_if_possible(self) -> None:
        try:
            await self._trim()
        except OwnershipError:
            raise
        except AckGateError as error:
            log.warning("delivery journal %s could not be trimmed yet: %s", self.path, error)

    async def _trim(self) -> None:
        leaving = self._leaving()
        if leaving:
            await self._change(
                lambda node: replace(
                    node, ledgers=tuple(l for l in node.ledgers if l.ledger_id not in leaving)
                )
            )
            self._unnamed |= leaving
        await self._sweep()

    def _leaving(self) -> set[int]:
        settings, current = self._journal_settings, self._current
        current_id, kept_bytes = (
            (-1, 0) if current is None else (current.ledger_id, current.size_bytes)
        )
        oldest_ms = self._clock_ms() - settings.delivery_journal_retention_seconds * 1000
        leaving: set[int] = set()
        is_over = False
        newest_first = [l for l in reversed(self.ledgers) if l.ledger_id != current_id]
        for number, ledger in enumerate(newest_first, start=2):
            kept_bytes += ledger.size_bytes
            is_over = (
                is_over
                or kept_bytes > settings.delivery_journal_retention_bytes
                or number > LEDGERS_MAX
            )
            ended_ms = ledger.opened_ms if ledger.closed_ms is None else ledger.closed_ms
            if is_over or ended_ms < oldest_ms:
                leaving.add(ledger.ledger_id)
        return leaving

    async def _close_left_open(self) -> bool:
        """Recover and close ledgers whose writer is gone, or failed. Whether anything was noted."""
        node = self._node.value
        current_id = None if self._current is None else self._current.ledger_id
        for ledger in self.ledgers:
            if ledger.closed_ms is not None or ledger.ledger_id == current_id:
                continue
            try:
                reader = await self._client.open(
                    ledger.ledger_id, password=self._settings.ledger_password
                )
                size_bytes = reader.length_bytes
                await reader.close()
            except NoSuchLedgerError:
                size_bytes = 0
                log.warning("delivery journal %s: ledger %d is gone", self.path, ledger.ledger_id)
            except AckGateError as error:
                log.warning("journal ledger %d is not closed yet: %s", ledger.ledger_id, error)
                continue
            self._note_closed(ledger.ledger_id, size_bytes, None)
        return self._node.value is not node

    async def _sweep(self) -> None:
        for ledger_id in sorted(self._unnamed):
            try:
                await self._client.delete(ledger_id)
            except NoSuchLedgerError:
                pass
            except AckGateError as error:
                log.warning("journal ledger %d could not be deleted yet: %s", ledger_id, error)
                continue
            self._unnamed.discard(ledger_id)

    # ------------------------------------------------------------------------ its end

    async def close(self) -> None:
        """Close the open ledger and say so in the node, if possible. May be called again."""
        async with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            current, self._current = self._current, None
            if current is not None:
                await self._end(current)
                with contextlib.suppress(AckGateError):
                    await self._change()

    async def remove(self) -> None:
        """Delete the journal of a deleted topic. Raises `StorageError`; then call it again."""
        await self.close()
        async with self._lock:
            self._node.check_ours()
            await self._node.remove()
            self._unnamed |= self._doubtful | {ledger.ledger_id for ledger in self.ledgers}
            await self._sweep()

    # ----------------------------------------------------------------------- the node

    async def _claim(self, owner_epoch: int) -> None:
        async def attempt() -> None:
            found = await self._node.read() or DeliveryJournalNode()
            if found.owner_epoch > owner_epoch:
                raise OwnershipError(
                    f"delivery journal {self.path} belongs to the owner of epoch "
                    f"{found.owner_epoch}, we are {owner_epoch}"
                )
            await self._node.claim(replace(found, owner_epoch=owner_epoch))

        await until_won(attempt, of=f"delivery journal {self.path}", attempts_max=WRITES_MAX)

    async def _change(
        self, change: Callable[[DeliveryJournalNode], DeliveryJournalNode] = lambda node: node
    ) -> None:
        """Write the node, what was noted included."""
        try:
            await self._node.change(change)
        except OwnershipError as error:
            self._node.abandon(error)
            raise
        self._unnamed |= self._doubtful
        self._doubtful.clear()

    def _note_closed(self, ledger_id: int, size_bytes: int, event_count: int | None) -> None:
        closed_ms = self._clock_ms()
        node = self._node.value
        self._node.value = replace(
            node,
            ledgers=tuple(
                replace(ledger, closed_ms=closed_ms, size_bytes=size_bytes, event_count=event_count)
                if ledger.ledger_id == ledger_id
                else ledger
                for ledger in node.ledgers
            ),
        )

    def _check_usable(self) -> None:
        if self._is_closed:
            raise ClosedHandleError(f"delivery journal {self.path} is closed")
        self._node.check_ours()


async def find_orphan_journals(
    client: LedgerClient, metadata: MetadataStore, candidates: Iterable[int]
) -> list[int]:
    """Those of the candidates that are journal ledgers and that their journal's node does not name."""
    return await find_unnamed(
        client, metadata, candidates, path_key=JOURNAL_PATH_KEY, names=ledgers_of_journal
    )
