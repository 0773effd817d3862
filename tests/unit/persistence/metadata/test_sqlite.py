"""What only the SQLite store promises: group commit, one writer, readers, foreign files."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ackgate.errors import (
    CallerError,
    ConfigurationError,
    DataDirectoryBusyError,
    MetadataStoreError,
)
from ackgate.persistence import SqliteMetadataStore


async def test_a_thousand_creates_cost_few_commits(tmp_path: Path) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "m.db")
    before = store.commits
    await asyncio.gather(*(store.create(f"/ledgers/{i}", b"x" * 300) for i in range(1000)))
    assert store.commits - before <= 20
    assert len(await store.children("/ledgers")) == 1000
    await store.close()


async def test_a_second_writer_is_told_who_holds_the_file(tmp_path: Path) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "m.db")
    with pytest.raises(DataDirectoryBusyError, match=str(os.getpid())):
        await SqliteMetadataStore.open(tmp_path / "m.db")
    await store.close()
    again = await SqliteMetadataStore.open(tmp_path / "m.db")
    await again.close()


async def test_a_reader_beside_the_writer_sees_what_is_committed(tmp_path: Path) -> None:
    writer = await SqliteMetadataStore.open(tmp_path / "m.db")
    await writer.create("/a", b"1")
    reader = await SqliteMetadataStore.open(tmp_path / "m.db", read_only=True)
    node = await reader.get("/a")
    assert node is not None
    await writer.put("/a", b"2", expected_version=0)
    node = await reader.get("/a")
    assert node is not None
    assert node.value == b"2"
    for refused in (
        reader.put("/a", b"3", expected_version=None),
        reader.create("/b", b""),
        reader.delete("/a"),
    ):
        with pytest.raises(CallerError, match="reading only"):
            await refused
    await reader.close()
    await writer.put("/a", b"3", expected_version=1)
    await writer.close()


async def test_a_reader_of_a_closed_store_changes_no_file(tmp_path: Path) -> None:
    writer = await SqliteMetadataStore.open(tmp_path / "m.db")
    await writer.create("/a", b"1", ephemeral=False)
    await writer.close()
    before = (tmp_path / "m.db").read_bytes()
    reader = await SqliteMetadataStore.open(tmp_path / "m.db", read_only=True)
    assert await reader.children("/") == ["a"]
    await reader.close()
    assert (tmp_path / "m.db").read_bytes() == before


KILLED = """
    import asyncio, os, signal, sys
    from ackgate.persistence.metadata.sqlite import SqliteMetadataStore
    async def main():
        store = await SqliteMetadataStore.open(sys.argv[1])
        await store.create("/kept", b"1")
        await store.create("/owner", b"1", ephemeral=True)
        os.kill(os.getpid(), signal.SIGKILL)
    asyncio.run(main())
"""

READING = """
    import asyncio, os, shutil, sys, tempfile  # another user may not import what lies in a home
    from ackgate.persistence.metadata.sqlite import SqliteMetadataStore
    async def main():
        if os.geteuid() == 0:
            os.setuid(65534)  # root may write everywhere
        try:
            open(os.path.join(os.path.dirname(sys.argv[1]), "probe"), "w")
        except OSError:
            pass
        else:
            raise SystemExit("the directory is not read-only")
        store = await SqliteMetadataStore.open(sys.argv[1], read_only=True)
        print(await store.children("/"))
        await store.close()
    asyncio.run(main())
"""


def run(source: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
    )


@pytest.mark.slow
async def test_ephemeral_nodes_of_a_killed_process_are_gone(tmp_path: Path) -> None:
    run(KILLED, tmp_path / "m.db")
    reader = await SqliteMetadataStore.open(tmp_path / "m.db", read_only=True)
    assert await reader.children("/") == ["kept", "owner"]
    await reader.close()
    store = await SqliteMetadataStore.open(tmp_path / "m.db")
    assert await store.children("/") == ["kept"]
    await store.close()


@pytest.mark.slow
@pytest.mark.parametrize("end", ["killed", "closed", "copied without the index"])
async def test_a_read_only_directory_can_be_read(end: str, tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents[:3]):  # so that another user gets here
        parent.chmod(0o755)
    directory = tmp_path / "data"
    directory.mkdir()
    if end != "closed":
        run(KILLED, directory / "m.db")
        if end != "killed":
            (directory / "m.db-shm").unlink()
    else:
        store = await SqliteMetadataStore.open(directory / "m.db")
        await store.create("/kept", b"1")
        await store.close()
    for file in directory.iterdir():
        file.chmod(0o444)
    directory.chmod(0o555)
    try:
        done = run(READING, directory / "m.db")
    finally:
        directory.chmod(0o755)
    assert "kept" in done.stdout, done.stderr


async def test_a_missing_file_is_not_made_by_a_reader(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"m\.db"):
        await SqliteMetadataStore.open(tmp_path / "m.db", read_only=True)
    assert not (tmp_path / "m.db").exists()


async def test_a_file_that_is_no_database_is_refused_and_left(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    path.write_bytes(b"these are not the bytes of a database, " * 100)
    before = path.read_bytes()
    with pytest.raises(MetadataStoreError, match=r"m\.db.*not a database"):
        await SqliteMetadataStore.open(path)
    assert path.read_bytes() == before


async def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with sqlite3.connect(path) as foreign:
        foreign.execute("CREATE TABLE other (x)")
    foreign.close()
    with pytest.raises(ConfigurationError, match="not a metadata store"):
        await SqliteMetadataStore.open(path)


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    store = await SqliteMetadataStore.open(path)
    await store.close()
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(ConfigurationError, match="format 99"):
        await SqliteMetadataStore.open(path)


async def test_a_directory_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(MetadataStoreError, match="nowhere"):
        await SqliteMetadataStore.open(tmp_path / "nowhere" / "m.db")


async def test_a_failed_commit_fails_every_operation_of_it_and_nothing_stays(
    tmp_path: Path,
) -> None:
    store = await SqliteMetadataStore.open(tmp_path / "m.db")
    await store.create("/a", b"1")
    intruder = sqlite3.connect(tmp_path / "m.db", isolation_level=None)
    intruder.execute(
        "CREATE TRIGGER full AFTER INSERT ON node BEGIN SELECT raise(FAIL, 'full'); END"
    )
    answers = await asyncio.gather(
        store.put("/a", b"2", expected_version=0),
        store.create("/b", b""),
        return_exceptions=True,
    )
    assert all(isinstance(answer, MetadataStoreError) for answer in answers)
    intruder.execute("DROP TRIGGER full")
    intruder.close()
    node = await store.get("/a")
    assert node is not None
    assert node.value == b"1"
    assert await store.put("/a", b"2", expected_version=0) == 1
    await store.close()
