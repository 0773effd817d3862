"""What a bookie's directory looks like.

Pure: names only.

    <bookie>/
      bookie.json                      the bookie's id
      cluster.json                     whose ledgers these are: the metadata store of their cluster
      lock                             held while a writer joins, or a dead one is taken over
      fences                           ledgers fenced while their writer may still live
      marks                            how far the metadata store was: ledger ids and runs seen
      deleted                          ledgers deleted while journals may still hold their entries
      origins/begun-<writer>-<n>       metadata of each ledger that this writer began here
      origins/<ledger>.json            the same of a ledger that came later, or has changed
      reserve                          room for a full disk, if it has a disk of its own
      journal/<writer>/lock            held by that writer as long as it lives
      journal/<writer>/00000001.avro   entries of all its ledgers, in the order they were synced
      ledgers/<ledger>-<first entry>-<writer>.avro     a fragment: entries of one ledger

A *writer* is one opening of the directory by one process. Only the holder of a writer's lock
writes the files with that writer's name: there is no other mutual exclusion between processes. Names
that fit no pattern are foreign: reported, never touched.
"""

from __future__ import annotations

import re
import sys
from typing import Final, NamedTuple

IDENTITY_FILE: Final = "bookie.json"
CLUSTER_FILE: Final = "cluster.json"
LOCK_FILE: Final = "lock"
FENCES_FILE: Final = "fences"
MARKS_FILE: Final = "marks"
DELETED_FILE: Final = "deleted"
ORIGINS_DIRECTORY: Final = "origins"
JOURNAL_DIRECTORY: Final = "journal"
LEDGERS_DIRECTORY: Final = "ledgers"

WRITER_BYTES: Final = 8
"""Random bytes in a writer's name."""

_WRITER: Final = re.compile(r"[0-9a-f]{16}")
_JOURNAL: Final = re.compile(r"(\d{8})\.avro")
_FRAGMENT: Final = re.compile(r"(\d{19})-(\d{19})-([0-9a-f]{16})(?:-(\d{1,9}))?\.avro")


class FragmentName(NamedTuple):
    """Name of a fragment file, taken apart."""

    ledger_id: int
    first_entry_id: int
    writer: str
    attempt: int = 0
    """0 as a rule. Higher when that name was taken: entries were written again."""

    def __str__(self) -> str:
        suffix = f"-{self.attempt}" if self.attempt else ""
        return f"{self.ledger_id:019d}-{self.first_entry_id:019d}-{self.writer}{suffix}.avro"


def parse_fragment_name(name: str) -> FragmentName | None:
    """The parts of a fragment file's name, or None when it is no such name."""
    match = _FRAGMENT.fullmatch(name)
    if match is None:
        return None
    ledger, first, writer, attempt = match.groups()
    return FragmentName(int(ledger), int(first), sys.intern(writer), int(attempt or 0))


def is_writer_name(name: str) -> bool:
    """Whether a directory in the journal directory is a writer's."""
    return _WRITER.fullmatch(name) is not None


def journal_name(sequence: int) -> str:
    """Name of a writer's n-th journal file."""
    return f"{sequence:08d}.avro"


def parse_journal_name(name: str) -> int | None:
    """The number of a journal file, or None when it is no such name."""
    match = _JOURNAL.fullmatch(name)
    return int(match.group(1)) if match else None
