"""Which consumer of a Shared subscription assembles which chunked message.

Pure. Kept from a message's first piece given to its last, or until the consumer is gone. A message
whose producer died half-way stays; the oldest are forgotten past a bound.
"""

from __future__ import annotations

from typing import Final

CHUNKED_MESSAGES_MAX: Final = 10_000
"""Incomplete messages remembered per subscription, some 2 MB."""


class ChunkOwners:
    """uuid of a chunked message -> consumer."""

    __slots__ = ("_owners",)

    def __init__(self) -> None:
        self._owners: dict[str, int] = {}

    def owner(self, uuid: str) -> int | None:
        """Who has the pieces so far; None: nobody."""
        return self._owners.get(uuid)

    def given(self, uuid: str, consumer: int, *, is_last: bool) -> None:
        """A piece was given."""
        if is_last:
            self._owners.pop(uuid, None)
            return
        self._owners[uuid] = consumer
        if len(self._owners) > CHUNKED_MESSAGES_MAX:
            del self._owners[next(iter(self._owners))]

    def forget_consumer(self, consumer: int) -> None:
        """Its pieces will go to another, all of them."""
        self._owners = {uuid: owner for uuid, owner in self._owners.items() if owner != consumer}

    def clear(self) -> None:
        """Forget all."""
        self._owners.clear()
