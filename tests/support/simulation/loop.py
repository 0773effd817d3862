"""An event loop for several simulated processes: virtual time, one seed, kill and pause at any await.

Every callback belongs to the process in whose context it was made; tasks and futures carry that on
by themselves. Each process has its own queue, in asyncio's order. Which process runs next, and for
how long, is drawn from the seed, as the operating system's scheduler might decide:

    timers due ---> queue of "broker-1"  o o o  --.
               ---> queue of "broker-2"  o        +--> one of them runs a few callbacks, and again
               ---> queue of "clients"   o o    --'

A *killed* process never runs again: what is queued for it, and will be, is dropped. What it held is
kept to the end of the run, so that no `finally` block of the dead does anything. A *paused* one
(SIGSTOP) keeps its queue, its timers come due, and all of that waits until it is continued.

Time moves only when no process has anything to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import sys
import warnings
from collections import deque
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from tests.support.virtual_time import DeadlockError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEPS_MAX: Final = 3_000_000
"""Callbacks of one run: beyond it something spins."""

_TURN_MAX: Final = 32
"""Most callbacks that a process runs before another one may have its turn."""


class SpinningError(RuntimeError):
    """The run does not come to an end."""


class Process:
    """One simulated process: a name, a queue, and whether it may run."""

    __slots__ = (
        "context",
        "has_died",
        "is_alive",
        "is_paused",
        "is_queued",
        "loop",
        "name",
        "ready",
    )

    def __init__(self, loop: SimulationLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.is_queued = False
        """Whether the loop knows that there is something in `ready`."""
        self.ready: deque[asyncio.Handle] = deque()
        self.has_died: list[Callable[[], None]] = []
        """Told when it is killed."""
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)

    @property
    def runs(self) -> bool:
        """Alive and not paused."""
        return self.is_alive and not self.is_paused

    def spawn(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task in this process."""
        return self.context.copy().run(self.loop.create_task, main)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Call back in this process."""
        self.loop.call_at(self.loop.time() + seconds, callback, *args, context=self.context)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        if self.is_alive:
            self.is_alive = False
            self.loop.bury(self)
            for told in self.has_died:
                told()

    def pause(self) -> None:
        """SIGSTOP."""
        self.is_paused = True

    def resume(self) -> None:
        """SIGCONT."""
        if self.is_paused:
            self.is_paused = False
            self.loop.wake(self)


PROCESS: ContextVar[Process] = ContextVar("simulated process")


class SimulationLoop(asyncio.BaseEventLoop):
    """The loop of all processes. Starts at time 0."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._random = rng
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Process]] = []
        self._sequence = 0
        self._runnable: list[Process] = []
        self._graves: list[tuple[list[asyncio.Handle], set[asyncio.Task[Any]]]] = []
        self._has_ended = False
        self.steps = 0
        """Callbacks run so far."""
        self.world = Process(self, "world")
        """The process that drives the simulation."""

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    # -------------------------------------------------------------------------------- processes

    def wake(self, process: Process) -> None:
        """A process may have something to do."""
        if not process.is_queued and not process.is_paused:
            process.is_queued = True
            self._runnable.append(process)

    def bury(self, process: Process) -> None:
        """Keep what a killed process held from ever doing anything."""
        self._graves.append((list(process.ready), asyncio.all_tasks(self)))
        process.ready.clear()

    def tasks_of(self, process: Process) -> list[asyncio.Task[Any]]:
        """Tasks of a process that are not done."""
        return [task for task in asyncio.all_tasks(self) if task.get_name() == process.name]

    # ------------------------------------------------------------------------- what asyncio calls

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """See asyncio."""
        if context is None:
            context = copy_context()
        process = context.get(PROCESS, self.world)
        handle = asyncio.Handle(callback, args, self, context)
        if process.is_alive and not self._has_ended:
            process.ready.append(handle)
            if not process.is_queued:
                self.wake(process)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """There are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        if context is None:
            context = copy_context()
        process = context.get(PROCESS, self.world)
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if process.is_alive and not self._has_ended:
            self._sequence += 1
            heapq.heappush(self._timers, (when, self._sequence, handle, process))
        return handle

    def create_task(
        self,
        coro: Any,
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        """See asyncio. The name of a task is that of its process."""
        where = context if context is not None else copy_context()
        process = where.get(PROCESS, self.world)
        return asyncio.Task(coro, loop=self, name=process.name, context=where)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is dropped when its time comes."""

    def _process_events(self, event_list: object) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """There is nobody to wake."""

    def _run_once(self) -> None:
        """One turn of one process."""
        runnable = self._runnable
        if not runnable:
            self._move_on()
            return
        index = int(self._random.random() * len(runnable)) if len(runnable) > 1 else 0
        process = runnable[index]
        ready = process.ready
        turn = len(ready)
        if turn > 1 and len(runnable) > 1:
            turn = min(turn, 1 + int(self._random.random() * _TURN_MAX))
        while turn > 0 and ready and not process.is_paused:
            turn -= 1
            handle = ready.popleft()
            if not handle._cancelled:
                self.steps += 1
                handle._run()
        if not ready or process.is_paused:
            runnable.remove(process)
            process.is_queued = False
        if self.steps > STEPS_MAX:
            raise SpinningError(f"{self.steps} callbacks by {self._now:.3f} s")

    def _move_on(self) -> None:
        """Nobody has anything to do: go to the next timer."""
        timers = self._timers
        while timers and (timers[0][2].cancelled() or not timers[0][3].is_alive):
            heapq.heappop(timers)
        if not timers:
            raise DeadlockError("every task waits, and no timer is set")
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            _, _, handle, process = heapq.heappop(timers)
            if process.is_alive and not handle.cancelled():
                process.ready.append(handle)
                if not process.is_queued:
                    self.wake(process)

    def end(self) -> None:
        """Let go of everything; nothing that is still waiting does anything any more."""
        self._has_ended = True
        self.set_exception_handler(lambda _, __: None)
        unraisable, sys.unraisablehook = sys.unraisablehook, lambda _: None
        with warnings.catch_warnings():
            # Those that end may make coroutines that nobody runs any more.
            warnings.simplefilter("ignore", RuntimeWarning)
            for task in self._pending_tasks():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):
                    task.get_coro().close()
            self._timers.clear()
            self._runnable.clear()
            self._graves.clear()
            self.world.ready.clear()
            gc.collect()
        sys.unraisablehook = unraisable
        self.close()

    def _pending_tasks(self) -> list[asyncio.Task[Any]]:
        pending = dict.fromkeys(asyncio.all_tasks(self))
        for _, tasks in self._graves:
            pending.update(dict.fromkeys(tasks))
        return [task for task in pending if not task.done()]


def run(loop: SimulationLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the world's process to its end, with the garbage collector held back."""
    was_collecting = gc.isenabled()
    gc.disable()
    if not gc.get_freeze_count():
        # Modules and classes: the collection at the end of each run need not look at them.
        gc.freeze()
    try:
        return loop.run_until_complete(loop.world.spawn(main))
    finally:
        loop.end()
        if was_collecting:
            gc.enable()
