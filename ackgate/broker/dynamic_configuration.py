"""Keys changed at run time: kept in the metadata store, laid over the settings at start."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ackgate.config.settings import DYNAMIC_KEYS
from ackgate.errors import ConfigurationError, CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.broker.parts import BrokerParts

DYNAMIC_CONFIGURATION_PATH: Final = "/admin/configuration"


class DynamicConfiguration:
    """The stored changes, and the one place where `parts.settings` is replaced."""

    def __init__(self, parts: BrokerParts, on_change: Callable[[], None]) -> None:
        self._parts = parts
        self._base = parts.settings
        self._on_change = on_change
        self.values: dict[str, str] = {}

    @property
    def keys(self) -> list[str]:
        """What may be changed while the broker runs."""
        return sorted(DYNAMIC_KEYS)

    async def load(self) -> None:
        """Apply what is stored. Raises `CorruptRecordError`, `ConfigurationError`."""
        stored = await self._parts.metadata.get(DYNAMIC_CONFIGURATION_PATH)
        if stored is not None:
            try:
                values = json.loads(stored.value)
            except ValueError as error:
                raise CorruptRecordError(
                    f"node {DYNAMIC_CONFIGURATION_PATH} cannot be read: {error}"
                ) from error
            self._apply({str(key): str(value) for key, value in values.items()})

    async def change(self, key: str, value: str | None) -> None:
        """Set one key, or take it back with None. Raises `ConfigurationError`."""
        if key not in DYNAMIC_KEYS:
            raise ConfigurationError(f"{key} cannot be changed at run time")
        values = {**self.values}
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
        settings = self._base.with_dynamic(values)
        await self._parts.metadata.put(
            DYNAMIC_CONFIGURATION_PATH, json.dumps(values).encode(), expected_version=None
        )
        self.values = values
        self._parts.settings = settings
        self._on_change()

    def _apply(self, values: dict[str, str]) -> None:
        self._parts.settings = self._base.with_dynamic(values)
        self.values = values
        self._on_change()
