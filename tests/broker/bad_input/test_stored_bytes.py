"""A data directory that was damaged while no broker ran: said, by name, and never served as truth.

Two topics with every second message acked are written once; each test damages a copy. What a broker
then serves must be what was sent, at the place where it was sent; what cannot be read is an error
that names it; a topic whose files are whole has lost nothing.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pulsar
import pytest

from ackgate.testing import BrokerFailedError, BrokerProcess
from tests.broker.target import Target, eventually, numbered, payloads, receive, send_all

pytestmark = pytest.mark.slow

MESSAGES = 200
TOPICS = ("left", "right")
SILENCE_MS = 700
SEEDS = range(int(os.environ.get("ACKGATE_TEST_SEEDS", "1")))


@dataclass(frozen=True)
class Written:
    """A directory and what was in it, by topic: position -> payload."""

    directory: Path
    settings: dict[str, str]
    sent: dict[str, dict[tuple[int, int], bytes]]


SECRET = {"managedLedgerDigestType": "MAC", "managedLedgerPassword": "ours"}


@pytest.fixture(scope="module", params=["killed", "stopped"])
def written(request, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Killed: most is in the journal, under checksums. Stopped: in ledger files, under MACs."""
    settings = SECRET if request.param == "stopped" else {}
    directory = tmp_path_factory.mktemp("written") / "data"
    sent = {}
    with BrokerProcess(directory, settings=settings) as broker:
        target = Target(broker.service_url, broker.admin_url, is_ackgate=True)
        client = pulsar.Client(broker.service_url, logger=errors_only())
        for topic in TOPICS:
            consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
            ids = send_all(client.create_producer(topic), numbered(MESSAGES, topic))
            sent[topic] = {
                (i.ledger_id(), i.entry_id()): payload
                for i, payload in zip(ids, numbered(MESSAGES, topic), strict=True)
            }
            for message in receive(consumer, MESSAGES)[::2]:
                consumer.acknowledge(message)
            full = f"persistent://public/default/{topic}"
            eventually(partial(all_persisted, target, full))
        client.close()
        if request.param == "stopped":
            broker.stop()
    return Written(directory, settings, sent)


def all_persisted(target: Target, topic: str) -> bool:
    ack_state = target.subscription_stats(topic, "s")["ackState"]
    return bool(ack_state["rangesPersisted"] == MESSAGES // 2 - 1)


@pytest.fixture
def copy(written: Written, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(written.directory, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def serve(copy: Path, written: Written) -> Iterator[Callable[[], BrokerProcess]]:
    """Start a broker on the copy."""
    broker = BrokerProcess(copy, settings=written.settings)
    yield broker.start
    broker.kill()


def errors_only() -> pulsar.ConsoleLogger:
    return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def read_all(broker: BrokerProcess, topic: str) -> dict[tuple[int, int], bytes]:
    """Everything that a reader gets before silence."""
    client = pulsar.Client(broker.service_url, operation_timeout_seconds=3, logger=errors_only())
    found = {}
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        while reader.has_message_available():
            message = reader.read_next(SILENCE_MS)
            message_id = message.message_id()
            found[message_id.ledger_id(), message_id.entry_id()] = message.data()
        return found
    except pulsar.PulsarException:
        return found  # a topic that cannot be loaded or read is a clear error, too
    finally:
        client.close()


def check_is_whole(broker: BrokerProcess, written: Written, topic: str) -> None:
    """Nothing is missing, and exactly the unacked messages come."""
    assert read_all(broker, topic) == written.sent[topic]
    client = pulsar.Client(broker.service_url, logger=errors_only())
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    assert payloads(receive(consumer, MESSAGES // 2)) == numbered(MESSAGES, topic)[1::2]
    client.close()


def check_is_no_lie(broker: BrokerProcess, written: Written, topic: str) -> bool:
    """What is there is what was sent; answers whether it is all."""
    found = read_all(broker, topic)
    assert found.items() <= written.sent[topic].items()
    return found == written.sent[topic]


def files(directory: Path, *parts: str) -> list[Path]:
    """Files below, the largest first."""
    found = [path for path in directory.joinpath(*parts).rglob("*.avro") if path.is_file()]
    return sorted(found, key=lambda path: path.stat().st_size, reverse=True)


def flip_bits(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 3, 20))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut_off(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))])


def overwrite(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(path.stat().st_size))


def empty(path: Path, rng: random.Random) -> None:
    path.write_bytes(b"")


DAMAGES = [flip_bits, cut_off, overwrite, empty]


# ---------------------------------------------------------------- entries


def test_the_undamaged_copy_is_whole(serve, written):
    broker = serve()
    for topic in TOPICS:
        check_is_whole(broker, written, topic)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entries_are_never_served(serve, copy, written, damage, seed):
    rng = random.Random(f"{damage.__name__} {seed}")
    victim = rng.choice(files(copy, "bookies"))
    damage(victim, rng)
    try:
        broker = serve()
    except BrokerFailedError as error:
        assert victim.name in str(error)  # noqa: PT017
        return
    are_whole = [check_is_no_lie(broker, written, topic) for topic in TOPICS]
    if not all(are_whole):
        eventually(lambda: "WARNING" in broker.log or "ERROR" in broker.log)
    if victim.parent.name == "ledgers":  # a file of one ledger, which is of one topic at most
        assert any(are_whole)


# ---------------------------------------------------------------- metadata


def remove(path: Path, rng: random.Random) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [overwrite, empty, remove])
def test_a_metadata_store_that_is_lost_is_not_replaced_by_a_new_one(
    serve, copy, written, damage, tmp_path
):
    """Ledger ids would be given away a second time."""
    kept = tmp_path / "kept"
    kept.mkdir()
    for path in copy.glob("metadata.sqlite*"):
        shutil.copy(path, kept)
        if path.name != "metadata.sqlite":
            path.unlink()
    damage(copy / "metadata.sqlite", random.Random(1))
    with pytest.raises(BrokerFailedError, match=r"metadata\.sqlite"):
        serve()
    for path in copy.glob("metadata.sqlite*"):
        path.unlink()
    shutil.copytree(kept, copy, dirs_exist_ok=True)
    broker = serve()
    for topic in TOPICS:
        check_is_whole(broker, written, topic)


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_metadata_invents_nothing(serve, copy, written, seed):
    rng = random.Random(seed)
    stores = [path for path in copy.glob("metadata.sqlite*") if path.stat().st_size > 100]
    flip_bits(rng.choice(stores), rng)
    try:
        broker = serve()
    except BrokerFailedError as error:
        assert "metadata.sqlite" in str(error) or str(copy) in str(error)  # noqa: PT017
        return
    for topic in TOPICS:
        check_is_no_lie(broker, written, topic)


@pytest.mark.parametrize("name", ["bookie.json", "cluster.json"])
def test_a_damaged_identity_is_made_anew_and_named(serve, copy, written, name):
    path = copy / "bookies" / "0" / name
    path.write_text("{]")
    broker = serve()
    assert f"{path} is damaged" in broker.log
    for topic in TOPICS:
        check_is_whole(broker, written, topic)


def test_an_identity_that_is_lost_is_named(serve, copy):
    for name in ("bookie.json", "cluster.json"):
        (copy / "bookies" / "0" / name).write_text("{]")
    with pytest.raises(BrokerFailedError, match=r"bookie\.json.*cluster\.json"):
        serve()


# ---------------------------------------------------------------- strangers


def test_files_of_strangers_are_left_alone(serve, copy, written):
    bookie = copy / "bookies" / "0"
    strangers = [
        copy / "README.txt",
        bookie / "notes",
        bookie / "ledgers" / "core.1234",
        bookie / "ledgers" / "0000000000000000001-0000000000000000000-nobody.avro",
        bookie / "journal" / "lost+found",
        bookie / "ledgers" / ".hidden.avro",
    ]
    for stranger in strangers:
        stranger.write_bytes(b"not yours")
    broker = serve()
    for topic in TOPICS:
        check_is_whole(broker, written, topic)
    broker.stop()
    assert [stranger.read_bytes() for stranger in strangers] == [b"not yours"] * len(strangers)


def test_a_ledger_file_of_another_broker_does_not_get_in(serve, copy, written, tmp_path):
    """Same ledger ids, other entries: only the digests, made with another key, tell."""
    settings = {**SECRET, "managedLedgerPassword": "theirs"}
    with BrokerProcess(tmp_path / "other", settings=settings) as other:
        client = pulsar.Client(other.service_url, logger=errors_only())
        for topic in ("x", "y", "z"):
            producer = client.create_producer(topic)
            send_all(producer, numbered(50, "foreign"))
        client.close()
        other.stop()
    foreign = files(tmp_path / "other", "bookies", "0", "ledgers")
    assert foreign
    for path in foreign:
        shutil.copy(path, copy / "bookies" / "0" / "ledgers" / path.name)
    broker = serve()
    for topic in TOPICS:
        check_is_no_lie(broker, written, topic)
