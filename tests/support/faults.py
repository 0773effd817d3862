"""Which call goes wrong, and how: the plan that the faulty wrappers of both ports follow.

Pure. A plan is a script, a seed, or both; one plan may serve several wrappers, whose calls it then
counts together. Every fault is recorded, so that a failing test can print what was done to whom:

    plan = FaultPlan([Rule(Fault.DROP_ANSWER, "metadata.put", "*/my-cursor", nth=2)])
    plan = FaultPlan([Rule(Fault.FAIL, nth=7)])                 the seventh call of all
    plan = FaultPlan(seed=5, rates={Fault.FAIL: 0.05, Fault.DELAY: 0.2})
    ...
    print(plan.story())

A rule that asks for something which the call cannot suffer (a ledger that loses the session) does
not fire and waits for the next call that can.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from ackgate.errors import AckGateError

RECORDED_MAX: Final = 10_000
"""Faults remembered, the latest ones."""


class Fault(enum.Enum):
    """What may happen to a call."""

    FAIL = "fails"
    """Nothing is done."""

    DELAY = "is done late"
    """Other calls, made later, are done before it."""

    LATE_ANSWER = "is answered late"
    """Done at once. Answers so come in another order than that in which the work was done."""

    DROP_ANSWER = "is done, and fails all the same"
    """A write's outcome is unknown then."""

    LANDS_LATE = "fails, and is done later"
    """The request was on its way when the connection broke: a caller that reads at once finds nothing."""

    REPEAT = "is done twice"
    """As when a request is sent again because its answer was slow."""

    CORRUPT = "reads something else"

    SUSPEND = "finds the store out of touch"
    """The session is suspended for a while; the call waits, and may give up."""

    LOSE_SESSION = "loses the session"


@dataclass(slots=True)
class Rule:
    """One line of a script: which calls, by pattern, and what happens to them."""

    fault: Fault
    operation: str = "*"
    """``metadata.put``, ``ledger.append``, ``ledger.*``."""
    subject: str = "*"
    """A node's path, a ledger's id; of a new ledger the path that it is made for."""
    nth: int = 1
    """The first matching call that is hit, from 1."""
    times: int | None = 1
    """How many calls from then on; None: all."""
    seconds: float = 0.0
    """How late, how long; a call that fails takes this long to fail."""
    error: Callable[[str], AckGateError] | None = None
    """In place of the usual error: an exception class will do."""
    matched: int = field(default=0, init=False)

    def hits(self, operation: str, subject: str) -> bool:
        """Whether this call is one of those that go wrong. Counts it if it is of the kind."""
        if not (fnmatchcase(operation, self.operation) and fnmatchcase(subject, self.subject)):
            return False
        self.matched += 1
        past = self.matched - self.nth
        return past >= 0 and (self.times is None or past < self.times)


class Injected(NamedTuple):
    """A fault that was put in."""

    call: int
    """Number of the call among all, from 1."""
    operation: str
    subject: str
    fault: Fault
    seconds: float
    error: Callable[[str], AckGateError] | None

    def failure(self, usual: Callable[[str], AckGateError]) -> AckGateError:
        """What the call raises."""
        return (self.error or usual)(f"injected: call {self}")

    def __str__(self) -> str:
        after = f" ({self.seconds:.3f} s)" if self.seconds else ""
        return f"{self.call}: {self.operation} {self.subject} {self.fault.value}{after}"


class FaultPlan:
    """Decides about every call, in the order in which they are made."""

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        *,
        seed: int | None = None,
        rates: Mapping[Fault, float] | None = None,
        seconds_max: float = 0.1,
        error: Callable[[str], AckGateError] | None = None,
    ) -> None:
        """`rates`: the share of calls that suffer each fault; `seconds_max` bounds their delays."""
        self.rules = list(rules)
        self.seed = seed
        self.rates = dict(rates or {})
        self.calls = 0
        self.is_quiet = False
        """While set nothing goes wrong; calls still count."""
        self.injected: deque[Injected] = deque(maxlen=RECORDED_MAX)
        self.random = Random(seed)
        self._seconds_max = seconds_max
        self._error = error

    def next_fault(
        self, operation: str, subject: str, possible: Collection[Fault]
    ) -> Injected | None:
        """A call is made: what happens to it."""
        self.calls += 1
        chosen = None if self.is_quiet else self._choose(operation, subject, possible)
        if chosen is not None:
            self.injected.append(chosen)
        return chosen

    def _choose(self, operation: str, subject: str, possible: Collection[Fault]) -> Injected | None:
        for rule in self.rules:
            if rule.fault in possible and rule.hits(operation, subject):
                return Injected(
                    self.calls, operation, subject, rule.fault, rule.seconds, rule.error
                )
        if not self.rates:
            return None
        # The same numbers are drawn for every call, so that one call's kind does not move the others.
        drawn, seconds = self.random.random(), self.random.random() * self._seconds_max
        for fault, rate in self.rates.items():
            drawn -= rate
            if drawn < 0:
                if fault not in possible:
                    return None
                return Injected(self.calls, operation, subject, fault, seconds, self._error)
        return None

    def story(self) -> str:
        """All that was done, a line each, with the seed to do it again."""
        lines = [f"seed {self.seed}, {self.calls} calls, {len(self.injected)} faults"]
        return "\n".join([*lines, *map(str, self.injected)])
