"""Every nack with a delay of its own, in Python, against a Pulsar or (without an address) ackgate.

python examples/nack_delays.py [pulsar://HOST:PORT]
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import pulsar

from ackgate.client import MultiplierRedeliveryBackoff, NackingConsumer, NackSettings
from ackgate.testing import BrokerProcess

WAITS_MS: Final = {"tax office": 900, "printer": 300, "bank": 600}
"""How long each of the places that an order needs is away."""

SETTINGS: Final = NackSettings(
    backoff=MultiplierRedeliveryBackoff(min_delay_ms=200, max_delay_ms=800), precision_bits=4
)


def main() -> int:
    """Three orders, each put off for as long as it needs; a fourth that fails again and again."""
    with ExitStack() as stack:
        client = stack.enter_context(closing(pulsar.Client(service_url(stack), logger=quiet())))
        topic = f"orders-{time.time_ns()}"
        consumer = stack.enter_context(
            NackingConsumer.subscribe(
                client,
                topic,
                "billing",
                consumer_type=pulsar.ConsumerType.Shared,
                settings=SETTINGS,
            )
        )
        producer = client.create_producer(topic)
        for place in (*WAITS_MS, "nobody"):
            producer.send(place.encode())
        bill(consumer)
    return 0


def bill(consumer: NackingConsumer) -> None:
    """Put off what cannot be billed yet; what goes on failing, longer each time."""
    done = 0
    began = time.monotonic()
    while done < len(WAITS_MS) + 1:
        message = consumer.receive(timeout_millis=10_000)
        place, attempt = message.data().decode(), message.redelivery_count()
        after_ms = (time.monotonic() - began) * 1_000
        if place in WAITS_MS and attempt == 0:
            consumer.negative_acknowledge(message, delay_ms=WAITS_MS[place])
        elif place == "nobody" and attempt < 3:
            consumer.negative_acknowledge(message)  # by backoff: 200, 400, 800 ms
        else:
            consumer.acknowledge(message)
            done += 1
            print(f"billed after {after_ms:5.0f} ms, attempt {attempt + 1}: {place}")


def service_url(stack: ExitStack) -> str:
    """The address that was given, or that of a broker of our own."""
    if len(sys.argv) > 1:
        return sys.argv[1]
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    return stack.enter_context(BrokerProcess(directory)).service_url


def quiet() -> pulsar.ConsoleLogger:
    """The client tells of errors only."""
    return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


if __name__ == "__main__":
    raise SystemExit(main())
