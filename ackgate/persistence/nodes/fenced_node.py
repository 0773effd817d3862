"""A metadata node with its owner's epoch, written by its owner: of a cursor, a topic or a journal.

Edge: the metadata store, by compare-and-set. A conflict means that another process wrote, or that a write of
ours whose answer was lost was done. The node is read again and the epochs decide::

    found       higher epoch          ours, or a lower one          nothing
    then        `OwnershipError`      a lost answer, or a stale     it was deleted: `OwnershipError`
                                      owner: write over it

A failed write may have been done, or may still be done. Where the node's content matters (it names the
ledger that recovery reads), it must not be relied upon until that is settled (`make_certain`). Reading alone
settles nothing: the write may be on its way, or the server that was read may not have it yet. So the value
that was read is written again, at the version read::

    our second write is done      the first one was not, and never will be: its version is gone
    it conflicts                  the first one was done: read and write again
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from ackgate.errors import (
    NodeTooLargeError,
    NoSuchNodeError,
    OwnershipError,
    StoreSuspendedError,
)
from ackgate.persistence.nodes.changes import until_won
from ackgate.persistence.ports import SessionState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ackgate.persistence.ports import MetadataStore

WRITES_MAX: Final = 5
"""Writes in a row over a stale owner, or over our own that were not answered."""

CLAIM_SECONDS: Final = 0.25
"""Between an owner's fence on a ledger and its epoch in the node, as a rule. A slower one loses a race of
compare-and-set, and opens the topic again."""

CROWDED_SHARE: Final = 0.9
"""Of the store's size guard. The rest is for ledgers that must be begun: after a failed write, or at
an opening."""


class OwnedValue(Protocol):
    """The value of a `FencedNode`: whatever it holds, it names the epoch of its owner."""

    @property
    def owner_epoch(self) -> int: ...


NodeT = TypeVar("NodeT", bound=OwnedValue)
T = TypeVar("T")


class Decode(Protocol[NodeT]):  # type: ignore[misc]  # what it returns is also what a node holds
    """Decodes the bytes of a node."""

    def __call__(self, value: bytes, *, path: str) -> NodeT:
        """The value. Raises `CorruptRecordError` naming the path."""
        ...


class _Found(NamedTuple, Generic[NodeT]):
    node: NodeT
    encoded: bytes


class FencedNode(Generic[NodeT]):
    """One node, in the hands of its owner. Make it `owned`, or `read` and `claim` it."""

    def __init__(
        self,
        metadata: MetadataStore,
        path: str,
        *,
        empty: NodeT,
        encode: Callable[[NodeT], bytes],
        decode: Decode[NodeT],
        of: str,
        adopt: Callable[[NodeT, NodeT], NodeT] = lambda _, ours: ours,
    ) -> None:
        """`of` is what errors call it.

        `adopt`, of (found, ours): what counts as ours after a write without an answer, or a stale
        owner's. As a rule that is what is in memory.
        """
        self.path = path
        self.value = empty
        """What the node says, with what is only noted yet. Frozen: replace it."""
        self._encode = encode
        self._decode = decode
        self._adopt = adopt
        self._name = f"{of} {path}"
        self._metadata = metadata
        self._version = -1
        self._bytes = 0
        self._is_certain = True
        self._lock = asyncio.Lock()
        self._abandoned: OwnershipError | None = None

    def owned(self, value: NodeT, *, version: int) -> None:
        """`value` was read or written at `version` for us, and its epoch is ours."""
        self.value, self._version = value, version

    # -- what is known

    @property
    def is_certain(self) -> bool:
        """Whether the stored node is known to be what is in memory."""
        return self._is_certain

    @property
    def is_connected(self) -> bool:
        """Whether the store can be asked."""
        return self._metadata.session_state is SessionState.CONNECTED

    @property
    def bytes_max(self) -> int:
        """The store's own size guard."""
        return self._metadata.node_bytes_max

    @property
    def is_crowded(self) -> bool:
        """Whether there is little room for more ledgers under the store's size guard."""
        return self._bytes > CROWDED_SHARE * self._metadata.node_bytes_max

    # -- taking it

    async def read(self) -> NodeT | None:
        """What an owner before us has left; None when there is no such node."""
        stored = await self._metadata.get(self.path)
        self._version = stored.version if stored is not None else -1
        return self._decode(stored.value, path=self.path) if stored is not None else None

    async def claim(self, value: NodeT) -> None:
        """Take ownership with the epoch of `value`, if there was no write since `read`.

        Raises `MetadataConflictError` otherwise. `OutcomeUnknownError` stays unsettled: two who open at
        once choose the same epoch, so reading cannot tell whose it is.
        """
        encoded = self._encode(value)
        self._version = await self._metadata.put(self.path, encoded, expected_version=self._version)
        self.value, self._bytes = value, len(encoded)

    # -- changing it

    async def change(self, change: Callable[[NodeT], NodeT] = lambda node: node) -> int:
        """Write the changed node; what is noted in memory meanwhile is kept. Returns its bytes.

        `change` may be asked more than once. Raises `OwnershipError` when a later owner has written it,
        or it was deleted; `MetadataStoreError`, `NodeTooLargeError`.
        """
        has_lost = False

        async def attempt() -> int:
            nonlocal has_lost
            if has_lost:
                await self._read_ours()
                self.check_ours()
            has_lost = True
            noted = self.value
            changed = change(noted)
            encoded = self._encode(changed)
            await self._put(encoded)
            self.value = changed if self.value is noted else change(self.value)
            self._bytes = len(encoded)
            return len(encoded)

        return await self._until_won(attempt, check=self.check_ours)

    async def change_stored(self, change: Callable[[NodeT], NodeT]) -> NodeT:
        """As `change`, of the node as it is stored, for what is not kept in memory. Returns the node."""

        async def attempt() -> NodeT:
            found = await self._read_ours()
            node = change(found.node)
            await self._put(self._encode(node))
            return node

        return await self._until_won(attempt, check=self.check_ours)

    async def check_owner(self) -> None:
        """After a fence on our ledger. Raises `OwnershipError` if a later owner has written the node.

        On a BookKeeper cluster AutoRecovery fences ledgers, too, whoever owns them. An owner puts its epoch
        here a moment after it has fenced; that moment is waited for.
        """
        await asyncio.sleep(CLAIM_SECONDS)
        self.check_ours()
        async with self._lock:
            await self._read_ours()

    async def make_certain(self) -> None:
        """Settle what became of a write that failed."""

        async def attempt() -> None:
            found = await self._read_ours()
            await self._put(found.encoded)

        if not self._is_certain:
            await self._until_won(attempt)

    async def remove(self) -> None:
        """Remove the node.

        It may be gone already: by a call of ours that was not answered, or that failed later.
        """
        has_lost = False

        async def attempt() -> None:
            nonlocal has_lost
            if has_lost:
                if await self._metadata.get(self.path) is None:
                    return
                await self._read_ours()
            has_lost = True
            with contextlib.suppress(NoSuchNodeError):
                await self._metadata.delete(self.path, expected_version=self._version)

        await self._until_won(attempt)

    def abandon(self, error: OwnershipError) -> None:
        """Begin no further write. The first reason counts."""
        if self._abandoned is None:
            self._abandoned = error

    def check_ours(self) -> None:
        """Raise why it was abandoned, if it was."""
        if self._abandoned is not None:
            raise self._abandoned

    # -- pieces

    async def _put(self, encoded: bytes) -> None:
        """Write at the version known. Only this makes certain, and only when it succeeds."""
        was_certain, self._is_certain = self._is_certain, False
        try:
            self._version = await self._metadata.put(
                self.path, encoded, expected_version=self._version
            )
        except (NodeTooLargeError, StoreSuspendedError):
            self._is_certain = was_certain  # nothing was done
            raise
        self._is_certain = True

    async def _read_ours(self) -> _Found[NodeT]:
        """The present value, if there was no takeover since."""
        stored = await self._metadata.get(self.path)
        if stored is None:
            raise OwnershipError(f"{self._name} was deleted by another process")
        node = self._decode(stored.value, path=self.path)
        if node.owner_epoch > self.value.owner_epoch:
            raise OwnershipError(
                f"{self._name} belongs to the owner of epoch {node.owner_epoch}, "
                f"we are {self.value.owner_epoch}"
            )
        self._version = stored.version
        self.value = self._adopt(node, self.value)
        return _Found(node, stored.value)

    async def _until_won(
        self, attempt: Callable[[], Awaitable[T]], check: Callable[[], None] = lambda: None
    ) -> T:
        async with self._lock:
            return await until_won(attempt, of=self._name, attempts_max=WRITES_MAX, check=check)
