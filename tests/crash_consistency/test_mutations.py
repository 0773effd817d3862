"""The enumeration can fail: each of these mistakes is found.

A fence that is written and not synced is no mistake on one machine, and so is not among them: when
the page cache goes, the writer that was to be fenced goes too. (It is synced for directories that
several machines share.) A fence that is not written is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ackgate.persistence.bookies.directory import BookieDirectory
from ackgate.persistence.bookies.fragment_storage import FragmentCut, FragmentFile
from ackgate.persistence.bookies.journal import Journal
from ackgate.persistence.bookies.register import Fences
from ackgate.persistence.bookies.takeover import Takeover
from tests.crash_consistency.cursor_run import CursorRun
from tests.crash_consistency.explorer import Explorer, InconsistentError
from tests.crash_consistency.ledger_run import LedgerRun
from tests.support.simulation.disk import SimulatedDisk

if TYPE_CHECKING:
    from ackgate.persistence.system.disk import DiskFile

SEEDS = (4, 7, 8, 13, 16, 2, 25, 30)
"""As a rule the first finds it."""

Mutation = Callable[[pytest.MonkeyPatch], None]


def _unsynced(disk: SimulatedDisk, files: Sequence[DiskFile]) -> None:
    """Takes the place of `sync_files`."""


def journal_without_sync(patch: pytest.MonkeyPatch) -> None:
    def write(self: Journal, file: DiskFile, head: bytes, records: bytes) -> None:
        block = b"".join((head, records, self._marker))
        file.append(block)
        self._synced_bytes += len(block)
        self.unremoved_bytes += len(block)

    patch.setattr(Journal, "_write", write)


def _directories_without_sync(patch: pytest.MonkeyPatch, parts: Callable[[Path], bool]) -> None:
    sync_directory = SimulatedDisk.sync_directory

    def sync(self: SimulatedDisk, directory: Path) -> None:
        if not parts(directory):
            sync_directory(self, directory)

    patch.setattr(SimulatedDisk, "sync_directory", sync)


def name_of_a_journal_file_not_synced(patch: pytest.MonkeyPatch) -> None:
    _directories_without_sync(patch, lambda path: path.parent.name == "journal")


def name_of_a_writer_not_synced(patch: pytest.MonkeyPatch) -> None:
    _directories_without_sync(patch, lambda path: path.name == "journal")


def names_of_fragment_files_not_synced(patch: pytest.MonkeyPatch) -> None:
    _directories_without_sync(patch, lambda path: path.name == "ledgers")


def name_of_the_bookie_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BookieDirectory, "_sync_way_here", lambda self: None)


def journals_removed_before_fragment_files_are_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedDisk, "sync_files", _unsynced)


def takeover_that_removes_the_journal_before_syncing(patch: pytest.MonkeyPatch) -> None:
    run = Takeover.run

    def hasty(self: Takeover) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(SimulatedDisk, "sync_files", _unsynced)
            run(self)

    patch.setattr(Takeover, "run", hasty)


def checkpoint_that_removes_one_journal_too_many(patch: pytest.MonkeyPatch) -> None:
    seal = Journal.seal
    patch.setattr(Journal, "seal", lambda self: seal(self) + 1)


def fences_not_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fences, "add", lambda self, ledger_ids: None)


def fences_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fences, "poll", lambda self: set())


def appending_behind_damage(patch: pytest.MonkeyPatch) -> None:
    cut_before = FragmentFile.cut_before

    def cut(self: FragmentFile, entry_id: int) -> FragmentCut:
        self.catch_up()
        self._damaged.clear()
        return cut_before(self, entry_id)

    patch.setattr(FragmentFile, "cut_before", cut)


FIRST_SEEDS = {
    ("ledgers", appending_behind_damage): 8,
    ("cursor", journal_without_sync): 7,
    ("cursor", journals_removed_before_fragment_files_are_synced): 8,
}
"""Where another one found it, the search begins with that."""

LEDGER_MUTATIONS: list[Mutation] = [
    journal_without_sync,
    name_of_a_journal_file_not_synced,
    name_of_a_writer_not_synced,
    names_of_fragment_files_not_synced,
    name_of_the_bookie_not_synced,
    journals_removed_before_fragment_files_are_synced,
    takeover_that_removes_the_journal_before_syncing,
    checkpoint_that_removes_one_journal_too_many,
    fences_not_written,
    fences_not_looked_at,
    appending_behind_damage,
]


def found(
    make_run: Callable[[int], LedgerRun | CursorRun], first: int | None
) -> Iterator[InconsistentError]:
    """Errors found by a bounded number of runs."""
    for seed in sorted(SEEDS, key=lambda seed: seed != first):
        explorer = Explorer(make_run(seed), seed, states_per_moment=16, share=0.3, crash_again=0.0)
        try:
            explorer.explore(steps=40)
        except InconsistentError as error:
            yield error
        except AssertionError as error:
            # Noticed by the run itself, while it went on.
            yield InconsistentError(str(error))


@pytest.mark.slow
@pytest.mark.parametrize("mutation", LEDGER_MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_mistake_in_the_ledgers_is_found(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    first = FIRST_SEEDS.get(("ledgers", mutation))
    assert next(found(lambda seed: LedgerRun(seed, 1), first), None) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation",
    [journal_without_sync, journals_removed_before_fragment_files_are_synced],
    ids=lambda mutation: mutation.__name__,
)
def test_a_mistake_is_found_by_the_cursor_too(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    first = FIRST_SEEDS.get(("cursor", mutation))
    assert next(found(lambda seed: CursorRun(seed, 1), first), None) is not None
