"""What an audit found and did. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ackgate.persistence.ledgers.replication import FragmentFinding
    from ackgate.persistence.ports import LedgerMetadata


@dataclass(slots=True)
class LedgerAudit:
    """One ledger."""

    ledger_id: int
    metadata: LedgerMetadata | None
    """None: it could not be read."""
    fragments: list[FragmentFinding] = field(default_factory=list)
    """As they were found; those that are still written are not among them."""
    repaired_entries: int = 0
    """Copies of entries that were made."""
    repaired_bytes: int = 0
    moved_places: int = 0
    """Places of ensembles that were given to other bookies."""
    stuck: list[str] = field(default_factory=list)
    """What could not be mended, and why."""
    error: str | None = None
    """Why the ledger could not be looked at to the end."""
    is_deleted: bool = False
    """It was deleted meanwhile: nothing is wrong."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing was found wrong."""
        return self.is_deleted or (
            self.error is None and all(finding.is_whole for finding in self.fragments)
        )

    @property
    def is_mended(self) -> bool:
        """Whether something was found wrong, and nothing is any more."""
        return not self.is_whole and self.error is None and not self.stuck

    @property
    def missing_copies(self) -> int:
        """Copies of entries that were not there."""
        return sum(
            copy.expected - copy.good - len(copy.damaged)
            for finding in self.fragments
            for copy in finding.copies
        )

    @property
    def damaged_copies(self) -> int:
        """Copies of entries whose bytes were not what was written."""
        return sum(len(copy.damaged) for finding in self.fragments for copy in finding.copies)

    @property
    def lost_entries(self) -> int:
        """Entries of which no good copy was found."""
        return sum(len(finding.without_good_copy) for finding in self.fragments)


@dataclass(slots=True)
class AuditTotals:
    """Sums over the ledgers of an audit."""

    ledgers: int = 0
    under_replicated_ledgers: int = 0
    """Something was wrong with them when they were looked at."""
    unmended_ledgers: int = 0
    """And still is."""
    missing_copies: int = 0
    damaged_copies: int = 0
    lost_entries: int = 0
    repaired_entries: int = 0
    repaired_bytes: int = 0
    moved_places: int = 0
    failed_ledgers: int = 0
    """Could not be looked at."""

    def add(self, audit: LedgerAudit, *, is_repair: bool) -> None:
        self.ledgers += 1
        self.under_replicated_ledgers += not audit.is_whole and audit.error is None
        self.unmended_ledgers += not (audit.is_whole or (is_repair and audit.is_mended))
        self.missing_copies += audit.missing_copies
        self.damaged_copies += audit.damaged_copies
        self.lost_entries += audit.lost_entries
        self.repaired_entries += audit.repaired_entries
        self.repaired_bytes += audit.repaired_bytes
        self.moved_places += audit.moved_places
        self.failed_ledgers += audit.error is not None
