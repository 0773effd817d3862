"""What rooms below the topics need of their broker. Types only; `SharedServices` has it all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.broker.cluster.namespaces import Namespaces
    from ackgate.config.settings import Settings
    from ackgate.persistence.ports import LedgerClient, LedgerOptions, MetadataStore


class BrokerServices(Protocol):
    """Settings, clock and stores of one broker."""

    @property
    def settings(self) -> Settings:
        """The current settings: replaced as a whole when a dynamic key changes."""

    @property
    def clock_ms(self) -> Callable[[], int]:
        """The broker's clock, in ms since 1970."""

    @property
    def ledger_client(self) -> LedgerClient:
        """Makes, opens and deletes ledgers."""

    @property
    def ledger_options(self) -> LedgerOptions:
        """Options for the ledgers that are made."""

    @property
    def metadata(self) -> MetadataStore: ...

    @property
    def namespaces(self) -> Namespaces: ...
