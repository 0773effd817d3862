"""Where data may lie: a path of this machine, or any address that fsspec opens.

    /data               file:/data    file:///data    local:///data     paths of this machine
    s3://bucket/data    https://host/data    hdfs://name/data           addresses
    simplecache::s3://bucket/data                                       one by way of another

Edge: lists directories. Texts for people leave out the user and password of an address.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ackgate.errors import ConfigurationError, StorageError

_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*(?:::|://)")
_LOCAL: Final = re.compile(r"(?:file|local):(?://(?:localhost)?)?(?=/)")
_USER: Final = re.compile(r"//[^/@]*@")
_QUERY: Final = re.compile(r"\?[^:]*")


def is_remote(address: str) -> bool:
    """Whether it takes fsspec to open this."""
    return _ADDRESS.match(address) is not None


def plain_address(address: str) -> str:
    """One on this machine as a whole path, and without the word by which Hadoop and fsspec say so.

    Workers are not where the driver is.
    """
    path = without_local(address)
    return path if is_remote(path) else str(Path(path).absolute())


def without_local(address: str) -> str:
    """A local path without its ``file:`` or ``local:``; any other address unchanged."""
    return _LOCAL.sub("", address, count=1) if _LOCAL.match(address) else address


def shown_address(address: str) -> str:
    """As people may see it: without user, password and query."""
    return _QUERY.sub("", _USER.sub("//", address))


def joined(address: str, name: str) -> str:
    """A name below an address. Of one by way of another, the first that has a path is meant."""
    links = address.split("::")
    at = next((i for i, link in enumerate(links) if "://" in link), len(links) - 1)
    links[at] = f"{links[at].rstrip('/')}/{name}"
    return "::".join(links)


def last_part(address: str) -> str:
    """The name at an address's end."""
    links = address.split("::")
    link = next((link for link in links if "://" in link), links[-1])
    return link.partition("?")[0].rstrip("/").rpartition("/")[2]


def check_directory(root: str) -> None:
    """Raise `ConfigurationError` when a path of this machine cannot be a data directory."""
    if is_remote(root):
        return
    path = Path(root)
    try:
        if not path.exists():
            raise ConfigurationError(f"there is no directory {path}")
        if not path.is_dir():
            raise ConfigurationError(f"{path} is not a directory")
        if next(path.iterdir(), None) is None:
            raise ConfigurationError(f"{path} is empty: no broker has kept anything here")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error


def bookies_below(root: str) -> tuple[str, ...]:
    """Addresses of the bookies in a data directory, in order.

    Raises `ConfigurationError` when there are none, `StorageError`.
    """
    above = joined(root, "bookies")
    try:
        names = _remote_directories(above) if is_remote(root) else _directories(Path(above))
    except (OSError, ValueError, ImportError) as error:
        raise StorageError(f"{shown_address(above)} cannot be read: {error}") from error
    if not names:
        raise ConfigurationError(f"no bookies in {shown_address(above)}")
    return tuple(joined(above, name) for name in sorted(names))


def _directories(above: Path) -> list[str]:
    return [path.name for path in above.iterdir() if path.is_dir()] if above.is_dir() else []


def _remote_directories(above: str) -> list[str]:
    import fsspec  # noqa: PLC0415 - only for data that lies elsewhere

    files, path = fsspec.core.url_to_fs(above)
    try:
        found = files.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [last_part(str(entry["name"])) for entry in found if entry["type"] == "directory"]
