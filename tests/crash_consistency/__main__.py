"""``python -m tests.crash_consistency --runs N --seed S``: crash ledgers and cursors everywhere.

Each run is seeded; ledgers and cursors take turns. They have one bookie, three, or four of which one
damages and loses what it has, by the seed.
Every state that a crash may leave (see `states`) is rebuilt and recovered from, or of many a share.
Exit code 1: a recovery broke a promise; seed, moment and files are printed, and the same seed
repeats it.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable

from tests.crash_consistency.cursor_run import CursorRun
from tests.crash_consistency.explorer import Explorer, InconsistentError, Run
from tests.crash_consistency.ledger_run import LedgerRun

KINDS: dict[str, Callable[[int], Run]] = {
    "ledgers": lambda seed: LedgerRun(seed, (1, 3, 4)[seed % 3]),
    "cursors": lambda seed: CursorRun(seed, (1, 3)[seed % 2]),
}


def main() -> int:
    """Run, print, tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash_consistency", description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the others follow")
    parser.add_argument("--steps", type=int, default=60, help="of each run")
    parser.add_argument("--states", type=int, default=32, help="most that one moment leaves")
    parser.add_argument("--share", type=float, default=1.0, help="of the states, to recover from")
    parser.add_argument("--crash-again", type=float, default=0.1, help="also during the recovery")
    parser.add_argument("--only", choices=KINDS)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    total: Counter[str] = Counter()
    began = time.monotonic()
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        for name, kind in KINDS.items():
            if arguments.only in (None, name):
                explorer = Explorer(
                    kind(seed),
                    seed,
                    states_per_moment=arguments.states,
                    share=arguments.share,
                    crash_again=arguments.crash_again,
                )
                try:
                    explorer.explore(arguments.steps)
                except InconsistentError as error:
                    print(f"{name}: {error}", file=sys.stderr)
                    return 1
                total += explorer.seen
                print(f"seed {seed}, {name}: {_told(explorer.seen)}", flush=True)
    seconds = time.monotonic() - began
    rate = (total["verified"] + total["crashed again"]) / seconds
    print(f"all: {_told(total)}; {seconds:.0f} s, {rate:.0f} states a second")
    return 0


def _told(seen: Counter[str]) -> str:
    return (
        f"{seen['moments']} moments, {seen['verified']} states recovered from "
        f"({seen['kill']} kills, {seen['power loss']} power losses), "
        f"{seen['crashed again']} crashed again"
    )


if __name__ == "__main__":
    sys.exit(main())
