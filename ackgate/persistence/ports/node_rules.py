"""What every metadata store checks before it does anything: paths, values, versions.

Pure. The rules are ZooKeeper's, so that what one store takes every store takes.
"""

from __future__ import annotations

import re
from typing import Final

from ackgate.errors import CallerError, MetadataConflictError, NodeTooLargeError

NODE_BYTES_MAX: Final = 1024 * 1024 - 10 * 1024
"""ZooKeeper's stock frame of 1 MB less room for the rest of the request."""

PATH_BYTES_MAX: Final = 8 * 1024
"""Fits into the room that the size guard leaves."""

_IMPOSSIBLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\ue000-\uf8ff\ufff0-\U0010ffff]")
"""Control characters, private ones, and whatever takes two units in UTF-16: ZooKeeper's list."""

MUST_NOT_EXIST: Final = -1
"""The expected version of a node that is to be created."""


def check_path(path: str) -> None:
    """Raise `CallerError` unless the path is absolute and each of its names can be a node."""
    if path == "/":
        raise CallerError("the root of the metadata store holds no value and cannot be changed")
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise CallerError(f"metadata path is not valid Unicode: {path!r}") from None
    if size > PATH_BYTES_MAX:
        raise CallerError(
            f"metadata path {path[:80]!r}... has {size} bytes, it may have {PATH_BYTES_MAX}"
        )
    if impossible := _IMPOSSIBLE.search(path):
        raise CallerError(f"metadata path {path!r} has an impossible character: {impossible[0]!r}")
    names = path.split("/")
    if names[0] or len(names) < 2:
        raise CallerError(f"not an absolute metadata path: {path!r}")
    for name in names[1:]:
        if name in {"", ".", ".."}:
            raise CallerError(f"metadata path {path!r} has an impossible name: {name!r}")


def check_value(path: str, value: bytes, node_bytes_max: int) -> None:
    """Raise `NodeTooLargeError` for a value above the size guard."""
    if len(value) > node_bytes_max:
        raise NodeTooLargeError(
            f"{path}: {len(value)} bytes, a metadata node may hold {node_bytes_max}"
        )


def conflict(path: str, found: int | None, expected: int) -> MetadataConflictError:
    """The error for a node that is not as expected."""
    there = "does not exist" if found is None else f"has version {found}"
    wanted = "that it does not exist" if expected == MUST_NOT_EXIST else f"version {expected}"
    return MetadataConflictError(f"{path} {there}, expected {wanted}")


def split(path: str) -> tuple[str, str]:
    """Parent path and name: ``/a/b`` is ``("/a", "b")``, ``/a`` is ``("/", "a")``."""
    parent, _, name = path.rpartition("/")
    return parent or "/", name
