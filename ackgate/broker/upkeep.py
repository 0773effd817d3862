"""Periodic work of a broker, with its intervals. The intervals are read again each time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.broker.cluster import AUDIT_LOOK_SECONDS
from ackgate.broker.topic import DISK_LOOK_SECONDS, Topic
from ackgate.errors import OwnershipError, StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ackgate.broker.cluster import BrokerAudit
    from ackgate.broker.topic import SharedServices, TopicRegistry

log = logging.getLogger(__name__)

SETTLED_SECONDS: Final = 60.0
"""How often to look again whether work that was switched off has been switched on."""


class Chore(NamedTuple):
    """Periodic work and its interval. An interval of 0 seconds: it is switched off for now."""

    work: Callable[[], Awaitable[None]]
    interval_seconds: Callable[[], float]


def chores(services: SharedServices, registry: TopicRegistry) -> list[Chore]:
    """The chores that every broker runs."""
    return [
        Chore(services.disk_space.look, lambda: DISK_LOOK_SECONDS),
        Chore(
            lambda: registry.for_each(Topic.flush_cursors),
            lambda: services.settings.persistence.managed_ledger_cursor_position_flush_seconds,
        ),
        Chore(
            lambda: registry.for_each(Topic.keep_ledgers),
            lambda: services.settings.broker.retention_check_interval_in_seconds,
        ),
        Chore(
            lambda: registry.for_each(Topic.expire_messages),
            lambda: services.settings.broker.message_expiry_check_interval_in_minutes * 60,
        ),
        Chore(
            registry.delete_inactive,
            lambda: services.settings.broker.broker_delete_inactive_topics_frequency_seconds,
        ),
        *(_audits(services.audit) if services.audit.is_wanted else ()),
    ]


def _audits(audit: BrokerAudit) -> tuple[Chore, ...]:
    return (
        Chore(
            audit.check_bookies_if_due,
            lambda: min(audit.bookies_interval_seconds, AUDIT_LOOK_SECONDS),
        ),
        Chore(
            audit.check_everything_if_due,
            lambda: min(audit.interval_seconds, AUDIT_LOOK_SECONDS),
        ),
    )


async def run_chore(chore: Chore) -> None:
    """Do the work forever. A failure is logged, and the next run comes as usual."""
    while True:
        seconds = chore.interval_seconds()
        await asyncio.sleep(seconds or SETTLED_SECONDS)
        if seconds:
            try:
                await chore.work()
            except (StorageError, OwnershipError) as error:
                log.warning("upkeep is put off: %s", error)
            except Exception:
                log.exception("upkeep failed")
