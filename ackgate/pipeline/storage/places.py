"""Which directory each bookie's files lie in, for whoever reads them: the driver and every worker.

Edge: looks for ``bookie.json`` once, on the driver; what comes out of it is plain and can be pickled.
Ledger metadata names bookies by id, and directories may have been moved or copied since: a bookie is
where its ``bookie.json`` is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ackgate.errors import ConfigurationError
from ackgate.persistence.ledgers.layout import IDENTITY_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

BOOKIES_DIRECTORY = "bookies"
"""Where a broker's data directory has its bookies."""

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class BookiePlaces:
    """Bookies by id, and the password of the ledgers' digests."""

    directories: Mapping[str, str]
    password: bytes = field(default=b"", repr=False)


def bookies_below(data_directory: Path, *, password: bytes = b"") -> BookiePlaces:
    """The bookies of a broker's data directory.

    Raises `ConfigurationError` when there are none.
    """
    parent = data_directory / BOOKIES_DIRECTORY
    if not parent.is_dir():
        raise ConfigurationError(
            f"{data_directory} is not a broker's data directory: there is no {parent}"
        )
    return find_bookies(sorted(parent.iterdir()), password=password)


def find_bookies(directories: Iterable[Path], *, password: bytes = b"") -> BookiePlaces:
    """The bookies among these directories; others are passed over.

    Raises `ConfigurationError` when none is a bookie's, or two are the same one's.
    """
    found: dict[str, str] = {}
    looked_at = []
    for directory in directories:
        looked_at.append(str(directory))
        bookie_id = _identity(directory)
        if bookie_id is None:
            continue
        if bookie_id in found:
            raise ConfigurationError(
                f"{found[bookie_id]} and {directory} are both bookie {bookie_id}: one is a copy of "
                "the other"
            )
        found[bookie_id] = str(directory)
    if not found:
        raise ConfigurationError(
            f"no bookie's directory (one with a {IDENTITY_FILE}) among {', '.join(looked_at)}"
        )
    return BookiePlaces(found, password)


def _identity(directory: Path) -> str | None:
    path = directory / IDENTITY_FILE
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        stored = json.loads(text)
        stored_format, bookie_id = stored["format"], stored["bookie_id"]
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(f"{path}: not a bookie's identity: {text[:80]!r}") from None
    if stored_format != _FORMAT or not isinstance(bookie_id, str):
        raise ConfigurationError(f"{path}: format {stored_format!r}; this version reads {_FORMAT}")
    return bookie_id
