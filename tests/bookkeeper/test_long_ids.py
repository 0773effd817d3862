"""Ledgers with ids of 2^31 and more, and the layout that gives every ledger a long path."""

import pytest

from ackgate.errors import NoSuchLedgerError
from ackgate.persistence import LedgerOptions
from ackgate.persistence.zookeeper.store import ZooKeeperMetadataStore
from tests.support.bookkeeper import JavaClient
from tests.support.bookkeeper.oracle import Entry

pytestmark = pytest.mark.slow

ONE = (1, 1, 1)


@pytest.mark.parametrize("scheme", ["hierarchical", "longhierarchical"])
async def test_long_ids_are_shared_with_the_java_client(own_bookkeeper, connect, tmp_path, scheme):
    cluster = own_bookkeeper(bookies=1, scheme=scheme)
    store = await ZooKeeperMetadataStore.open(cluster.zookeeper.connection_string)
    java = JavaClient(cluster, tmp_path / "java")
    try:
        short = java.write("CRC32C", "", ONE, 3, closes=True)
        await store.create("/ledgers/idgen-long", b"")  # as it is when the short ids are used up
        by_java = java.write("CRC32C", "", ONE, 3, closes=False)
        client = await connect(cluster)
        writer = await client.create(LedgerOptions(*ONE))
        await writer.append([b"entry %d" % i for i in range(3)]).durable

        assert short < 2**31 <= by_java
        assert writer.ledger_id >= 2**31
        assert await client.ledger_ids() == sorted({short, by_java, writer.ledger_id})
        for ledger_id in (short, by_java):
            reader = await client.open(ledger_id)
            assert [e.payload for e in await reader.read(0, 2)] == [
                b"entry 0",
                b"entry 1",
                b"entry 2",
            ]
        wanted = [Entry.of(i, b"entry %d" % i) for i in range(3)]
        assert java.read(writer.ledger_id, "CRC32C", "") == wanted
        await client.delete(by_java)
        assert await client.ledger_ids() == sorted({short, writer.ledger_id})
        with pytest.raises(NoSuchLedgerError):
            await client.open(by_java)
    finally:
        java.close()
        await store.close()
