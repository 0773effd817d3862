"""Settings of the delivery journal: whether it is written, how it gathers, how much of it is kept. Pure."""

from __future__ import annotations

from ackgate.config.field import INT_MAX, SettingsGroup, setting


class JournalSettings(SettingsGroup):
    """Whether and how a broker records what happens to messages, for the data pipeline."""

    delivery_journal_enabled: bool = setting(
        False,
        "Write down, for each topic, what was published, dispatched, acknowledged and persisted, into "
        "ledgers of its own that `ackgate pipeline` reads.",
    )
    delivery_journal_max_pending_events: int = setting(
        100_000,
        "Most events of one topic that wait to be written. More are dropped and counted; the journal "
        "says where, and how many. Nothing ever waits for the journal.",
        unit="events",
        ge=1,
        le=10_000_000,
    )
    delivery_journal_linger_ms: int = setting(
        200,
        "How long events gather to share a block. So much of the journal a crash may lose.",
        unit="ms",
        dynamic=True,
        ge=0,
        le=60_000,
    )
    delivery_journal_max_ledger_bytes: int = setting(
        64 * 1024 * 1024,
        "A ledger of the journal that has reached this size is followed by another one.",
        unit="bytes",
        dynamic=True,
        ge=1,
        le=2**63 - 1,
    )
    delivery_journal_max_ledger_age_seconds: int = setting(
        4 * 3600,
        "A ledger of the journal that is older than this is followed by another one.",
        unit="s",
        dynamic=True,
        ge=1,
        le=INT_MAX,
    )
    delivery_journal_retention_bytes: int = setting(
        1024 * 1024 * 1024,
        "Most bytes of one topic's journal that are kept. The oldest ledgers go, whole; never the one "
        "that is written.",
        unit="bytes",
        dynamic=True,
        ge=0,
        le=2**63 - 1,
    )
    delivery_journal_retention_seconds: int = setting(
        7 * 24 * 3600,
        "How long a ledger of the journal is kept after it was closed.",
        unit="s",
        dynamic=True,
        ge=0,
        le=INT_MAX,
    )
