"""What the embedded metadata store says when its disk is full: that, and not that it failed."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest

from ackgate.broker.wire import ServerError, server_error
from ackgate.errors import DiskFullError, MetadataStoreError
from ackgate.persistence.metadata.sqlite_file import translated


def full_database() -> sqlite3.Error:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (x)")
    connection.execute("PRAGMA max_page_count = 3")
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    connection.close()
    return caught.value


@pytest.mark.parametrize(
    "error", [full_database(), OSError(errno.ENOSPC, "No space left"), OSError(errno.EDQUOT, "")]
)
def test_a_full_disk_is_called_so(error: sqlite3.Error | OSError) -> None:
    ours = translated(Path("metadata.sqlite"), error)
    assert isinstance(ours, MetadataStoreError)
    assert isinstance(ours, DiskFullError)
    assert str(ours).startswith("the disk is full: metadata.sqlite: ")
    assert server_error(ours) is ServerError.PERSISTENCE


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O"), sqlite3.OperationalError("locked")])
def test_other_failures_are_the_stores(error: sqlite3.Error | OSError) -> None:
    ours = translated(Path("metadata.sqlite"), error)
    assert not isinstance(ours, DiskFullError)
    assert server_error(ours) is ServerError.METADATA
