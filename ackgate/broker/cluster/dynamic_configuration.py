"""Settings changed at run time: stored in the metadata store, and applied over those of the start.

Edge. One node for all brokers. A change made through one of them takes effect at all. Keys that only a
newer version knows stay stored, and have no effect here.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final, Protocol

from ackgate.broker.cluster.node_follower import NodeFollower
from ackgate.config.settings import DYNAMIC_KEYS
from ackgate.errors import ConfigurationError, CorruptRecordError
from ackgate.persistence.nodes.changes import change_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.config.settings import Settings
    from ackgate.persistence.ports import MetadataStore

log = logging.getLogger(__name__)

DYNAMIC_CONFIGURATION_PATH: Final = "/admin/configuration"


class SettingsHolder(Protocol):
    """Holds the settings of a broker."""

    settings: Settings

    @property
    def metadata(self) -> MetadataStore:
        """Where the changes are stored."""


class DynamicConfiguration:
    """The stored changes, and the one place where `services.settings` is replaced."""

    def __init__(self, services: SettingsHolder, on_change: Callable[[], None]) -> None:
        self._services = services
        self._base = services.settings
        self._on_change = on_change
        self._follower = NodeFollower(
            services.metadata, (DYNAMIC_CONFIGURATION_PATH,), self._read_again
        )
        self.values: dict[str, str] = {}

    @property
    def keys(self) -> list[str]:
        """Keys that can be changed while the broker runs, sorted."""
        return sorted(DYNAMIC_KEYS)

    async def load(self) -> None:
        """Apply the stored changes. Raises `CorruptRecordError`, `ConfigurationError`."""
        stored = await self._services.metadata.get(DYNAMIC_CONFIGURATION_PATH)
        values = _decode(stored.value) if stored is not None else {}
        if values != self.values:
            self._apply(values)

    async def follow(self) -> None:
        """Apply what other brokers change during this session, and what they changed before it."""
        self._follower.start()
        await self._read_again(set())

    def stop(self) -> None:
        self._follower.stop()

    async def _read_again(self, _: set[str]) -> None:
        try:
            await self.load()
        except (CorruptRecordError, ConfigurationError) as error:
            log.error("what was known before still holds: %s", error)  # noqa: TRY400

    async def change(self, key: str, value: str | None) -> None:
        """Set one key, or undo its change with None. Raises `ConfigurationError`."""
        if key not in DYNAMIC_KEYS:
            raise ConfigurationError(f"{key} cannot be changed at run time")
        values: dict[str, str] = {}

        def lay_over(stored: bytes | None) -> bytes:
            nonlocal values
            values = _decode(stored) if stored is not None else {}
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
            self._base.with_dynamic(_known(values))  # rejects a bad value before it is stored
            return json.dumps(values).encode()

        await change_node(self._services.metadata, DYNAMIC_CONFIGURATION_PATH, lay_over)
        self._apply(values)

    def _apply(self, values: dict[str, str]) -> None:
        self._services.settings = self._base.with_dynamic(_known(values))
        for key in sorted(values.keys() - DYNAMIC_KEYS - self.values.keys()):
            log.warning("dynamic configuration: %s has no effect in this version", key)
        self.values = values
        self._on_change()


def _known(values: dict[str, str]) -> dict[str, str]:
    return {key: text for key, text in values.items() if key in DYNAMIC_KEYS}


def _decode(value: bytes) -> dict[str, str]:
    try:
        return {str(key): str(text) for key, text in json.loads(value).items()}
    except (ValueError, AttributeError) as error:
        raise CorruptRecordError(
            f"node {DYNAMIC_CONFIGURATION_PATH} cannot be read: {error}"
        ) from error
