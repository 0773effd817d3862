"""``ackgate ledgers`` and ``ackgate bookies`` on a real BookKeeper cluster."""

import asyncio
import base64
import contextlib
import json
from dataclasses import replace

import pytest

from ackgate.persistence import DigestType, Fragment, LedgerOptions, LedgerState
from ackgate.persistence.bookkeeper.cluster import BookKeeperCluster
from ackgate.persistence.bookkeeper.lasting_store import LastingStore
from ackgate.persistence.bookkeeper.protocol import ADD_REPLY, Code, EntryCodec, Flag
from ackgate.persistence.zookeeper.store import ZooKeeperMetadataStore
from ackgate.testing import free_ports

pytestmark = pytest.mark.slow


async def written(client, count, **options):
    writer = await client.create(LedgerOptions(3, 3, 2, **options))
    await writer.append([b"entry %d" % i for i in range(count)]).durable
    return writer


async def test_ledgers_of_a_cluster_are_listed_shown_and_read(real_bookkeeper, connect, ackgate):
    client = await connect(real_bookkeeper)
    closed = await written(client, 10)
    await closed.close()
    custom = {"application": b"a test"}
    writer = await written(client, 5, custom_metadata=custom)

    listed = await ackgate("ledgers", "list", "--metadata", real_bookkeeper.uri)
    lines = listed.out.splitlines()
    head = ["ledger", "state", "kind", "entries", "size", "E/W/A", "created", "bookies", "of"]
    assert (listed.code, lines[0].split()) == (0, head)
    ids = {bookie.bookie_id for bookie in real_bookkeeper.bookies}
    [row] = [line.split() for line in lines if line.split()[0] == str(closed.ledger_id)]
    assert row[1:4] == ["CLOSED", "other", "10"]
    assert set(row[-2].split(",")) == ids

    rows = await ackgate(
        *("ledgers", "list", "--metadata", real_bookkeeper.uri, "--state", "open", "--json")
    )
    [row] = [row for row in rows.json if row["ledgerId"] == writer.ledger_id]
    assert (row["entries"], row["ensembleSize"], row["ackQuorum"]) == (5, 3, 2)
    assert (row["customMetadata"], row["error"]) == ({"application": "a test"}, None)

    shown = await ackgate("ledgers", "show", writer.ledger_id, "--metadata", real_bookkeeper.uri)
    assert shown.code == 0
    assert all(bookie_id in shown.out for bookie_id in ids)
    assert "a test" in shown.out

    read = await ackgate(
        *("ledgers", "read", writer.ledger_id, "1..3", "--json", "--payload"),
        *("--metadata", real_bookkeeper.uri),
    )
    payloads = [base64.b64decode(json.loads(line)["payload"]) for line in read.out.splitlines()]
    assert payloads == [b"entry 1", b"entry 2", b"entry 3"]
    plain = await ackgate("ledgers", "read", writer.ledger_id, 0, "--metadata", real_bookkeeper.uri)
    assert (plain.code, plain.out.split()[0]) == (0, f"{writer.ledger_id}:0")
    hexed = await ackgate(
        *("ledgers", "read", writer.ledger_id, 4, "--hex", "--metadata", real_bookkeeper.uri)
    )
    assert b"entry 4".hex(" ") in hexed.out

    assert await writer.add_entry(b"it was not fenced") == 5
    assert (await client.metadata(writer.ledger_id)).state is LedgerState.OPEN


async def damage(bookie_id, ledger_id, entry_id):
    """The bookie gets a copy that its digest does not fit, and keeps this first one. It does not look."""
    host, port = bookie_id.split(":")
    codec = EntryCodec(ledger_id, DigestType.CRC32C, b"not needed")
    parts = codec.add_parts(entry_id, entry_id - 1, 0, [b"damaged"], Flag.RECOVERY_ADD)
    frame = b"".join(parts)[:-1] + b"?"
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(frame)
    reply = await reader.readexactly(ADD_REPLY.size)
    writer.close()
    await writer.wait_closed()
    assert ADD_REPLY.unpack(reply)[2] == Code.OK


async def test_missing_and_damaged_copies_are_named(real_bookkeeper, connect, ackgate, tmp_path):
    client = await connect(real_bookkeeper)
    good = await written(client, 200)  # still written
    bad = await client.create(LedgerOptions(3, 3, 2, password=b"not needed"))
    first, second, third = (await client.metadata(bad.ledger_id)).fragments[0].ensemble
    await damage(second, bad.ledger_id, 7)
    await bad.append([b"entry %d" % i for i in range(50)]).durable
    await bad.close()
    narrow = await client.create(LedgerOptions(2, 2, 2))
    await narrow.append([b"n%d" % i for i in range(10)]).durable
    await narrow.close()
    striped = await client.create(LedgerOptions(3, 2, 2))
    await striped.append([b"s%d" % i for i in range(30)]).durable
    await striped.close()
    config = tmp_path / "broker.conf"
    config.write_text(f"bookkeeperMetadataServiceUri={real_bookkeeper.uri}\n")

    whole = await ackgate(
        *("ledgers", "verify", good.ledger_id, narrow.ledger_id, striped.ledger_id),
        *("--config", config),
    )
    assert (whole.code, whole.out) == (0, "3 ledgers checked, all copies are good\n")

    told = await ackgate(
        "ledgers", "verify", bad.ledger_id, "--metadata", real_bookkeeper.uri, "--json"
    )
    assert told.code == 1
    [ledger] = told.json["ledgers"]
    copies = {copy["bookie"]: copy for copy in ledger["fragments"][0]["copies"]}
    assert (copies[second]["good"], copies[second]["damaged"]) == (49, [[7, 7]])
    assert copies[first]["good"] == copies[third]["good"] == 50
    assert ledger["fragments"][0]["withoutGoodCopy"] == []

    # A bookie that has nothing of it takes the place of one.
    store = LastingStore(
        await ZooKeeperMetadataStore.open(real_bookkeeper.zookeeper.connection_string)
    )
    nodes = await BookKeeperCluster.open(store, "/ledgers")
    stored = await nodes.read(narrow.ledger_id)
    [other] = {b.bookie_id for b in real_bookkeeper.bookies} - set(
        stored.metadata.fragments[0].ensemble
    )
    kept = stored.metadata.fragments[0].ensemble[0]
    await nodes.replace(stored, replace(stored.metadata, fragments=(Fragment(0, (kept, other)),)))
    await nodes.close()
    checked = await ackgate(
        *("bookies", "check", "--ledger", narrow.ledger_id, "--metadata", real_bookkeeper.uri)
    )
    assert checked.code == 1
    [row] = [
        line for line in checked.out.splitlines() if line.startswith(f"{narrow.ledger_id:>6} ")
    ]
    assert row.split()[3:7] == [other, "0-9", "(10)", "-"]
    assert checked.out.endswith("1 ledger checked, 1 with copies missing or damaged\n")
    gone = await ackgate("ledgers", "verify", 2**30, "--metadata", real_bookkeeper.uri)
    assert (gone.code, "does not exist" in gone.out) == (1, True)
    assert await good.add_entry(b"it was not fenced") == 200

    for arguments in (("--metadata", real_bookkeeper.uri), ("--config", config)):
        refused = await ackgate("bookies", "repair", *arguments)
        [line] = refused.err.splitlines()
        assert (refused.code, "bookkeeper shell recover" in line) == (2, True)


async def test_bookies_of_a_cluster_say_how_much_room_they_have(real_bookkeeper, ackgate):
    listed = await ackgate("bookies", "list", "--metadata", real_bookkeeper.uri)
    assert (listed.code, listed.err) == (0, "")
    for bookie in real_bookkeeper.bookies:
        [line] = [line for line in listed.out.splitlines() if line.startswith(bookie.bookie_id)]
        assert line.split()[1:3] == [f"127.0.0.1:{bookie.port}", "writable"]
    rows = (await ackgate("bookies", "list", "--metadata", real_bookkeeper.uri, "--json")).json
    assert {row["bookie"] for row in rows} == {b.bookie_id for b in real_bookkeeper.bookies}
    for row in rows:
        assert 0 < row["freeBytes"] <= row["totalBytes"]
        assert row["endpoints"][0]["protocol"] == "bookie-rpc"


async def test_a_bookie_that_is_none_is_named(real_bookkeeper, ackgate):
    """Something else has taken its port: here a server that greets as web servers do."""

    async def greet(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    store = await ZooKeeperMetadataStore.open(real_bookkeeper.zookeeper.connection_string)
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    bookie_id = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await store.create(f"/ledgers/available/{bookie_id}", b"", ephemeral=True)
    try:
        told = await ackgate("bookies", "list", "--metadata", real_bookkeeper.uri)
        assert told.code == 2
        [line] = told.err.splitlines()
        assert f"bookie {bookie_id}: not BookKeeper's protocol" in line
        assert all(bookie.bookie_id in told.out for bookie in real_bookkeeper.bookies)
    finally:
        await store.close()
        server.close()


@contextlib.asynccontextmanager
async def root(cluster, path, layout):
    """A root beside the cluster's own."""
    store = await ZooKeeperMetadataStore.open(cluster.zookeeper.connection_string)
    await store.create(f"{path}/LAYOUT", layout)
    try:
        yield cluster.uri.replace("/ledgers", path)
    finally:
        await store.delete(f"{path}/LAYOUT")
        await store.close()


async def test_what_cannot_be_meant_is_one_line_and_code_2(
    real_bookkeeper, connect, ackgate, monkeypatch
):
    client = await connect(real_bookkeeper)
    secret = await written(client, 3, password=b"secret")
    uri = real_bookkeeper.uri
    flat = b"1\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1"

    async def refused(*arguments):
        told = await ackgate(*arguments)
        [line] = told.err.splitlines()
        assert told.code == 2, told
        assert "secret" not in line
        return line

    assert "/nowhere" in await refused(
        "ledgers", "list", "--metadata", uri.replace("/ledgers", "/nowhere")
    )
    assert "zk+hierarchical://HOST" in await refused("bookies", "list", "--metadata", "zk:x")
    async with root(real_bookkeeper, "/flat", flat) as other:
        assert "FlatLedgerManagerFactory" in await refused("ledgers", "list", "--metadata", other)
    assert "password" in await refused("ledgers", "read", secret.ledger_id, "--metadata", uri)
    assert "--data-dir" in await refused("ledgers", "list", "--metadata", uri, "--data-dir", "data")
    monkeypatch.setenv("ACKGATE_managedLedgerPassword", "secret")
    told = await ackgate("ledgers", "read", secret.ledger_id, "--metadata", uri)
    assert (told.code, len(told.out.splitlines())) == (0, 3)


async def test_an_address_where_no_zookeeper_is(tmp_path, ackgate):
    config = tmp_path / "broker.conf"
    config.write_text("metadataStoreOperationTimeoutSeconds=1\n")
    [port] = free_ports(1)
    uri = f"zk+hierarchical://127.0.0.1:{port}/ledgers"
    told = await ackgate("ledgers", "list", "--metadata", uri, "--config", config)
    [line] = told.err.splitlines()
    assert (told.code, f"--metadata {uri}" in line) == (2, True)
