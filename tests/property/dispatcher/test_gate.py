"""The gate against the simplest model that could be right: every reason judged from scratch."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ackgate.cursor import WrittenCounts
from ackgate.dispatcher import Gate, GateSettings, PauseReason

COUNTS = st.integers(0, 6)
SETTINGS = st.builds(
    GateSettings,
    enabled=st.sampled_from([True, True, False]),
    ranges_max=st.integers(3, 5),
    batch_indexes_max=st.integers(2, 4),
    resume_ranges=st.sampled_from([None, 1, 2]),
    is_strict=st.booleans(),
    persist_failure_pause_ms=st.sampled_from([0, 5, 20]),
)


class GateMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.settings = GateSettings()
        self.gate = Gate(self.settings, 0)
        self.was_open = True
        self.ranges = self.partly = self.ranges_written = self.partly_dropped = 0
        self.odd_drop = self.guard = False
        self.failing_since: int | None = None
        self.is_failing_judged = False
        self.entries: int | None = None
        self.since: dict[PauseReason, int] = {}

    def told(self, crossed: bool) -> None:
        """A fact was told: judge anew, and compare the edge."""
        self.judge()
        is_open = not self.since
        assert crossed == (is_open != self.was_open), "an edge was missed or reported twice"
        self.was_open = is_open

    def judge(self) -> None:
        settings = self.settings
        resume = settings.ranges_max if settings.resume_ranges is None else settings.resume_ranges

        def above(reason: PauseReason, count: int) -> bool:
            return count > (resume if reason in self.since else settings.ranges_max)

        stands = {
            PauseReason.RANGES_LIVE: above(PauseReason.RANGES_LIVE, self.ranges),
            PauseReason.RANGES_PERSISTED: above(PauseReason.RANGES_PERSISTED, self.ranges_written)
            or self.odd_drop,
            PauseReason.BATCH_INDEXES: self.partly > settings.batch_indexes_max
            or self.partly_dropped > 0,
            PauseReason.SIZE_GUARD: self.guard,
            PauseReason.PERSIST_FAILING: self.is_failing_judged,
            PauseReason.BUDGET: settings.is_strict
            and self.entries is not None
            and self.entries <= 0,
        }
        for reason, does in stands.items():
            if does and settings.enabled:
                self.since.setdefault(reason, self.now_ms)
            else:
                self.since.pop(reason, None)

    def judge_failing(self) -> None:
        """The gate looks at the clock when it judges; `observe` judges only if a count matters."""
        self.is_failing_judged = (
            self.failing_since is not None
            and self.now_ms - self.failing_since >= self.settings.persist_failure_pause_ms
        )

    @rule(ms=st.integers(1, 12))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        deadline = self.gate.next_deadline_ms
        crossed = self.gate.advance(self.now_ms)
        if deadline is None or self.now_ms < deadline:
            assert not crossed
            return
        self.judge_failing()
        assert self.is_failing_judged
        self.told(crossed)

    @rule(settings=SETTINGS)
    def configure(self, settings: GateSettings) -> None:
        self.settings = settings
        self.judge_failing()
        self.told(self.gate.configure(settings, self.now_ms))

    @rule(ranges=COUNTS, partly=COUNTS)
    def observe(self, ranges: int, partly: int) -> None:
        self.ranges, self.partly = ranges, partly
        self.told(
            self.gate.observe(ranges_live=ranges, batch_indexes_live=partly, now_ms=self.now_ms)
        )

    @rule(ranges=COUNTS, dropped=st.sampled_from([0, 0, 3]), partly=COUNTS, guard=st.booleans())
    def persisted(self, ranges: int, dropped: int, partly: int, guard: bool) -> None:
        self.ranges_written, self.partly_dropped, self.guard = ranges, partly, guard
        self.odd_drop = dropped > 0 and not guard and ranges <= self.settings.ranges_max
        self.failing_since = None
        self.judge_failing()
        written = WrittenCounts(0, ranges, ranges, dropped, partly, 0, guard)
        self.told(self.gate.persisted(written, self.now_ms))

    @rule(ago_ms=st.one_of(st.none(), st.integers(0, 30)))
    def persist_failing(self, ago_ms: int | None) -> None:
        since = None if ago_ms is None else self.now_ms - ago_ms
        if since != self.failing_since:
            self.failing_since = since
            self.judge_failing()
        self.told(self.gate.persist_failing(since, self.now_ms))

    @rule(entries=st.one_of(st.none(), st.integers(-2, 2)))
    def budget(self, entries: int | None) -> None:
        self.entries = entries
        self.told(self.gate.budget(entries, self.now_ms))

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.gate.check()
        assert self.gate.reasons == self.since
        assert self.gate.is_open == (not self.since)
        statistics = self.gate.statistics()
        assert statistics.reasons == self.since
        assert statistics.ranges_live == self.ranges


TestGate = GateMachine.TestCase
