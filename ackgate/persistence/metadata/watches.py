"""Persistent, recursive watches: callbacks for changes at or below a path.

Edge only in that it calls out; it keeps no clock, task or lock. A watcher that raises is reported to
the event loop and affects neither the others nor the change itself.

Beside them the listeners of a session's state.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextvars import Context

    from ackgate.persistence.ports import SessionState, WatchEvent


class SessionListeners:
    """The listeners of one store."""

    __slots__ = ("_context", "_listeners", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context | None = None) -> None:
        """`context`: in which they are called; default: that of the call of `notify`."""
        self._loop = loop
        self._context = context
        self._listeners: dict[object, Callable[[SessionState], None]] = {}

    def add(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        """Register one. Returns the cancel, which may repeat."""
        key = object()
        self._listeners[key] = listener

        def cancel() -> None:
            self._listeners.pop(key, None)

        return cancel

    def clear(self) -> None:
        """Forget every listener: the store is closed."""
        self._listeners.clear()

    def notify(self, state: SessionState) -> None:
        """Notify each of them, after the current call."""
        for listener in list(self._listeners.values()):
            self._loop.call_soon(listener, state, context=self._context)


class Watches:
    """The registered watches of one session."""

    __slots__ = ("_watchers",)

    def __init__(self) -> None:
        self._watchers: dict[object, tuple[str, Callable[[WatchEvent], None]]] = {}

    def add(self, path: str, on_event: Callable[[WatchEvent], None]) -> Callable[[], None]:
        """Register a watcher of `path` and all below it. Returns the cancel, which may repeat."""
        key = object()
        self._watchers[key] = (path, on_event)

        def cancel() -> None:
            self._watchers.pop(key, None)

        return cancel

    def clear(self) -> None:
        """Forget every watcher: the session is over."""
        self._watchers.clear()

    def fire(self, events: Iterable[WatchEvent]) -> None:
        """Notify each watcher of the events at or below its path, in order. Called on the loop."""
        if self._watchers:
            for event in events:
                self.notify(self.concerned(event), event)

    def concerned(self, event: WatchEvent) -> list[object]:
        """The watchers of an event: keys for a later `notify`."""
        return [
            key for key, (path, _) in self._watchers.items() if is_at_or_below(event.path, path)
        ]

    def notify(self, keys: Iterable[object], event: WatchEvent) -> None:
        """Notify those of the watchers that have not been cancelled since."""
        for key in keys:
            watcher = self._watchers.get(key)
            if watcher is not None:
                _call(watcher[1], event)


def is_at_or_below(path: str, root: str) -> bool:
    """Whether `path` is `root` or lies below it."""
    return root in {"/", path} or path.startswith(root + "/")


def _call(on_event: Callable[[WatchEvent], None], event: WatchEvent) -> None:
    try:
        on_event(event)
    except Exception as error:  # noqa: BLE001  # a watcher's fault is not the writer's
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"a watcher of {event.path} failed", "exception": error}
        )
