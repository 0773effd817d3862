"""Changing a node that others change, too: read, change, write at the version read, and again.

Edge: over the `MetadataStore` port, and nothing that is remembered. Two loops that everybody shares:

    until_won        another writer may be faster: read what it wrote, and attempt again
    until_answered   another writer is final; only a write that was not answered is attempted again

To `until_won` a write that was not answered is one that lost: the next attempt reads what is there now.
So an attempt must be one that may be done twice, or must see by what it reads that it was done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from ackgate.errors import (
    CorruptRecordError,
    MetadataConflictError,
    MetadataStoreError,
    NodeExistsError,
    NoSuchNodeError,
    OutcomeUnknownError,
)
from ackgate.persistence.ports.node_rules import MUST_NOT_EXIST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ackgate.persistence.ports import MetadataStore

ATTEMPTS_MAX: Final = 10
"""Writes of others, or unanswered ones of ours, that one change may lose against."""

UNANSWERED_MAX: Final = 5
"""Writes of one value, each because the one before was not answered."""

_LOST: Final = (MetadataConflictError, NodeExistsError, OutcomeUnknownError)

T = TypeVar("T")


def _go_on() -> None:
    pass


async def until_won(
    attempt: Callable[[], Awaitable[T]],
    *,
    of: str,
    attempts_max: int = ATTEMPTS_MAX,
    check: Callable[[], None] = _go_on,
) -> T:
    """Attempt until no other writer is faster. Each attempt reads the node again.

    `check` is called before each; what it raises ends the attempts. Raises what `attempt` raises, and
    `MetadataStoreError` after `attempts_max` attempts, naming `of`.
    """
    for _ in range(attempts_max):
        check()
        try:
            return await attempt()
        except _LOST:
            continue
    check()
    raise MetadataStoreError(
        f"{of} is changed by other writers, or does not answer: {attempts_max} writes failed"
    )


async def until_answered(
    attempt: Callable[[bool], Awaitable[T]], *, of: str, attempts_max: int = ATTEMPTS_MAX
) -> T:
    """Attempt until the store answers. An attempt gets whether an earlier one may have been done.

    Raises what `attempt` raises, but for `OutcomeUnknownError`: after `attempts_max` of those it raises
    `MetadataStoreError`, naming `of`.
    """
    is_doubtful = False
    for _ in range(attempts_max):
        try:
            return await attempt(is_doubtful)
        except OutcomeUnknownError:
            is_doubtful = True
    raise MetadataStoreError(f"{of}: {attempts_max} writes were not answered")


async def change_node(
    metadata: MetadataStore,
    path: str,
    change: Callable[[bytes | None], bytes | None],
    *,
    attempts_max: int = ATTEMPTS_MAX,
) -> None:
    """Replace a node's value (None: there is no node) by what `change` makes of it (None: as it is).

    Raises what `change` raises, and `MetadataStoreError` when others are always faster.
    """

    async def attempt() -> None:
        stored = await metadata.get(path)
        value = change(stored.value if stored is not None else None)
        if value is not None:
            version = stored.version if stored is not None else MUST_NOT_EXIST
            await metadata.put(path, value, expected_version=version)

    await until_won(attempt, of=path, attempts_max=attempts_max)


async def count_up(
    metadata: MetadataStore, path: str, *, first: int, attempts_max: int = ATTEMPTS_MAX
) -> int:
    """A unique number, above all before. Raises `CorruptRecordError`."""
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
    """A node's value, which never changes; made now if it is missing."""

    async def attempt() -> bytes:
        stored = await metadata.get(path)
        if stored is not None:
            return stored.value
        value = make()
        await metadata.create(path, value)
        return value

    return await until_won(attempt, of=path)


async def create_node(
    metadata: MetadataStore, path: str, value: bytes, *, ephemeral: bool = False
) -> None:
    """Create a node, until the store answers. Raises `NodeExistsError`, `MetadataStoreError`.

    After a write that was not answered, a node with this very value counts as made by us.
    """

    async def attempt(is_doubtful: bool) -> None:  # noqa: FBT001
        try:
            await metadata.create(path, value, ephemeral=ephemeral)
        except NodeExistsError:
            found = await metadata.get(path) if is_doubtful else None
            if found is None or found.value != value:
                raise

    await until_answered(attempt, of=path, attempts_max=UNANSWERED_MAX)


async def delete_node(metadata: MetadataStore, path: str) -> None:
    """Delete a node, until the store answers.

    After a write that was not answered, a node that is gone counts as deleted by us. Raises
    `NoSuchNodeError`, `CallerError` if it has children, `MetadataStoreError`.
    """

    async def attempt(is_doubtful: bool) -> None:  # noqa: FBT001
        try:
            await metadata.delete(path)
        except NoSuchNodeError:
            if not is_doubtful:
                raise

    await until_answered(attempt, of=path, attempts_max=UNANSWERED_MAX)


async def put_unique(
    metadata: MetadataStore, path: str, value: bytes, *, replaces: bytes | None, version: int
) -> int:
    """Put a value that nobody else would write over the one that was read; returns the new version.

    After a write that was not answered, what the node holds tells whether it was done. `replaces` None:
    the node must not exist. Raises `MetadataConflictError`, `NoSuchNodeError`, `MetadataStoreError`.
    """

    async def attempt(is_doubtful: bool) -> int:  # noqa: FBT001
        at = version
        if is_doubtful:
            found = await metadata.get(path)
            if found is None:
                if replaces is not None:
                    raise NoSuchNodeError(f"{path} does not exist")
            elif found.value == value:
                return found.version
            elif found.value == replaces:
                at = found.version
            else:
                raise MetadataConflictError(f"{path} was changed by another writer")
        try:
            return await metadata.put(path, value, expected_version=at)
        except MetadataConflictError as conflict:
            if is_doubtful:  # perhaps with our own, which came late
                raise OutcomeUnknownError(path) from conflict
            raise

    return await until_answered(attempt, of=path, attempts_max=UNANSWERED_MAX)
