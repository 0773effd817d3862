"""Who wants to hear of changes of a session's state. Edge for the loop only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from contextvars import Context

    from ackgate.persistence.ports import SessionState


class SessionListeners:
    """The listeners of one store."""

    __slots__ = ("_context", "_listeners", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context | None = None) -> None:
        """`context`: in which they are called, if not in that of whoever tells."""
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

    def tell(self, state: SessionState) -> None:
        """Tell each of them, after the call that is being made now."""
        for listener in list(self._listeners.values()):
            self._loop.call_soon(listener, state, context=self._context)
