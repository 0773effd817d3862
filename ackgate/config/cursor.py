"""Settings of the cursor: what counts as acknowledged. Pure."""

from __future__ import annotations

from ackgate.config.field import SettingsGroup, setting


class CursorSettings(SettingsGroup):
    """Settings of the ack state that a cursor tracks."""

    acknowledgment_at_batch_index_level_enabled: bool = setting(
        True,
        "Track which messages of a batch are acknowledged. When off, a partial acknowledgement of "
        "a batch is ignored, and the whole batch is redelivered.",
        pulsar=False,
        departs="Without it an acknowledgement inside a batch is forgotten. Pulsar changed its own "
        "default after 4.0.",
    )
