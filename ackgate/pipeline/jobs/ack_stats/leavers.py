"""Who left holes in one subscription: values that the report is made of.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

GIVEN: Final = "given"

CAUSE_WORDS: Final = {
    "delayed": "not due yet",
    "waiting": "no dispatch known",
    "unknown": "not known",
}
"""Why an entry has no consumer."""

NO_KEY: Final = "no key"
NOT_FOUND: Final = "not found"
"""Stands for the consumer or key of an entry whose message is not there."""


@dataclass(frozen=True, slots=True)
class Leaver:
    """A consumer or a key, and the holes of today that are its."""

    name: str
    is_name: bool
    """False: words that say why there is none."""
    holes: int
    entries: int
    """Unacked ones in those holes that are its."""
    oldest_age_ms: int | None
    mean_age_ms: int | None
    redeliveries_max: int | None
    """None: not in the journal."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any], kind: str) -> Leaver:
        """`kind`: consumer or key, the column that names it."""
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
    """A hole of today. Consumer and key are those of its first entry."""

    ledger_id: int
    first_entry_id: int
    entries: int
    since_ms: int
    age_ms: int
    consumer: str
    key: str

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> OpenHole:
        """`since_ms` must be known."""
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
    """Who left the holes of one subscription: those with the most and those with the oldest."""

    consumers: tuple[Leaver, ...] = ()
    keys: tuple[Leaver, ...] = ()
    consumer_count: int = 0
    key_count: int = 0
    """Of all."""
    holes: tuple[OpenHole, ...] = ()
    """The oldest."""
