"""Delayed entries of an earlier owner become known while their subscription delivers already."""

from __future__ import annotations

import numpy as np
import pytest

from ackgate.cursor import EARLIEST, MessageLedgers, Position
from ackgate.dispatcher import Shared
from ackgate.dispatcher.delayed import DelayedTracker, SharedIndex
from ackgate.subscription import EntryRead, Subscription, SubscriptionSettings
from tests.unit.dispatcher.buckets.bucket_host import EXACT, Host

LEDGER = 1
DUE_MS = 50
ENTRIES = 6
DUE = 2


def stored() -> Host:
    """All entries are in a snapshot, the first `DUE` due at `DUE_MS`, the others later."""
    host = Host()
    times = np.full(ENTRIES, 10 * DUE_MS)
    times[:DUE] = DUE_MS
    host.tracker.add_many(LEDGER, np.arange(ENTRIES), times, 0)
    host.tracker.seal(0)
    host.pump()
    assert host.records
    return host


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_is_delivered_before_its_bucket_is_read_is_not_held(is_shared: bool) -> None:
    """Found by the simulation, seed 70004847."""
    now_ms = DUE_MS + 1
    host = stored().restarted(at_ms=now_ms)
    index = SharedIndex(host.tracker, EXACT)
    view = index.join(EARLIEST, lambda _: None)
    ledgers = MessageLedgers()
    ledgers.open_ledger(LEDGER)
    ledgers.add_entries(LEDGER, ENTRIES)
    tracker: DelayedTracker = view if is_shared else host.tracker
    sub: Subscription[str, EntryRead] = Subscription(
        ledgers,
        kind=Shared(),
        settings=SubscriptionSettings(delays=EXACT),
        make_tracker=lambda _: tracker,
    )
    sub.start_tracker()
    sub.attach("alice", permits=ENTRIES, now_ms=now_ms)
    request = sub.ready(now_ms=now_ms).read
    assert request is not None
    positions = [Position(LEDGER, entry_id) for entry_id in range(ENTRIES)]
    due, late = positions[:DUE], positions[DUE:]
    entries = [EntryRead(position, deliver_at_ms=DUE_MS) for position in due]
    entries += [EntryRead(position, deliver_at_ms=10 * DUE_MS) for position in late]
    sub.read_done(request, entries, now_ms=now_ms)
    (delivery,) = sub.ready(now_ms=now_ms).deliveries
    assert [entry.position for entry in delivery.entries] == due

    host.pump()  # only now it is known what the snapshot names
    index.hear_recovered([LEDGER])

    assert not tracker.is_recovering
    sub.check()
    index.check()
    assert not any(map(sub.is_held, due))
    assert all(map(sub.is_held, late))
    assert sub.ready(now_ms=10 * DUE_MS).read is not None
