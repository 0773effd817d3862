"""A client that sends everything until it is confirmed, and a broker that fails: each message once.

The client cuts its messages into entries (singles, batches with or without their highest id,
chunks) and sends them in order. At any time what is in flight may be stored or not, and the client
goes on from its first entry without a receipt, or begins all over with other batches. The broker may
forget everything but its last save and what is stored. A consumer that tolerates nothing (a chunk
twice, a chunk out of order) must find every message, once, in order.

Clients that batch by key, or number their entries instead of their messages, are there as well: of
those every message must be found, and once as long as they cut in the same way.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from zlib import crc32

import hypothesis.strategies as st
from hypothesis import given

from ackgate.broker.topic.deduplication import Deduplication, SequenceIds, Verdict, sequence_ids
from ackgate.broker.wire.entry import Entry, unpack
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.cursor import Position
from ackgate.persistence.messages.frame import metadata_span, seal_entry
from ackgate.persistence.records.envelope import Compression, compressed

NAMES = ("p", "q")
CHUNK_BYTES = 3


PLAIN, BY_KEY, BY_ENTRY = "plain", "by key", "by entry"


class Sent:
    """An entry of the client, with what the SEND command says."""

    def __init__(self, metadata: pb.MessageMetadata, payload: bytes) -> None:
        self.metadata = metadata
        self.entry = seal_entry(metadata.SerializeToString(), payload)
        self.count = max(1, metadata.num_messages_in_batch)


def cut(name: str, chunked: set[int], total: int, seed: int) -> list[Sent]:
    """Messages 0..total-1 as entries; the same seed cuts in the same way."""
    choice = random.Random(seed)
    entries: list[Sent] = []
    sequence_id = 0
    while sequence_id < total:
        metadata = described(name, sequence_id, choice)
        if sequence_id in chunked:
            entries += chunks(metadata, body(name, sequence_id))
            sequence_id += 1
            continue
        most = 1
        while sequence_id + most < total and sequence_id + most not in chunked and most < 5:
            most += 1
        count = choice.randint(1, most)
        if count == 1 and choice.random() < 0.5:
            entries.append(Sent(metadata, body(name, sequence_id)))
        else:
            ids = list(range(sequence_id, sequence_id + count))
            entries.append(batch(metadata, name, ids, choice, may_say_highest=True))
        sequence_id += count
    return entries


def cut_by_key(name: str, total: int, seed: int) -> list[Sent]:
    """As the C++ client: of some messages a batch for each key, in the order of their first ids."""
    choice = random.Random(seed)
    entries = []
    sequence_id = 0
    while sequence_id < total:
        stop = min(total, sequence_id + choice.randint(1, 6))
        keys: dict[int, list[int]] = {}
        for each in range(sequence_id, stop):
            keys.setdefault(crc32(f"{name} {each}".encode()) % 3, []).append(each)
        for ids in sorted(keys.values()):
            entries.append(batch(described(name, ids[0], choice), name, ids, choice))
        sequence_id = stop
    return entries


def cut_by_entry(name: str, total: int, seed: int) -> list[Sent]:
    """As clients do whose ids count entries, and whose messages have none."""
    choice = random.Random(seed)
    entries: list[Sent] = []
    sequence_id = 0
    while sequence_id < total:
        count = min(total - sequence_id, choice.randint(1, 5))
        ids = list(range(sequence_id, sequence_id + count))
        metadata = described(name, len(entries), choice)
        entries.append(batch(metadata, name, ids, choice, has_ids=False))
        sequence_id += count
    return entries


def described(name: str, sequence_id: int, choice: random.Random) -> pb.MessageMetadata:
    return pb.MessageMetadata(
        producer_name=name, sequence_id=sequence_id, publish_time=choice.randint(1, 99)
    )


def body(name: str, sequence_id: int) -> bytes:
    return f"{name} {sequence_id}".encode() * (1 + sequence_id % 3)


def batch(
    metadata: pb.MessageMetadata,
    name: str,
    ids: list[int],
    choice: random.Random,
    *,
    has_ids: bool = True,
    may_say_highest: bool = False,
) -> Sent:
    parts = []
    for sequence_id in ids:
        text = body(name, sequence_id)
        single = pb.SingleMessageMetadata(payload_size=len(text))
        if has_ids:
            single.sequence_id = sequence_id
        head = single.SerializeToString()
        parts += [len(head).to_bytes(4, "big"), head, text]
    payload = b"".join(parts)
    metadata.num_messages_in_batch = len(ids)
    if may_say_highest and choice.random() < 0.5:
        metadata.highest_sequence_id = ids[-1]
    compression = choice.choice(list(Compression))
    if compression:
        metadata.compression = pb.CompressionType.ValueType(compression)
        metadata.uncompressed_size = len(payload)
    return Sent(metadata, compressed(payload, compression))


def chunks(metadata: pb.MessageMetadata, text: bytes) -> list[Sent]:
    pieces = [text[at : at + CHUNK_BYTES] for at in range(0, len(text), CHUNK_BYTES)]
    sent = []
    for chunk_id, piece in enumerate(pieces):
        described = pb.MessageMetadata()
        described.CopyFrom(metadata)
        described.uuid = f"{metadata.producer_name}-{metadata.sequence_id}"
        described.num_chunks_from_msg = len(pieces)
        described.total_chunk_msg_size = len(text)
        described.chunk_id = chunk_id
        sent.append(Sent(described, piece))
    return sent


class Broker:
    """The least that a topic does for its de-duplication."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.in_flight: list[tuple[str, SequenceIds, bytes, Callable[[], None]]] = []
        self.dedup = Deduplication({}, 100)
        self.saved: tuple[dict[str, int], int] = ({}, 0)

    def send(self, sent: Sent, confirm: Callable[[], None]) -> bool:
        """False: the outcome is not known yet."""
        metadata, entry = sent.metadata, sent.entry
        name = metadata.producer_name
        ids = sequence_ids(metadata.sequence_id, metadata.highest_sequence_id, entry, metadata)
        assert ids is not None
        match self.dedup.check(name, ids):
            case Verdict.UNKNOWN:
                return False
            case Verdict.DUPLICATE:
                confirm()
            case Verdict.NEW:
                self.in_flight.append((name, ids, entry, confirm))
            case Verdict.PARTLY:
                rest = self.dedup.without_durable(name, ids, entry, metadata)
                assert (rest is None) == (ids.whole < ids.last)
                assert rest is None or 0 < rest[1] < sent.count
                self.in_flight.append((name, ids, rest[0] if rest else entry, confirm))
        return True

    def store(self, count: int) -> None:
        """So many that are in flight become durable."""
        done, self.in_flight = self.in_flight[:count], self.in_flight[count:]
        for name, ids, entry, confirm in done:
            position = self._append(entry)
            self.dedup.confirmed(name, ids, position)
            confirm()

    def _append(self, entry: bytes) -> Position:
        position = Position(1, len(self.log))
        self.log.append(Entry(position, entry, 1))
        return position

    def fail(self) -> None:
        """What is in flight is not stored."""
        for name, *_ in self.in_flight:
            self.dedup.failed(name)
        self.in_flight.clear()

    def save(self) -> None:
        needed = [position.entry_id for position in self.dedup.needed_positions()]
        self.saved = self.dedup.saved(), min(needed, default=len(self.log))

    def crash(self, stored: int) -> None:
        """So many in flight are stored though nobody hears of it; the rest is lost."""
        for _, _, entry, _ in self.in_flight[:stored]:
            self._append(entry)
        self.in_flight.clear()
        ids, start = self.saved
        self.dedup = Deduplication(ids, 100)
        for entry in self.log[start:]:
            self.dedup.replay(entry)


class Client:
    """One producer name: sends in order, keeps what has no receipt."""

    def __init__(self, name: str, chunked: set[int], total: int, style: str = PLAIN) -> None:
        self.name, self.chunked, self.total, self.style = name, chunked, total, style
        self.begins = -1
        self.begin(0)

    def begin(self, seed: int) -> None:
        """A new run: from the start, cut by this seed. Receipts of the old one are not heard."""
        self.begins += 1
        if self.style == BY_KEY:
            self.entries = cut_by_key(self.name, self.total, seed)
        elif self.style == BY_ENTRY:
            self.entries = cut_by_entry(self.name, self.total, 0)  # its ids mean nothing else
        else:
            self.entries = cut(self.name, self.chunked, self.total, seed)
        self.unconfirmed = list(range(len(self.entries)))
        self.reconnect()

    def reconnect(self) -> None:
        self.next = self.unconfirmed[0] if self.unconfirmed else len(self.entries)
        self.connection = object()

    def send_one(self, broker: Broker) -> None:
        if self.next >= len(self.entries):
            return
        number, connection = self.next, self.connection

        def confirm() -> None:
            if connection is self.connection and number in self.unconfirmed:
                self.unconfirmed.remove(number)

        self.next += 1
        if not broker.send(self.entries[number], confirm):
            self.reconnect()


def consumed(log: list[Entry]) -> dict[str, list[int]]:
    """What a strict consumer makes of the log: sequence ids by producer, in order."""
    found: dict[str, list[int]] = {name: [] for name in NAMES}
    joining: dict[str, list[bytes]] = {}
    for entry in log:
        metadata = entry.metadata
        payload = entry.payload[metadata_span(entry.payload)[1] :]
        name = metadata.producer_name
        if metadata.num_chunks_from_msg > 1:
            pieces = joining.setdefault(metadata.uuid, [])
            assert metadata.chunk_id == len(pieces), "a chunk is out of order"
            pieces.append(payload)
            if len(pieces) < metadata.num_chunks_from_msg:
                continue
            assert b"".join(joining.pop(metadata.uuid)) == body(name, metadata.sequence_id)
            found[name].append(metadata.sequence_id)
        elif metadata.HasField("num_messages_in_batch"):
            found[name] += numbers_in(entry, name)
        else:
            assert payload == body(name, metadata.sequence_id)
            found[name].append(metadata.sequence_id)
    return found


def numbers_in(entry: Entry, name: str) -> list[int]:
    """The numbers of the messages of a batch, by what is in them."""
    batch = unpack(entry.payload, entry.metadata)
    assert batch is not None
    found = []
    start = 0
    for stop in batch.stops:
        head = int.from_bytes(batch.payload[start : start + 4], "big")
        text = batch.payload[start + 4 + head : stop].decode()
        number = int(text.split(f"{name} ")[1])
        assert text.encode() == body(name, number)
        found.append(number)
        start = stop
    return found


@given(st.integers(0, 2**32))
def test_every_message_is_there_once_and_in_order(seed: int) -> None:
    choice = random.Random(seed)
    total = 16
    chunked = set(choice.sample(range(total), choice.randint(0, 5)))
    clients = {name: Client(name, chunked, total) for name in NAMES}
    broker = work(choice, clients)
    assert consumed(broker.log) == {name: list(range(total)) for name in NAMES}


@given(st.integers(0, 2**32), st.sampled_from([BY_KEY, BY_ENTRY]))
def test_every_message_of_other_clients_is_there(seed: int, style: str) -> None:
    choice = random.Random(seed)
    total = 16
    clients = {name: Client(name, set(), total, style) for name in NAMES}
    broker = work(choice, clients)
    for name, numbers in consumed(broker.log).items():
        assert set(numbers) == set(range(total))
        if style == BY_ENTRY or not clients[name].begins:
            assert len(numbers) == total


def work(choice: random.Random, clients: dict[str, Client]) -> Broker:
    """Trouble, and then peace until everything is confirmed."""
    broker = Broker()
    for _ in range(60):
        client = clients[choice.choice(NAMES)]
        what = choice.choices(
            ["send", "store", "reconnect", "begin", "save", "fail", "crash"],
            [12, 12, 2, 1, 3, 1, 2],
        )[0]
        if what == "send":
            for _ in range(choice.randint(1, 6)):
                client.send_one(broker)
        elif what == "store":
            broker.store(choice.randint(1, 5))
        elif what == "reconnect":
            client.reconnect()
        elif what == "begin":
            client.begin(choice.randint(0, 9))
        elif what == "save":
            broker.save()
        else:
            if what == "fail":
                broker.fail()
            else:
                broker.crash(choice.randint(0, 4))
            for each in clients.values():
                each.reconnect()
    for client in clients.values():
        for _ in range(20 * client.total):
            client.send_one(broker)
            broker.store(100)
            if client.next >= len(client.entries):
                client.reconnect()
        assert not client.unconfirmed
    return broker


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20)), max_size=60))
def test_no_sequence_id_is_stored_twice(sends: list[tuple[str, int]]) -> None:
    dedup = Deduplication({}, 100)
    stored: set[tuple[str, int]] = set()
    for name, sequence_id in sends:
        ids = SequenceIds(sequence_id, sequence_id, sequence_id)
        if dedup.check(name, ids) is Verdict.NEW:
            assert (name, sequence_id) not in stored
            stored.add((name, sequence_id))
            dedup.confirmed(name, ids, Position(0, len(stored)))


@given(st.binary(max_size=60), st.integers(2, 9), st.sampled_from(Compression))
def test_a_payload_that_is_no_batch_is_not_unpacked_and_does_no_harm(
    payload: bytes, count: int, compression: Compression
) -> None:
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        num_messages_in_batch=count,
        compression=pb.CompressionType.ValueType(compression),
        uncompressed_size=len(payload),
    )
    for content in (payload, compressed(payload, compression)):
        found = unpack(seal_entry(metadata.SerializeToString(), content), metadata)
        assert found is None or len(found.stops) == count
