"""Large ranges cut into smaller ones, so that several tasks share a large file.

Edge: seeks in files; a file is not read.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from ackgate.pipeline.storage.block_search import split_entry_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ackgate.pipeline.storage.bookie_files import OpenBookies
    from ackgate.pipeline.storage.ranges import EntryRange


def split_ranges(
    bookies: OpenBookies, ranges: Iterable[EntryRange], *, split_bytes: int
) -> Iterator[EntryRange]:
    """The same entries in the same order, in parts of about so many bytes of a file."""
    for whole in ranges:
        first, stop = whole.first_entry_id, whole.last_entry_id + 1
        inside = [i for i in _split_entry_ids(bookies, whole, split_bytes) if first < i < stop]
        for start, behind in pairwise([first, *inside, stop]):
            yield replace(whole, first_entry_id=start, last_entry_id=behind - 1)


def _split_entry_ids(bookies: OpenBookies, whole: EntryRange, split_bytes: int) -> list[int]:
    """As the first bookie that has the fragment in one file has it."""
    for bookie_id in whole.fragment.ensemble:
        files = bookies.bookie(bookie_id)
        fragment = whole.fragment.first_entry_id
        file = files and files.fragment_file(whole.ledger_id, fragment)
        if file:
            try:
                return split_entry_ids(file, split_bytes)
            finally:
                file.close()
    return []
