"""Whose a bookie is: of the metadata store that used it first, and of no other."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ackgate.errors import ConfigurationError, StorageError
from ackgate.persistence import MemoryMetadataStore, open_bookies
from ackgate.persistence.bookies.layout import CLUSTER_FILE
from ackgate.persistence.ledgers.metadata_check import (
    CLUSTER_PATH,
    claim,
    cluster_of,
    known_cluster,
)
from ackgate.persistence.ledgers.opening import BookieOpener
from ackgate.persistence.metadata.memory import MemoryTree


async def test_a_store_gets_one_name_for_all_its_sessions() -> None:
    tree = MemoryTree()
    one, other = MemoryMetadataStore(tree), MemoryMetadataStore(tree)
    assert await known_cluster(one) is None
    name = await cluster_of(one)
    assert name == await cluster_of(other) == await known_cluster(other)
    assert await cluster_of(MemoryMetadataStore()) != name


async def test_of_two_who_name_it_at_once_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryMetadataStore()
    create = store.create

    async def comes_second(path: str, value: bytes, **options: bool) -> None:
        monkeypatch.undo()
        await store.create(path, b"the other's")
        await create(path, value, **options)

    monkeypatch.setattr(store, "create", comes_second)
    assert await cluster_of(store) == "the other's"
    stored = await store.get(CLUSTER_PATH)
    assert stored is not None
    assert stored.value == b"the other's"


async def test_a_bookie_is_its_first_clusters(tmp_path: Path) -> None:
    (bookie,) = await open_bookies([tmp_path])
    await claim(bookie, "ours")
    await claim(bookie, "ours")
    await bookie.close()
    opener = BookieOpener(is_read_only=True)
    looking = await opener.open(tmp_path)
    await claim(looking, "ours")
    for other in (BookieOpener(), opener):
        other.admit = lambda bookie: claim(bookie, "theirs")
        with pytest.raises(ConfigurationError, match=f"belongs to another cluster.*{CLUSTER_FILE}"):
            await other.open(tmp_path)
    await looking.close()


async def test_looking_leaves_no_mark(tmp_path: Path) -> None:
    (bookie,) = await open_bookies([tmp_path])
    await bookie.close()
    looking = await BookieOpener(is_read_only=True).open(tmp_path)
    await claim(looking, "ours")
    await looking.close()
    assert not (tmp_path / CLUSTER_FILE).exists()


async def test_a_damaged_mark_is_named(tmp_path: Path) -> None:
    (bookie,) = await open_bookies([tmp_path])
    for content in (b"", b"{}", b'{"format": 9, "cluster": "x"}', b"\xff"):
        (tmp_path / CLUSTER_FILE).write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"cluster\.json"):
            await claim(bookie, "ours")
    await bookie.close()


async def test_what_cannot_be_marked_now_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bookie,) = await open_bookies([tmp_path])

    async def is_full(cluster: str) -> None:
        raise StorageError(f"no room for {cluster}: {errno.ENOSPC}")

    monkeypatch.setattr(bookie, "claim", is_full)
    await claim(bookie, "ours")
    await bookie.close()
