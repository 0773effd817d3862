"""What goes wrong in a run: when, what, and for how long. All of it drawn from the seed.

Kills and power losses come by the clock, and (`crash_share`) right after an operation of the disk,
in the midst of a piece of work. The other faults come by the clock and go again; `end` takes back
all that are left.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Final, Protocol

from tests.support.simulation.facts import ViolationError

if TYPE_CHECKING:
    import random
    from collections import Counter

    from tests.support.simulation.broker import SimulatedBroker
    from tests.support.simulation.disk import Operation, SimulatedFiles
    from tests.support.simulation.loop import SimulationLoop
    from tests.support.simulation.network import Connection
    from tests.support.simulation.plan import Plan

_NO_CRASH: Final = frozenset({"kill", "power_loss"})


class Breakable(Protocol):
    """What there is to break in a world."""

    plan: Plan
    loop: SimulationLoop
    files: SimulatedFiles
    brokers: dict[int, SimulatedBroker]
    connections: list[Connection]
    preferred: dict[str, int]
    """The broker that a topic's clients go to."""
    counts: Counter[str]

    def log(self, *words: object) -> None:
        """Note an event."""

    def fail(self, error: BaseException) -> None:
        """The run has failed."""

    def kill(self, broker: SimulatedBroker) -> None:
        """End a broker as `kill -9` does."""


class Faults:
    """The faults of one world."""

    def __init__(self, world: Breakable, rng: random.Random, crash_rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._crash_rng = crash_rng
        self._go_on = False
        self.slow: dict[str, float] = {}
        """Bookies whose disk is slow, and how many times slower."""
        self.paused_at = 0.0
        """When a process was last found paused, or continued."""

    async def run(self) -> None:
        """Break things, for as long as the plan says."""
        plan, rng = self._world.plan, self._rng
        self._go_on = True
        until = self._world.loop.time() + plan.busy_seconds
        kinds, weights = list(plan.faults), list(plan.faults.values())
        while self._world.loop.time() < until:
            await asyncio.sleep(rng.expovariate(1 / plan.fault_seconds))
            kind = rng.choices(kinds, weights)[0]
            self._world.counts[kind] += 1
            getattr(self, "_fault_" + kind.replace(" ", "_"))(rng)
        self._go_on = False
        self.slow.clear()
        self._world.files.capacity_bytes = None
        for number in range(plan.bookies):
            self._world.files.fail(f"/bookies/{number}/", None)
        for broker in self._world.brokers.values():
            broker.process.resume()
            if broker.metadata is not None:
                broker.metadata.mend()
        self.paused_at = self._world.loop.time()
        self._world.log("faults have ended")

    def _some_broker(self, rng: random.Random) -> SimulatedBroker | None:
        alive = [b for b in self._world.brokers.values() if b.process.is_alive]
        return rng.choice(alive) if alive else None

    def _fault_kill(self, rng: random.Random) -> None:
        broker = self._some_broker(rng)
        if broker is not None:
            self._world.log("kill", broker.name)
            self._world.counts["crashes"] += 1
            self._world.kill(broker)

    _fault_crash = _fault_kill

    def _fault_power(self, rng: random.Random) -> None:
        self._world.log("power loss")
        self._world.counts["crashes"] += 1
        for broker in self._world.brokers.values():
            self._world.kill(broker)
        self._world.files.power_loss(rng)

    def _fault_pause(self, rng: random.Random) -> None:
        broker = self._some_broker(rng)
        if broker is not None and not broker.process.is_paused:
            seconds = rng.choice((0.05, 0.5, 3.0)) * rng.random()
            self._world.log("pause", broker.name, f"{seconds:.3f}")
            broker.process.pause()
            self._world.loop.world.call_later(seconds, self._resume, broker)
            if rng.random() < 0.5:
                self._fault_switch(rng)

    def _resume(self, broker: SimulatedBroker) -> None:
        self._world.log("continue", broker.name)
        self.paused_at = self._world.loop.time()
        broker.process.resume()

    def _fault_stop(self, rng: random.Random) -> None:
        broker = self._some_broker(rng)
        if broker is not None and broker.is_ready and not broker.is_stopping:
            self._world.log("stop", broker.name)
            stopping = broker.process.spawn(broker.stop())

            def stopped(done: asyncio.Task[None]) -> None:
                if done.exception() is not None:
                    self._world.fail(done.exception() or ViolationError("stop"))
                self._world.kill(broker)

            stopping.add_done_callback(stopped, context=self._world.loop.world.context)

    def _fault_cut_metadata(self, rng: random.Random) -> None:
        broker = self._some_broker(rng)
        if broker is not None and broker.metadata is not None:
            seconds = 0.1 + rng.choice((0.1, 1.0, 4.0)) * rng.random()
            self._world.log("cut", broker.name, "from metadata for", f"{seconds:.3f}")
            broker.metadata.cut(seconds)

    def _fault_cut_client(self, rng: random.Random) -> None:
        opened = [each for each in self._world.connections if each.is_open]
        if opened:
            rng.choice(opened).cut()

    def _fault_fail_disk(self, rng: random.Random) -> None:
        prefix = f"/bookies/{rng.randrange(self._world.plan.bookies)}/"
        seconds = rng.random() * 2
        self._world.log("fail", prefix, f"{seconds:.3f}")
        self._world.files.fail(prefix, errno.EIO)
        self._world.loop.world.call_later(seconds, self._world.files.fail, prefix, None)

    def _fault_fill_disk(self, rng: random.Random) -> None:
        self._world.files.capacity_bytes = self._world.files.used_bytes + rng.randrange(2000)
        seconds = rng.random() * 2
        self._world.log("fill", f"{seconds:.3f}")
        self._world.loop.world.call_later(seconds, self._empty_disk)

    def _empty_disk(self) -> None:
        self._world.files.capacity_bytes = None

    def _fault_slow_disk(self, rng: random.Random) -> None:
        number = str(rng.randrange(self._world.plan.bookies))
        self.slow[number] = rng.choice((10.0, 100.0))
        self._world.loop.world.call_later(rng.random() * 2, self.slow.pop, number, None)

    def _fault_corrupt(self, rng: random.Random) -> None:
        # One copy of anything may go bad when there is surely another one.
        if self._world.plan.ack_quorum >= 2:
            where = self._world.files.corrupt(rng, "/bookies/0/ledgers/")
            self._world.log("corrupt", where)

    def _fault_switch(self, rng: random.Random) -> None:
        """Clients find another broker, though this one may be fine: two owners at once.

        Where brokers own bundles, clients are only sent to look up again.
        """
        for topic in self._world.preferred:
            number = rng.randrange(self._world.plan.brokers)
            if not self._world.plan.is_owned:
                self._world.preferred[topic] = number
        self._world.log("switch", self._world.preferred)
        for connection in self._world.connections:
            if connection.is_open and rng.random() < 0.7:
                connection.cut()

    def _fault_unload(self, rng: random.Random) -> None:
        broker = self._some_broker(rng)
        if broker is not None and broker.is_ready and broker.topics:
            name = rng.choice(broker.topics).name
            self._world.log("unload", name, "at", broker.name)
            broker.spawn(broker.unload(name))

    def on_operation(self, operation: Operation) -> None:
        """After each operation of the disk."""
        if not self._go_on or not self._world.plan.crash_share or operation.kind in _NO_CRASH:
            return
        if self._crash_rng.random() < self._world.plan.crash_share:
            broker = next(
                (b for b in self._world.brokers.values() if b.name == operation.process), None
            )
            if broker is not None and broker.process.is_alive:
                self._world.counts["crashes"] += 1
                if self._crash_rng.random() < 0.3:
                    self._world.log("power loss after", operation.kind, operation.path)
                    for each in self._world.brokers.values():
                        self._world.kill(each)
                    self._world.files.power_loss(self._crash_rng)
                else:
                    self._world.log(
                        "crash of", broker.name, "after", operation.kind, operation.path
                    )
                    self._world.kill(broker)
