"""A well-behaved client that works all the time while others misbehave."""

from __future__ import annotations

import threading
import time
from typing import Self

import pulsar

TIMEOUT_MS = 90_000


class Bystander:
    """Sends numbered messages, receives and acks them until told to stop; remembers trouble."""

    def __init__(self, service_url: str, topic: str) -> None:
        self._client = pulsar.Client(
            service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        self._consumer = self._client.subscribe(topic, "bystander")
        self._producer = self._client.create_producer(topic, send_timeout_millis=TIMEOUT_MS)
        self._stop = threading.Event()
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._work)
        self._trouble: BaseException | None = None
        self.exchanged = 0

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                payload = str(self.exchanged).encode()
                self._producer.send(payload)
                message = self._consumer.receive(TIMEOUT_MS)
                assert message.data() == payload, f"{message.data()!r} instead of {payload!r}"
                self._consumer.acknowledge(message)
                with self._progress:
                    self.exchanged += 1
                    self._progress.notify_all()
        except BaseException as trouble:
            with self._progress:
                self._trouble = trouble
                self._progress.notify_all()

    def wait_for_more(self, count: int = 3) -> None:
        """Return when `count` more messages have gone through; raise its trouble if it has one."""
        deadline = time.monotonic() + TIMEOUT_MS / 1000
        with self._progress:
            goal = self.exchanged + count
            while self.exchanged < goal and self._trouble is None:
                assert self._progress.wait(deadline - time.monotonic()), "the bystander is stuck"
        if self._trouble is not None:
            raise self._trouble

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for_more()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.wait_for_more()
        finally:
            self._stop.set()
            self._thread.join()
            self._client.shutdown()
