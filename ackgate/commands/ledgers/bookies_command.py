"""``ackgate bookies``: lists bookies, verifies all copies of all entries, and repairs them.

Edge: prints. ``list`` shows directories or, with ``--metadata``, the bookies of a real BookKeeper cluster,
each of which is asked for its disk space: 0 when all answer, 1 when one is away or does not, 2 when one
cannot be used as configured (TLS, authentication, no bookie at all).

``check`` only reads, directories and clusters, also beside a running broker; ``repair`` repairs what it can
in directories (on a cluster AutoRecovery does that). The exit code is 0 when
all copies are good (afterwards), 1 when some are not, 2 when it could not begin: a wrong command line, or
a broker that runs on the data directory. That one audits by itself (``auditorPeriodicCheckInterval``).
Beside brokers on a shared metadata store repair is safe.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from ackgate.commands.ledgers.audit_view import (
    audit_json,
    audit_lines,
    bookie_lines,
    bookies_json,
    cluster_bookie_lines,
    cluster_bookies_json,
    is_unverified,
    open_fragments,
    totals_line,
)
from ackgate.commands.ledgers.opened import opened_ledgers
from ackgate.config.load import load_settings
from ackgate.persistence.bookies.settings import AuditSettings
from ackgate.persistence.ledgers.auditor import AuditTotals, LedgerAudit
from ackgate.persistence.offline_storage import (
    on_cluster,
    opened_storage,
    places_of,
    quiet_logs,
    refuse_cluster,
)

if TYPE_CHECKING:
    import argparse

    from ackgate.persistence.offline_storage import StoragePlaces

_NO_REPAIR: Final = (
    "AutoRecovery brings back missing copies there, at once with `bookkeeper shell recover BOOKIE_ID`; no"
    " broker is needed"
)


def run_bookies(arguments: argparse.Namespace) -> int:
    """List, check or repair. Raises `AckGateError`."""
    if arguments.action == "list":
        with quiet_logs():
            return asyncio.run(_list(arguments))
    is_repair = arguments.action == "repair"
    persistence = load_settings(arguments.config, is_serving=False).settings.persistence
    persistence = on_cluster(persistence, arguments.metadata)
    if is_repair:
        refuse_cluster(persistence, _NO_REPAIR)
    elif persistence.is_on_bookkeeper:
        with quiet_logs():
            return asyncio.run(_check_cluster(arguments))
    rate = arguments.bytes_per_second if is_repair else None
    settings = AuditSettings(
        bytes_per_second=rate if rate and rate > 0 else None,
        lost_bookie_delay_seconds=0 if is_repair and arguments.replace_lost else math.inf,
    )
    with quiet_logs():
        return asyncio.run(_run(arguments, places_of(arguments), settings, is_repair=is_repair))


async def _list(arguments: argparse.Namespace) -> int:
    async with opened_ledgers(arguments) as ledgers:
        if ledgers.storage is not None:
            rows = bookies_json(ledgers.storage)
            lines = bookie_lines(ledgers.storage)
        else:
            assert ledgers.cluster is not None
            rows = await cluster_bookies_json(ledgers.cluster)
            lines = cluster_bookie_lines(rows)
    print(json.dumps(rows, indent=2) if arguments.json else "\n".join(lines))  # noqa: T201
    refused = [row["error"] for row in rows if row.get("isRefused")]
    for error in refused:
        print(f"ackgate: {error}", file=sys.stderr)  # noqa: T201
    if refused:
        return 2
    return 1 if any(row["error"] or row.get("state") == "away" for row in rows) else 0


async def _check_cluster(arguments: argparse.Namespace) -> int:
    totals = AuditTotals()
    audits: list[LedgerAudit] = []
    async with opened_ledgers(arguments) as ledgers:
        cluster = ledgers.cluster
        assert cluster is not None
        rows = await cluster_bookies_json(cluster)
        for ledger_id in arguments.ledger or await cluster.ledger_ids():
            audit = await cluster.verify(ledger_id)
            if audit.is_deleted and arguments.ledger:
                audit.error = "does not exist"
            totals.add(audit, is_repair=False)
            if not audit.is_whole or audit.error is not None:
                audits.append(audit)
    if arguments.json:
        answer = {
            "bookies": rows,
            "ledgers": [audit_json(audit) for audit in audits],
            "totals": asdict(totals),
        }
        print(json.dumps(answer, indent=2))  # noqa: T201
    else:
        summary = totals_line(totals, open_fragments=0, unverified=0)
        lines = [*cluster_bookie_lines(rows), "", *audit_lines(audits)]
        print("\n".join([*lines, *([""] if lines[-1] else []), summary]))  # noqa: T201
    return 1 if audits else 0


async def _run(
    arguments: argparse.Namespace,
    places: StoragePlaces,
    settings: AuditSettings,
    *,
    is_repair: bool,
) -> int:
    totals = AuditTotals()
    audits: list[LedgerAudit] = []
    named: set[str] = set()
    unlooked = unverified = 0
    async with opened_storage(places, is_writing=is_repair) as storage:
        auditor = storage.client.auditor(settings, password=places.password)
        async for audit in auditor.audit(is_repair=is_repair, ledger_ids=arguments.ledger):
            if audit.is_deleted and arguments.ledger:
                audit.error = "does not exist"
            totals.add(audit, is_repair=is_repair)
            unlooked += open_fragments(audit)
            unverified += is_unverified(audit)
            if audit.metadata is not None:
                named.update(b for f in audit.metadata.fragments for b in f.ensemble)
            if not audit.is_whole or audit.error is not None:
                audits.append(audit)
        not_here = sorted(named - {b.bookie_id for b in storage.client.bookies})
        summary = totals_line(totals, open_fragments=unlooked, unverified=unverified)
        if not_here:
            summary += f"; not here: {', '.join(not_here)}"
        if arguments.json:
            answer = {
                "bookies": bookies_json(storage),
                "bookiesNotHere": not_here,
                "ledgers": [audit_json(audit) for audit in audits],
                "totals": asdict(totals),
                "openFragments": unlooked,
                "notVerified": unverified,
            }
            print(json.dumps(answer, indent=2))  # noqa: T201
        else:
            lines = [*bookie_lines(storage, named), "", *audit_lines(audits)]
            if is_repair and not arguments.replace_lost and totals.unmended_ledgers:
                lines += ["--replace-lost gives the places of bookies that are not here to others"]
            print("\n".join([*lines, *([""] if lines[-1] else []), summary]))  # noqa: T201
        # Nobody looks at the copies of what is still written; those of a bookie that is gone are gone.
        is_missed = bool(not_here) and (unlooked > 0 or not is_repair)
        is_found = totals.unmended_ledgers or is_missed or any(audit.error for audit in audits)
        return 1 if is_found or (storage.left_out and not arguments.ledger) else 0
