"""The metadata stores: operations a second, many under way at a time.

ZooKeeper through our bridge and through kazoo as it comes, against the same server; the embedded
SQLite file beside them. Each write is durable before it is answered.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kazoo.client import KazooClient

from ackgate.persistence import SqliteMetadataStore, open_metadata_store
from ackgate.testing import ZooKeeperFailedError, ZooKeeperProcess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ackgate.persistence import MetadataStore

VALUE: Final = bytes(range(200))
NODES: Final = 100
UNDER_WAY: Final = 500


def run(*, smoke: bool) -> dict[str, Any]:
    """Figures of every store."""
    count = 200 if smoke else 20_000
    with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as name:
        directory = Path(name)
        figures = {"sqlite": asyncio.run(_sqlite(directory, count))}
        try:
            with ZooKeeperProcess(directory / "zookeeper") as server:
                address = server.connection_string
                figures["zookeeper"] = asyncio.run(_zookeeper(f"zk:{address}/ours", count))
                figures["zookeeper, kazoo alone"] = _kazoo(f"{address}/kazoo", count)
        except ZooKeeperFailedError as error:
            figures["zookeeper"] = {"skipped": str(error).splitlines()[0]}
    return figures


async def _sqlite(directory: Path, count: int) -> dict[str, Any]:
    return await _measure(await SqliteMetadataStore.open(directory / "metadata.sqlite"), count)


async def _zookeeper(url: str, count: int) -> dict[str, Any]:
    return await _measure(await open_metadata_store(url), count)


async def _measure(store: MetadataStore, count: int) -> dict[str, Any]:
    try:
        return {
            "puts_per_s": await _rate(
                lambda number: store.put(_path(number), VALUE, expected_version=None), count
            ),
            "gets_per_s": await _rate(lambda number: store.get(_path(number)), count),
        }
    finally:
        await store.close()


async def _rate(operation: Callable[[int], Awaitable[object]], count: int) -> int:
    for number in range(NODES):  # the nodes are there, and everything is warm
        await operation(number)
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await operation(number)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(min(UNDER_WAY, count))))
    return round(count / (time.perf_counter() - began))


def _kazoo(hosts: str, count: int) -> dict[str, Any]:
    """As many under way at a time as kazoo takes."""
    address, _, root = hosts.partition("/")
    client = KazooClient(address)
    client.start()
    try:
        client.ensure_path(f"/{root}")
        client.chroot = f"/{root}"
        for number in range(NODES):
            client.create(_path(number), VALUE, makepath=True)
        figures = {}
        for what, operation in (
            ("puts_per_s", lambda path: client.set_async(path, VALUE)),
            ("gets_per_s", client.get_async),
        ):
            began = time.perf_counter()
            for start in range(0, count, UNDER_WAY):
                numbers = range(start, min(start + UNDER_WAY, count))
                for answer in [operation(_path(number)) for number in numbers]:
                    answer.get()
            figures[what] = round(count / (time.perf_counter() - began))
        return figures
    finally:
        client.stop()
        client.close()


def _path(number: int) -> str:
    return f"/bench/{number % NODES}"


if __name__ == "__main__":
    print(json.dumps(run(smoke="--smoke" in sys.argv), indent=2))
