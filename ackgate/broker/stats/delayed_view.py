"""Held entries for people: what waits for its time, and why nothing is delivered.

Pure: text out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ackgate.broker.stats.look import count, span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ackgate.broker.stats.delayed import DelayedState
    from ackgate.broker.stats.look import Look
    from ackgate.broker.stats.values import SubscriptionStats
    from ackgate.dispatcher.trackers.bucket_statistics import BucketStatistics

STILL_MESSAGES_PER_SECOND = 0.05
"""Fewer than three messages in the last minute: nothing is being delivered."""


def delayed_lines(state: DelayedState, now_ms: int, look: Look) -> Iterator[tuple[str, str]]:
    """(label, text); none where nothing was ever held."""
    held, nacks = state.held, state.nacks
    if held.tracker or state.degraded:
        words = [
            f"{held.delayed_entries:,} tracked in {state.tracking.step.value}",
            f"{held.delayed_bytes:,} bytes",
        ]
        if state.next_due_ms is not None:
            words.append(_due("next", state.next_due_ms, now_ms))
        if state.buckets is not None:
            words += _buckets(state.buckets)
        trouble = "".join(f"  {look.bad(f'DEGRADED: {why}')}" for why in state.degraded)
        yield "delayed", ", ".join(words) + trouble
    if nacks.pending or nacks.dropped:
        words = [f"{nacks.pending:,} held", f"{nacks.bytes:,} bytes"]
        if nacks.next_deadline_ms is not None:
            words.append(_due("next", nacks.next_deadline_ms, now_ms))
        words.append(f"{nacks.persisted:,} durable")
        dropped = f"  {look.warning(f'{nacks.dropped:,} would come at once after a crash')}"
        yield "nacks", ", ".join(words) + (dropped if nacks.dropped else "")


def waits_for(stats: SubscriptionStats, now_ms: int) -> list[str]:
    """Why nothing is delivered though there is a backlog; empty while something is."""
    if not stats.msg_backlog or stats.msg_rate_out > STILL_MESSAGES_PER_SECOND:
        return []
    reasons = []
    if not stats.consumers:
        reasons.append("no consumer")
    elif all(consumer.available_permits <= 0 for consumer in stats.consumers):
        reasons.append("no consumer has room for more")
    if stats.blocked_subscription_on_unacked_msgs:
        reasons.append("too many messages are sent and not acked")
    if stats.is_blocked_on_ack_state_persistent:
        reasons.append("the gate is shut: only what was given before, or falls due, is sent")
    state = stats.delayed
    deadline = state.next_due_ms
    if stats.msg_delayed:
        due = "" if deadline is None else f", {_due('the next', deadline, now_ms)}"
        reasons.append(f"{stats.msg_delayed:,} of {stats.msg_backlog:,} entries delayed{due}")
    if state.nacks.pending:
        nack_ms = state.nacks.next_deadline_ms
        due = "" if nack_ms is None else f", {_due('the next', nack_ms, now_ms)}"
        reasons.append(f"{state.nacks.pending:,} were given back and are held back{due}")
    if stats.unacked_messages:
        reasons.append(f"{count(stats.unacked_messages, 'message')} sent and not acked yet")
    return reasons


def _due(what: str, deadline_ms: int, now_ms: int) -> str:
    if deadline_ms <= now_ms:
        return f"{what} is due"
    return f"{what} due in {span(deadline_ms - now_ms)}"


def _buckets(buckets: BucketStatistics) -> Iterator[str]:
    yield f"{count(buckets.buckets, 'bucket')} with {buckets.snapshot_bytes:,} bytes stored"
    yield f"{buckets.loaded_entries:,} loaded"
    if buckets.buckets_unread:
        yield f"{count(buckets.buckets_unread, 'bucket')} still to be read"
    if buckets.buckets_storing:
        yield f"{count(buckets.buckets_storing, 'bucket')} being stored"
    if buckets.buckets_merging:
        yield f"{count(buckets.buckets_merging, 'bucket')} being merged"
