"""When a cursor is written, where to, and what comes of a failure: the write path, as a state machine.

Pure: times are arguments (seconds of one monotonic clock; milliseconds since 1970 for what is stored). The
driver (`CursorStore`) asks `next_step`, does what it says, and reports `wrote` or `failed`::

    changed --> linger --> SettleNode?  --> AppendRecord --- wrote ---> durable
                  ^           |              BeginLedger                   |
                  |           |  failed         | failed                   | more acks came:
                  |           '----> PutState <-'                          | at once, without linger
                  |                     | failed                           v
                  '--- backoff <--------'  both stores failed: acks stay in memory, the round is over

A round tries the ledger, then the node. The ledger is always preferred: a cursor that fell back returns to
it by itself. Each store has its own backoff; the node, which is there for emergencies, has a rate limit
besides. Writes of one cursor never overlap: one step is under way at a time.

A new ledger is begun in this order, so that at every moment the node names something recoverable:

    1. create the ledger          crash after it: an orphan, found at the next start
    2. snapshot into it, durable  the same
    3. node: point at it, by compare-and-set, with the state inline as far as it fits
    4. the state is durable now; the old ledger may be deleted

If step 3 fails without an answer, the node may name either ledger. Nothing counts as durable until the
node has been settled (`FencedNode.make_certain`); then exactly the ledger that it names is written on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol, TypeAlias
from zlib import crc32

from ackgate.errors import NodeTooLargeError, StorageError
from ackgate.persistence.records.forming import NackWrites, NodeShape, RecordChain, RecordForming
from ackgate.persistence.records.outcome import PersistOutcome, PersistWhere
from ackgate.persistence.system.backoff import backoff_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ackgate.config.persistence import PersistenceSettings
    from ackgate.cursor import ManagedCursor, Position
    from ackgate.errors import AckGateError
    from ackgate.persistence.records.forming import FirstRecord, FormedRecord

RETRY_SECONDS_FIRST: Final = 0.1
RETRY_SECONDS_MAX: Final = 30.0
"""Backoff of one store, from its first failure on."""

ROLL_RETRY_SECONDS: Final = 10.0
"""A full ledger that cannot be replaced goes on being written; how often to try again."""

GARBAGE_MAX: Final = 64
"""Ledgers remembered for deletion; beyond it the oldest are left to the search for orphans."""

SWEEP_RETRY_SECONDS: Final = 10.0
"""How long a ledger that could not be deleted is left alone."""

LAST_WRITES_MAX: Final = 5
"""Writes at a close, should acks arrive during the one before; none may during the last one."""


class NodeView(NodeShape, Protocol):
    """The cursor's node as its owner knows it."""

    @property
    def path(self) -> str: ...

    @property
    def is_certain(self) -> bool:
        """Whether the stored node is known to be what is in memory."""

    @property
    def is_connected(self) -> bool:
        """Whether its store can be asked."""

    @property
    def cursor_ledger_id(self) -> int | None:
        """The cursor ledger that the node names."""

    @property
    def cursor_properties(self) -> Mapping[str, str]:
        """The cursor's properties, in the node."""


# ---------------------------------------------------------------------------------- steps


class WaitUntil(NamedTuple):
    """Nothing to do before this time, unless `changed` or `hurry` is called."""

    at: float


class SettleNode(NamedTuple):
    """Find out what the node says: `FencedNode.make_certain`, then `settled`."""

    version: int
    where: PersistWhere = PersistWhere.LEDGER


@dataclass(frozen=True, slots=True)
class AppendRecord:
    """Append these entries to the open ledger, and wait until they are durable."""

    version: int
    began: float
    ledger_id: int
    formed: FormedRecord
    entries: Sequence[bytes]
    where: PersistWhere = PersistWhere.LEDGER
    is_ledger_begun: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class BeginLedger:
    """Create a ledger (`ledger_created`), append the entries, point the node at it (`inline_state`)."""

    version: int
    began: float
    first: FirstRecord
    chain: RecordChain
    entries: Sequence[bytes]
    replaces: int | None
    """The open ledger that is full, or that holds what was before a reset."""
    where: PersistWhere = PersistWhere.LEDGER
    is_ledger_begun: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class PutState:
    """Put the state into the node, which then names no ledger."""

    version: int
    began: float
    formed: FormedRecord
    where: PersistWhere = PersistWhere.METADATA_STORE
    is_ledger_begun: ClassVar[bool] = False


StateWrite: TypeAlias = AppendRecord | BeginLedger | PutState
WriteStep: TypeAlias = SettleNode | StateWrite


class WriteFailure(NamedTuple):
    """One store could not be written."""

    where: PersistWhere
    version: int
    error: AckGateError

    def __str__(self) -> str:
        return f"{self.where.value.replace('-', ' ')}: {self.error}"


class RoundReport(NamedTuple):
    """How a round ended, or that it hangs."""

    round: int
    """Counted from 1."""
    outcome: PersistOutcome | None
    """The durable write; None: there was none."""
    failures: Sequence[WriteFailure]
    """Failures of stores in this round, even if the other store succeeded in the end."""
    failing_since_ms: int | None
    """Since when nothing could be written anywhere, when these failed."""


# ---------------------------------------------------------------------------------- pace


class StorePace:
    """Failures of one of the two stores, and when it may be tried again."""

    __slots__ = ("_seed", "bytes_written", "errors", "failures_in_a_row", "try_at", "writes")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.writes = 0
        self.errors = 0
        self.bytes_written = 0
        self.failures_in_a_row = 0
        self.try_at = 0.0

    def wrote(self, bytes_written: int, *, again_at: float) -> None:
        self.writes += 1
        self.bytes_written += bytes_written
        self.failures_in_a_row = 0
        self.try_at = again_at

    def failed(self, now: float) -> None:
        """A write failed; the next try waits, longer each time."""
        self.errors += 1
        self.failures_in_a_row += 1
        self.try_at = now + backoff_seconds(
            self.failures_in_a_row,
            first=RETRY_SECONDS_FIRST,
            longest=RETRY_SECONDS_MAX,
            seed=self._seed,
        )


class _OpenLedger(NamedTuple):
    ledger_id: int
    chain: RecordChain


class _Round:
    """The ledger, or else the node: one attempt to make the state durable."""

    __slots__ = ("began", "began_ms", "failures", "has_tried_ledger", "has_tried_node")

    def __init__(self, now: float, now_ms: int) -> None:
        self.began = now
        self.began_ms = now_ms
        self.failures: list[WriteFailure] = []
        self.has_tried_ledger = False
        self.has_tried_node = False


class WritePath:
    """The write path of one cursor. Its driver calls it; one step is under way at a time."""

    def __init__(
        self,
        cursor: ManagedCursor,
        node: NodeView,
        settings: PersistenceSettings,
        *,
        durable_version: int,
        mark_delete: Position,
    ) -> None:
        """`durable_version` and `mark_delete`: as they were recovered."""
        self.cursor = cursor
        self.nacks = NackWrites(settings.pending_nacks_max_bytes_to_persist)
        self.durable_version = durable_version
        """Everything up to this version is durable, but for what outcomes say was dropped."""
        self.persisted_mark_delete = mark_delete
        self.outcome: PersistOutcome | None = None
        """The last durable write; None before the first."""
        self.failing_since_ms: int | None = None
        """Since when nothing could be written anywhere; None while writes succeed."""
        self.last_failure: str | None = None
        """The last error, with place and cause; None when the last write went to the ledger."""
        self.rounds = 0
        """Rounds begun so far."""
        seed = crc32(node.path.encode())
        self.ledger = StorePace(seed)
        self.node_store = StorePace(seed)
        self.is_on_fallback = False
        """The last write went to the node because the ledger could not be written."""
        self._node = node
        self._settings = settings
        self._forming = RecordForming(cursor, self.nacks, node, settings)
        self._open: _OpenLedger | None = None
        self._candidate: _OpenLedger | None = None
        """A new ledger that the node may or may not name by now."""
        self._named = node.cursor_ledger_id
        """The ledger that the node surely named when that was last known."""
        self._retired: list[int] = []
        self._garbage: tuple[int, ...] = ()
        self._sweep_at = 0.0
        self._write_at = 0.0
        """No earlier, says the rate limit."""
        self._roll_at = 0.0
        self._linger_until: float | None = None
        self._is_hurried = False
        self._is_rolling = False
        self._round: _Round | None = None
        self._step: WriteStep | None = None
        self._last_places: list[PersistWhere] | None = None
        """Where the state is still to be tried as the cursor is closed; None: it is not."""
        self._is_first_place = False

    # ------------------------------------------------------------------ what is known

    @property
    def is_dirty(self) -> bool:
        """Whether anything has changed since the last durable write: acks, or held nacks."""
        return self._has_new_acks or self.nacks.is_dirty

    @property
    def _has_new_acks(self) -> bool:
        return self.cursor.version > self.durable_version

    @property
    def has_work(self) -> bool:
        """Whether there is anything to write, now or later."""
        return self.is_dirty or self.is_on_fallback or self._is_rolling

    @property
    def open_ledger_id(self) -> int | None:
        """The ledger that records are appended to."""
        return None if self._open is None else self._open.ledger_id

    @property
    def last_entry_id(self) -> int:
        """Last entry of the open ledger, -1 when none is open or it is empty."""
        return -1 if self._open is None else self._open.chain.entry_count - 1

    def is_ledger_outdated(self, now: float) -> bool:
        """Whether the open ledger is to be replaced, also while nothing else is to be written."""
        if self._open is None:
            return False
        return self._open.chain.is_old(self._settings, now=now) or self._is_from_before_reset

    @property
    def _is_from_before_reset(self) -> bool:
        return self._open is not None and self._open.chain.is_from_before(self.cursor.grown_since)

    # ------------------------------------------------------------------ facts

    def configure(self, settings: PersistenceSettings) -> None:
        """New settings hold from the next write on."""
        self._settings = self._forming.settings = settings
        self.nacks.bytes_max = settings.pending_nacks_max_bytes_to_persist

    def changed(self, now: float) -> None:
        """The cursor, or what is held back, has changed: changes that follow soon go along."""
        if self._linger_until is None and self._round is None:
            self._linger_until = now + self._settings.ack_persist_linger_ms / 1000

    def hurry(self, *, roll: bool) -> None:
        """Write now, whatever linger, rate limit and backoff say; with `roll` into a new ledger."""
        self._is_hurried = True
        self._is_rolling = self._is_rolling or roll
        self._write_at = self.ledger.try_at = self.node_store.try_at = 0.0
        self.nacks.hurry()

    # ------------------------------------------------------------------ the next step

    def next_step(self, now: float, now_ms: int) -> WriteStep | WaitUntil | RoundReport | None:
        """What to do now; None: there is nothing to write.

        A `RoundReport` says that the round failed everywhere; then ask again.
        """
        assert self._step is None, "one step at a time"
        if self._round is None:
            if not self.has_work:
                self._linger_until = None
                return None
            due_at = self._due_at()
            if due_at > now:
                return WaitUntil(due_at)
            self._begin_round(now, now_ms)
        this = self._round
        assert this is not None
        if not this.has_tried_ledger:
            if self.ledger.try_at > now:
                this.has_tried_ledger = True
            elif not self._node.is_certain:
                return self._begun(SettleNode(self.cursor.version))
            else:
                this.has_tried_ledger = True
                self._is_rolling = False
                return self._begun(self._ledger_step(now, now_ms))
        if not this.has_tried_node:
            this.has_tried_node = True
            if self.is_dirty and self.node_store.try_at <= now:
                step = self._node_step(now, now_ms)
                if step is not None:
                    return self._begun(step)
        return self._round_failed()

    def _due_at(self) -> float:
        if not self.is_dirty:
            due_at = self.ledger.try_at
        else:
            due_at = max(self._write_at, min(self.ledger.try_at, self.node_store.try_at))
        if self.nacks.is_dirty and not self._has_new_acks and not self._is_rolling:
            due_at = max(due_at, self.nacks.due_at)
        if self._linger_until is not None and not self._is_hurried:
            due_at = max(due_at, self._linger_until)
        return due_at

    def _begin_round(self, now: float, now_ms: int) -> None:
        self.rounds += 1
        self._round = _Round(now, now_ms)
        self._linger_until = None
        self._is_hurried = False
        writes_per_second = self._settings.managed_ledger_default_mark_delete_rate_limit
        if writes_per_second > 0:
            self._write_at = now + 1 / writes_per_second

    def _begun(self, step: WriteStep) -> WriteStep:
        self._step = step
        return step

    def _ledger_step(self, now: float, now_ms: int) -> WriteStep:
        is_open, settings = self._open, self._settings
        if is_open is None or self._may_roll(is_open, now):
            first = self._forming.first_record(now_ms)
            chain = RecordChain(opened_at=now)
            formed = first.formed
            entries = chain.begin(formed.plan.record, formed.encoded, settings)
            replaces = None if is_open is None else is_open.ledger_id
            return BeginLedger(formed.plan.version, now, first, chain, entries, replaces)
        formed = self._forming.next_record(is_open.chain, now=now, now_ms=now_ms)
        entries = is_open.chain.begin(formed.plan.record, formed.encoded, settings)
        return AppendRecord(formed.plan.version, now, is_open.ledger_id, formed, entries)

    def _may_roll(self, is_open: _OpenLedger, now: float) -> bool:
        """Not while the metadata store is out of touch: the ledger there is needs none of it."""
        is_due = now >= self._roll_at and is_open.chain.is_full(self._settings, now=now)
        return (is_due or self._is_from_before_reset) and self._node.is_connected

    def _node_step(self, now: float, now_ms: int) -> PutState | None:
        """None: not even the mark-delete fits."""
        try:
            formed = self._forming.for_node(now_ms)
        except NodeTooLargeError as error:
            self._failed_at(PersistWhere.METADATA_STORE, self.cursor.version, error, now)
            return None
        return PutState(formed.plan.version, now, formed)

    # ------------------------------------------------------------------ while a step is under way

    def ledger_created(self, step: BeginLedger, ledger_id: int) -> None:
        """The ledger exists; whether the node will ever name it is open."""
        assert step is self._step
        self._candidate = _OpenLedger(ledger_id, step.chain)

    def inline_state(self, step: BeginLedger) -> bytes | None:
        """What the node is to hold of the state beside the new ledger's id; None: nothing fits."""
        assert self._candidate is not None
        return self._forming.inline_state(step.first, self._candidate.ledger_id)

    def stalled(self) -> RoundReport | None:
        """The round under way has hung for a while; it continues, but nothing should wait for it."""
        this, step = self._round, self._step
        if this is None:
            return None
        error = StorageError("a write has been under way for too long")
        failures = []
        if step is not None:
            failures.append(WriteFailure(step.where, step.version, error))
        self._note_failing(str(error), this.began_ms)
        return RoundReport(self.rounds, None, failures, self.failing_since_ms)

    # ------------------------------------------------------------------ what came of it

    def settled(self) -> None:
        """The node is certain: exactly the ledger that it names is written on."""
        if isinstance(self._step, SettleNode):
            self._step = None
        named = self._node.cursor_ledger_id
        if self._named is not None and self._named != named:
            self._discard(self._named)
        self._named = named
        for ledger in (self._open, self._candidate):
            if ledger is not None and ledger.ledger_id != named:
                self._retired.append(ledger.ledger_id)
                self._discard(ledger.ledger_id)
        candidate, self._candidate = self._candidate, None
        if candidate is not None and candidate.ledger_id == named:
            self._open = candidate
        elif self._open is not None and self._open.ledger_id != named:
            self._open = None

    def wrote(
        self, now: float, now_ms: int, *, ledger_bytes: int = 0, node_bytes: int = 0
    ) -> RoundReport:
        """The step is done: a state is durable."""
        step, self._step = self._step, None
        assert step is not None
        assert not isinstance(step, SettleNode)
        match step:
            case AppendRecord(formed=formed, entries=entries):
                assert self._open is not None
                self._open.chain.appended(
                    formed.plan.record, formed.encoded, entry_count=len(entries)
                )
            case BeginLedger(first=first, chain=chain, entries=entries):
                formed = first.formed
                chain.appended(formed.plan.record, formed.encoded, entry_count=len(entries))
                self.settled()
            case PutState(formed=formed):
                self.settled()
        plan, node = formed.plan, self._node
        if plan.nacks is not None:
            self.nacks.wrote(plan.nacks, now)
        outcome = plan.outcome(
            where=step.where,
            bytes_written=ledger_bytes + node_bytes,
            at_ms=now_ms,
            duration_ms=(now - step.began) * 1000,
            is_ledger_begun=step.is_ledger_begun,
            cursor_ledger_id=node.cursor_ledger_id,
            node_bytes=node_bytes,
            properties_bytes=_text_bytes(node.cursor_properties) if node_bytes else 0,
            is_last=self._last_places is not None,
        )
        return self._durable(outcome, now)

    def _durable(self, outcome: PersistOutcome, now: float) -> RoundReport:
        this, self._round = self._round, None
        failures: Sequence[WriteFailure] = () if this is None else this.failures
        if outcome.where is PersistWhere.LEDGER:
            self.ledger.wrote(outcome.bytes_written, again_at=0.0)
            self.is_on_fallback = False
            self.last_failure = None
        elif self._last_places is None:
            again_at = now + 1 / self._settings.fallback_rate_limit
            self.node_store.wrote(outcome.bytes_written, again_at=again_at)
            self.is_on_fallback = True
            if failures:
                self.last_failure = str(failures[0])
        if self._last_places is not None:
            self._last_places = []
        self.outcome = outcome
        self.durable_version = outcome.version
        self.persisted_mark_delete = outcome.mark_delete
        was_failing_since_ms, self.failing_since_ms = self.failing_since_ms, None
        return RoundReport(self.rounds, outcome, failures, was_failing_since_ms)

    def failed(self, error: AckGateError, now: float) -> None:
        """The step failed. The round goes on with the next one, if there is one."""
        step, self._step = self._step, None
        assert step is not None
        if self._node.is_certain:
            self.settled()
        if isinstance(step, AppendRecord) and self._open is not None:
            # The handle is not writable any more. The node goes on naming the ledger, which holds
            # the newest state that is surely durable.
            self._retired.append(self._open.ledger_id)
            self._open = None
        if (
            isinstance(step, BeginLedger)
            and step.replaces is not None
            and step.replaces == self.open_ledger_id
            and isinstance(error, StorageError)
            and self._node.is_certain
            and not self._is_from_before_reset
        ):
            # The old ledger still works, and is full only by our own bounds. But if the node may name
            # the new one by now, writing to the old one would be writing to nowhere; and after a
            # reset the node is the better place.
            self._roll_at = now + ROLL_RETRY_SECONDS
            if self._last_places is not None:
                self._last_places.insert(0, PersistWhere.LEDGER)
            elif self._round is not None:
                self._round.has_tried_ledger = False
            return
        if isinstance(step, SettleNode):
            if self._last_places is not None:
                self._last_places.pop(0)
            elif self._round is not None:
                self._round.has_tried_ledger = True
        self._failed_at(step.where, step.version, error, now)

    def _failed_at(
        self, where: PersistWhere, version: int, error: AckGateError, now: float
    ) -> None:
        if self._round is not None:
            self._round.failures.append(WriteFailure(where, version, error))
        if self._last_places is None:
            store = self.ledger if where is PersistWhere.LEDGER else self.node_store
            store.failed(now)

    def _round_failed(self) -> RoundReport:
        this, self._round = self._round, None
        assert this is not None
        if this.failures:
            self._note_failing("; ".join(map(str, this.failures)), this.began_ms)
        return RoundReport(self.rounds, None, this.failures, self.failing_since_ms)

    def _note_failing(self, why: str, began_ms: int) -> None:
        self.last_failure = why
        if self.is_dirty and self.failing_since_ms is None:
            self.failing_since_ms = began_ms

    # ------------------------------------------------------------------ closing

    def begin_last(self) -> bool:
        """The cursor is closed. Returns whether anything is to be written.

        The state goes into the node if it fits there, so that the next opening needs no ledger; else
        into the ledger, or cut into the node.
        """
        is_cut = self.outcome is not None and not self.outcome.is_complete
        is_dirty, node, ledger = self.is_dirty, PersistWhere.METADATA_STORE, PersistWhere.LEDGER
        self._round, self._last_places = None, []
        if is_dirty or self._node.cursor_ledger_id is not None:
            self._last_places.append(node)
        if is_dirty or (is_cut and self.is_on_fallback):
            self._last_places.append(ledger)
        if is_dirty:
            self._last_places.append(node)
        self._is_first_place = True
        return bool(self._last_places)

    def next_last_step(self, now: float, now_ms: int) -> WriteStep | None:
        """The next place to try; None: there is none left. Ask again after `failed`."""
        assert self._last_places is not None
        while self._last_places:
            is_first, self._is_first_place = self._is_first_place, False
            if self._last_places[0] is PersistWhere.LEDGER:
                if not self._node.is_certain:
                    return self._begun(SettleNode(self.cursor.version))
                self._last_places.pop(0)
                return self._begun(self._ledger_step(now, now_ms))
            self._last_places.pop(0)
            formed = self._forming.whole_for_node(now_ms) if is_first else None
            if not is_first:
                formed = self._forming.for_node(now_ms)
            if formed is not None:
                return self._begun(PutState(formed.plan.version, now, formed))
        return None

    # ------------------------------------------------------------------ what is out of use

    def has_garbage(self, now: float) -> bool:
        """Whether handles are to be closed, or ledgers to be deleted."""
        return bool(self._retired) or (bool(self._garbage) and now >= self._sweep_at)

    def take_retired(self) -> list[int]:
        """Ledgers whose handles are to be closed: not written any more."""
        retired, self._retired = self._retired, []
        return retired

    @property
    def garbage(self) -> Sequence[int]:
        """Ledgers to delete: nothing refers to them."""
        if not self._node.is_certain:
            return ()
        return [each for each in self._garbage if each != self._node.cursor_ledger_id]

    def deleted(self, ledger_id: int) -> None:
        self._garbage = tuple(each for each in self._garbage if each != ledger_id)

    def not_deleted(self, now: float) -> None:
        """A ledger could not be deleted; it is tried again later."""
        self._sweep_at = now + SWEEP_RETRY_SECONDS

    def removed(self) -> Sequence[int]:
        """The cursor's node is gone: every ledger it ever named is to be deleted."""
        for ledger_id in (
            self._named,
            self._node.cursor_ledger_id,
            None if self._candidate is None else self._candidate.ledger_id,
        ):
            if ledger_id is not None:
                self._discard(ledger_id)
        return self._garbage

    def _discard(self, ledger_id: int) -> None:
        if ledger_id not in self._garbage:
            self._garbage = (*self._garbage, ledger_id)[-GARBAGE_MAX:]


def _text_bytes(properties: Mapping[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in properties.items())
