"""A chaos run: one data directory, one broker after the other, clients that go on, and the facts.

Edge::

    start (perhaps on a disk that was full when the last one ended, and is for a while yet)
          -> the stats tell what recovery found -> cursor states against the facts
          -> new consumers are given everything there is, against the facts
          -> everybody works -> kill -9 -> receipts that were still on their way are read -> again

Nothing is random but what the seed says (`schedule.py`) and what the machine's clock and scheduler
add to it.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ackgate.commands.cli import EXIT_FAILED
from ackgate.testing import BrokerFailedError, BrokerProcess
from tests.chaos import inspection
from tests.chaos.facts import ViolationError
from tests.chaos.journals import FILE, KeptRun, keep_journals
from tests.chaos.schedule import Ending, plan_cycle
from tests.chaos.side import both_sides, story
from tests.chaos.small_file_system import BrokerThere
from tests.chaos.storage_faults import StorageFaults
from tests.chaos.wire_load import Style
from tests.support.wire_client import DisconnectedError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from tests.chaos.schedule import Cycle
    from tests.chaos.side import Side
    from tests.chaos.small_file_system import SmallFileSystem

DRAIN_SECONDS: Final = 60.0
ROOM_SECONDS: Final = 60.0
CLIENT_MESSAGES_PER_CYCLE: Final = 150

BROKEN: Final[Mapping[str, Any]] = {
    "ackReceiptDurability": "applied",
    "ackPersistLingerMs": 1_000,
}
"""Settings under which a receipt promises nothing: a run with them has to fail."""


class ChaosFailedError(Exception):
    """A promise was broken, or the broker did not start. Says how to repeat it."""


class ChaosRun:
    """See the module."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        styles: Sequence[Style] = tuple(Style),
        settings: Mapping[str, Any] | None = None,
        report: Callable[[str], None] = lambda _: None,
        files: SmallFileSystem | None = None,
        is_damaging: bool = False,
    ) -> None:
        """`files`: where the broker keeps its data; without them no disk is ever full.

        `is_damaging`: bits of one bookie's files flip between two lives.
        """
        self._is_damaging = is_damaging
        self.seed = seed
        self._directory = directory
        self._extra = dict(settings or {})
        self._report = report
        self._files = files
        self._data = directory / "data" if files is None else files.path / "data"
        self._broker = BrokerProcess(self._data) if files is None else BrokerThere(files)
        self._sides = both_sides(seed, styles)
        self._storage_story = ""
        self._storage = StorageFaults(self._data, directory, seed) if files is None else None

    async def run(self, cycles: int) -> None:
        """Raises `ChaosFailedError`."""
        number = 0
        try:
            for number in range(cycles):
                await self._cycle(plan_cycle(self.seed, number, self._extra))
            await self._finish(plan_cycle(self.seed, cycles, self._extra))
            await asyncio.to_thread(keep_journals, self._directory / FILE, path=str(self._data))
        except (ViolationError, BrokerFailedError, DisconnectedError, TimeoutError) as error:
            (self._directory / "broker.log").write_text(self._broker.log)
            raise ChaosFailedError(
                f"seed {self.seed}, cycle {number}: {type(error).__name__}: {error}\n"
                f"directory kept: {self._directory}\n"
                f"the end of the broker's log:\n{self._broker.log[-3000:]}"
            ) from error
        finally:
            for side in self._sides:
                if side.client is not None:
                    await asyncio.to_thread(side.client.close)
            self._broker.kill()

    def kept(self) -> KeptRun:
        """Its journals and facts, after `run`."""
        topics = [side.topic for side in self._sides]
        return KeptRun(f"single, seed {self.seed}", self._directory / FILE, topics)

    # ---------------------------------------------------------------- one life of the broker

    async def _cycle(self, cycle: Cycle) -> None:
        began = time.monotonic()
        await self._start(cycle)
        delivered = await self._verify(cycle)
        ready = time.monotonic()
        work = self._set_to_work(random.Random(f"{self.seed}/{cycle.number}/look"), cycle)
        done, _ = await asyncio.wait(
            work, timeout=cycle.work_seconds, return_when=asyncio.FIRST_EXCEPTION
        )
        for task in done:
            task.result()
        await self._end(cycle, work)
        self._report(
            f"{self._storage_story}{cycle}; {delivered} messages verified, start and checks"
            f" {(ready - began) * 1000:.0f} ms, {story(self._sides)}"
        )

    async def _start(self, cycle: Cycle) -> None:
        self._broker.settings = dict(cycle.settings)
        if self._storage is not None:
            self._storage_story = await self._storage.before(cycle.number, self._broker)
        for seconds in cycle.startup_kill_seconds:
            self._broker.launch()
            await asyncio.sleep(seconds)
            self._broker.kill()
        await asyncio.to_thread(self._broker.start)
        if self._files is not None and self._files.is_filled:
            # It runs on a full disk; what it does there must not cost anything. Then there is room.
            await asyncio.to_thread(self._broker.restart)
            self._files.empty()
            await self._until_it_has_room()

    async def _until_it_has_room(self) -> None:
        async with asyncio.timeout(ROOM_SECONDS):
            while await inspection.refuses_messages(self._broker.admin_url):
                await asyncio.sleep(0.05)

    async def _verify(self, cycle: Cycle) -> int:
        port = self._broker.port
        delivered = 0
        for side in self._sides:
            for subscriber in side.subscribers:
                await subscriber.attach(port, cycle.number)
            log_path = self._directory / "pulsar-client.log"
            await side.start_client(self._broker.service_url, log_path)
            await side.publisher.attach(port)
            await self._verify_states(side, is_new=cycle.number == 0)
            marker = await side.publisher.publish(1)
            for subscriber in side.subscribers:
                delivered += await subscriber.verify(marker)
        return delivered

    async def _verify_states(self, side: Side, *, is_new: bool) -> None:
        admin_url, name = self._broker.admin_url, side.topic.name
        expected = inspection.NEW if is_new else inspection.STORED
        await inspection.check_recovery(admin_url, name, expected)
        states = await inspection.cursor_states(admin_url, name)
        side.verify_states(states)
        # The real client has reconnected: some of what it has acked since may be in memory only.
        written = await inspection.written_subscriptions(admin_url, name)
        for facts in side.topic.subscriptions:
            is_durable = facts.name in written
            facts.verify_mark_delete(states[facts.name].mark_delete, is_durable=is_durable)

    # ---------------------------------------------------------------- work

    def _set_to_work(self, rng: random.Random, cycle: Cycle) -> list[asyncio.Task[None]]:
        jobs: list[Coroutine[Any, Any, None]] = []
        for side in self._sides:
            jobs.append(side.publisher.work())
            jobs += [subscriber.work() for subscriber in side.subscribers]
            if side.client is not None:
                side.client.check()
                side.client.allow(CLIENT_MESSAGES_PER_CYCLE)
        jobs.append(self._look(rng.uniform(0, cycle.work_seconds)))
        return [asyncio.create_task(job) for job in jobs]

    async def _look(self, after_seconds: float) -> None:
        """Find out which acks of the real client have arrived."""
        await asyncio.sleep(after_seconds)
        await self._sides[0].look(self._broker.admin_url)

    async def _end(self, cycle: Cycle, work: list[asyncio.Task[None]]) -> None:
        is_full = self._files is not None and cycle.is_disk_full
        if self._files is not None and cycle.is_disk_full:
            await asyncio.to_thread(self._files.fill)
        ended_at = time.monotonic()
        match cycle.ending:
            case Ending.KILL:
                self._broker.kill()
            case Ending.TERM:
                await self._stop_broker(is_full=is_full)
            case Ending.KILL_WHILE_STOPPING:
                self._broker.terminate()
                await asyncio.sleep(cycle.shutdown_seconds)
                self._broker.kill()
        if self._is_damaging:
            await asyncio.to_thread(self._damage, cycle)
        # What the broker had said before it died is still in the sockets, and counts.
        for side in self._sides:
            for client in (side.publisher.client, *(s.client for s in side.subscribers)):
                await client.wait_closed()
        for task in work:
            task.cancel()
        for result in await asyncio.gather(*work, return_exceptions=True):
            self._check_end(result, may_be_refused=is_full or cycle.ending is not Ending.KILL)
        for side in self._sides:
            for each in (side.publisher, *side.subscribers):
                await each.under_way.settle(
                    may_be_refused=is_full or cycle.ending is not Ending.KILL
                )
            if side.client is not None:
                side.client.check()
            for facts in side.topic.subscriptions:
                if cycle.ending is Ending.TERM and not is_full:
                    facts.applied_is_durable(ended_at)
                facts.broker_ended()

    def _damage(self, cycle: Cycle) -> None:
        """One bit in some files of the same bookie always: the others have what it loses."""
        rng = random.Random(f"{self.seed}/{cycle.number}/damage")
        files = sorted((self._data / "bookies" / "0").rglob("*.avro"))
        for path in rng.sample(files, min(cycle.damaged_files, len(files))):
            content = bytearray(path.read_bytes())
            if content:
                bit = rng.randrange(8 * len(content))
                content[bit // 8] ^= 1 << bit % 8
                path.write_bytes(content)

    @staticmethod
    def _check_end(result: BaseException | None, *, may_be_refused: bool) -> None:
        """Connections end in the midst of everything; that is all that may have gone wrong."""
        if isinstance(result, DisconnectedError | asyncio.CancelledError | OSError | None):
            return
        if isinstance(result, RefusedError) and may_be_refused:
            return
        raise result

    # ---------------------------------------------------------------- the end

    async def _finish(self, cycle: Cycle) -> None:
        """Everything is acked, nothing is left, and the broker goes in good order."""
        await self._start(cycle)
        await self._verify(cycle)
        for side in self._sides:
            if side.client is not None:
                side.client.drain()
        deadline = time.monotonic() + DRAIN_SECONDS
        while True:
            left = {}
            for side in self._sides:
                for subscriber in side.subscribers:
                    await subscriber.ack_everything()
                if side.client is not None:
                    side.client.check()
                found = await inspection.backlogs(self._broker.admin_url, side.topic.name)
                left.update({f"{side.topic.name} {name}": n for name, n in found.items() if n})
            if not left:
                break
            if time.monotonic() > deadline:
                raise ViolationError(f"not everything could be acked: {left}")
            await asyncio.sleep(0.02)
        self._report(f"everything acked; {story(self._sides)}")
        await self._stop_broker()

    async def _stop_broker(self, *, is_full: bool = False) -> None:
        """On a full disk what is dirty may not fit. Then the broker has to say so, and by its exit code."""
        code = await asyncio.to_thread(self._broker.stop)
        if code == 0:
            return
        is_said = any(words in self._broker.log for words in ("is full", "did not end in time"))
        if not (is_full and code == EXIT_FAILED and is_said):
            raise ViolationError(f"exit code {code} after SIGTERM")
