"""Who left holes in one subscription: values for the report.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

CAUSE_WORDS: Final = {
    "delayed": "not due yet",
    "waiting": "no dispatch known",
    "unknown": "not known",
}
"""Words for the cause why an entry has no known consumer."""

NO_KEY: Final = "no key"
NOT_FOUND: Final = "not found"
"""Shown instead of consumer or key if the hole's messages were not found."""


@dataclass(frozen=True, slots=True)
class Leaver:
    """A consumer or a key, with figures of the present holes that have entries of it."""

    name: str
    is_name: bool
    """False: `name` says why there is no consumer or key."""
    holes: int
    entries: int
    """Unacked entries of this consumer or key in those holes."""
    oldest_age_ms: int | None
    mean_age_ms: int | None
    redeliveries_max: int | None
    """Highest redelivery count of its entries; None: not in the journal."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any], kind: str) -> Leaver:
        """Convert a row of `hole_consumers` or `hole_keys`. `kind`: "consumer" or "key"."""
        name = row[kind]
        without = CAUSE_WORDS.get(row["cause"], "?") if kind == "consumer" else NO_KEY
        return cls(
            name=without if name is None else name,
            is_name=name is not None,
            holes=row["holes"],
            entries=row["entries"],
            oldest_age_ms=row["oldest_age_ms"],
            mean_age_ms=row["mean_age_ms"],
            redeliveries_max=row["redeliveries_max"],
        )


@dataclass(frozen=True, slots=True)
class OpenHole:
    """A present hole. Consumer and key are those of its first entry that was found."""

    ledger_id: int
    first_entry_id: int
    entries: int
    since_ms: int
    age_ms: int
    consumer: str
    key: str

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> OpenHole:
        """Convert a row of the frame `holes`; its `since_ms` must not be null."""
        cause = row["cause"]
        without_key = NOT_FOUND if cause is None else NO_KEY
        return cls(
            ledger_id=row["ledger_id"],
            first_entry_id=row["first_entry_id"],
            entries=row["entries"],
            since_ms=row["since_ms"],
            age_ms=row["age_ms"],
            consumer=row["consumer"] or CAUSE_WORDS.get(cause, NOT_FOUND),
            key=without_key if row["key"] is None else row["key"],
        )


@dataclass(frozen=True, slots=True)
class HoleLeavers:
    """Who left holes in one subscription: those with the most and those with the oldest holes."""

    consumers: tuple[Leaver, ...] = ()
    keys: tuple[Leaver, ...] = ()
    consumer_count: int = 0
    key_count: int = 0
    """`consumer_count` and `key_count`: how many there are, listed or not."""
    holes: tuple[OpenHole, ...] = ()
    """The oldest holes."""
