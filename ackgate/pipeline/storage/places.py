"""Which directory each bookie's files lie in, for whoever reads them: the driver and every worker.

Edge: looks for ``bookie.json`` once, on the driver; what comes out of it is plain and can be pickled.
Ledger metadata names bookies by id, and directories may have been moved or copied since: a bookie is
where its ``bookie.json`` is. A directory is a path of this machine or an address that fsspec opens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ackgate.errors import ConfigurationError
from ackgate.persistence.ledgers.layout import IDENTITY_FILE
from ackgate.pipeline.data_addresses import shown_address
from ackgate.pipeline.storage.remote_disk import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackgate.pipeline.storage.remote_disk import Place

_FORMAT = 1
_IDENTITY_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class BookiePlaces:
    """Bookies by id, and the password of the ledgers' digests."""

    directories: Mapping[str, str] = field(repr=False)
    """Paths or addresses; may hold a user's password."""
    password: bytes = field(default=b"", repr=False)


def find_bookies(addresses: Iterable[str], *, password: bytes = b"") -> BookiePlaces:
    """The bookies among these directories; others are passed over.

    Raises `ConfigurationError` when none is a bookie's, or two are the same one's.
    """
    found: dict[str, str] = {}
    looked_at = []
    for address in addresses:
        place = place_of(address)
        looked_at.append(str(place.path))
        bookie_id = _identity(place)
        if bookie_id is None:
            continue
        if bookie_id in found:
            raise ConfigurationError(
                f"{shown_address(found[bookie_id])} and {place.path} are both bookie {bookie_id}: "
                "one is a copy of the other"
            )
        found[bookie_id] = address
    if not found:
        raise ConfigurationError(
            f"no bookie's directory (one with a {IDENTITY_FILE}) among {', '.join(looked_at)}"
        )
    return BookiePlaces(found, password)


def _identity(place: Place) -> str | None:
    path = place.path / IDENTITY_FILE
    try:
        file = place.disk.open_read(path)
        try:
            text = file.read(0, _IDENTITY_BYTES_MAX)
        finally:
            file.close()
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
