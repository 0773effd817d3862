"""A consumer of the real client with a delay for each nack.

Edge. PIP-393's nacks (a delay for each, backoff by redelivery count, precision bits, messages of a
batch apart) are not in the Python client, which is Pulsar's C++ client: there, one fixed delay is
chosen when subscribing, 100 ms at least, and a timer of a third of it looks whose time has come. ::

    negative_acknowledge(message, delay_ms)
        |
        v                        one thread, one deadline: the earliest
    TopicNacks (one a topic) --- 100 ms before its time ---> the real client's negative_acknowledge
        ^                                                              |  100 to 135 ms
        | keeps copies that wait, or that the application has          v
    receive() <------------- MESSAGE ------------ broker <--- REDELIVER_UNACKNOWLEDGED_MESSAGES

**How exact.** A nack is handed to the real client `HANDOVER_LEAD_MS` before its time, which is the
shortest delay that the client has. Its timer makes up to 35 ms of it; and since every nack starts
that timer again (so that a steady stream of nacks holds all of them up: seen with 3.13), they are
handed over together, `HANDOVER_PAUSE_MS` apart. So messages come back between ``2**bits - 1`` ms
early (the precision, 255 ms) and some 75 ms late, but never sooner than 100 ms after the nack.

**Threads.** Every method may be called from any thread. The real client is never called with the
lock held; `on_redeliver` is called without it, and may nack again.

**Limits.** With several consumers on a Shared subscription a redelivered entry may go to another
one, which does not know the other messages' delays. Exclusive and Failover subscriptions redeliver
everything unacked at any request, as always. Closing drops the waiting nacks: the broker redelivers
their messages to others at once.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pulsar

from ackgate.client.topic_nacks import NO_BATCH, Arrival, Redelivery, TopicNacks
from ackgate.cursor import Position
from ackgate.dispatcher.nacks import NackSettings
from ackgate.errors import CallerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

HANDOVER_LEAD_MS: Final = 100
"""The shortest delay of the real client's nacks."""

HANDOVER_PAUSE_MS: Final = 40
"""Between two hand-overs, a little more than the period of the real client's timer (33 ms)."""

HANDOVER_ENTRIES_MAX: Final = 10_000
"""Most entries of one topic that are handed over at a time."""

LEDGERS_KNOWN_MAX: Final = 100_000
"""Ledgers of which the topic is remembered, for message ids that come without their message."""

AnyMessage: TypeAlias = "pulsar.Message | pulsar.MessageId"
"""Either, wrapped or as the C++ client gives them."""

_CHUNKED: Final = re.compile(r"\((?P<ledger_id>\d+),(?P<entry_id>\d+),.*\);\(.*\)")
"""How the id of a chunked message is printed: that of its first piece, and of its last."""

_log: Final = logging.getLogger(__name__)


class _Home(NamedTuple):
    """The topic and partition of a message."""

    topic: str
    partition: int


class _Seen(NamedTuple):
    """A message, or a message id, as the application has it."""

    home: _Home
    position: Position
    batch_index: int
    redelivery_count: int
    message_id: pulsar.MessageId


class NackingConsumer:
    """A `pulsar.Consumer` (whatever is not here is the real one's) with nacks as in PIP-393."""

    def __init__(
        self,
        consumer: pulsar.Consumer | None,
        settings: NackSettings | None = None,
        *,
        on_redeliver: Callable[[Sequence[pulsar.MessageId]], None] | None = None,
    ) -> None:
        """Round a consumer that was made with ``negative_ack_redelivery_delay_ms`` of 0 to 100.

        `subscribe` makes one. ``on_redeliver`` gets the message ids whose redelivery is requested.
        """
        self._settings = NackSettings() if settings is None else settings
        self._on_redeliver = on_redeliver
        self._topics: dict[_Home, TopicNacks] = {}
        self._homes: dict[int, _Home] = {}
        """Ledger -> where its messages come from."""
        self._changed = threading.Condition(threading.Lock())
        self._wakes_at_ms: int | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._is_ready = threading.Event()
        if consumer is not None:
            self._begin(consumer)

    @classmethod
    def subscribe(
        cls,
        client: pulsar.Client,
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        *,
        settings: NackSettings | None = None,
        on_redeliver: Callable[[Sequence[pulsar.MessageId]], None] | None = None,
        message_listener: Callable[[NackingConsumer, pulsar.Message], None] | None = None,
        **options: object,
    ) -> NackingConsumer:
        """As the real client's `subscribe`; ``options`` are its own."""
        if "negative_ack_redelivery_delay_ms" in options:
            raise CallerError("negative_ack_redelivery_delay_ms is NackSettings.delay_ms here")
        consumer = cls(None, settings, on_redeliver=on_redeliver)
        if message_listener is not None:
            options["message_listener"] = partial(consumer._listen, message_listener)
        real = client.subscribe(
            topic,
            subscription_name,
            negative_ack_redelivery_delay_ms=HANDOVER_LEAD_MS,
            **options,
        )
        consumer._begin(real)
        return consumer

    def _begin(self, consumer: pulsar.Consumer) -> None:
        self._real = consumer
        self._thread = threading.Thread(target=self._run, name="ackgate-nacks", daemon=True)
        self._thread.start()
        self._is_ready.set()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the real one has
        if name == "_real":
            raise AttributeError(name)
        return getattr(self._real, name)

    # -- receiving

    def receive(self, timeout_millis: int | None = None) -> pulsar.Message:
        """The next message that is the application's. Raises `pulsar.Timeout` as the real one."""
        if timeout_millis is None:
            while True:
                message = self._real.receive()
                if self._admits(message):
                    return message
        deadline = time.monotonic() + timeout_millis / 1_000
        while True:
            message = self._real.receive(timeout_millis)
            if self._admits(message):
                return message
            timeout_millis = max(int((deadline - time.monotonic()) * 1_000), 1)

    def batch_receive(self) -> list[pulsar.Message]:
        """As the real one; may be empty when all that came waits for its time."""
        return [message for message in self._real.batch_receive() if self._admits(message)]

    def _listen(
        self,
        listener: Callable[[NackingConsumer, pulsar.Message], None],
        _: pulsar.Consumer,
        message: pulsar.Message,
    ) -> None:
        self._is_ready.wait()  # a message may come before `subscribe` has returned
        if self._admits(message):
            listener(self, message)

    def _admits(self, message: pulsar.Message) -> bool:
        """Whether the message is the application's."""
        message_id = message.message_id()
        ledger_id = message_id.ledger_id()
        with self._changed:
            home = self._homes.get(ledger_id)
            if home is None:
                home = self._meet(ledger_id, message)
            arrival = self._topic(home).arrived(
                Position(ledger_id, message_id.entry_id()), message_id.batch_index(), message_id
            )
        if arrival is Arrival.ACK_AGAIN:
            self._real.acknowledge(message)
        return arrival is Arrival.DELIVER

    def _meet(self, ledger_id: int, message: pulsar.Message) -> _Home:
        if len(self._homes) >= LEDGERS_KNOWN_MAX:
            del self._homes[next(iter(self._homes))]
        home = _Home(message.topic_name(), message.message_id().partition())
        self._homes[ledger_id] = home
        return home

    # -- settling

    def negative_acknowledge(self, message: AnyMessage, delay_ms: int | None = None) -> None:
        """Redeliver the message (or message id) after ``delay_ms``, or as the settings say.

        A later nack of the same message replaces an earlier one. By backoff a message id counts as
        never redelivered: it does not say. Raises `CallerError` for a delay that cannot be.
        """
        seen = self._seen(message)
        backoff = self._settings.backoff
        chance = random.random() if backoff is not None and backoff.jitter else 0.0  # noqa: S311
        original = None if _can_be_made(seen) else seen.message_id
        with self._changed:
            if self._is_closed:
                raise CallerError("the consumer is closed")
            self._topic(seen.home).nack(
                seen.position,
                seen.batch_index,
                _now_ms(),
                delay_ms=delay_ms,
                redelivery_count=seen.redelivery_count,
                chance=chance,
                original=original,
            )
            deadline = self._next_deadline_ms()
            if self._wakes_at_ms is None or (deadline or 0) < self._wakes_at_ms:
                self._changed.notify_all()

    def acknowledge(self, message: AnyMessage) -> None:
        """As the real one. A nack of the message that waits is void."""
        self._real.acknowledge(message)
        seen = self._seen(message)
        with self._changed:
            copy = self._topic(seen.home).acked(seen.position, seen.batch_index)
        if copy is not None:
            self._real.acknowledge(copy)

    def acknowledge_cumulative(self, message: AnyMessage) -> None:
        """As the real one. Nacks that wait, of this message and those before it, are void."""
        self._real.acknowledge_cumulative(message)
        seen = self._seen(message)
        with self._changed:
            self._topic(seen.home).acked_through(seen.position, seen.batch_index)

    def redeliver_unacknowledged_messages(self) -> None:
        """As the real one: all come at once, also those whose nacks wait."""
        self._forget_all()
        self._real.redeliver_unacknowledged_messages()

    def seek(self, messageid: pulsar.MessageId | int) -> None:
        """As the real one. Nacks that wait are void."""
        self._real.seek(messageid)
        self._forget_all()

    def unsubscribe(self) -> None:
        """As the real one. Nacks that wait are void."""
        self._stop()
        self._real.unsubscribe()

    def close(self) -> None:
        """Close the real consumer: the broker gives what is unacked to others, nacked or not.

        A second close does nothing.
        """
        if self._stop():
            self._real.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- figures

    @property
    def pending_nacks(self) -> int:
        """Entries, or messages of batches by time, that wait."""
        with self._changed:
            return sum(map(len, self._topics.values()))

    @property
    def pending_bytes(self) -> int:
        """Bytes of memory that they take, about."""
        with self._changed:
            return sum(topic.byte_estimate for topic in self._topics.values())

    # -- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                due = self._wait_for_due()
            if due is None:
                return
            self._hand_over(due)
            time.sleep(HANDOVER_PAUSE_MS / 1_000)

    def _wait_for_due(self) -> list[pulsar.MessageId] | None:
        """Message ids to ask for, at least one; None: closed. The lock is held, but for waiting."""
        while not self._is_closed:
            now_ms = _now_ms()
            due: list[pulsar.MessageId] = []
            for home, topic in self._topics.items():
                popped = topic.pop_due(now_ms + HANDOVER_LEAD_MS, HANDOVER_ENTRIES_MAX)
                for redelivery in popped:
                    due += _message_ids(home, redelivery)
            if due:
                return due
            deadline = self._next_deadline_ms()
            self._wakes_at_ms = deadline
            self._changed.wait(
                None if deadline is None else max(deadline - HANDOVER_LEAD_MS - now_ms, 1) / 1_000
            )
        return None

    def _hand_over(self, due: list[pulsar.MessageId]) -> None:
        if self._on_redeliver is not None:
            try:
                self._on_redeliver(due)
            except Exception:  # noqa: BLE001 - the embedder's own; the others' nacks go on
                _log.exception("on_redeliver failed")
        for message_id in due:
            try:
                self._real.negative_acknowledge(message_id)
            except Exception:  # noqa: BLE001 - the client's have no base of their own
                # The consumer is closed: the broker gives the message again by itself.
                _log.exception("the client did not take the nack of %s", message_id)

    def _next_deadline_ms(self) -> int | None:
        deadlines = [topic.next_deadline_ms for topic in self._topics.values()]
        return min((each for each in deadlines if each is not None), default=None)

    def _stop(self) -> bool:
        """Returns whether it went on until now."""
        with self._changed:
            was_closed, self._is_closed = self._is_closed, True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._forget_all()
        return not was_closed

    def _forget_all(self) -> None:
        with self._changed:
            for topic in self._topics.values():
                topic.clear()

    # -- who is who

    def _topic(self, home: _Home) -> TopicNacks:
        topic = self._topics.get(home)
        if topic is None:
            topic = self._topics[home] = TopicNacks(self._settings)
        return topic

    def _seen(self, message: AnyMessage) -> _Seen:
        """Of a `Message` or a `MessageId`, wrapped or bare. Raises `CallerError` for anything else."""
        count = 0
        message_id = message
        if isinstance(message, pulsar.Message | pulsar._pulsar.Message):
            message_id = message.message_id()
            count = message.redelivery_count()
        message_id = getattr(message_id, "_msg_id", message_id)
        if not isinstance(message_id, pulsar._pulsar.MessageId):
            raise CallerError(f"neither a message nor a message id: {message!r}")
        ledger_id = message_id.ledger_id()
        home = self._homes.get(ledger_id)
        if home is None:
            home = _Home(self._real.topic(), message_id.partition())
        position = Position(ledger_id, message_id.entry_id())
        return _Seen(home, position, message_id.batch_index(), count, message_id)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _message_ids(home: _Home, redelivery: Redelivery) -> list[pulsar.MessageId]:
    """What the real client asks for an entry with.

    Of a chunked message it would ask for the last piece alone, drop that as a stray when it comes,
    and so never give the message again (seen with 3.13). So each piece is asked for.
    """
    position, original = redelivery
    pieces = _CHUNKED.fullmatch(str(original))
    if pieces is None:
        entry_ids = range(position.entry_id, position.entry_id + 1)
    elif int(pieces["ledger_id"]) == position.ledger_id:
        entry_ids = range(int(pieces["entry_id"]), position.entry_id + 1)
    else:
        return [original]  # how many entries the first ledger has is not known here
    message_ids = []
    for entry_id in entry_ids:
        message_id = pulsar._pulsar.MessageId(
            home.partition, position.ledger_id, entry_id, NO_BATCH
        )
        message_id.topic_name(home.topic)
        message_ids.append(message_id)
    return message_ids


def _can_be_made(seen: _Seen) -> bool:
    """Whether the id says no more than where the message is: that of a chunked one does."""
    if seen.batch_index != NO_BATCH:
        return True
    made = pulsar._pulsar.MessageId(seen.home.partition, *seen.position, NO_BATCH)
    return made.serialize() == seen.message_id.serialize()  # type: ignore[no-any-return]
