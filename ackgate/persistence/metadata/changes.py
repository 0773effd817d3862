"""Changing a node that others change, too: read, change, write at the version read, and again.

Edge: over the `MetadataStore` port, and nothing that is remembered. A write that was not answered is
treated as one that lost: what is there now is read, and changed once more. So this is for changes
that may be made twice: settings laid over others, numbers of which one may be skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.errors import (
    CorruptRecordError,
    MetadataConflictError,
    MetadataStoreError,
    NodeExistsError,
    OutcomeUnknownError,
)
from ackgate.persistence.metadata.rules import MUST_NOT_EXIST

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.persistence.ports import MetadataStore

ATTEMPTS_MAX: Final = 10
"""Writes of others, or unanswered ones of ours, that one change may lose against."""


async def change_node(
    metadata: MetadataStore,
    path: str,
    change: Callable[[bytes | None], bytes],
    *,
    attempts_max: int = ATTEMPTS_MAX,
) -> None:
    """Replace a node's value (None: there is no node) by what `change` makes of it.

    Raises what `change` raises, and `MetadataStoreError` when others are always faster.
    """
    for _ in range(attempts_max):
        stored = await metadata.get(path)
        value = change(stored.value if stored is not None else None)
        version = stored.version if stored is not None else MUST_NOT_EXIST
        try:
            await metadata.put(path, value, expected_version=version)
        except (MetadataConflictError, OutcomeUnknownError):
            continue
        return
    raise _contended(path)


async def count_up(
    metadata: MetadataStore, path: str, *, first: int, attempts_max: int = ATTEMPTS_MAX
) -> int:
    """A number that nobody else has been given, above all before. Raises `CorruptRecordError`."""
    number = first

    def next_number(value: bytes | None) -> bytes:
        nonlocal number
        try:
            number = int(value) + 1 if value is not None else first
        except ValueError as error:
            raise CorruptRecordError(f"{path} is not a number") from error
        return b"%d" % number

    await change_node(metadata, path, next_number, attempts_max=attempts_max)
    return number


async def read_or_create(metadata: MetadataStore, path: str, make: Callable[[], bytes]) -> bytes:
    """A node's value, which never changes; made now if nobody has made it."""
    for _ in range(ATTEMPTS_MAX):
        stored = await metadata.get(path)
        if stored is not None:
            return stored.value
        value = make()
        try:
            await metadata.create(path, value)
        except (NodeExistsError, OutcomeUnknownError):
            continue
        return value
    raise _contended(path)


def _contended(path: str) -> MetadataStoreError:
    return MetadataStoreError(f"{path} is contended")
