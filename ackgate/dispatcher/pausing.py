"""What the settings say to a subscription's gate. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.dispatcher.gate import GateSettings

if TYPE_CHECKING:
    from ackgate.config.settings import Settings


def gate_settings(settings: Settings, *, is_pausing: bool) -> GateSettings:
    """The gate of a subscription; `is_pausing`: it is switched on for it."""
    persistence, dispatcher = settings.persistence, settings.dispatcher
    return GateSettings(
        enabled=is_pausing,
        ranges_max=persistence.managed_ledger_max_unacked_ranges_to_persist,
        batch_indexes_max=persistence.managed_ledger_max_batch_deleted_index_to_persist,
        resume_ranges=dispatcher.dispatcher_pause_on_ack_state_resume_ranges or None,
        is_strict=dispatcher.dispatcher_pause_on_ack_state_strict_enabled,
        persist_failure_pause_ms=dispatcher.ack_state_persist_failure_pause_seconds * 1000,
    )
