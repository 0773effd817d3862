"""Files of a data directory are damaged, one at a time, and what becomes of it is judged.

Every kind of file, every kind of damage, directories that were stopped and that were killed, old files in
the place of new ones: all of it from one seed. Of each case only these ends are allowed:

    refused      the start fails, in one line that names a file or directory of ours
    repaired     it starts, everything confirmed is there, and it says what was wrong
    reported     it starts, something confirmed is missing, and that is said
    harmless     it starts, everything confirmed is there, and nothing is said, of a file whose content
                 nobody needs any more

Data that nobody has confirmed (other messages, acks that nobody made), and anything that is missing without
a word, is a failure.
"""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.corruption.damages import DAMAGES, swapper
from tests.corruption.left_storage import LEFT, Left, Verdict, verdict

KINDS = {
    "database": r"metadata\.sqlite",
    "SQLite's log": r"metadata\.sqlite-wal",
    "SQLite's index": r"metadata\.sqlite-shm",
    "commit log": r"metadata\.sqlite-log",
    "mirror": r"metadata\.sqlite-mirror",
    "lock": r"(.*/)?lock|metadata\.sqlite-lock",
    "identity": r"bookies/0/bookie\.json",
    "cluster": r"bookies/0/cluster\.json",
    "marks": r"bookies/0/marks",
    "deleted": r"bookies/0/deleted",
    "fences": r"bookies/0/fences",
    "origin": r"bookies/0/origins/.*\.json",
    "log of origins": r"bookies/0/origins/begun-.*",
    "journal": r"bookies/0/journal/.*\.avro",
    "ledger": r"bookies/0/ledgers/.*",
    "reserve": r"(.*/)?reserve",
}

UNNEEDED = frozenset({"SQLite's index", "lock", "deleted", "fences", "reserve"})
"""Nothing in them outlives the process that wrote them, or they are made anew without loss."""

OLDER = "an older one in its place"


@dataclass(frozen=True)
class Case:
    """One damage."""

    number: int
    left: str
    file: str
    kind: str
    damage: str
    what: str
    """The damage in words."""
    end: str
    """One of the ends above, or `failed`."""
    why: str = ""
    verdict: Verdict | None = None

    def __str__(self) -> str:
        return f"case {self.number}: {self.left}: {self.file}: {self.what}: {self.end} {self.why}"


class Campaign:
    """Cases, one after the other, as many as one likes."""

    def __init__(self, root: Path, seed: int) -> None:
        self._root = root
        self._seed = seed
        self._left: dict[str, Left] = {}
        self.ends: Counter[tuple[str, str]] = Counter()
        """Cases by kind of file and end."""

    async def run(self, cases: int) -> AsyncIterator[Case]:
        """Yield each case when it is judged."""
        for left in LEFT:
            root = self._root / left.replace(" ", "-")
            root.mkdir(parents=True)
            self._left[left] = await Left.make(root, left, random.Random(f"{self._seed}/{left}"))
        number = done = 0
        while done < cases:
            case = await self._case(number)
            number += 1
            if case is not None:
                done += 1
                self.ends[case.kind, case.end] += 1
                yield case

    async def _case(self, number: int) -> Case | None:
        """None: this damage would change nothing."""
        rng = random.Random(f"{self._seed}/{number}")
        name = LEFT[number % len(LEFT)]
        left = self._left[name]
        by_kind: dict[str, list[str]] = {}
        for file in left.files():
            by_kind.setdefault(kind_of(file), []).append(file)
        kind = rng.choice(sorted(by_kind))
        file = rng.choice(by_kind[kind])
        damage = rng.choice([*DAMAGES, "swap", OLDER])
        directory = self._root / "case"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(left.directory, directory)
        what = self._damager(left, directory, by_kind[kind], damage, file)(directory / file, rng)
        if what is None:
            return None
        found = await verdict(left, directory)
        end, why = judge(found, kind, damage, name, directory)
        return Case(number, name, file, kind, damage, what, end, why, found)

    @staticmethod
    def _damager(
        left: Left, directory: Path, alike: list[str], damage: str, file: str
    ) -> Callable[[Path, random.Random], str | None]:
        if damage == "swap":
            return swapper([directory / each for each in alike])
        if damage == OLDER:
            return lambda path, _: _put_older(left.older / file, path)
        return DAMAGES[damage]


def _put_older(older: Path, path: Path) -> str | None:
    if not older.exists() or older.read_bytes() == path.read_bytes():
        return None
    shutil.copyfile(older, path)
    return OLDER


def kind_of(file: str) -> str:
    """Raises `LookupError` for a file that no kind fits: then a kind is missing here."""
    for kind, pattern in KINDS.items():
        if re.fullmatch(pattern, file):
            return kind
    raise LookupError(f"no kind of file fits {file}")


def is_harmless(kind: str, damage: str, left: str) -> bool:
    """Whether nothing has to be said when nothing is missing."""
    if kind in UNNEEDED:
        return True
    if kind == "marks":
        # What they lack is in the ledgers' origins; that a record was there nobody can know.
        return damage in {"truncate", OLDER}
    # What the journal of a killed process holds is written into the ledger files again, whatever is there.
    return kind == "ledger" and left != "stopped"


def judge(found: Verdict, kind: str, damage: str, left: str, directory: Path) -> tuple[str, str]:
    """The end of a case, and why."""
    if found.wrong:
        return "failed", f"wrong data: {found.wrong[:3]} (told: {found.told[:3]})"
    if found.refusal is not None:
        is_clear = str(directory) in found.refusal and "\n" not in found.refusal
        return ("refused", found.refusal) if is_clear else ("failed", f"unclear: {found.refusal}")
    told = [line for line in found.told if line]
    if found.missing:
        missing = f"{len(found.missing)} missing, such as {found.missing[0]}"
        return ("reported", told[0]) if told else ("failed", f"silent: {missing}")
    if told:
        return "repaired", told[0]
    if is_harmless(kind, damage, left):
        return "harmless", ""
    return "failed", "nothing is missing, but nothing was said"
