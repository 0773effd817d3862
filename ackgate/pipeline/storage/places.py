"""The directory of each bookie's files, for the driver and every worker.

Edge: looks for ``bookie.json`` once, on the driver; what comes out of it is plain and can be pickled.
Ledger metadata names bookies by id, and directories may have been moved or copied since: a bookie is
where its ``bookie.json`` is. A directory is a path of this machine or an address that fsspec opens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ackgate.errors import ConfigurationError
from ackgate.persistence.bookies.layout import IDENTITY_BYTES_MAX, IDENTITY_FILE, read_identity
from ackgate.pipeline.schema.addresses import shown_address
from ackgate.pipeline.storage.remote_disk import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ackgate.pipeline.storage.remote_disk import RemotePlace


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


def _identity(place: RemotePlace) -> str | None:
    def read(name: str) -> bytes | None:
        path = place.path / name
        try:
            file = place.disk.open_read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error
        try:
            return file.read(0, IDENTITY_BYTES_MAX)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error
        finally:
            file.close()

    identity = read_identity(place.path, read).identity
    return None if identity is None else identity.bookie_id
