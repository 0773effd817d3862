"""Which store a URL means."""

from __future__ import annotations

from pathlib import Path

import pytest

from ackgate.errors import ConfigurationError
from ackgate.persistence import MemoryMetadataStore, SqliteMetadataStore, open_metadata_store
from ackgate.persistence.metadata_url import MetadataScheme, parse_metadata_url
from ackgate.persistence.zookeeper.store import parse_address


def test_the_parts_of_a_url() -> None:
    assert parse_metadata_url("memory:") == (MetadataScheme.MEMORY, "")
    assert parse_metadata_url("sqlite:/a b/c:d.db") == (MetadataScheme.SQLITE, "/a b/c:d.db")
    assert parse_metadata_url("zk:a:1,b:2/root") == (MetadataScheme.ZOOKEEPER, "a:1,b:2/root")


@pytest.mark.parametrize(
    "url", ["", "sqlite", "sqlite:", "memory:x", "zk:", "localhost:2181", "etcd:http://x", "ZK:a:1"]
)
def test_anything_else_is_refused_and_quoted(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_metadata_url(url)
    assert repr(url) in str(refused.value)


async def test_stores_are_opened(tmp_path: Path) -> None:
    memory = await open_metadata_store("memory:", node_bytes_max=100)
    assert isinstance(memory, MemoryMetadataStore)
    assert memory.node_bytes_max == 100
    await memory.close()
    sqlite = await open_metadata_store(f"sqlite:{tmp_path}/with space.db")
    assert isinstance(sqlite, SqliteMetadataStore)
    await sqlite.close()


@pytest.mark.parametrize(
    ("address", "hosts", "root"),
    [
        ("a", ("a:2181",), ""),
        ("a:1,b:2", ("a:1", "b:2"), ""),
        ("a:1, b:2/root", ("a:1", "b:2"), "/root"),
        ("zk-0.zk.svc:2181/", ("zk-0.zk.svc:2181",), ""),
        ("[::1]:2181,127.0.0.1/a/b", ("[::1]:2181", "127.0.0.1:2181"), "/a/b"),
        ("a:1,a:1", ("a:1",), ""),
    ],
)
def test_the_parts_of_a_zookeeper_address(address: str, hosts: tuple[str, ...], root: str) -> None:
    assert parse_address(address) == (hosts, root)


@pytest.mark.parametrize(
    "address",
    ["/root", "a:0", "a:65536", "a:x", "a,,b", "a:1/x/", "a:1//x", "a:1/x/../y", "a b:1", "u@a:1"],
)
async def test_an_impossible_zookeeper_address_is_refused_and_quoted(address: str) -> None:
    with pytest.raises(ConfigurationError, match="metadataStoreUrl") as refused:
        await open_metadata_store(f"zk:{address}")
    assert repr(f"zk:{address}") in str(refused.value)
