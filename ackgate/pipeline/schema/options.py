"""What a user may say to the data source, checked before anything is opened.

Pure. Names are taken in any case, as Spark hands them over in lower case; an unknown one is refused
with those that look like it.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.cursor import ENTRY_ID_MAX, LEDGER_ID_MAX, Position
from ackgate.errors import CallerError, PositionError
from ackgate.pipeline.schema.tables import table_named

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackgate.pipeline.schema.tables import Column, Table

SPLIT_BYTES: Final = 64 * 1024 * 1024
"""Aim for one task's share of the files: large ones are split, small ones put together."""

OPTIONS: Final[Mapping[str, str]] = {
    "path": "Data directories, joined by commas: paths or addresses. They hold the bookies; the first "
    "holds the metadata.",
    "bookies": "Bookies' directories instead of those below `path`, joined by commas.",
    "metadataUrl": "The metadata store instead of that in `path`: `zk:HOST:PORT,.../ROOT` or "
    "`sqlite:PATH`.",
    "config": "The broker's `broker.conf`. Its storage settings apply: password of digests, bookies, "
    "metadata store.",
    "pulsar": "Instead of all these: a real Pulsar cluster, `zk:HOST:PORT[,HOST:PORT...][/CHROOT]`, read "
    "from its ZooKeeper and bookies; `config` may be its `broker.conf`.",
    "onOffloaded": "With `pulsar`, of messages that lie in tiered storage only: `fail` (default), or `skip` "
    "them.",
    "bookkeeper": "The BookKeeper cluster that has the ledgers, where `config` does not name it "
    "(`bookkeeperMetadataServiceUri`): `zk+hierarchical://HOST:PORT[;HOST:PORT...]/ledgers`.",
    "topic": "Topics by name, joined by commas; a partitioned topic means all its partitions. "
    "Default: all.",
    "subscription": "Only this one; `messages` and `delivery_journal` hold whole topics.",
    "table": "Which table. Default: `messages`.",
    "columns": "Columns by name, joined by commas. Default: all that are not heavy.",
    "ledgerIds": "Only these ledgers: `7,9,12-40`. Others are not opened.",
    "entryIds": "Only these entries of each ledger, in the same form. Others are not read.",
    "minPublishTimeMs": "Only messages published then or later.",
    "maxPublishTimeMs": "Only messages published then or before.",
    "onCorrupt": "`fail` (default), or `skip`: leave out entries without a good copy.",
    "openLedgers": "Where a read of an open ledger ends: at the last entry `found`, or at the last one "
    "`confirmed`. Default: found if no process writes to the bookies' directories. For an address and a "
    "BookKeeper cluster that is unknown, so: confirmed.",
    "version": "The state as of this version of the cursor, or the newest before.",
    "atMs": "The state as of this time, by the broker's clock.",
    "splitBytes": "Larger files are read by several tasks, in parts of about so many bytes.",
    "startingPosition": "Where a stream without a checkpoint begins: `earliest`, `latest` or "
    "`LEDGER:ENTRY`, which is the first to be read.",
    "maxEntriesPerTrigger": "Entries of one batch of a stream, over all topics.",
    "onTrimmed": "What a stream does when entries were trimmed before it has read them: `fail`, or "
    "`report` it in `gapsPath` and continue.",
    "gapsPath": "A directory or an address, for `onTrimmed=report`.",
}
"""Name and meaning, as docs/pipeline.md has them."""

TABLES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "ledgerIds": ("messages", "unpacked_messages", "ledgers", "delivery_journal", "corrupt"),
    "entryIds": ("messages", "unpacked_messages"),
    "onOffloaded": ("messages", "unpacked_messages"),
    "minPublishTimeMs": ("messages", "unpacked_messages"),
    "maxPublishTimeMs": ("messages", "unpacked_messages"),
    "openLedgers": ("messages", "unpacked_messages", "delivery_journal", "corrupt"),
    "version": ("ack_state",),
    "atMs": ("ack_state",),
    "splitBytes": ("messages", "unpacked_messages", "delivery_journal", "corrupt"),
    "startingPosition": ("messages", "unpacked_messages", "delivery_journal"),
    "maxEntriesPerTrigger": ("messages", "unpacked_messages", "delivery_journal"),
    "onTrimmed": ("messages", "unpacked_messages", "delivery_journal"),
    "gapsPath": ("messages", "unpacked_messages", "delivery_journal"),
}
"""Options that apply to some tables only."""

OF_STREAMS: Final = ("startingPosition", "maxEntriesPerTrigger", "onTrimmed", "gapsPath")
NOT_OF_PULSAR: Final = (
    *("path", "bookies", "metadataUrl", "openLedgers"),
    *("version", "atMs", "splitBytes"),
)
"""Options that do not apply to a Pulsar cluster."""

OF_READS: Final = ("splitBytes", "openLedgers")

_READS_FOUND: Final = {"auto": None, "found": True, "confirmed": False}
_BY_LOWER_CASE: Final = {name.lower(): name for name in OPTIONS}
_ID_RANGE: Final = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_MILLISECONDS_MAX: Final = 2**63 - 1


class IdRange(NamedTuple):
    """Ids from `first` to `last`, both included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options of the data source."""

    table: Table
    paths: tuple[str, ...] = ()
    bookies: tuple[str, ...] = ()
    metadata_url: str | None = None
    config: str | None = None
    pulsar: str | None = None
    bookkeeper: str | None = None
    topics: tuple[str, ...] = ()
    """Empty: all."""
    subscription: str | None = None
    columns: tuple[Column, ...] | None = None
    """The columns to read; None: those of the schema, or the default ones."""
    ledger_ids: tuple[IdRange, ...] | None = None
    entry_ids: tuple[IdRange, ...] | None = None
    min_publish_time_ms: int | None = None
    max_publish_time_ms: int | None = None
    skips_corrupt: bool = False
    skips_offloaded: bool = False
    """Leave out what lies in tiered storage only."""
    reads_found: bool | None = None
    """Read open ledgers as found (True) or as confirmed (False). None: see ``openLedgers``."""
    version: int | None = None
    at_ms: int | None = None
    split_bytes: int = SPLIT_BYTES
    starting_position: Position | None = None
    """Where a stream without a checkpoint begins. None: where `starts_at_end` says."""
    starts_at_end: bool = False
    max_entries_per_trigger: int | None = None
    gaps_path: str | None = None
    """Where a stream reports entries that were trimmed before it read them. None: that is an error."""
    given: frozenset[str] = frozenset()
    """Names of the given options."""

    @property
    def chosen_columns(self) -> tuple[Column, ...]:
        """The columns that are named, or all that are not heavy."""
        return self.table.default_columns if self.columns is None else self.columns

    def wants_ledger(self, ledger_id: int) -> bool:
        """Whether `ledger_ids` lets it pass."""
        wanted = self.ledger_ids
        return wanted is None or any(first <= ledger_id <= last for first, last in wanted)

    def refuse(self, names: Iterable[str], use: str) -> None:
        """Raise `CallerError` if one of these was given, since it has no effect here."""
        for name in names:
            if name in self.given:
                raise CallerError(f"option {name} has no meaning for {use}")


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the source's options. Raises `CallerError` naming the option and its allowed values."""
    values = _named(given)
    if "pulsar" in values:
        for name in NOT_OF_PULSAR:
            if name in values:
                raise CallerError(f"option {name} has no meaning for a Pulsar cluster")
    elif "path" not in values and "metadataUrl" not in values and "config" not in values:
        raise CallerError("option path is missing: it names the data directory")
    elif "bookkeeper" in values and "bookies" in values:
        raise CallerError("options bookkeeper and bookies exclude each other")
    elif "onOffloaded" in values:
        raise CallerError("option onOffloaded has no meaning without pulsar")
    if "version" in values and "atMs" in values:
        raise CallerError("options version and atMs exclude each other")
    table = table_named(values.get("table", "messages").strip())
    for name, tables in TABLES_OF.items():
        if name in values and table.name not in tables:
            raise CallerError(
                f"option {name} has no meaning for table {table.name}, only for {', '.join(tables)}"
            )
    is_of_pulsar = table.name == "cursors"
    if is_of_pulsar and "pulsar" not in values:
        raise CallerError(f"table {table.name} is of a Pulsar cluster: option pulsar is missing")
    if table.name == "corrupt" and "pulsar" in values:
        raise CallerError("table corrupt is of files: a Pulsar cluster's bookies keep theirs")
    start = values.get("startingPosition", "earliest").strip()
    options = SourceOptions(
        table=table,
        paths=_words(values.get("path")),
        bookies=_words(values.get("bookies")),
        metadata_url=values.get("metadataUrl"),
        config=values.get("config"),
        pulsar=values.get("pulsar"),
        bookkeeper=values.get("bookkeeper"),
        topics=_words(values.get("topic")),
        subscription=values.get("subscription"),
        columns=table.select(_words(values["columns"])) if "columns" in values else None,
        ledger_ids=_ids(values, "ledgerIds", LEDGER_ID_MAX),
        entry_ids=_ids(values, "entryIds", ENTRY_ID_MAX),
        min_publish_time_ms=_number(values, "minPublishTimeMs", 0, _MILLISECONDS_MAX),
        max_publish_time_ms=_number(values, "maxPublishTimeMs", 0, _MILLISECONDS_MAX),
        skips_corrupt=_choice(values, "onCorrupt", ("fail", "skip")) == "skip",
        skips_offloaded=_choice(values, "onOffloaded", ("fail", "skip")) == "skip",
        reads_found=_READS_FOUND[_choice(values, "openLedgers", tuple(_READS_FOUND))],
        version=_number(values, "version", 0, _MILLISECONDS_MAX),
        at_ms=_number(values, "atMs", 0, _MILLISECONDS_MAX),
        split_bytes=_number(values, "splitBytes", 1, _MILLISECONDS_MAX) or SPLIT_BYTES,
        starting_position=_position(start),
        starts_at_end=start.lower() == "latest",
        max_entries_per_trigger=_number(values, "maxEntriesPerTrigger", 1, _MILLISECONDS_MAX),
        gaps_path=_gaps_path(values),
        given=frozenset(values),
    )
    first, last = options.min_publish_time_ms, options.max_publish_time_ms
    if first is not None and last is not None and first > last:
        raise CallerError(f"option maxPublishTimeMs: {last} is before minPublishTimeMs, {first}")
    return options


def _gaps_path(values: Mapping[str, str]) -> str | None:
    is_reporting = _choice(values, "onTrimmed", ("fail", "report")) == "report"
    path = values.get("gapsPath", "").strip()
    if is_reporting and not path:
        raise CallerError("option gapsPath is missing: onTrimmed=report writes the gaps there")
    if path and not is_reporting:
        raise CallerError("option gapsPath has no meaning without onTrimmed=report")
    return path or None


def near_matches(word: str, known: list[str]) -> str:
    """What may have been meant, as the end of a sentence; empty when nothing comes near."""
    found = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _named(given: Mapping[str, str]) -> dict[str, str]:
    values = {}
    for name, value in given.items():
        known = _BY_LOWER_CASE.get(name.lower())
        if known is None:
            near = difflib.get_close_matches(name.lower(), list(_BY_LOWER_CASE), n=3, cutoff=0.5)
            meant = near_matches(name.lower(), near)
            for lower in near:
                meant = meant.replace(lower, _BY_LOWER_CASE[lower])
            raise CallerError(
                f"the data source has no option {name!r}{meant or '; it has ' + ', '.join(OPTIONS)}"
            )
        values[known] = value
    return values


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


def _number(values: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) <= len(str(most))):
        raise CallerError(f"option {name}: {text!r} is not a whole number")
    if not least <= int(digits) <= most:
        raise CallerError(f"option {name}: {digits} is not within {least}..{most}")
    return int(digits)


def _choice(values: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    word = values.get(name, allowed[0]).strip().lower()
    if word not in allowed:
        raise CallerError(f"option {name}: {word!r} is not one of {', '.join(allowed)}")
    return word


def _ids(values: Mapping[str, str], name: str, most: int) -> tuple[IdRange, ...] | None:
    if name not in values:
        return None
    ranges = []
    for word in _words(values[name]):
        match = _ID_RANGE.fullmatch(word)
        first = int(match[1]) if match else -1
        last = int(match[2] or match[1]) if match else -1
        if not 0 <= first <= last <= most:
            raise CallerError(f"option {name}: {word!r} is neither an id nor FIRST-LAST")
        ranges.append(IdRange(first, last))
    if not ranges:
        raise CallerError(f"option {name} names no id")
    return tuple(ranges)


def _position(text: str) -> Position | None:
    if text.lower() in {"earliest", "latest"}:
        return None
    try:
        return Position.parse(text)
    except (PositionError, ValueError):
        raise CallerError(
            f"option startingPosition: {text!r} is not earliest, latest or LEDGER:ENTRY"
        ) from None
