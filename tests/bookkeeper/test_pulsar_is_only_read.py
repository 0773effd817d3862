"""A Pulsar cluster's nodes and ledgers, made by hand on real bookies, and looked at: nothing changes.

ZooKeeper takes writes from the test only, and bookies' journals stay as they are.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import pickle
import socketserver
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, make_acl, make_digest_acl

from ackgate.__main__ import main
from ackgate.bookkeeper import BookKeeperClient, LedgerOptions, LedgerWriter
from ackgate.cursor import Position
from ackgate.errors import (
    CallerError,
    ConfigurationError,
    CorruptRecordError,
    MetadataStoreError,
    NoSuchLedgerError,
)
from ackgate.persistence.bookkeeper.cluster import ledger_node
from ackgate.persistence.messages.frame import seal_entry
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.persistence.proto.message_pb2 import MessageMetadata
from ackgate.pulsar import PulsarCluster, PulsarTopic, report_topic, topic_ledgers
from ackgate.pulsar.nodes import PulsarNodes
from ackgate.pulsar.proto import stored_pb2 as pb
from tests.support.bookkeeper import RealBookKeeper

TOPIC = "persistent://public/default/orders"
NAME = "public/default/persistent/orders"
PATH = f"/managed-ledgers/{NAME}"
READ_ONLY = [make_acl("world", "anyone", read=True), make_digest_acl("test", "secret", all=True)]
OPTIONS = {"ensemble_size": 2, "write_quorum": 2, "ack_quorum": 1}


def custom(**more: str) -> dict[str, bytes]:
    names = {"application": "pulsar", "component": "managed-ledger", "pulsar/managed-ledger": NAME}
    return {key: value.encode() for key, value in {**names, **more}.items()}


def state(mark_delete: tuple[int, int], *ranges: tuple[int, int, int]) -> bytes:
    found = pb.PositionInfo(ledgerId=mark_delete[0], entryId=mark_delete[1])
    for ledger_id, first, last in ranges:
        found.individualDeletedMessages.add(
            lowerEndpoint=pb.NestedPositionInfo(ledgerId=ledger_id, entryId=first - 1),
            upperEndpoint=pb.NestedPositionInfo(ledgerId=ledger_id, entryId=last),
        )
    return found.SerializeToString()


def message(number: int) -> bytes:
    about = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1_000 + number)
    return seal_entry(about.SerializeToString(), b"message %d" % number)


class Made:
    """A topic with a closed and an open ledger; and its writers, which live."""

    def __init__(self, zookeeper: KazooClient, closed: LedgerWriter, opened: LedgerWriter) -> None:
        self.zookeeper = zookeeper
        self.closed = closed
        self.opened = opened
        self.cursor: LedgerWriter

    def put(self, path: str, value: bytes) -> None:
        if self.zookeeper.exists(path):
            self.zookeeper.set(path, value)
        else:
            self.zookeeper.create(path, value, acl=READ_ONLY, makepath=True)

    def put_cursor(self, name: str, ledger_id: int, mark_delete: tuple[int, int]) -> None:
        node = pb.ManagedCursorInfo(
            cursorsLedgerId=ledger_id,
            markDeleteLedgerId=mark_delete[0],
            markDeleteEntryId=mark_delete[1],
        )
        self.put(f"{PATH}/{name}", node.SerializeToString())


@pytest.fixture
def zookeeper(real_bookkeeper: RealBookKeeper) -> Iterator[KazooClient]:
    """Removes what Pulsar's part of it was, at the end."""
    client = KazooClient(
        real_bookkeeper.zookeeper.connection_string, auth_data=[("digest", "test:secret")]
    )
    client.start()
    yield client
    client.delete("/managed-ledgers", recursive=True)
    client.delete("/admin", recursive=True)
    client.stop()
    client.close()


@pytest.fixture
async def made(real_bookkeeper: RealBookKeeper, zookeeper: KazooClient) -> AsyncIterator[Made]:
    client = await BookKeeperClient.connect(real_bookkeeper.uri)
    closed, opened = [
        await client.create(LedgerOptions(**OPTIONS, custom_metadata=custom())) for _ in range(2)
    ]
    await closed.append([message(n) for n in range(40)]).durable
    await closed.close()
    await opened.append([message(n) for n in range(30)]).durable
    here = Made(zookeeper, closed, opened)
    node = pb.ManagedLedgerInfo()
    node.ledgerInfo.add(ledgerId=closed.ledger_id, entries=40, size=390, timestamp=1_000)
    node.ledgerInfo.add(ledgerId=opened.ledger_id, timestamp=0)
    here.put(PATH, node.SerializeToString())
    policies = {"retention_policies": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 5}}
    here.put("/admin/policies/public/default", json.dumps(policies).encode())
    here.cursor = await client.create(
        LedgerOptions(**OPTIONS, custom_metadata=custom(**{"pulsar/cursor": "worker"}))
    )
    a, b = closed.ledger_id, opened.ledger_id
    await here.cursor.add_entry(state((a, 3)))
    await here.cursor.add_entry(state((a, 9), (a, 15, 19), (b, 5, 5), (b, 7, 8)))
    here.put_cursor("worker", here.cursor.ledger_id, (a, -1))
    yield here
    for writer in (closed, opened, here.cursor):
        await client.delete(writer.ledger_id)
    await client.close()


@pytest.fixture
async def cluster(made: Made, real_bookkeeper: RealBookKeeper) -> AsyncIterator[PulsarCluster]:
    async with await PulsarCluster.connect(metadata_of(real_bookkeeper)) as cluster:
        yield cluster


def metadata_of(bookkeeper: RealBookKeeper) -> str:
    return f"zk:{bookkeeper.zookeeper.connection_string}"


def every_node(zookeeper: KazooClient, path: str = "/") -> Iterator[tuple[str, Any]]:
    """Paths, each with its value, how often it was changed, and how often its children were."""
    value, stat = zookeeper.get(path)
    yield path, (value, stat.mzxid, stat.version, stat.pzxid)
    for name in zookeeper.get_children(path):
        yield from every_node(zookeeper, f"{path.rstrip('/')}/{name}")


def journals(bookkeeper: RealBookKeeper) -> dict[Path, str]:
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for bookie in bookkeeper.bookies
        for path in bookie.data.rglob("*.txn")
    }


def protected(zookeeper: KazooClient, path: str, acl: list[ACL]) -> None:
    zookeeper.set_acls(path, acl)
    for name in zookeeper.get_children(path):
        protected(zookeeper, f"{path}/{name}", acl)


async def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The command has a loop of its own."""
    code = await asyncio.to_thread(main, ["pulsar", *words])
    return code, *capsys.readouterr()


async def test_nothing_is_written_and_nothing_is_fenced(
    made: Made, real_bookkeeper: RealBookKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = metadata_of(real_bookkeeper)
    protected(made.zookeeper, "/ledgers", READ_ONLY)
    nodes, stored = dict(every_node(made.zookeeper)), journals(real_bookkeeper)
    assert len(stored) >= 3
    try:
        async with await PulsarCluster.connect(metadata) as cluster:
            [topic] = [topic async for topic in cluster.topics()]
            report = await report_topic(cluster, topic)
            rows = await topic_ledgers(cluster, topic, await cluster.policies(topic))
            views = [view async for view in cluster.ledgers(orphans_after_ms=0)]
            entries = [e async for e in cluster.entries(made.opened.ledger_id)]
        for words in (["topics"], ["stats", TOPIC], ["cursors"], ["ledgers", TOPIC], ["ledgers"]):
            assert (await command(capsys, *words, "--metadata", metadata))[0] == 0
        assert dict(every_node(made.zookeeper)) == nodes
        assert journals(real_bookkeeper) == stored
    finally:
        protected(made.zookeeper, "/ledgers", [make_acl("world", "anyone", all=True)])

    a, b = made.closed.ledger_id, made.opened.ledger_id
    assert str(topic) == TOPIC
    assert dict(report.view.entry_counts) == {a: 40, b: 30}
    assert report.view.bytes == 390 + sum(len(e.payload) for e in entries)
    [subscription] = report.subscriptions
    cursor = subscription.cursor
    assert cursor.acks.ranges() == [(a, 15, 19), (b, 5, 5), (b, 7, 8)]
    assert (cursor.acks.mark_delete, cursor.source) == (Position(a, 9), "ledger")
    assert cursor.statistics.hole_count == 3
    assert cursor.statistics.backlog_entries == 40 - 10 - 5 + 30 - 3
    assert (cursor.written_entries, cursor.ranges_then) == (2, 0)
    assert [(r.ledger_id, r.kind, r.entries, r.needed_by, r.retained_until_ms) for r in rows] == [
        (a, "messages", 40, ("worker",), 601_000),
        (b, "messages", 30, ("worker",), None),
        (made.cursor.ledger_id, "cursor", 2, (), None),
    ]
    ours = {v.metadata.ledger_id: v for v in views if v.owner.managed_ledger == NAME}
    assert set(ours) == {a, b, made.cursor.ledger_id}
    assert not any(view.is_orphan for view in ours.values())
    # Neither writer was fenced.
    assert await made.opened.add_entry(b"one more") == 30
    assert await made.cursor.add_entry(b"one more") == 2


async def test_the_newest_state_counts_and_a_lost_one_is_named(
    made: Made, cluster: PulsarCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    a = made.closed.ledger_id
    topic = PulsarTopic.parse(TOPIC)
    # In pieces, and the entry after them that says so (PIP-381).
    whole = state((a, 9), (a, 30, 35))
    for piece in (whole[:7], whole[7:]):
        await made.cursor.add_entry(piece)
    await made.cursor.add_entry(json.dumps({"numParts": 2, "length": len(whole)}).encode())
    [cursor] = await cluster.cursors(topic)
    assert cursor.acks.ranges() == [(a, 30, 35)]
    # Its ledger is gone: a broker goes back to the node's mark-delete.
    made.put_cursor("worker", 2**30, (a, 4))
    [cursor] = await cluster.cursors(topic)
    assert (cursor.source, cursor.acks.mark_delete) == ("rolled back", Position(a, 4))
    assert cursor.acks.range_count == 0
    assert str(2**30) in (cursor.trouble or "")
    code, out, _ = await command(capsys, "stats", TOPIC, "--metadata", cluster.url)
    assert (code, f"LOST: cursor ledger {2**30}" in out) == (0, True)
    orphans = [v async for v in cluster.ledgers(orphans_after_ms=0) if v.is_orphan]
    assert made.cursor.ledger_id in {view.metadata.ledger_id for view in orphans}
    young = [v async for v in cluster.ledgers(orphans_after_ms=3_600_000) if v.is_orphan]
    assert made.cursor.ledger_id not in {view.metadata.ledger_id for view in young}


async def test_a_damaged_node_does_not_hide_the_others(
    made: Made, cluster: PulsarCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    made.put(f"{PATH}/broken", b"\xff\xff")
    made.put("/managed-ledgers/public/default/persistent/bad+topic", b"\xff\xff")
    with pytest.raises(CorruptRecordError, match=f"{PATH}/broken: 2 bytes that are no ManagedC"):
        await cluster.cursors(PulsarTopic.parse(TOPIC))
    report = await report_topic(cluster, PulsarTopic.parse(TOPIC))
    assert [each.cursor.subscription for each in report.subscriptions] == ["worker"]
    assert list(report.failures) == ["broken"]
    where = ("--metadata", cluster.url)
    code, out, err = await command(capsys, "topics", *where)
    assert (code, out.count("\n"), err.count("\n")) == (1, 1, 1)
    assert "persistent://public/default/bad topic" in err
    code, out, err = await command(capsys, "cursors", *where)
    assert (code, out.count("\n"), err.count("\n")) == (1, 1, 2)
    code, out, err = await command(capsys, "stats", "bad topic", *where)
    assert (code, out, err.count("\n")) == (2, "", 1)
    code, out, err = await command(capsys, "stats", TOPIC, "--subscription", "broken", *where)
    assert (code, err.count("\n")) == (2, 1)
    code, out, err = await command(capsys, "cursors", "--subscription", "broken", *where)
    assert (code, out) == (2, "")
    assert f"{TOPIC} broken: " in err
    code, out, err = await command(capsys, "ledgers", TOPIC, *where)
    assert (code, "cursor worker" in out, err.count("\n")) == (1, True, 1)
    assert f"{TOPIC} broken: " in err
    partition = "/managed-ledgers/public/default/persistent/parted-partition-"
    made.put("/admin/partitioned-topics/public/default/persistent/parted", b'{"partitions": 2}')
    made.put(f"{partition}0", b"\xff\xff")
    made.put(f"{partition}1", pb.ManagedLedgerInfo().SerializeToString())
    for action in ("stats", "ledgers"):
        code, out, err = await command(capsys, action, "parted", *where)
        assert (code, err.count("\n")) == (1, 1), (out, err)
        assert "parted-partition-0: " in err
        assert "parted-partition-1" in out
    made.put(f"{partition}1", b"\xff\xff")
    for words in (["stats", "--json"], ["stats"], ["ledgers"]):
        code, out, err = await command(capsys, *words, "parted", *where)
        assert (code, out, err.count("\n")) == (2, "", 2)


async def test_a_ledger_that_is_named_and_gone(
    made: Made, cluster: PulsarCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    node = pb.ManagedLedgerInfo()
    node.ledgerInfo.add(ledgerId=2**30, entries=7, size=70, timestamp=1_000)
    node.ledgerInfo.add(ledgerId=2**30 + 1)
    made.put(PATH, node.SerializeToString())
    rows = await topic_ledgers(cluster, PulsarTopic.parse(TOPIC))
    assert [row.is_missing for row in rows] == [True, True, False]
    code, out, err = await command(capsys, "ledgers", TOPIC, "--metadata", cluster.url)
    assert (code, out.count("MISSING"), err.count("does not exist")) == (1, 2, 2)
    [cursor] = await cluster.cursors(PulsarTopic.parse(TOPIC))
    assert cursor.misfits.unknown_ledger_ids == (made.opened.ledger_id,) or (
        not cursor.misfits.is_clean
    )


async def test_ledgers_in_tiered_storage(
    made: Made, real_bookkeeper: RealBookKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, cold = made.closed.ledger_id, made.opened.ledger_id, 2**30
    metadata = metadata_of(real_bookkeeper)
    node = pb.ManagedLedgerInfo()
    node.ledgerInfo.add(ledgerId=a, entries=40, size=390, timestamp=1_000)
    node.ledgerInfo[0].offloadContext.complete = True
    node.ledgerInfo.add(ledgerId=cold, entries=7, size=70, timestamp=1_000)
    offload = node.ledgerInfo[1].offloadContext
    offload.complete = offload.bookkeeperDeleted = True
    offload.driverMetadata.name = "aws-s3"
    node.ledgerInfo.add(ledgerId=cold + 1, timestamp=0)
    made.put(PATH, node.SerializeToString())
    code, out, err = await command(capsys, "ledgers", TOPIC, "--metadata", metadata)
    assert (code, err.count("\n")) == (1, 1)  # the last one does not exist
    assert f"{cold}  messages  offloaded (aws-s3) only" in out
    assert "CLOSED, offloaded " in out
    code, out, _ = await command(capsys, "ledgers", TOPIC, "--json", "--metadata", metadata)
    rows = {row["ledgerId"]: row for row in map(json.loads, out.splitlines())}
    assert (rows[cold]["isMissing"], rows[cold]["offloadDriver"]) == (False, "aws-s3")
    code, out, _ = await command(capsys, "stats", TOPIC, "--metadata", metadata)
    assert code == 0

    pytest.importorskip("pyspark")
    from ackgate.pipeline.source.data_source import AckgateDataSource

    def read(table: str, **options: str) -> list[dict[str, Any]]:
        source = AckgateDataSource({"pulsar": metadata, "table": table, **options})
        reader = source.reader(source.schema())
        parts = reader.partitions()
        return [r for p in parts for batch in reader.read(p) for r in batch.to_pylist()]

    found = await asyncio.to_thread(read, "ledgers", topic=TOPIC)
    [row] = [row for row in found if row["state"] == "OFFLOADED"]
    assert (row["ledger_id"], row["last_entry_id"], row["length_bytes"]) == (cold, 6, 70)
    assert (row["topic"], row["created_ms"], row["ensemble"]) == (TOPIC, None, [])
    assert row in await asyncio.to_thread(read, "ledgers")
    with pytest.raises(CallerError, match=f"{TOPIC}: ledger {cold} lies in tiered storage only"):
        await asyncio.to_thread(read, "messages")
    skipping = await asyncio.to_thread(read, "messages", onOffloaded="skip")
    chosen = await asyncio.to_thread(read, "messages", ledgerIds=f"{a},{b}")
    assert [r["entry_id"] for r in skipping] == [r["entry_id"] for r in chosen] == [*range(40)]
    # One that is gone: trimmed between the plan and the read.
    node.ledgerInfo[1].ClearField("offloadContext")
    made.put(PATH, node.SerializeToString())
    with pytest.raises(NoSuchLedgerError, match=f"{TOPIC}: ledger {cold} was deleted since"):
        await asyncio.to_thread(read, "messages")


async def test_wrong_places(
    made: Made, real_bookkeeper: RealBookKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = metadata_of(real_bookkeeper)
    with pytest.raises(ConfigurationError, match="etcd"):
        await PulsarCluster.connect("etcd:http://127.0.0.1:2379")
    with pytest.raises(ConfigurationError, match="no node /managed-ledgers"):
        await PulsarCluster.connect(f"{metadata}/ledgers")
    quick = SessionOptions(operation_timeout_seconds=0.5)
    with pytest.raises(MetadataStoreError):
        await PulsarCluster.connect("zk:127.0.0.1:1", session=quick)
    hosts = real_bookkeeper.zookeeper.connection_string
    elsewhere = f"zk+null://{hosts}/elsewhere"
    async with await PulsarCluster.connect(metadata, bookkeeper=elsewhere) as cluster:
        with pytest.raises(ConfigurationError, match="no BookKeeper cluster at /elsewhere"):
            await cluster.cursors(PulsarTopic.parse(TOPIC))
        with pytest.raises(CallerError, match="no topic persistent://public/default/nothing"):
            await cluster.node(PulsarTopic.parse("nothing"))
    for words in (
        ["topics", "--metadata", "etcd:x"],
        ["topics", "--metadata", f"{metadata}/ledgers"],
        ["topics", "--metadata", "zk:127.0.0.1:1", "--timeout", "0.5"],
        ["topics", "--metadata", metadata, "--namespace", "no/where"],
        ["stats", TOPIC, "--metadata", metadata, "--bookkeeper", elsewhere],
        ["stats", TOPIC, "--metadata", metadata, "--admin", "http://127.0.0.1:1"],
        ["stats", "a/b", "--metadata", metadata],
        ["topics", "--metadata", metadata, "--timeout", "nan"],
        ["topics", "--metadata", metadata, "--timeout", "-1"],
        ["topics", "--metadata", metadata, "--timeout", "1e300"],
        ["ledgers", "--orphans", "--metadata", metadata, "--older-than", "nan"],
        ["ledgers", "--orphans", "--metadata", metadata, "--older-than", "inf"],
        ["cursors", "--metadata", metadata, "--subscription", "nowhere"],
        ["stats", TOPIC, "--metadata", metadata, "--admin", "http://[::1"],
        ["stats", TOPIC, "--metadata", metadata, "--admin", "http://h:x"],
        ["stats", "public/../x", "--metadata", metadata],
        ["stats", "..", "--metadata", metadata],
        ["topics", "--metadata", metadata, "--namespace", "public/.."],
        ["topics", "--metadata", metadata, "--namespace", "public//x"],
        ["stats", "a" * 5_000, "--metadata", metadata],
    ):
        code, out, err = await command(capsys, *words)
        assert (code, out, err.count("\n")) == (2, "", 1), (words, out, err)


@contextmanager
def answering(words: bytes) -> Iterator[int]:
    """The port of a server that answers every connection with the same words."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(words)
            self.request.recv(1000)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextmanager
def at_another_bookie(made: Made, bookkeeper: RealBookKeeper, port: int) -> Iterator[None]:
    """A cursor `lost`, whose ledger ZooKeeper says to be on a bookie at this port."""
    value, _ = made.zookeeper.get(f"/ledgers{ledger_node(made.cursor.ledger_id)}")
    for bookie in bookkeeper.bookies:
        value = value.replace(bookie.bookie_id.encode(), b"127.0.0.1:%05d" % port)
    other = made.cursor.ledger_id + 2**20
    made.put(f"/ledgers{ledger_node(other)}", value)
    made.put_cursor("lost", other, (made.closed.ledger_id, -1))
    yield
    made.zookeeper.delete(f"/ledgers{ledger_node(other)}")  # other tests list the ledgers


async def test_what_answers_there_is_something_else(
    made: Made, real_bookkeeper: RealBookKeeper, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    metadata = metadata_of(real_bookkeeper)
    hosts = real_bookkeeper.zookeeper.connection_string

    async def said(*words: str) -> str:
        code, out, err = await command(capsys, *words, "--timeout", "1")
        assert (code, out, err.count("\n")) == (2, "", 1), (words, code, out, err)
        return err

    where = ("cursors", TOPIC, "--subscription", "lost", "--metadata", metadata)
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        assert f"127.0.0.1:{port}" in await said("topics", "--metadata", f"zk:127.0.0.1:{port}")
        with at_another_bookie(made, real_bookkeeper, port):
            assert f"127.0.0.1:{port}" in await said(*where)
    with at_another_bookie(made, real_bookkeeper, port):  # nothing answers any more
        assert f"127.0.0.1:{port}" in await said(*where)
    # Bookies without TLS, and a file that wants it.
    pem = tmp_path / "authority.pem"
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x"]
    keys = ["-keyout", str(tmp_path / "key.pem"), "-out", str(pem)]
    await asyncio.to_thread(
        subprocess.run, ["openssl", *words, *keys], check=True, capture_output=True
    )
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "bookkeeperTLSClientAuthentication=true\n"
        f"bookkeeperTLSTrustCertsFilePath={pem}\n"
        f"bookkeeperTLSCertificateFilePath={pem}\n"
        f"bookkeeperTLSKeyFilePath={tmp_path / 'key.pem'}\n"
    )
    where = ("cursors", TOPIC, "--subscription", "worker", "--metadata", metadata)
    assert "TLS" in await said(*where, "--config", str(conf))
    # Other layouts of ledgers, and one of a version that is too old.
    for layout in (b"1\nflat:1", b"2\norg.example.EtcdLedgerManagerFactory:1", b"\xff"):
        made.put("/other/LAYOUT", layout)
        err = await said(*where, "--bookkeeper", f"zk+null://{hosts}/other")
        assert "/other/LAYOUT" in err, err
    made.zookeeper.delete("/other", recursive=True)
    # A password of ZooKeeper's that is missing.
    made.zookeeper.set_acls(
        "/managed-ledgers/public", [make_digest_acl("test", "secret", all=True)]
    )
    assert "/managed-ledgers/public" in await said("topics", "--metadata", metadata)
    conf.write_text("metadataStoreDigest=test:wrong\n")
    assert "/managed-ledgers/public" in await said(
        "topics", "--metadata", metadata, "--config", str(conf)
    )
    conf.write_text("metadataStoreDigest=test:secret\n")
    code, out, _ = await command(capsys, "topics", "--metadata", metadata, "--config", str(conf))
    assert (code, out.count("\n")) == (0, 1)


async def test_a_cursors_ledger_that_is_replaced_amid_reading(
    made: Made, cluster: PulsarCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, old = made.closed.ledger_id, made.cursor.ledger_id
    client = await cluster.bookies()
    opened = client.open_without_recovery

    async def meanwhile(ledger_id: int, **more: Any) -> Any:
        if ledger_id == old:  # its broker has begun another one, and deleted this
            made.put_cursor("worker", made.opened.ledger_id, (a, 9))
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        return await opened(ledger_id, **more)

    await made.opened.add_entry(state((a, 20), (a, 30, 31)))
    monkeypatch.setattr(client, "open_without_recovery", meanwhile)
    [cursor] = await cluster.cursors(PulsarTopic.parse(TOPIC))
    assert (cursor.source, cursor.acks.mark_delete) == ("ledger", Position(a, 20))
    assert cursor.trouble is None


async def test_ledgers_that_are_begun_and_trimmed_amid_reading(
    made: Made, cluster: PulsarCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic's node is read before its cursors and after them; a broker goes on in between."""
    a, b = made.closed.ledger_id, made.opened.ledger_id
    topic, viewed = PulsarTopic.parse(TOPIC), cluster.topic
    only_a, only_b = pb.ManagedLedgerInfo(), pb.ManagedLedgerInfo()
    only_a.ledgerInfo.add(ledgerId=a, timestamp=0)
    only_b.ledgerInfo.add(ledgerId=b, timestamp=0)
    both = made.zookeeper.get(PATH)[0]
    steps: list[tuple[bytes, bytes]] = []

    async def meanwhile(*arguments: Any) -> Any:
        if steps:
            node, acks = steps.pop()
            made.put(PATH, node)
            await made.cursor.add_entry(acks)
        return await viewed(*arguments)

    monkeypatch.setattr(cluster, "topic", meanwhile)
    # As old brokers write it: one range over two ledgers.
    joined = pb.PositionInfo(ledgerId=a, entryId=9)
    joined.individualDeletedMessages.add(
        lowerEndpoint=pb.NestedPositionInfo(ledgerId=a, entryId=30),
        upperEndpoint=pb.NestedPositionInfo(ledgerId=b, entryId=5),
    )
    await made.cursor.add_entry(joined.SerializeToString())
    made.put(PATH, only_a.SerializeToString())
    steps.append((both, joined.SerializeToString()))
    [cursor] = await cluster.cursors(topic)
    assert cursor.acks.ranges() == [(a, 31, 39), (b, 0, 5)]
    assert (cursor.misfits.is_clean, cursor.acks.ranges_unread) == (True, 0)
    # The cursor passes the first ledger, which goes.
    steps.append((only_b.SerializeToString(), state((b, 0), (b, 5, 5))))
    [cursor] = await cluster.cursors(topic)
    assert cursor.acks.ranges() == [(b, 5, 5)]
    assert cursor.misfits.is_clean


async def test_what_is_deleted_amid_reading_is_left_out(
    made: Made,
    cluster: PulsarCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = [PulsarTopic.parse("gone"), PulsarTopic.parse(TOPIC)]

    async def listed(*_: object) -> AsyncIterator[PulsarTopic]:
        for topic in gone:
            yield topic

    subscriptions = PulsarNodes.subscriptions

    async def with_another(nodes: PulsarNodes, topic: PulsarTopic) -> list[str]:
        return ["gone", *await subscriptions(nodes, topic)]

    monkeypatch.setattr(PulsarNodes, "topics", listed)
    monkeypatch.setattr(PulsarNodes, "subscriptions", with_another)
    for action in ("topics", "cursors"):
        code, out, err = await command(capsys, action, "--metadata", cluster.url)
        assert (code, out.count("\n"), err) == (0, 1, "")
    code, _, err = await command(
        capsys, "stats", TOPIC, "--subscription", "gone", "--metadata", cluster.url
    )
    assert (code, err.count("\n")) == (2, 1)


async def test_a_ledger_that_is_trimmed_amid_reading_is_not_missing(
    made: Made, cluster: PulsarCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, looked = PulsarTopic.parse(TOPIC), cluster.look
    both = made.zookeeper.get(PATH)[0]
    node = pb.ManagedLedgerInfo()
    node.ledgerInfo.add(ledgerId=2**30, entries=7, size=70, timestamp=1_000)
    node.MergeFromString(both)
    made.put(PATH, node.SerializeToString())

    async def meanwhile(*arguments: Any) -> Any:
        found = await looked(*arguments)
        made.put(PATH, both)
        return found

    monkeypatch.setattr(cluster, "look", meanwhile)
    rows = await topic_ledgers(cluster, topic)
    assert [row.is_missing for row in rows] == [False, False, False]


async def test_ledgers_with_a_password(
    made: Made, real_bookkeeper: RealBookKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = await BookKeeperClient.connect(real_bookkeeper.uri)
    options = LedgerOptions(**OPTIONS, password=b"sesame", custom_metadata=custom())
    cursor = await client.create(options)
    await cursor.add_entry(state((made.closed.ledger_id, 9), (made.closed.ledger_id, 15, 19)))
    made.put_cursor("worker", cursor.ledger_id, (made.closed.ledger_id, -1))
    metadata = metadata_of(real_bookkeeper)
    async with await PulsarCluster.connect(metadata, password=b"sesame") as cluster:
        # Of the messages it is empty here, as it always is of schemas and of delayed messages.
        report = await report_topic(cluster, PulsarTopic.parse(TOPIC))
        assert report.subscriptions[0].cursor.acks.range_count == 1
        assert report.view.entries == 70
    conf = tmp_path / "broker.conf"
    conf.write_text("managedLedgerPassword=sesame\nmanagedLedgerMaxUnackedRangesToPersist=1\n")
    where = ("--metadata", metadata)
    code, out, _ = await command(capsys, "cursors", TOPIC, "--config", str(conf), *where)
    assert (code, "at the cap" in out) == (0, True)
    code, out, err = await command(capsys, "cursors", TOPIC, *where)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "password" in err
    await client.delete(cursor.ledger_id)
    await client.close()


async def test_as_tables_of_spark(made: Made, real_bookkeeper: RealBookKeeper) -> None:
    pytest.importorskip("pyspark")
    from ackgate.pipeline.source.data_source import AckgateDataSource

    def read(table: str, **options: str) -> list[dict[str, Any]]:
        source = AckgateDataSource(
            {"pulsar": metadata_of(real_bookkeeper), "table": table, **options}
        )
        reader = source.reader(source.schema())
        return [
            row
            for partition in reader.partitions()
            for batch in reader.read(pickle.loads(pickle.dumps(partition)))
            for row in batch.to_pylist()
        ]

    def streamed() -> list[int]:
        source = AckgateDataSource(
            {"pulsar": metadata_of(real_bookkeeper), "table": "messages", "columns": "entry_id"}
        )
        stream = source.streamReader(source.schema())
        parts = stream.partitions(stream.initialOffset(), stream.latestOffset())
        return [r["entry_id"] for p in parts for b in stream.read(p) for r in b.to_pylist()]

    a, b = made.closed.ledger_id, made.opened.ledger_id
    # The source has a loop of its own.
    rows = await asyncio.to_thread(read, "unpacked_messages", columns="ledger_id,payload")
    assert rows == [
        {"ledger_id": ledger_id, "payload": b"message %d" % number}
        for ledger_id, count in ((a, 40), (b, 30))
        for number in range(count)
    ]
    some = await asyncio.to_thread(read, "messages", ledgerIds=str(b), entryIds="3,28-99")
    assert [row["sequence_id"] for row in some] == [3, 28, 29]
    [row] = await asyncio.to_thread(read, "cursors")
    assert (row["range_count"], row["hole_count"], row["written_entries"]) == (3, 3, 2)
    states = await asyncio.to_thread(read, "ack_state", topic=TOPIC)
    assert [
        (r["kind"], r["ledger_id"], r["first_entry_id"], r["end_entry_id"]) for r in states
    ] == [
        ("mark_delete", a, 0, 10),
        ("range", a, 15, 20),
        ("range", b, 5, 6),
        ("range", b, 7, 9),
    ]
    records = await asyncio.to_thread(read, "cursor_records")
    assert [(r["entry_id"], r["range_count"]) for r in records] == [(0, 0), (1, 3)]
    ledgers = await asyncio.to_thread(read, "ledgers", topic=TOPIC)
    assert {(r["ledger_id"], r["role"]) for r in ledgers} == {
        (a, "messages"),
        (b, "messages"),
        (made.cursor.ledger_id, "cursor"),
    }
    # Of the open ledger a stream takes what is surely confirmed: entries of one add are not, yet.
    assert await asyncio.to_thread(streamed) == list(range(40))
    await made.opened.add_entry(message(30))
    assert await asyncio.to_thread(streamed) == [*range(40), *range(30)]
