"""Client work, each run in a process of its own: ``python -m bench.load WORKLOAD JSON``.

Prints one JSON object. Only the real ``pulsar-client`` is used, so the same work runs against any
broker that speaks the protocol.
"""

from __future__ import annotations

import array
import itertools
import json
import os
import random
import sys
import time
from typing import TYPE_CHECKING, Any

import pulsar

if TYPE_CHECKING:
    from collections.abc import Callable

PAYLOAD = bytes(range(100))
SILENCE_MS = 1500
"""No message for so long means that no more come."""


def first_message(url: str, topic: str) -> dict[str, Any]:
    """One message sent, received and acked; when that was done by the wall clock."""
    client = _client(url)
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    client.create_producer(topic).send(PAYLOAD)
    consumer.acknowledge(consumer.receive(timeout_millis=10_000))
    done = time.time()
    client.close()
    return {"done": done}


def publish(
    url: str,
    topic: str,
    count: int,
    *,
    batched: bool,
    message_bytes: int = len(PAYLOAD),
    trust: str | None = None,
    token: str | None = None,
) -> dict[str, Any]:
    """`count` messages, asynchronously; confirmed per second. `trust`: authorities of TLS, PEM."""
    client = _client(url, trust, token)
    payload = (PAYLOAD * (message_bytes // len(PAYLOAD) + 1))[:message_bytes]
    _subscribe(client, topic, 1).close()  # so that the messages are kept
    producer = client.create_producer(
        topic,
        batching_enabled=batched,
        batching_max_publish_delay_ms=2,
        max_pending_messages=10_000,
        block_if_queue_full=True,
    )
    began = time.perf_counter()
    for _ in range(count):
        producer.send_async(payload, None)  # a callback would measure the interpreter's lock
    producer.flush()
    seconds = time.perf_counter() - began
    client.close()
    return {"per_second": count / seconds}


def consume(
    url: str, topic: str, count: int, *, trust: str | None = None, token: str | None = None
) -> dict[str, Any]:
    """`count` messages received and acked one by one on a Shared subscription."""
    client = _client(url, trust, token)
    consumer = _subscribe(client, topic, 1000)
    consumer.acknowledge(consumer.receive(timeout_millis=20_000))
    began = time.perf_counter()
    for _ in range(count - 1):
        consumer.acknowledge(consumer.receive(timeout_millis=20_000))
    seconds = time.perf_counter() - began
    client.close()
    return {"per_second": (count - 1) / seconds}


def ack_shuffled(url: str, topic: str, count: int, seed: int, linger: float) -> dict[str, Any]:
    """Receive `count`, ack half of them in random order, wait a little, say which."""
    client = _client(url)
    consumer = _subscribe(client, topic, count)
    producer = client.create_producer(topic, block_if_queue_full=True, max_pending_messages=10_000)
    for index in range(count):
        producer.send_async(str(index).encode(), lambda *_: None)
    producer.flush()
    messages = [consumer.receive(timeout_millis=20_000) for _ in range(count)]
    chosen = random.Random(seed).sample(range(count), count // 2)
    for index in chosen:
        consumer.acknowledge(messages[index])
    time.sleep(linger)
    return {"acked": [int(messages[index].data()) for index in chosen]}


def receive_all(url: str, topic: str) -> dict[str, Any]:
    """Everything that comes until silence."""
    client = _client(url)
    consumer = _subscribe(client, topic, 1000)
    got = _until_silence(consumer)
    client.close()
    return {"received": [int(message.data()) for message in got]}


def gate(url: str, admin: str, topic: str, count: int, queue: int) -> dict[str, Any]:
    """Every second message acked until delivery stops; then the holes are acked."""
    import urllib.request

    client = _client(url)
    consumer = _subscribe(client, topic, queue)
    producer = client.create_producer(topic, block_if_queue_full=True, max_pending_messages=10_000)
    for index in range(count):
        producer.send_async(str(index).encode(), lambda *_: None)
    producer.flush()
    held: list[pulsar.Message] = []
    received = 0
    while True:
        try:
            message = consumer.receive(timeout_millis=SILENCE_MS)
        except pulsar.Timeout:
            break
        received += 1
        if int(message.data()) % 2:
            consumer.acknowledge(message)
        else:
            held.append(message)
    path = f"{admin}/admin/v2/persistent/public/default/{topic}/stats"
    with urllib.request.urlopen(path, timeout=5) as answer:
        stats = json.load(answer)["subscriptions"]["s"]
    for message in held:
        consumer.acknowledge(message)
    began = time.perf_counter()
    went_on: float | None = None
    if received < count:
        message = consumer.receive(timeout_millis=20_000)
        went_on = (time.perf_counter() - began) * 1000
        consumer.acknowledge(message)
    client.close()
    return {
        "received": received,
        "ranges": stats["nonContiguousDeletedMessagesRanges"],
        "is_blocked": stats.get("isBlockedOnAckStatePersistent"),
        "went_on_ms": went_on,
    }


def handover(url: str, admin: str, topic: str, rounds: int) -> dict[str, Any]:
    """A steady stream; in each round the topic's bundle is unloaded. The longest silences, in ms."""
    import threading
    import urllib.request

    def answer(url: str, method: str = "GET") -> bytes:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as told:
            return bytes(told.read())

    client = _client(url)
    consumer = _subscribe(client, topic, 1000)
    producer = client.create_producer(topic, block_if_queue_full=True)
    arrivals: list[float] = []
    ended = threading.Event()

    def receive() -> None:
        while not ended.is_set():
            try:
                message = consumer.receive(timeout_millis=200)
            except pulsar.Timeout:
                continue
            arrivals.append(time.perf_counter())
            consumer.acknowledge(message)

    def send() -> None:
        while not ended.wait(0.002):
            producer.send_async(PAYLOAD, None)

    threads = [threading.Thread(target=work) for work in (receive, send)]
    for thread in threads:
        thread.start()
    where = f"lookup/v2/topic/persistent/public/default/{topic}"
    silences = []
    for _ in range(rounds):
        time.sleep(1)
        bundle = answer(f"{admin}/{where}/bundle").decode().strip('"')
        owner = json.loads(answer(f"{admin}/{where}"))["httpUrl"]
        began = len(arrivals)
        answer(f"{owner}/admin/v2/namespaces/public/default/{bundle}/unload", "PUT")
        time.sleep(2)
        seen = arrivals[began - 1 :]
        silences.append(1000 * max(after - before for before, after in itertools.pairwise(seen)))
    ended.set()
    for thread in threads:
        thread.join()
    client.close()
    return {"silences_ms": silences}


def tail(
    url: str,
    topic: str,
    *,
    seconds: float,
    warm_seconds: float,
    per_second: int,
    message_bytes: int,
    batched: bool,
) -> dict[str, Any]:
    """A steady stream; ms from the moment at which a message was due to its arrival."""
    import gc
    import threading

    client = _client(url)
    consumer = _subscribe(client, topic, 10_000)
    producer = client.create_producer(
        topic,
        batching_enabled=batched,
        batching_max_publish_delay_ms=1,
        max_pending_messages=100_000,
        block_if_queue_full=True,
    )
    count = int((warm_seconds + seconds) * per_second)
    skipped = int(warm_seconds * per_second)
    padding = bytes(message_bytes - 8)
    took_ns = array.array("q", bytes(8 * count))
    began_ns = time.perf_counter_ns() + 100_000_000

    def receive() -> None:
        for _ in range(count):
            message = consumer.receive(timeout_millis=60_000)
            now_ns = time.perf_counter_ns()
            index = int.from_bytes(message.data()[:8])
            took_ns[index] = now_ns - began_ns - index * 1_000_000_000 // per_second
            consumer.acknowledge(message)

    gc.collect()
    gc.freeze()
    gc.disable()  # the client's own pauses are not the broker's
    receiving = threading.Thread(target=receive)
    receiving.start()
    sent = 0
    while sent < count:
        due = (time.perf_counter_ns() - began_ns) * per_second // 1_000_000_000 + 1
        while sent < min(due, count):
            producer.send_async(sent.to_bytes(8) + padding, None)
            sent += 1
        time.sleep(0.0005)
    receiving.join()
    late_by_s = (time.perf_counter_ns() - began_ns) / 1e9 - count / per_second
    client.close()
    return {**_percentiles(took_ns[skipped:]), "ended_late_s": round(late_by_s, 2)}


def _percentiles(took_ns: array.array[int]) -> dict[str, float]:
    ordered = sorted(took_ns)
    places = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
    last = len(ordered) - 1
    figures = {
        f"{name}_ms": round(ordered[round(last * share)] / 1e6, 2) for name, share in places.items()
    }
    return {**figures, "max_ms": round(ordered[-1] / 1e6, 2), "messages": len(ordered)}


def idle_topics(url: str, prefix: str, count: int, *, token: str | None = None) -> dict[str, Any]:
    """`count` topics, each with one subscription that stays connected for a moment."""
    client = _client(url, token=token)
    for index in range(count):
        client.subscribe(f"{prefix}-{index}", "s", consumer_type=pulsar.ConsumerType.Shared).close()
    client.close()
    return {"topics": count}


def _until_silence(consumer: pulsar.Consumer) -> list[pulsar.Message]:
    got = []
    while True:
        try:
            got.append(consumer.receive(timeout_millis=SILENCE_MS))
        except pulsar.Timeout:
            return got


def _client(url: str, trust: str | None = None, token: str | None = None) -> pulsar.Client:
    return pulsar.Client(
        url,
        tls_trust_certs_file_path=trust,
        authentication=None if token is None else pulsar.AuthenticationToken(token),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


def _subscribe(client: pulsar.Client, topic: str, queue: int) -> pulsar.Consumer:
    return client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        receiver_queue_size=queue,
        initial_position=pulsar.InitialPosition.Earliest,
    )


WORKLOADS: dict[str, Callable[..., dict[str, Any]]] = {
    "first_message": first_message,
    "publish": publish,
    "consume": consume,
    "ack_shuffled": ack_shuffled,
    "receive_all": receive_all,
    "gate": gate,
    "handover": handover,
    "idle_topics": idle_topics,
    "tail": tail,
}

if __name__ == "__main__":
    if len(sys.argv) > 3:
        sys.stdin.readline()
    print(json.dumps(WORKLOADS[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
    os._exit(0)  # a client that was told to vanish must not say goodbye
