"""A node with its owner's epoch in it (a topic's, a delivery journal's), as its owner writes it.

Edge: the metadata store. In memory lies what the node says, or will say with its next write. Every
write names the version that it builds on; one that was not answered, or met another, is settled by
reading: a higher epoch means that it is somebody else's, our own that a write of ours got there.
Only `claim` cannot tell, since two who open at once choose the same epoch.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from ackgate.errors import (
    MetadataConflictError,
    MetadataStoreError,
    NoSuchNodeError,
    OutcomeUnknownError,
    OwnershipError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.persistence.ports import MetadataStore

WRITES_MAX: Final = 5
"""Writes in a row, each because the one before was not answered."""

CROWDED_SHARE: Final = 0.9
"""Of the store's size guard. The rest is for ledgers that must be begun: after a failed write, or at
an opening."""


class OwnedValue(Protocol):
    """What such a node holds."""

    @property
    def owner_epoch(self) -> int:
        """Grows with each owner."""


NodeT = TypeVar("NodeT", bound=OwnedValue)


class Decode(Protocol[NodeT]):  # type: ignore[misc]  # what it returns is also what a node holds
    """Reads a node's value."""

    def __call__(self, value: bytes, *, path: str) -> NodeT:
        """Raises `CorruptRecordError` naming the path."""
        ...


class EpochNode(Generic[NodeT]):
    """One node. `read`, then `claim` what it shall say."""

    def __init__(
        self,
        metadata: MetadataStore,
        path: str,
        *,
        empty: NodeT,
        encode: Callable[[NodeT], bytes],
        decode: Decode[NodeT],
        of: str = "topic",
    ) -> None:
        """`of` is what errors call it."""
        self.path = path
        self.value = empty
        """What the node says, with what is only noted yet. Frozen: replace it."""
        self._encode = encode
        self._decode = decode
        self._name = f"{of} {path}"
        self._metadata = metadata
        self._version = -1
        self._bytes = 0
        self._lock = asyncio.Lock()
        self._abandoned: OwnershipError | None = None

    @property
    def is_crowded(self) -> bool:
        """Whether there is little room for more ledgers under the store's size guard."""
        return self._bytes > CROWDED_SHARE * self._metadata.node_bytes_max

    async def read(self) -> NodeT | None:
        """What an owner before us has left; None when there is no such node."""
        stored = await self._metadata.get(self.path)
        self._version = stored.version if stored is not None else -1
        return self._decode(stored.value, path=self.path) if stored is not None else None

    async def claim(self, value: NodeT) -> None:
        """Take it, with the epoch of `value`, if nobody has written since `read`.

        Raises `MetadataConflictError` otherwise, and `OutcomeUnknownError` unsettled.
        """
        encoded = self._encode(value)
        self._version = await self._metadata.put(self.path, encoded, expected_version=self._version)
        self.value, self._bytes = value, len(encoded)

    async def change(self, change: Callable[[NodeT], NodeT] = lambda node: node) -> None:
        """Write the changed node; what is noted in memory meanwhile is kept.

        Raises `OwnershipError` when a later owner has written it, or it was deleted.
        """
        async with self._lock:
            for _ in range(WRITES_MAX):
                self.check_ours()
                encoded = self._encode(change(self.value))
                try:
                    self._version = await self._metadata.put(
                        self.path, encoded, expected_version=self._version
                    )
                except (MetadataConflictError, OutcomeUnknownError):
                    self._version = await self._version_of_ours()
                else:
                    self.value, self._bytes = change(self.value), len(encoded)
                    return
            raise MetadataStoreError(f"{self._name}: {WRITES_MAX} writes were not answered")

    async def remove(self) -> None:
        """It may be gone already: by a call of ours that was not answered, or that failed later."""
        for _ in range(WRITES_MAX):
            try:
                await self._metadata.delete(self.path, expected_version=self._version)
            except NoSuchNodeError:
                return
            except (MetadataConflictError, OutcomeUnknownError):
                if await self._metadata.get(self.path) is None:
                    return
                self._version = await self._version_of_ours()
            else:
                return
        raise MetadataStoreError(f"{self._name}: {WRITES_MAX} deletions were not answered")

    def abandon(self, error: OwnershipError) -> None:
        """Begin no further write. The first reason counts."""
        if self._abandoned is None:
            self._abandoned = error

    def check_ours(self) -> None:
        """Raise why it was abandoned, if it was."""
        if self._abandoned is not None:
            raise self._abandoned

    async def _version_of_ours(self) -> int:
        """The node's version, if nobody took it over since."""
        found = await self._metadata.get(self.path)
        if found is None:
            raise OwnershipError(f"{self._name} was deleted by somebody else")
        epoch = self._decode(found.value, path=self.path).owner_epoch
        if epoch > self.value.owner_epoch:
            raise OwnershipError(
                f"{self._name} belongs to the owner of epoch {epoch}, "
                f"we are {self.value.owner_epoch}"
            )
        return found.version
