"""What a stream has missed because it was trimmed first: a file of JSON for each gap.

Edge: writes below the option ``gapsPath``, a path of this machine or an address that fsspec opens;
``spark.read.json`` makes a table of it. A batch that is planned again writes the same file again.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.errors import StorageError
from ackgate.pipeline.schema.addresses import is_remote, shown_address

if TYPE_CHECKING:
    from ackgate.cursor import Position

_NAME_BYTES: Final = 12
"""Of the digest of a topic's name in the name of a file."""


class Gap(NamedTuple):
    """Entries that were there, perhaps, and that the stream will never have."""

    topic: str
    behind: Position
    """The last entry that the stream has read, or the start of a ledger (entry -1)."""
    up_to: Position
    """Nothing in front of this is left, but for what the stream has read."""

    def __str__(self) -> str:
        return (
            f"{self.topic}: entries behind {self.behind} were trimmed before the stream has read "
            f"them; what is left begins with ledger {self.up_to.ledger_id}"
        )

    @property
    def file_name(self) -> str:
        """The same for the same gap."""
        topic = hashlib.sha256(self.topic.encode()).hexdigest()[: 2 * _NAME_BYTES]
        return f"gap-{topic}-{self.behind.ledger_id}-{self.behind.entry_id}.json"

    def row(self) -> dict[str, str | int]:
        """As it is written."""
        return {
            "topic": self.topic,
            "behind_ledger_id": self.behind.ledger_id,
            "behind_entry_id": self.behind.entry_id,
            "up_to_ledger_id": self.up_to.ledger_id,
            "up_to_entry_id": self.up_to.entry_id,
        }


def write_gap(directory: str, gap: Gap) -> None:
    """Raises `StorageError`."""
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
