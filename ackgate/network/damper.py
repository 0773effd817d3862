"""Limits log lines about clients that do the same thing again and again.

Pure: time is an argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

LINES_AT_ONCE_MAX: Final = 30
"""Lines of one kind that are written although they follow each other closely."""

SECONDS_PER_LINE: Final = 10.0
"""After that, a kind gets one line in so many seconds."""

KINDS_MAX: Final = 1_000
"""Kinds that are remembered. A kind that was forgotten starts again with a full allowance."""


class LogDamper:
    """Lets the first lines of each kind pass, then one every few seconds with a count of the rest.

    A client whose message is rejected may reconnect ten times a second, forever, and cause the same
    log line each time.
    """

    def __init__(
        self, *, at_once: int = LINES_AT_ONCE_MAX, seconds_per_line: float = SECONDS_PER_LINE
    ) -> None:
        self._full_seconds = at_once * seconds_per_line
        self._seconds_per_line = seconds_per_line
        self._kinds: dict[Hashable, tuple[float, int]] = {}
        """By kind: when its allowance is full again, and how many lines were left out since the
        last one."""

    def admit(self, kind: Hashable, now_seconds: float) -> int | None:
        """Decide whether a line of this kind is written.

        Returns how many lines of this kind were left out since the last one, or None to leave this
        one out, too.
        """
        full_at, left_out = self._kinds.pop(kind, (0.0, 0))
        full_at = max(full_at, now_seconds) + self._seconds_per_line
        is_admitted = full_at - now_seconds <= self._full_seconds
        if is_admitted:
            self._kinds[kind] = full_at, 0
        else:
            self._kinds[kind] = full_at - self._seconds_per_line, left_out + 1
        if len(self._kinds) > KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]
        return left_out if is_admitted else None


def and_left_out(lines: int, *, of: str = "") -> str:
    """End of an admitted line: how many were left out before it. Empty if none were."""
    whose = f" of {of}" if of else ""
    return f" (and {lines} such lines{whose} left out)" if lines else ""
