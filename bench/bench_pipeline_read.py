"""Reading the table `messages` through Spark: entries a second a core, and what a second core brings.

Peer: fastavro alone, in one process, over the same files; it decodes the ledgers' entries and verifies
no digest, reads no message's metadata and makes no columns. All columns but the payload are read.

Spark's own process and its Python workers share the cores: ``local[1]`` is held to one core, so that it
does not use a second one on the sly.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import fastavro

from ackgate.pipeline import register
from ackgate.pipeline.jobs.generate.plan import GeneratePlan
from ackgate.pipeline.jobs.generate.writing import write_data
from ackgate.pipeline.running.session import local_session
from tests.pipeline.small_plans import quick_spark

SEED: Final = 7
ENTRIES: Final = 4_000_000
SMOKE_ENTRIES: Final = 20_000
RUNS: Final = 3
"""The best counts: whoever else uses the machine only makes it slower."""


def run(*, smoke: bool) -> dict[str, Any]:
    """Entries a second on one core and on two, and fastavro's."""
    count = SMOKE_ENTRIES if smoke else ENTRIES
    runs = 1 if smoke else RUNS
    with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as name:
        scratch = Path(name)
        data = scratch / "data"
        data.mkdir()
        asyncio.run(write_data(data, GeneratePlan(messages=count, seed=SEED), lambda _: None))
        alone = min(_seconds_alone(data, count) for _ in range(runs))
        two = _in_own_process(2, data, count, runs)
        # A smoke run starts Spark once.
        one = two if smoke else _in_own_process(1, data, count, runs)
    return {
        "entries": count,
        "fastavro_alone_entries_per_s": round(count / alone),
        "spark_1_core_entries_per_s": round(count / one),
        "spark_2_cores_entries_per_s": round(count / two),
        "two_cores_times_one": round(one / two, 2),
    }


def _seconds_alone(data: Path, count: int) -> float:
    began = time.perf_counter()
    read = 0
    for path in sorted(data.glob("bookies/*/ledgers/*.avro")):
        with path.open("rb") as file:
            read += sum(1 for _ in fastavro.reader(file))
    assert read >= count
    return time.perf_counter() - began


def _in_own_process(cores: int, data: Path, count: int, runs: int) -> float:
    command = [sys.executable, "-m", __spec__.name, *map(str, (cores, data, count, runs))]
    told = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return float(told.stdout.split()[-1])


def _seconds_on(cores: int, data: str, count: int, runs: int) -> float:
    """Of the fastest run, once Spark and its workers are warm."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as scratch:
        spark = local_session(
            f"local[{cores}]",
            app_name="bench",
            scratch=Path(scratch),
            driver_memory="1g",
            settings=quick_spark() if count == SMOKE_ENTRIES else None,
        )
        try:
            register(spark)
            frame = spark.read.format("ackgate").option("table", "messages").load(data)
            assert frame.count() == count
            return min(_read_all(frame) for _ in range(runs))
        finally:
            spark.stop()


def _read_all(frame: Any) -> float:
    """Every column of every row, kept nowhere."""
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


if __name__ == "__main__":
    if sys.argv[2:]:
        own_cores, own_data, own_count, own_runs = sys.argv[1:]
        print(_seconds_on(int(own_cores), own_data, int(own_count), int(own_runs)))
    else:
        print(json.dumps(run(smoke="--smoke" in sys.argv), indent=2))
