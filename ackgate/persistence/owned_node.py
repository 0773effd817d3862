"""The metadata node of a cursor that we own: every write of it, and who wins a conflict.

Edge: compare-and-set puts. A conflict means that somebody else wrote. The node is read again and
the owner epochs decide:

    found       higher epoch            the same or a lower one        nothing
    then        we lost the cursor:     a stale owner, or our own      it was deleted:
                `OwnershipError`        put whose answer was lost:     `OwnershipError`
                                        put again over it

A put that failed may have been done all the same, or may be done yet. Until that is settled
(`make_certain`) nobody may rely on what the node says, because what it names decides where recovery
will look. Reading alone settles nothing: the put may be on its way, or the server asked may not have
heard of it. So what was read is written again, at the version read:

    our second put is done        the first one was not, and never will be: its version is gone
    it conflicts                  the first one was done: read and write again
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.errors import (
    MetadataConflictError,
    MetadataStoreError,
    NodeTooLargeError,
    NoSuchNodeError,
    OutcomeUnknownError,
    OwnershipError,
    StoreSuspendedError,
)
from ackgate.persistence.cursor_node import CursorNode, decode_cursor_node, encode_cursor_node

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ackgate.persistence.envelope import Packing
    from ackgate.persistence.ports import MetadataStore, SessionState

CONFLICTS_MAX: Final = 5
"""Puts over a stale writer, or over our own that were not answered, before giving up for now."""


class _Found(NamedTuple):
    node: CursorNode
    value: bytes


class OwnedNode:
    """One cursor's node, in the hands of its owner."""

    __slots__ = (
        "_is_certain",
        "_lock",
        "_metadata",
        "_version",
        "cursor_ledger_id",
        "cursor_properties",
        "owner_epoch",
        "path",
    )

    def __init__(
        self, metadata: MetadataStore, path: str, node: CursorNode, *, version: int
    ) -> None:
        """`node` was read or written at `version`, and its epoch is ours."""
        self._metadata = metadata
        self._version = version
        self._is_certain = True
        self._lock = asyncio.Lock()
        self.path = path
        self.owner_epoch = node.owner_epoch
        self.cursor_ledger_id = node.cursor_ledger_id
        self.cursor_properties = node.cursor_properties

    @property
    def is_certain(self) -> bool:
        """Whether the node is known to say what we believe."""
        return self._is_certain

    @property
    def bytes_max(self) -> int:
        """The store's own size guard."""
        return self._metadata.node_bytes_max

    @property
    def session_state(self) -> SessionState:
        """Whether the store can be asked."""
        return self._metadata.session_state

    def encode(
        self, *, cursor_ledger_id: int | None, state: bytes | None, packing: Packing
    ) -> bytes:
        """The value that `put` would write."""
        node = CursorNode(
            owner_epoch=self.owner_epoch,
            cursor_ledger_id=cursor_ledger_id,
            state=state,
            cursor_properties=self.cursor_properties,
        )
        return encode_cursor_node(node, packing)

    async def put(
        self, *, cursor_ledger_id: int | None, state: bytes | None, packing: Packing
    ) -> int:
        """Point the node at a ledger and give it a state. Returns the bytes written.

        Raises `OwnershipError`, `MetadataStoreError`, `NodeTooLargeError`.
        """
        async with self._lock:
            for _ in range(CONFLICTS_MAX):
                value = self.encode(cursor_ledger_id=cursor_ledger_id, state=state, packing=packing)
                try:
                    await self._put(value)
                except (MetadataConflictError, OutcomeUnknownError):
                    await self._read()  # and the properties that it has by now
                else:
                    self.cursor_ledger_id = cursor_ledger_id
                    return len(value)
            raise self._contended()

    async def change_properties(
        self,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        packing: Packing,
        *,
        bytes_max: int | None = None,
    ) -> None:
        """Replace the cursor properties by what `change` makes of them; all else stays as it is.

        One compare-and-set; after a conflict `change` is asked again. The node names the same
        ledger whether this succeeds or not. Raises as `put`; `NodeTooLargeError` also when the node
        would take more than `bytes_max` without its state.
        """
        async with self._lock:
            for _ in range(CONFLICTS_MAX):
                found = await self._read()
                node = replace(found.node, cursor_properties=dict(change(self.cursor_properties)))
                if bytes_max is not None:
                    _check_room(node, packing, bytes_max)
                try:
                    await self._put(encode_cursor_node(node, packing))
                except (MetadataConflictError, OutcomeUnknownError):
                    continue
                self.cursor_properties = node.cursor_properties
                return
            raise self._contended()

    async def make_certain(self) -> None:
        """Settle what became of a put that failed."""
        if self._is_certain:
            return
        async with self._lock:
            for _ in range(CONFLICTS_MAX):
                found = await self._read()
                try:
                    await self._put(found.value)
                except (MetadataConflictError, OutcomeUnknownError):
                    continue
                return
            raise self._contended()

    async def delete(self) -> None:
        """Remove the node; it may be gone already."""
        async with self._lock:
            for _ in range(CONFLICTS_MAX):
                try:
                    await self._metadata.delete(self.path, expected_version=self._version)
                except (MetadataConflictError, OutcomeUnknownError):
                    if await self._find() is None:
                        return
                except NoSuchNodeError:
                    return
                else:
                    return
            raise self._contended()

    async def _put(self, value: bytes) -> None:
        """Write at the version known. Only this makes certain, and only when it succeeds."""
        was_certain, self._is_certain = self._is_certain, False
        try:
            self._version = await self._metadata.put(
                self.path, value, expected_version=self._version
            )
        except (NodeTooLargeError, StoreSuspendedError):
            self._is_certain = was_certain  # nothing was done
            raise
        self._is_certain = True

    async def _read(self) -> _Found:
        found = await self._find()
        if found is None:
            raise OwnershipError(f"cursor {self.path} was deleted by somebody else")
        return found

    async def _find(self) -> _Found | None:
        found = await self._metadata.get(self.path)
        if found is None:
            return None
        node = decode_cursor_node(found.value, path=self.path)
        if node.owner_epoch > self.owner_epoch:
            raise OwnershipError(
                f"cursor {self.path} belongs to the owner of epoch {node.owner_epoch}, "
                f"we are {self.owner_epoch}"
            )
        self._version = found.version
        self.cursor_ledger_id = node.cursor_ledger_id
        if node.owner_epoch == self.owner_epoch:  # else a stale owner's
            self.cursor_properties = node.cursor_properties
        return _Found(node, found.value)

    def _contended(self) -> MetadataStoreError:
        return MetadataStoreError(
            f"{self.path} is being written by somebody else, or does not answer"
        )


def _check_room(node: CursorNode, packing: Packing, bytes_max: int) -> None:
    taken = len(encode_cursor_node(replace(node, state=None), packing))
    if taken > bytes_max:
        raise NodeTooLargeError(
            f"the properties would take {taken} bytes of the node, and may take {bytes_max}"
        )
