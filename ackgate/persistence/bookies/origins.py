"""What each ledger of a bookie was when it was begun there: the directory `origins`.

Edge: blocking; used from the bookie's storage lane only. ::

    begun-<writer>-<n>    a writer's log: a line for each ledger that it has begun here, or forgotten
    <ledger>.json         a ledger that came here later in its life, or has changed: counts before its line
    begun-<n>             a log of an earlier version, which had a file for each of its ledgers as well

Each line stands alone and carries a CRC32C, so damage costs the lines that it hits. A writer appends the
lines of all ledgers that begin at the same time (`begin`) and syncs once (`sync`). A start gives the largest
log of a dead writer its own name, and copies into it what the other dead ones have.

*A ledger id is begun once.* A writer looks at the others' logs after its own line is appended. Of two that
begin the same id at least one sees the other, and takes its own line back. A crash of the machine may take
lines that are not synced, of ledgers without a confirmed entry.

In memory there are the ids, as Roaring bitmaps; what the ledgers were is read from the files when somebody
asks.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google_crc32c import value as crc32c
from pyroaring import BitMap64

from ackgate.errors import CorruptRecordError
from ackgate.persistence.system.disk import read_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from ackgate.persistence.system.disk import Disk, DiskFile

logger = logging.getLogger(__name__)

_FILE_NAME: Final = re.compile(r"(\d{19})\.json")
_LOG_NAME: Final = re.compile(r"begun-(?:([0-9a-f]{16})-)?(\d{1,9})")
_FORMAT: Final = 1
_READ_BYTES: Final = 1024 * 1024
"""Read from a log at a time."""

_COMPACT_BYTES_MIN: Final = 1024 * 1024
"""A log below this size is never rewritten."""

_ROOM_BYTES: Final = 256 * 1024
"""What must stay free beside a log that is rewritten."""

_MERGED_AT_ONCE: Final = 1000
"""Lines of other logs that are written to ours in one piece."""

_LOOKS_MAX: Final = 10
"""Listings of the directory while other writers replace their logs."""


class LedgerOrigin(NamedTuple):
    """A ledger as it was when the bookie began to keep entries of it."""

    ledger_id: int
    metadata: bytes
    """The value of the ledger's metadata node then."""


class _Log:
    """How far a log was read, and what it says so far."""

    __slots__ = ("begun", "gone", "is_damaged", "line_count", "name", "size", "writer")

    def __init__(self, name: str) -> None:
        match = _LOG_NAME.fullmatch(name)
        assert match is not None
        self.name = name
        self.writer: str | None = match.group(1)
        """None: an earlier version wrote it."""
        self.size = 0
        """Bytes of whole lines read, or written."""
        self.line_count = 0
        self.begun = BitMap64()
        """Ledgers begun here, and not forgotten after."""
        self.gone = BitMap64()
        """Ledgers forgotten here that another log began."""
        self.is_damaged = False

    def begin(self, ledger_id: int) -> None:
        self.gone.discard(ledger_id)
        self.begun.add(ledger_id)

    def forget(self, ledger_id: int) -> None:
        if ledger_id in self.begun:
            self.begun.remove(ledger_id)
        else:
            self.gone.add(ledger_id)

    @property
    def is_mostly_dead(self) -> bool:
        """Whether the log is long and most of its lines are obsolete."""
        live = len(self.begun) + len(self.gone)
        return self.size >= _COMPACT_BYTES_MIN and 2 * live < self.line_count


class Origins:
    """The directory, for one opening of the bookie."""

    def __init__(self, disk: Disk, directory: Path, report: Callable[[str], None]) -> None:
        """`report` is called with each damaged place."""
        self._disk = disk
        self._directory = directory
        self._report = report
        self._writer = ""
        self._logs: dict[str, _Log] = {}
        self._files = BitMap64()
        """Ledgers with a file."""
        self._stamp: int | None = None
        self._own: _Log | None = None
        self._file: DiskFile | None = None
        """Of `_own`."""
        self._unsynced = BitMap64()
        """Ledgers begun in `_file` since it was last synced."""
        self._lost: OSError | None = None
        """Why lines that were appended will not be synced."""
        self._next_number = 0

    def join(self, writer: str, alive: Collection[str]) -> None:
        """Take over the logs of dead writers. Under the bookie's lock. Raises `OSError`.

        `alive`: the other writers. Logs of an earlier version are taken over when there is none.
        """
        self._disk.make_directory(self._directory)
        self._writer = writer
        self._list()
        ended = []
        for log in self._logs.values():
            is_ended = log.writer not in alive if log.writer is not None else not alive
            self._read_on(log, is_ended=is_ended)
            if is_ended:
                ended.append(log)
        self._take_over(ended)

    def look(self) -> None:
        """Read what other writers have written since. Raises `OSError`."""
        for _ in range(_LOOKS_MAX):
            stamp = self._disk.names_stamp(self._directory)
            if stamp is None or stamp != self._stamp:
                self._list()
                self._stamp = stamp
            try:
                for log in self._logs.values():
                    if log.writer != self._writer:
                        self._read_on(log, is_ended=False)
            except FileNotFoundError:
                self._stamp = None  # its writer has replaced it
            else:
                return
        raise OSError(f"{self._directory} does not stand still")

    def close(self) -> None:
        """Give the descriptor back. The log stays."""
        if self._file is not None:
            self._file.close()
        self._file = self._own = None

    # ------------------------------------------------------------------------------------- writing

    def begin(self, origins: Sequence[LedgerOrigin]) -> set[int]:
        """Store the origins of new ledgers; durable after the next `sync`. Raises `OSError`.

        Returns the ids that are taken already; nothing was changed for those.
        """
        known = {origin.ledger_id for origin in origins if origin.ledger_id in self}
        stored = {*self.all_of(known)} if known else set()
        taken = {o.ledger_id for o in origins if o.ledger_id in known and o not in stored}
        new = [origin for origin in origins if origin.ledger_id not in known]
        if new:
            self._append(new)
            self._unsynced.update(origin.ledger_id for origin in new)
            self.look()
            others = [log for log in self._logs.values() if log is not self._own]
            twice = {o.ledger_id for o in new if any(o.ledger_id in log.begun for log in others)}
            if twice:
                self.forget(twice, of_ours=True)
            taken |= twice
        return taken

    def sync(self) -> None:
        """Return when what was begun is durable.

        Raises `OSError`; then what was begun since the last call is not known here any more.
        """
        lost, self._lost = self._lost, None
        if lost is not None:
            raise lost
        if not self._unsynced:
            return
        assert self._file is not None
        try:
            self._file.sync()
        except OSError:
            self._give_up()
            raise
        self._unsynced.clear()
        self._shorten()

    def keep(self, origin: LedgerOrigin) -> None:
        """Rewrite a ledger's origin: it has come here, or has changed. Raises `OSError`."""
        path = self._path(origin.ledger_id)
        replace_file(self._disk, path, _begun_line(origin))
        self._disk.sync_directory(self._directory)
        self._files.add(origin.ledger_id)

    def forget(self, ledger_ids: Iterable[int], *, of_ours: bool = False) -> None:
        """Ledgers that are deleted, or were begun in vain. Raises `OSError`.

        A crash may bring them back. That does no harm: their ids are not given out again, and there
        are no entries of them. `of_ours`: only what this writer has begun.
        """
        gone = []
        for ledger_id in ledger_ids:
            if ledger_id in self._files and not of_ours:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.remove(self._path(ledger_id))
                self._files.discard(ledger_id)
            is_begun = any(ledger_id in log.begun for log in self._logs.values())
            if is_begun and not self._is_gone(ledger_id):
                gone.append(ledger_id)
        if not gone:
            return
        try:
            self._append(gone=gone)
            self._shorten()
        except OSError:
            # A full disk must not hold up a deletion, which makes room on it.
            for log in self._logs.values():
                if log.writer == self._writer or not of_ours:
                    log.begun -= BitMap64(gone)

    # ------------------------------------------------------------------------------------- reading

    def __contains__(self, ledger_id: int) -> bool:
        if ledger_id in self._files:
            return True
        is_begun = any(ledger_id in log.begun for log in self._logs.values())
        return is_begun and not self._is_gone(ledger_id)

    def ids(self) -> set[int]:
        """Ledgers that were begun here and not forgotten, by any writer. Raises `OSError`."""
        with contextlib.suppress(FileNotFoundError):
            self.look()
        return self._in_logs() | set(self._files)

    def readable_ids(self) -> set[int]:
        """Ledgers whose origin is here, and whole; damaged files are reported. Raises `OSError`."""
        ids = self.ids()
        for ledger_id in self._files:
            if self._readable(ledger_id) is None:
                ids.discard(ledger_id)
        return ids

    def of(self, ledger_id: int) -> LedgerOrigin | None:
        """The ledger's origin; None: it was not begun here.

        Raises `CorruptRecordError`, `OSError`.
        """
        if ledger_id not in self._files:
            return self._stored({ledger_id}).get(ledger_id)
        path = self._path(ledger_id)
        encoded = read_file(self._disk, path)
        if encoded is None:
            return None  # deleted this moment, by another process
        origin = _decode_line(encoded)
        if not isinstance(origin, LedgerOrigin) or origin.ledger_id != ledger_id:
            raise CorruptRecordError(f"{path} is damaged: {encoded[:80]!r}")
        return origin

    def all_of(self, ledger_ids: set[int]) -> list[LedgerOrigin]:
        """What is known of these ledgers, by id; damaged files are reported. Raises `OSError`."""
        in_files = ledger_ids & set(self._files)
        found = self._stored(ledger_ids)
        for ledger_id in in_files:
            if (origin := self._readable(ledger_id)) is not None:
                found[ledger_id] = origin
        return [found[i] for i in sorted(found)]

    def _in_logs(self) -> set[int]:
        begun, gone = BitMap64(), BitMap64()
        for log in self._logs.values():
            begun |= log.begun
            gone |= log.gone
        return set(begun - gone)

    def _is_gone(self, ledger_id: int) -> bool:
        return any(ledger_id in log.gone for log in self._logs.values())

    def _readable(self, ledger_id: int) -> LedgerOrigin | None:
        try:
            return self.of(ledger_id)
        except CorruptRecordError as error:
            self._report(str(error))
            return None

    def _stored(self, ledger_ids: set[int]) -> dict[int, LedgerOrigin]:
        """What the logs have of these ledgers."""
        for _ in range(_LOOKS_MAX):
            with contextlib.suppress(FileNotFoundError):  # its writer has replaced it
                return self._scanned(ledger_ids)
            self.look()
        raise OSError(f"{self._directory} does not stand still")

    def _scanned(self, ledger_ids: set[int]) -> dict[int, LedgerOrigin]:
        found: dict[int, LedgerOrigin] = {}
        for log in self._logs.values():
            wanted = ledger_ids & set(log.begun)
            if not wanted:
                continue
            for line, _ in self._lines(log.name, 0):
                origin = _decode_line(line)
                if isinstance(origin, LedgerOrigin) and origin.ledger_id in wanted:
                    found[origin.ledger_id] = origin
        return found

    def _list(self) -> None:
        names = self._disk.list(self._directory)
        self._files = BitMap64(
            int(match.group(1)) for name in names if (match := _FILE_NAME.fullmatch(name))
        )
        logs = {name for name in names if _LOG_NAME.fullmatch(name)}
        self._logs = {name: self._logs.get(name) or _Log(name) for name in sorted(logs)}

    def _read_on(self, log: _Log, *, is_ended: bool) -> None:
        """`is_ended`: nobody writes it any more, so a line without an end will have none."""
        damaged, start = 0, log.size
        for line, is_whole in self._lines(log.name, start):
            if not is_whole and not is_ended:
                break
            log.size += len(line) + is_whole
            record = _decode_line(line)
            log.line_count += 1
            if isinstance(record, LedgerOrigin):
                log.begin(record.ledger_id)
            elif record is not None:
                log.forget(record)
            elif line:
                damaged += 1
            # A last line that is valid but has no newline was cut off there; an append must add it.
            log.is_damaged |= not is_whole
        if damaged:
            log.is_damaged = True
            self._report(f"{self._directory / log.name}: {damaged} lines are damaged")

    def _lines(self, name: str, start: int) -> Iterator[tuple[bytes, bool]]:
        """Yield each line without its end, and whether it had one."""
        file = self._disk.open_read(self._directory / name)
        try:
            rest = b""
            while piece := file.read(start, _READ_BYTES):
                start += len(piece)
                lines = (rest + piece).split(b"\n")
                rest = lines.pop()
                yield from ((line, True) for line in lines)
            if rest:
                yield rest, False
        finally:
            file.close()

    def _path(self, ledger_id: int) -> Path:
        return self._directory / f"{ledger_id:019d}.json"

    # --------------------------------------------------------------------------------- our own log

    def _append(
        self,
        begun: Sequence[LedgerOrigin] = (),
        gone: Sequence[int] = (),
        *,
        is_synced: bool = False,
    ) -> None:
        if self._own is None or self._file is None:
            self._own, self._file = self._create_log()
        log, file = self._own, self._file
        lines = [_begun_line(origin) for origin in begun]
        lines += [_gone_line(ledger_id) for ledger_id in gone]
        data = b"".join(lines)
        try:
            file.append(data)
            if is_synced:
                file.sync()
        except OSError as error:
            if self._unsynced:
                self._lost = error
            self._give_up()
            raise
        log.size += len(data)
        log.line_count += len(lines)
        for origin in begun:
            log.begin(origin.ledger_id)
        for ledger_id in gone:
            log.forget(ledger_id)

    def _give_up(self) -> None:
        """Abandon our log: nobody knows where it ends.

        Synced lines stay good; new ones need a new log.
        """
        if self._own is not None:
            self._own.begun -= self._unsynced
        self._unsynced.clear()
        self.close()

    def _create_log(self) -> tuple[_Log, DiskFile]:
        log = self._new_log()
        file = self._disk.create(self._directory / log.name)
        try:
            self._disk.sync_directory(self._directory)
        except OSError:
            file.close()
            raise
        self._logs[log.name] = log
        return log, file

    def _new_log(self) -> _Log:
        log = _Log(f"begun-{self._writer}-{self._next_number}")
        self._next_number += 1
        return log

    def _take_over(self, ended: list[_Log]) -> None:
        """Make one log, ours, of those of dead writers. Where there is no room they are left."""
        base = max(ended, key=lambda log: log.size, default=None)
        if base is not None and (base.is_damaged or base.is_mostly_dead):
            base = None
        others = [log for log in ended if log is not base]
        if not self._has_room_for(others):
            return
        if base is not None:
            self._rename_to_ours(base)
        self._merge(others)

    def _rename_to_ours(self, log: _Log) -> None:
        old, name = log.name, self._new_log().name
        self._disk.rename(self._directory / old, self._directory / name)
        self._disk.sync_directory(self._directory)
        log.name, log.writer = name, self._writer
        self._logs[name] = self._own = self._logs.pop(old)
        self._file = self._disk.open_append(self._directory / name)

    def _shorten(self) -> None:
        """When most of our log says nothing any more, write the rest into a new one."""
        log = self._own
        if self._unsynced or log is None or not log.is_mostly_dead:
            return
        if not self._has_room_for([log]):
            return
        self.close()
        try:
            self._merge([log])
        except OSError as error:
            logger.warning("%s is not made shorter: %s", self._directory / log.name, error)

    def _merge(self, logs: Sequence[_Log]) -> None:
        """Append to ours what these logs still say, and remove them. Raises `OSError`."""
        kept = {log.name: log for log in self._logs.values() if log not in logs}
        elsewhere = BitMap64.union(*(log.begun for log in kept.values()), BitMap64())
        gone = [i for log in logs for i in log.gone if i in elsewhere]
        batch: list[LedgerOrigin] = []
        for log in logs:
            for line, _ in self._lines(log.name, 0):
                record = _decode_line(line)
                if not isinstance(record, LedgerOrigin) or record.ledger_id not in log.begun:
                    continue
                if record.ledger_id in elsewhere or self._is_gone(record.ledger_id):
                    continue
                batch.append(record)
                if len(batch) == _MERGED_AT_ONCE:
                    self._append(batch)
                    batch = []
        if batch or gone:
            self._append(batch, gone, is_synced=True)
        elif self._file is not None:
            self._file.sync()
        for log in logs:
            self._logs.pop(log.name, None)
            self._disk.remove(self._directory / log.name)

    def _has_room_for(self, logs: Sequence[_Log]) -> bool:
        free_bytes = self._disk.free_bytes(self._directory)
        needed_bytes = sum(log.size for log in logs)
        return not logs or free_bytes is None or free_bytes >= needed_bytes + _ROOM_BYTES


def _decode_line(line: bytes) -> LedgerOrigin | int | None:
    """A ledger that begins, the id of one that is forgotten, or None: the line is damaged."""
    try:
        fields: dict[str, Any] = json.loads(line)
        if fields["format"] != _FORMAT:
            return None
        if "gone" in fields:
            gone = int(fields["gone"])
            return gone if crc32c(b"gone %d" % gone) == fields["crc32c"] else None
        ledger_id, metadata = int(fields["ledger_id"]), fields["ledger"].encode()
        is_whole = crc32c(metadata + b"%d" % ledger_id) == fields["crc32c"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return LedgerOrigin(ledger_id, metadata) if is_whole else None


def _begun_line(origin: LedgerOrigin) -> bytes:
    ledger_id, metadata = origin
    crc, text = crc32c(metadata + b"%d" % ledger_id), json.dumps(metadata.decode()).encode()
    line = b'{"format": %d, "crc32c": %d, "ledger_id": %d, "ledger": %s}\n'
    return line % (_FORMAT, crc, ledger_id, text)


def _gone_line(ledger_id: int) -> bytes:
    line = {"format": _FORMAT, "crc32c": crc32c(b"gone %d" % ledger_id), "gone": ledger_id}
    return json.dumps(line).encode() + b"\n"
