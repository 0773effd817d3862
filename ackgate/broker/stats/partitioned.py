"""The statistics of a partitioned topic: those of its partitions, added up.

Pure. As Pulsar adds: counters and rates are summed, subscriptions of one name become one whose
consumers are those of all partitions; what is true of one partition (paused, blocked) is true of
it. The ack state of a subscription stays with its partitions: cursors cannot be added.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_OF_ONE_CURSOR = {"ackState", "delayed", "ownerBroker", "deduplicationStatus"}
"""Keys that say nothing of several partitions together."""


def add_up(partitions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add topic statistics in their JSON form."""
    total: dict[str, Any] = {}
    for stats in partitions:
        _add(total, stats)
    total["publishers"] = _by_name(total.get("publishers", []), "producerName")
    for subscription in total.get("subscriptions", {}).values():
        subscription["consumers"] = _by_name(subscription["consumers"], "consumerName")
    return total


def _add(total: dict[str, Any], stats: Mapping[str, Any]) -> None:
    for key, value in stats.items():
        if key in _OF_ONE_CURSOR:
            continue
        present = total.get(key)
        match value:
            case bool():
                total[key] = bool(present) or value
            case int() | float() if key.startswith(("last", "earliest")):
                total[key] = _edge(key, present, value)
            case int() | float() if value == -1 and present in {None, -1}:
                total[key] = value  # "no limit"
            case int() | float():
                total[key] = (present or 0) + value
            case list():
                total[key] = [*(present or []), *value]
            case dict():
                _add(total.setdefault(key, {}), value)
            case _:
                total.setdefault(key, value)


def _edge(key: str, present: float | None, value: float) -> float:
    """The latest, or the earliest that is known at all (0: none)."""
    known = [time for time in (present, value) if time]
    return (max if key.startswith("last") else min)(known, default=0)


def _by_name(parties: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Those of one name are one client's, one on each partition."""
    grouped: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for party in parties:
        _add(grouped[party.get(name, "")], party)
    return list(grouped.values())
