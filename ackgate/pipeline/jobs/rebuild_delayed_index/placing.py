"""Puts rebuilt buckets into the storage: first their ledgers, then the node that names them.

Edge. The storage is open for writing: no broker can start on its data directory meanwhile. ::

    take_stock   the cursors' nodes and their versions; rejects a topic that has an owner
    check        whether the new registries have room in their nodes     nothing is written so far
    store        a ledger for each bucket                a crash from here on leaves ledgers that
    register     the node, at the version that it had    no node names: the next broker deletes them
    delete       the ledgers of the replaced buckets

Brokers that share the metadata store do not take our ledgers for orphans while our session lives
(`announce_maker`).

One compare-and-set on the cursor's node replaces its whole registry. If another process has changed
the node since `take_stock`, it is left as it is. A put that was not answered may have been done, or may
be done yet: then the new ledgers stay, and the next broker deletes those that no node names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.cursor import BucketRecord, MessageLedgers
from ackgate.errors import (
    AckGateError,
    ConfigurationError,
    MetadataConflictError,
    NoSuchNodeError,
    OwnershipError,
)
from ackgate.persistence.buckets.registry import BUCKET_PREFIX, changed_properties, snapshot_ids
from ackgate.persistence.buckets.snapshots import BucketSnapshots, append_all, snapshot_options
from ackgate.persistence.cursors.node import CursorNode, decode_cursor_node, encode_cursor_node
from ackgate.persistence.cursors.store import INTERNAL_SHARE, CursorStore
from ackgate.persistence.nodes.changes import until_answered
from ackgate.persistence.nodes.owner_nodes import decode_owner, is_in_range, owners_path
from ackgate.persistence.nodes.topic_node import decode_topic_node
from ackgate.persistence.nodes.unnamed_ledgers import MAKER_KEY, announce_maker
from ackgate.persistence.offline_storage import opened_storage
from ackgate.persistence.records.limits import packing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ackgate.persistence.offline_storage import OfflineStorage, StoragePlaces
    from ackgate.pipeline.jobs.rebuild_delayed_index.targets import Target

log = logging.getLogger(__name__)

UNANSWERED_MAX: Final = 3
"""Attempts of one put that may go unanswered before it fails."""


class BucketToStore(NamedTuple):
    """A bucket's registry record, and a function that returns the entries of its ledger."""

    record: BucketRecord
    payloads: Callable[[], Sequence[bytes]]


class Placed(NamedTuple):
    """Result of placing the buckets of one target."""

    buckets_replaced: int
    ledgers_left: int
    """Ledgers of replaced buckets that could not be deleted now. The next broker deletes them."""


class _Stock(NamedTuple):
    """A cursor's node and its version as `take_stock` found them; None and -1: there is no node."""

    node: CursorNode | None
    version: int


class Placing:
    """Writes the buckets of all targets to storage opened for writing. Not thread-safe."""

    def __init__(self, storage: OfflineStorage, runner: asyncio.Runner) -> None:
        self._storage = storage
        self._runner = runner
        self._stock: dict[int, _Stock] = {}
        self._run: int | None = None
        """Our maker number, written into each ledger; None unless brokers share the store."""

    @classmethod
    @contextlib.contextmanager
    def opened(cls, places: StoragePlaces) -> Iterator[Placing]:
        with asyncio.Runner() as runner:
            context = opened_storage(places, is_writing=True)
            storage = runner.run(context.__aenter__())
            try:
                if storage.left_out:
                    path, why = next(iter(storage.left_out.items()))
                    raise ConfigurationError(f"bookie {path} cannot be used: {why}")
                yield cls(storage, runner)
            finally:
                runner.run(context.__aexit__(None, None, None))

    # -- before -------------------------------------------------------------------------------------

    def take_stock(self, targets: Sequence[Target]) -> None:
        """Remember the nodes of the targets' cursors.

        Raises `OwnershipError` if a broker owns a topic, `NoSuchNodeError` for a lost subscription.
        """
        self._runner.run(self._take_stock(targets))

    async def _take_stock(self, targets: Sequence[Target]) -> None:
        if self._storage.places.is_shared and self._run is None:
            self._run = await announce_maker(self._storage.metadata)
        for topic in dict.fromkeys(target.topic for target in targets):
            await self._check_unowned(topic)
        for target in targets:
            self._stock[target.number] = await self._find(target)

    async def _check_unowned(self, topic: str) -> None:
        """Raise `OwnershipError` if a broker owns the topic.

        Checks a shared metadata store only: a data directory is locked while we have it open.
        """
        if not self._storage.places.is_shared:
            return
        tenant, namespace, _ = topic.partition("://")[2].split("/", 2)
        above = owners_path(tenant, namespace)
        for name in await self._storage.metadata.children(above):
            if is_in_range(name, topic):
                path = f"{above}/{name}"
                found = await self._storage.metadata.get(path)
                if found is not None:
                    owner = decode_owner(found.value, path=path)
                    raise OwnershipError(
                        f"{topic} is owned by broker {owner.broker_id}: its index can be rebuilt "
                        "when no broker has it, or --beside it"
                    )

    async def _find(self, target: Target) -> _Stock:
        found = await self._storage.metadata.get(target.path)
        if found is None:
            if target.subscription is not None:
                raise NoSuchNodeError(f"subscription {target.cursor} of {target.topic} is gone")
            return _Stock(None, -1)
        return _Stock(decode_cursor_node(found.value, path=target.path), found.version)

    def new_ledger_ids(self, count: int) -> list[int]:
        """Reserve ledger ids for buckets that will be sealed."""

        async def ids() -> list[int]:
            return [await self._storage.client.new_ledger_id() for _ in range(count)]

        return self._runner.run(ids())

    # -- placing ------------------------------------------------------------------------------------

    def check(self, target: Target, buckets: Sequence[BucketRecord]) -> None:
        """Raise `ConfigurationError` if a registry of these buckets does not fit into the node."""
        # A missing node is created almost empty (`_unowned`).
        node = self._stock[target.number].node or CursorNode(0, None, None, {})
        settings = self._storage.places.settings
        changed = node._replace(cursor_properties=_with_buckets(node.cursor_properties, buckets))
        most = self._storage.metadata.node_bytes_max
        taken = len(encode_cursor_node(changed._replace(state=None), packing(settings)))
        whole = len(encode_cursor_node(changed, packing(settings)))
        if taken > int(INTERNAL_SHARE * most) or whole > most:
            raise ConfigurationError(
                f"{target.topic}, {target.cursor}: {len(buckets)} buckets would take {taken} bytes of "
                f"the cursor's node, which has room for {int(INTERNAL_SHARE * most)} of them: take a "
                "larger delayedDeliveryMaxIndexCountPerBucket and MinIndexCountPerBucket"
            )

    def place(self, target: Target, buckets: Sequence[BucketToStore]) -> Placed:
        """Store these buckets and make them the whole registry of the target's cursor.

        Raises `OwnershipError` if a broker owns the topic or another process changed the node, and
        `StorageError`. After an error it deletes the ledgers that it stored, if it can, unless the
        node may name them.
        """
        return self._runner.run(self._place(target, buckets))

    async def _place(self, target: Target, buckets: Sequence[BucketToStore]) -> Placed:
        storage = self._storage
        snapshots = BucketSnapshots(storage.client, target.path, storage.places.settings)
        begun: list[int] = []
        try:
            for bucket in buckets:
                begun.append(bucket.record.snapshot_id)
                await self._store(target, bucket)
            node, version = await self._unowned(target)
        except BaseException:
            await _delete(snapshots, begun)
            raise
        if not await self._register(target, [bucket.record for bucket in buckets], node, version):
            await _delete(snapshots, begun)
            raise _changed_meanwhile(target)
        before = snapshot_ids(node.cursor_properties)
        return Placed(len(before), await _delete(snapshots, before))

    async def _store(self, target: Target, bucket: BucketToStore) -> None:
        first, last, snapshot_id = bucket.record
        options = snapshot_options(target.path, first, last, self._storage.places.settings)
        if self._run is not None:
            marks = {**options.custom_metadata, MAKER_KEY: str(self._run).encode()}
            options = replace(options, custom_metadata=marks)
        writer = await self._storage.client.create(options, ledger_id=snapshot_id)
        try:
            await append_all(writer, bucket.payloads())
        finally:
            await writer.close()

    async def _unowned(self, target: Target) -> tuple[CursorNode, int]:
        """The cursor's node and version as `take_stock` found them; creates a missing index cursor.

        Raises `OwnershipError` if a broker owns the topic.
        """
        node, version = self._stock[target.number]
        await self._check_unowned(target.topic)
        if node is None:
            await self._make_index_cursor(target)
            node, version = await self._find(target)
            assert node is not None
        return node, version

    async def _register(
        self, target: Target, buckets: Sequence[BucketRecord], node: CursorNode, version: int
    ) -> bool:
        """Replace the registry in the node. False: another process had changed the node.

        After any error the node may name these buckets, now or later.
        """
        metadata = self._storage.metadata
        properties = _with_buckets(node.cursor_properties, buckets)
        value = encode_cursor_node(
            node._replace(cursor_properties=properties), packing(self._storage.places.settings)
        )

        async def attempt(is_doubtful: bool) -> bool:  # noqa: FBT001
            try:
                await metadata.put(target.path, value, expected_version=version)
            except MetadataConflictError:
                if not is_doubtful:
                    return False
                found = await metadata.get(target.path)
                if found is None or found.value != value:
                    raise _changed_meanwhile(target) from None
            return True

        return await until_answered(attempt, of=target.path, attempts_max=UNANSWERED_MAX)

    async def _make_index_cursor(self, target: Target) -> None:
        """Create the hidden cursor of a shared index at the topic's start, as a broker does."""
        storage, path = self._storage, target.path.rpartition("/")[0]
        found = await storage.metadata.get(path)
        if found is None:
            raise NoSuchNodeError(f"{target.topic} is gone")
        topic, ledgers = decode_topic_node(found.value, path=path), MessageLedgers()
        for ledger in topic.ledgers:
            ledgers.open_ledger(ledger.ledger_id)
            if ledger.entry_count is not None:
                ledgers.close_ledger(ledger.ledger_id, ledger.entry_count)
        store = await CursorStore.open(
            path=target.path,
            ledgers=ledgers,
            ledger_client=storage.client,
            metadata=storage.metadata,
            settings=storage.places.settings,
            batch_index_acks=True,
            owner_epoch=topic.owner_epoch,
            clock_ms=lambda: time.time_ns() // 1_000_000,
            create_at=ledgers.first_position,
        )
        store.abandon(OwnershipError("the broker that loads the topic owns it"))


def _changed_meanwhile(target: Target) -> OwnershipError:
    return OwnershipError(
        f"{target.topic}, {target.cursor}: another process has changed the cursor's node "
        "meanwhile; its index was left as it was"
    )


def _with_buckets(properties: Mapping[str, str], buckets: Sequence[BucketRecord]) -> dict[str, str]:
    """Return the properties with these buckets in place of all others, even unreadable ones."""
    kept = {k: value for k, value in properties.items() if not k.startswith(BUCKET_PREFIX)}
    return changed_properties(kept, buckets, ())


async def _delete(snapshots: BucketSnapshots, ids: Sequence[int]) -> int:
    """Delete these snapshots; return how many could not be deleted."""
    left = 0
    for snapshot_id in ids:
        try:
            await snapshots.delete(snapshot_id)
        except AckGateError as error:
            log.warning("snapshot ledger %d could not be deleted: %s", snapshot_id, error)
            left += 1
    return left
