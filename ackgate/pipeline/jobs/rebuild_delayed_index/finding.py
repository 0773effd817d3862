"""Finds the topics and trackers to rebuild, by the catalogue and the policies.

Edge: reads the metadata store.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from ackgate.config.delayed import BUCKET_FACTORY, DELAYED_DELIVERY, DelayedDeliveryPolicy
from ackgate.errors import CallerError, ConfigurationError, CorruptRecordError
from ackgate.persistence.nodes.paths import (
    CANCELLED_CURSOR,
    DELAYED_INDEX_CURSOR,
    HIDDEN_CURSORS,
    cursor_path,
    namespace_policies_path,
    topic_policies_path,
)
from ackgate.pipeline.catalogue.catalogue import PARTITION
from ackgate.pipeline.jobs.rebuild_delayed_index.entry_runs import NOTHING
from ackgate.pipeline.jobs.rebuild_delayed_index.targets import Target, Targets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ackgate.config.delayed import DelayedSettings
    from ackgate.cursor import Position
    from ackgate.pipeline.catalogue.catalogue import Catalogue, CatalogueTopic


class DelayedTopic(NamedTuple):
    """A topic with delayed delivery enabled."""

    topic: CatalogueTopic
    tick_ms: int
    subscriptions: tuple[str, ...]
    ledger_ids: tuple[int, ...]
    has_cancelled: bool


class MarkDeletes(NamedTuple):
    """Mark-delete positions by topic and cursor."""

    all: Mapping[tuple[str, str], Position]

    def of(self, topic: str, cursor: str) -> Position:
        """Return the cursor's mark-delete, or `NOTHING` if none is stored."""
        return self.all.get((topic, cursor), NOTHING)


def check_settings(settings: DelayedSettings, subscription: str | None) -> None:
    """Raise `ConfigurationError` unless a broker with these settings keeps delayed buckets.

    Also raised for a single `subscription` if all subscriptions of a topic share one index.
    """
    if settings.delayed_delivery_tracker_factory_class_name != BUCKET_FACTORY:
        raise ConfigurationError(
            "a broker of these settings keeps delayed messages in memory and would delete the "
            "buckets: delayedDeliveryTrackerFactoryClassName must be "
            f"{BUCKET_FACTORY} (--config names its broker.conf)"
        )
    if settings.delayed_delivery_shared_index_enabled and subscription is not None:
        raise ConfigurationError(
            "--subscription: by these settings all subscriptions of a topic share one index"
        )


def find_topics(
    catalogue: Catalogue,
    names: tuple[str, ...],
    subscription: str | None,
    settings: DelayedSettings,
) -> list[DelayedTopic]:
    """Return the topics with delayed delivery: those of `names`, or all if there are no names.

    Raises `CallerError` for an unknown topic or subscription, and for a named topic without delayed
    delivery; `CorruptRecordError` for policies that cannot be read.
    """
    topics = catalogue.topics(names)
    catalogue.all_cursors(topics, subscription)  # raises if no topic has the subscription
    found = []
    for topic in topics:
        policy = effective_policy(catalogue, topic, settings)
        if policy.is_active:
            found.append(_delayed_topic(catalogue, topic, subscription, policy.tick_ms))
        elif names:
            raise CallerError(
                f"{topic.name}: delayed delivery is switched off there, so a broker has no index"
            )
    return found


def _delayed_topic(
    catalogue: Catalogue, topic: CatalogueTopic, subscription: str | None, tick_ms: int
) -> DelayedTopic:
    cursors = {cursor.name for cursor in catalogue.cursors(topic)}
    wanted = cursors - HIDDEN_CURSORS
    if subscription is not None:
        wanted &= {subscription}
    ledgers = catalogue.message_ledgers(topic).ledgers
    return DelayedTopic(
        topic,
        tick_ms,
        tuple(sorted(wanted)),
        tuple(ledger.ledger_id for ledger in ledgers),
        CANCELLED_CURSOR in cursors,
    )


def effective_policy(
    catalogue: Catalogue, topic: CatalogueTopic, settings: DelayedSettings
) -> DelayedDeliveryPolicy:
    """Resolve the topic's policy: its own, else its namespace's, else the broker's settings."""
    tenant, namespace, name = topic.name.partition("://")[2].split("/", 2)
    whole, found, number = name.rpartition(PARTITION)
    name = whole if found and number.isascii() and number.isdigit() else name
    levels = (
        topic_policies_path(tenant, namespace, name),
        namespace_policies_path(tenant, namespace),
    )
    return DelayedDeliveryPolicy.effective(
        (_policy_at(catalogue, path) for path in levels), settings
    )


def _policy_at(catalogue: Catalogue, path: str) -> DelayedDeliveryPolicy | None:
    value = catalogue.value(path)
    try:
        policies = json.loads(value) if value else {}
        return (
            DelayedDeliveryPolicy.from_json(policies[DELAYED_DELIVERY])
            if DELAYED_DELIVERY in policies
            else None
        )
    except (ValueError, TypeError, CallerError) as error:
        raise CorruptRecordError(f"policies at {path} cannot be read: {error}") from error


def targets_of(
    topics: list[DelayedTopic], mark_deletes: MarkDeletes, settings: DelayedSettings
) -> Targets:
    """Return a target for each subscription, or for each topic with a shared index."""
    is_shared = settings.delayed_delivery_shared_index_enabled
    targets: list[Target] = []
    by_ledger: dict[int, tuple[int, ...]] = {}
    for found in topics:
        first = len(targets)
        readers = {s: mark_deletes.of(found.topic.name, s) for s in found.subscriptions}
        each = [{s: at} for s, at in readers.items()]
        for mine in [readers] * bool(readers) if is_shared else each:
            cursor = DELAYED_INDEX_CURSOR if is_shared else next(iter(mine))
            targets.append(
                Target(
                    number=len(targets),
                    topic=found.topic.name,
                    cursor=cursor,
                    path=cursor_path(found.topic.path, cursor),
                    readers=mine,
                    cancelled_through=(
                        mark_deletes.of(found.topic.name, CANCELLED_CURSOR)
                        if found.has_cancelled
                        else None
                    ),
                    tick_ms=found.tick_ms,
                    is_strict=settings.is_delayed_delivery_deliver_at_time_strict,
                )
            )
        numbers = tuple(range(first, len(targets)))
        by_ledger.update(dict.fromkeys(found.ledger_ids, numbers))
    return Targets(tuple(targets), by_ledger)
