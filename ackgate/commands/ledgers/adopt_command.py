"""``ackgate ledgers adopt``: puts ledgers that the metadata have forgotten back under their topics.

Edge: prints. Without ``--apply`` it says what it would do, and changes nothing. With it the data directory
is taken as a broker would take it; a cluster's brokers must all be stopped. Exit code 0; 1 when ledgers
hold entries and nothing says whose they are.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.cluster import read_partition_count, restore_partition_count
from ackgate.broker.wire import TopicName
from ackgate.commands.terminal.tables import printable, table
from ackgate.errors import CallerError
from ackgate.persistence.adoption import carry_out, plan_adoption, plan_cluster_adoption
from ackgate.persistence.offline_storage import opened_cluster, opened_storage, places_of

if TYPE_CHECKING:
    import argparse

    from ackgate.persistence.adoption import AdoptionPlan, Forgotten
    from ackgate.persistence.offline_storage import OpenedStorage
    from ackgate.persistence.ports import MetadataStore

_PARTITION: Final = re.compile(r"(.+)-partition-(\d{1,6})")

_WHAT: Final = {
    "adopt": "is put back",
    "give up": "is not needed, and will be deleted",
    "drop": "was deleted since, and is taken out of its topic",
}


async def run_adopt(arguments: argparse.Namespace) -> int:
    """Plan, print, and with ``--apply`` do it. Raises `AckGateError`."""
    places = places_of(arguments, may_be_new=True)
    if places.settings.is_on_bookkeeper:
        opened = opened_cluster(places, is_writing=arguments.apply, may_be_lost=True)
        async with opened as cluster:
            plan = await plan_cluster_adoption(
                cluster.metadata, cluster.client, places, cluster=arguments.cluster
            )
            return await _show_and_apply(cluster, plan, arguments)
    async with opened_storage(places, is_writing=arguments.apply) as storage:
        return await _show_and_apply(storage, await plan_adoption(storage), arguments)


async def _show_and_apply(
    storage: OpenedStorage, plan: AdoptionPlan, arguments: argparse.Namespace
) -> int:
    partitions = await _lost_partition_counts(storage.metadata, plan)
    if arguments.apply:
        # Before the ledgers: once these are back, nothing says any more that a count is missing.
        for name, count in partitions.items():
            await restore_partition_count(storage.metadata, TopicName.parse(name), count)
        await carry_out(storage, plan)
    if arguments.json:
        print(json.dumps(_plan_json(plan, partitions, is_done=arguments.apply), indent=2))  # noqa: T201
    else:
        lines = _lines(plan, partitions, is_done=arguments.apply)
        print("\n".join([*lines, "done"] if arguments.apply else lines))  # noqa: T201
    return 1 if plan.unexplained else 0


async def _lost_partition_counts(metadata: MetadataStore, plan: AdoptionPlan) -> dict[str, int]:
    """Partition counts to restore, by topic: where the stored one is missing or too small."""
    counts: dict[str, int] = {}
    for each in plan.ledgers:
        topic = each.owner.split(" cursor ")[0]
        match = _PARTITION.fullmatch(topic)
        if match is None or each.what == "drop":
            continue
        counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    lost: dict[str, int] = {}
    for text, count in counts.items():
        try:
            name = TopicName.parse(text)
        except CallerError:
            continue
        if await read_partition_count(metadata, name) < count:
            lost[text] = count
    return lost


def _lines(plan: AdoptionPlan, partitions: dict[str, int], *, is_done: bool) -> list[str]:
    lines = table(
        ("ledger", "kind", "of", "what"),
        [
            (str(each.ledger_id), each.kind, printable(each.owner or "-"), _WHAT[each.what])
            for each in plan.ledgers
        ],
        right="ledger",
    )
    lines += [f"ledger {i} is left as it is: {reason}" for i, reason in plan.unexplained]
    lines += [f"{name} has {count} partitions" for name, count in partitions.items()]
    if plan.mark.next_ledger_id > plan.next_ledger_id:
        lines.append(f"ledger ids go on from {plan.mark.next_ledger_id}, not {plan.next_ledger_id}")
    if plan.mark.run > plan.runs:
        lines.append(f"runs go on after {plan.mark.run}, not {plan.runs}")
    if plan.cluster is not None:
        lines.append(f"the metadata are those of the cluster {plan.cluster}")
    if plan.bookkeeper is not None:
        lines.append(f"its ledgers lie on the BookKeeper cluster {plan.bookkeeper}")
    if plan.is_empty and not plan.unexplained:
        lines.append("the metadata have forgotten nothing")
    elif not is_done:
        lines.append("nothing was changed; --apply does it")
    return lines


def _plan_json(plan: AdoptionPlan, partitions: dict[str, int], *, is_done: bool) -> dict[str, Any]:
    return {
        "ledgers": [_ledger_json(each) for each in plan.ledgers],
        "unexplained": [{"ledgerId": i, "reason": reason} for i, reason in plan.unexplained],
        "partitions": partitions,
        "nextLedgerId": plan.mark.next_ledger_id,
        "run": plan.mark.run,
        "isApplied": is_done,
    }


def _ledger_json(each: Forgotten) -> dict[str, Any]:
    return {
        "ledgerId": each.ledger_id,
        "kind": each.kind,
        "of": each.owner,
        "what": each.what,
    }
