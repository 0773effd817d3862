"""What is told of a subscription's held entries. Pure, frozen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DelayedStatistics:
    """The held entries of one subscription."""

    tracker: str = ""
    """The kind of tracker; empty before the first delayed entry."""
    delayed_entries: int = 0
    """Entries that wait for their delivery time (a batch is one)."""
    delayed_bytes: int = 0
    """Memory of their index."""
    held_nacks: int = 0
    """Entries that were given back and wait for their backoff."""
    held_nack_bytes: int = 0
    """Memory of theirs."""
    next_deadline_ms: int | None = None
    """When something falls due next, ms since 1970; in the past if something is due and waits for
    consumers. None: nothing is held."""
    delayed_deadline_ms: int | None = None
    """When the tracker of delayed entries wants to be asked next, for what is due or for its own work."""
    entries_offered: int = 0
    """Delayed entries that were read and given to the tracker, since the topic was loaded. After a
    restart: how much of the index was read again, and not recovered."""
    entries_ahead: int = 0
    """Entries that fell due before the read position had come to them."""


@dataclass(frozen=True, slots=True)
class NackStatistics:
    """Entries of one subscription that were given back and wait for their backoff."""

    pending: int = 0
    """Entries that wait (a batch is one)."""
    bytes: int = 0
    """Memory they take."""
    next_deadline_ms: int | None = None
    """When the next is due, ms since 1970; in the past if it waits for consumers. None: none waits."""
    persisted: int = 0
    """Entries that the newest durable image, or the recovered one, has."""
    dropped: int = 0
    """Entries that were left out of it, to keep within `pendingNacksMaxBytesToPersist`: after a crash
    they come again at once."""
