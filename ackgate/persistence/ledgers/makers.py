"""Who may be making ledgers now that no node names yet: told in the store that brokers share.

Edge. Each maker has a number of its own, which marks its ledgers, and a session. A broker announces
itself as such; a tool that writes beside brokers does it here, by an ephemeral node. ::

    /ackgate/makers/<run>      a tool that is writing; gone with its session

A ledger whose maker has a session is no orphan, although no node may name it yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.persistence.ledgers.lost_metadata import RUN_COUNTER_PATH
from ackgate.persistence.metadata.changes import count_up

if TYPE_CHECKING:
    from ackgate.persistence.ports import MetadataStore

MAKER_KEY: Final = "ackgate/maker"
"""Custom metadata of every ledger: the run of the broker or tool that made it."""

MAKERS: Final = "/ackgate/makers"


async def announce_maker(metadata: MetadataStore) -> int:
    """The number of a tool's run, which lives as long as its session does."""
    run = await count_up(metadata, RUN_COUNTER_PATH, first=0)
    await metadata.create(f"{MAKERS}/{run}", b"", ephemeral=True)
    return run


async def announced_makers(metadata: MetadataStore) -> set[int]:
    """Runs of tools whose session lives."""
    names = await metadata.children(MAKERS)
    return {int(name) for name in names if name.isascii() and name.isdigit()}
