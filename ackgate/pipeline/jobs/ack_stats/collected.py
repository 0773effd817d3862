"""Collects rows to the driver for page and summary: few, and only of the chosen subscriptions.

Edge to Spark.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from ackgate.pipeline.jobs.ack_stats import hole_frames, journal_frames
from ackgate.pipeline.jobs.ack_stats.leavers import HoleLeavers, Leaver, OpenHole
from ackgate.pipeline.jobs.ack_stats.limits import GateHistory, GateInterval
from ackgate.pipeline.jobs.job import SummaryTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.pipeline.jobs.job import DataFrame

INTERVALS_MAX: Final = 300
"""Most gate intervals drawn for one subscription; the newest are kept."""

LEAVERS_MAX: Final = 8
"""Consumers, and keys, listed for one subscription: this many by holes and as many by age."""

HOLES_MAX: Final = 120
"""Most holes drawn for one subscription; the oldest are kept."""


def gate_histories(intervals: DataFrame, chosen: DataFrame) -> dict[tuple[str, str], GateHistory]:
    """Collect the gate history of each chosen subscription, by topic and subscription."""
    rows = _by_subscription(
        journal_frames.newest_intervals(intervals, chosen, INTERVALS_MAX).orderBy(
            "from_ms", "until_ms", "reasons"
        )
    )
    names = ("topic", "subscription", "from_ms", "until_ms", "is_open_ended", "reasons")
    return {
        key: GateHistory(
            tuple(GateInterval(**{name: row[name] for name in names}) for row in of_key),
            count=of_key[0]["intervals"],
            total_ms=of_key[0]["total_ms"],
            is_guessed=of_key[0]["is_guessed"],
        )
        for key, of_key in rows.items()
    }


def hole_leavers(
    holes: Mapping[str, DataFrame], chosen: DataFrame
) -> dict[tuple[str, str], HoleLeavers]:
    """Collect who left the holes of each chosen subscription, by topic and subscription.

    `holes` has the frames `holes`, `hole_consumers` and `hole_keys`.
    """
    consumers, keys = (
        _by_subscription(hole_frames.top_leavers(holes[name], chosen, LEAVERS_MAX))
        for name in ("hole_consumers", "hole_keys")
    )
    oldest = _by_subscription(hole_frames.oldest_holes(holes["holes"], chosen, HOLES_MAX))
    return {
        key: HoleLeavers(
            consumers=_leavers(consumers[key], "consumer"),
            keys=_leavers(keys[key], "key"),
            consumer_count=_count(consumers[key]),
            key_count=_count(keys[key]),
            holes=tuple(OpenHole.of_row(row) for row in oldest[key] if row["since_ms"] is not None),
        )
        for key in consumers.keys() | keys.keys() | oldest.keys()
    }


def journal_begins(journal: DataFrame, chosen: DataFrame) -> dict[str, int]:
    """Collect for each topic the time, in ms, of its oldest journal event."""
    of_chosen = journal_frames.journal_spans(journal).join(
        chosen.select("topic").distinct(), "topic", "left_semi"
    )
    return {row["topic"]: row["journal_from_ms"] for row in of_chosen.collect()}


def leaver_table(leavers: DataFrame, count: int) -> SummaryTable:
    """Return the top `count` rows of `hole_consumers` or `hole_keys`, by holes, descending."""
    kind = "consumer" if "consumer" in leavers.columns else "key"
    top = hole_frames.most_holes(leavers, count).collect()
    rows = [
        (
            row["topic"],
            row["subscription"],
            Leaver.of_row(row.asDict(), kind).name,
            row["holes"],
            row["entries"],
            None if row["oldest_age_ms"] is None else row["oldest_age_ms"] // 1000,
        )
        for row in top
    ]
    return SummaryTable(
        title=f"Holes by {kind}",
        columns=("topic", "subscription", kind, "holes", "entries", "oldest (s)"),
        rows=rows,
        rows_left_out=leavers.count() - len(rows),
    )


def _by_subscription(frame: DataFrame) -> dict[tuple[str, str], list[dict[str, Any]]]:
    rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in frame.collect():
        rows[row["topic"], row["subscription"]].append(row.asDict())
    return rows


def _leavers(rows: list[dict[str, Any]], kind: str) -> tuple[Leaver, ...]:
    ordered = sorted(rows, key=lambda row: int(row["by_holes"]))
    return tuple(Leaver.of_row(row, kind) for row in ordered)


def _count(rows: list[dict[str, Any]]) -> int:
    return int(rows[0]["leavers"]) if rows else 0
