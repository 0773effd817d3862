"""Jobs of the pipeline as data grows: time, and the memory of the driver and of the tasks.

``python -m bench --only bench_pipeline_scale`` (or ``python -m bench.bench_pipeline_scale --messages
1000000 10000000 50000000 --data DIR``, where DIR keeps what is generated for the next time)

Every figure is of a process of its own, with Spark's start in it, as a person would wait for it. The
figure `start` is the same on next to no data; what grows is the rest. Memory is the most that was
resident at a time, looked at twice a second: of the command (Python), of Spark (one Java process
with driver and tasks) and of all Python workers together, interpreters and libraries included. CPU
seconds are of all of them; unlike the others they say the same on a machine that is busy.

scan       the table `messages` without payload, counted and added up by topic
ack-stats  history, holes and forecast of every subscription, from the cursors' ledgers
audit      the journal of a real broker, through which a client sent, received and acked that many
size       N messages, 1,000 holes on each of two subscriptions for each 100,000 of them
cores      the largest N on one core and on two
skew       the largest N again, one topic with 90 % of them
ledgers    1,000,000 messages in 100,000 ledgers
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.bench_broker import load
from bench.brokers import Ackgate, running
from tests.pipeline.small_plans import quick_spark

if TYPE_CHECKING:
    from collections.abc import Mapping

MESSAGES = (1_000_000, 10_000_000)
RECORDED = (100_000, 1_000_000)
LEDGERS = 100_000
ENTRIES_OF_SMALL_LEDGER = 10
MESSAGES_PER_TOPIC = 100_000
LEDGERS_PER_TOPIC = 5_000
JOBS = ("scan", "ack-stats")
POLL_SECONDS = 0.5
MB = 1024 * 1024

SCAN = """
import json, sys, tempfile
from pathlib import Path
from pyspark.sql import functions as f
from ackgate.pipeline import register
from ackgate.pipeline.running.session import local_session
master, data, settings = sys.argv[1:]
with tempfile.TemporaryDirectory() as scratch:
    spark = local_session(
        master, app_name="scan", scratch=Path(scratch), driver_memory="1g", settings=json.loads(settings)
    )
    register(spark)
    messages = spark.read.format("ackgate").options(path=data, table="messages").load()
    totals = messages.groupBy("topic").agg(
        f.count("*").alias("entries"),
        f.sum("entry_bytes").alias("bytes"),
        f.max("publish_time_ms").alias("newest"),
        f.approx_count_distinct("key").alias("keys"),
    )
    [row] = totals.agg(f.count("*"), f.sum("entries")).collect()
    print(json.dumps(list(row)))
    spark.stop()
"""


def run(
    *, smoke: bool = False, messages: tuple[int, ...] = MESSAGES, data: Path | None = None
) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory(prefix="ackgate-scale-") as scratch:
        made = _Data(data or Path(scratch) / "data")
        if smoke:
            small = made.small_ledgers(20)
            start = measured("scan", small, "local[2]", settings=quick_spark())
            return {"scan": {"start": start}}
        figures: dict[str, Any] = {}
        for job in JOBS:
            start = measured(job, made.of(1_000), "local[2]")
            figures[job] = of_job = {"start": start}
            for count in messages:
                of_job[f"{count:,} messages"] = measured(job, made.of(count), "local[2]", start)
            of_job["on one core"] = measured(job, made.of(messages[-1]), "local[1]", start)
            skewed = made.of(messages[-1], "--skew", "0.9")
            of_job["skewed"] = measured(job, skewed, "local[2]", start)
            small = made.small_ledgers(LEDGERS)
            of_job[f"{LEDGERS:,} ledgers"] = measured(job, small, "local[2]", start)
        start = measured("audit", made.recorded(1_000), "local[2]")
        figures["audit"] = of_job = {"start": start}
        for count in RECORDED:
            of_job[f"{count:,} messages"] = measured(
                "audit", made.recorded(count), "local[2]", start
            )
        return figures | {"generated, seconds": made.seconds}


class _Data:
    """Data directories, generated when they are not there."""

    def __init__(self, root: Path) -> None:
        self.seconds: dict[str, float] = {}
        """That making each took, of those that were not there."""
        self._root = root

    def of(self, messages: int, *words: str) -> Path:
        """Topics of 100,000 messages."""
        topics = max(1, messages // MESSAGES_PER_TOPIC)
        return self._made(messages, "--topics", str(topics), "--holes", "1000", *words)

    def small_ledgers(self, ledgers: int) -> Path:
        """As many as a topic's node holds, on each topic."""
        topics = max(1, ledgers // LEDGERS_PER_TOPIC)
        entries = ENTRIES_OF_SMALL_LEDGER
        words = ("--topics", str(topics), "--ledger-entries", str(entries))
        return self._made(ledgers * entries, *words)

    def recorded(self, messages: int) -> Path:
        """Of a broker with the delivery journal, and a client that acks one by one."""
        directory = self._root / f"recorded-{messages}"
        if not directory.exists():
            broker = Ackgate(self._root / "broker", {"deliveryJournalEnabled": "true"})
            with running(broker):
                url = broker.service_url
                load("publish", url=url, topic="t", count=messages, batched=False)
                load("consume", url=url, topic="t", count=messages)
                broker.process.terminate()  # and not killed: the journal is whole then
                broker.process.wait(timeout=60)
                (broker.work / "data").rename(directory)
        return directory

    def _made(self, messages: int, *words: str) -> Path:
        name = "-".join([str(messages), *(word.lstrip("-") for word in words)])
        directory = self._root / name
        if not directory.exists():
            self._root.mkdir(parents=True, exist_ok=True)
            begun = time.perf_counter()
            subprocess.run(
                [
                    *(sys.executable, "-m", "ackgate", "pipeline", "generate"),
                    *("--data-dir", str(directory), "--messages", str(messages), "--seed", "7"),
                    *("--subscriptions", "2", "--acked-share", "0.8", *words),
                ],
                check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            self.seconds[name] = round(time.perf_counter() - begun, 1)
        return directory


def measured(
    job: str,
    data: Path,
    master: str,
    start: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """One run of a job on this data; `start`: the figures of one on next to nothing. `settings`: Spark's."""
    with tempfile.TemporaryDirectory(prefix="ackgate-scale-") as scratch:
        output = Path(scratch) / "output"
        if job == "scan":
            command = [sys.executable, "-c", SCAN, master, str(data), json.dumps(settings or {})]
        else:
            command = [
                *(sys.executable, "-m", "ackgate", "pipeline", job, "--json"),
                *("--data-dir", str(data), "--output", str(output), "--master", master),
                *(word for pair in (settings or {}).items() for word in ("--conf", "=".join(pair))),
            ]
        begun = time.perf_counter()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            peaks, cpu_seconds, seconds = _watched(process, begun)
            told = process.communicate()[0]
        if process.returncode != 0:
            raise RuntimeError(f"{job} on {data}: exit code {process.returncode}")
    figures: dict[str, Any] = {"seconds": round(seconds, 1), "cpu_seconds": round(cpu_seconds, 1)}
    if start is not None:
        for name in ("seconds", "cpu_seconds"):
            figures[f"{name}_above_start"] = round(figures[name] - start[name], 1)
    if job == "scan":
        figures["topics"], figures["entries"] = json.loads(told)
    else:
        told_of = "deliveries" if job == "audit" else "records"
        figures[told_of] = json.loads(told)["figures"][told_of]
    return figures | {f"{name}_mb": round(size / MB) for name, size in peaks.items()}


def _watched(process: subprocess.Popen[str], begun: float) -> tuple[dict[str, int], float, float]:
    """Most resident bytes of the command, of Java and of the Python workers; CPU and real seconds."""
    peaks = {"command": 0, "java": 0, "python_workers": 0}
    cpu_ticks: dict[int, int] = {}
    while process.poll() is None:
        now = dict.fromkeys(peaks, 0)
        for pid, name, ticks in _family(process.pid):
            cpu_ticks[pid] = ticks
            kind = "command" if pid == process.pid else name
            now[kind if kind in now else "python_workers"] += _resident(pid)
        peaks = {kind: max(size, now[kind]) for kind, size in peaks.items()}
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
    seconds = time.perf_counter() - begun
    return peaks, sum(cpu_ticks.values()) / os.sysconf("SC_CLK_TCK"), seconds


def _family(root: int) -> list[tuple[int, str, int]]:
    """A process and all below it: id, name and CPU ticks so far."""
    seen: dict[int, tuple[int, str, int]] = {}
    parents: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                head, _, rest = (path / "stat").read_text().rpartition(")")
            except OSError:
                continue  # it has ended
            pid, words = int(path.name), rest.split()
            parents[pid] = int(words[1])
            seen[pid] = (pid, head.partition("(")[2], int(words[11]) + int(words[12]))
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return [seen[pid] for pid in found if pid in seen]


def _resident(pid: int) -> int:
    """What it has in memory; of what is shared with its siblings, since they were forked, its part."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def main() -> None:
    """As a program of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, nargs="+", default=list(MESSAGES), metavar="N")
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep what is generated here")
    arguments = parser.parse_args()
    figures = run(messages=tuple(arguments.messages), data=arguments.data)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
