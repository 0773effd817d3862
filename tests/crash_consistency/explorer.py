"""Goes through the states that crashes of a run may leave, and has each verified once.

The run stands still meanwhile: it has its event loop, the recoveries have theirs. Equal states are
verified once: same names and bytes, same metadata, same promises.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tests.crash_consistency.machine import Machine, Moment
from tests.crash_consistency.states import after_kill, after_power_loss
from tests.support.simulation.disk import SimulatedFiles
from tests.support.virtual_time import VirtualTimeLoop


class Run(Protocol):
    """What is recorded."""

    machine: Machine

    def facts(self) -> Any: ...

    async def step(self) -> None: ...

    async def finish(self) -> None: ...

    async def verify(self, state: Machine, facts: Any, moments: list[Moment] | None) -> None: ...


class InconsistentError(AssertionError):
    """A state from which the recovery does not do what was promised."""

    files: SimulatedFiles
    """The state, for a debugger."""


class Explorer:
    """Crashes one run everywhere."""

    def __init__(
        self,
        run: Run,
        seed: int,
        *,
        states_per_moment: int = 16,
        share: float = 1.0,
        crash_again: float = 0.1,
    ) -> None:
        """`share`: of the states found, how many are verified (chosen before they are made).
        `crash_again`: how often a recovery is crashed as well, at one of its moments.
        """
        self.run = run
        self.seed = seed
        self.states_per_moment = states_per_moment
        self.share = share
        self.crash_again = crash_again
        self.seen: Counter[str] = Counter()
        """What was come across."""
        self._rng = random.Random(f"explorer {seed}")
        self._known: set[tuple[object, ...]] = set()
        self._moments: list[Moment] = []
        self._run_loop = VirtualTimeLoop()
        self._verify_loop = VirtualTimeLoop()

    def explore(self, steps: int) -> None:
        """Take so many steps, and crash at every moment of each. Raises `InconsistentError`."""
        try:
            self.run.machine.record(self._moments, self.run.facts)
            for _ in range(steps):
                self._run_loop.run_until_complete(self.run.step())
                moments, self._moments[:] = list(self._moments), []
                for moment in moments:
                    self._crash_at(moment)
            self._run_loop.run_until_complete(self.run.finish())
        finally:
            _end(self._run_loop)
            _end(self._verify_loop)

    def _crash_at(self, moment: Moment) -> None:
        self.seen["moments"] += 1
        for kind, make in self._states(moment):
            if self.share < 1.0 and self._rng.random() >= self.share:
                continue
            files = make()
            if self._is_new(files, moment):
                self._verify(kind, files, moment)

    def _states(self, moment: Moment) -> Iterator[tuple[str, Callable[[], SimulatedFiles]]]:
        for make in after_kill(moment.files, moment.operation):
            yield "kill", make
        for make in after_power_loss(moment.files, self.states_per_moment, self._rng):
            yield "power loss", make

    def _is_new(self, files: SimulatedFiles, moment: Moment) -> bool:
        key = (files.digest(), moment.tree.changes, repr(moment.facts))
        if key in self._known:
            return False
        self._known.add(key)
        return True

    def _verify(self, kind: str, files: SimulatedFiles, moment: Moment) -> None:
        self.seen[kind] += 1
        self.seen["verified"] += 1
        name = f"{self.seed} {self.seen['verified']}"
        again: list[Moment] | None = [] if self._rng.random() < self.crash_again else None
        self._recover(name, kind, files, moment, again)
        if again:
            (later,) = again
            kind, make = self._rng.choice(list(self._states(later)))
            self.seen["crashed again"] += 1
            self._recover(f"{name} again", f"{kind} at recovery", make(), later, None)

    def _recover(
        self,
        name: str,
        kind: str,
        files: SimulatedFiles,
        moment: Moment,
        again: list[Moment] | None,
    ) -> None:
        state = files.copy()
        machine = Machine(
            self.run.machine.bookie_count, files, moment.tree.copy(), seed=f"state {name}"
        )
        try:
            self._verify_loop.run_until_complete(self.run.verify(machine, moment.facts, again))
        except Exception as error:
            found = [f"  {len(data):6} {path}" for path, data in state.contents().items()]
            told = f"seed {self.seed}, {kind} after {moment.operation}:\n{error!r}"
            inconsistent = InconsistentError("\n".join([told, *found]))
            inconsistent.files = state
            raise inconsistent from error


def _end(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(_wait(tasks))
    loop.close()


async def _wait(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks)
