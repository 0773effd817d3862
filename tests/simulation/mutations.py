"""Bugs that the simulation must find: each is a change of one place in the source.

The old text must be there exactly once. When a refactoring moves it, the test says so, and the
mutation is to be moved along.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Mutation(NamedTuple):
    """One bug."""

    name: str
    module: str
    old: str
    new: str
    changes: Mapping[str, Any] = MappingProxyType({})
    """Of the seeds' plans, so that the search is short: circumstances in which it shows."""


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

MUTATIONS: tuple[Mutation, ...] = (
    # ---------------------------------------------------------------- bookies and ledgers
    Mutation(
        "the journal is not synced",
        "ackgate.persistence.bookies.journal",
        "        file.append(block)\n        file.sync()\n",
        "        file.append(block)\n",
        _POWER,
    ),
    Mutation(
        "an add is confirmed one copy before the ack quorum",
        "ackgate.persistence.ledgers.quorum",
        "            return sorted(self._synced)[size - ack]\n",
        "            return sorted(self._synced)[min(size - ack + 1, size - 1)]\n",
        {
            **_POWER,
            **_UNLIMITED,
            "faults": {"power": 2.0, "corrupt": 6.0, "kill": 2.0, "slow disk": 2.0},
            "bookies": 3,
            "write_quorum": 3,
            "ack_quorum": 2,
            "fault_seconds": 0.05,
        },
    ),
    Mutation(
        "a writer does not look whether it was fenced",
        "ackgate.persistence.bookies.group_commit",
        "        return self._fences.poll()\n",
        "        return set()\n",
        _OWNERS,
    ),
    Mutation(
        "a ledger is recovered without being fenced",
        "ackgate.persistence.ledgers.recovery",
        "            unfenced = await self._fence(metadata)\n",
        "            unfenced: set[int] = set()\n",
        _OWNERS,
    ),
    Mutation(
        "a dead writer's journal is removed before its entries are written",
        "ackgate.persistence.bookies.takeover",
        "                self._carry_file(path)\n            self._write_portion()\n",
        "                self._carry_file(path)\n",
        _KILLS,
    ),
    Mutation(
        "fragment files are not synced before the journal goes",
        "ackgate.persistence.bookies.fragment_storage",
        "            self._disk.sync_files([file for file, _ in touched])\n",
        "            pass\n",
        _POWER,
    ),
    # ---------------------------------------------------------------- cursors, written
    Mutation(
        "receipts are given when an ack is applied",
        "ackgate.subscription.machine",
        "        if self._is_durable and self._settings.receipts_mean_durable:\n",
        "        if self._is_durable and not self._settings.receipts_mean_durable:\n",
        {**_KILLS, **_UNLIMITED},
    ),
    Mutation(
        "a receipt goes one version early",
        "ackgate.subscription.receipts",
        "        if receipt.version <= self.durable_version:\n",
        "        if receipt.version <= self.durable_version + 1:\n",
        {**_KILLS, **_UNLIMITED},
    ),
    Mutation(
        "partly acked batches are left out of deltas",
        "ackgate.cursor.ack_state",
        "                position: unacked[position] for position in"
        " sorted(self._batches & unacked.keys())\n",
        "                position: unacked[position] for position in"
        " sorted(self._batches & unacked.keys())[:0]\n",
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
        "ackgate.cursor.ack_state",
        "        self._growth.spoil()\n        self.version += 1\n        self.grown_since = self.version\n",
        "        self.version += 1\n",
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
    ),
    Mutation(
        "a cursor's node is written whatever its version",
        "ackgate.persistence.nodes.fenced_node",
        "                self.path, encoded, expected_version=self._version\n",
        "                self.path, encoded, expected_version=None\n",
        {**_OWNERS, "cursor_entries_max": 3},
    ),
    Mutation(
        "the old cursor ledger is deleted before the node names the new one",
        "ackgate.persistence.cursors.store",
        "                    path.ledger_created(step, writer.ledger_id)\n",
        "                    path.ledger_created(step, writer.ledger_id)\n"
        "                    if self._node.cursor_ledger_id is not None:\n"
        "                        await delete_ledger(self._client, self._node.cursor_ledger_id)\n",
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
    ),
    # ---------------------------------------------------------------- cursors, recovered
    Mutation(
        "the older of two states wins",
        "ackgate.persistence.records.recovery",
        "        if node is not None and node.stamp <= record.stamp:\n",
        "        if node is not None and node.stamp > record.stamp:\n",
        {**_KILLS, **_UNLIMITED},
    ),
    Mutation(
        "the last delta is dropped",
        "ackgate.persistence.records.recovery",
        "            tuple(reversed(self._records)),",
        "            tuple(reversed(self._records[1:] or self._records)),",
        {**_KILLS, **_UNLIMITED, "deltas_max": 1000},
    ),
    Mutation(
        "a cursor is opened without its ledger being fenced",
        "ackgate.persistence.cursors.opening",
        "            partial(self.ledger_client.open, password=ledger_password(self.settings)),\n",
        "            partial(\n"
        "                self.ledger_client.open_without_recovery,\n"
        "                password=ledger_password(self.settings),\n"
        "            ),\n",
        _KILLS,
    ),
    Mutation(
        "a topic's epoch does not grow",
        "ackgate.persistence.messages.managed_ledger",
        "owner_epoch=node.owner_epoch + 1, ledgers=",
        "owner_epoch=node.owner_epoch, ledgers=",
        _OWNERS,
    ),
    # ---------------------------------------------------------------- topics
    Mutation(
        "de-duplication learns nothing from stored messages",
        "ackgate.broker.topic.topic_deduplication",
        "                self.producers.replay(entry)\n",
        "                pass\n",
        {**_KILLS, "deduplication": True, "fault_seconds": 0.2},
    ),
    Mutation(
        "what a producer sends behind a failed entry is stored",
        "ackgate.broker.topic.topic",
        "        if not self.is_closing:\n            # What they have sent",
        "        if self.is_closing:\n            # What they have sent",
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
    ),
    # ---------------------------------------------------------------- the gate
    Mutation(
        "the gate does not hear of an outcome",
        "ackgate.subscription.machine",
        "        self._gate.persisted(outcome, now_ms)\n",
        "        outcome is None and self._gate.persisted(outcome, now_ms)\n",
    ),
    Mutation(
        "permits wake up nobody",
        "ackgate.broker.topic.subscription",
        "        self.core.flow(consumer, permits, now_ms=self._now_ms)\n        self.ask_turn()\n",
        "        self.core.flow(consumer, permits, now_ms=self._now_ms)\n",
    ),
    Mutation(
        "the gate shuts one range early",
        "ackgate.dispatcher.gate",
        "        return ranges > self._settings.ranges_max\n",
        "        return ranges >= self._settings.ranges_max\n",
        {"gate": True, "strict": False, "ranges_max": 3, "resume_ranges": 0},
    ),
    Mutation(
        "the strict budget is one too many",
        "ackgate.subscription.machine",
        "            gate.budget(budget, now_ms)\n",
        "            budget += 1\n            gate.budget(budget, now_ms)\n",
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
        "ackgate.subscription.held",
        "        return self._tracker.tracked(ledger_id)\n",
        "        return self._tracker.tracked(ledger_id) and None\n",
        {**_KILLS, **_HELD_BACK, "permits": 1},
    ),
    Mutation(
        "what was held back is forgotten by a recovery",
        "ackgate.subscription.machine",
        "            self._held.hold_nacks(HeldNacks(nacks))\n",
        "            self._held.hold_nacks(HeldNacks(type(nacks)()))\n",
        {**_KILLS, **_HELD_BACK, "fault_seconds": 0.2},
    ),
    Mutation(
        "pending nacks are left out of snapshots",
        "ackgate.persistence.records.planner",
        "            nacks=NO_NACKS if nacks is None else nacks.nacks,\n",
        "            nacks=NO_NACKS if nacks is None else nacks.nacks and NO_NACKS,\n",
        {**_KILLS, **_HELD_BACK, "fault_seconds": 0.2, "deltas_max": 0},
    ),
    Mutation(
        "a strict budget hops over what is held back",
        "ackgate.subscription.machine",
        "        return self._held.is_used and self.holds and not self._is_strict\n",
        "        return self._held.is_used and self.holds\n",
        {
            **_HELD_BACK,
            "backoff_ms": 300,
            "gate": True,
            "strict": True,
            "ranges_max": 3,
            "resume_ranges": 0,
            "subscriptions": ("SHARED", "KEY_SHARED"),
        },
    ),
    # ---------------------------------------------------------------- delayed delivery
    Mutation(
        "delayed entries are rounded down in strict mode",
        "ackgate.dispatcher.delayed.delay_keys",
        "        rounded = (np.minimum(deliver_at_ms, above) + low_bits) & ~low_bits\n",
        "        rounded = np.minimum(deliver_at_ms, above) & ~low_bits\n",
        _DELAYED,
    ),
    Mutation(
        "what a recovered snapshot holds counts as loaded",
        "ackgate.dispatcher.buckets.recovering",
        "        self._holdings.set_groups(bucket, groups, 0)\n",
        "        self._holdings.set_groups(bucket, groups, len(groups))\n",
        {**_KILLS, **_DELAYED},
    ),
    Mutation(
        "snapshots that nobody names are not looked for",
        "ackgate.broker.orphans",
        "        *await find_orphan_snapshots(client, metadata, ids),\n",
        "",
        {**_KILLS, **_DELAYED, "fault_seconds": 0.2},
    ),
)
