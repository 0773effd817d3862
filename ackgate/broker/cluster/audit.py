"""Runs the auditor of entries' copies in the broker, at intervals and slowly.

Edge. Of all the brokers on one metadata store one audits at a time: the one that holds the ephemeral
node ``/ackgate/auditor``. That saves work and nothing else: two at once would do no harm.

Two things are done at intervals of their own. *Check of bookies*: does every ledger's ensemble exist?
Reads metadata only, as a rule. *Check of everything*: every copy is read and verified. Both repair
what they find. The metadata store has the time of the last run of each, so that an interval holds for
all brokers together, and across restarts.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from ackgate.errors import AckGateError, NodeExistsError
from ackgate.persistence.bookies.settings import audit_settings
from ackgate.persistence.ledgers.auditor import AuditTotals
from ackgate.persistence.ledgers.client import BookieLedgerClient
from ackgate.persistence.nodes.changes import create_node, delete_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ackgate.broker.cluster.services import BrokerServices
    from ackgate.persistence.ledgers.auditor import Auditor, LedgerAudit

log = logging.getLogger(__name__)

AUDITOR_PATH: Final = "/ackgate/auditor"
AUDITS_PATH: Final = "/ackgate/audits"
"""One node below it for each check: when it was last done, in ms since 1970."""

AUDIT_LOOK_SECONDS: Final = 600.0
"""Longest time between two looks whether a check is due."""


class BrokerAudit:
    """Runs the audits of this broker, and keeps their results."""

    def __init__(self, services: BrokerServices) -> None:
        self._services = services
        self._auditor: Auditor | None = None
        self._name = uuid4().bytes
        """Of this broker, in the auditor's node."""
        self._is_auditing = False
        self._is_waiting = False
        """Whether a missing bookie may still come back before it counts as lost."""
        self.runs = 0
        self.last_run_ms = 0
        self.last = AuditTotals()
        """Totals of the last finished audit."""
        self.all = AuditTotals()
        """Totals since the broker started. An audit of lost bookies adds only the ledgers that it
        checked."""

    @property
    def is_wanted(self) -> bool:
        """Whether to audit. Not on a BookKeeper cluster, which has AutoRecovery."""
        return isinstance(self._services.ledger_client, BookieLedgerClient)

    @property
    def bookies_interval_seconds(self) -> float:
        """Time between two checks of bookies; shorter while a missing one may come back."""
        persistence = self._services.settings.persistence
        interval = persistence.auditor_periodic_bookie_check_interval
        if interval and self._is_waiting:
            return min(interval, max(persistence.lost_bookie_recovery_delay, 1))
        return interval

    @property
    def interval_seconds(self) -> float:
        """Time between two checks of everything."""
        return self._services.settings.persistence.auditor_periodic_check_interval

    async def check_bookies_if_due(self) -> None:
        """Check the bookies, unless a broker has done so within the interval."""
        if await self._is_due("bookies", self.bookies_interval_seconds):
            await self.check_bookies()

    async def check_everything_if_due(self) -> None:
        """Check everything, unless a broker has done so within the interval."""
        if await self._is_due("copies", self.interval_seconds):
            await self.check_everything()

    async def _is_due(self, check: str, interval_seconds: float) -> bool:
        stored = await self._services.metadata.get(f"{AUDITS_PATH}/{check}")
        if stored is None or not stored.value.isdigit():
            return True
        # If a clock was set back, the next check must not be years away.
        age_ms = abs(self._services.clock_ms() - int(stored.value))
        return age_ms >= interval_seconds * 1000

    async def check_bookies(self) -> None:
        """Repair the ledgers of lost bookies."""
        async with self._alone() as auditor:
            if auditor is not None:
                totals = AuditTotals()
                self._is_waiting = False
                async for ledger_id, is_due in auditor.ledgers_of_lost_bookies():
                    if is_due:
                        self._note(await auditor.audit_ledger(ledger_id, is_repair=True), totals)
                    else:
                        self._is_waiting = True
                await self._finish(totals, "bookies")

    async def check_everything(self) -> None:
        """Verify every copy of every entry, and repair missing and bad ones."""
        async with self._alone() as auditor:
            if auditor is not None:
                totals = AuditTotals()
                async for found in auditor.audit(is_repair=True):
                    self._note(found, totals)
                await self._finish(totals, "copies")

    def _ready(self) -> Auditor | None:
        """The auditor with the current settings; None if the ledgers have no bookies of ours."""
        services = self._services
        if not isinstance(services.ledger_client, BookieLedgerClient):
            return None
        settings = audit_settings(services.settings.persistence)
        if self._auditor is None:
            self._auditor = services.ledger_client.auditor(
                settings, password=services.ledger_options.password
            )
        self._auditor.configure(settings)
        return self._auditor

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[Auditor | None]:
        """Hold the auditor's node. None: there is nothing to audit, or somebody else holds the node.

        That is another broker, or another check of this one.
        """
        auditor = self._ready()
        if auditor is None or self._is_auditing:
            yield None
            return
        self._is_auditing = True
        try:
            is_alone = await self._claim()
            try:
                yield auditor if is_alone else None
            finally:
                if is_alone:
                    with contextlib.suppress(AckGateError):  # the next check takes it up again
                        await delete_node(self._services.metadata, AUDITOR_PATH)
        finally:
            self._is_auditing = False

    async def _claim(self) -> bool:
        metadata = self._services.metadata
        try:
            await create_node(metadata, AUDITOR_PATH, self._name, ephemeral=True)
        except NodeExistsError:
            found = await metadata.get(AUDITOR_PATH)
            return found is not None and found.value == self._name
        return True

    def _note(self, found: LedgerAudit, totals: AuditTotals) -> None:
        for sums in (totals, self.all):
            sums.add(found, is_repair=True)
        if found.is_whole:
            return
        log.warning(
            "ledger %d: %d copies missing, %d damaged; %d entries copied%s",
            found.ledger_id,
            found.missing_copies,
            found.damaged_copies,
            found.repaired_entries,
            "".join(f"; {why}" for why in (*found.stuck, found.error) if why),
        )

    async def _finish(self, totals: AuditTotals, what: str) -> None:
        self.runs += 1
        self.last = totals
        self.last_run_ms = self._services.clock_ms()
        await self._services.metadata.put(
            f"{AUDITS_PATH}/{what}", b"%d" % self.last_run_ms, expected_version=None
        )
        log.info(
            "audit of %s: %d ledgers checked, %d with copies missing or damaged, %d not repaired",
            what,
            totals.ledgers,
            totals.under_replicated_ledgers,
            totals.unmended_ledgers,
        )
