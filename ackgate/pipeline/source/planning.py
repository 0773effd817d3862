"""Cuts a read into tasks: on the driver, from the metadata store alone.

Edge: the catalogue, the sizes of files, and their sync markers. A task reads entries of one topic or one
cursor, from one or more ledgers. Small ones are combined, so that a hundred thousand small ledgers do not
make as many Spark tasks, and several tasks share a large file.

A ledger without entries is empty, or has unreadable files. The metadata of a closed ledger have its count of
entries, and missing ones are reported. Of an open ledger only the files have it, and the search for its end
skips unreadable files: so their heads are checked here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from ackgate.cursor import ENTRY_ID_MAX
from ackgate.errors import CorruptRecordError, UnknownFormatError
from ackgate.persistence.bookies.avro_container import read_header
from ackgate.persistence.ledger_owner import owner_of
from ackgate.persistence.nodes.paths import DELAYED_INDEX_CURSOR, HIDDEN_CURSORS
from ackgate.persistence.ports import LedgerState
from ackgate.pipeline.catalogue.borders import last_entries
from ackgate.pipeline.catalogue.catalogue import ledger_places, open_catalogue, storage_address
from ackgate.pipeline.readers.damaged_records import DamagedRecords
from ackgate.pipeline.schema.options import SPLIT_BYTES, IdRange
from ackgate.pipeline.storage.block_search import split_entry_ids
from ackgate.pipeline.storage.bookie_files import OpenBookies
from ackgate.pipeline.storage.cluster_entries import OpenCluster
from ackgate.pipeline.storage.damage import Damage
from ackgate.pipeline.storage.places import BookiePlaces
from ackgate.pipeline.storage.ranges import ENTRY_BYTES, plan_ranges
from ackgate.pipeline.storage.reading import open_places
from ackgate.pipeline.storage.remote_disk import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ackgate.cursor import BucketRecord
    from ackgate.persistence.cursors.node import CursorNode
    from ackgate.persistence.ports import LedgerMetadata
    from ackgate.pipeline.catalogue.catalogue import (
        Catalogue,
        CatalogueTopic,
        Cursor,
        StorageAddress,
    )
    from ackgate.pipeline.schema.options import SourceOptions
    from ackgate.pipeline.storage.ranges import EntryRange
    from ackgate.pipeline.storage.reading import LedgerPlaces, OpenPlaces


T = TypeVar("T")

ALL_ENTRIES: Final = (IdRange(0, ENTRY_ID_MAX),)

TASKS_TOGETHER_MAX: Final = 1000
"""Ranges of several ledgers that make one task of Spark, at most; or as much as `SPLIT_BYTES`. PySpark
spends some 0.2 s on each task beside what it does (the search paths of modules are read again, garbage is
collected), and a ledger takes a millisecond however small it is."""

JOURNAL_WEIGHT: Final = 64
"""A byte of a delivery journal is as much work as so many of messages: an event takes one or two."""

LEDGERS_TOGETHER_MAX: Final = 5_000
"""Ledgers of one task of table `ledgers`, which lists each bookie's directory once."""

LEDGER_NODE_BYTES: Final = 4096
"""What one of them is taken for."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Entries that belong together, and whose they are. Picklable."""

    topic: str
    subscription: str | None
    ranges: tuple[EntryRange, ...]
    node: CursorNode | None = None
    """Of a cursor: its node, which holds a state too."""
    node_path: str = ""
    table: str = ""
    """The table that it would be read for, of those that the table `corrupt` looks through."""
    ledgers: tuple[LedgerMetadata, ...] = ()
    """Of the table `ledgers`: those that it is about; nothing of them is read."""
    weight: int = 1
    """Of its bytes, against those of messages."""
    damages: tuple[Damage, ...] = ()
    """Of the table `corrupt`: what was found already; nothing is read."""

    @property
    def bytes(self) -> int:
        """About as many bytes of messages are as much work: of an open ledger nobody knows."""
        read = self.weight * sum(map(_bytes, self.ranges))
        return read + LEDGER_NODE_BYTES * len(self.ledgers)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Where to read, and what: each group is one task of Spark."""

    bookies: LedgerPlaces
    groups: list[tuple[ReadTask, ...]]


def plan_read(options: SourceOptions) -> ReadPlan:
    """Plan the read that the options ask for. Reads no entries.

    Raises `CallerError`, `ConfigurationError`, `StorageError`, `CorruptRecordError`.
    """
    address = storage_address(options)
    bookies = ledger_places(address)
    with open_catalogue(options) as catalogue, open_places(bookies) as opened:
        planning = _Planning(catalogue, options, address, bookies, opened)
        return ReadPlan(bookies, list(together(planning.tasks())))


class _Planning:
    """One plan in the making."""

    def __init__(
        self,
        catalogue: Catalogue,
        options: SourceOptions,
        address: StorageAddress,
        bookies: LedgerPlaces,
        opened: OpenPlaces,
    ) -> None:
        self._catalogue = catalogue
        self._options = options
        self._address = address
        self._bookies = bookies
        self._opened = opened
        is_report = options.table.name == "corrupt"
        self._damaged = DamagedRecords(
            "report" if is_report else "skip" if options.skips_corrupt else "fail"
        )
        """Damaged files and nodes that no task reads."""
        self._damaged_nodes: set[str] = set()
        """Their paths: several tables read the same nodes."""

    def tasks(self) -> Iterator[ReadTask]:
        match self._options.table.name:
            case "messages" | "unpacked_messages":
                return self._of_messages()
            case "cursor_records" | "ack_state":
                return self._of_cursors()
            case "delayed_index":
                return self._of_buckets()
            case "delivery_journal":
                return self._of_journals()
            case "ledgers":
                return self._of_all_ledgers()
            case _:
                return self._of_everything()

    def _of_everything(self) -> Iterator[ReadTask]:
        for table, tasks in (
            ("messages", self._of_messages()),
            ("cursor_records", self._of_cursors()),
            ("delayed_index", self._of_buckets()),
            ("delivery_journal", self._of_journals()),
        ):
            for task in tasks:
                yield replace(task, table=table)
        if self._damaged.damages:
            yield ReadTask("", None, (), damages=tuple(self._damaged.damages))

    def _of_messages(self) -> Iterator[ReadTask]:
        owners = {
            ledger.ledger_id: topic.name
            for topic in self._topics()
            for ledger in self._catalogue.message_ledgers(topic).ledgers
        }
        for part in self._split(self._ranges(owners, entry_ids=merged(self._options.entry_ids))):
            yield ReadTask(owners[part.ledger_id], None, (part,))

    def _of_cursors(self) -> Iterator[ReadTask]:
        cursors = [cursor for cursor, _ in self._read(self._subscriptions(), attrgetter("node"))]
        ids = {cursor.node.cursor_ledger_id for cursor in cursors} - {None}
        ranges = defaultdict(list)
        for part in self._ranges(sorted(filter(None, ids)), is_cursors=True):
            ranges[part.ledger_id].append(part)
        for cursor in cursors:
            ledger_id = cursor.node.cursor_ledger_id
            own = () if ledger_id is None else tuple(ranges[ledger_id])
            yield ReadTask(cursor.topic.name, cursor.name, own, cursor.node, cursor.path)

    def _of_buckets(self) -> Iterator[ReadTask]:
        owners: dict[int, tuple[str, str | None]] = {}
        cursors = (
            cursor
            for cursor in self._catalogue.all_cursors(self._topics(), self._options.subscription)
            if cursor.name == DELAYED_INDEX_CURSOR or cursor.name not in HIDDEN_CURSORS
        )
        buckets: list[BucketRecord]
        for cursor, buckets in self._read(cursors, attrgetter("buckets")):
            is_shared = cursor.name == DELAYED_INDEX_CURSOR
            owner = (cursor.topic.name, None if is_shared else cursor.name)
            owners.update((bucket.snapshot_id, owner) for bucket in buckets)
        for snapshot_id, (topic, subscription) in owners.items():
            ranges = tuple(self._ranges([snapshot_id]))
            if ranges:
                yield ReadTask(topic, subscription, ranges)

    def _of_journals(self) -> Iterator[ReadTask]:
        owners: dict[int, str] = {}
        for topic in self._topics():
            for ledger in self._catalogue.journal(topic).ledgers:
                owners[ledger.ledger_id] = topic.name
        for part in self._split(self._ranges(owners), weight=JOURNAL_WEIGHT):
            yield ReadTask(owners[part.ledger_id], None, (part,), weight=JOURNAL_WEIGHT)

    def _of_all_ledgers(self) -> Iterator[ReadTask]:
        """Whatever they hold; of chosen topics and subscriptions only theirs."""
        options = self._options
        topics = {topic.name for topic in self._topics()}
        if options.subscription is not None:
            self._catalogue.all_cursors(self._topics(), options.subscription)
        ledgers = (
            about
            for about, _ in self._catalogue.entries(
                filter(options.wants_ledger, self._catalogue.ledger_ids())
            )
            if (not options.topics or owner_of(about).topic in topics)
            and options.subscription in (None, owner_of(about).cursor)
        )
        while some := tuple(islice(ledgers, LEDGERS_TOGETHER_MAX)):
            yield ReadTask("", None, (), ledgers=some)

    # ---------------------------------------------------------------------- pieces

    def _topics(self) -> list[CatalogueTopic]:
        return self._catalogue.topics(self._options.topics)

    def _subscriptions(self) -> Iterator[Cursor]:
        wanted = self._options.subscription
        for cursor in self._catalogue.all_cursors(self._topics(), wanted):
            if wanted is not None or cursor.name not in HIDDEN_CURSORS:
                yield cursor

    def _read(
        self, cursors: Iterable[Cursor], read: Callable[[Cursor], T]
    ) -> Iterator[tuple[Cursor, T]]:
        """The cursors that can be read so, and what was read. Raises as `DamagedRecords.meet_node`."""
        for cursor in cursors:
            try:
                found = read(cursor)
            except CorruptRecordError as error:
                if cursor.path not in self._damaged_nodes:
                    self._damaged_nodes.add(cursor.path)
                    self._damaged.meet_node(
                        *(cursor.topic.name, cursor.name, cursor.path, len(cursor.value)), error
                    )
            else:
                yield cursor, found

    def _split(self, ranges: Iterable[EntryRange], *, weight: int = 1) -> Iterator[EntryRange]:
        """Large ones cut into smaller ones. Files that cannot be large are not opened for it."""
        split_bytes = max(1, self._options.split_bytes // weight)
        for part in ranges:
            about = part.metadata
            if about.state is LedgerState.CLOSED and about.length_bytes < split_bytes:
                yield part
            else:
                yield from split_ranges(self._opened, [part], split_bytes=split_bytes)

    def _ranges(
        self,
        ledger_ids: Iterable[int],
        *,
        is_cursors: bool = False,
        entry_ids: Sequence[IdRange] = ALL_ENTRIES,
    ) -> Iterator[EntryRange]:
        """The ranges of those ledgers that are there and wanted, in this order."""
        found = self._catalogue.entries(filter(self._options.wants_ledger, ledger_ids))
        lasts = last_entries(
            self._address,
            [entry.metadata for entry in found],
            is_found=True if is_cursors else self._options.reads_found,
        )
        self._check_empty([entry.metadata for entry in found], lasts)
        for metadata, password_check in found:
            for first, last in entry_ids:
                planned = plan_ranges(
                    metadata,
                    min(last, lasts[metadata.ledger_id]),
                    first_entry_id=first,
                    password_check=password_check,
                )
                yield from map(self._opened.located, planned)

    def _check_empty(self, ledgers: Iterable[LedgerMetadata], lasts: Mapping[int, int]) -> None:
        """Whether ledgers that nobody closed are empty, or have files that cannot be read."""
        if not (isinstance(self._opened, OpenBookies) and isinstance(self._bookies, BookiePlaces)):
            return
        open_ones = (about for about in ledgers if about.state is not LedgerState.CLOSED)
        for about in open_ones:
            if lasts[about.ledger_id] >= 0:
                continue
            if self._options.table.name == "corrupt":
                found = unreadable_files(self._opened, self._bookies, about.ledger_id)
                self._damaged.damages.extend(found)
            else:
                check_files(
                    self._opened,
                    self._bookies,
                    about.ledger_id,
                    skips_corrupt=self._options.skips_corrupt,
                )


def merged(wanted: Sequence[IdRange] | None) -> Sequence[IdRange]:
    """The same ids, ascending, each once; None: all."""
    if wanted is None:
        return ALL_ENTRIES
    apart: list[IdRange] = []
    for first, last in sorted(wanted):
        if apart and first <= apart[-1].last + 1:
            apart[-1] = IdRange(apart[-1].first, max(apart[-1].last, last))
        else:
            apart.append(IdRange(first, last))
    return apart


def _bytes(part: EntryRange) -> int:
    """The share that its entries have in their ledger's bytes."""
    about = part.metadata
    if about.state is not LedgerState.CLOSED:
        return part.entry_count * ENTRY_BYTES
    return about.length_bytes * part.entry_count // max(1, about.last_entry_id + 1)


def together(tasks: Iterable[ReadTask]) -> Iterator[tuple[ReadTask, ...]]:
    """Put small neighbours into one task of Spark."""
    size = attrgetter("bytes")
    return grouped(tasks, size, size_max=SPLIT_BYTES, count_max=TASKS_TOGETHER_MAX)


def grouped(
    items: Iterable[T], size_of: Callable[[T], int], *, size_max: int, count_max: int
) -> Iterator[tuple[T, ...]]:
    """Neighbours together up to these bounds; one that is larger alone."""
    group: list[T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if group and (total + size > size_max or len(group) >= count_max):
            yield tuple(group)
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield tuple(group)


def split_ranges(
    bookies: OpenPlaces, ranges: Iterable[EntryRange], *, split_bytes: int
) -> Iterator[EntryRange]:
    """The same entries in the same order, in ranges of about so many bytes of a file."""
    for whole in ranges:
        first, stop = whole.first_entry_id, whole.last_entry_id + 1
        inside = [i for i in _split_entry_ids(bookies, whole, split_bytes) if first < i < stop]
        for start, behind in pairwise([first, *inside, stop]):
            yield replace(whole, first_entry_id=start, last_entry_id=behind - 1)


def _split_entry_ids(bookies: OpenPlaces, whole: EntryRange, split_bytes: int) -> list[int]:
    """As the first bookie that has the fragment in one file has it."""
    if isinstance(bookies, OpenCluster):
        return bookies.split_entry_ids(whole, split_bytes)
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
