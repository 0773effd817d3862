"""``python -m tests.corruption --cases N --seed S``: damage files, and look what becomes of it.

Exit code 0: no case was silent, and none gave wrong data. 1: one did; it is printed, with how to repeat it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.corruption.campaign import Campaign


def main() -> int:
    """Run, print, count."""
    parser = argparse.ArgumentParser(prog="python -m tests.corruption", description=__doc__)
    parser.add_argument("--cases", type=int, default=600)
    parser.add_argument("--seed", type=int, default=None, help="default: by the clock")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every case")
    arguments = parser.parse_args()
    seed = time.time_ns() // 1_000_000 % 1_000_000 if arguments.seed is None else arguments.seed
    return asyncio.run(_run(arguments.cases, seed, is_verbose=arguments.verbose))


async def _run(cases: int, seed: int, *, is_verbose: bool) -> int:
    print(f"seed {seed}, {cases} cases", flush=True)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ackgate-corruption-") as directory:
        campaign = Campaign(Path(directory), seed)
        async for case in campaign.run(cases):
            failed += case.end == "failed"
            if is_verbose or case.end == "failed":
                print(case, flush=True)
    for (kind, end), count in sorted(campaign.ends.items()):
        print(f"{kind:16} {end:9} {count:5}")
    print(f"{failed} of {cases} cases failed; --seed {seed} repeats them")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
