"""Whether a ledger in which nothing was found is empty, or has files that nobody here can read.

Edge. A ledger that is closed says how many entries it has, and one that is missing is told. Of one that
nobody closed the files alone say it; whoever looks for its end passes over those that are none.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ackgate.errors import CorruptRecordError, UnknownFormatError
from ackgate.persistence.bookies.avro_container import read_header
from ackgate.pipeline.storage.damage import Damage
from ackgate.pipeline.storage.remote_disk import place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackgate.pipeline.storage.bookie_files import OpenBookies
    from ackgate.pipeline.storage.places import BookiePlaces


def check_files(
    bookies: OpenBookies, places: BookiePlaces, ledger_id: int, *, skips_corrupt: bool
) -> None:
    """Look at the header of each of the ledger's files.

    Raises `CorruptRecordError` unless it is to be skipped, `UnknownFormatError`, `StorageError`.
    """
    for damage in unreadable_files(bookies, places, ledger_id):
        if damage.is_later_format:
            raise UnknownFormatError(f"{damage.file}: {damage.why}")
        if not skips_corrupt:
            raise CorruptRecordError(f"{damage.file}: {damage.why}")


def unreadable_files(
    bookies: OpenBookies, places: BookiePlaces, ledger_id: int
) -> Iterator[Damage]:
    """Those of the ledger's files that are foreign, damaged in front or of a later version, whole.

    Raises `StorageError`.
    """
    for found in bookies.files_of(ledger_id):
        disk, _ = place_of(places.directories[found.bookie_id])
        try:
            file = disk.open_read(Path(found.path))
        except FileNotFoundError:
            continue
        try:
            read_header(file)
        except CorruptRecordError as error:
            why = str(error).removeprefix(f"{found.path}: ")
            is_later = isinstance(error, UnknownFormatError)
            yield Damage(
                *(ledger_id, found.bookie_id, found.path, 0, found.size, why, -1),
                is_later_format=is_later,
            )
        finally:
            file.close()
