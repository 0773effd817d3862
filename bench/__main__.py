"""Every measurement of the project: ``python -m bench [--smoke] [--only NAME] [--json FILE]``.

A smoke run does each of them at toy size, so that CI notices one that has rotted; its figures mean
nothing. Peers run side by side in the same run where they can run at all.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any, Final

BENCHES: Final = (
    "bench_cursor",
    "bench_dispatcher",
    "bench_persistence",
    "bench_ledgers",
    "bench_acks",
    "bench_topics",
    "bench_overview",
    "bench_broker",
    "bench_security",
    "bench_workers",
    "bench_tail",
    "bench_flood",
    "bench_metadata",
    "bench_failover",
    "bench_bookkeeper",
    "bench_on_bookkeeper",
    "bench_stop",
    "bench_buckets",
    "bench_nacks",
    "bench_timers",
    "bench_purgatory",
    "bench_delayed",
    "bench_delayed_burst",
    "bench_journal",
    "bench_pipeline_read",
    "bench_pipeline_rebuild",
    "bench_pipeline_scale",
    "bench_pipeline_what_if",
)


def main() -> int:
    """Run what was asked for; print a table; write JSON if asked."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="toy size: does it still run?")
    parser.add_argument("--only", choices=BENCHES, action="append", help="may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    for name in arguments.only or BENCHES:
        began = time.perf_counter()
        print(f"== {name}", flush=True)
        results[name] = importlib.import_module(f"bench.{name}").run(smoke=arguments.smoke)
        show(results[name], "  ")
        print(f"  ({time.perf_counter() - began:.1f} s)", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


def show(figures: Any, indent: str) -> None:
    """Print nested figures, one a line."""
    for key, value in figures.items():
        if isinstance(value, dict):
            print(f"{indent}{key}")
            show(value, indent + "  ")
        else:
            print(f"{indent}{key:<44} {value}")


def machine() -> dict[str, str]:
    """What the figures were taken on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown",
    )
    cores = len(set(Path("/proc/cpuinfo").read_text().split("processor\t:"))) - 1
    return {
        "cpu": model,
        "cores": str(cores),
        "python": sys.version.split()[0],
        "os": platform.platform(),
    }


if __name__ == "__main__":
    raise SystemExit(main())
