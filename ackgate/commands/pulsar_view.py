"""A Pulsar cluster's topics, cursors and ledgers as text, and as JSON. Pure."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from ackgate.broker.stats import ack_picture, to_json
from ackgate.commands.stats.look import labelled, picture_line
from ackgate.commands.terminal.tables import (
    metadata_json,
    printable,
    size_text,
    time_text,
)
from ackgate.cursor import LATEST, run_bounds
from ackgate.described import count, span
from ackgate.persistence.ports import LedgerState
from ackgate.pulsar import FOREVER, PulsarTopic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyroaring import BitMap

    from ackgate.broker.stats import AckPicture
    from ackgate.commands.stats.look import Look
    from ackgate.persistence.ports import LedgerMetadata
    from ackgate.pulsar import (
        LedgerView,
        LiveCursor,
        PersistCaps,
        PulsarPolicies,
        PulsarPolicy,
        PulsarRetention,
        StoredTopic,
        SubscriptionReport,
        TopicLedger,
        TopicReport,
    )

_PLURALS: Final = {"messages": "messages", "cursor": "cursors", "delayed": "delayed messages"}
_RUNS_SHOWN: Final = 4
RANGES_MAX: Final = 10_000
"""Ranges of one subscription in JSON; any more are only counted."""

LEDGER_HEAD: Final = ("ledger", "kind", "state", "entries", "size", "E/W/A", "closed", "kept by")
LEDGERS_HEAD: Final = (
    f"{'ledger':>12} {'state':<11} {'kind':<9} {'entries':>13} {'size':>10} {'created':<20}  owner"
)


# ---------------------------------------------------------------------------------------------- topics


def topic_line(topic: PulsarTopic, node: StoredTopic, cursors: Sequence[str]) -> str:
    """A topic in one line, from its node alone. + marks an open ledger, which is not counted."""
    closed = [ledger for ledger in node.ledgers if ledger.entries is not None]
    entries = sum(ledger.entries or 0 for ledger in closed)
    size = sum(ledger.bytes or 0 for ledger in closed)
    plus = "+" if len(closed) < len(node.ledgers) else " "
    ended = "  terminated" if node.terminated_at is not None else ""
    return (
        f"{len(node.ledgers):>7,} ledgers {entries:>15,}{plus} entries {size_text(size):>10} "
        f"{len(cursors):>5} cursors  {topic}{ended}"
    )


def topic_json(topic: PulsarTopic, node: StoredTopic, cursors: Sequence[str]) -> dict[str, Any]:
    return {
        "topic": str(topic),
        "ledgers": [
            {
                "ledgerId": ledger.ledger_id,
                "entries": ledger.entries,
                "bytes": ledger.bytes,
                "closedMs": ledger.closed_ms,
                "isOffloaded": ledger.is_offloaded,
                "isOnBookies": ledger.is_on_bookies,
            }
            for ledger in node.ledgers
        ],
        "terminatedAt": None if node.terminated_at is None else str(node.terminated_at),
        "properties": dict(node.properties),
        "cursors": list(cursors),
    }


# --------------------------------------------------------------------------------------------- cursors


def cursor_line(report: SubscriptionReport) -> str:
    cursor, figures = report.cursor, report.cursor.statistics
    marks = [
        *(["ROLLED BACK"] if cursor.source == "rolled back" else []),
        *(["at the cap"] if report.is_at_cap else []),
        *(["past the gate's limit"] if report.outlook.is_past else []),
    ]
    return (
        f"{figures.backlog_entries:>13,} backlog {figures.range_count:>9,} ranges "
        f"{figures.hole_count:>9,} holes {figures.partly_acked_count:>7,} batches "
        f"{cursor.acks.mark_delete!s:>20}  {cursor.topic} {cursor.subscription}"
        + (f"  {', '.join(marks)}" if marks else "")
    )


def cursor_json(report: SubscriptionReport) -> dict[str, Any]:
    cursor, figures, outlook = report.cursor, report.cursor.statistics, report.outlook
    ranges = cursor.acks.ranges()
    partly = sorted(cursor.acks.unacked_indexes.items())
    return {
        "topic": str(cursor.topic),
        "subscription": cursor.subscription,
        "source": cursor.source,
        "trouble": cursor.trouble,
        "markDelete": str(cursor.acks.mark_delete),
        "backlogEntries": figures.backlog_entries,
        "ackedEntries": figures.acked_count,
        "rangeCount": figures.range_count,
        "holeCount": figures.hole_count,
        "ranges": [[*each] for each in ranges[:RANGES_MAX]],
        "rangesOmitted": max(0, len(ranges) - RANGES_MAX),
        "partlyAcked": [
            {"position": str(at), "unackedIndexes": _indexes(mask)}
            for at, mask in partly[:RANGES_MAX]
        ],
        "partlyAckedCount": figures.partly_acked_count,
        "markDeleteProperties": dict(cursor.acks.properties),
        "properties": dict(cursor.properties),
        "form": "words" if cursor.acks.is_words else "ranges",
        "recordBytes": cursor.acks.bytes,
        "cursorLedgerId": cursor.cursor_ledger_id,
        "writtenEntries": cursor.written_entries,
        "begunMs": cursor.begun_ms,
        "changedMs": cursor.changed_ms,
        "misfits": to_json(cursor.misfits),
        "isAtCap": report.is_at_cap,
        "againAfterCrashEntries": report.crash_entries,
        "againAfterCrash": _ranges_json(report.after_crash),
        "againAfterCloseEntries": report.close_entries,
        "againAfterClose": _ranges_json(report.after_close),
        "batchesAgain": report.batches_again,
        "gate": {
            "ranges": outlook.ranges,
            "rangesMax": outlook.ranges_max,
            "shutsInSeconds": outlook.shuts_in_seconds,
            "sinceMs": outlook.since_ms,
        },
        "buckets": [
            {
                "snapshotLedgerId": bucket.place.snapshot_ledger_id,
                "firstLedgerId": bucket.place.first_ledger_id,
                "lastLedgerId": bucket.place.last_ledger_id,
                "entries": bucket.entries,
                "segments": len(bucket.segments),
                "bytes": bucket.bytes,
                "firstDueMs": min((s.min_due_ms for s in bucket.segments), default=None),
                "lastDueMs": max((s.max_due_ms for s in bucket.segments), default=None),
            }
            for bucket in report.buckets
        ],
        "live": None if report.live is None else _live_json(report.live),
        "troubles": list(report.troubles),
    }


def _live_json(live: LiveCursor) -> dict[str, Any]:
    return {
        "markDelete": str(live.mark_delete),
        "readPosition": str(live.read_position),
        "rangeCount": live.range_count,
        "ackedEntries": sum(map(len, live.acked.values())),
        "backlogEntries": live.backlog_entries,
        "state": live.state,
        "cursorLedgerId": live.cursor_ledger_id,
        "type": live.kind,
        "unackedMessages": live.unacked_messages,
        "delayedMessages": live.delayed_messages,
        "consumers": live.consumers,
    }


def _ranges_json(acked: Mapping[int, BitMap] | None) -> list[list[int]] | None:
    """[ledger id, first entry, last entry], at most `RANGES_MAX`."""
    if acked is None:
        return None
    return [[*each] for each in itertools.islice(_runs(acked), RANGES_MAX)]


def _runs(acked: Mapping[int, BitMap]) -> Iterator[tuple[int, int, int]]:
    for ledger_id, bitmap in sorted(acked.items()):
        starts, stops = run_bounds(bitmap)
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            yield ledger_id, start, stop - 1


def _indexes(mask: int) -> list[int]:
    return [index for index in range(mask.bit_length()) if mask >> index & 1]


# ----------------------------------------------------------------------------- a topic's subscriptions


def report_json(report: TopicReport, cells: int) -> dict[str, Any]:
    view = report.view
    return {
        "topic": str(view.topic),
        "takenMs": report.taken_ms,
        "entries": view.entries,
        "bytes": view.bytes,
        "ledgers": {str(ledger_id): entries for ledger_id, entries in view.entry_counts.items()},
        "policies": None if report.policies is None else _policies_json(report.policies),
        "caps": {
            "rangesMax": report.caps.ranges_max,
            "batchIndexesMax": report.caps.batch_indexes_max,
            "ackForm": report.caps.form.value,
            "origin": report.caps.origin,
        },
        "subscriptions": [
            {**cursor_json(each), "picture": to_json(_picture(report, each, cells))}
            for each in report.subscriptions
        ],
        "failures": {name: str(error) for name, error in report.failures.items()},
    }


def _policies_json(policies: PulsarPolicies) -> dict[str, Any]:
    retention = policies.retention
    single: dict[str, PulsarPolicy[Any]] = {
        "ttlSeconds": policies.ttl_seconds,
        "delayedDelivery": policies.delayed_delivery,
        "gate": policies.gate,
        "cursorWritesPerSecond": policies.cursor_writes_per_second,
    }
    return {
        "retention": {**retention.value._asdict(), "origin": retention.origin},
        **{name: {"value": of.value, "origin": of.origin} for name, of in single.items()},
    }


def retention_text(retention: PulsarRetention) -> str:
    if not retention.minutes or not retention.megabytes:
        return "no retention"
    if retention.minutes < 0 and retention.megabytes < 0:
        return "retention for ever"
    time = span(retention.minutes * 60_000) if retention.minutes > 0 else "without end"
    size = f", at most {retention.megabytes:,} MB" if retention.megabytes > 0 else ""
    return f"retention {time}{size}"


def _policies(policies: PulsarPolicies, caps: PersistCaps) -> str:
    ttl, rate = policies.ttl_seconds, policies.cursor_writes_per_second
    writes = f"{rate.value:g}/s" if rate.value > 0 else "with each ack"
    is_delayed = "on" if policies.delayed_delivery.value else "off"
    return ", ".join(
        (
            f"{retention_text(policies.retention.value)} [{policies.retention.origin}]",
            f"{f'TTL {span(ttl.value * 1000)}' if ttl.value > 0 else 'no TTL'} [{ttl.origin}]",
            f"delayed delivery {is_delayed} [{policies.delayed_delivery.origin}]",
            f"cursors written {writes} [{rate.origin}]",
            f"cap {count(caps.ranges_max, 'range')} [{caps.origin}]",
        )
    )


def render_topic(report: TopicReport, source: str, look: Look) -> str:
    view = report.view
    name = look.bold(printable(str(view.topic)))
    entries, ledgers = (
        count(view.entries, "entry", "entries"),
        count(len(view.entry_counts), "ledger"),
    )
    lines = [
        f"{name}  {look.dim(f'as persisted in {source}; its broker may know more')}",
        f"{entries} in {ledgers}, {size_text(view.bytes)}",
    ]
    if report.policies is not None:
        lines.append(look.dim(_policies(report.policies, report.caps)))
    for each in report.subscriptions:
        lines += ("", *_subscription(report, each, look))
    if not report.subscriptions:
        lines.append("no subscriptions")
    return "\n".join(lines)


def _subscription(report: TopicReport, each: SubscriptionReport, look: Look) -> Iterator[str]:
    cursor, figures = each.cursor, each.cursor.statistics
    live = each.live
    yield look.bold(printable(cursor.subscription)) + (
        f"  {live.kind}" if live and live.kind else ""
    )
    partly = f", {count(figures.partly_acked_count, 'batch', 'batches')} partly acked"
    yield labelled(
        "ack state",
        f"{count(figures.range_count, 'range')}, {count(figures.hole_count, 'hole')}, "
        f"{figures.acked_count:,} acked above mark-delete {cursor.acks.mark_delete}, "
        f"backlog {figures.backlog_entries:,}" + (partly if figures.partly_acked_count else ""),
    )
    yield labelled("stored", _stored(each, report.taken_ms, look))
    if not cursor.misfits.is_clean:
        yield labelled("", look.warning("some acks are of entries that do not exist any more"))
    yield labelled("again", _again(each, look))
    gate = None if report.policies is None else report.policies.gate
    yield labelled("gate", _gate(each, gate, look))
    if each.buckets or each.troubles:
        yield labelled("delayed", _delayed(each, report.taken_ms, look))
    if live is not None:
        yield labelled("broker", _live(live))
    picture = _picture(report, each, look.cells)
    for acks in picture.ledgers:
        yield picture_line(acks, figures.mark_delete, LATEST, look)
    if picture.ledgers_omitted:
        yield labelled("", look.dim(f"and {count(picture.ledgers_omitted, 'later ledger')}"))


def _picture(report: TopicReport, each: SubscriptionReport, cells: int) -> AckPicture:
    acks = each.cursor.acks
    counts = report.view.message_ledgers(acks).entry_counts
    return ack_picture(counts.items(), each.cursor.statistics.mark_delete, acks.acked, cells)


def _stored(each: SubscriptionReport, now_ms: int, look: Look) -> str:
    cursor = each.cursor
    if cursor.source == "rolled back":
        return look.bad(f"LOST: {cursor.trouble}; a restart goes back to the node's mark-delete")
    size = size_text(cursor.acks.bytes)
    if cursor.source == "node":
        return f"in its node, {size}, changed {span(now_ms - cursor.changed_ms)} ago"
    form = "words of bit sets" if cursor.acks.is_words else "ranges"
    return (
        f"ledger {cursor.cursor_ledger_id}, entry {cursor.written_entries - 1}, {size} as {form}; "
        f"ledger begun {span(now_ms - (cursor.begun_ms or now_ms))} ago"
    )


def _again(each: SubscriptionReport, look: Look) -> str:
    words = []
    if each.after_crash is not None:
        words.append(_come_again(each.after_crash, "after a crash", look))
    if each.after_close:
        words.append(_come_again(each.after_close, "after a shutdown, beyond the cap", look))
    if each.batches_again:
        batches = count(each.batches_again, "partly acked batch", "partly acked batches")
        words.append(look.warning(f"{batches} whole: brokers do not read them from the node"))
    if each.is_at_cap and each.live is None:
        words.append(
            look.warning("as much is stored as the cap allows: more may be in memory only")
        )
    if each.crash_entries is None and not words:
        words.append(
            look.dim("nothing but the backlog, of what is on disk (--admin asks the broker)")
        )
    return "; ".join(words)


def _come_again(acked: Mapping[int, BitMap], when: str, look: Look) -> str:
    number = sum(map(len, acked.values()))
    text = f"{count(number, 'acked entry', 'acked entries')} {when}"
    if not number:
        return look.good(text)
    some = list(itertools.islice(_runs(acked), _RUNS_SHOWN + 1))
    shown = [f"{i}:{a}" if a == b else f"{i}:{a}-{b}" for i, a, b in some[:_RUNS_SHOWN]]
    more = ", ..." if len(some) > _RUNS_SHOWN else ""
    return f"{look.bad(text)} ({', '.join(shown)}{more})"


def _gate(each: SubscriptionReport, gate: PulsarPolicy[bool] | None, look: Look) -> str:
    outlook = each.outlook
    text = f"{outlook.ranges:,} of {count(outlook.ranges_max, 'range')}"
    if each.live is not None and each.live.kind in {"Exclusive", "Failover"}:
        text = f"none for {each.live.kind}; {text}"
    elif gate is not None:
        text = f"{'on' if gate.value else 'off'} [{gate.origin}]; {text}"
    if outlook.is_past and (gate is None or not gate.value):
        is_shut = "shut where it is on, else " if gate is None else ""
        return look.bad(f"{text}: {is_shut}acks beyond the cap are lost with a restart")
    if outlook.is_past:
        return look.bad(f"{text}: shut, acks beyond the cap are lost with a restart")
    if outlook.shuts_in_seconds is None:
        return text
    return look.warning(
        f"{text}: reached in {span(outlook.shuts_in_seconds * 1000)} at this growth"
    )


def _delayed(each: SubscriptionReport, now_ms: int, look: Look) -> str:
    entries = sum(bucket.entries for bucket in each.buckets)
    size = sum(bucket.bytes for bucket in each.buckets)
    past = sum(bucket.due_by(now_ms) for bucket in each.buckets)
    text = (
        f"{count(len(each.buckets), 'bucket')} with {count(entries, 'entry', 'entries')}, "
        f"{size_text(size)}, {past:,} of them past due"
    )
    dues = [s for bucket in each.buckets for s in bucket.segments]
    if dues:
        first, last = min(s.min_due_ms for s in dues), max(s.max_due_ms for s in dues)
        text += f", from {time_text(first)} to {time_text(last)}"
    if each.troubles:
        text += "  " + look.bad(f"{count(len(each.troubles), 'bucket')} cannot be read")
    return text


def _live(live: LiveCursor) -> str:
    parts = [
        f"mark-delete {live.mark_delete}",
        f"reading at {live.read_position}",
        count(live.range_count, "range"),
    ]
    if live.backlog_entries is not None:
        parts.append(f"backlog {live.backlog_entries:,}")
    if live.unacked_messages:
        parts.append(f"{live.unacked_messages:,} sent and not acked")
    if live.delayed_messages:
        parts.append(f"{live.delayed_messages:,} delayed")
    if live.consumers is not None:
        parts.append(count(live.consumers, "consumer"))
    return ", ".join(parts)


# --------------------------------------------------------------------------------------------- ledgers


def topic_ledger_rows(ledgers: Sequence[TopicLedger]) -> list[tuple[str, ...]]:
    return [
        (
            str(row.ledger_id),
            row.kind,
            _state(row),
            "?" if row.entries is None else f"{row.entries:,}",
            "?" if row.bytes is None else size_text(row.bytes),
            "-" if row.metadata is None else _quorums(row.metadata),
            "-" if row.closed_ms is None else time_text(row.closed_ms),
            _kept_by(row),
        )
        for row in ledgers
    ]


def topic_ledgers_title(
    topic: PulsarTopic, rows: Sequence[TopicLedger], policies: PulsarPolicies | None
) -> str:
    sizes = []
    for kind in ("messages", "cursor", "delayed"):
        of_kind = [row for row in rows if row.kind == kind]
        if of_kind:
            size = size_text(sum(row.bytes or 0 for row in of_kind))
            sizes.append(f"{count(len(of_kind), 'ledger')} of {_PLURALS[kind]}, {size}")
    if policies is not None:
        retention = policies.retention
        sizes.append(f"{retention_text(retention.value)} [{retention.origin}]")
    return f"{printable(str(topic))}\n{'; '.join(sizes)}"


def _state(row: TopicLedger) -> str:
    where = f"offloaded ({row.offload_driver})" if row.offload_driver else "offloaded"
    if row.metadata is not None:
        state = row.metadata.state.value
        return f"{state}, {where}" if row.is_offloaded else state
    return f"{where} only" if row.is_offloaded else "MISSING"


def _kept_by(row: TopicLedger) -> str:
    if row.subscription is not None:
        return f"cursor {row.subscription}"
    words = [f"cursor {name}" for name in row.needed_by[:3]]
    if len(row.needed_by) > 3:
        words.append(f"{len(row.needed_by) - 3} more")
    if row.retained_until_ms is not None:
        until = "for ever" if row.retained_until_ms == FOREVER else time_text(row.retained_until_ms)
        words.append(f"retention until {until}".replace("until for ever", "for ever"))
    if row.closed_ms is None:
        words.append("being written")
    return ", ".join(words) or "nothing: the next trim deletes it"


def _quorums(metadata: LedgerMetadata) -> str:
    return f"{metadata.ensemble_size}/{metadata.write_quorum}/{metadata.ack_quorum}"


def topic_ledger_json(topic: PulsarTopic, row: TopicLedger) -> dict[str, Any]:
    until = row.retained_until_ms
    return {
        "topic": str(topic),
        "ledgerId": row.ledger_id,
        "kind": row.kind,
        "subscription": row.subscription,
        "isMissing": row.is_missing,
        "isOffloaded": row.is_offloaded,
        "offloadDriver": row.offload_driver,
        "entries": row.entries,
        "bytes": row.bytes,
        "closedMs": row.closed_ms,
        "neededBy": list(row.needed_by),
        "retainedUntilMs": until,
        **({} if row.metadata is None else _metadata_json(row.metadata)),
    }


def _metadata_json(metadata: LedgerMetadata) -> dict[str, Any]:
    return {"state": metadata.state.value, **metadata_json(metadata)}


def orphans_line(found: int, size: int, looked: int, older_than_seconds: float) -> str:
    """The totals, printed after the orphans."""
    age = f"; ledgers younger than {span(older_than_seconds * 1000)} are not judged"
    of_all = f"of {count(looked, 'ledger')}" + (age if older_than_seconds else "")
    if not found:
        return f"no orphans {of_all}"
    return f"{count(found, 'orphan')} with {size_text(size)} {of_all}"


def ledger_line(view: LedgerView) -> str:
    """Any ledger of the cluster in one line. The entries of an open one are not counted."""
    metadata, owner = view.metadata, view.owner
    is_closed = metadata.state is LedgerState.CLOSED
    entries = f"{metadata.last_entry_id + 1:,}" if is_closed else "?"
    size = size_text(metadata.length_bytes) if is_closed else "?"
    return (
        f"{metadata.ledger_id:>12} {metadata.state.value:<11} {owner.kind:<9} {entries:>13} {size:>10} "
        f"{time_text(metadata.created_ms)}  {' '.join(filter(None, (owner.managed_ledger, owner.cursor)))}"
        + ("  ORPHAN" if view.is_orphan else "")
    )


def ledger_json(view: LedgerView) -> dict[str, Any]:
    metadata, owner = view.metadata, view.owner
    is_closed = metadata.state is LedgerState.CLOSED
    return {
        "ledgerId": metadata.ledger_id,
        "kind": owner.kind,
        "managedLedger": owner.managed_ledger or None,
        "cursor": owner.cursor or None,
        "isOrphan": view.is_orphan,
        "entries": metadata.last_entry_id + 1 if is_closed else None,
        "bytes": metadata.length_bytes if is_closed else None,
        **_metadata_json(metadata),
    }
