"""Clients as they are in life: producers that send again, consumers that ack in every way.

All of them live in one process that never dies. They connect to whatever broker the world says is
the topic's, and again when it is gone; what they do is drawn from the seed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.broker.wire.requests import (
    InitialPosition,
    ProducerRequest,
    SubscribeRequest,
    SubscriptionType,
)
from ackgate.cursor import Position
from ackgate.errors import AckGateError
from ackgate.persistence.messages.frame import seal_entry
from tests.support.simulation.facts import Key, violated
from tests.support.wire_client import words_of_mask

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from ackgate.broker.wire.names import TopicName
    from ackgate.broker.wire.replies import MessageOut
    from tests.support.simulation.facts import SubscriptionFacts, TopicFacts
    from tests.support.simulation.loop import Process
    from tests.support.simulation.network import Connection
    from tests.support.simulation.plan import Plan
    from tests.support.simulation.session import SimulatedSession

WINDOW: Final = 10
"""Entries of a producer on their way."""

LOOKUPS_MAX: Final = 10
"""As the real clients: more redirects than that are a circle."""

REPLY_SECONDS: Final = 30.0
"""A request that takes longer is given up, with its connection."""

ORDERED: Final = frozenset({SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER})


class DisconnectedError(AckGateError):
    """The connection is gone."""


class Surroundings(Protocol):
    """What clients know of the world they live in."""

    plan: Plan
    clients: Process
    """The process of all clients."""
    is_draining: bool
    last_id: int
    pace: float
    """Mean seconds between two steps of a client."""
    preferred: dict[str, int]
    """The broker that a topic's clients go to."""

    def log(self, *words: object) -> None:
        """Note an event."""

    def next_id(self) -> int:
        """A number that was never used."""

    def clock_ms(self) -> int:
        """The time of day."""

    def some_broker(self, rng: random.Random) -> int | None:
        """Number of a broker that can be connected to; None when there is none now."""

    def connect(
        self, client: Client, number: int | None
    ) -> tuple[Connection, SimulatedSession, str] | None:
        """Connect a client to a broker (None: to its topic's); None when that is not there now."""

    def moved(self, client: ConsumingClient, target: Position, token: int, before: int) -> None:
        """A reset has succeeded."""


class Client:
    """One client with one connection at a time. Implements `ClientSide`."""

    def __init__(
        self, world: Surroundings, name: str, topic: TopicName, rng: random.Random
    ) -> None:
        self.world = world
        self.name = name
        self.topic = topic
        self.rng = rng
        self.number = 0
        """Of the producer or consumer in its present life; unique."""
        self.session: SimulatedSession | None = None
        self.broker_name = ""
        self.is_stopped = False
        self._connection: Connection | None = None
        self._lost: asyncio.Future[None] | None = None
        self._replies: dict[int, asyncio.Future[Any]] = {}

    async def run(self) -> None:
        """Connect, work until that ends, and again."""
        while not self.is_stopped:
            try:
                if self.world.plan.is_owned:
                    await self._follow_lookups()
                elif not self._connect(None):
                    raise DisconnectedError("there is no broker")
                await self.live()
            except AckGateError:
                pass
            finally:
                self.disconnect()
            await asyncio.sleep(self.rng.uniform(0.001, 0.1))

    def _connect(self, number: int | None) -> bool:
        connected = self.world.connect(self, number)
        if connected is None:
            return False
        self._connection, self.session, self.broker_name = connected
        self._lost = asyncio.get_running_loop().create_future()
        return True

    async def _follow_lookups(self) -> None:
        """Connect to the broker that serves the topic. Raises `AckGateError`."""
        number = self.world.some_broker(self.rng)
        is_authoritative = False
        for _ in range(LOOKUPS_MAX):
            if number is None or not self._connect(number):
                break
            there, is_owner = await self.request("look_up", self.topic, is_authoritative)
            if there == number:
                self.world.preferred[str(self.topic)] = number
                return
            number, is_authoritative = there, not is_owner
            self.disconnect()
        raise DisconnectedError("nobody serves the topic")

    async def live(self) -> None:
        """One life; ends by an error or by `is_stopped`."""
        raise NotImplementedError

    def disconnect(self) -> None:
        """Break off."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.client = None
            connection.closed_by_client()
            self._end()

    async def until_lost(self) -> None:
        """Return when the connection is gone."""
        if self._lost is not None:
            await asyncio.shield(self._lost)

    @property
    def is_connected(self) -> bool:
        """Whether the connection stands, as far as known here."""
        return self._connection is not None

    def send(self, method: str, *args: Any) -> None:
        """Have the broker's session called."""
        if self._connection is not None and self.session is not None:
            self._connection.to_broker.send(getattr(self.session, method), *args)

    async def request(self, method: str, *args: Any) -> Any:
        """Ask, and wait for the answer. Raises `AckGateError`."""
        if self._connection is None:
            raise DisconnectedError("no connection")
        request_id = self.world.next_id()
        reply = self._replies[request_id] = asyncio.get_running_loop().create_future()
        self.send(method, request_id, *args)
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                return await reply
        except TimeoutError:
            raise DisconnectedError("no answer") from None
        finally:
            self._replies.pop(request_id, None)

    def replied(self, request_id: int, error: BaseException | None, value: object) -> None:
        """See `ClientSide`."""
        reply = self._replies.pop(request_id, None)
        if reply is not None and not reply.done():
            if error is not None:
                reply.set_exception(error)
            else:
                reply.set_result(value)

    def connection_lost(self) -> None:
        """See `ClientSide`."""
        self._connection = None
        self._end()

    def _end(self) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(DisconnectedError("the connection is gone"))

    def receipts(self, producer_id: int, receipts: Sequence[tuple[int, int, int, int]]) -> None:
        """See `ClientSide`."""

    def send_failed(self, producer_id: int, sequence_id: int, message: str) -> None:
        """See `ClientSide`."""

    def messages(self, consumer_id: int, messages: Sequence[MessageOut]) -> None:
        """See `ClientSide`."""

    def acks_answered(
        self, consumer_id: int, request_ids: Sequence[int], error: str | None
    ) -> None:
        """See `ClientSide`."""

    def producer_closed(self, producer_id: int) -> None:
        """See `ClientSide`."""
        if producer_id == self.number:
            self.disconnect()

    def consumer_closed(self, consumer_id: int) -> None:
        """See `ClientSide`. The answer to a seek comes after it, on the same connection."""
        if consumer_id == self.number and not self._replies:
            self.disconnect()


class ProducingClient(Client):
    """Sends its messages in order, and again what was not confirmed when it reconnects."""

    def __init__(
        self,
        world: Surroundings,
        name: str,
        topic: TopicName,
        rng: random.Random,
        facts: TopicFacts,
        messages: int,
    ) -> None:
        super().__init__(world, name, topic, rng)
        self.facts = facts
        self.remaining = messages
        self.pending: list[tuple[int, int, bytes]] = []
        """Sequence id, count and entry of what was sent and not confirmed."""
        self.floors: dict[int, Position] = {}
        """What was confirmed to anybody before an entry was first sent."""
        self._next = 0

    @property
    def is_done(self) -> bool:
        """Whether everything is confirmed."""
        return not self.remaining and not self.pending

    async def live(self) -> None:
        """See `Client`."""
        self.number = self.world.next_id()
        request = ProducerRequest(self.topic, self.number, self.name)
        await self.request("create_producer", request)
        for sequence_id, count, entry in list(self.pending):
            self.send("publish", self.number, sequence_id, count, entry)
        while self.is_connected and not self.is_stopped:
            while self.remaining and len(self.pending) < WINDOW and self.rng.random() < 0.7:
                self._send_next()
            await asyncio.sleep(self.rng.expovariate(1 / self.world.pace))
        raise DisconnectedError("the connection is gone")

    def _send_next(self) -> None:
        count = min(self.remaining, self.rng.randint(1, self.world.plan.batch_max))
        self.remaining -= count
        sequence_id, self._next = self._next, self._next + count
        entry = make_entry(self.name, sequence_id, count, self.rng, self._deliver_at_ms())
        self.facts.sent[self.name, sequence_id] = entry
        self.floors[sequence_id] = self.facts.confirmed_through
        self.pending.append((sequence_id, count, entry))
        self.send("publish", self.number, sequence_id, count, entry)

    def _deliver_at_ms(self) -> int:
        plan = self.world.plan
        if not plan.delays or self.rng.random() >= plan.delays:
            return 0
        return self.world.clock_ms() + self.rng.randint(1, plan.delay_ms_max)

    def receipts(self, producer_id: int, receipts: Sequence[tuple[int, int, int, int]]) -> None:
        """See `ClientSide`."""
        if producer_id != self.number or not self.is_connected:
            return
        for sequence_id, _, _, _ in receipts:
            violated(
                not self.pending or self.pending[0][0] != sequence_id,
                f"{self.name}: a receipt for {sequence_id}, expected"
                f" {self.pending[0][0] if self.pending else 'none'}",
            )
            self.pending.pop(0)
            self.facts.confirmed.add((self.name, sequence_id))

    def send_failed(self, producer_id: int, sequence_id: int, message: str) -> None:
        """See `ClientSide`. As the real clients: reconnect, send again."""
        if producer_id == self.number:
            self.disconnect()


class ConsumingClient(Client):
    """Takes messages, acks some now and some later, one by one and in bulk, and wants some again."""

    def __init__(
        self,
        world: Surroundings,
        name: str,
        topic: TopicName,
        rng: random.Random,
        facts: SubscriptionFacts,
        kind: SubscriptionType,
    ) -> None:
        super().__init__(world, name, topic, rng)
        self.facts = facts
        self.kind = kind
        self.held: list[tuple[Position, int]] = []
        """Entries and the mask of what is still to be acked of each."""
        self.receipts_due: dict[int, float] = {}
        """Request ids of acks, and when they were sent."""
        self._taken = 0

    async def live(self) -> None:
        """See `Client`."""
        self.number = self.world.next_id()
        self.held = []
        self.receipts_due = {}
        request = SubscribeRequest(
            self.topic,
            self.facts.name,
            self.number,
            self.kind,
            self.name,
            initial_position=InitialPosition.EARLIEST,
        )
        await self.request("subscribe", request)
        self._taken = 0
        self.send("flow", self.number, self.world.plan.permits)
        while self.is_connected and not self.is_stopped:
            await asyncio.sleep(self.rng.expovariate(1 / self.world.pace))
            await self._step()
        raise DisconnectedError("the connection is gone")

    async def _step(self) -> None:
        plan, rng = self.world.plan, self.rng
        if self.world.is_draining:
            self._ack_held(len(self.held))
            return
        chance = rng.random()
        if chance < plan.seeks:
            await self._seek()
        elif chance < plan.seeks + plan.unsubscribes:
            await self._unsubscribe()
        elif self.held:
            self._ack_held(rng.randint(0, len(self.held)))

    # ---------------------------------------------------------------- messages

    def messages(self, consumer_id: int, messages: Sequence[MessageOut]) -> None:
        """See `ClientSide`."""
        if consumer_id != self.number or not self.is_connected:
            return
        plan, rng = self.world.plan, self.rng
        now: list[tuple[Position, int]] = []
        again: list[Position] = []
        for message in messages:
            position = Position(message.ledger_id, message.entry_id)
            count = self.facts.topic.counts[position]
            mask = (1 << count) - 1 if message.unacked_mask is None else message.unacked_mask
            self._taken += mask.bit_count()
            self.held = [(p, m) for p, m in self.held if p != position]
            if self.world.is_draining:
                now.append((position, mask))
            elif rng.random() < plan.nacks:
                again.append(position)
            elif rng.random() < plan.holds:
                self.held.append((position, mask))
            else:
                now.append((position, mask))
        self._ack(now)
        if again:
            delay = rng.uniform(0.0, 0.3)
            self.world.clients.call_later(delay, self._want_again, self.number, again)
        if self._taken * 2 >= plan.permits:
            self.send("flow", self.number, self._taken)
            self._taken = 0

    def _want_again(self, number: int, positions: list[Position]) -> None:
        if number == self.number and self.is_connected:
            self.send("redeliver", number, positions if self.kind not in ORDERED else None)
            if self.kind in ORDERED and self.rng.random() < 0.5:
                self.held.clear()

    # ---------------------------------------------------------------- acks

    def _ack_held(self, count: int) -> None:
        self.rng.shuffle(self.held)
        now, self.held = self.held[:count], self.held[count:]
        self._ack(now)

    def _ack(self, entries: list[tuple[Position, int]]) -> None:
        if not entries:
            return
        if self.kind in ORDERED and self.rng.random() < 0.5:
            self._ack_cumulatively(max(entries))
            return
        commands = []
        for position, mask in entries:
            acked = mask
            if mask.bit_count() > 1 and not self.world.is_draining and self.rng.random() < 0.5:
                acked &= self.rng.getrandbits(mask.bit_length())
                if not acked:
                    acked = mask
                elif acked != mask:
                    self.held.append((position, mask & ~acked))
            commands.append(self._command(position, acked, mask))
        self.rng.shuffle(commands)
        self.send("acks", self.number, commands)

    def _command(self, position: Position, acked: int, mask: int) -> pb.CommandAck:
        facts = self.facts.topic
        keys = [k for k in facts.keys_of(position) if acked >> k.place & 1]
        self.facts.ack_sent(keys, self.number)
        command = pb.CommandAck(consumer_id=self.number, ack_type=pb.CommandAck.Individual)
        message_id = command.message_id.add(ledgerId=position.ledger_id, entryId=position.entry_id)
        rest = (1 << facts.counts[position]) - 1 & ~acked
        is_by_index = self.world.plan.batch_index_acks and self.rng.random() < 0.5
        if rest and (mask & ~acked or is_by_index):
            message_id.ack_set.extend(words_of_mask(rest))
        elif rest:
            # The whole entry: the others were acked before.
            self.facts.ack_sent(facts.keys_of(position), self.number)
        self._ask_receipt(command)
        return command

    def _ack_cumulatively(self, last: tuple[Position, int]) -> None:
        position, mask = last
        facts = self.facts.topic
        count = facts.counts[position]
        command = pb.CommandAck(consumer_id=self.number, ack_type=pb.CommandAck.Cumulative)
        message_id = command.message_id.add(ledgerId=position.ledger_id, entryId=position.entry_id)
        through = count
        if count > 1 and not self.world.is_draining and self.rng.random() < 0.3:
            through = self.rng.randint(1, count)
        acked = (1 << through) - 1
        rest = (1 << count) - 1 & ~acked
        if mask & rest or (rest and self.world.plan.batch_index_acks):
            message_id.ack_set.extend(words_of_mask(rest))
            self.held.append((position, mask & rest))
        elif rest:
            # The whole entry: the others were acked before.
            acked = (1 << count) - 1
        keys = [k for k in facts.keys_of(position) if acked >> k.place & 1]
        self.facts.cumulative_sent(Key(*position, 0), keys, self.number)
        self.held = [(p, m) for p, m in self.held if p >= position and m]
        self._ask_receipt(command)
        self.send("acks", self.number, [command])

    def _ask_receipt(self, command: pb.CommandAck) -> None:
        if self.rng.random() < self.world.plan.receipt_share:
            command.request_id = self.world.next_id()
            self.receipts_due[command.request_id] = asyncio.get_running_loop().time()

    def acks_answered(
        self, consumer_id: int, request_ids: Sequence[int], error: str | None
    ) -> None:
        """See `ClientSide`."""
        if consumer_id != self.number:
            return
        for request_id in request_ids:
            violated(
                self.receipts_due.pop(request_id, None) is None,
                f"{self.name}: ack {request_id} was answered twice, or never asked",
            )
        if error is not None and "PersistTimeout" not in error:
            self.disconnect()

    # ---------------------------------------------------------------- moving

    async def _seek(self) -> None:
        entries = sorted(self.facts.topic.entries)
        if not entries or self.facts.is_vague:
            return
        target = self.rng.choice(entries)
        token = self.facts.reset_sent(target)
        before = self.world.last_id
        self.world.log("seek", self.name, str(target))
        await self.request("seek", self.number, target)
        self.world.moved(self, target, token, before)
        self.disconnect()

    async def _unsubscribe(self) -> None:
        self.facts.delete_sent()
        self.world.log("unsubscribe", self.name)
        await self.request("unsubscribe", self.number)
        self.facts.deleted()
        self.disconnect()


def make_entry(
    producer: str, sequence_id: int, count: int, rng: random.Random, deliver_at_ms: int = 0
) -> bytes:
    """What a producer stores: one message, or a batch; with a time of delivery or without."""
    described = pb.MessageMetadata(
        producer_name=producer,
        sequence_id=sequence_id,
        publish_time=1,
        partition_key=f"k{rng.randrange(5)}",
    )
    if count > 1:
        described.num_messages_in_batch = count
        described.highest_sequence_id = sequence_id + count - 1
    if deliver_at_ms:
        described.deliver_at_time = deliver_at_ms
    payload = b"%s/%d/" % (producer.encode(), sequence_id) + rng.randbytes(rng.choice((0, 20, 300)))
    return seal_entry(described.SerializeToString(), payload)
