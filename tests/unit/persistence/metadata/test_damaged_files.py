"""Whatever happens to one file of the SQLite store: all that was confirmed is there, and it is told.

Nothing is refused here: what one file has lost, the others have.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ackgate.errors import (
    AckGateError,
    ConfigurationError,
    CorruptRecordError,
    MetadataDiskFullError,
)
from ackgate.persistence import SqliteMetadataStore
from ackgate.persistence.metadata.node_table import NodeTable
from ackgate.persistence.metadata.sqlite_file import Database
from tests.corruption.damages import DAMAGES, swapper

NAME = "metadata.sqlite"
SEED = 13
Tree = dict[str, tuple[bytes, int]]


async def tree_of(store: SqliteMetadataStore, path: str = "/") -> Tree:
    """Every node's value and version."""
    found: Tree = {}
    for name in await store.children(path):
        child = f"{path.rstrip('/')}/{name}"
        node = await store.get(child)
        assert node is not None
        found[child] = node.value, node.version
        found |= await tree_of(store, child)
    return found


async def fill(store: SqliteMetadataStore, rng: random.Random, commits: int) -> None:
    """Some hundred nodes, changed and deleted again, in many commits."""
    names = [f"/{place}/node-{number}" for place in ("ledgers", "topics") for number in range(60)]
    for _ in range(commits):
        for name in rng.sample(names, 4):
            if await store.get(name) is not None and rng.random() < 0.2:
                await store.delete(name)
            else:
                await store.put(name, rng.randbytes(rng.randrange(400)), expected_version=None)


class Stored:
    """A store as it was left, and what it held."""

    def __init__(self, directory: Path, tree: Tree) -> None:
        self.directory = directory
        self.tree = tree


LEFT = ("stopped", "killed", "killed after a checkpoint", "killed when it was new")


async def made(directory: Path, left: str, seed: int) -> Stored:
    """A store, left behind in one of these ways."""
    rng = random.Random(f"{left} {seed}")
    working = directory / "working"
    working.mkdir()
    store = await SqliteMetadataStore.open(working / NAME)
    if left != "killed when it was new":
        await fill(store, rng, 25)
        await store.close()
        store = await SqliteMetadataStore.open(working / NAME)
    await fill(store, rng, 25)
    if left == "killed after a checkpoint":
        await store.checkpoint()
    tree = await tree_of(store)
    if left == "stopped":
        await store.close()
    found = directory / "left"
    shutil.copytree(working, found)  # what a killed process leaves is what is in its files
    await store.close()
    return Stored(found, tree)


def files_of(directory: Path) -> list[Path]:
    """Those that hold something that is read again."""
    unread = (f"{NAME}-lock", f"{NAME}-shm")
    return [path for path in sorted(directory.iterdir()) if path.name not in unread]


async def read_tree(directory: Path) -> Tree:
    return await opened_tree(directory, read_only=True)


async def opened_tree(directory: Path, *, read_only: bool = False) -> Tree:
    store = await SqliteMetadataStore.open(directory / NAME, read_only=read_only)
    try:
        return await tree_of(store)
    finally:
        await store.close()


async def test_pages_beyond_the_last_are_told_apart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored = await made(tmp_path, "stopped", 0)
    path = stored.directory / NAME
    content = path.read_bytes()
    page_bytes = int.from_bytes(content[16:18])
    path.write_bytes(bytes(len(content) + page_bytes))
    assert await opened_tree(stored.directory) == stored.tree
    pages = len(content) // page_bytes
    assert f"{pages} of {pages} pages, and 1 beyond the last, were damaged" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("left", LEFT)
async def test_undamaged_files_are_opened_without_a_word(
    tmp_path: Path, left: str, caplog: pytest.LogCaptureFixture
) -> None:
    stored = await made(tmp_path, left, 0)
    for _ in range(2):
        assert await opened_tree(stored.directory) == stored.tree
    assert not caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("left", LEFT)
async def test_one_damaged_file_loses_nothing_and_is_told(
    tmp_path: Path, left: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A sample: `python -m tests.corruption` has as many as one likes."""
    stored = await made(tmp_path, left, SEED)
    rng = random.Random(f"{left} {SEED}")
    names = [path.name for path in files_of(stored.directory)]
    for name, kind in itertools.product(names, [*DAMAGES, "swap"]):
        directory = tmp_path / f"{name} {kind}"
        shutil.copytree(stored.directory, directory)
        damage = swapper(files_of(directory)) if kind == "swap" else DAMAGES[kind]
        what = damage(directory / name, rng)
        if what is None:
            continue
        caplog.clear()
        story = f"seed {SEED}: {name}: {what}"
        with caplog.at_level(logging.WARNING):
            try:
                tree = await opened_tree(directory)
            except AckGateError as error:
                assert kind == "swap", f"{story}: {error}"  # noqa: PT017 - two files are damaged
                assert NAME in str(error), story  # noqa: PT017
                continue
        assert tree == stored.tree, story
        is_unread = name.endswith("-wal") and left == "killed after a checkpoint"
        assert NAME in caplog.text or is_unread, f"{story}: nothing was told"
        caplog.clear()
        assert await opened_tree(directory) == stored.tree, story
        assert not caplog.text, story
        shutil.rmtree(directory)


@pytest.mark.slow
async def test_the_issue_one_bit_at_60_percent_of_the_log_of_sqlite(tmp_path: Path) -> None:
    """Kill -9, and one bit in what SQLite has not yet brought into the database."""
    stored = await made(tmp_path, "killed", 1)
    path = stored.directory / f"{NAME}-wal"
    content = bytearray(path.read_bytes())
    content[len(content) * 6 // 10] ^= 1
    path.write_bytes(content)
    assert await read_tree(stored.directory) == stored.tree
    assert path.read_bytes() == content, "a reader has changed a file"
    assert await opened_tree(stored.directory) == stored.tree


@pytest.mark.slow
async def test_a_reader_refuses_when_our_log_is_damaged_too(tmp_path: Path) -> None:
    stored = await made(tmp_path, "killed", 1)
    (stored.directory / f"{NAME}-wal").unlink()
    path = stored.directory / f"{NAME}-log"
    content = bytearray(path.read_bytes())
    content[len(content.rstrip(b"\0")) * 3 // 4] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptRecordError, match=f"{NAME} lacks .* commits"):
        await read_tree(stored.directory)


@pytest.mark.slow
async def test_damage_that_nothing_mends_is_refused_with_a_way_back(tmp_path: Path) -> None:
    stored = await made(tmp_path, "stopped", 2)
    (stored.directory / f"{NAME}-mirror").unlink()
    path = stored.directory / NAME
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)
    for is_reading in (True, False):
        with pytest.raises(CorruptRecordError, match=f"{NAME} is damaged.*1 of") as refused:
            await SqliteMetadataStore.open(path, read_only=is_reading)
    assert "ackgate ledgers adopt" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize("left", ["stopped", "killed"])
async def test_an_older_copy_in_its_place_is_refused(tmp_path: Path, left: str) -> None:
    working = tmp_path / "data"
    working.mkdir()
    store = await SqliteMetadataStore.open(working / NAME)
    await store.create("/old", b"1")
    await store.close()
    shutil.copy(working / NAME, tmp_path / "copy")
    store = await SqliteMetadataStore.open(working / NAME)
    for number in range(100):
        await store.create(f"/new/{number}", b"2")
    if left == "killed":
        await store.checkpoint()
        await store.create("/newest", b"3")
        shutil.copytree(working, tmp_path / "killed")
    await store.close()
    directory = tmp_path / "killed" if left == "killed" else working
    shutil.copy(tmp_path / "copy", directory / NAME)
    with pytest.raises(ConfigurationError, match="is an older copy") as refused:
        await SqliteMetadataStore.open(directory / NAME)
    assert "ackgate ledgers adopt" in str(refused.value)
    # Both ways that the refusal names lead on.
    shutil.copytree(directory, tmp_path / "other")
    (directory / NAME).unlink()
    newest = await opened_tree(directory)
    assert newest["/new/99"] == (b"2", 0)
    assert ("/newest" in newest) == (left == "killed")
    for path in files_of(tmp_path / "other"):
        if path.name != NAME:
            path.unlink()
    assert await opened_tree(tmp_path / "other") == {"/old": (b"1", 0)}


async def test_a_file_without_numbers_is_brought_up_to_date(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As versions before this one wrote it, killed in the midst."""
    path = tmp_path / NAME
    old = sqlite3.connect(path, isolation_level=None)
    old.execute("PRAGMA journal_mode = WAL")
    old.execute("PRAGMA application_id = 1633905511")
    old.execute("PRAGMA user_version = 1")
    old.execute(
        "CREATE TABLE node (parent TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,"
        " version INTEGER NOT NULL, created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL,"
        " ephemeral INTEGER NOT NULL, PRIMARY KEY (parent, name))"
    )
    old.execute("INSERT INTO node VALUES ('/', 'a', x'41', 7, 1, 2, 0)")
    reader = await SqliteMetadataStore.open(path, read_only=True)
    assert await tree_of(reader) == {"/a": (b"A", 7)}
    await reader.close()
    (tmp_path / "old").mkdir()
    for each in (path, path.with_name(NAME + "-wal")):
        shutil.copy(each, tmp_path / "old")
    old.close()
    store = await SqliteMetadataStore.open(tmp_path / "old" / NAME)
    assert await tree_of(store) == {"/a": (b"A", 7)}
    assert await store.put("/a", b"B", expected_version=7) == 8
    await store.close()
    assert await opened_tree(tmp_path / "old") == {"/a": (b"B", 8)}
    assert not caplog.text


class Full:
    """A connection whose disk is full when it commits."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        if sql == "COMMIT":
            raise sqlite3.OperationalError("database or disk is full")
        return self.connection.execute(sql, *parameters)  # type: ignore[arg-type]


async def test_a_commit_that_sqlite_refuses_is_not_repeated_from_the_log(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    database = Database.open(directory / NAME)
    connection = database.connection
    table = NodeTable(connection, lambda: 0)
    database.transact(table, lambda: table.create("/a", b"1", False))
    database.connection = Full(connection)  # type: ignore[assignment]
    with pytest.raises(sqlite3.OperationalError, match="full"):
        database.transact(table, lambda: table.create("/b", b"2", False))
    database.connection = connection
    shutil.copytree(directory, tmp_path / "killed")
    database.transact(table, lambda: table.create("/c", b"3", False))
    database.close()
    assert set(await opened_tree(tmp_path / "killed")) == {"/a"}
    assert set(await opened_tree(directory)) == {"/a", "/c"}


async def test_a_checkpoint_waits_for_no_reader(tmp_path: Path) -> None:
    """One that has looked at the file holds SQLite's log; nothing is lost or told for its sake."""
    store = await SqliteMetadataStore.open(tmp_path / NAME)
    await fill(store, random.Random(1), 5)
    holding = sqlite3.connect(f"file:{tmp_path / NAME}?mode=ro", uri=True, isolation_level=None)
    holding.execute("BEGIN")
    holding.execute("SELECT count(*) FROM node").fetchone()
    await fill(store, random.Random(2), 5)
    assert not await store.checkpoint()
    await fill(store, random.Random(3), 5)
    tree = await tree_of(store)
    shutil.copytree(tmp_path, tmp_path / "killed")
    await store.close()
    shutil.copytree(tmp_path, tmp_path / "stopped", ignore=lambda *_: {"killed"})
    again = await SqliteMetadataStore.open(tmp_path / NAME)
    assert await tree_of(again) == tree
    holding.close()
    assert await again.checkpoint()
    await again.close()
    for left in ("killed", "stopped"):
        assert await opened_tree(tmp_path / left) == tree


class Writes:
    """Counts the writes to the files beside the database, and may do something before each.

    All of it runs on the store's worker thread.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.before: Callable[[int], None] | None = None
        """Called with the number of the write."""
        patch.setattr(os, "pwrite", self._watched(os.pwrite))
        patch.setattr(os, "ftruncate", self._watched(os.ftruncate))
        patch.setattr(Path, "replace", self._watched(Path.replace))

    def fail(self, failing: range) -> None:
        """Let these writes fail, counted from here."""

        def full(number: int) -> None:
            if number in failing:
                raise OSError(errno.ENOSPC, "No space left on device")

        self.count, self.before = 0, full

    def _watched(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def written(*arguments: Any) -> Any:
            if self.before is not None:
                self.count += 1
                self.before(self.count - 1)
            return write(*arguments)

        return written


@pytest.mark.slow
@pytest.mark.parametrize("failures", [1, 4, 1000])
async def test_a_full_disk_at_a_checkpoint_damages_nothing(
    tmp_path: Path, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever write fails first: killed, stopped, and stopped when there is room again."""
    disk = Writes(monkeypatch)
    first, is_reached = 0, True
    while is_reached:
        directory = tmp_path / str(first)
        store, tree = await filled(directory, random.Random(first))
        disk.fail(range(first, first + failures))
        await store.checkpoint()
        is_reached = disk.count > first
        with contextlib.suppress(MetadataDiskFullError):
            await store.create("/while-full", b"1")
            tree["/while-full"] = b"1", 0
        shutil.copytree(directory, tmp_path / f"{first} killed")
        await store.checkpoint()
        shutil.copytree(directory, tmp_path / f"{first} checkpoint")
        disk.before = None
        await store.create("/when-there-was-room", b"2")
        shutil.copytree(directory, tmp_path / f"{first} room")
        await store.close()
        for left in ("killed", "checkpoint"):
            assert await opened_tree(tmp_path / f"{first} {left}") == tree, left
        tree["/when-there-was-room"] = b"2", 0
        for left in (f"{first} room", str(first)):
            assert await opened_tree(tmp_path / left) == tree, left
        first += 1
    assert first > 3


async def filled(directory: Path, rng: random.Random) -> tuple[SqliteMetadataStore, Tree]:
    """A store with a checkpoint and commits after it."""
    directory.mkdir()
    store = await SqliteMetadataStore.open(directory / NAME)
    await fill(store, rng, 10)
    assert await store.checkpoint()
    await fill(store, rng, 10)
    return store, await tree_of(store)


@pytest.mark.slow
@pytest.mark.parametrize("wal", [1.0, 0.5, 0.0])
async def test_a_kill_at_any_write_of_an_opening_or_a_checkpoint_loses_nothing(
    tmp_path: Path, wal: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An opening reads all of SQLite's log, half of it and repeats the rest, or repeats everything."""
    writes = Writes(monkeypatch)
    directory = tmp_path / "data"
    store, _ = await filled(tmp_path / "working", random.Random(SEED))
    for place in ("ledgers", "topics"):  # on pages of their own
        for number in range(20):
            await store.put(f"/{place}/node-{number}", bytes(3000), expected_version=None)
    tree = await tree_of(store)
    shutil.copytree(tmp_path / "working", directory)
    await store.close()
    log = directory / f"{NAME}-wal"
    os.truncate(log, int(log.stat().st_size * wal))

    def copy(number: int) -> None:
        shutil.copytree(directory, tmp_path / f"killed {number}")

    writes.before = copy
    store = await SqliteMetadataStore.open(directory / NAME)
    writes.before = None
    opening = writes.count
    await store.create("/more", b"1")
    writes.before = copy
    assert await store.checkpoint()
    await store.close()
    writes.before = None
    assert opening > 3
    assert writes.count - opening > 3
    for number in range(writes.count):
        more = {"/more": (b"1", 0)} if number >= opening else {}
        assert await opened_tree(tmp_path / f"killed {number}") == tree | more, number
