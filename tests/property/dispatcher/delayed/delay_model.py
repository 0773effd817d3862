"""The dumbest tracker that could be right: a dict, and a sort at each question."""

from __future__ import annotations

from dataclasses import dataclass, field

from ackgate.cursor import Position
from ackgate.dispatcher.delayed import DelayKeys, DelaySettings


@dataclass
class DelayModel:
    """Position -> (key, time)."""

    settings: DelaySettings
    entries: dict[Position, tuple[int, int]] = field(default_factory=dict)
    is_fixed: bool = True
    highest_ms: int = 0

    def __post_init__(self) -> None:
        self.keys = DelayKeys(self.settings.tick_ms, is_strict=self.settings.is_strict)

    def configure(self, settings: DelaySettings) -> None:
        self.settings = settings
        self.keys.set_tick(settings.tick_ms)

    def add(self, position: Position, deliver_at_ms: int, now_ms: int) -> bool:
        ahead = 0 if self.settings.is_strict else self.settings.tick_ms
        if deliver_at_ms < 0 or deliver_at_ms <= now_ms + ahead:
            if self.entries.pop(position, None):
                self.emptied()
            self.is_fixed = False
            return False
        if position not in self.entries:
            self.entries[position] = (self.keys.key(deliver_at_ms), deliver_at_ms)
            if deliver_at_ms < self.highest_ms - self.settings.tick_ms:
                self.is_fixed = False
            self.highest_ms = max(self.highest_ms, deliver_at_ms)
        return True

    def due(self, now_ms: int) -> list[Position]:
        lead = self.keys.lead_ms
        due = [(key, each) for each, (key, _) in self.entries.items() if key - lead <= now_ms]
        return [position for _, position in sorted(due)]

    def next_deadline_ms(self) -> int | None:
        if not self.entries:
            return None
        first_key = min(key for key, _ in self.entries.values())
        return first_key if self.settings.is_strict else first_key + self.keys.width_ms - 1

    def remove(self, positions: list[Position]) -> None:
        for position in positions:
            del self.entries[position]
        self.emptied()

    def emptied(self) -> None:
        if not self.entries:
            self.is_fixed = True
            self.highest_ms = 0
