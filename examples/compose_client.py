"""A client for a broker that runs elsewhere: what was acknowledged does not come again.

python examples/compose_client.py pulsar://HOST:PORT

Sends messages, acknowledges every second one, goes away, comes back, expects exactly the others.
`docker-compose.yml` runs it. Exits 1 when a message is missing or comes again.
"""

from __future__ import annotations

import sys
import uuid

import pulsar

MESSAGES = 1_000
RECEIVE_TIMEOUT_MS = 10_000
SILENCE_MS = 1_000
"""After this long without a message there is none."""


def main(url: str) -> int:
    """The story; returns the exit code."""
    topic = f"persistent://public/default/compose-demo-{uuid.uuid4()}"
    client = pulsar.Client(url)
    try:
        consumer = subscribe(client, topic)
        send(client, topic)
        for number, message in received(consumer, MESSAGES):
            if number % 2:
                consumer.acknowledge(message)
        consumer.close()
        print(f"{url}: {MESSAGES} messages, every second one acknowledged, consumer gone")

        consumer = subscribe(client, topic)
        again = []
        for number, message in received(consumer, MESSAGES // 2):
            again.append(number)
            consumer.acknowledge(message)
        expected = list(range(0, MESSAGES, 2))
        surplus = count_more(consumer)
    finally:
        client.close()
    print(f"consumer back: {len(again)} of {len(expected)} unacknowledged messages came")
    print(f"{len(set(again) - set(expected)) + surplus} acknowledged messages came again")
    return 0 if sorted(again) == expected and not surplus else 1


def subscribe(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    """A consumer of all messages of the topic, from its beginning the first time."""
    return client.subscribe(
        topic,
        "demo",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )


def send(client: pulsar.Client, topic: str) -> None:
    """All messages, numbered."""
    producer = client.create_producer(topic)
    for number in range(MESSAGES):
        producer.send_async(str(number).encode(), lambda _result, _message_id: None)
    producer.flush()  # raises when one of them was not stored
    producer.close()


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
