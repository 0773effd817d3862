"""What the Python client of Pulsar lacks, round the real one: nacks that wait each for its own time.

Edge; needs the extra ``client``. Works with a Pulsar and with this project's broker alike::

    consumer = NackingConsumer.subscribe(
        client, "orders", "billing", consumer_type=pulsar.ConsumerType.Shared,
        settings=NackSettings(backoff=MultiplierRedeliveryBackoff(1_000, 60_000)),
    )
    message = consumer.receive()
    consumer.negative_acknowledge(message)                    # by backoff: 1 s, 2 s, 4 s ...
    consumer.negative_acknowledge(message, delay_ms=30_000)   # or so
    consumer.acknowledge(message)                             # or never again
"""

from ackgate.dispatcher.nacks import MultiplierRedeliveryBackoff, NackSettings
from ackgate.extras import named_extras

with named_extras():
    from ackgate.client.nacking_consumer import NackingConsumer

__all__ = ["MultiplierRedeliveryBackoff", "NackSettings", "NackingConsumer"]
