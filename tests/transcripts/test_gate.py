"""Gate behaviour as readable transcripts: ``COMMAND key=value ...``, time by ``at=MS``."""

from __future__ import annotations

from pathlib import Path

import pytest

from ackgate.cursor import WrittenCounts
from ackgate.dispatcher import Gate, GateSettings
from tests.transcripts.runner import replay

HERE = Path(__file__).parent / "gate"


class Stage:
    """One gate and the time; runs a transcript's commands."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.gate = Gate(GateSettings(), 0)

    def run(self, command: str) -> str:
        name, *words = command.split()
        given = dict(word.split("=") for word in words)
        self.now_ms = int(given.pop("at", self.now_ms))
        if name == "new":
            self.gate = Gate(read_settings(given), self.now_ms)
            crossed = False
        else:
            crossed = getattr(self, "do_" + name.replace("-", "_"))(given)
        self.gate.check()
        return self.describe() + ("\n> " + ("opened" if self.gate.is_open else "shut")) * crossed

    def do_configure(self, given: dict[str, str]) -> bool:
        return self.gate.configure(read_settings(given), self.now_ms)

    def do_observe(self, given: dict[str, str]) -> bool:
        return self.gate.observe(
            ranges_live=int(given.get("ranges", 0)),
            batch_indexes_live=int(given.get("partly", 0)),
            now_ms=self.now_ms,
        )

    def do_persisted(self, given: dict[str, str]) -> bool:
        in_memory = int(given.get("ranges", 0))
        written = WrittenCounts(
            version=0,
            ranges_in_memory=in_memory,
            ranges_persisted=int(given.get("kept", in_memory)),
            entries_dropped=int(given.get("dropped", 0)),
            batch_indexes_in_memory=int(given.get("partly-dropped", 0)),
            size_guard_hit=given.get("guard") == "1",
        )
        return self.gate.persisted(written, self.now_ms)

    def do_failing(self, given: dict[str, str]) -> bool:
        return self.gate.persist_failing(number_or_none(given["since"]), self.now_ms)

    def do_budget(self, given: dict[str, str]) -> bool:
        return self.gate.budget(number_or_none(given["entries"]), self.now_ms)

    def do_advance(self, given: dict[str, str]) -> bool:
        return self.gate.advance(self.now_ms)

    def describe(self) -> str:
        reasons = ", ".join(f"{why.value} since {ms}" for why, ms in self.gate.reasons.items())
        deadline = self.gate.next_deadline_ms
        waits = "" if deadline is None else f"; next deadline {deadline}"
        return ("open" if self.gate.is_open else f"shut: {reasons}") + waits


def number_or_none(text: str) -> int | None:
    return None if text == "none" else int(text)


def read_settings(given: dict[str, str]) -> GateSettings:
    return GateSettings(
        enabled=given.get("enabled", "1") == "1",
        ranges_max=int(given.get("max", 10)),
        batch_indexes_max=int(given.get("partly-max", 10)),
        resume_ranges=int(given["resume"]) if "resume" in given else None,
        is_strict=given.get("strict") == "1",
        persist_failure_pause_ms=int(given.get("pause", 30_000)),
    )


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_gate(path: Path, rewrite: bool) -> None:
    replay(path, Stage().run, rewrite=rewrite)
