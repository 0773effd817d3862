"""Bugs that the simulation must find: each breaks one function of ackgate, in the process that runs it.

A place is named as ``module:function`` or ``module:Class.method``. When a refactoring moves it, patching
raises, and the mutation is to be moved along.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np


class Mutation(NamedTuple):
    """One bug."""

    name: str
    place: str
    broken: Callable[..., Any]
    """Called instead of the function there: with it, and with its arguments."""
    changes: Mapping[str, Any] = MappingProxyType({})
    """Of the seeds' plans, so that the search is short: circumstances in which it shows."""
    seed: int = 0
    """The search begins with it: the one that found the bug last time."""


def patch(mutation: Mutation) -> None:
    """Put the bug in place, for the rest of the process. Raises `LookupError` when the place is gone."""
    module, _, names = mutation.place.partition(":")
    *classes, name = names.split(".")
    owner: Any = importlib.import_module(module)
    for each in classes:
        owner = vars(owner)[each]
    real = vars(owner)[name]
    function = real.fget if isinstance(real, property) else real
    if not inspect.isroutine(function):
        raise LookupError(f"{mutation.place} is no function")

    def replaced(*args: Any, **named: Any) -> Any:
        return mutation.broken(function, *args, **named)

    setattr(owner, name, property(replaced) if isinstance(real, property) else replaced)


class Changed:
    """An object as it is, but for some attributes."""

    def __init__(self, real: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)
        self.__dict__["_as_it_is"] = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_as_it_is"], name)


def nothing(*_: Any, **__: Any) -> None:
    """In place of a method: it is not called."""


_POWER = {
    "is_owned": False,
    "faults": {"power": 3.0, "kill": 1.0},
    "fault_seconds": 0.2,
    "crash_share": 0.002,
}
_KILLS = {
    "is_owned": False,
    "faults": {"kill": 1.0},
    "fault_seconds": 0.5,
    "brokers": 1,
    "seeks": 0.0,
}
_OWNERS = {
    "is_owned": False,
    "faults": {"switch": 3.0, "pause": 2.0, "kill": 1.0},
    "fault_seconds": 0.2,
    "brokers": 3,
    "busy_seconds": 5.0,
    "crash_share": 0.0,
    "messages": 100,
}
_HELD_BACK = {
    "backoff_ms": 1_000,
    "nacks": 0.4,
    "seeks": 0.0,
    "unsubscribes": 0.0,
    "subscriptions": ("SHARED",),
}
_DELAYED = {
    "delays": 0.7,
    "delay_ms_max": 12_000,
    "delay_tick_ms": 100,
    "delay_strict": True,
    "delay_buckets": 3,
    "buckets_max": 2,
    "subscriptions": ("SHARED", "KEY_SHARED"),
    "messages": 100,
    "backoff_ms": 0,
}
_UNLIMITED = {"ranges_max": 10_000, "node_ranges_max": 10_000, "batch_indexes_max": 10_000}


async def _unfenced(*_: Any) -> set[int]:
    """No bookie is fenced."""
    return set()


async def _at_once(*_: Any) -> None:
    """Nothing is waited for."""


async def _none_found(*_: Any) -> list[int]:
    """Nothing is looked for."""
    return []


def _early_border(real: Callable[..., int], border: Any) -> int:
    quorum = border._ack_quorum
    border._ack_quorum = max(quorum - 1, 1)
    try:
        return real(border)
    finally:
        border._ack_quorum = quorum


def _blind_to_fences(real: Callable[..., set[int]], commits: Any, taken: Any) -> set[int]:
    real(commits, taken)
    return set()


def _unsynced_fragments(real: Callable[..., None], storage: Any, *args: Any) -> None:
    disk = storage._disk
    storage._disk = Changed(disk, sync_files=nothing)
    try:
        real(storage, *args)
    finally:
        storage._disk = disk


def _one_version_early(real: Callable[..., None], receipts: Any, *args: Any) -> None:
    receipts.durable_version += 1
    real(receipts, *args)
    receipts.durable_version -= 1


def _growth_without_batches(real: Callable[..., Any], log: Any, **state: Any) -> Any:
    growth = real(log, **state)
    return None if growth is None else replace(growth, unacked_indexes={})


def _reset_as_growth(real: Callable[..., None], acks: Any, mark_delete: Any) -> None:
    growth, grown_since = acks._growth, acks.grown_since
    acks._growth = Changed(growth, spoil=nothing)
    real(acks, mark_delete)
    acks._growth, acks.grown_since = growth, grown_since


async def _put_anyway(real: Callable[..., Any], node: Any, encoded: bytes) -> None:
    version, node._version = node._version, None
    try:
        await real(node, encoded)
    except BaseException:
        node._version = version
        raise


async def _delete_first(real: Callable[..., Any], store: Any, ledger_id: int, entries: Any) -> int:
    from ackgate.persistence.cursors.ledger import delete_ledger

    old = store._node.cursor_ledger_id
    if old not in {None, ledger_id}:
        await delete_ledger(store._client, old)
    size: int = await real(store, ledger_id, entries)
    return size


def _node_last(real: Callable[..., Any], records: Any, node: Any) -> Any:
    fold = real(records, None)
    if node is not None:
        fold.apply(node, is_in_node=True)
    return fold


def _without_the_last(real: Callable[..., Any], scan: Any) -> Any:
    tail = real(scan)
    return replace(tail, records=tail.records[:-1] or tail.records)


async def _opened_beside(
    real: Callable[..., Any], path: str, node: Any, open_ledger: Any, **named: Any
) -> Any:
    client = open_ledger.func.__self__
    opened = partial(client.open_without_recovery, **open_ledger.keywords)
    return await real(path, node, opened, **named)


def _epoch_of_before(real: Callable[..., Any], node: Any, **changes: Any) -> Any:
    if "owner_epoch" in changes:
        changes["owner_epoch"] -= 1
    return real(node, **changes)


def _plan_without_nacks(real: Callable[..., Any], *args: Any) -> Any:
    from ackgate.cursor import NO_NACKS

    plan = real(*args)
    return replace(plan, record=replace(plan.record, nacks=NO_NACKS))


def _rounded_down(real: Callable[..., Any], keys: Any, deliver_at_ms: Any) -> Any:
    return (
        deliver_at_ms & ~np.int64(keys._low_bits) if keys.is_strict else real(keys, deliver_at_ms)
    )


def _restored_as_loaded(real: Callable[..., None], recovering: Any, *args: Any) -> None:
    holdings = recovering._holdings

    def all_loaded(bucket: Any, groups: Any, _: int) -> None:
        holdings.set_groups(bucket, groups, len(groups))

    real(Changed(recovering, _holdings=Changed(holdings, set_groups=all_loaded)), *args)


MUTATIONS: tuple[Mutation, ...] = (
    # ---------------------------------------------------------------- bookies and ledgers
    Mutation(
        "the journal is not synced",
        "ackgate.persistence.bookies.journal:Journal._write",
        lambda real, self, file, *args: real(self, Changed(file, sync=nothing), *args),
        _POWER,
        seed=3,
    ),
    Mutation(
        "an add is confirmed one copy before the ack quorum",
        "ackgate.persistence.ledgers.quorum:ConfirmedBorder._quorum_border",
        _early_border,
        {
            **_POWER,
            **_UNLIMITED,
            "faults": {"power": 2.0, "corrupt": 6.0, "kill": 2.0, "slow disk": 2.0},
            "bookies": 3,
            "write_quorum": 3,
            "ack_quorum": 2,
            "fault_seconds": 0.05,
        },
        seed=269,
    ),
    Mutation(
        "a writer does not look whether it was fenced",
        "ackgate.persistence.bookies.group_commit:GroupCommit._write",
        _blind_to_fences,
        _OWNERS,
    ),
    Mutation(
        "a ledger is recovered without being fenced",
        "ackgate.persistence.ledgers.recovery:LedgerRecovery._fence",
        _unfenced,
        _OWNERS,
    ),
    Mutation(
        "a dead writer's journal is removed before its entries are written",
        "ackgate.persistence.bookies.takeover:Takeover._write_portion",
        nothing,
        _KILLS,
        seed=1,
    ),
    Mutation(
        "fragment files are not synced before the journal goes",
        "ackgate.persistence.bookies.fragment_storage:FragmentStorage.write",
        _unsynced_fragments,
        _POWER,
        seed=3,
    ),
    # ---------------------------------------------------------------- cursors, written
    Mutation(
        "receipts are given when an ack is applied",
        "ackgate.subscription.ready:ReceiptQueue.ask",
        lambda real, self, receipt, deadline_ms: self.answer(receipt),
        {**_KILLS, **_UNLIMITED},
        seed=1,
    ),
    Mutation(
        "a receipt goes one version early",
        "ackgate.subscription.ready:ReceiptQueue.ask",
        _one_version_early,
        {**_KILLS, **_UNLIMITED},
        seed=3,
    ),
    Mutation(
        "partly acked batches are left out of deltas",
        "ackgate.cursor.ack_state:GrowthLog.take",
        _growth_without_batches,
        {
            **_KILLS,
            **_UNLIMITED,
            "batch_max": 8,
            "batch_index_acks": True,
            "deltas_max": 1000,
            "subscriptions": ("SHARED",),
            "receipt_share": 1.0,
            "messages": 100,
        },
    ),
    Mutation(
        "a reset counts as growth, so that it is written as a delta",
        "ackgate.cursor.ack_state:CursorAcks.reset",
        _reset_as_growth,
        {
            **_KILLS,
            **_UNLIMITED,
            "seeks": 0.03,
            "deltas_max": 1000,
            "cursor_entries_max": 50_000,
            "message_entries_max": 50_000,
            "subscriptions": ("EXCLUSIVE",),
            "messages": 100,
            "busy_seconds": 5.0,
        },
        seed=7,
    ),
    Mutation(
        "a cursor's node is written whatever its version",
        "ackgate.persistence.nodes.fenced_node:FencedNode._put",
        _put_anyway,
        {**_OWNERS, "cursor_entries_max": 3},
        seed=9,
    ),
    Mutation(
        "the old cursor ledger is deleted before the node names the new one",
        "ackgate.persistence.cursors.store:CursorStore._append",
        _delete_first,
        {
            **_KILLS,
            **_UNLIMITED,
            "cursor_entries_max": 3,
            "metadata_ms": 20.0,
            "messages": 300,
            "disk_ms": 0.5,
            "network_ms": 0.2,
            "receipt_share": 1.0,
            "busy_seconds": 5.0,
            "fault_seconds": 0.2,
        },
        seed=6,
    ),
    # ---------------------------------------------------------------- cursors, recovered
    Mutation(
        "the older of two states wins",
        "ackgate.persistence.records.recovery:fold_records",
        _node_last,
        {**_KILLS, **_UNLIMITED},
        seed=2,
    ),
    Mutation(
        "the last delta is dropped",
        "ackgate.persistence.records.recovery:TailScan.finish",
        _without_the_last,
        {**_KILLS, **_UNLIMITED, "deltas_max": 1000},
        seed=3,
    ),
    Mutation(
        "a cursor is opened without its ledger being fenced",
        "ackgate.persistence.cursors.opening:read_stored",
        _opened_beside,
        _KILLS,
        seed=3,
    ),
    Mutation(
        "a new subscription does not wait for the topic's node",
        "ackgate.persistence.messages.managed_ledger:ManagedLedger.confirm_owner",
        _at_once,
        {
            "faults": {"switch": 4.0, "cut metadata": 4.0, "cut client": 2.0},
            "fault_seconds": 0.1,
            "metadata_ms": 50.0,
            "brokers": 3,
        },
        seed=841,
    ),
    Mutation(
        "a topic's epoch does not grow",
        "ackgate.persistence.messages.managed_ledger:replace",
        _epoch_of_before,
        _OWNERS,
        seed=5,
    ),
    # ---------------------------------------------------------------- topics
    Mutation(
        "de-duplication learns nothing from stored messages",
        "ackgate.broker.topic.deduplication:Deduplication.replay",
        nothing,
        {**_KILLS, "deduplication": True, "fault_seconds": 0.2},
        seed=3,
    ),
    Mutation(
        "what a producer sends behind a failed entry is stored",
        "ackgate.broker.topic.topic:Topic.on_failed",
        lambda real, self, *args: real(
            Changed(self, producers=Changed(self.producers, disconnect_all=nothing)), *args
        ),
        {
            "faults": {"fail disk": 2.0, "fill disk": 2.0},
            "fault_seconds": 0.5,
            "deduplication": True,
            "seeks": 0.0,
            "unsubscribes": 0.0,
            "bookies": 1,
            "write_quorum": 1,
            "ack_quorum": 1,
            "brokers": 1,
        },
        seed=53,
    ),
    # ---------------------------------------------------------------- the gate
    Mutation(
        "the gate does not hear of an outcome",
        "ackgate.dispatcher.gate:Gate.persisted",
        nothing,
    ),
    Mutation(
        "permits wake up nobody",
        "ackgate.broker.topic.subscription:Consumer.flow",
        lambda real, self, permits: self.subscription.core.flow(
            self, permits, now_ms=self.subscription.now_ms()
        ),
    ),
    Mutation(
        "the gate shuts one range early",
        "ackgate.dispatcher.gate:Gate._is_above",
        lambda real, self, reason, ranges: real(
            self, reason, ranges + (reason not in self._reasons)
        ),
        {"gate": True, "strict": False, "ranges_max": 3, "resume_ranges": 0},
        seed=4,
    ),
    Mutation(
        "the strict budget is one too many",
        "ackgate.cursor.managed_cursor:ManagedCursor.entry_budget",
        lambda real, *args, **named: real(*args, **named) + 1,
        {
            "gate": True,
            "strict": True,
            "ranges_max": 3,
            "resume_ranges": 0,
            "subscriptions": ("SHARED",),
            "holds": 0.6,
            "permits": 100,
            "messages": 100,
        },
    ),
    # ---------------------------------------------------------------- what is held back
    Mutation(
        "what is given back is held, and read all the same",
        "ackgate.subscription.held:HeldNacks.tracked",
        nothing,
        {**_KILLS, **_HELD_BACK, "permits": 1},
    ),
    Mutation(
        "what was held back is forgotten by a recovery",
        "ackgate.subscription.machine:Subscription.__init__",
        lambda real, *args, nacks=None, **named: real(*args, **named),
        {**_KILLS, **_HELD_BACK, "fault_seconds": 0.2},
        seed=3,
    ),
    Mutation(
        "pending nacks are left out of snapshots",
        "ackgate.persistence.records.planner:_plan",
        _plan_without_nacks,
        {**_KILLS, **_HELD_BACK, "fault_seconds": 0.2, "deltas_max": 0},
        seed=3,
    ),
    Mutation(
        "a strict budget hops over what is held back",
        "ackgate.subscription.reading:CursorReads._hops",
        lambda real, self: self._held.is_used and self._holds,
        {
            **_HELD_BACK,
            "backoff_ms": 300,
            "gate": True,
            "strict": True,
            "ranges_max": 3,
            "resume_ranges": 0,
            "subscriptions": ("SHARED", "KEY_SHARED"),
        },
        seed=1,
    ),
    # ---------------------------------------------------------------- delayed delivery
    Mutation(
        "delayed entries are rounded down in strict mode",
        "ackgate.dispatcher.delayed.port:DelayKeys.keys",
        _rounded_down,
        _DELAYED,
    ),
    Mutation(
        "what a recovered snapshot holds counts as loaded",
        "ackgate.dispatcher.buckets.recovering:Recovering._restore",
        _restored_as_loaded,
        {**_KILLS, **_DELAYED},
        seed=2,
    ),
    Mutation(
        "snapshots that nobody names are not looked for",
        "ackgate.broker.orphans:find_orphan_snapshots",
        _none_found,
        {**_KILLS, **_DELAYED, "fault_seconds": 0.2},
        seed=3,
    ),
)
