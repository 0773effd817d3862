"""A cluster run: two brokers, three ZooKeeper servers, bookies, clients that go on, the facts.

Edge::

    everybody works -> faults begin -> faults end -> every topic takes messages again, in time
                    -> everybody works -> all clients go, the brokers agree who owns what -> again

Facts are checked whenever a topic has been found at an owner (`cluster_side.py`), be it in the midst
of a fault. What each fault did to the service is kept in `figures`.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ackgate.testing import (
    BrokerCluster,
    BrokerFailedError,
    ZooKeeperEnsemble,
    ZooKeeperFailedError,
)
from tests.chaos import inspection
from tests.chaos.cluster_faults import Faults
from tests.chaos.cluster_schedule import SESSION_SECONDS, Role, Trouble, plan_cluster_cycle
from tests.chaos.cluster_side import ClusterSide, agree
from tests.chaos.facts import ViolationError
from tests.chaos.journals import FILE, KeptRun, keep_journals
from tests.chaos.real_bookies import ChaosBookies
from tests.chaos.run import ChaosFailedError
from tests.chaos.side import both_sides, story
from tests.chaos.wire_load import Style
from tests.support.bookkeeper import BookKeeperFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence

    from tests.chaos.cluster_schedule import ClusterCycle, Fault

RESUME_SECONDS: Final = SESSION_SECONDS + 57.5
"""After the last fault has ended: a session may have to expire, and the machine may be busy."""

DRAIN_SECONDS: Final = 60.0
CLIENT_MESSAGES_PER_CYCLE: Final = 100
CLIENT_MESSAGES_AT_ONCE: Final = 4
CLIENT_PAUSE_SECONDS: Final = 0.1
NOTES_MAX: Final = 400

BOOKIE_SECONDS: Final = 60.0
"""What a real bookie may take to be there again, in Java, on a busy machine."""

_FAILURES: Final = (
    ViolationError,
    BookKeeperFailedError,
    BrokerFailedError,
    ZooKeeperFailedError,
    TimeoutError,
)


class ClusterRun:
    """See the module."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        styles: Sequence[Style] = tuple(Style),
        settings: Mapping[str, Any] | None = None,
        report: Callable[[str], None] = lambda _: None,
        tells_all: bool = False,
        only: Collection[Trouble] = (),
        is_on_real_bookies: bool = False,
        zookeepers: int = 3,
    ) -> None:
        """`tells_all`: report every step, and not only every cycle. `only`: these troubles.

        `is_on_real_bookies`: four, instead of three directories. `zookeepers`: one is enough when no
        trouble meets them.
        """
        self.seed = seed
        self._tells_all = tells_all
        self._only = only
        self.figures: dict[str, list[float]] = defaultdict(list)
        """Seconds without service, by what had happened."""
        self._directory = directory
        self._extra = dict(settings or {})
        self._report = report
        self._ensemble = ZooKeeperEnsemble(
            directory / "zookeeper", size=zookeepers, force_sync=False
        )
        self._bookies = (
            ChaosBookies(directory / "bookkeeper", self._ensemble) if is_on_real_bookies else None
        )
        self._cluster = BrokerCluster(
            directory,
            zookeeper=self._ensemble,
            root="/chaos",
            ledgers_root="/ledgers" if is_on_real_bookies else "",
        )
        self._faults = Faults(self._cluster, self._ensemble, self._bookies)
        self._notes: list[str] = []
        self._began = time.monotonic()
        self._sides = [
            ClusterSide(side, self._cluster, directory / "pulsar-client.log", self._note)
            for side in both_sides(seed, styles)
        ]

    async def run(self, cycles: int) -> None:
        """Raises `ChaosFailedError`."""
        number = 0
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(self._ensemble.start)
            if self._bookies is not None:
                await asyncio.to_thread(self._bookies.start, self._cluster.brokers)
            first = self._plan(0)
            self._cluster.configure(first.settings)
            await asyncio.to_thread(self._cluster.start)
            for number in range(cycles):
                await self._cycle(self._plan(number))
            await self._finish(cycles)
            for number in {each.owner for each in self._sides}:
                if self._bookies is not None and not self._bookies.wires.used(number):
                    raise ViolationError(f"broker {number} has gone past its wires to the bookies")
            servers = ",".join(f"127.0.0.1:{server.port}" for server in self._ensemble.servers)
            where = {"bookies": ",".join(map(str, self._cluster.bookie_directories))}
            if self._bookies is not None:
                where = {"bookkeeper": self._bookies.cluster.uri}
            await asyncio.to_thread(
                keep_journals,
                self._directory / FILE,
                metadataUrl=f"zk:{servers}{self._cluster.root}",
                **where,
            )
        except _FAILURES as error:
            raise ChaosFailedError(self._failure(number, error)) from error
        finally:
            for each in self._sides:
                if each.side.client is not None:
                    await asyncio.to_thread(each.side.client.close)
            await asyncio.to_thread(self._cluster.kill)
            if self._bookies is not None:
                await asyncio.to_thread(self._bookies.kill)
            await asyncio.to_thread(self._ensemble.kill)
            self._check_nothing_runs()

    def _check_nothing_runs(self) -> None:
        left = left_running(self._directory)
        if left:
            raise ChaosFailedError(f"seed {self.seed}: still running: {left}")

    def _plan(self, number: int) -> ClusterCycle:
        return plan_cluster_cycle(
            self.seed,
            number,
            self._extra,
            self._only,
            is_on_real_bookies=self._bookies is not None,
        )

    def kept(self) -> KeptRun:
        """Its journals and facts, after `run`."""
        topics = [each.side.topic for each in self._sides]
        form = "cluster" if self._bookies is None else "bookkeeper"
        return KeptRun(f"{form}, seed {self.seed}", self._directory / FILE, topics)

    # ---------------------------------------------------------------- one cycle

    async def _cycle(self, cycle: ClusterCycle) -> None:
        began = time.monotonic()
        self._notes.clear()
        self._note(str(cycle))
        self._cluster.configure(cycle.settings)
        for each in self._sides:
            each.hand_overs.clear()
        stop = asyncio.Event()
        serving = [asyncio.create_task(each.serve(cycle.number, stop)) for each in self._sides]
        try:
            await self._while_serving(serving, self._all_served())
            seconds = RESUME_SECONDS + 30 + (BOOKIE_SECONDS if self._bookies is not None else 0)
            await self._while_serving(serving, self._trouble(cycle), seconds)
            stop.set()
            _, unfinished = await asyncio.wait(serving, timeout=RESUME_SECONDS)
            if unfinished:
                raise ViolationError(f"requests without an answer for {RESUME_SECONDS} s")
            for task in serving:
                task.result()
        finally:
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
        for each in self._sides:
            await each.settle_late()
            each.side.client_facts.broker_ended()
        await self._agree()
        self._read_logs()
        seconds = time.monotonic() - began
        self._report(f"{cycle}; {seconds:.1f} s, {story([each.side for each in self._sides])}")

    async def _trouble(self, cycle: ClusterCycle) -> None:
        """Work, faults, and work again."""
        feeding = asyncio.create_task(self._feed_clients())
        try:
            await self._faults_in_work(cycle)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
        for each in self._sides:
            if each.side.client is not None:
                each.side.client.check()

    async def _feed_clients(self) -> None:
        for _ in range(CLIENT_MESSAGES_PER_CYCLE // CLIENT_MESSAGES_AT_ONCE):
            for each in self._sides:
                if each.side.client is not None:
                    each.side.client.allow(CLIENT_MESSAGES_AT_ONCE)
            await asyncio.sleep(CLIENT_PAUSE_SECONDS)

    async def _faults_in_work(self, cycle: ClusterCycle) -> None:
        rng = random.Random(f"{self.seed}/{cycle.number}/look")
        await asyncio.sleep(rng.uniform(0, cycle.work_seconds))
        await self._look()
        await asyncio.sleep(cycle.work_seconds / 4)
        met, began = self._sides[0].owner, time.monotonic()
        await asyncio.gather(*(self._bring(fault, met) for fault in cycle.faults))
        healed = time.monotonic()
        self._note("all faults have ended")
        async with asyncio.timeout(RESUME_SECONDS):
            await self._all_served()
        self._measure(cycle, began, healed)
        await asyncio.sleep(cycle.work_seconds / 2)

    async def _bring(self, fault: Fault, met: int) -> None:
        await asyncio.sleep(fault.after_seconds)
        self._note(f"{fault} (broker {met} was the owner)")
        await self._faults.bring(fault, met)
        self._note(f"over: {fault}")

    async def _look(self) -> None:
        """A first side whose owner has just gone has nothing to say."""
        side = self._sides[0]
        try:
            await side.side.look(self._cluster.brokers[side.owner].admin_url)
        except (OSError, KeyError) as error:
            self._note(f"no look: {error}")

    async def _all_served(self) -> None:
        await asyncio.gather(*(each.probe() for each in self._sides))

    async def _while_serving(
        self,
        serving: list[asyncio.Task[None]],
        work: Coroutine[Any, Any, None],
        seconds: float = RESUME_SECONDS,
    ) -> None:
        """Do it while the sides work; what goes wrong there ends it."""
        working = asyncio.create_task(work)
        try:
            done, _ = await asyncio.wait(
                [working, *serving], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise ViolationError(f"not served for {seconds} s")
            for task in done:
                if task is not working:
                    task.result()
            try:
                await working
            except TimeoutError:
                raise ViolationError(f"not served {seconds} s after the faults had ended") from None
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _agree(self) -> None:
        deadline = time.monotonic() + RESUME_SECONDS
        for each in self._sides:
            while not await agree(self._cluster, each.side.topic.name):
                if time.monotonic() > deadline:
                    raise ViolationError(f"{each.side.topic.name}: no agreement who owns it")
                await asyncio.sleep(0.1)

    def _read_logs(self) -> None:
        """Whatever happens to a broker, it is an error with a name and no surprise."""
        for broker in self._cluster.brokers:
            before, found, story = broker.log.partition("Traceback (most recent call last)")
            if found:
                raise ViolationError(
                    f"a broker was surprised:\n{before[-300:]}{found}{story[:5000]}"
                )

    def _measure(self, cycle: ClusterCycle, began: float, healed: float) -> None:
        if len(cycle.faults) != 1:
            return
        fault, side = cycle.faults[0], self._sides[0]
        if fault.trouble is Trouble.UNLOAD:
            for each in self._sides:
                self.figures["unload: let go to first delivery"] += each.hand_overs
            return
        name = f"{fault.trouble.value} of {fault.role.value}"
        if fault.role in {Role.OWNER, Role.BOTH} and side.first_delivery_at > began:
            self.figures[f"{name} to first delivery"].append(side.first_delivery_at - began)
        resumed = time.monotonic() - healed
        self.figures[f"{name} ended to service"].append(resumed)

    # ---------------------------------------------------------------- the end

    async def _finish(self, number: int) -> None:
        """Everything is acked, nothing is left, and the brokers go in good order."""
        self._note("the end")
        for each in self._sides:
            each.is_idle = True
        stop = asyncio.Event()
        serving = [asyncio.create_task(each.serve(number, stop)) for each in self._sides]
        try:
            await self._while_serving(serving, self._all_served())
            for each in self._sides:
                if each.side.client is not None:
                    each.side.client.drain()
            await self._while_serving(serving, self._drain(), DRAIN_SECONDS + 1)
            stop.set()
            await asyncio.gather(*serving)
        finally:
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
        for each in self._sides:
            await each.settle_late()
        self._report(f"everything acked; {story([each.side for each in self._sides])}")
        for broker in self._cluster.brokers:
            code = await asyncio.to_thread(broker.stop)
            if code != 0:
                raise ViolationError(f"exit code {code} after SIGTERM")

    async def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while True:
            left = {}
            for each in self._sides:
                for subscriber in each.side.subscribers:
                    await subscriber.ack_everything()
                if each.side.client is not None:
                    each.side.client.check()
                    unconfirmed = each.side.client.sent - each.side.client.confirmed
                    left[f"{each.side.topic.name} sends"] = unconfirmed
                admin_url = self._cluster.brokers[each.owner].admin_url
                found = await inspection.backlogs(admin_url, each.side.topic.name)
                left.update({f"{each.side.topic.name} {name}": n for name, n in found.items()})
            left = {name: count for name, count in left.items() if count}
            if not left:
                return
            if time.monotonic() > deadline:
                raise ViolationError(f"not everything could be acked: {left}")
            await asyncio.sleep(0.02)

    # ---------------------------------------------------------------- telling

    def figures_text(self) -> str:
        """What was measured, a line each."""
        return "\n".join(
            f"{name}: {len(all_)} times, {min(all_):.2f} / {statistics.median(all_):.2f} /"
            f" {max(all_):.2f} s (least, median, most)"
            for name, all_ in sorted(self.figures.items())
        )

    def _note(self, what: str) -> None:
        if any(what == note[9:] for note in self._notes[-4:]):
            return
        self._notes.append(f"{time.monotonic() - self._began:8.3f} {what}")
        if self._tells_all:
            self._report(self._notes[-1])
        del self._notes[:-NOTES_MAX]

    def _failure(self, number: int, error: BaseException) -> str:
        logs = [*self._cluster.brokers, *self._ensemble.servers]
        for index, each in enumerate(logs):
            kind = "broker" if index < len(self._cluster.brokers) else "zookeeper"
            (self._directory / f"{kind}-{index}.log").write_text(each.log)
        (self._directory / "notes.log").write_text("\n".join(self._notes))
        ends = "\n".join(f"--- {each.log[-2000:]}" for each in self._cluster.brokers)
        notes = "\n".join(self._notes[-30:])
        return (
            f"seed {self.seed}, cycle {number}: {type(error).__name__}: {error}\n"
            f"directory kept: {self._directory}\n{notes}\nthe ends of the brokers' logs:\n{ends}"
        )


def left_running(directory: Path) -> list[str]:
    """Processes that were started with this directory, or have a file of it open, and live on."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            command = (process / "cmdline").read_bytes()
            is_here = os.fsencode(directory) in command or _has_open(process, directory)
            if is_here and process.name != str(os.getpid()):
                found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found


def _has_open(process: Path, directory: Path) -> bool:
    for file in (process / "fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            if str(directory) in str(file.readlink()):
                return True
    return False
