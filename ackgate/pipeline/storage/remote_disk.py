"""Remote files for the readers of ledgers: the reading half of a `Disk`.

Edge: over fsspec. A request costs milliseconds, so a file is read in large windows once reads are in
order, and in small ones during a search::

    .......[ kept |        window        ].......      a read near its end: the window moves on
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from ackgate.persistence.system.disk import OsDisk
from ackgate.pipeline.schema.addresses import is_remote, joined, last_part, shown_address

if TYPE_CHECKING:
    from ackgate.persistence.system.disk import Disk

_SEEK_BYTES: Final = 128 * 1024
_STREAM_BYTES: Final = 4 * 1024 * 1024
_NEAR_BYTES: Final = 1024 * 1024
"""A read that begins this close after the window goes on from it."""

_KEPT_BYTES: Final = 256 * 1024
"""Of the window before: a block's end is looked at before its middle."""


class RemotePlace(NamedTuple):
    """A directory, and the disk that it is on."""

    disk: Disk
    path: Path
    """Or a `RemotePath`, which knows as much of paths as readers of ledgers do."""


def place_of(address: str) -> RemotePlace:
    """Where an address is: a path of this machine, or one that fsspec opens. Looks at nothing."""
    if is_remote(address):
        return RemotePlace(
            cast("Disk", RemoteDisk()), cast("Path", RemotePath(address.rstrip("/")))
        )
    return RemotePlace(OsDisk(), Path(address))


@dataclass(frozen=True, slots=True)
class RemotePath:
    """An address below which there are names."""

    address: str = field(repr=False)

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(joined(self.address, name))

    def __str__(self) -> str:
        """The address without user and password."""
        return shown_address(self.address)

    @property
    def name(self) -> str:
        return last_part(self.address)


class RemoteDisk:
    """Lists and opens what lies at addresses. Knows nothing of locks, and writes nothing."""

    def open_read(self, path: RemotePath) -> RemoteFile:
        files, plain = _files_of(path)
        try:
            size = files.info(plain).get("size")
        except (ValueError, TypeError) as error:
            raise OSError(f"{path}: {error}") from error
        if size is None:
            raise OSError(f"{path}: its size is unknown")
        return RemoteFile(files, plain, path, int(size))

    def list(self, directory: RemotePath) -> list[str]:
        """Names in a directory, sorted; none when it is not there.

        Where there are only objects there is no empty directory. Raises `OSError`.
        """
        files, plain = _files_of(directory)
        files.invalidate_cache()
        try:
            found = files.ls(plain, detail=False)
        except FileNotFoundError:
            return []
        return sorted({last_part(str(name)) for name in found})

    def names_stamp(self, directory: RemotePath) -> int | None:  # noqa: ARG002 - as `Disk` has it
        return None


class RemoteFile:
    """One file, as long as it was when it was opened."""

    def __init__(self, files: Any, plain: str, path: RemotePath, size: int) -> None:  # noqa: ANN401 - fsspec has no types
        self.path = path
        self._files = files
        self._plain = plain
        self._size = size
        self._start = 0
        self._data = b""

    def size(self) -> int:
        return self._size

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset` on. Raises `OSError`."""
        size = min(size, self._size - offset)
        if size <= 0:
            return b""
        at = offset - self._start
        if not 0 <= at <= at + size <= len(self._data):
            self._move(offset, size)
            at = offset - self._start
        return self._data[at : at + size]

    def _move(self, offset: int, size: int) -> None:
        """Have the window hold these bytes."""
        end = self._start + len(self._data)
        if self._data and self._start <= offset <= end + _NEAR_BYTES:
            kept = self._data[-_KEPT_BYTES:] if offset >= end - _KEPT_BYTES else self._data
            self._fetch(end, max(offset + size - end, _STREAM_BYTES), kept)
        else:
            self._fetch(offset, max(size, _SEEK_BYTES), b"")

    def _fetch(self, offset: int, size: int, kept: bytes) -> None:
        """Make these bytes the window, with `kept` in front of them."""
        size = min(size, self._size - offset)
        try:
            data = bytes(self._files.cat_file(self._plain, start=offset, end=offset + size))
        except ValueError as error:
            raise OSError(f"{self.path}: {error}") from error
        if len(data) > size:  # a server that knows no ranges sends everything
            self._start, self._data = 0, data
        elif len(data) < size:
            raise OSError(f"{self.path}: {len(data)} bytes instead of {size} at {offset}")
        else:
            self._start, self._data = offset - len(kept), kept + data

    def close(self) -> None:
        self._data = b""


def _files_of(path: RemotePath) -> tuple[Any, str]:
    """Raises `OSError`: the kind of address is unknown, or its package is missing."""
    import fsspec  # noqa: PLC0415 - only for data that lies elsewhere

    try:
        return fsspec.core.url_to_fs(path.address)  # type: ignore[no-any-return,unused-ignore]
    except (ValueError, ImportError) as error:
        raise OSError(f"{path}: {error}") from error
