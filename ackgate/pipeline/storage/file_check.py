"""Whether a ledger in which nothing was found is empty, or has files that nobody here can read.

Edge. A ledger that is closed says how many entries it has, and one that is missing is told. Of one that
nobody closed the files alone say it; whoever looks for its end passes over those that are none.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from ackgate.errors import CorruptRecordError, UnknownFormatError
from ackgate.persistence.ledgers.avro_container import read_header
from ackgate.pipeline.storage.remote_disk import place_of

if TYPE_CHECKING:
    from ackgate.pipeline.storage.bookie_files import FoundFile, OpenBookies
    from ackgate.pipeline.storage.places import BookiePlaces


def check_files(
    bookies: OpenBookies, places: BookiePlaces, ledger_id: int, *, skips_corrupt: bool
) -> None:
    """Look at the header of each of the ledger's files.

    Raises `CorruptRecordError` unless it is to be skipped, `UnknownFormatError`, `StorageError`.
    """
    for found in bookies.files_of(ledger_id):
        try:
            _check(places, found)
        except UnknownFormatError:
            raise
        except CorruptRecordError:
            if not skips_corrupt:
                raise


def _check(places: BookiePlaces, found: FoundFile) -> None:
    disk, _ = place_of(places.directories[found.bookie_id])
    with contextlib.suppress(FileNotFoundError):
        file = disk.open_read(Path(found.path))
        try:
            read_header(file)
        finally:
            file.close()
