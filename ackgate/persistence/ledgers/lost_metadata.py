"""A metadata store that was never used cannot be that of bookies with ledgers.

Edge: asks the bookies. Going on would give their ledgers' ids away a second time, and old entries
would be served as those of new ledgers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ackgate.persistence.ledgers.bookie import Bookie

RUN_COUNTER_PATH: Final = "/ackgate/runs"
"""Counts starts of brokers, and so says that the store was used; makes generated producer names
unique."""


async def refuse_known_ledgers(bookies: Iterable[Bookie]) -> None:
    """The metadata store is new: so must they be. Raises `ConfigurationError`."""
    for bookie in bookies:
        ledger_ids = await bookie.ledger_ids()
        if ledger_ids:
            raise ConfigurationError(
                f"the metadata store is empty, but bookie {bookie.directory} holds"
                f" {len(ledger_ids)} ledgers: bring back the metadata store (metadata.sqlite of the"
                " data directory, unless metadataStoreUrl says otherwise), or use other directories"
            )
