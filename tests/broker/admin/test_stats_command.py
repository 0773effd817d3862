"""``ackgate stats``: against a broker, against its files, for people and for programs."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import shutil
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pulsar
import pytest

from ackgate import open_embedded
from ackgate.broker.wire.errors import InvalidTopicNameError
from ackgate.commands.cli import main
from ackgate.commands.stats.query import query_stats
from ackgate.commands.stats.stored import _Storage, stored_stats
from ackgate.cursor import MessageLedgers, Position
from ackgate.described import span
from ackgate.errors import CallerError, CorruptRecordError, StorageError
from ackgate.persistence import LedgerOptions, RecoverySource, SqliteMetadataStore
from ackgate.persistence.nodes.paths import MANAGED_LEDGERS, embedded_topic_path, ledger_path
from ackgate.persistence.nodes.topic_node import MessageLedgerRecord, TopicNode, encode_topic_node
from ackgate.persistence.offline_storage import opened_ledgers, storage_places
from ackgate.testing import BrokerProcess
from tests.broker.admin.conftest import InProcessBroker
from tests.broker.target import eventually, receive
from tests.support.loopback_http import QuietHandler, http_served

T = TypeVar("T")

CHECKPOINTS_MAX = 5

TOPIC = "persistent://public/default/orders"
ACKED = {*range(10), *range(11, 60, 2)}
MESSAGES = 100


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBroker]:
    """A broker with one subscription that has holes, one of a partitioned topic, and a reader."""
    with InProcessBroker(tmp_path_factory.mktemp("stats")) as broker:
        client = pulsar.Client(
            broker.server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        consumer = client.subscribe(
            TOPIC,
            "billing",
            consumer_type=pulsar.ConsumerType.Shared,
            consumer_name="c1",
            receiver_queue_size=80,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(MESSAGES):
            producer.send(b"%d" % number)
        for number, message in enumerate(receive(consumer, 70)):
            if number in ACKED:
                consumer.acknowledge(message)
        broker.ask("PUT", "persistent/public/default/parted/partitions", 2)
        broker.ask("PUT", "persistent/public/default/parted/subscription/a%2Fb%2Bc")
        path = "persistent/public/default/orders/stats"
        eventually(
            lambda: (
                broker.get(path)["subscriptions"]["billing"]["ackState"]["rangesPersisted"] == 25
            )
        )
        yield broker
        reader.close()
        client.shutdown()


def test_a_broker_is_asked_from_python(broker: InProcessBroker) -> None:
    answer = query_stats("orders", subscription="billing", url=broker.url, cells=MESSAGES)
    assert answer.is_live
    (told,) = answer.subscriptions
    assert told.stats is not None
    assert told.stats.msg_backlog == MESSAGES - len(ACKED)
    assert told.stats.consumers[0].consumer_name == "c1"
    assert told.ack_state == told.stats.ack_state
    assert told.ack_state.ranges_live == 25
    cells = told.picture.ledgers[0].cells
    assert {number for number, cell in enumerate(cells) if cell} == ACKED


def test_files_are_read_from_python_beside_a_running_broker(broker: InProcessBroker) -> None:
    live = query_stats(TOPIC, subscription="billing", url=broker.url, cells=MESSAGES)
    stored = look_only(
        lambda: stored_stats(
            TOPIC, subscription="billing", data_directory=broker.directory, cells=MESSAGES
        ),
        broker.directory,
    )
    assert not stored.is_live
    (told,) = stored.subscriptions
    assert told.stats is None
    assert told.written_ms is not None
    state, live_state = told.ack_state, live.subscriptions[0].ack_state
    assert (state.gate, state.store, state.forecast) == (None, None, None)
    assert state.cursor.mark_delete == live_state.cursor.mark_delete
    assert state.ranges_persisted == state.ranges_live == live_state.ranges_persisted
    assert told.picture.ledgers[0].cells[:60] == live.subscriptions[0].picture.ledgers[0].cells[:60]


def look_only(look: Callable[[], T], directory: Path) -> T:
    """What a look at a live broker's files finds. It changes none of them.

    The broker itself may, by a checkpoint of its journal: then the look is taken again.
    """
    for _ in range(CHECKPOINTS_MAX):
        before = fingerprints(directory)
        found = look()
        if fingerprints(directory) == before:
            return found
    raise AssertionError(f"each of {CHECKPOINTS_MAX} looks changed files of {directory}")


def fingerprints(directory: Path) -> dict[str, str]:
    """Contents of all files, but for the index that SQLite's readers share and its empty log."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm") and path.stat().st_size
    }


def test_files_of_a_broker_that_is_gone(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path_factory.mktemp("gone")
    with InProcessBroker(directory) as broker:
        broker.ask("PUT", "persistent/public/default/t/subscription/s")
        broker.ask("PUT", "persistent/public/default/t/subscription/other")
    before = fingerprints(directory)
    url, bookies = f"sqlite:{directory}/metadata.sqlite", f"{directory}/bookies/0"
    for answer in (
        stored_stats("t", data_directory=directory),
        stored_stats("t", metadata_url=url, bookies=bookies),
    ):
        assert [told.subscription for told in answer.subscriptions] == ["other", "s"]
    options = ["--metadata-url", url, "--bookies", bookies]
    assert main(["stats", "t", *options]) == 0
    assert f"as persisted in {url}" in capsys.readouterr().out
    config = directory.parent / "secured.conf"  # a tool that nobody connects to reads it
    config.write_text(
        "authenticationEnabled=true\nbrokerServicePortTls=6651\ntlsCertificateFilePath=x\n"
    )
    assert main(["stats", "t", "--data-dir", str(directory), "--config", str(config)]) == 0
    assert "as persisted in" in capsys.readouterr().out
    assert main(["stats", "t", *options, "--url", "http://127.0.0.1:1"]) == 2
    assert "--url asks a broker" in capsys.readouterr().err
    assert main(["stats", "t", "--data-dir", str(directory)]) == 0
    assert "as persisted in" in capsys.readouterr().out
    assert fingerprints(directory) == before


def test_partitions_are_told_one_by_one(broker: InProcessBroker) -> None:
    for answer in (
        query_stats("parted", url=broker.url),
        stored_stats("parted", data_directory=broker.directory),
    ):
        assert [(told.topic, told.subscription) for told in answer.subscriptions] == [
            (f"persistent://public/default/parted-partition-{index}", "a/b+c") for index in (0, 1)
        ]


def test_for_people(broker: InProcessBroker, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", TOPIC, "--url", broker.url]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text  # no colours where nobody sees them
    assert "billing  Shared" in text
    assert "25 ranges, 25 holes" in text
    assert "c1" in text
    assert "of a reader" in text
    lines = text.splitlines()
    (picture, *_) = [line for line in lines if line.startswith("  ledger ")]
    assert "35 of 100 acked, 25 ranges" in picture
    assert max(map(len, lines)) <= 160


def test_consumers_are_left_out_when_asked(
    broker: InProcessBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["stats", TOPIC, "--url", broker.url, "--subscription", "billing"]
    assert main([*arguments, "--exclude-consumers"]) == 0
    text = capsys.readouterr().out
    assert "  consumers  " not in text
    assert "no consumer" not in text, "there is one"
    assert ":10 held by consumer c1 " in text
    assert main([*arguments, "--exclude-consumers", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert not told["knowsConsumers"]
    assert told["subscriptions"][0]["stats"]["consumers"] == []
    assert main(arguments) == 0
    assert "  consumers  " in capsys.readouterr().out


def test_for_programs(broker: InProcessBroker, capsys: pytest.CaptureFixture[str]) -> None:
    for source in (["--url", broker.url], ["--data-dir", str(broker.directory)]):
        assert main(["stats", "orders", "--subscription", "billing", "--json", *source]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["topic"] == TOPIC
        (subscription,) = told["subscriptions"]
        assert subscription["ackState"]["rangesPersisted"] == 25
        assert (subscription["stats"] is None) == (not told["isLive"])


def test_watching_asks_again_and_survives_a_broker_that_does_not_answer(
    broker: InProcessBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = 0
    ask = query_stats

    def sleep(seconds: float) -> None:
        nonlocal rounds
        assert seconds == 0.5
        rounds += 1
        if rounds == 3:
            raise KeyboardInterrupt

    def sometimes(*arguments: object, **more: object) -> object:
        if rounds == 1:
            raise StorageError("no answer")
        return ask(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("ackgate.commands.stats.command.time.sleep", sleep)
    monkeypatch.setattr("ackgate.commands.stats.query.query_stats", sometimes)
    assert main(["stats", "orders", "--url", broker.url, "--json", "--watch", "0.5"]) == 130
    out, err = capsys.readouterr()
    assert [json.loads(line)["isLive"] for line in out.splitlines()] == [True, True]
    assert "no answer" in err


@pytest.mark.parametrize(
    ("arguments", "words", "codes"),
    [
        (["nope"], "not found", {1, 2}),
        (["orders", "--subscription", "nope"], "not found", {1, 2}),
        (["orders", "--subscription", ""], "invalid subscription name '': it is empty", {2}),
        (["orders", "--subscription", "\udcff"], "'\\udcff' is not UTF-8", {2}),
        (["\udcff"], "'\\udcff' is not UTF-8", {2}),
        (["a/b"], "invalid topic name", {1, 2}),
        (["non-persistent://public/default/t"], "non-persistent", {1, 2}),
        (["orders", "--watch", "0"], "--watch 0.0: from 0.1 to 86400 s", {2}),
        (["orders", "--watch", "nan"], "--watch nan: from 0.1 to 86400 s", {2}),
    ],
)
def test_what_cannot_be_asked(
    broker: InProcessBroker,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
    codes: set[int],
) -> None:
    for source in (["--url", broker.url], ["--data-dir", str(broker.directory)]):
        assert main(["stats", *arguments, *source]) in codes
        out, err = capsys.readouterr()
        assert out == ""
        assert words in err


def test_which_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert not ended.value.code
    assert re.fullmatch(r"ackgate (\d+(\.\d+)+|from a source tree.*)\n", capsys.readouterr().out)


def test_addresses_and_directories_where_nobody_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stats", "t", "--url", "http://127.0.0.1:1"]) == 1
    assert "no answer from http://127.0.0.1:1" in capsys.readouterr().err
    for url in (
        "file:///etc/passwd",
        "nonsense",
        "http://",
        "http://[::1",
        "http://127.0.0.1:abc",
        "http://127.0.0.1:99999",
    ):
        assert main(["stats", "t", "--url", url]) == 2
        assert "not the address" in capsys.readouterr().err
    assert main(["stats", "t", "--data-dir", str(tmp_path)]) == 2
    assert "no broker has kept anything" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_answer_that_ends_in_the_middle_is_none() -> None:
    cut, refused = impostor(b'{"partitions": 0}', missing=5), pytest.raises(StorageError)
    with cut as url, refused as error:
        query_stats("t", url=url)
    assert "ended in the middle" in str(error.value)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"partitions": 0}', b"\xff", b"[" * 100_000])
def test_strange_answers_are_named(body: bytes) -> None:
    with impostor(body) as url, pytest.raises((CorruptRecordError, CallerError)):
        query_stats("t", url=url)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "ended in the middle"),
        (b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "answers 404 No"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\n{}", "answers 404 No"),
        (b"HTTP/1.1 307 There\r\nLocation: http://h:x\r\n\r\n", "answers 307 There"),
        (b"HTTP/1.1 307 There\r\n\r\n", "answers 307 There"),
    ],
)
def test_broken_answers_are_one_line(
    words: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(10_000)
            self.request.sendall(words)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        assert main(["stats", "t", "--url", f"http://127.0.0.1:{server.server_address[1]}"]) == 1
        server.shutdown()
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def listing(subscriptions: object) -> contextlib.AbstractContextManager[str]:
    """A broker whose list of subscriptions is older than its subscriptions."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            status, answer = 404, {"reason": "Subscription gone not found"}
            if self.path.endswith("/partitions"):
                status, answer = 200, {"partitions": 0}
            elif self.path.endswith("/subscriptions"):
                status, answer = 200, subscriptions
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

    return http_served(Handler)


def test_a_subscription_that_is_deleted_meanwhile_is_left_out() -> None:
    """A reader that ends must not end `--watch`."""
    with listing(["gone"]) as url:
        assert query_stats("t", url=url).subscriptions == ()
        with pytest.raises(CallerError, match="gone not found"):
            query_stats("t", subscription="gone", url=url)
    with listing(7) as url, pytest.raises(CorruptRecordError, match="no subscriptions"):
        query_stats("t", url=url)


class Forgetting:
    """A metadata store in which a subscription is deleted between its name and its node."""

    def __init__(self, store: SqliteMetadataStore, name: str) -> None:
        self._store = store
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, path: str) -> object:
        return None if path.endswith(f"/{self._name}") else await self._store.get(path)


async def test_a_subscription_that_is_deleted_amid_reading_is_left_out(embedded: Path) -> None:
    places = storage_places(data_directory=embedded)
    async with opened_ledgers(places) as opened:
        forgetting: Any = Forgetting(opened.metadata, "idle")
        storage = _Storage(forgetting, opened.client, places.password)
        topic = await storage.topic("orders")
        [answer] = (await storage.subscriptions(topic, None, 64)).answers
        assert answer.subscription == "billing"
        with pytest.raises(CallerError, match="Subscription idle not found"):
            await storage.subscriptions(topic, "idle", 64)


@pytest.mark.parametrize("option", ["--url", "--metadata-url", "--bookies", "--bookkeeper"])
def test_an_empty_option_is_not_the_default(
    option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--url "$URL"` without the variable must not ask another broker."""
    monkeypatch.chdir(tmp_path)
    for command in (["stats", "t"], ["overview"]):
        assert main([*command, option, ""]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_binary_port_is_no_admin_port(
    broker: InProcessBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    url = broker.server.service_url.replace("pulsar://", "http://")
    assert main(["stats", "t", "--url", url]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ackgate: {url} does not speak HTTP")
    assert line.endswith("is it the admin port?")


async def _embed(directory: Path) -> None:
    """A host with a topic of its own, whose cursor has holes and a partly acked batch."""
    ledgers = MessageLedgers()
    ledgers.open_ledger(7)
    ledgers.add_entries(7, 100)
    async with open_embedded(directory) as storage:
        store = await storage.open_cursor("orders", "billing", ledgers, create_at=Position(7, -1))
        for entry_id in range(1, 60, 2):
            store.cursor.ack(Position(7, entry_id))
        store.cursor.ack_mixed([(Position(7, 70), 0b1010)])
        await storage.open_cursor("orders", "idle", ledgers, create_at=Position(7, -1))
        await storage.open_cursor("eu/orders", "s", ledgers, create_at=Position(7, -1))


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("embedded") / "data"
    asyncio.run(_embed(directory))
    return directory


@pytest.mark.parametrize(
    "name", ["orders", "embedded/default/orders", "persistent://embedded/default/orders"]
)
def test_files_of_a_host_that_embeds_cursors(
    embedded: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = stored_stats(name, data_directory=embedded, cells=100)
    assert (answer.topic, answer.is_embedded) == ("persistent://embedded/default/orders", True)
    billing, idle = answer.subscriptions
    assert (billing.subscription, idle.subscription) == ("billing", "idle")
    assert billing.ack_state.cursor.range_count == 30
    assert billing.ack_state.cursor.partly_acked_count == 1
    recovery = billing.ack_state.recovery
    assert recovery is not None
    assert recovery.dropped is not None
    assert recovery.dropped.is_clean
    (ledger,) = billing.picture.ledgers
    assert (ledger.entries, ledger.acked) == (71, 30)  # as far as the last ack
    assert idle.ack_state.cursor.acked_count == 0

    assert main(["stats", name, "--data-dir", str(embedded)]) == 0
    assert "entries after the last ack are not known here" in capsys.readouterr().out
    assert main(["stats", name, "--json", "--data-dir", str(embedded)]) == 0
    assert json.loads(capsys.readouterr().out)["isEmbedded"] is True


def test_a_hosts_topic_may_have_any_name_and_others_are_not_found(embedded: Path) -> None:
    answer = stored_stats("eu/orders", data_directory=embedded)
    assert answer.topic == "persistent://embedded/default/eu/orders"
    for name, words in (("nope", "not found"), ("a/b", "invalid topic name"), ("", "empty")):
        with pytest.raises((CallerError, InvalidTopicNameError), match=words):
            stored_stats(name, data_directory=embedded)
    with pytest.raises(CallerError, match="Subscription nope not found"):
        stored_stats("orders", subscription="nope", data_directory=embedded)


def impostor(body: bytes, missing: int = 0) -> contextlib.AbstractContextManager[str]:
    """Answers everything with the same bytes, and closes when so many are `missing`."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + missing))
            self.end_headers()
            self.wfile.write(body)

    return http_served(Handler)


@pytest.mark.slow
def test_files_say_what_a_broker_finds_after_kill_9(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client = pulsar.Client(
            broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        consumer = client.subscribe(
            "t",
            "s",
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        producer = client.create_producer("t", batching_enabled=False)
        for number in range(50):
            producer.send(b"%d" % number)
        for message in receive(consumer, 50)[1::2]:
            consumer.acknowledge(message)

        def is_durable() -> bool:
            (told,) = query_stats("t", url=broker.admin_url).subscriptions
            return told.ack_state.ranges_persisted == 25

        eventually(is_durable)
        broker.kill()
        client.shutdown()
        (stored,) = stored_stats("t", data_directory=tmp_path / "data").subscriptions
        broker.start()
        (found,) = query_stats("t", url=broker.admin_url).subscriptions
        assert stored.ack_state.ranges_persisted == found.ack_state.ranges_persisted == 25
        assert stored.ack_state.cursor.backlog_entries == found.ack_state.cursor.backlog_entries
        assert stored.picture == found.picture
        recovery = found.ack_state.recovery
        assert recovery is not None
        assert recovery.source is RecoverySource.LEDGER
        assert recovery.lost is None


def test_the_oldest_holes_and_a_legend(
    broker: InProcessBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stats", TOPIC, "--url", broker.url, "--subscription", "billing"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"  holes  .*:10 held by consumer c1 for [0-9.]+ s$", text, re.MULTILINE)
    assert "up to the mark-delete" in text
    assert "not read yet" in text


def test_the_overview_for_people(
    broker: InProcessBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["overview", "--url", broker.url]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert re.match(r"[45] subscriptions: .*  loaded by http", head)
    [place] = [number for number, line in enumerate(lines) if "billing" in line]
    assert "public/default/orders  ranges 25/10,000" in lines[place]
    assert "oldest hole " in lines[place + 1]
    assert main(["overview", "--url", broker.url, "--text", "BILLING", "--rows", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 2
    assert main(["overview", "--url", broker.url, "--text", "nobody"]) == 0
    assert "none matches" in capsys.readouterr().out


def test_the_overview_of_files_has_what_is_stored(
    broker: InProcessBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["overview", "--data-dir", str(broker.directory), "--order", "ranges"]
    looked = look_only(
        lambda: (main([*arguments, "--json"]), capsys.readouterr().out), broker.directory
    )
    assert looked[0] == 0
    told = json.loads(looked[1])
    assert not told["isLive"]
    assert told["total"] == told["matching"] == 3  # no reader's
    first = told["rows"][0]
    assert (first["topic"], first["subscription"], first["ranges"]) == (TOPIC, "billing", 25)
    assert first["backlog"] == MESSAGES - len(ACKED)
    assert first["consumers"] is None
    assert main(arguments) == 0
    assert "as persisted in" in capsys.readouterr().out


def test_the_overview_of_files_does_without_what_is_damaged(
    embedded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(embedded, directory)

    async def damage() -> None:
        topics = f"{MANAGED_LEDGERS}/embedded/default/persistent"
        store = await SqliteMetadataStore.open(directory / "metadata.sqlite")
        [topic] = [each for each in await store.children(topics) if each.startswith("eu")]
        await store.put(f"{topics}/{topic}", b"nonsense", expected_version=None)
        await store.close()

    asyncio.run(damage())
    assert main(["overview", "--data-dir", str(directory)]) == 1
    text = capsys.readouterr().out
    assert "not in it: persistent://embedded/default/eu/orders: " in text
    assert "billing" in text


async def _keep_open_ledger(directory: Path) -> int:
    """A topic of one message ledger that nobody closed: five entries, the third of them acked."""
    async with open_embedded(directory) as storage:
        writer = await storage.ledger_client.create(LedgerOptions())
        for _ in range(5):
            await writer.add_entry(b"message")
        ledgers = MessageLedgers()
        ledgers.open_ledger(writer.ledger_id)
        ledgers.add_entries(writer.ledger_id, 5)
        start = Position(writer.ledger_id, -1)
        store = await storage.open_cursor("orders", "billing", ledgers, create_at=start)
        store.cursor.ack(Position(writer.ledger_id, 2))
        store.cursor.ack_mixed([(Position(writer.ledger_id, 3), 0b10)])
        node = TopicNode((MessageLedgerRecord(writer.ledger_id, None, 0, 0, None),))
        path = embedded_topic_path("orders")
        await storage.metadata.put(path, encode_topic_node(node), expected_version=None)
        return writer.ledger_id


def test_files_with_an_open_ledger_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its acks are shown, and which ledger it is, and what is wrong with it."""
    directory = tmp_path / "data"
    ledger_id = asyncio.run(_keep_open_ledger(directory))
    (whole,) = stored_stats("orders", data_directory=directory).subscriptions
    assert whole.picture.ledgers[0].entries == 5

    async def damage() -> None:
        store = await SqliteMetadataStore.open(directory / "metadata.sqlite")
        await store.put(ledger_path(ledger_id), b"nonsense", expected_version=None)
        await store.close()

    asyncio.run(damage())
    answer = stored_stats("orders", data_directory=directory)
    (told,) = answer.subscriptions
    assert told.picture.ledgers[0].entries == 4
    assert told.ack_state.ranges_live == whole.ack_state.ranges_live == 1
    assert told.ack_state.recovery is not None
    assert told.ack_state.recovery.dropped is not None
    assert told.ack_state.recovery.dropped.is_clean
    (missing,) = answer.missing
    assert re.match(rf"message ledger {ledger_id} after its last ack: .*{ledger_id}", missing)
    assert main(["stats", "orders", "--data-dir", str(directory)]) == 1
    assert f"not in it: message ledger {ledger_id} after its last ack: " in capsys.readouterr().out
    assert main(["overview", "--data-dir", str(directory)]) == 1
    text = capsys.readouterr().out
    assert "billing" in text
    assert f"orders message ledger {ledger_id} after its last ack: " in text


def test_durations_are_those_of_when_the_overview_was_taken(broker: InProcessBroker) -> None:
    ages = []
    while not ages or ages[-1] < 500:
        answer = broker.get("/ackgate/overview")
        ages.append(time.time() * 1000 - answer["takenMs"])
        for row in answer["rows"]:
            sentences = [each for each in row["why"] if ", no ack for " in each]
            wanted = span(answer["takenMs"] - row["lastAckedMs"])
            assert all(each.endswith(f", no ack for {wanted}") for each in sentences)
            assert sentences or not row["unackedMessages"] or not row["lastAckedMs"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rows", "0"], "from 1 to 200"),
        (["--offset", "-1"], "at least 0"),
        (["--data-dir", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_a_bad_question_for_the_overview(
    broker: InProcessBroker,
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = [] if "--data-dir" in arguments else ["--url", broker.url]
    assert main(["overview", *source, *arguments]) == 2
    assert words in capsys.readouterr().err
