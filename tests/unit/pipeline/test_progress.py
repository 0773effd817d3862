"""What people see of a job while it runs."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace

import pytest

from ackgate.pipeline.running import terminal
from ackgate.pipeline.running.terminal import JobProgress, stages_line


class Spark:
    """A session with one stage that runs, and one that nobody knows any more."""

    @property
    def sparkContext(self):
        return self

    def statusTracker(self):
        return self

    def getActiveStageIds(self):
        return [3, 4]

    def getStageInfo(self, stage):
        if stage != 3:
            return None
        return SimpleNamespace(stageId=3, numCompletedTasks=1, numTasks=4)


class Terminal(io.StringIO):
    """Tells when a line of stages is shown."""

    def __init__(self, *, is_terminal: bool):
        super().__init__()
        self.shown = threading.Event()
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal

    def write(self, text):
        written = super().write(text)
        if "stage" in text:
            self.shown.set()
        return written


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(terminal, "_POLL_SECONDS", 0.001)


def test_stages_are_shown_in_one_line_that_goes_again():
    terminal = Terminal(is_terminal=True)

    with JobProgress(terminal, Spark()) as shown:
        assert terminal.shown.wait(10)
        shown.report("at work")

    told = terminal.getvalue()
    assert told.startswith("stage 3: 1/4 tasks")
    assert "\r\x1b[Kat work\n" in told, "the line of stages is gone before it"
    assert told.endswith(("\r\x1b[K", "at work\n"))


def test_a_file_gets_the_lines_that_stay_alone():
    file = Terminal(is_terminal=False)

    with JobProgress(file, Spark()) as shown:
        shown.report("at work")

    assert file.getvalue() == "at work\n"


def test_without_a_session_there_are_no_stages():
    terminal = Terminal(is_terminal=True)

    with JobProgress(terminal, None) as shown:
        shown.report("at work")

    assert terminal.getvalue() == "at work\n"


def test_a_session_that_ends_is_asked_no_more():
    class Ended(Spark):
        asked = threading.Event()

        def getActiveStageIds(self):
            self.asked.set()
            raise ConnectionRefusedError

    terminal = Terminal(is_terminal=True)

    with JobProgress(terminal, Ended()) as shown:
        assert Ended.asked.wait(10)
        shown.report("at work")

    assert terminal.getvalue() == "at work\n"


def test_several_stages_are_side_by_side():
    assert stages_line([(1, 2, 3), (4, 0, 9)]) == "stage 1: 2/3 tasks  stage 4: 0/9 tasks"
    assert stages_line([]) == ""
