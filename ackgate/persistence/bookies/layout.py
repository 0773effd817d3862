"""What a bookie's directory looks like: the names in it, and the two files that say whose it is.

Pure but for `write_identity`, which writes through a `Disk`.

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

import json
import re
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google_crc32c import value as crc32c

from ackgate.errors import ConfigurationError
from ackgate.persistence.system.disk import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ackgate.persistence.system.disk import Disk

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


# ---- identity: a bookie's id and its cluster
#
#     bookie.json   {"format": 2, "crc32c": ..., "bookie": {"bookie_id": ..., "cluster": ...}}
#     cluster.json  the same, from the moment when a cluster claims the bookie
#
# A lost or damaged file is restored from the other one. When both are gone, or contradict each other,
# the owner of the entries is unknown, and the directory is rejected. Format 1 had no checksum, and each
# file held only what it is named after; opening a bookie for writing converts it to format 2.

IDENTITY_FORMAT: Final = 2
_UNCHECKED_FORMAT: Final = 1
IDENTITY_BYTES_MAX: Final = 4096


class Identity(NamedTuple):
    """A bookie's id and cluster, as the two files hold them."""

    bookie_id: str
    cluster: str | None = None
    """Name of the metadata store that knows its ledgers; None: no cluster has claimed the bookie yet."""


class StoredIdentity(NamedTuple):
    """A directory's identity as its files have it."""

    identity: Identity | None
    """None: there is neither file."""
    outdated: tuple[str, ...] = ()
    """Names of files to write, since they are missing, damaged, or of format 1."""
    damages: tuple[str, ...] = ()
    """Damage that the other file makes up for."""


class _Found(NamedTuple):
    """The content of one file. Format 1 has only one of the two values."""

    bookie_id: str | None
    cluster: str | None
    format: int


def read_identity(directory: Path, read: Callable[[str], bytes | None]) -> StoredIdentity:
    """Decide who the bookie is. `read` returns a file's bytes, or None when there is no such file.

    Raises `ConfigurationError` naming the files: the identity is unknown, or a later version wrote them.
    """
    found: dict[str, _Found] = {}
    damages: dict[str, str] = {}
    missing: list[str] = []
    for name in (IDENTITY_FILE, CLUSTER_FILE):
        data = read(name)
        if data is None:
            missing.append(name)
            continue
        one = _decode(directory / name, data)
        if one is None:
            damages[name] = f"{directory / name} is damaged: {data[:80]!r}"
        else:
            found[name] = one
    if not found and not damages:
        return StoredIdentity(None)
    identity = _agreed(directory, found)
    if identity is None:
        reasons = [*damages.values(), *(f"{directory / name} is missing" for name in missing)]
        raise ConfigurationError(
            f"bookie {directory}: nothing says which bookie this is; put the file back from a"
            f" backup: {'; '.join(reasons)}"
        )
    if identity.cluster is None and CLUSTER_FILE in damages:
        raise ConfigurationError(damages[CLUSTER_FILE])
    reports = [*damages.values()]
    if identity.cluster is not None or IDENTITY_FILE in missing:
        reports += [f"{directory / name} is missing" for name in missing]
    outdated = [name for name, one in found.items() if one.format != IDENTITY_FORMAT]
    outdated += [*damages, *missing]
    if identity.cluster is None:
        outdated = [name for name in outdated if name != CLUSTER_FILE]
    return StoredIdentity(identity, tuple(outdated), tuple(reports))


def _agreed(directory: Path, found: dict[str, _Found]) -> Identity | None:
    bookie_ids = {one.bookie_id for one in found.values()} - {None}
    clusters = {one.cluster for one in found.values()} - {None}
    for what, values in (("bookie", bookie_ids), ("cluster", clusters)):
        if len(values) > 1:
            raise ConfigurationError(
                f"bookie {directory}: {IDENTITY_FILE} and {CLUSTER_FILE} name different {what}s"
                f" ({' and '.join(sorted(map(str, values)))}): one of them is another directory's"
            )
    bookie_id = next(iter(bookie_ids), None)
    return None if bookie_id is None else Identity(bookie_id, next(iter(clusters), None))


def _decode(path: Path, data: bytes) -> _Found | None:
    """Decode one file; None: it is damaged.

    Raises `ConfigurationError` for a later version's file.
    """
    try:
        stored: dict[str, Any] = json.loads(data)
        found: object = stored["format"]
        if found == _UNCHECKED_FORMAT:
            bookie_id = str(stored["bookie_id"]) if path.name == IDENTITY_FILE else None
            cluster = str(stored["cluster"]) if path.name == CLUSTER_FILE else None
            return _Found(bookie_id, cluster, _UNCHECKED_FORMAT)
        if found != IDENTITY_FORMAT:
            raise ConfigurationError(  # noqa: TRY301
                f"{path}: format {found!r}; this version reads {IDENTITY_FORMAT}"
            )
        bookie = stored["bookie"]
        if crc32c(_canonical(bookie)) != stored["crc32c"]:
            return None
        cluster = bookie["cluster"]
        return _Found(
            str(bookie["bookie_id"]), None if cluster is None else str(cluster), IDENTITY_FORMAT
        )
    except ConfigurationError:
        raise
    except (ValueError, KeyError, TypeError):
        return None


def encode_identity(identity: Identity) -> bytes:
    """The content of both files."""
    bookie = {"bookie_id": identity.bookie_id, "cluster": identity.cluster}
    crc = crc32c(_canonical(bookie))
    return json.dumps({"format": IDENTITY_FORMAT, "crc32c": crc, "bookie": bookie}).encode()


def _canonical(bookie: object) -> bytes:
    return json.dumps(bookie, sort_keys=True, separators=(",", ":")).encode()


def write_identity(disk: Disk, directory: Path, name: str, identity: Identity) -> None:
    """Replace one of the two files. Durable once the directory is synced. Raises `OSError`."""
    replace_file(disk, directory / name, encode_identity(identity))
