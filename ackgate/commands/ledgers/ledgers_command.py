"""``ackgate ledgers``: which ledgers there are, what is in them, and whether all of it is good.

Edge: prints. Everything is opened read-only, beside a running broker or long after it; so is a real
BookKeeper cluster (``--metadata``). A ledger that is still written is read as far as its entries are
found without a gap: where a recovery would end it now. What is damaged is named and passed over. Exit
code 0; 1 when something is wrong, or could not be read; 2 for a wrong command line.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.wire import TopicName
from ackgate.commands.ledgers.adopt_command import run_adopt
from ackgate.commands.ledgers.audit_view import (
    Findings,
    audit_json,
    audit_lines,
    bookie_lines,
    bookies_json,
    is_unverified,
    totals_line,
)
from ackgate.commands.ledgers.entry_view import (
    RECORD_HEAD,
    SNAPSHOT_HEAD,
    hex_lines,
    message_json,
    message_line,
    record_json,
    record_row,
    snapshot_json,
    snapshot_row,
)
from ackgate.commands.ledgers.opened import opened_ledgers
from ackgate.commands.terminal.tables import (
    metadata_json,
    printable,
    size_text,
    table,
    time_text,
)
from ackgate.errors import (
    AckGateError,
    CallerError,
    ConfigurationError,
    CorruptRecordError,
    NoSuchLedgerError,
    StorageError,
)
from ackgate.persistence.ledger_owner import owner_of
from ackgate.persistence.offline_storage import quiet_logs
from ackgate.persistence.ports import LedgerState

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator

    from ackgate.commands.ledgers.opened import OpenedLedgers
    from ackgate.persistence.ledgers.auditor import LedgerAudit
    from ackgate.persistence.offline_storage import OfflineStorage
    from ackgate.persistence.ports import LedgerEntry, LedgerMetadata, UnrecoveredReader

_READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes that one read aims at."""

_READ_ENTRIES_MAX: Final = 500
_LOOK_AT_ONCE: Final = 32
_OPEN_ERRORS: Final = (StorageError, CorruptRecordError)


def run_ledgers(arguments: argparse.Namespace) -> int:
    """List, show, read or verify. Returns the exit code. Raises `AckGateError`."""
    with quiet_logs():
        return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    if arguments.action == "adopt":
        return await run_adopt(arguments)
    async with opened_ledgers(arguments) as ledgers:
        match arguments.action:
            case "verify":
                return await _verify(ledgers, arguments.ledger, is_json=arguments.json)
            case "list":
                return await _list(ledgers, arguments)
            case "show":
                return await _show(ledgers, arguments.ledger, is_json=arguments.json)
            case _:
                return await _read(ledgers, arguments)


# ---------------------------------------------------------------------------------------- list


async def _list(ledgers: OpenedLedgers, arguments: argparse.Namespace) -> int:
    topic = None if arguments.topic is None else str(TopicName.parse(arguments.topic))
    rows: list[dict[str, Any]] = []
    failures: list[str] = []

    async def look(ledger_id: int) -> dict[str, Any] | str | None:
        try:
            metadata = await ledgers.client.metadata(ledger_id)
        except NoSuchLedgerError:
            return None  # deleted meanwhile
        except AckGateError as error:
            return str(error)
        if topic is not None and not _is_of(owner_of(metadata).topic, topic):
            return None
        if arguments.state is not None and metadata.state.value != arguments.state:
            return None
        return await _summary(ledgers, metadata)

    ledger_ids = await ledgers.client.ledger_ids()
    for at in range(0, len(ledger_ids), _LOOK_AT_ONCE):
        for found in await asyncio.gather(*map(look, ledger_ids[at : at + _LOOK_AT_ONCE])):
            if isinstance(found, str):
                failures.append(found)
            elif found is not None:
                rows.append(found)
    if arguments.json:
        print(json.dumps(rows, indent=2))  # noqa: T201
    else:
        lines = _list_lines(rows, has_bookies=ledgers.cluster is not None)
        print("\n".join(lines or ["no ledgers"]))  # noqa: T201
    absent = [f"bookie directory {path}: {why}" for path, why in ledgers.left_out.items()]
    for failure in (*failures, *absent):
        print(f"ackgate: {failure}", file=sys.stderr)  # noqa: T201
    return 1 if failures or absent else 0


def _is_of(topic: str, wanted: str) -> bool:
    """Whether `topic` is the wanted topic or one of its partitions."""
    return topic == wanted or (
        topic.startswith(f"{wanted}-partition-")
        and topic.removeprefix(f"{wanted}-partition-").isdigit()
    )


async def _summary(ledgers: OpenedLedgers, metadata: LedgerMetadata) -> dict[str, Any]:
    owner = owner_of(metadata)
    entries: int | None = metadata.last_entry_id + 1
    length: int | None = metadata.length_bytes
    trouble = None
    if metadata.state is not LedgerState.CLOSED:
        try:
            reader = await ledgers.client.open_without_recovery(
                metadata.ledger_id, password=ledgers.password
            )
            entries, length = await reader.last_entry_found() + 1, reader.length_bytes
        except _OPEN_ERRORS as error:
            entries = length = None
            trouble = str(error)
    return {
        "ledgerId": metadata.ledger_id,
        "state": metadata.state.value,
        "kind": owner.kind,
        "topic": owner.topic,
        "cursor": owner.cursor,
        "entries": entries,
        "bytes": length,
        **metadata_json(metadata),
        "customMetadata": {
            key: value.decode(errors="backslashreplace")
            for key, value in metadata.custom_metadata.items()
        },
        "error": trouble,
    }


def _list_lines(rows: list[dict[str, Any]], *, has_bookies: bool) -> list[str]:
    """A table of ledgers. `has_bookies`: with a column for the last ensemble of each."""
    head: tuple[str, ...] = ("ledger", "state", "kind", "entries", "size", "E/W/A", "created", "of")
    shown = [_list_row(row) for row in rows]
    if has_bookies:
        head = (*head[:-1], "bookies", head[-1])
        shown = [
            (*cells[:-1], _ensemble_text(row), cells[-1])
            for row, cells in zip(rows, shown, strict=True)
        ]
    return table(head, shown, right="ledger entries size")


def _ensemble_text(row: dict[str, Any]) -> str:
    last, earlier = row["fragments"][-1], len(row["fragments"]) - 1
    return ",".join(last["ensemble"]) + (f" (+{earlier} earlier)" if earlier else "")


def _list_row(row: dict[str, Any]) -> tuple[str, ...]:
    is_known = row["entries"] is not None
    owner = row["topic"] + (f" cursor {row['cursor']}" if row["cursor"] else "")
    return (
        str(row["ledgerId"]),
        row["state"],
        row["kind"],
        f"{row['entries']:,}" if is_known else "?",
        size_text(row["bytes"]) if is_known else "?",
        f"{row['ensembleSize']}/{row['writeQuorum']}/{row['ackQuorum']}",
        time_text(row["createdMs"]),
        printable(owner or "-") + (f"  ({row['error']})" if row["error"] else ""),
    )


# ---------------------------------------------------------------------------------------- show


async def _show(ledgers: OpenedLedgers, ledger_id: int, *, is_json: bool) -> int:
    metadata = await ledgers.client.metadata(ledger_id)
    summary = await _summary(ledgers, metadata)
    storage = ledgers.storage
    audit = await _audited(storage, ledger_id, metadata) if storage is not None else None
    records: list[dict[str, Any]] = []
    if summary["kind"] in {"cursor", "delayed"} and summary["entries"]:
        async for entry in _entries(ledgers, ledger_id, 0, summary["entries"] - 1):
            records.append(_record(ledger_id, entry, summary["kind"]))  # noqa: PERF401  one line
    if is_json:
        copies = {"copies": audit_json(audit)["fragments"]} if audit is not None else {}
        print(json.dumps({**summary, **copies, "records": records}, indent=2))  # noqa: T201
    else:
        lines = _summary_lines(summary)
        lines += _fragment_lines(summary) if audit is None else _copy_lines(audit)
        print("\n".join([*lines, *_record_lines(summary, records)]))  # noqa: T201
    is_whole = audit.is_whole if audit is not None else summary["error"] is None
    return 0 if is_whole and not any("error" in record for record in records) else 1


def _record(ledger_id: int, entry: LedgerEntry | tuple[int, str], kind: str) -> dict[str, Any]:
    if isinstance(entry[1], str):
        return {"entryId": entry[0], "kind": "lost", "error": entry[1], "bytes": 0}
    return record_json(entry) if kind == "cursor" else snapshot_json(ledger_id, entry)


def _summary_lines(summary: dict[str, Any]) -> list[str]:
    is_known = summary["entries"] is not None
    owner = summary["topic"] + (f" cursor {summary['cursor']}" if summary["cursor"] else "")
    return [
        f"ledger {summary['ledgerId']}  {summary['state']}  {summary['kind']} ledger"
        + (f" of {printable(owner)}" if owner else ""),
        f"  created   {time_text(summary['createdMs'])}",
        f"  digest    {summary['digestType']}",
        f"  copies    {_copies_text(summary)}",
        f"  entries   {summary['entries']:,} in {size_text(summary['bytes'])}"
        if is_known
        else f"  entries   ? ({summary['error']})",
        "",
    ]


def _fragment_lines(summary: dict[str, Any]) -> list[str]:
    """Lines on which bookies hold which entries, and on the ledger's custom metadata."""
    firsts = [fragment["firstEntryId"] for fragment in summary["fragments"]]
    lasts = [str(first - 1) for first in firsts[1:]]
    lasts.append(str(summary["entries"] - 1) if summary["state"] == "CLOSED" else "")
    rows = [
        (f"{fragment['firstEntryId']}-{last}", " ".join(fragment["ensemble"]))
        for fragment, last in zip(summary["fragments"], lasts, strict=True)
    ]
    noted = [(printable(key), printable(value)) for key, value in summary["customMetadata"].items()]
    lines = table(("entries", "bookies"), rows)
    return [*lines, "", *table(("custom metadata", ""), noted)] if noted else lines


def _copy_lines(audit: LedgerAudit) -> list[str]:
    rows = [
        (
            f"{finding.span.first_entry_id}-{finding.span.last_entry_id}",
            copy.bookie_id,
            f"{copy.good:,} of {copy.expected:,}",
            copy.missing.text() or "-",
            copy.damaged.text() or "-",
            copy.trouble or ("open" if finding.span.is_open else ""),
        )
        for finding in audit.fragments
        for copy in finding.copies
    ]
    lines = table(("entries", "bookie", "good", "missing", "damaged", ""), rows, right="good")
    if audit.error is not None:
        lines.append(audit.error)
    if is_unverified(audit):
        lines.append("present, but not verified: the password is not this ledger's")
    return lines


def _record_lines(summary: dict[str, Any], records: list[dict[str, Any]]) -> list[str]:
    if not records:
        return []
    if summary["kind"] == "cursor":
        return ["", *table(RECORD_HEAD, [record_row(r) for r in records], right="entry bytes")]
    shown = [snapshot_row(record) for record in records]
    return ["", *table(SNAPSHOT_HEAD, shown, right="entry delayed bytes")]


def _copies_text(summary: dict[str, Any]) -> str:
    return (
        f"ensemble {summary['ensembleSize']}, write quorum {summary['writeQuorum']}, "
        f"ack quorum {summary['ackQuorum']}"
    )


async def _audited(
    storage: OfflineStorage, ledger_id: int, metadata: LedgerMetadata | None = None
) -> LedgerAudit:
    """Audit all copies of a ledger. Of an open ledger, up to the last entry found now."""
    open_until = -1
    try:
        metadata = metadata or await storage.client.metadata(ledger_id)
        if metadata.state is not LedgerState.CLOSED:
            reader = await storage.client.open_without_recovery(
                ledger_id, password=storage.places.password
            )
            open_until = await reader.last_entry_found()
    except AckGateError:
        pass  # the audit below reports what is wrong
    auditor = storage.client.auditor(password=storage.places.password)
    return await auditor.audit_ledger(ledger_id, is_repair=False, open_until=open_until)


# ---------------------------------------------------------------------------------------- read


async def _read(ledgers: OpenedLedgers, arguments: argparse.Namespace) -> int:
    ledger_id: int = arguments.ledger
    metadata = await ledgers.client.metadata(ledger_id)
    kind = owner_of(metadata).kind
    reader = await ledgers.client.open_without_recovery(ledger_id, password=ledgers.password)
    last_found = await reader.last_entry_found()
    first, last = _asked_for(arguments.entries, last_found)
    failures = 0
    async for entry in _entries(ledgers, ledger_id, first, last):
        if isinstance(entry[1], str):
            failures += 1
            print(f"ackgate: {entry[1]}", file=sys.stderr)  # noqa: T201
        else:
            _say_entry(ledger_id, entry, arguments, kind)
    sys.stdout.flush()
    return 1 if failures else 0


def _asked_for(text: str | None, last_found: int) -> tuple[int, int]:
    """Parse FIRST, FIRST..LAST or FIRST.. into the first and last entry id.

    Raises `ConfigurationError` for a malformed range, `CallerError` for one beyond the last entry.
    """
    if text is None:
        return 0, last_found
    first_text, dots, last_text = text.partition("..")
    try:
        first = int(first_text)
        last = first if not dots else int(last_text) if last_text else last_found
    except ValueError:
        raise ConfigurationError(f"{text!r}: must be FIRST, FIRST..LAST or FIRST..") from None
    is_open = dots and not last_text
    if first < 0 or (first > last and not is_open):
        raise ConfigurationError(f"{text!r}: no range of entries")
    if last > last_found or (is_open and first > last_found + 1):
        raise CallerError(f"entry {max(first, last)} is beyond the last one, {last_found}")
    return first, last


def _say_entry(
    ledger_id: int, entry: LedgerEntry, arguments: argparse.Namespace, kind: str
) -> None:
    if arguments.raw:
        sys.stdout.buffer.write(entry.payload)
    elif arguments.hex:
        print("\n".join(hex_lines(ledger_id, entry)))  # noqa: T201
    elif kind in {"cursor", "delayed"}:
        record = _record(ledger_id, entry, kind)
        if arguments.payload:
            record["payload"] = base64.b64encode(entry.payload).decode()
        row = record_row(record) if kind == "cursor" else snapshot_row(record)
        print(json.dumps(record) if arguments.json else "  ".join(row))  # noqa: T201
    else:
        record = message_json(ledger_id, entry, has_payload=arguments.payload)
        if kind == "other":  # it need not be a message
            record.pop("error", None)
        print(json.dumps(record) if arguments.json else message_line(record))  # noqa: T201


async def _entries(
    ledgers: OpenedLedgers, ledger_id: int, first: int, last: int
) -> AsyncIterator[LedgerEntry | tuple[int, str]]:
    """Read entries in order. In place of one that cannot be read: its id and the reason."""
    reader = await ledgers.client.open_without_recovery(ledger_id, password=ledgers.password)
    step = 16
    while first <= last:
        stop = min(first + step - 1, last)
        try:
            entries = await reader.read_unconfirmed(first, stop)
        except _OPEN_ERRORS:
            for entry_id in range(first, stop + 1):
                yield await _one(reader, entry_id)
        else:
            for entry in entries:
                yield entry
            mean = sum(len(entry.payload) for entry in entries) // len(entries)
            step = min(max(_READ_BYTES // max(mean, 1), 1), _READ_ENTRIES_MAX)
        first = stop + 1


async def _one(reader: UnrecoveredReader, entry_id: int) -> LedgerEntry | tuple[int, str]:
    try:
        return (await reader.read_unconfirmed(entry_id, entry_id))[0]
    except _OPEN_ERRORS as error:
        return entry_id, str(error)


# -------------------------------------------------------------------------------------- verify


async def _verify(ledgers: OpenedLedgers, ledger_ids: list[int], *, is_json: bool) -> int:
    found = Findings()
    storage, cluster = ledgers.storage, ledgers.cluster
    for ledger_id in ledger_ids or await ledgers.client.ledger_ids():
        if storage is not None:
            audit = await _audited(storage, ledger_id)
        else:
            assert cluster is not None
            audit = await cluster.verify(ledger_id)
        found.add(audit, is_named=bool(ledger_ids))
    if is_json:
        bookies = {"bookies": bookies_json(storage)} if storage is not None else {}
        answer = {**bookies, **found.json(), "notVerified": found.unverified}
        print(json.dumps(answer, indent=2))  # noqa: T201
    else:
        lines = audit_lines(found.audits)
        lines += [""] if lines else []
        if storage is not None and (
            storage.left_out or any(b.statistics().damages for b in storage.client.bookies)
        ):
            lines += [*bookie_lines(storage), ""]
        lines.append(totals_line(found.totals, open_fragments=0, unverified=found.unverified))
        print("\n".join(lines))  # noqa: T201
    return 1 if found.audits else 0
