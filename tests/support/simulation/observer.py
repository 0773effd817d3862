"""Holds what brokers say and do against the facts, at the moment they say and do it.

Looks into the real objects: a promise is compared with the state that it was made of, a delivery
with the cursor that it came from, a gate with the reasons that it ought to have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, cast

from ackgate.broker.topic.topic import NO_POSITION
from ackgate.broker.wire.requests import SubscriptionType
from ackgate.cursor import Position
from ackgate.dispatcher import PauseReason
from ackgate.persistence.messages.entry import parse_metadata
from ackgate.persistence.records.outcome import RecoverySource
from tests.support.simulation.facts import Key, SubscriptionFacts, TopicFacts, violated
from tests.support.simulation.nack_facts import NackFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ackgate.broker.topic import Producer
    from ackgate.broker.topic.subscription import Consumer, SubscriptionDriver
    from ackgate.broker.topic.topic import Topic
    from ackgate.broker.wire.proto import pulsar_pb2 as pb
    from ackgate.broker.wire.replies import MessageOut
    from ackgate.cursor import ManagedCursor
    from ackgate.persistence.cursors.store import CursorStore
    from tests.support.simulation.plan import Plan

_CUMULATIVE: Final = 1

FLUSH_PATIENCE_SECONDS: Final = 12.0
"""Twice the interval at which dirty cursors are flushed here, and some more."""


class _AckAsked(NamedTuple):
    """An ack that waits for its receipt."""

    subscription: SubscriptionDriver
    facts: SubscriptionFacts
    keys: list[Key]
    epoch: int
    resets: int


class Observer:
    """Sees everything that passes through sessions."""

    def __init__(self, plan: Plan, log: Callable[..., None]) -> None:
        self._plan = plan
        self._log = log
        self.topics: dict[str, TopicFacts] = {}
        self.nacks = NackFacts(0 if plan.unsubscribes or plan.seeks else plan.backoff_ms)
        self._asked: dict[int, _AckAsked] = {}
        self._reports: set[int] = set()
        self._kept_reports: list[object] = []
        self._dirty: dict[SubscriptionDriver, float] = {}
        self.floors: dict[str, dict[int, Position]] = {}
        """Per producer: what was confirmed before an entry was first sent."""

    def facts_of(self, topic: Topic) -> TopicFacts:
        """What is known of a topic."""
        return self.topics[str(topic.name)]

    # ---------------------------------------------------------------- producing

    def confirming(self, producer: Producer, receipts: Sequence[tuple[int, int, int, int]]) -> None:
        """Receipts are on their way to a producer."""
        facts = self.facts_of(cast("Topic", producer.topic))
        for sequence_id, highest, ledger_id, entry_id in receipts:
            if ledger_id == NO_POSITION:
                facts.confirmed.add((producer.name, sequence_id))
                continue
            position = Position(ledger_id, entry_id)
            entry = facts.sent[producer.name, sequence_id]
            facts.entry(position, entry, producer.name, sequence_id, highest - sequence_id + 1)
            floor = self.floors[producer.name][sequence_id]
            violated(
                position <= floor,
                f"{producer.name}/{sequence_id} is at {position}, and {floor} was confirmed before"
                " it was sent",
            )
            facts.confirmed_through = max(facts.confirmed_through, position)
            facts.confirmed.add((producer.name, sequence_id))

    # ---------------------------------------------------------------- consuming

    def delivering(self, consumer: Consumer, messages: Sequence[MessageOut]) -> None:
        """Messages are on their way to a consumer."""
        subscription = consumer.subscription
        topic = _topic_of(subscription)
        facts = self.facts_of(topic)
        acks = facts.subscriptions[subscription.name]
        cursor, epoch = subscription.cursor, topic.ledger.owner_epoch
        for message in messages:
            position = Position(message.ledger_id, message.entry_id)
            metadata = parse_metadata(message.entry, position)
            count = max(1, metadata.num_messages_in_batch)
            facts.entry(
                position, message.entry, metadata.producer_name, metadata.sequence_id, count
            )
            violated(
                cursor.is_acked(position),
                f"{acks.name}: {position} is delivered although its cursor has it acked",
            )
            mask = message.unacked_mask
            violated(
                mask != cursor.unacked_mask(position),
                f"{acks.name}: {position} is delivered with indexes {mask}, its cursor has"
                f" {cursor.unacked_mask(position)}",
            )
            self.nacks.delivering(subscription, position)
            self._check_time(subscription, position, metadata.deliver_at_time)
            for index in range(count):
                if mask is None or mask >> index & 1:
                    acks.delivered(Key(*position, index), epoch)
        violated(
            subscription.core.gate.settings.is_strict
            and subscription.core.gate.settings.enabled
            and cursor.range_count > subscription.core.gate.settings.ranges_max,
            f"{acks.name}: delivers with {cursor.range_count} ranges in strict mode",
        )

    def _check_time(
        self, subscription: SubscriptionDriver, position: Position, due_ms: int
    ) -> None:
        """What has a time of delivery does not come before it, or a tick before it."""
        if subscription.core.kind is None or not subscription.core.kind.holds:
            return
        now_ms = subscription.topic.services.clock_ms()
        early_ms = 0 if self._plan.delay_strict else self._plan.delay_tick_ms
        violated(
            now_ms < due_ms - early_ms,
            f"{subscription.name}: {position} is due at {due_ms} and comes at {now_ms}",
        )

    def acks_arrived(self, consumer: Consumer, commands: Sequence[pb.CommandAck]) -> None:
        """Acks have come to where they are applied."""
        subscription = consumer.subscription
        facts = self.facts_of(_topic_of(subscription))
        acks = facts.subscriptions[subscription.name]
        epoch = subscription.topic.ledger.owner_epoch
        for command in commands:
            if not command.HasField("request_id"):
                continue
            keys: list[Key] = []
            for message_id in command.message_id:
                position = Position(message_id.ledgerId, message_id.entryId)
                rest = sum(word % 2**64 << 64 * i for i, word in enumerate(message_id.ack_set))
                if not rest or self._plan.batch_index_acks:
                    keys += [k for k in facts.keys_of(position) if not rest >> k.place & 1]
                if command.ack_type == _CUMULATIVE:
                    keys += [k for k in acks.unsure if k.position < position]
            self._asked[command.request_id] = _AckAsked(
                subscription, acks, keys, epoch, -1 if acks.resetting else acks.resets
            )

    def acks_applied(self, consumer: Consumer) -> None:
        """They were."""
        self.limit(consumer.subscription)
        self.nacks.acked(consumer.subscription)

    def given_back(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """A consumer wanted these again."""
        self.nacks.given_back(consumer.subscription, positions or ())

    def limit(self, subscription: SubscriptionDriver) -> None:
        """Take back promises about what the limits may drop at the next write."""
        if self._exceeds(subscription.cursor):
            acks = self.facts_of(_topic_of(subscription)).subscriptions[subscription.name]
            if subscription.topic.ledger.owner_epoch >= acks.epoch:
                acks.may_be_dropped(self._keeper(subscription.cursor))

    def acks_durable(self, request_ids: Sequence[int]) -> None:
        """Receipts are on their way to a consumer."""
        for request_id in request_ids:
            asked = self._asked.pop(request_id, None)
            if asked is None or asked.resets != asked.facts.resets:
                continue
            store, cursor = asked.subscription.store, asked.subscription.cursor
            assert store is not None
            outcome = store.outcome
            if outcome is not None and not outcome.is_complete:
                asked.facts.receipt(asked.keys, asked.epoch, _through(outcome.mark_delete))
            elif self._exceeds(cursor):
                asked.facts.receipt(asked.keys, asked.epoch, self._keeper(cursor))
            else:
                asked.facts.receipt(asked.keys, asked.epoch, lambda _: True)

    def _exceeds(self, cursor: ManagedCursor) -> bool:
        plan = self._plan
        return (
            cursor.range_count > plan.kept_ranges
            or cursor.partly_acked_count > plan.batch_indexes_max
        )

    def _keeper(self, cursor: ManagedCursor) -> Callable[[Key], bool]:
        """Whether the next write will surely keep an ack."""
        snapshot = cursor.snapshot()
        ends: list[Position] = []
        for ledger_id in sorted(snapshot.acked):
            previous = -2
            for entry_id in snapshot.acked[ledger_id]:
                if entry_id == previous + 1:
                    ends[-1] = Position(ledger_id, entry_id)
                else:
                    ends.append(Position(ledger_id, entry_id))
                previous = entry_id
        ends = [end for end in ends if end > snapshot.mark_delete]
        kept = self._plan.kept_ranges
        through = snapshot.mark_delete
        if kept:
            through = max(ends[:kept], default=through)
        if len(ends) <= kept:
            through = Position(2**62, 0)
        partly = sorted(snapshot.unacked_indexes)[: self._plan.batch_indexes_max]
        dropped = set(snapshot.unacked_indexes).difference(partly)
        return lambda key: (
            key.position not in dropped and (key.position <= through or key.position in partly)
        )

    # ---------------------------------------------------------------- coming and going

    def loaded(self, topic: Topic) -> None:
        """An owner has opened a topic with its cursors."""
        facts = self.facts_of(topic)
        epoch = topic.ledger.owner_epoch
        exists = topic.ledger.ledgers.exists
        for subscription in topic.subscriptions.values():
            assert subscription.store is not None
            self._reports.add(id(subscription.store.report))
            self._kept_reports.append(subscription.store.report)
            acks = facts.subscriptions.get(subscription.name)
            if acks is None:
                continue
            self.nacks.opened(subscription)
            acks.recovered(epoch, _is_acked(subscription.cursor), lambda key: exists(key.position))
        for name, acks in facts.subscriptions.items():
            violated(
                acks.exists
                and not acks.is_vague
                and name not in topic.subscriptions
                and epoch > acks.epoch,
                f"subscription {name} is gone under epoch {epoch}",
            )

    def subscribed(self, consumer: Consumer) -> None:
        """A consumer was attached; its subscription may be new."""
        subscription = consumer.subscription
        store: CursorStore | None = subscription.store
        if store is None or id(store.report) in self._reports:
            return
        self._reports.add(id(store.report))
        self._kept_reports.append(store.report)
        facts = self.facts_of(_topic_of(subscription))
        acks = facts.subscriptions[subscription.name]
        epoch = subscription.topic.ledger.owner_epoch
        if epoch < acks.epoch:
            return
        if store.report.source is RecoverySource.NEW:
            acks.created(store.report.mark_delete, epoch, _stays(_topic_of(subscription)))
        else:
            acks.epoch = epoch - 1
            exists = subscription.topic.ledger.ledgers.exists
            acks.recovered(epoch, _is_acked(subscription.cursor), lambda key: exists(key.position))

    def moved(
        self,
        acks: SubscriptionFacts,
        target: Position,
        token: int,
        before: int,
        topic: Topic | None,
    ) -> None:
        """A reset has succeeded."""
        if topic is not None:
            acks.reset_ended(target, token, before, topic.ledger.owner_epoch, _stays(topic))

    # ---------------------------------------------------------------- at any moment

    def check(self, topic: Topic, now: float) -> None:
        """Every invariant of a loaded topic."""
        topic.ledger.ledgers.check()
        for subscription in topic.subscriptions.values():
            self.check_subscription(subscription)
            self._check_dirty(subscription, now)

    def check_subscription(self, subscription: SubscriptionDriver) -> None:
        """Structures, gate, outcome, statistics: whether they agree."""
        cursor, gate, store = subscription.cursor, subscription.core.gate, subscription.store
        subscription.core.check()
        self.nacks.check(subscription)
        self.limit(subscription)
        if store is None:
            return
        name = subscription.name
        told = gate.statistics()
        violated(
            (told.ranges_live, told.batch_indexes_live)
            != (cursor.range_count, cursor.partly_acked_count),
            f"{name}: the gate counts {told.ranges_live} ranges and {told.batch_indexes_live} partly"
            f" acked entries, the cursor {cursor.range_count} and {cursor.partly_acked_count}",
        )
        outcome = store.outcome
        if outcome is not None:
            violated(
                (told.entries_dropped, told.ranges_in_memory_at_persist, told.ranges_persisted)
                != (outcome.entries_dropped, outcome.ranges_in_memory, outcome.ranges_persisted),
                f"{name}: the gate was told other things than {outcome}",
            )
            violated(
                outcome.version > cursor.version,
                f"{name}: version {outcome.version} is durable, and the cursor is at"
                f" {cursor.version}",
            )
        violated(
            told.persist_failing_since_ms != store.failing_since_ms,
            f"{name}: the gate believes that writes fail since {told.persist_failing_since_ms},"
            f" the store since {store.failing_since_ms}",
        )
        self._check_gate(subscription)
        violated(
            gate.settings.is_strict
            and subscription.core.gate.settings.enabled
            and cursor.range_count > gate.settings.ranges_max,
            f"{name}: {cursor.range_count} ranges in strict mode, allowed are"
            f" {gate.settings.ranges_max}",
        )

    def _check_dirty(self, subscription: SubscriptionDriver, now: float) -> None:
        """What is dirty is being written, or will be at the next flush (a trim changes it, too)."""
        store = subscription.store
        if store is None or not store.is_dirty or not store.is_idle or _has_stopped(store):
            self._dirty.pop(subscription, None)
            return
        since = self._dirty.setdefault(subscription, now)
        violated(
            now - since > FLUSH_PATIENCE_SECONDS,
            f"{subscription.name}: dirty since {since:.3f}, and nobody writes",
        )

    def _check_gate(self, subscription: SubscriptionDriver) -> None:
        """It is shut exactly when a reason holds, computed here anew."""
        gate, cursor, store = subscription.core.gate, subscription.cursor, subscription.store
        assert store is not None
        plan, name = self._plan, subscription.name
        pauses = plan.gate and subscription.type in {
            SubscriptionType.SHARED,
            SubscriptionType.KEY_SHARED,
        }
        violated(
            pauses != subscription.core.gate.settings.enabled,
            f"{name}: pauses is {subscription.core.gate.settings.enabled}",
        )
        if not pauses:
            violated(not gate.is_open, f"{name}: the gate is shut, and there is none")
            return
        outcome = store.outcome
        must = {
            PauseReason.RANGES_LIVE: cursor.range_count > plan.ranges_max,
            PauseReason.BATCH_INDEXES: cursor.partly_acked_count > plan.batch_indexes_max
            or (outcome is not None and outcome.batch_indexes_dropped > 0),
            PauseReason.RANGES_PERSISTED: outcome is not None
            and outcome.ranges_in_memory > plan.ranges_max,
        }
        for reason, holds in must.items():
            violated(
                holds and reason not in gate.reasons,
                f"{name}: the gate lacks the reason {reason.value}: {gate.statistics()}",
            )
        is_dropped = outcome is not None and not outcome.is_complete
        low = min(plan.ranges_max, plan.resume_ranges or plan.ranges_max)
        calm = (
            cursor.range_count <= low
            and cursor.partly_acked_count <= plan.batch_indexes_max
            and (outcome is None or outcome.ranges_in_memory <= low)
            and not is_dropped
            and store.failing_since_ms is None
            and not plan.strict
        )
        violated(
            calm and not gate.is_open,
            f"{name}: the gate is shut for {sorted(r.value for r in gate.reasons)}: "
            f"{gate.statistics()}",
        )


def _through(mark_delete: Position) -> Callable[[Key], bool]:
    return lambda key: key.position <= mark_delete


def _is_acked(cursor: ManagedCursor) -> Callable[[Key], bool]:
    def is_acked(key: Key) -> bool:
        if cursor.is_acked(key.position):
            return True
        mask = cursor.unacked_mask(key.position)
        return mask is not None and not mask >> key.place & 1

    return is_acked


def _stays(topic: Topic) -> Callable[[Key], bool]:
    """Whether a message is there. A trim that is under way leaves it: it began with this cursor known."""
    ledgers = topic.ledger.ledgers
    return lambda key: ledgers.exists(key.position)


def _has_stopped(store: CursorStore) -> bool:
    """Closed, or somebody else's: whatever is dirty stays so."""
    return store.why_stopped is not None or store.is_closed


def _topic_of(subscription: SubscriptionDriver) -> Topic:
    return cast("Topic", subscription.topic)
