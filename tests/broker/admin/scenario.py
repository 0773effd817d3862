"""One story told to a broker over its admin interface, with real clients connected meanwhile.

The same story was told to Pulsar 4.0.7; its answers lie in ``pulsar-4.0.7-answers.jsonl`` and are
what `test_same_answers` compares ours with. To record them anew, from a fresh Pulsar::

    python -m tests.broker.admin.scenario http://127.0.0.1:8080 pulsar://127.0.0.1:6650
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pulsar

ANSWERS = Path(__file__).with_name("pulsar-4.0.7-answers.jsonl")
TENANT = "story"
V2 = "/admin/v2"
NAMESPACE = f"{V2}/namespaces/{TENANT}/ns"
TOPICS = f"{V2}/persistent/{TENANT}/ns"
TOPIC = f"{TOPICS}/one"
PARTED = f"{TOPICS}/parted"
EARLIEST = {"ledgerId": -1, "entryId": -1}


class Answer(NamedTuple):
    status: int
    content_type: str
    text: str

    @property
    def value(self) -> Any:
        """The JSON; None when there is none."""
        try:
            return json.loads(self.text) if self.text else None
        except ValueError:
            return None


class Ask(NamedTuple):
    method: str
    path: str
    body: Any = None

    def __str__(self) -> str:
        said = "" if self.body is None else f" {json.dumps(self.body)}"
        return f"{self.method} {self.path}{said}"


Do = Callable[["Clients"], None]


def ask(url: str, question: Ask) -> Answer:
    """One HTTP request, whatever it is answered with."""
    data = None if question.body is None else json.dumps(question.body).encode()
    request = urllib.request.Request(
        url + question.path,
        method=question.method,
        data=data,
        headers={"Content-Type": "application/json"} if data is not None else {},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return Answer(
                response.status,
                response.headers.get("Content-Type") or "",
                response.read().decode(),
            )
    except urllib.error.HTTPError as error:
        with error:
            body = error.read().decode(errors="replace")
            return Answer(error.code, error.headers.get("Content-Type") or "", body)


class Clients:
    """The clients of the story."""

    def __init__(self, service_url: str) -> None:
        self._client = pulsar.Client(
            service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        self._topic = f"persistent://{TENANT}/ns/one"
        self._open: list[Any] = []

    def publish(self) -> None:
        producer = self._client.create_producer(
            self._topic, producer_name="p1", batching_enabled=False, properties={"a": "b"}
        )
        self._open.append(producer)
        for number in range(20):
            producer.send(b"message %d" % number)

    def consume(self) -> None:
        """A consumer of every type; the shared one acks with holes."""
        kinds = pulsar.ConsumerType
        for name, kind in (
            ("shared", kinds.Shared),
            ("key-shared", kinds.KeyShared),
            ("exclusive", kinds.Exclusive),
            ("failover", kinds.Failover),
        ):
            consumer = self._client.subscribe(
                self._topic,
                name,
                consumer_type=kind,
                consumer_name=f"consumer-{name}",
                receiver_queue_size=100,
                initial_position=pulsar.InitialPosition.Earliest,
            )
            self._open.append(consumer)
            messages = [consumer.receive(60_000) for _ in range(20)]
            if kind is kinds.Shared:
                for number in (0, 3, 4, 7, 9, 12):
                    consumer.acknowledge(messages[number])
        self._open.append(self._client.create_reader(self._topic, pulsar.MessageId.earliest))

    def leave(self) -> None:
        for party in self._open:
            party.close()
        self._open.clear()

    def close(self) -> None:
        self._client.close()


def story() -> Iterator[Ask | Do]:
    """What is asked and done, in order."""
    yield from _brokers()
    yield from _tenants_and_namespaces()
    yield from _topics()
    yield from _subscriptions()
    yield from _partitioned_topics()
    yield from _policies()
    yield from _endings()


def _brokers() -> Iterator[Ask | Do]:
    configuration = f"{V2}/brokers/configuration"
    pause = f"{configuration}/dispatcherPauseOnAckStatePersistentEnabled"
    yield Ask("GET", f"{V2}/brokers/health")
    yield Ask("GET", f"{V2}/brokers/ready")
    yield Ask("GET", f"{V2}/clusters")
    yield Ask("GET", f"{V2}/clusters/nope")
    yield Ask("GET", f"{V2}/brokers/leaderBroker")
    yield Ask("GET", f"{configuration}/values")
    yield Ask("POST", f"{pause}/true")
    yield Ask("GET", f"{configuration}/values")
    yield Ask("DELETE", pause)
    yield Ask("DELETE", pause)
    yield Ask("GET", f"{configuration}/values")
    yield Ask("POST", f"{configuration}/noSuchKey/1")
    yield Ask("DELETE", f"{configuration}/noSuchKey")
    yield Ask("POST", f"{configuration}/brokerServicePort/1")


def _tenants_and_namespaces() -> Iterator[Ask | Do]:
    admin = {"adminRoles": [], "allowedClusters": ["standalone"]}
    yield Ask("GET", f"{V2}/tenants/nope")
    yield Ask("GET", f"{V2}/namespaces/nope")
    yield Ask("PUT", f"{V2}/tenants/{TENANT}", admin)
    yield Ask("PUT", f"{V2}/tenants/{TENANT}", admin)
    yield Ask("GET", f"{V2}/tenants/{TENANT}")
    yield Ask("PUT", f"{V2}/tenants/b%20d", admin)
    yield Ask("GET", f"{V2}/namespaces/{TENANT}")
    yield Ask("PUT", NAMESPACE)
    yield Ask("PUT", NAMESPACE)
    yield Ask("PUT", f"{V2}/namespaces/{TENANT}/n%20s")
    yield Ask("GET", f"{V2}/namespaces/{TENANT}")
    yield Ask("GET", f"{V2}/namespaces/{TENANT}/nope")
    yield Ask("GET", TOPICS)
    yield Ask("GET", f"{V2}/persistent/{TENANT}/nope")


def _topics() -> Iterator[Ask | Do]:
    yield Ask("PUT", TOPIC)
    yield Ask("PUT", TOPIC)
    yield Ask("PUT", f"{TOPICS}/one-partition-0")
    yield Ask("PUT", f"{TOPICS}/one-partition-00")
    yield Ask("GET", TOPICS)
    yield Ask("GET", f"{TOPICS}/partitioned")
    yield Ask("GET", f"{NAMESPACE}/topics")
    yield Ask("GET", f"{TOPIC}/partitions")
    yield Ask("GET", f"{TOPIC}/subscriptions")
    yield Ask("GET", f"{TOPIC}/stats")
    yield Ask("GET", f"{TOPIC}/internalStats")
    for missing in ("stats", "internalStats", "partitions", "subscriptions", "partitioned-stats"):
        yield Ask("GET", f"{TOPICS}/nope/{missing}")
    yield Ask("DELETE", f"{TOPICS}/nope")
    yield Ask("PUT", f"{TOPICS}/nope/unload")
    yield Ask("POST", f"{TOPICS}/nope/terminate")
    yield Clients.publish
    yield Clients.consume
    yield _settle
    yield Ask("GET", f"{TOPIC}/stats")
    yield Ask("GET", f"{TOPIC}/internalStats")
    yield Ask("DELETE", TOPIC)


def _subscriptions() -> Iterator[Ask | Do]:
    shared = f"{TOPIC}/subscription/shared"
    missing = f"{TOPIC}/subscription/nope"
    odd = f"{TOPIC}/subscription/a%2Fb%20c"
    yield Ask("DELETE", shared)
    yield Ask("DELETE", missing)
    yield Clients.leave
    yield Ask("PUT", f"{TOPIC}/unload")
    yield Ask("PUT", f"{TOPIC}/subscription/late")
    yield Ask("PUT", f"{TOPIC}/subscription/late")
    yield Ask("PUT", odd, EARLIEST)
    yield Ask("PUT", f"{TOPICS}/made/subscription/s", EARLIEST)
    yield Ask("GET", f"{TOPIC}/subscriptions")
    yield Ask("GET", f"{TOPIC}/stats")
    yield Ask("GET", f"{TOPIC}/internalStats")
    yield Ask("POST", f"{shared}/skip/2")
    yield Ask("POST", f"{missing}/skip/2")
    yield Ask("POST", f"{shared}/skip/x")
    yield Ask("POST", f"{shared}/skip_all")
    yield Ask("POST", f"{missing}/skip_all")
    yield Ask("POST", f"{TOPICS}/nope/subscription/s/skip_all")
    yield Ask("POST", f"{shared}/resetcursor/0")
    yield Ask("POST", f"{missing}/resetcursor/0")
    yield Ask("POST", f"{shared}/resetcursor/x")
    yield Ask("POST", f"{shared}/resetcursor", EARLIEST)
    yield Ask("POST", f"{missing}/resetcursor", EARLIEST)
    yield Ask("POST", f"{shared}/resetcursor", [1])
    yield Ask("POST", f"{shared}/resetcursor", {"ledgerId": "a", "entryId": 0})
    yield Ask("POST", f"{shared}/expireMessages/100000")
    yield Ask("POST", f"{missing}/expireMessages/100000")
    yield Ask("POST", f"{shared}/expireMessages/x")
    yield Ask("POST", f"{TOPIC}/subscription/late/expireMessages/100000")
    yield Ask("POST", f"{TOPIC}/all_subscription/expireMessages/100000")
    yield Ask("GET", f"{TOPIC}/lastMessageId")
    yield Ask("DELETE", odd)
    yield Ask("DELETE", odd)


def _partitioned_topics() -> Iterator[Ask | Do]:
    every = f"{PARTED}/subscription/every"
    yield Ask("PUT", f"{PARTED}/partitions", 0)
    yield Ask("PUT", f"{PARTED}/partitions", -1)
    yield Ask("PUT", f"{PARTED}/partitions", "x")
    yield Ask("PUT", f"{PARTED}/partitions", 2)
    yield Ask("PUT", f"{PARTED}/partitions", 2)
    yield Ask("PUT", f"{TOPIC}/partitions", 2)
    yield Ask("PUT", PARTED)
    yield Ask("GET", f"{PARTED}/partitions")
    yield Ask("GET", f"{PARTED}-partition-0/partitions")
    yield Ask("POST", f"{PARTED}/partitions", 3)
    yield Ask("POST", f"{PARTED}/partitions", 1)
    yield Ask("POST", f"{TOPICS}/nope/partitions", 2)
    yield Ask("GET", f"{PARTED}/partitions")
    yield Ask("GET", f"{PARTED}/stats")
    yield Ask("GET", f"{PARTED}-partition-2/stats")
    yield Ask("PUT", every)
    yield Ask("GET", f"{PARTED}/subscriptions")
    yield Ask("GET", f"{PARTED}/partitioned-stats")
    yield Ask("GET", f"{PARTED}/partitioned-stats?perPartition=false")
    yield Ask("GET", f"{PARTED}/partitioned-internalStats")
    yield Ask("POST", f"{every}/skip/1")
    yield Ask("POST", f"{every}/skip_all")
    yield Ask("POST", f"{every}/resetcursor/0")
    yield Ask("POST", f"{every}/resetcursor", EARLIEST)
    yield Ask("POST", f"{every}/expireMessages/100000")
    yield Ask("PUT", f"{PARTED}/unload")
    yield Ask("DELETE", every)
    yield Ask("DELETE", every)
    yield Ask("GET", TOPICS)
    yield Ask("GET", f"{TOPICS}/partitioned")
    yield Ask("DELETE", PARTED)
    yield Ask("DELETE", f"{TOPIC}/partitions")
    yield Ask("DELETE", f"{TOPICS}/nope/partitions")
    yield Ask("DELETE", f"{PARTED}/partitions")
    yield Ask("GET", f"{TOPICS}/partitioned")


def _policies() -> Iterator[Ask | Do]:
    retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 5}
    for place in (NAMESPACE, TOPIC):
        pause = f"{place}/dispatcherPauseOnAckStatePersistent"
        yield Ask("GET", pause)
        yield Ask("POST", pause)
        yield _settle
        yield Ask("GET", pause)
        yield Ask("DELETE", pause)
        yield _settle
        yield Ask("GET", pause)
        yield Ask("GET", f"{place}/retention")
        yield Ask("POST", f"{place}/retention", retention)
        yield _settle
        yield Ask("GET", f"{place}/retention")
        yield Ask("POST", f"{place}/retention", {**retention, "retentionTimeInMinutes": 0})
        yield Ask("DELETE", f"{place}/retention")
        yield _settle
        yield Ask("GET", f"{place}/retention")
        yield Ask("GET", f"{place}/messageTTL")
        yield from _delayed_delivery(f"{place}/delayedDelivery")
    yield Ask("GET", f"{V2}/namespaces/{TENANT}/nope/delayedDelivery")
    yield Ask("DELETE", f"{TOPICS}/nope/delayedDelivery")
    yield Ask("POST", f"{NAMESPACE}/messageTTL", 100)
    yield Ask("GET", f"{NAMESPACE}/messageTTL")
    yield Ask("GET", f"{TOPIC}/messageTTL?applied=true")
    yield Ask("POST", f"{NAMESPACE}/messageTTL", -1)
    yield Ask("POST", f"{NAMESPACE}/messageTTL", "x")
    yield Ask("DELETE", f"{NAMESPACE}/messageTTL")
    yield Ask("POST", f"{TOPIC}/messageTTL?messageTTL=77")
    yield _settle
    yield Ask("GET", f"{TOPIC}/messageTTL")
    yield Ask("POST", f"{TOPIC}/messageTTL?messageTTL=-77")
    yield Ask("POST", f"{TOPIC}/messageTTL?messageTTL=x")
    yield Ask("DELETE", f"{TOPIC}/messageTTL")
    yield Ask("GET", f"{V2}/namespaces/{TENANT}/nope/retention")
    yield Ask("POST", f"{TOPICS}/nope/dispatcherPauseOnAckStatePersistent")
    yield Ask("GET", NAMESPACE)


def _delayed_delivery(policy: str) -> Iterator[Ask | Do]:
    whole = {"tickTime": 1500, "active": True, "maxDeliveryDelayInMillis": 3_600_000}
    yield Ask("GET", policy)
    yield Ask("GET", f"{policy}?applied=true")
    for value in (whole, {"active": False}, {"tickTime": 700}, {}, {**whole, "later": 1}):
        yield Ask("POST", policy, value)
        yield _settle
        yield Ask("GET", policy)
    for value in ([1], "x", {"active": "x"}, {"tickTime": "y"}, {"tickTime": 10**20}):
        yield Ask("POST", policy, value)
    yield _settle
    yield Ask("GET", policy)
    yield Ask("POST", policy)
    yield _settle
    yield Ask("GET", policy)
    yield Ask("POST", policy, whole)
    yield _settle
    yield Ask("DELETE", policy)
    yield _settle
    yield Ask("GET", policy)
    yield Ask("DELETE", policy)


def _settle(_: Clients) -> None:
    """Time passes: Pulsar applies a topic's policy when it has come back from another topic."""


def _endings() -> Iterator[Ask | Do]:
    yield Ask("DELETE", NAMESPACE)
    yield Ask("DELETE", f"{V2}/tenants/{TENANT}")
    yield Ask("POST", f"{TOPIC}/terminate")
    yield Ask("DELETE", f"{TOPIC}/subscription/shared?force=true")
    yield Ask("DELETE", TOPIC)
    yield Ask("DELETE", TOPIC)
    yield Ask("DELETE", f"{TOPICS}/made?force=true")
    yield Ask("GET", TOPICS)
    yield Ask("DELETE", f"{V2}/namespaces/{TENANT}/nope")
    yield Ask("GET", f"{V2}/nonsense")
    yield Ask("PUT", f"{V2}/persistent/a%2Fb/ns/t")


def shape(value: Any) -> Any:
    """A JSON value with its types in place of its scalars; of a list only the first member."""
    match value:
        case dict():
            return {_stem(key): shape(member) for key, member in sorted(value.items())}
        case list():
            return [shape(member) for member in value[:1]]
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case None:
            return "null"
        case _:
            return "string"


def _stem(key: str) -> str:
    """Subscriptions of readers have random names."""
    return "reader" if key.startswith("reader-") else key


def is_plain(value: Any) -> bool:
    """Whether a value is compared as it is: a scalar, a list of texts, or a policy."""
    if isinstance(value, dict):
        return set(value) in ({"reason"}, {"tickTime", "active", "maxDeliveryDelayInMillis"})
    return not isinstance(value, list) or all(isinstance(member, str) for member in value)


def digest(answer: Answer) -> dict[str, Any]:
    """What of an answer is kept and compared."""
    value = answer.value
    kept: dict[str, Any] = {"status": answer.status}
    if value is not None and "json" in answer.content_type:
        if isinstance(value, dict) and str(value.get("reason")).startswith("\n ---"):
            return kept  # a stack trace
        if isinstance(value, list):  # Pulsar keeps topic policies in a topic
            value = [member for member in value if "/__" not in str(member)]
        kept |= {"value": value} if is_plain(value) else {"shape": shape(value)}
    return kept


def tell(
    url: str, service_url: str, *, settle_seconds: float = 0.0
) -> Iterator[tuple[Ask, Answer]]:
    """Tell the story to a broker."""
    clients = Clients(service_url)
    try:
        for step in story():
            if isinstance(step, Ask):
                yield step, ask(url, step)
            elif step is _settle:
                time.sleep(settle_seconds)
            else:
                step(clients)
    finally:
        clients.close()


if __name__ == "__main__":
    with ANSWERS.open("w") as file:
        for step, answer in tell(*sys.argv[1:3], settle_seconds=1.0):
            told = {"ask": str(step), **digest(answer)}
            print(json.dumps(told, ensure_ascii=False), file=file)
