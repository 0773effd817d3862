"""Renders bookies, and the audits of many ledgers, for people and for programs.

Pure, except that `cluster_bookies_json` asks each bookie of a real cluster.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ackgate.commands.terminal.tables import printable, size_text, table
from ackgate.described import count
from ackgate.errors import BookieRefusedError, StorageError
from ackgate.persistence.ledgers.auditor import AuditTotals
from ackgate.persistence.ledgers.replication import spans

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ackgate.bookkeeper import BookKeeperClient, KnownBookie
    from ackgate.persistence.ledgers.auditor import LedgerAudit
    from ackgate.persistence.ledgers.replication import CopyFinding, EntryRanges, FragmentFinding
    from ackgate.persistence.offline_storage import OfflineStorage


@dataclass(slots=True)
class Findings:
    """Adds up the audits of many ledgers, and keeps those of ledgers with something wrong."""

    totals: AuditTotals = field(default_factory=AuditTotals)
    audits: list[LedgerAudit] = field(default_factory=list)
    """Audits of ledgers that have bad copies, or could not be checked."""
    unverified: int = 0
    """Ledgers whose copies were counted but could not be verified."""

    def add(self, audit: LedgerAudit, *, is_named: bool, is_repair: bool = False) -> None:
        """Add the audit of one ledger.

        `is_named`: the user named the ledger, so it is an error if it does not exist.
        """
        if audit.is_deleted and is_named:
            audit.error = "does not exist"
        self.totals.add(audit, is_repair=is_repair)
        self.unverified += is_unverified(audit)
        if not audit.is_whole or audit.error is not None:
            self.audits.append(audit)

    def json(self) -> dict[str, Any]:
        """The ledgers with something wrong, and the totals."""
        return {"ledgers": list(map(audit_json, self.audits)), "totals": asdict(self.totals)}


def bookie_lines(storage: OfflineStorage, named: Iterable[str] = ()) -> list[str]:
    """A table of bookies and their damages. `named`: bookies that ledgers name, here or not."""
    rows = []
    damages: list[str] = []
    for bookie in storage.client.bookies:
        statistics = bookie.statistics()
        state = "ok" if statistics.last_error is None else statistics.last_error
        rows.append((bookie.bookie_id, str(bookie.directory), state))
        damages += statistics.damages
    here = {bookie.bookie_id for bookie in storage.client.bookies}
    rows += [("?", str(path), f"left out: {why}") for path, why in storage.left_out.items()]
    rows += [(bookie_id, "?", "not here") for bookie_id in sorted(set(named) - here)]
    lines = table(("bookie", "directory", "state"), rows)
    if damages:
        lines += ["", "damaged places:", *(f"  {damage}" for damage in damages)]
    return lines


def audit_lines(audits: Sequence[LedgerAudit]) -> list[str]:
    """A table of copies that are missing or damaged, and of ledgers that were not checked."""
    rows = []
    notes = []
    for audit in audits:
        for finding in audit.fragments:
            rows += [_row(audit, finding, copy) for copy in finding.copies if not copy.is_whole]
        if audit.error is not None:
            notes.append(f"ledger {audit.ledger_id}: {audit.error}")
        for finding in audit.fragments:
            if finding.without_good_copy:
                word = "lost" if finding.is_lost else "on bookies that do not answer, if at all"
                notes.append(
                    f"ledger {audit.ledger_id}: entries {finding.without_good_copy.text()}: {word}"
                )
        notes += [f"ledger {audit.ledger_id}: {why}" for why in dict.fromkeys(audit.stuck)]
    head = ("ledger", "state", "entries", "bookie", "missing", "damaged", "trouble")
    lines = table(head, rows, right="ledger")
    return [*lines, *([""] if lines and notes else []), *notes]


def _row(audit: LedgerAudit, finding: FragmentFinding, copy: CopyFinding) -> tuple[str, ...]:
    span = finding.span
    return (
        str(audit.ledger_id),
        "?" if audit.metadata is None else audit.metadata.state.value,
        f"{span.first_entry_id}-{span.last_entry_id}",
        copy.bookie_id,
        _ranges(copy.missing),
        _ranges(copy.damaged),
        copy.trouble or "",
    )


def _ranges(entries: EntryRanges) -> str:
    return f"{entries.text()} ({len(entries):,})" if entries else "-"


def totals_line(totals: AuditTotals, *, open_fragments: int, unverified: int) -> str:
    """One line: how many ledgers were checked, what is wrong, what was repaired."""
    text = f"{count(totals.ledgers, 'ledger')} checked"
    wrong = totals.under_replicated_ledgers
    if wrong:
        text += f", {wrong:,} with copies missing or damaged"
    elif totals.failed_ledgers < max(totals.ledgers, 1):
        text += ", all copies are good"
    if totals.failed_ledgers:
        text += f", {totals.failed_ledgers:,} could not be checked"
    if totals.lost_entries:
        text += f", {count(totals.lost_entries, 'entry', 'entries')} without a good copy"
    if totals.repaired_entries or totals.moved_places:
        text += (
            f"; copied {count(totals.repaired_entries, 'entry', 'entries')}"
            f" ({size_text(totals.repaired_bytes)})"
        )
    if totals.moved_places:
        text += f", {count(totals.moved_places, 'place')} given to other bookies"
    if open_fragments:
        text += f"; {count(open_fragments, 'open fragment')} left to their owner, not checked"
    if unverified:
        text += (
            f"; {count(unverified, 'ledger')} present but not verified: "
            "the password (managedLedgerPassword) is not theirs"
        )
    return text


def open_fragments(audit: LedgerAudit) -> int:
    """Fragments of the ledger that were not checked because they are still written."""
    if audit.metadata is None:
        return 0
    return sum(span.is_open for span in spans(audit.metadata)) - sum(
        finding.span.is_open for finding in audit.fragments
    )


def is_unverified(audit: LedgerAudit) -> bool:
    """Whether copies were counted but not verified."""
    return any(not finding.is_verified for finding in audit.fragments)


def audit_json(audit: LedgerAudit) -> dict[str, Any]:
    """The audit of a ledger as JSON."""
    return {
        "ledgerId": audit.ledger_id,
        "state": None if audit.metadata is None else audit.metadata.state.value,
        "isWhole": audit.is_whole,
        "isDeleted": audit.is_deleted,
        "error": audit.error,
        "stuck": audit.stuck,
        "repairedEntries": audit.repaired_entries,
        "repairedBytes": audit.repaired_bytes,
        "movedPlaces": audit.moved_places,
        "fragments": [
            {
                "firstEntryId": finding.span.first_entry_id,
                "lastEntryId": finding.span.last_entry_id,
                "isOpen": finding.span.is_open,
                "isVerified": finding.is_verified,
                "withoutGoodCopy": _json_ranges(finding.without_good_copy),
                "copies": [
                    {
                        "bookie": copy.bookie_id,
                        "expected": copy.expected,
                        "good": copy.good,
                        "missing": _json_ranges(copy.missing),
                        "damaged": _json_ranges(copy.damaged),
                        "trouble": copy.trouble,
                    }
                    for copy in finding.copies
                ],
            }
            for finding in audit.fragments
        ],
    }


def _json_ranges(entries: EntryRanges) -> list[list[int]]:
    return [[first, last] for first, last in entries.ranges()]


def bookies_json(storage: OfflineStorage) -> list[dict[str, Any]]:
    """The bookies that are directories, and those left out, as JSON."""
    return [
        {
            "bookie": bookie.bookie_id,
            "directory": str(bookie.directory),
            "error": bookie.statistics().last_error,
            "damages": list(bookie.statistics().damages),
        }
        for bookie in storage.client.bookies
    ] + [
        {"bookie": None, "directory": str(path), "error": why, "damages": []}
        for path, why in storage.left_out.items()
    ]


async def cluster_bookies_json(cluster: BookKeeperClient) -> list[dict[str, Any]]:
    """The bookies of a real cluster as JSON. Asks each registered one for its disk space."""
    return await asyncio.gather(*(_asked(cluster, bookie) for bookie in await cluster.bookies()))


async def _asked(cluster: BookKeeperClient, bookie: KnownBookie) -> dict[str, Any]:
    described: dict[str, Any] = {
        "bookie": bookie.bookie_id,
        "state": bookie.state.value,
        "address": None
        if bookie.address is None
        else f"{bookie.address.host}:{bookie.address.port}",
        "endpoints": [
            {"id": e.endpoint_id, "protocol": e.protocol, "host": e.host, "port": e.port}
            for e in bookie.service.endpoints
        ],
        "properties": dict(bookie.service.properties),
        "totalBytes": None,
        "freeBytes": None,
        "error": bookie.error,
        "isRefused": False,
    }
    if bookie.state.value != "away" and bookie.error is None:
        try:
            found = await cluster.disk_space(bookie.bookie_id)
        except StorageError as error:
            described["error"] = str(error)
            described["isRefused"] = isinstance(error, BookieRefusedError)
        else:
            described |= {"totalBytes": found.total_bytes, "freeBytes": found.free_bytes}
    return described


def cluster_bookie_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A table of what `cluster_bookies_json` returned."""
    cells = [
        (
            printable(row["bookie"]),
            printable(row["address"] or "?"),
            row["state"],
            "?" if row["freeBytes"] is None else size_text(row["freeBytes"]),
            "?" if row["totalBytes"] is None else size_text(row["totalBytes"]),
            ", ".join(
                printable(f"{e['protocol']}={e['host']}:{e['port']}") for e in row["endpoints"]
            ),
            row["error"] or "",
        )
        for row in rows
    ]
    head = ("bookie", "address", "state", "free", "total", "registered", "")
    return table(head, cells, right="free total") or ["no bookies"]
