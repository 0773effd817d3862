"""The summary of a rebuild. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow.compute as pc

from ackgate.pipeline.jobs.job import SummaryTable
from ackgate.pipeline.jobs.rebuild_delayed_index.planned import Counts

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from ackgate.pipeline.jobs.job import Figure
    from ackgate.pipeline.jobs.rebuild_delayed_index.placing import Placed
    from ackgate.pipeline.jobs.rebuild_delayed_index.planned import PlannedBuckets, RunSizes
    from ackgate.pipeline.jobs.rebuild_delayed_index.targets import Targets

SUMMARY_ROWS: Final = 20


class Outcome(NamedTuple):
    """What was made; of what was written beside only the plan."""

    planned: PlannedBuckets
    sealed: pa.Table | None = None
    placed: Mapping[int, Placed] | None = None


def told(
    targets: Targets, sizes: RunSizes, outcome: Outcome, entries_read: int
) -> tuple[dict[str, Figure], SummaryTable]:
    """Figures, and a line for each of the largest targets."""
    planned, sealed, placed = outcome
    counts = {target.number: sizes.counts.get(target.number, Counts()) for target in targets.all}
    delayed = sum(count.delayed for count in counts.values())
    wanted = sum(count.wanted for count in counts.values())
    figures: dict[str, Figure] = {
        "topics": len({target.topic for target in targets.all}),
        "indexes": len(targets.all),
        "entries_read": entries_read,
        "delayed": delayed,
        "acked_or_cancelled": delayed - wanted,
        "indexed": planned.entry_count,
        "left_to_the_broker": wanted - planned.entry_count,
        "buckets": planned.bucket_count,
    }
    if sealed is not None and placed is not None:
        figures["segments"] = pc.sum(sealed.column("segments")).as_py() or 0
        figures["bytes"] = pc.sum(sealed.column("bytes")).as_py() or 0
        figures["buckets_replaced"] = sum(one.buckets_replaced for one in placed.values())
        figures["old_ledgers_left"] = sum(one.ledgers_left for one in placed.values())
    return figures, _table(targets, counts, planned)


def _table(targets: Targets, counts: Mapping[int, Counts], planned: PlannedBuckets) -> SummaryTable:
    largest = sorted(targets.all, key=lambda target: -counts[target.number].delayed)
    rows = []
    for target in largest[:SUMMARY_ROWS]:
        buckets, indexed = planned.of_target(target.number)
        count = counts[target.number]
        rows.append(
            (
                target.topic,
                target.subscription or "(shared)",
                count.delayed,
                count.delayed - count.wanted,
                indexed,
                buckets,
            )
        )
    return SummaryTable(
        "Indexes",
        ("topic", "subscription", "delayed", "acked or cancelled", "indexed", "buckets"),
        rows,
        len(targets.all) - len(rows),
    )
