"""Connections: handshake, rules of the protocol, bounds, silence. Real sockets."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from ackgate.broker.wire import protocol_server, session
from ackgate.broker.wire.errors import ServerError
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.replies import NO_REQUEST_ID, PING, encode
from ackgate.network.damper import LINES_AT_ONCE_MAX
from tests.support.wire_client import EARLIEST, RefusedError, WireClient
from tests.unit.broker_wire.wire_server import WireServer, eventually, serving

Type = pb.BaseCommand.Type


async def last_words(client: WireClient) -> pb.CommandError:
    """The ERROR with which the broker ended the connection."""
    await client.wait_closed()
    last = client.events[-1]
    assert last.type == Type.ERROR
    assert last.error.request_id == NO_REQUEST_ID
    return last.error


async def assert_serves(server: WireServer) -> None:
    """Others are not affected."""
    async with await server.connect() as client:
        assert await client.partitions("unaffected") == 0


async def test_the_handshake_settles_version_and_sizes() -> None:
    async with serving(max_message_size=4096) as server, await server.connect() as client:
        assert client.connected is not None
        assert client.connected.protocol_version == session.PROTOCOL_VERSION
        assert client.connected.max_message_size == 4096
        assert client.connected.server_version.startswith("ackgate ")
        assert not client.connected.feature_flags.supports_topic_watchers
    async with serving() as server, await server.connect(protocol_version=15) as client:
        assert client.connected is not None
        assert client.connected.protocol_version == 15


async def test_a_client_from_before_checksums_is_told_so() -> None:
    async with serving() as server:
        client = await server.open()
        connect = pb.CommandConnect(client_version="old", protocol_version=5)
        client.send(pb.BaseCommand(type=Type.CONNECT, connect=connect))
        assert "protocol version 5 is not served" in (await last_words(client)).message


async def test_ping_is_answered_at_any_time() -> None:
    async with serving() as server:
        client = await server.open()
        client.send_bytes(PING)
        await client.until(lambda: client.events)
        assert client.events[-1].type == Type.PONG
        await client.close()


@pytest.mark.parametrize(
    "command",
    [
        pb.BaseCommand(
            type=Type.LOOKUP, lookupTopic=pb.CommandLookupTopic(topic="t", request_id=1)
        ),
        pb.BaseCommand(type=Type.SEND, send=pb.CommandSend(producer_id=1, sequence_id=1)),
        pb.BaseCommand(type=Type.ACK, ack=pb.CommandAck(consumer_id=1, ack_type=0)),
        pb.BaseCommand(type=Type.FLOW, flow=pb.CommandFlow(consumer_id=1, messagePermits=1)),
    ],
)
async def test_nothing_is_served_before_connect(command: pb.BaseCommand) -> None:
    async with serving() as server:
        client = await server.open()
        client.send(command)
        assert "before CONNECT" in (await last_words(client)).message
        await assert_serves(server)


def _connect_again() -> bytes:
    connect = pb.CommandConnect(client_version="x", protocol_version=20)
    return encode(pb.BaseCommand(type=Type.CONNECT, connect=connect))


BROKEN: dict[str, tuple[bytes, str]] = {
    "a second CONNECT": (_connect_again(), "CONNECT on a connection that is connected"),
    "a huge frame": (struct.pack(">II", 2**31, 10), "above the limit"),
    "sizes that contradict": (struct.pack(">II", 10, 20), "malformed frame"),
    "no protobuf": (struct.pack(">II", 7, 3) + b"\xff\xff\xff", "not valid protobuf"),
    "an unknown type": (struct.pack(">II", 6, 2) + b"\x08\x7f", "unknown type"),
    "a type without its command": (struct.pack(">II", 6, 2) + b"\x08\x05", "without its command"),
    "an ACK without consumer": (
        struct.pack(">II", 8, 4) + b"\x08\x0a\x52\x00",
        "ACK lacks a required field",
    ),
    "a FLOW without consumer": (
        struct.pack(">II", 8, 4) + b"\x08\x0b\x5a\x00",
        "FLOW lacks a required field",
    ),
    "a PRODUCER without topic": (
        struct.pack(">II", 8, 4) + b"\x08\x05\x2a\x00",
        "PRODUCER lacks a required field",
    ),
    "a broker's command": (
        encode(
            pb.BaseCommand(
                type=Type.SEND_RECEIPT,
                send_receipt=pb.CommandSendReceipt(producer_id=1, sequence_id=1),
            )
        ),
        "SEND_RECEIPT is not a command that this broker takes",
    ),
    "an answer to no challenge": (
        encode(pb.BaseCommand(type=Type.AUTH_RESPONSE, authResponse=pb.CommandAuthResponse())),
        "AUTH_RESPONSE without a challenge",
    ),
    "a command of a later protocol": (
        struct.pack(">II", 6, 2) + b"\x08\x46",
        "SCALABLE_TOPIC_LOOKUP is not a command",
    ),
    "a SEND of nobody": (
        encode(
            pb.BaseCommand(type=Type.SEND, send=pb.CommandSend(producer_id=99, sequence_id=1)), b"x"
        ),
        "SEND for producer 99, which is not open",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_breaks_the_protocol_ends_this_connection_and_no_other(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, reason = BROKEN[name]
    async with serving() as server, await server.connect() as other:
        client = await server.connect()
        client.send_bytes(data)
        assert reason in (await last_words(client)).message
        assert "ended" in caplog.text
        assert await other.partitions("unaffected") == 0
        await assert_serves(server)


async def test_what_came_before_the_broken_frame_still_counts() -> None:
    async with serving() as server:
        client = await server.connect()
        producer = await client.producer("t")
        frames = [producer.frame(b"one"), producer.frame(b"two")]
        client.send_bytes(b"".join(frames) + struct.pack(">II", 10, 20))
        await client.wait_closed()
        topic = server.registry.topics["persistent://public/default/t"]
        assert len(topic.entries) == 2


async def test_an_end_of_file_detaches_producers_and_consumers() -> None:
    async with serving() as server:
        client = await server.connect()
        await client.producer("t")
        await client.subscribe("t", "s")
        topic = server.registry.topics["persistent://public/default/t"]
        assert len(topic.producers) == len(topic.consumers) == 1
        client.abort()
        await client.closed
        await server.protocol.close()
        assert not topic.producers
        assert not topic.consumers
        assert not server.protocol.sessions


async def test_a_request_under_way_when_the_connection_ends_leaves_nothing_behind() -> None:
    async with serving() as server:
        server.registry.gate = asyncio.Event()
        client = await server.connect()
        waiting = [
            asyncio.create_task(client.producer("t")),
            asyncio.create_task(client.subscribe("t", "s")),
        ]
        await asyncio.sleep(0)
        other = await server.connect()
        await other.close()  # both requests have been read by now, or the connection cut before
        client.abort()
        await asyncio.gather(*waiting, return_exceptions=True)
        server.registry.gate.set()
        await server.protocol.close()
        for topic in server.registry.topics.values():
            assert not topic.producers
            assert not topic.consumers


# ---- bounds


async def test_too_many_connections_are_refused() -> None:
    async with serving(broker_max_connections=2) as server:
        async with await server.connect(), await server.connect():
            third = await server.open()
            await third.wait_closed()
        await eventually(lambda: not server.protocol.sessions)
        await assert_serves(server)


async def test_too_many_connections_of_one_address_are_refused() -> None:
    async with serving(broker_max_connections_per_ip=1) as server, await server.connect():
        second = await server.open()
        await second.wait_closed()


async def test_a_flood_of_silent_connections_keeps_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol_server, "HALF_OPEN_MAX", 10)
    async with serving() as server:
        flood = [await server.open() for _ in range(30)]
        await assert_serves(server)
        for silent in flood[:15]:
            await silent.wait_closed()
        assert len(server.protocol.sessions) <= 12
        for silent in flood:
            await silent.close()


async def send_all(client: WireClient, frames: list[bytes]) -> None:
    for frame in frames:
        await client.send_bulk(frame)


async def test_publishes_that_are_not_durable_stop_the_reading() -> None:
    async with serving(max_pending_publish_requests_per_connection=10) as server:  # noqa: SIM117
        async with await server.connect() as client:
            producer = await client.producer("t")
            topic = server.registry.topics["persistent://public/default/t"]
            topic.holds_receipts = True
            frames = [producer.frame(bytes(100_000)) for _ in range(200)]
            sending = asyncio.create_task(send_all(client, frames))
            held = next(iter(server.protocol.sessions))
            await eventually(lambda: "publishes" in held.intake.holds)
            before = len(topic.entries)
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(topic.entries) == before < 200
            topic.release_receipts()
            await producer.until_receipts(200)
            await sending
            assert not held.intake.holds


async def test_bytes_that_are_not_durable_stop_the_reading_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ackgate.broker.wire import producers

    monkeypatch.setattr(producers, "PENDING_PUBLISH_BYTES_MAX", 1_000_000)
    async with serving() as server, await server.connect() as client:
        producer = await client.producer("t")
        topic = server.registry.topics["persistent://public/default/t"]
        topic.holds_receipts = True
        frames = [producer.frame(bytes(100_000)) for _ in range(100)]
        sending = asyncio.create_task(send_all(client, frames))
        held = next(iter(server.protocol.sessions))
        await eventually(lambda: "publishes" in held.intake.holds)
        assert len(topic.entries) < 100
        topic.release_receipts()
        await producer.until_receipts(100)
        await sending


async def test_too_many_requests_wait_in_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "REQUESTS_IN_FLIGHT_MAX", 10)
    async with serving() as server, await server.connect() as client:
        server.registry.gate = asyncio.Event()
        asking = [asyncio.create_task(client.partitions(f"t{index}")) for index in range(100)]
        held = next(iter(server.protocol.sessions))
        await eventually(lambda: "requests" in held.intake.holds)
        server.registry.gate.set()
        assert await asyncio.gather(*asking) == [0] * 100
        assert not held.intake.holds


async def test_a_slow_consumer_does_not_grow_memory() -> None:
    async with serving(connection_write_buffer_bytes_max=100_000) as server:  # noqa: SIM117
        async with await server.connect() as fast, await server.connect() as slow:
            producer = await fast.producer("t")
            consumer = await slow.subscribe("t", "s")
            slow.pause_reading()
            consumer.flow(100_000)
            for start in range(0, 500, 50):
                await fast.send_bulk(b"".join(producer.frame(bytes(50_000)) for _ in range(50)))
                await producer.until_receipts(start + 50)
            topic = server.registry.topics["persistent://public/default/t"]
            behind = topic.consumers[0]
            assert behind.next_entry < 500
            held = behind.session
            assert isinstance(held, session.Session)
            # One batch of the fake's may follow on the one that crossed the mark.
            assert held._outbox.unsent_bytes < 1000 * 51_000
            assert not held.is_writable
            slow.resume_reading()
            await consumer.receive_many(500)
            assert ("on_writable",) in behind.calls


async def test_a_client_that_asks_without_listening_is_not_listened_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ackgate.broker.wire import session

    monkeypatch.setattr(session, "UNREAD_REPLY_BYTES_MAX", 100_000)
    monkeypatch.setattr(session, "REQUESTS_IN_FLIGHT_MAX", 10)
    async with serving(connection_write_buffer_bytes_max=10_000) as server:
        client = await server.connect()
        for index in range(100):
            await client.producer(f"{index}" + "x" * 1000)
        client.pause_reading()
        held = next(iter(server.protocol.sessions))
        asking = pb.CommandGetTopicsOfNamespace(request_id=999, namespace="public/default")
        question = pb.BaseCommand(type=Type.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=asking)
        for _ in range(300):
            client.send(question)
        await eventually(lambda: "output" in held.intake.holds)
        assert held._outbox.unsent_bytes < 5_000_000
        client.resume_reading()
        await eventually(lambda: "output" not in held.intake.holds)
        client.abort()


# ---- silence


class Timers:
    """Takes `call_later` away from the loop, so that a test decides when time has passed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due: dict[Any, float] = {}
        loop = asyncio.get_running_loop()
        real = loop.call_later

        def call_later(delay: float, callback: Any, *args: Any, **how: Any) -> Any:
            if getattr(callback, "__name__", "") in {"_on_keep_alive", "_on_handshake_timeout"}:
                self.due[callback] = delay
                return real(10_000, callback)
            return real(delay, callback, *args, **how)

        monkeypatch.setattr(loop, "call_later", call_later)

    def fire(self, delay: float) -> None:
        for callback in [each for each, its in self.due.items() if its == delay]:
            del self.due[callback]
            callback()


async def test_who_never_says_connect_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = Timers(monkeypatch)
    async with serving(handshake_timeout_seconds=10) as server:
        client = await server.open()
        await eventually(lambda: timers.due)
        timers.fire(10)
        await client.wait_closed()


async def test_silence_is_pinged_and_a_dead_peer_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = Timers(monkeypatch)
    async with serving(keep_alive_interval_seconds=30) as server:
        client = await server.connect()
        timers.fire(30)  # CONNECT was heard
        timers.fire(30)
        await client.until(lambda: client.pings == 1)
        await client.partitions("t")  # the PONG has arrived before this
        timers.fire(30)
        client.answers_pings = False
        timers.fire(30)
        await client.until(lambda: client.pings == 2)
        timers.fire(30)
        await client.wait_closed()


async def test_keep_alive_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = Timers(monkeypatch)
    async with serving(keep_alive_interval_seconds=0) as server, await server.connect():
        assert not [callback for callback in timers.due if "keep_alive" in callback.__name__]


# ---- requests that are refused


async def test_failures_tell_the_client_what_is_its_business() -> None:
    async with serving() as server, await server.connect() as client:
        server.registry.failure = OSError("/var/lib/secret: disk on fire")
        with pytest.raises(RefusedError) as refused:
            await client.producer("t")
        assert refused.value.code is ServerError.UNKNOWN
        assert "secret" not in refused.value.message
        server.registry.failure = None
        await client.producer("t")


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("a/b", ServerError.INVALID_TOPIC_NAME),
        ("persistent://../../x", ServerError.INVALID_TOPIC_NAME),
        ("non-persistent://public/default/t", ServerError.NOT_ALLOWED),
    ],
)
async def test_topic_names_are_checked_by_every_command(topic: str, code: ServerError) -> None:
    async with serving() as server, await server.connect() as client:
        for asking in (
            client.producer(topic),
            client.subscribe(topic, "s"),
            client.lookup(topic),
            client.partitions(topic),
        ):
            with pytest.raises(RefusedError) as refused:
                await asking
            assert refused.value.code is code


async def test_transactions_and_watchers_get_the_protocols_own_error() -> None:
    async with serving() as server, await server.connect() as client:
        for command in (
            pb.BaseCommand(
                type=Type.TC_CLIENT_CONNECT_REQUEST,
                tcClientConnectRequest=pb.CommandTcClientConnectRequest(request_id=900, tc_id=0),
            ),
            pb.BaseCommand(type=Type.NEW_TXN, newTxn=pb.CommandNewTxn(request_id=900)),
            pb.BaseCommand(type=Type.END_TXN, endTxn=pb.CommandEndTxn(request_id=900)),
            pb.BaseCommand(
                type=Type.WATCH_TOPIC_LIST,
                watchTopicList=pb.CommandWatchTopicList(
                    request_id=900, watcher_id=1, namespace="public/default", topics_pattern=".*"
                ),
            ),
        ):
            with pytest.raises(RefusedError) as refused:
                await client.request(command, 900)
            assert refused.value.code is ServerError.NOT_ALLOWED
        closing = pb.CommandWatchTopicListClose(request_id=901, watcher_id=1)
        await client.request(
            pb.BaseCommand(type=Type.WATCH_TOPIC_LIST_CLOSE, watchTopicListClose=closing), 901
        )


async def test_topic_lists_are_filtered_and_hashed() -> None:
    async with serving() as server, await server.connect() as client:
        for topic in ("orders-1", "orders-2-partition-0", "other", "acme/shop/orders-3"):
            await client.producer(topic)
        everything = await client.topics()
        assert len(everything.topics) == 3
        assert not everything.filtered
        orders = await client.topics(pattern="persistent://public/default/orders-.")
        assert orders.filtered
        assert list(orders.topics) == [
            "persistent://public/default/orders-1",
            "persistent://public/default/orders-2-partition-0",
        ]
        unfiltered = await client.topics(pattern="(a+)+")
        assert not unfiltered.filtered
        assert len(unfiltered.topics) == 3
        again = await client.topics(topics_hash=everything.topics_hash)
        assert not again.changed
        assert not again.topics
        with pytest.raises(RefusedError):
            await client.topics("nonsense")


async def test_closing_the_server_lets_clients_hear_everything_said() -> None:
    async with serving() as server:
        client = await server.connect()
        producer = await client.producer("t")
        client.send_bytes(producer.frame(b"x"))
        await producer.until_receipts(1)
        consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
        consumer.flow(1)
        await consumer.receive()
        await server.protocol.close()
        await client.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await server.open()


@pytest.mark.slow
async def test_a_client_that_connects_again_without_end_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As the C++ client does when one of its messages is refused for good."""
    rounds = 5 * LINES_AT_ONCE_MAX
    with caplog.at_level("INFO"):
        async with serving() as server:
            for _ in range(rounds):
                async with await server.connect() as client:
                    producer = await client.producer("t")
                    with pytest.raises(RefusedError):
                        await producer.send(b"x", num_messages_in_batch=10**9)
            await eventually(lambda: not server.protocol.sessions)
    lines = [record.getMessage() for record in caplog.records]
    for what in ("connected with", "opened on", "cannot hold the", "closed"):
        assert LINES_AT_ONCE_MAX <= sum(what in line for line in lines) < LINES_AT_ONCE_MAX + 5
    assert len(lines) < rounds
