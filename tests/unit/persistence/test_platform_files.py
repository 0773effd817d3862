"""What each operating system is asked for to keep files: macOS and Windows by their calls alone."""

from __future__ import annotations

import ast
import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ackgate
from ackgate import open_embedded, until_durable
from ackgate.cursor import MessageLedgers, Position
from ackgate.errors import ConfigurationError
from ackgate.persistence.system import platform_files

PACKAGE = Path(ackgate.__file__).parent


class MacOs:
    """A Linux that looks like a macOS to code that writes files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int | None = None) -> None:
        self.full_syncs = 0
        self.plain_syncs = 0
        self.error = error
        self._fsync = os.fsync
        file_calls = platform_files.sync_calls("darwin")
        monkeypatch.delattr(os, "fdatasync")
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(fcntl, "fcntl", self.fcntl)
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(platform_files, "sync_file", file_calls[0])
        monkeypatch.setattr(platform_files, "sync_names", file_calls[1])

    def fcntl(self, descriptor: int, command: int) -> int:
        assert command == 51
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        self.full_syncs += 1
        self._fsync(descriptor)
        return 0

    def fsync(self, descriptor: int) -> None:
        self.plain_syncs += 1
        self._fsync(descriptor)


async def ack_once(directory: Path) -> None:
    ledgers = MessageLedgers()
    ledgers.open_ledger(7)
    ledgers.add_entries(7, 100)
    async with open_embedded(directory) as storage:
        store = await storage.open_cursor("t", "s", ledgers, create_at=Position(7, -1))
        store.cursor.ack(Position(7, store.cursor.version))
        assert (await until_durable(store)).is_complete


async def test_macos_has_no_fdatasync_and_gets_a_full_sync_of_files_and_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    macos = MacOs(monkeypatch)
    await ack_once(tmp_path)
    assert macos.full_syncs > 3
    assert macos.plain_syncs == 0, "fsync leaves bytes in the drive there"
    await ack_once(tmp_path)


@pytest.mark.parametrize("answer", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
async def test_a_file_system_without_a_full_sync_gets_a_plain_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    macos = MacOs(monkeypatch, answer)
    await ack_once(tmp_path)
    assert macos.plain_syncs > 3


def test_a_full_sync_that_fails_is_not_tried_in_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    macos = MacOs(monkeypatch, errno.EIO)
    with (tmp_path / "file").open("wb") as file, pytest.raises(OSError, match="Input/output"):
        platform_files.sync_file(file.fileno())
    assert macos.plain_syncs == 0


def test_linux_gets_fdatasync() -> None:
    assert platform_files.sync_calls("linux") == (os.fdatasync, os.fsync)


async def test_elsewhere_nothing_is_opened_and_a_sentence_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigurationError, match="on Linux and macOS only, and this is win32"):
        await ack_once(tmp_path / "data")
    assert list(tmp_path.iterdir()) == []
    for sync in platform_files.sync_calls("freebsd14"):
        with pytest.raises(ConfigurationError, match="freebsd14"):
            sync(-1)


@pytest.mark.slow
def test_elsewhere_the_broker_says_so_in_one_line(tmp_path: Path) -> None:
    as_on_windows = (
        "import asyncio, logging, sys; sys.modules['fcntl'] = None;"
        "from ackgate.__main__ import main; import ackgate.broker.run;"
        "sys.platform = 'win32';"
        f"sys.exit(main(['broker', '--data-dir', {str(tmp_path / 'data')!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", as_on_windows], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "ackgate keeps data on Linux and macOS only, and this is win32" in line
    assert not (tmp_path / "data").exists()


def test_nobody_else_decides_how_to_sync_or_lock() -> None:
    """A call of the operating system's in some other file would be one that macOS may not have."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_sync = isinstance(node, ast.Attribute) and node.attr in {"fsync", "fdatasync"}
            is_import = isinstance(node, ast.Import) and node.names[0].name == "fcntl"
            if is_sync or is_import:
                found.add(path.relative_to(PACKAGE).as_posix())
    assert found == {"persistence/system/platform_files.py"}
