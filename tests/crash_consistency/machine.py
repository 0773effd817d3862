"""A simulated machine under recording: files, metadata tree, and the clients of its processes.

Metadata is durable at once (it lives in ZooKeeper, elsewhere); what is being recorded is a moment
after each operation on the disk and after each change of the tree.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ackgate.persistence import BookieLedgerClient, MemoryMetadataStore, WatchKind, open_bookies
from ackgate.persistence.bookies.settings import BookieSettings
from ackgate.persistence.metadata.memory import MemoryTree
from tests.support.inline_lane import InlineLane
from tests.support.simulation.disk import Operation, SimulatedFiles

SETTINGS = BookieSettings(
    checkpoint_idle_seconds=None,
    open_files_max=8,
    write_cache_bytes_max=4096,
    journal_bytes_max=4096,
    block_bytes=250,
)
"""As small as can be: journals roll, caches fill and descriptors run out within a few dozen adds."""

CREATED_MS = 1_700_000_000_000


class RecordedTree(MemoryTree):
    """Tells of its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.on_change: Callable[[str], None] | None = None
        self.changes = 0

    def notify(self, kind: WatchKind, path: str) -> None:
        super().notify(kind, path)
        self.changes += 1
        if self.on_change is not None:
            self.on_change(path)

    def copy(self) -> RecordedTree:
        """What a crash of everybody else leaves: all but the ephemeral nodes."""
        twin = RecordedTree()
        twin.changes = self.changes
        twin._nodes = {
            path: replace(node, children=set(node.children), owner=None)
            for path, node in self._nodes.items()
            if node.owner is None
        }
        return twin


class Moment(NamedTuple):
    """When a crash might come."""

    operation: Operation
    files: SimulatedFiles
    tree: RecordedTree
    facts: object
    """What had been promised by then."""


class Machine:
    """Files and tree, and what is opened on them."""

    def __init__(
        self,
        bookie_count: int,
        files: SimulatedFiles | None = None,
        tree: RecordedTree | None = None,
        *,
        seed: str,
    ) -> None:
        self.bookie_count = bookie_count
        self.files = files if files is not None else SimulatedFiles()
        self.tree = tree if tree is not None else RecordedTree()
        self.rng = random.Random(seed)

    async def open(self, process: str) -> BookieLedgerClient:
        """A process opens the bookies."""
        return BookieLedgerClient(
            await open_bookies(
                [Path(f"/data/bookies/{i}") for i in range(self.bookie_count)],
                settings=SETTINGS,
                disk=self.files.disk(process),
                lane=InlineLane,
                random_bytes=self.rng.randbytes,
            ),
            self.metadata(),
            on_bad_copy=lambda bad: None,
            clock_ms=lambda: CREATED_MS,
            random_bytes=self.rng.randbytes,
        )

    def metadata(self) -> MemoryMetadataStore:
        """A session."""
        return MemoryMetadataStore(self.tree, clock_ms=lambda: CREATED_MS)

    def record(
        self,
        moments: list[Moment],
        facts: Callable[[], object],
        one_of_them: random.Random | None = None,
    ) -> None:
        """From now on note every moment at which a crash could come, or only one, any of them."""
        count = 0

        def note(operation: Operation) -> None:
            nonlocal count
            count += 1
            if one_of_them is not None:
                if one_of_them.randrange(count):
                    return
                moments.clear()
            moments.append(Moment(operation, self.files.copy(), self.tree.copy(), facts()))

        self.files.on_operation = note
        self.tree.on_change = lambda path: note(Operation("", "metadata", path))

    def stop_recording(self) -> None:
        """Note nothing any more."""
        self.files.on_operation = None
        self.tree.on_change = None
