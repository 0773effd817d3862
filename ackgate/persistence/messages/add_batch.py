"""Entries on their way into a ledger, as columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(slots=True)
class AddBatch:
    """Payloads, the messages in each, and what each one's adder wants to hear back.

    ``deliver_at_ms`` has the places of those that are to be delivered later, with their times.
    """

    payloads: list[bytes] = field(default_factory=list)
    message_counts: list[int] = field(default_factory=list)
    contexts: list[Any] = field(default_factory=list)
    deliver_at_ms: dict[int, int] = field(default_factory=dict)
    size_bytes: int = 0
    """Of all payloads."""

    def __len__(self) -> int:
        return len(self.payloads)

    def __getitem__(self, part: slice) -> AddBatch:
        places = range(len(self.payloads))[part]
        return AddBatch(
            self.payloads[part],
            self.message_counts[part],
            self.contexts[part],
            {places.index(at): ms for at, ms in self.deliver_at_ms.items() if at in places},
            sum(map(len, self.payloads[part])),
        )

    @classmethod
    def joined(cls, batches: Iterable[AddBatch]) -> AddBatch:
        """All of them in one, in order."""
        whole = cls()
        for batch in batches:
            before = len(whole)
            whole.deliver_at_ms |= {before + at: ms for at, ms in batch.deliver_at_ms.items()}
            whole.payloads += batch.payloads
            whole.message_counts += batch.message_counts
            whole.contexts += batch.contexts
            whole.size_bytes += batch.size_bytes
        return whole
