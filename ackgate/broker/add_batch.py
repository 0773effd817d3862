"""Entries on their way into a ledger, as columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(slots=True)
class AddBatch:
    """Payloads, the messages in each, and what each one's adder wants to hear back."""

    payloads: list[bytes] = field(default_factory=list)
    message_counts: list[int] = field(default_factory=list)
    contexts: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.payloads)

    def __getitem__(self, part: slice) -> AddBatch:
        return AddBatch(self.payloads[part], self.message_counts[part], self.contexts[part])

    @classmethod
    def joined(cls, batches: Iterable[AddBatch]) -> AddBatch:
        """All of them in one, in order."""
        whole = cls()
        for batch in batches:
            whole.payloads += batch.payloads
            whole.message_counts += batch.message_counts
            whole.contexts += batch.contexts
        return whole
