"""The index of delayed messages rebuilt by the pipeline, and by a broker that reads every message.

    python -m bench.bench_pipeline_rebuild [--messages 1000000 10000000] [--cores 2] [--seed 7]

One generated topic with two subscriptions and nothing but delayed messages. The job rebuilds the index
of the first one; then a real broker starts on that directory, loads it, and a consumer of the second
subscription makes the broker build the other one from the messages. Told for each size:

    job_s          from the call to the index in place; Spark's session is there already
    broker_s       from the consumer's coming until all entries are known and their buckets stored
    ratio          broker_s / job_s
    loaded_s       what the broker takes to know the first subscription's index: from listening on
    job_cpu_s, broker_cpu_s     processor time of all their processes

`session_s` is what Spark takes to start. A ratio of the number of cores less a fifth is asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pulsar

from ackgate.pipeline.jobs.generate.plan import GeneratePlan
from ackgate.pipeline.jobs.generate.writing import write_data
from ackgate.pipeline.jobs.job import DataAddress, JobRun
from ackgate.testing import BrokerProcess
from tests.pipeline.small_plans import quick_spark

if TYPE_CHECKING:
    from collections.abc import Mapping

TOPIC: Final = "persistent://public/default/generated-0"
REBUILT: Final = "subscription-0"
READ: Final = "subscription-1"
HOUR_MS: Final = 3_600_000
SETTINGS: Final = {
    "delayedDeliveryTrackerFactoryClassName": (
        "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
    ),
}
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--no-broker", action="store_true", help="only the job")
    arguments = parser.parse_args()
    figures = measure(
        arguments.messages,
        cores=arguments.cores,
        seed=arguments.seed,
        with_broker=not arguments.no_broker,
    )
    print(json.dumps(figures, indent=2))


def run(*, smoke: bool) -> dict[str, Any]:
    """Figures for a million messages (20,000 in a smoke run)."""
    if smoke:
        return measure([20_000], cores=2, seed=7, settings=quick_spark())
    return measure([1_000_000], cores=2, seed=7)


def measure(
    sizes: list[int],
    *,
    cores: int,
    seed: int,
    with_broker: bool = True,
    settings: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """One session, with these settings of Spark, one size after the other."""
    from ackgate.pipeline import register
    from ackgate.pipeline.running.session import local_session

    with tempfile.TemporaryDirectory(
        prefix="ackgate-bench-", ignore_cleanup_errors=True
    ) as scratch:
        began = time.perf_counter()
        spark = local_session(
            f"local[{cores}]",
            app_name="bench",
            scratch=Path(scratch),
            driver_memory="1g",
            settings=settings,
        )
        register(spark)
        spark.range(1).count()
        session_s = time.perf_counter() - began
        figures = {}
        for size in sizes:
            figures[f"{size:,} messages"] = found = _measure(spark, size, seed, with_broker)
            print(f"{size:,} messages: {found}", file=sys.stderr, flush=True)
        spark.stop()
    return {"cores": cores, "seed": seed, "session_s": round(session_s, 2), **figures}


def _measure(spark: Any, size: int, seed: int, with_broker: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as directory:
        data = Path(directory) / "data"
        data.mkdir()
        start_ms = time.time_ns() // 1_000_000 + HOUR_MS
        plan = GeneratePlan(
            size, seed, subscriptions=2, delayed_share=1.0, payload_bytes=20, start_ms=start_ms
        )
        asyncio.run(write_data(data, plan, lambda _: None))
        figures = _job(spark, data, Path(directory))
        assert figures["delayed"] == size
        if with_broker:
            figures |= _broker(data, size)
            figures["ratio"] = round(figures["broker_s"] / figures["job_s"], 2)
    return figures


def _job(spark: Any, data: Path, directory: Path) -> dict[str, Any]:
    from ackgate.pipeline.jobs.rebuild_delayed_index import JOB

    config, output = directory / "broker.conf", directory / "out"
    config.write_text("".join(f"{key}={value}\n" for key, value in SETTINGS.items()))
    output.mkdir()
    options = {"path": str(data), "config": str(config), "subscription": REBUILT}
    arguments = argparse.Namespace(beside=False, now_ms=None, on_corrupt="fail")
    before = _cpu_s(os.getpid())
    began = time.perf_counter()
    summary = JOB.run(
        JobRun(spark, DataAddress(options), output, arguments, "parquet", lambda _: None)
    )
    seconds = time.perf_counter() - began
    told = summary.figures
    return {
        "job_s": round(seconds, 2),
        "job_cpu_s": round(_cpu_s(os.getpid()) - before, 2),
        "job_entries_per_s": round(int(told["entries_read"] or 0) / seconds),
        **{name: told[name] for name in ("delayed", "indexed", "buckets", "bytes")},
    }


def _broker(data: Path, size: int) -> dict[str, Any]:
    with BrokerProcess(data, settings=SETTINGS) as broker:
        assert broker.pid is not None
        began = time.perf_counter()
        client = pulsar.Client(
            broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        client.subscribe(TOPIC, REBUILT, consumer_type=pulsar.ConsumerType.Shared).close()
        _wait(lambda: _held(broker, REBUILT)["buckets"]["bucketsUnread"] == 0)
        loaded_s = time.perf_counter() - began
        before = _cpu_s(broker.pid)
        began = time.perf_counter()
        client.subscribe(TOPIC, READ, consumer_type=pulsar.ConsumerType.Shared)
        _wait(lambda: _is_built(_held(broker, READ), size))
        broker_s = time.perf_counter() - began
        figures = {
            "broker_s": round(broker_s, 2),
            "broker_cpu_s": round(_cpu_s(broker.pid) - before, 2),
            "broker_entries_per_s": round(size / broker_s),
            "loaded_s": round(loaded_s, 2),
            "loaded_entries": _held(broker, REBUILT)["delayedEntries"],
        }
        client.close()
    return figures


def _is_built(held: dict[str, Any], size: int) -> bool:
    buckets = held["buckets"]
    return held["delayedEntries"] == size and buckets is not None and not buckets["bucketsStoring"]


def _held(broker: BrokerProcess, name: str) -> dict[str, Any]:
    path = TOPIC.replace("://", "/")
    with urllib.request.urlopen(f"{broker.admin_url}/admin/v2/{path}/delayed") as response:
        held: dict[str, Any] = json.loads(response.read())["subscriptions"][name]
    return held


def _wait(condition: Any) -> None:
    deadline = time.perf_counter() + 3_600
    while not condition():
        assert time.perf_counter() < deadline, "not in time"
        time.sleep(0.05)


def _cpu_s(root: int) -> float:
    """Processor time of a process, of those below it, and of their children that have ended."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            pid = int(entry.name)
            children.setdefault(int(fields[1]), []).append(pid)
            ticks[pid] = sum(map(int, fields[11:15]))
    waiting, total = [root], 0
    while waiting:
        pid = waiting.pop()
        total += ticks.get(pid, 0)
        waiting += children.get(pid, [])
    return total / TICKS_PER_SECOND


if __name__ == "__main__":
    main()
