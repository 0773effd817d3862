"""Files and directories of a simulated machine: what can be read, and what is durable of it.

Pure. Each keeps the operations that no sync has covered yet, in order; what a power loss makes of
them is decided elsewhere (`power_loss`) and applied here. An append costs its own size, a sync
nothing; only a truncation into what was synced copies the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


class Write(NamedTuple):
    """Bytes put at an offset."""

    sequence: int
    offset: int
    data: bytes


class Truncation(NamedTuple):
    """A file cut (or, with zeros, grown) to a size."""

    sequence: int
    size: int


class Link(NamedTuple):
    """A new name."""

    sequence: int
    name: str
    node: Node


class Unlink(NamedTuple):
    """A name taken away."""

    sequence: int
    name: str


class Rename(NamedTuple):
    """A name changed; whatever had the new one before is gone."""

    sequence: int
    name: str
    target: str
    node: Node


FileChange: TypeAlias = Write | Truncation
NameChange: TypeAlias = Link | Unlink | Rename
Change: TypeAlias = FileChange | NameChange


class Fate(NamedTuple):
    """What a power loss made of one change."""

    is_kept: bool
    size: int = -1
    """Of a torn write: bytes of it that the file's size counts."""
    pieces: tuple[tuple[int, int], ...] = ()
    """Of a torn write: parts of it (from, to) that are there; the others are as before, or zeros."""


KEPT: Final = Fate(is_kept=True)
LOST: Final = Fate(is_kept=False)


class Inode:
    """A file's content."""

    __slots__ = (
        "_durable",
        "_synced_size",
        "content",
        "doubtful",
        "is_linked",
        "is_locked",
        "pending",
    )

    def __init__(self) -> None:
        self.content = bytearray()
        """What a read finds: the page cache."""
        self._synced_size = 0
        self._durable: bytes | None = None
        """What was last synced; None: the first `_synced_size` bytes of `content`."""
        self.pending: list[FileChange] = []
        """Since the last sync."""
        self.doubtful: list[Write] = []
        """Pending when a sync failed: reads find them, and no later sync helps them."""
        self.is_linked = True
        self.is_locked = False

    def append(self, sequence: int, data: bytes) -> None:
        """Put data at the end."""
        self.pending.append(Write(sequence, len(self.content), data))
        self.content += data

    def truncate(self, sequence: int, size: int) -> None:
        """Cut, or grow with zeros."""
        content = self.content
        if self._durable is None and size < self._synced_size:
            self._durable = bytes(memoryview(content)[: self._synced_size])
        self.pending.append(Truncation(sequence, size))
        if size < len(content):
            del content[size:]
        else:
            content += bytes(size - len(content))

    def sync(self) -> None:
        """Make content and size durable."""
        if self.pending:
            self.pending = []
            self._synced_size = len(self.content)
            self._durable = None

    def sync_failed(self) -> None:
        """The kernel tells of a failed write once and takes the pages for clean from then on."""
        self.doubtful += [change for change in self.pending if isinstance(change, Write)]
        self.sync()

    def flip(self, offset: int, bit: int) -> None:
        """A bit of the medium goes bad. What the page cache had of it is thrown away too."""
        if offset < len(self.content):
            self.content[offset] ^= 1 << bit
        if self._durable is not None:
            damaged = bytearray(self._durable)
            damaged[offset] ^= 1 << bit
            self._durable = bytes(damaged)

    @property
    def durable_size(self) -> int:
        """Bytes that a power loss cannot take."""
        return self._synced_size

    def settle(self, fates: Mapping[int, Fate]) -> None:
        """After a power loss: what is durable is all there is."""
        if not self.pending and not self.doubtful:
            return
        durable = self._durable
        content = bytearray(
            memoryview(self.content)[: self._synced_size] if durable is None else durable
        )
        for write in self.doubtful:
            _undo(content, write, fates[write.sequence])
        for change in self.pending:
            fate = fates[change.sequence]
            if not fate.is_kept:
                continue
            if isinstance(change, Write):
                _apply(content, change, fate)
            elif change.size < len(content):
                del content[change.size :]
            else:
                content += bytes(change.size - len(content))
        self.content = content
        self.pending = []
        self.doubtful = []
        self._synced_size = len(content)
        self._durable = None

    def copy(self) -> Inode:
        """One more of the same, with nobody's lock on it."""
        twin = Inode()
        twin.content = bytearray(self.content)
        twin._synced_size = self._synced_size
        twin._durable = self._durable
        twin.pending = list(self.pending)
        twin.doubtful = list(self.doubtful)
        twin.is_linked = self.is_linked
        return twin


def _apply(content: bytearray, write: Write, fate: Fate) -> None:
    offset, data = write.offset, write.data
    size = len(data) if fate.size < 0 else fate.size
    pieces = ((0, len(data)),) if fate.size < 0 else fate.pieces
    if len(content) < offset + size:
        content += bytes(offset + size - len(content))
    for start, stop in pieces:
        content[offset + start : offset + stop] = data[start:stop]


def _undo(content: bytearray, write: Write, fate: Fate) -> None:
    """Of a write whose sync failed: what is not kept reads as zeros, or is cut off at the end."""
    if fate == KEPT:
        return
    offset, end = write.offset, min(write.offset + len(write.data), len(content))
    if offset >= end:
        return
    kept = bytearray(end - offset)
    for start, stop in fate.pieces:
        kept[start:stop] = content[offset + start : min(offset + stop, end)]
    if end == len(content) and fate.size <= 0:
        del content[offset:]
    else:
        content[offset:end] = kept[: end - offset]


class Directory:
    """Names."""

    __slots__ = ("durable", "entries", "pending", "stamp")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        """What a listing finds."""
        self.durable: dict[str, Node] = {}
        """What was there at the last sync."""
        self.pending: list[NameChange] = []
        self.stamp = 1
        """Changes with every change of a name."""

    def change(self, change: NameChange) -> None:
        """Change a name."""
        self.pending.append(change)
        _rename(self.entries, change)
        self.stamp += 1

    def sync(self) -> None:
        """Make the names durable."""
        for change in self.pending:
            _rename(self.durable, change)
        self.pending = []

    def settle(self, fates: Mapping[int, Fate]) -> None:
        """After a power loss: what is durable is all there is."""
        if self.pending:
            for change in self.pending:
                if fates[change.sequence].is_kept:
                    _rename(self.durable, change)
            self.pending = []
            self.entries = dict(self.durable)
            self.stamp += 1


Node: TypeAlias = Inode | Directory


def _rename(entries: dict[str, Node], change: NameChange) -> None:
    if isinstance(change, Link):
        entries[change.name] = change.node
    elif isinstance(change, Unlink):
        entries.pop(change.name, None)
    else:
        entries.pop(change.name, None)
        entries[change.target] = change.node


def walk(root: Directory) -> list[tuple[str, Node]]:
    """Everything below a root, with its path."""
    found: list[tuple[str, Node]] = []
    waiting = [("", root)]
    while waiting:
        path, directory = waiting.pop()
        for name, node in directory.entries.items():
            below = f"{path}/{name}"
            found.append((below, node))
            if isinstance(node, Directory):
                waiting.append((below, node))
    return found


def copy_tree(directory: Directory, twins: dict[int, Node]) -> Directory:
    """A copy of a directory and of all that it names, now or durably."""

    def twin_of(node: Node) -> Node:
        twin = twins.get(id(node))
        if twin is None:
            twin = twins[id(node)] = (
                node.copy() if isinstance(node, Inode) else copy_tree(node, twins)
            )
        return twin

    copied = Directory()
    copied.stamp = directory.stamp
    copied.entries = {name: twin_of(node) for name, node in directory.entries.items()}
    copied.durable = {name: twin_of(node) for name, node in directory.durable.items()}
    copied.pending = [
        change if isinstance(change, Unlink) else change._replace(node=twin_of(change.node))
        for change in directory.pending
    ]
    twins[id(directory)] = copied
    return copied
