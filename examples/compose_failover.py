"""Two brokers, and the one that serves is killed: a client goes on, and nothing acked comes again.

python examples/compose_failover.py pulsar://HOST:PORT,HOST:PORT http://HOST:PORT

Sends messages, acknowledges every second one, finds out which broker serves the topic, ends that
process with SIGKILL, and expects the other broker to hand out exactly the unacknowledged ones.
`docker-compose.yml` runs it in the process namespace of both brokers, so that it can. By hand: two
brokers of this machine and user. Exits 1 when a message is missing or comes again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pulsar

MESSAGES = 1_000
RECEIVE_TIMEOUT_MS = 60_000
"""The session of a killed broker must expire before another may serve its topics."""

SILENCE_MS = 1_000
ACKS_SETTLE_SECONDS = 1.0
"""An acknowledgement is durable some milliseconds after it arrived; the client gathers them first."""

BROKERS_START_SECONDS = 60.0


def main(service_url: str, admin_url: str) -> int:
    """The story; returns the exit code."""
    topic = f"failover-demo-{uuid.uuid4()}"
    wait_for_brokers(admin_url, len(service_url.split(",")))
    client = pulsar.Client(service_url, operation_timeout_seconds=60)
    try:
        consumer = client.subscribe(
            topic,
            "demo",
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        producer = client.create_producer(topic)
        send(producer, 0)
        for number, message in received(consumer, MESSAGES):
            if number % 2:
                consumer.acknowledge(message)
        time.sleep(ACKS_SETTLE_SECONDS)
        first = owner_of(admin_url, topic)
        print(f"{first} serves the topic: {MESSAGES} messages, every second one acknowledged")

        killed_at = time.monotonic()
        os.kill(pid_of_broker(first), signal.SIGKILL)
        print(f"{first} was killed")
        send(producer, MESSAGES)  # the same producer and consumer: they find the new owner
        again = [number for number, _ in received(consumer, MESSAGES // 2 + MESSAGES)]
        seconds = time.monotonic() - killed_at
        surplus = count_more(consumer)
    finally:
        client.close()
    expected = {*range(0, MESSAGES, 2), *range(MESSAGES, 2 * MESSAGES)}
    missing, repeated = expected - set(again), set(again) - expected
    print(f"the other broker: everything {seconds:.1f} s after the kill")
    print(f"{len(missing)} messages are missing, {len(repeated)} acknowledged messages came again")
    return 0 if not missing and not repeated and not surplus else 1


def wait_for_brokers(admin_url: str, count: int) -> None:
    """Return when this many brokers have found each other."""
    deadline = time.monotonic() + BROKERS_START_SECONDS
    while time.monotonic() < deadline:
        try:
            brokers = answer(f"{admin_url}/admin/v2/brokers")
        except OSError:
            brokers = []
        if len(brokers) >= count:
            return
        time.sleep(0.2)
    raise SystemExit(f"{admin_url}: not {count} brokers after {BROKERS_START_SECONDS} s")


def owner_of(admin_url: str, topic: str) -> str:
    """Address of the broker that serves a topic."""
    found = answer(f"{admin_url}/lookup/v2/topic/persistent/public/default/{topic}")
    return str(found["brokerUrl"])


def answer(url: str) -> Any:  # noqa: ANN401 - JSON
    """What a broker's admin interface says."""
    with urllib.request.urlopen(url, timeout=5) as reply:
        return json.load(reply)


def pid_of_broker(service_url: str) -> int:
    """The process that advertises this address."""
    address = urlsplit(service_url)
    wanted = {f"advertisedAddress={address.hostname}"}
    if address.port != 6650:
        wanted.add(str(address.port))
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if "broker" in words and wanted <= set(words):
                return int(entry.name)
    raise SystemExit(f"the process of {service_url} cannot be seen from here")


def send(producer: pulsar.Producer, first: int) -> None:
    """As many messages again, numbered from `first` on."""
    for number in range(first, first + MESSAGES):
        producer.send_async(str(number).encode(), lambda _result, _message_id: None)
    producer.flush()  # raises when one of them was not stored


def received(consumer: pulsar.Consumer, count: int) -> list[tuple[int, pulsar.Message]]:
    """The next messages with their numbers. Raises `pulsar.Timeout` when they do not come."""
    messages = [consumer.receive(RECEIVE_TIMEOUT_MS) for _ in range(count)]
    return [(int(message.data()), message) for message in messages]


def count_more(consumer: pulsar.Consumer) -> int:
    """How many messages come that should not."""
    count = 0
    while True:
        try:
            consumer.receive(SILENCE_MS)
        except pulsar.Timeout:
            return count
        count += 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
