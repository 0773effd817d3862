"""Renders the answers of `ackgate stats` and `ackgate overview` for people.

The first has a block of lines for each subscription, with a picture of each message ledger. The
second has one line of figures for each, and the reasons below it. Pure: returns text; the
terminal's width, and whether it shows colours, are arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.broker.stats import ConsumerStats, Severity, SubscriptionStats, hole_text
from ackgate.commands.stats.look import Look, labelled, picture_line
from ackgate.commands.terminal.tables import aligned, printable
from ackgate.cursor import LATEST
from ackgate.described import count, descriptions, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ackgate.broker.stats import AckState, DelayedState, Hole, OverviewAnswer, OverviewRow
    from ackgate.commands.stats.answer import StatsAnswer, SubscriptionAnswer
    from ackgate.cursor import RecoveredStateReport
    from ackgate.described import Description
    from ackgate.dispatcher import GateStatistics
    from ackgate.dispatcher.buckets import BucketStatistics
    from ackgate.persistence.records.outcome import PersistOutcome, RecoveryReport

CONSUMERS_MAX: Final = 20
"""Consumers of one subscription that are listed."""

MISSING_MAX: Final = 20
"""Lines about what is missing in an answer."""

STATE_COLUMNS: Final = 9
SPARK_COLUMNS: Final = 16


def _described(kind: type, *names: str) -> dict[str, Description]:
    """The descriptions of these figures, in this order."""
    known = descriptions(kind)
    return {name: known[name] for name in names}


_DELIVERY: Final = _described(
    SubscriptionStats,
    "msg_backlog",
    "unacked_messages",
    "msg_in_replay",
    "msg_rate_out",
    "message_ack_rate",
    "msg_rate_redeliver",
)
_CONSUMER_FIGURES: Final = _described(
    ConsumerStats,
    "available_permits",
    "unacked_messages",
    "msg_rate_out",
    "message_ack_rate",
    "msg_rate_redeliver",
)


def render(answer: StatsAnswer, look: Look) -> str:
    """Render the whole answer as text."""
    host = "host" if answer.is_embedded else "broker"
    source = (
        f"reported by {answer.source}"
        if answer.is_live
        else f"as persisted in {answer.source}; a running {host} may know more"
    )
    lines = [f"{look.bold(printable(answer.topic))}  {look.dim(printable(source))}"]
    if not answer.knows_messages:
        lines.append(look.dim("an embedding host's: entries after the last ack are not known here"))
    lines += _missing(answer.missing, look)
    for subscription in answer.subscriptions:
        lines += ("", *_subscription(answer, subscription, look))
    if not answer.subscriptions and not answer.missing:
        lines.append("no subscriptions")
    return "\n".join(lines)


def _missing(missing: Sequence[str], look: Look) -> Iterator[str]:
    for why in missing[:MISSING_MAX]:
        yield look.bad(printable(f"not in it: {why}"))
    if len(missing) > MISSING_MAX:
        yield look.bad(f"not in it: {len(missing) - MISSING_MAX:,} more")


def _subscription(answer: StatsAnswer, shown: SubscriptionAnswer, look: Look) -> Iterator[str]:
    where = "" if shown.topic == answer.topic else f"  {printable(shown.topic)}"
    kind = "" if shown.stats is None else f"  {_kind(shown.stats)}"
    yield look.bold(printable(shown.subscription)) + kind + look.dim(where)
    state = shown.ack_state
    if shown.stats is not None:
        yield labelled("delivery", _delivery(shown.stats, look))
        reasons = waits_for(shown.stats, answer.taken_ms, knows_consumers=answer.knows_consumers)
        if reasons:
            yield labelled("waits", look.warning("; ".join(reasons)))
        for label, text in delayed_lines(shown.stats.delayed, answer.taken_ms, look):
            yield labelled(label, text)
    if state.gate is not None:
        if state.gate.is_enabled:
            yield labelled("gate", _gate(state.gate, answer.taken_ms, look))
        else:
            yield labelled("gate", _disabled_gate(shown, state.gate, look))
    yield labelled("ack state", _acked(shown))
    yield labelled("durable", _durable(shown, answer.taken_ms, look))
    if state.store is not None and state.store.outcome is not None:
        yield labelled("last write", _last_write(state.store.outcome, answer.taken_ms, look))
    if state.recovery is not None:
        yield labelled("recovered" if answer.is_live else "stored", _recovery(state.recovery, look))
    if state.forecast is not None:
        yield labelled("forecast", _forecast(state, look))
    if shown.stats is not None:
        yield from _consumers(shown.stats.consumers, look)
    if shown.holes:
        yield labelled("holes", _oldest(shown.holes, answer.taken_ms))
    yield from _picture(shown, look)


def _kind(stats: SubscriptionStats) -> str:
    kind = "no consumer yet" if stats.type == "None" else stats.type
    return kind if stats.is_durable else f"{kind}, of a reader"


def _delivery(stats: SubscriptionStats, look: Look) -> str:
    figures = "  ".join(
        f"{about.title} {about.figure(getattr(stats, name))}{about.suffix}"
        for name, about in _DELIVERY.items()
    )
    blocked = "  " + look.warning("blocked on unacked messages")
    return figures + (blocked if stats.blocked_subscription_on_unacked_msgs else "")


def _disabled_gate(shown: SubscriptionAnswer, gate: GateStatistics, look: Look) -> str:
    limit = f"  limit {gate.ranges_max:,} ranges"
    if not shown.ack_state.is_gate_switched_on:
        return look.dim("off") + limit
    if shown.stats is None or shown.stats.type == "None":
        return "on" + limit + look.dim(", as soon as a Shared or Key_Shared consumer comes")
    return look.dim(f"off: {shown.stats.type} subscriptions have none") + limit


def _gate(gate: GateStatistics, now_ms: int, look: Look) -> str:
    mode = "strict" if gate.is_strict else "pulsar"
    limits = f"  mode {mode}, limit {gate.ranges_max:,} ranges"
    if gate.resume_mark != gate.ranges_max:
        limits += f", resumes at {gate.resume_mark:,}"
    if gate.budget_entries is not None:
        limits += f", budget {gate.budget_entries:,} entries"
    if gate.is_open:
        return look.good("open") + limits
    reasons = ", ".join(
        f"{reason.value} for {span(now_ms - since_ms)}" for reason, since_ms in gate.reasons.items()
    )
    return look.bad("SHUT") + f" ({reasons})" + limits


def _acked(shown: SubscriptionAnswer) -> str:
    cursor = shown.ack_state.cursor
    reading = "" if shown.stats is None else f", reading at {cursor.read_position}"
    partly = f", {count(cursor.partly_acked_count, 'batch', 'batches')} partly acked"
    return (
        f"{count(cursor.range_count, 'range')}, {count(cursor.hole_count, 'hole')}, "
        f"{cursor.acked_count:,} acked above mark-delete {cursor.mark_delete}{reading}"
        + (partly if cursor.partly_acked_count else "")
    )


def _durable(shown: SubscriptionAnswer, now_ms: int, look: Look) -> str:
    state = shown.ack_state
    if state.recovery is None:
        return look.dim("nothing: a reader's state is not kept")
    ranges = f"{count(state.ranges_persisted, 'range')} of {state.ranges_live:,}"
    dropped = state.entries_dropped
    again = (
        look.bad(f"{count(dropped, 'acked entry', 'acked entries')} would come again after a crash")
        if dropped
        else look.good("complete")
    )
    store = state.store
    if store is None:
        written = (
            "" if shown.written_ms is None else f", written {span(now_ms - shown.written_ms)} ago"
        )
        return f"{ranges}, {again}{written}"
    waiting = (
        f", {count(store.dirty_versions, 'change')} not written yet" if store.dirty_versions else ""
    )
    trouble = ""
    if store.failing_since_ms is not None:
        failing = f"nothing can be written for {span(now_ms - store.failing_since_ms)}"
        trouble = "  " + look.bad(f"{failing}: {store.last_failure}")
    elif store.is_on_fallback:
        trouble = "  " + look.warning("on the metadata store: the ledger cannot be written")
    return f"{ranges}, {again}{waiting}{trouble}"


def _last_write(outcome: PersistOutcome, now_ms: int, look: Look) -> str:
    kind = "delta" if outcome.is_delta else "snapshot"
    cut = "  " + look.bad("cut by the size guard") if outcome.size_guard_hit else ""
    return (
        f"{span(now_ms - outcome.at_ms)} ago: {kind}, {outcome.bytes_written:,} bytes to the "
        f"{outcome.where.value} in {outcome.duration_ms:,.1f} ms{cut}"
    )


def _recovery(report: RecoveryReport, look: Look) -> str:
    if report.source.value == "new":
        return look.dim("nothing: it was made then")
    text = (
        f"from {report.source.value}: {count(report.ranges, 'range')} above {report.mark_delete}, "
        f"version {report.version:,}, {count(report.records_applied, 'record')}"
    )
    if report.damaged_records:
        text += "  " + look.warning(count(report.damaged_records, "damaged record"))
    elif report.torn_records:
        text += "  " + look.warning(f"{count(len(report.torn_records), 'record')} torn")
    if report.lost is not None:
        text += "  " + look.bad(f"lost: {report.lost}")
    if report.dropped is not None and not report.dropped.is_clean:
        text += "  " + look.warning(_misfits(report.dropped))
    return text


def _misfits(dropped: RecoveredStateReport) -> str:
    """One line on stored acks that do not fit the entries that exist."""
    lost = dropped.entries_beyond_end + dropped.entries_of_unknown_ledgers
    misfits = [f"{count(lost, 'acked entry', 'acked entries')} not there any more"] if lost else []
    if dropped.unknown_ledger_ids:
        misfits.append(
            f"ledgers {', '.join(map(str, dropped.unknown_ledger_ids))} are lost or empty"
        )
    if dropped.mark_delete_was is not None:
        misfits.append(f"mark-delete was {dropped.mark_delete_was}, beyond the end")
    if dropped.entries_below_mark_delete:
        misfits.append(f"{dropped.entries_below_mark_delete:,} acks below mark-delete")
    if dropped.batch_sets_dropped:
        misfits.append(f"{count(dropped.batch_sets_dropped, 'batch', 'batches')} impossible")
    return "did not fit: " + "; ".join(misfits)


def _forecast(state: AckState, look: Look) -> str:
    forecast, gate = state.forecast, state.gate
    if forecast is None or gate is None:
        return ""
    if gate.is_enabled:
        seconds = forecast.gate_shuts_in_seconds
        if seconds is None:
            return look.dim("the gate stays open at the rate of the last minute")
        return f"the gate shuts in {span(seconds * 1000)}" if seconds else "the gate is shut"
    seconds = forecast.limit_reached_in_seconds
    if seconds is None:
        return look.dim("the limit is not reached at the rate of the last minute")
    return look.warning(
        f"more ranges than are kept in {span(seconds * 1000)}"
        if seconds
        else "more ranges than are kept"
    )


def _consumers(consumers: tuple[ConsumerStats, ...], look: Look) -> Iterator[str]:
    figures = _CONSUMER_FIGURES.items()
    rows = [("consumer", "address", *(about.title + about.suffix for _, about in figures), "")]
    rows += [
        (
            printable(consumer.consumer_name or "-"),
            printable(consumer.address.removeprefix("/")),
            *(about.figure(getattr(consumer, name)) for name, about in figures),
            "blocked" if consumer.blocked_consumer_on_unacked_msgs else "",
        )
        for consumer in consumers[:CONSUMERS_MAX]
    ]
    if len(rows) == 1:
        return
    head, *lines = aligned(rows, right=range(2, len(rows[0])))
    yield labelled("consumers", look.dim(head))
    yield from (labelled("", line) for line in lines)
    if len(consumers) > CONSUMERS_MAX:
        yield labelled("", look.dim(f"and {len(consumers) - CONSUMERS_MAX:,} more"))


def _oldest(holes: Sequence[Hole], now_ms: int) -> str:
    """Describe the oldest hole, and the oldest of each further consumer."""
    first_of = {hole.holder: hole for hole in reversed(holes)}
    named = [holes[0], *(hole for hole in holes if first_of[hole.holder] is hole)]
    return "; ".join(dict.fromkeys(printable(hole_text(hole, now_ms)) for hole in named))


def _legend(look: Look) -> str:
    full, part = look.glyphs.densities[-1], look.glyphs.densities[len(look.glyphs.densities) // 2]
    return (
        f"{look.glyphs.passed} up to the mark-delete  {full} acked  {part} partly  "
        f"(blank) not acked  {look.glyphs.unread} not read yet"
    )


def _picture(shown: SubscriptionAnswer, look: Look) -> Iterator[str]:
    cursor = shown.ack_state.cursor
    # Stored state does not include the read position.
    read_position = LATEST if shown.stats is None else cursor.read_position
    for acks in shown.picture.ledgers:
        yield picture_line(acks, cursor.mark_delete, read_position, look)
    if shown.picture.ledgers:
        yield labelled("", look.dim(_legend(look)))
    if shown.picture.ledgers_omitted:
        yield labelled("", look.dim(f"and {count(shown.picture.ledgers_omitted, 'later ledger')}"))


# ------------------------------------------------ what waits for its time, and why nothing is delivered

STILL_MESSAGES_PER_SECOND = 0.05
"""Fewer than three messages in the last minute count as no delivery."""


def delayed_lines(state: DelayedState, now_ms: int, look: Look) -> Iterator[tuple[str, str]]:
    """Lines of (label, text) on delayed entries; none if the subscription never held any."""
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


def waits_for(stats: SubscriptionStats, now_ms: int, *, knows_consumers: bool = True) -> list[str]:
    """Reasons why nothing is delivered although there is a backlog; empty if something is."""
    if not stats.msg_backlog or stats.msg_rate_out > STILL_MESSAGES_PER_SECOND:
        return []
    reasons = []
    if knows_consumers and all(each.available_permits <= 0 for each in stats.consumers):
        reasons.append("no consumer has room for more" if stats.consumers else "no consumer")
    if stats.blocked_subscription_on_unacked_msgs:
        reasons.append("too many messages are sent and not acked")
    if stats.is_blocked_on_ack_state_persistent:
        reasons.append("the gate is shut: only redeliveries and due messages are sent")
    state = stats.delayed
    deadline = state.next_due_ms
    if stats.msg_delayed:
        due = "" if deadline is None else f", {_due('the next', deadline, now_ms)}"
        reasons.append(f"{stats.msg_delayed:,} of {stats.msg_backlog:,} entries delayed{due}")
    if state.nacks.pending:
        nack_ms = state.nacks.next_deadline_ms
        due = "" if nack_ms is None else f", {_due('the next', nack_ms, now_ms)}"
        reasons.append(f"{state.nacks.pending:,} negatively acked messages are held{due}")
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


# ------------------------------------------------------------------------------------------ the overview


def render_overview(answer: OverviewAnswer, look: Look) -> str:
    """Render one page of the overview as text."""
    return "\n".join(_overview(answer, look))


def _overview(answer: OverviewAnswer, look: Look) -> Iterator[str]:
    source = (
        f"loaded by {answer.source}"
        if answer.is_live
        else f"as persisted in {answer.source}; a running broker may know more"
    )
    states = ", ".join(f"{number:,} {name}" for name, number in answer.severities.items() if number)
    total = look.bold(count(answer.total, "subscription"))
    yield f"{total}{': ' if states else ''}{states}  {look.dim(printable(source))}"
    yield from _missing(answer.missing, look)
    for row in answer.rows:
        yield from _row(row, answer.taken_ms, look)
    shown = answer.offset + len(answer.rows)
    if not answer.rows:
        yield look.dim("none matches" if answer.total else "none")
    elif shown < answer.matching or answer.offset:
        yield look.dim(
            f"{answer.offset + 1:,} to {shown:,} of {answer.matching:,}: --offset, --rows"
        )


def _row(row: OverviewRow, now_ms: int, look: Look) -> Iterator[str]:
    paint = {
        Severity.STUCK: look.bad,
        Severity.AT_RISK: look.warning,
        Severity.WAITING: look.bold,
        Severity.FINE: look.good,
    }[row.severity]
    topic = printable(row.topic.removeprefix("persistent://"))
    figures = "  ".join(_figures(row, now_ms, look))
    yield (
        f"{paint(row.severity.value.ljust(STATE_COLUMNS))}"
        f"{look.bold(printable(row.subscription))}  {look.dim(topic)}  {figures}"
    )
    for sentence in row.why:
        yield " " * STATE_COLUMNS + printable(sentence)


def _figures(row: OverviewRow, now_ms: int, look: Look) -> Iterator[str]:
    limit = "" if row.ranges_max is None else f"/{row.ranges_max:,}"
    yield f"ranges {row.ranges:,}{limit}"
    if len(row.ranges_history) > 1:
        yield _sparkline(row, look)
    if row.shut_since_ms is not None:
        yield look.bad(f"gate shut for {span(now_ms - row.shut_since_ms)}")
    if row.backlog is not None:
        yield f"backlog {row.backlog:,}"
    if row.unacked_messages:
        yield f"unacked {row.unacked_messages:,}"
    if row.comes_again:
        yield look.bad(f"again {row.comes_again:,}")
    if row.delayed:
        yield f"delayed {row.delayed:,}"
    if row.nacks:
        yield f"nacks {row.nacks:,}"


def _sparkline(row: OverviewRow, look: Look) -> str:
    """Draw the number of ranges over the known time, scaled to their limit."""
    points = row.ranges_history
    first, last = points[0][0], points[-1][0]
    top = max(row.ranges_max or 0, *(value for _, value in points), 1)
    glyphs, drawn, place = look.glyphs.densities, [], 0
    for column in range(SPARK_COLUMNS):
        at = first + (last - first) * column // (SPARK_COLUMNS - 1)
        while place + 1 < len(points) and points[place + 1][0] <= at:
            place += 1
        value = points[place][1]
        drawn.append(glyphs[-(-value * (len(glyphs) - 1) // top)])
    return "".join(drawn)
