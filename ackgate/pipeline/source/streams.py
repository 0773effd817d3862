"""What streams of any ledgers share: offsets over the topics' ends, and gaps that trimming leaves.

Edge: the base of Spark's stream readers; writes the files of `gapsPath`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader

from ackgate.cursor import EARLIEST, Position
from ackgate.errors import CallerError, CorruptRecordError, StorageError
from ackgate.pipeline.schema.addresses import is_remote, shown_address
from ackgate.pipeline.schema.options import OF_READS
from ackgate.pipeline.source.stream_offsets import (
    behind,
    earliest,
    encode_offset,
    end_of,
    end_within,
    entry_count,
    is_trimmed,
    shares,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ackgate.pipeline.schema.options import SourceOptions
    from ackgate.pipeline.source.stream_offsets import LedgerEnd

_NAME_BYTES: Final = 12
"""Bytes of the digest of a topic's name that stand in a file's name."""

STREAMED: Final = ("messages", "unpacked_messages", "delivery_journal")

log = logging.getLogger(__name__)


class Gap(NamedTuple):
    """Entries that were there, perhaps, and that the stream will never have."""

    topic: str
    behind: Position
    """The last entry that the stream has read, or the start of a ledger (entry -1)."""
    up_to: Position
    """Nothing in front of this is left, but for what the stream has read."""

    def __str__(self) -> str:
        return (
            f"{self.topic}: entries after {self.behind} were trimmed before the stream has read "
            f"them; what is left begins with ledger {self.up_to.ledger_id}"
        )

    @property
    def file_name(self) -> str:
        """The same for the same gap."""
        topic = hashlib.sha256(self.topic.encode()).hexdigest()[: 2 * _NAME_BYTES]
        return f"gap-{topic}-{self.behind.ledger_id}-{self.behind.entry_id}.json"

    def row(self) -> dict[str, str | int]:
        """The gap as the row of its file."""
        return {
            "topic": self.topic,
            "behind_ledger_id": self.behind.ledger_id,
            "behind_entry_id": self.behind.entry_id,
            "up_to_ledger_id": self.up_to.ledger_id,
            "up_to_entry_id": self.up_to.entry_id,
        }


def write_gap(directory: str, gap: Gap) -> None:
    text = json.dumps(gap.row()) + "\n"
    try:
        if is_remote(directory):
            import fsspec  # noqa: PLC0415 - only for data that lies elsewhere

            files, path = fsspec.core.url_to_fs(directory)
            files.makedirs(path, exist_ok=True)
            files.pipe_file(f"{path.rstrip('/')}/{gap.file_name}", text.encode())
            return
        Path(directory).mkdir(parents=True, exist_ok=True)
        target = Path(directory) / gap.file_name
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        beside.write_text(text)
        beside.replace(target)
    except (OSError, ValueError, ImportError) as error:
        raise StorageError(f"{shown_address(directory)} cannot be written: {error}") from error


class TopicStream(DataSourceStreamReader):
    """One stream of one table, up to `partitions` and `read`."""

    def __init__(self, options: SourceOptions) -> None:
        """Raise `CallerError` for a table that does not grow by entries."""
        if options.table.name not in STREAMED:
            known = ", ".join(STREAMED[:-1])
            raise CallerError(
                f"table {options.table.name} cannot be streamed; {known} and {STREAMED[-1]} can"
            )
        options.refuse(OF_READS, "a stream")
        self._options = options
        self._at: dict[str, Position] | None = None
        """Up to where batches were planned; None while that is unknown."""

    @abstractmethod
    def _ends(self) -> dict[str, list[LedgerEnd]]:
        """The ledgers of each topic, in order, and up to where each is confirmed."""

    def initialOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        """Where a stream without a checkpoint begins."""
        options = self._options
        found = {}
        for topic, ledgers in self._ends().items():
            if options.starting_position is not None:
                found[topic] = behind(options.starting_position)
            else:
                found[topic] = end_of(ledgers) if options.starts_at_end else earliest(ledgers)
        self._at = found
        return encode_offset(found)

    def latestOffset(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        """How far the next batch goes."""
        ends, at = self._ends(), self._at
        most = self._options.max_entries_per_trigger
        if most is None or at is None:
            found = {t: max(end_of(ends[t]), (at or {}).get(t, EARLIEST)) for t in ends}
        else:
            starts = {topic: at.get(topic, earliest(ends[topic])) for topic in ends}
            share = shares({t: entry_count(starts[t], ends[t]) for t in ends}, most)
            found = {t: end_within(starts[t], ends[t], share[t]) for t in ends}
        # A topic that is gone stays where it was.
        return encode_offset({**(at or {}), **found})

    def _note_gap(
        self, topic: str, ledgers: Sequence[LedgerEnd], start: Position, stop: Position
    ) -> None:
        """Report entries between these that were trimmed. Raises `CorruptRecordError` naming them."""
        if not is_trimmed(start, ledgers) or start >= stop:
            return
        gap = Gap(topic, start, Position(ledgers[0].ledger_id, 0))
        if self._options.gaps_path is None:
            raise CorruptRecordError(f"{gap} (option onTrimmed=report goes on)")
        write_gap(self._options.gaps_path, gap)
        log.warning("gap in the stream: %s", gap)
