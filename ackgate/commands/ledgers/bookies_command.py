"""``ackgate bookies``: lists bookies, verifies all copies of all entries, and repairs them.

Edge: prints. ``list`` shows directories or, with ``--metadata``, the bookies of a real BookKeeper cluster,
each of which is asked for its disk space: 0 when all are good, 1 when one is away, does not answer, or has
damaged places, 2 when one cannot be used as configured (TLS, authentication, no bookie at all).

``check`` only reads, directories and clusters, also beside a running broker; ``repair`` repairs what it can
in directories (on a cluster AutoRecovery does that). The exit code is 0 when all copies are good
(afterwards), 1 when some are not or ``check`` finds a bookie's own files damaged, 2 when it could not
begin: a wrong command line, or a broker that runs on the data directory. That one audits by itself
(``auditorPeriodicCheckInterval``). Beside brokers on a shared metadata store repair is safe.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from typing import TYPE_CHECKING, Any, Final

from ackgate.commands.ledgers.audit_view import (
    Findings,
    audit_lines,
    bookie_lines,
    bookies_json,
    cluster_bookie_lines,
    cluster_bookies_json,
    open_fragments,
    totals_line,
)
from ackgate.commands.ledgers.opened import opened_ledgers
from ackgate.config.load import load_settings
from ackgate.errors import ConfigurationError
from ackgate.persistence.bookies.settings import AuditSettings
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
    """List, check or repair. Returns the exit code. Raises `AckGateError`."""
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
    if rate is not None and not 0 < rate < math.inf:
        raise ConfigurationError(f"--bytes-per-second {rate:g}: more than 0 and finite")
    settings = AuditSettings(
        bytes_per_second=rate,
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
    return 1 if any(map(_is_wrong, rows)) else 0


def _is_wrong(row: dict[str, Any]) -> bool:
    return bool(row["error"] or row.get("damages")) or row.get("state") == "away"


async def _check_cluster(arguments: argparse.Namespace) -> int:
    found = Findings()
    async with opened_ledgers(arguments) as ledgers:
        cluster = ledgers.cluster
        assert cluster is not None
        rows = await cluster_bookies_json(cluster)
        for ledger_id in arguments.ledger or await cluster.ledger_ids():
            found.add(await cluster.verify(ledger_id), is_named=bool(arguments.ledger))
    if arguments.json:
        print(json.dumps({"bookies": rows, **found.json()}, indent=2))  # noqa: T201
    else:
        summary = totals_line(found.totals, open_fragments=0, unverified=0)
        _print_blocks(cluster_bookie_lines(rows), audit_lines(found.audits), summary)
    return 1 if found.audits else 0


async def _run(
    arguments: argparse.Namespace,
    places: StoragePlaces,
    settings: AuditSettings,
    *,
    is_repair: bool,
) -> int:
    found = Findings()
    named: set[str] = set()
    unlooked = 0
    async with opened_storage(places, is_writing=is_repair) as storage:
        auditor = storage.client.auditor(settings, password=places.password)
        async for audit in auditor.audit(is_repair=is_repair, ledger_ids=arguments.ledger):
            found.add(audit, is_named=bool(arguments.ledger), is_repair=is_repair)
            unlooked += open_fragments(audit)
            if audit.metadata is not None:
                named.update(b for f in audit.metadata.fragments for b in f.ensemble)
        totals = found.totals
        not_here = sorted(named - {b.bookie_id for b in storage.client.bookies})
        summary = totals_line(totals, open_fragments=unlooked, unverified=found.unverified)
        if not_here:
            summary += f"; not here: {', '.join(not_here)}"
        if arguments.json:
            answer = {
                "bookies": bookies_json(storage),
                "bookiesNotHere": not_here,
                **found.json(),
                "openFragments": unlooked,
                "notVerified": found.unverified,
            }
            print(json.dumps(answer, indent=2))  # noqa: T201
        else:
            lines = audit_lines(found.audits)
            if is_repair and not arguments.replace_lost and totals.unmended_ledgers:
                lines += ["--replace-lost gives the places of bookies that are not here to others"]
            _print_blocks(bookie_lines(storage, named), lines, summary)
        # A fragment still being written is not checked, and copies on a missing bookie are lost.
        is_missed = bool(not_here) and (unlooked > 0 or not is_repair)
        has_error = any(audit.error for audit in found.audits)
        is_found = totals.unmended_ledgers or is_missed or has_error
        # A repair mends the bookies' own files when it opens them.
        rows = bookies_json(storage)
        is_place_bad = bool(storage.left_out) if is_repair else any(map(_is_wrong, rows))
        return 1 if is_found or (is_place_bad and not arguments.ledger) else 0


def _print_blocks(bookies: list[str], findings: list[str], summary: str) -> None:
    blocks = filter(None, (bookies, findings, [summary]))
    print("\n\n".join(map("\n".join, blocks)))  # noqa: T201
