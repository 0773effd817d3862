"""Writes a data directory with an earlier commit of this repository, for the test that opens it.

    .venv/bin/python -m tests.support.earlier_release 5f141ca

packs what that commit's broker wrote into `tests/broker/earlier_releases/DATE-COMMIT.tar.xz`, with what was
confirmed beside it as JSON. The commit's package runs in this environment, with today's libraries. Its broker
is stopped once, so that acknowledgements and indexes are written in good order, and started again; then it
takes more messages and is killed, so that a journal is left, too.

A release from before some feature leaves that topic out: `--without delayed,batches,schema`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

import pulsar
from pulsar import schema

from ackgate.testing import BrokerProcess

ROOT: Final = Path(__file__).parents[2]
KEPT: Final = ROOT / "tests" / "broker" / "earlier_releases"
BYTES_MAX: Final = 100_000
YEAR_2100_MS: Final = 4_102_444_800_000
LEFT_OUT: Final = ("reserve", "lock")
"""Files without content: room on the disk, and who holds the directory."""

SETTINGS: Final = {
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "managedLedgerMaxEntriesPerLedger": "100",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
BUCKETS: Final = {
    "delayedDeliveryTrackerFactoryClassName": (
        "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
    ),
    "delayedDeliveryMinIndexCountPerBucket": "50",
}

Topics = dict[str, Any]


class User(schema.Record):  # type: ignore[misc]
    name = schema.String()
    age = schema.Integer()


class EarlierBroker(BrokerProcess):
    """A broker of the package in another directory."""

    source = Path()

    @staticmethod
    def environment() -> dict[str, str]:
        # Without PYTHONSAFEPATH the present directory would come first.
        return {**os.environ, "PYTHONPATH": str(EarlierBroker.source), "PYTHONSAFEPATH": "1"}


def topic_name(name: str) -> str:
    return f"persistent://public/default/{name}"


def texts(messages: list[pulsar.Message]) -> list[str]:
    return [message.data().decode() for message in messages]


def received(consumer: pulsar.Consumer, count: int) -> list[pulsar.Message]:
    return [consumer.receive(60_000) for _ in range(count)]


def orders(client: pulsar.Client, topics: Topics) -> None:
    """Single messages with keys; one subscription with holes, one cumulative, one that read nothing."""
    topic = topic_name("orders")
    billing = client.subscribe(topic, "billing", consumer_type=pulsar.ConsumerType.Shared)
    audit = client.subscribe(topic, "audit")
    client.subscribe(topic, "archive").close()
    producer = client.create_producer(topic, batching_enabled=False)
    sent = [f"order {n}" for n in range(240)]
    for n, text in enumerate(sent):
        producer.send(text.encode(), partition_key=f"customer {n % 7}", properties={"n": str(n)})
    for n, message in enumerate(received(billing, len(sent))):
        if n % 3:
            billing.acknowledge(message)
    messages = received(audit, 151)
    audit.acknowledge_cumulative(messages[-1])
    topics[topic] = {
        "messages": sent,
        "unacked": {"billing": sent[::3], "audit": sent[151:], "archive": list(sent)},
    }


def batches(client: pulsar.Client, topics: Topics) -> None:
    """Batches of which single messages are acknowledged."""
    topic = topic_name("batches")
    consumer = client.subscribe(
        topic, "billing", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
    )
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=10,
        batching_max_publish_delay_ms=60_000,
    )
    sent = [f"batched {n}" for n in range(100)]
    for text in sent:
        producer.send_async(text.encode(), None)
    producer.flush()
    for n, message in enumerate(received(consumer, len(sent))):
        if n % 4 == 0:
            consumer.acknowledge(message)
    unacked = [text for n, text in enumerate(sent) if n % 4]
    topics[topic] = {"messages": sent, "unacked": {"billing": unacked}}


def delayed(client: pulsar.Client, topics: Topics) -> None:
    """Messages that are not due for long, and a few that are due at once."""
    topic = topic_name("reminders")
    consumer = client.subscribe(topic, "mail", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    later = [f"later {n}" for n in range(180)]
    now = [f"now {n}" for n in range(5)]
    for n, text in enumerate(later):
        producer.send(text.encode(), deliver_at=YEAR_2100_MS + n * 1000)
    for text in now:
        producer.send(text.encode())
    assert texts(received(consumer, len(now))) == now
    topics[topic] = {
        "messages": later + now,
        "unacked": {"mail": now},
        "delayed": {"mail": len(later)},
    }


def typed(client: pulsar.Client, topics: Topics) -> None:
    """A topic with a schema."""
    topic = topic_name("users")
    form = schema.JsonSchema(User)
    client.subscribe(topic, "billing", schema=form).close()
    producer = client.create_producer(topic, schema=form)
    for n in range(3):
        producer.send(User(name=f"user {n}", age=n))
    sent = [json.dumps({"name": f"user {n}", "age": n}) for n in range(3)]
    topics[topic] = {"messages": sent, "unacked": {"billing": sent}, "schema": "JSON"}


STORIES: Final = {"orders": orders, "batches": batches, "delayed": delayed, "schema": typed}


def write(broker: BrokerProcess, without: set[str]) -> Topics:
    """Topics, and what of them was confirmed."""
    topics: Topics = {}
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with broker:
        client = pulsar.Client(broker.service_url, logger=quiet)
        for name, story in STORIES.items():
            if name not in without:
                story(client, topics)
        client.close()
        if code := broker.stop():
            sys.exit(f"the broker ended with exit code {code}\n{broker.log}")
        broker.start()
        client = pulsar.Client(broker.service_url, logger=quiet)
        orders_topic = topics[topic_name("orders")]
        producer = client.create_producer(topic_name("orders"))
        for n in range(20):
            text = f"order after the start {n}"
            producer.send(text.encode())
            orders_topic["messages"].append(text)
            for unacked in orders_topic["unacked"].values():
                unacked.append(text)
        broker.kill()
    return topics


def git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", ROOT, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("commit")
    parser.add_argument("--without", default="", help="stories this release knows nothing of")
    arguments = parser.parse_args()
    without = set(filter(None, arguments.without.split(",")))
    words = ("log", "-1", "--date=format:%Y-%m-%d-%H%M", "--format=%cd %h", "--abbrev=7")
    date, commit = git(*words, arguments.commit).split()
    with tempfile.TemporaryDirectory() as scratch:
        EarlierBroker.source = Path(scratch) / "source"
        EarlierBroker.source.mkdir()
        archive = subprocess.run(
            ["git", "-C", ROOT, "archive", commit, "ackgate"], check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", EarlierBroker.source], input=archive, check=True)
        settings = SETTINGS | ({} if "delayed" in without else BUCKETS)
        broker = EarlierBroker(Path(scratch) / "data", settings=settings)
        topics = write(broker, without)
        packed = KEPT / f"{date}-{commit}.tar.xz"
        KEPT.mkdir(exist_ok=True)
        with tarfile.open(packed, "w:xz") as tar:
            for path in sorted(broker.data_directory.rglob("*")):
                if path.is_file() and path.name not in LEFT_OUT:
                    tar.add(path, path.relative_to(broker.data_directory), filter=anonymous)
    if packed.stat().st_size > BYTES_MAX:
        sys.exit(f"{packed} has {packed.stat().st_size} bytes, more than {BYTES_MAX}")
    made = f"python -m tests.support.earlier_release {commit}"
    made += f" --without {arguments.without}" if without else ""
    told = {"commit": commit, "date": date, "made": made, "settings": settings, "topics": topics}
    packed.with_suffix("").with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n")
    print(packed.relative_to(ROOT), packed.stat().st_size, "bytes")


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the user who made it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
