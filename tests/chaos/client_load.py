"""The real `pulsar-client`, alive through all restarts: it reconnects, resends and acks again.

Edge: owns one client and two threads. Whatever they see is posted to the event loop that owns the
facts, in order. Acks of this client carry no receipts and wait in it for up to 100 ms, longer while
it is not connected; when they were applied is found out by asking the broker (`inspection.py`).
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pulsar

from tests.chaos.facts import MessageKey, ViolationError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from tests.chaos.facts import SubscriptionFacts, TopicFacts

RECEIVE_MS = 100
PENDING_MAX = 100
HELD_MAX = 200


class ClientLoad:
    """A producer and a consumer of one topic."""

    def __init__(
        self,
        service_url: str,
        topic: TopicFacts,
        facts: SubscriptionFacts,
        seed: str,
        loop: asyncio.AbstractEventLoop,
        *,
        log_path: Path,
        batches: bool,
    ) -> None:
        self.topic = topic
        self.facts = facts
        self.sent = 0
        self.confirmed = 0
        """Sends that were answered; this client resends what was not, for as long as it takes."""
        self._rng = random.Random(seed)
        self._loop = loop
        self._faults: list[BaseException] = []
        self._stop = threading.Event()
        self._drains = threading.Event()
        self._may_send = threading.Semaphore(0)
        self._client = pulsar.Client(
            service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(log_path))
        )
        self._consumer = self._client.subscribe(
            topic.name,
            facts.name,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=100,
            batch_index_ack_enabled=True,
        )
        self._producer = self._client.create_producer(
            topic.name,
            batching_enabled=batches,
            batching_max_publish_delay_ms=2,
            block_if_queue_full=True,
            max_pending_messages=PENDING_MAX,
            send_timeout_millis=0,
            # Else this client, if it reconnects before anything was answered, begins its ids anew though
            # messages wait: two batches of one id, and the receipt of one is taken for the other's.
            initial_sequence_id=1,  # 0 counts as none
        )
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._produce, self._consume)
        ]
        for thread in self._threads:
            thread.start()

    def allow(self, messages: int) -> None:
        """Let the producer send that many more."""
        self._may_send.release(messages)

    def drain(self) -> None:
        """From now on ack everything that comes, at once."""
        self._drains.set()

    def check(self) -> None:
        """Raise what went wrong in the threads or in what they told."""
        if self._faults:
            raise self._faults[0]

    def close(self) -> None:
        """Stop, whatever the broker does."""
        self._stop.set()
        self._may_send.release()
        for thread in self._threads:
            thread.join(10)
        self._client.shutdown()

    def _tell(self, fact: Callable[[], None]) -> None:
        """Have the loop take note."""

        def note() -> None:
            try:
                fact()
            except BaseException as fault:
                self._faults.append(fault)

        self._loop.call_soon_threadsafe(note)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as fault:
            if not self._stop.is_set():
                self._faults.append(fault)

    # ---------------------------------------------------------------- producing

    def _produce(self) -> None:
        while True:
            self._may_send.acquire()
            if self._stop.is_set():
                return
            payload = self.topic.new_payload()
            self.sent += 1
            self._producer.send_async(payload, self._on_sent(payload))

    def _on_sent(self, payload: bytes) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def on_sent(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            key = message_key(message_id)
            is_duplicate = key.ledger_id < 0  # stored before, at a place that is not told
            if result != pulsar.Result.Ok:
                # A full disk refuses it, at once; whether it was stored before, nobody knows.
                is_full = result == pulsar.Result.ProducerBlockedQuotaExceededException
                if not self._stop.is_set() and not is_full:
                    self._faults.append(ViolationError(f"a send was given up: {result}"))
                return
            self.confirmed += 1
            if not is_duplicate:
                self._tell(lambda: self.topic.exists(key, payload))

        return on_sent

    # ---------------------------------------------------------------- consuming

    def _consume(self) -> None:
        held: list[pulsar.Message] = []
        while not self._stop.is_set():
            try:
                message = self._consumer.receive(RECEIVE_MS)
            except pulsar.Timeout:
                self._ack_some(held)
                continue
            self._tell_delivered(message)
            fate = self._rng.random()
            if self._drains.is_set() or fate < 0.6:
                self._ack(message)
            elif fate < 0.7:
                self._consumer.negative_acknowledge(message)
            else:
                held.append(message)
            if len(held) > HELD_MAX:
                self._ack_some(held)

    def _ack_some(self, held: list[pulsar.Message]) -> None:
        self._rng.shuffle(held)
        keep = 0 if self._drains.is_set() else len(held) // 2
        while len(held) > keep:
            self._ack(held.pop())

    def _ack(self, message: pulsar.Message) -> None:
        key = message_key(message.message_id())
        self._tell(lambda: self.facts.ack_sent([key]))
        self._consumer.acknowledge(message)

    def _tell_delivered(self, message: pulsar.Message) -> None:
        key, payload = message_key(message.message_id()), message.data()

        def delivered() -> None:
            self.topic.exists(key, payload)
            # The client's own queue outlives the connection, for a moment.
            self.facts.delivered(key, lives_ago=2)

        self._tell(delivered)


def message_key(message_id: pulsar.MessageId) -> MessageKey:
    """The client's message id as the facts name it."""
    return MessageKey(
        message_id.ledger_id(), message_id.entry_id(), max(0, message_id.batch_index())
    )
