"""A Spark standalone cluster, whose workers get ackgate as the wheel that is built of this tree.

The workers find another Python than the driver, by the same name on another PATH: one with everything
that ackgate depends on, and without ackgate.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

import ackgate
from ackgate.pipeline import register
from ackgate.testing.child_guard import CHILDREN
from tests.pipeline.recorded import SETTINGS
from tests.pipeline.recorded_jobs import words_of
from tests.pipeline.small_plans import QUICK_JAVA, SMALL_PLANS, quick_java
from tests.support.spark_cluster import SparkCluster

pytestmark = pytest.mark.slow

PYTHON = "python-of-this-machine"
RESULTS = {
    "ack-stats": ("subscriptions", "history", "hole_map", "forecasts", "holes"),
    "audit": ("subscriptions", "consumers", "hours", "duplicates", "losses", "findings"),
    "what-if": ("results", "timeline", "differences"),
}
DELAYED = "persistent://public/default/delayed"
DRIVER = """
import contextlib, io, json, sys
from pathlib import Path

from ackgate.__main__ import main
from ackgate.pipeline.command import run_pipeline
from ackgate.pipeline.running.session import local_session


def tell(name, run, words):
    with (
        contextlib.redirect_stdout(io.StringIO()) as printed,
        contextlib.redirect_stderr(io.StringIO()) as told,
    ):
        code = run(words)
    done = {"name": name, "code": code, "printed": printed.getvalue(), "told": told.getvalue()}
    print(json.dumps(done), flush=True)


order = json.loads(sys.argv[1])
for name, words in order["commands"].items():
    tell(name, main, ["pipeline", *words])
session = local_session(
    order["master"], app_name="ackgate jobs", scratch=Path(order["scratch"]), driver_memory="1g",
    settings=order["settings"], executor_python=order["python"], py_files=[Path(order["wheel"])],
)
for name, words in order["jobs"].items():
    tell(name, lambda words: run_pipeline(words, spark=session), words)
session.stop()
"""
"""Commands with a session of their own each, then jobs that share one, as a notebook's do. All of it has
one Java process: most of a job's time is Spark's own start."""

NOW_MS = 1_000_000_000_000
"""Long before anything was sent: whatever is delayed is still to come."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    root, directory = Path(ackgate.__path__[0]).parent, tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=root, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    [built] = directory.glob("*.whl")
    return built


def program(directory: Path, python: Path | str) -> str:
    """A directory for PATH in which `PYTHON` is this interpreter."""
    directory.mkdir()
    (directory / PYTHON).write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
    (directory / PYTHON).chmod(0o755)
    return f"{directory}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """A cluster, and the driver's environment."""
    directory = tmp_path_factory.mktemp("cluster")
    venv.create(directory / "venv", with_pip=False, symlinks=True)
    [packages] = (directory / "venv").glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    of_workers = program(directory / "worker-bin", directory / "venv" / "bin" / "python")
    of_driver = {
        **os.environ,
        "PATH": program(directory / "driver-bin", sys.executable),
        "PYTHONPATH": str(Path(ackgate.__path__[0]).parent),
    }
    with SparkCluster(
        directory / "spark", workers=2, environment={"PATH": of_workers, "PYTHONPATH": ""}
    ) as cluster:
        yield cluster, of_driver


@dataclass(frozen=True, slots=True)
class Done:
    """What a command or a job on the cluster came to."""

    name: str
    code: int
    printed: str
    told: str


@dataclass
class Driver:
    """The process with all that is run on the cluster, at work while tests look at what it has done."""

    process: subprocess.Popen[str]
    stderr: Path
    """What it and Java write there, besides what is told."""
    output: Path
    """Of the jobs, by name."""
    indexed: Path
    """The directory whose delayed index is rebuilt."""
    ran: dict[str, Done] = field(default_factory=dict)

    def done(self, name: str) -> Done:
        """As soon as it is."""
        assert self.process.stdout is not None
        while name not in self.ran:
            line = self.process.stdout.readline()
            assert line, f"it has ended: {self.stderr.read_text()}"
            each = Done(**json.loads(line))
            self.ran[each.name] = each
        return self.ran[name]


def rows(directory: Path) -> list[str]:
    return sorted(map(str, parquet.read_table(directory).to_pylist()))


@pytest.fixture(scope="module")
def broker_config(tmp_path_factory):
    config = tmp_path_factory.mktemp("config") / "broker.conf"
    config.write_text("".join(f"{key}={_text(value)}\n" for key, value in SETTINGS.items()))
    return config


def rebuilding(data: Path, output: Path, config: Path) -> list[str]:
    words = ("rebuild-delayed-index", "--data-dir", data, "--output", output, "--config", config)
    return [*map(str, words), "--now-ms", str(NOW_MS), "--topic", DELAYED, "--json"]


@pytest.fixture(scope="module")
def driver(machines, wheel, recorded_run, broker_config, tmp_path_factory):
    cluster, environment = machines
    directory = tmp_path_factory.mktemp("there")
    output = directory / "out"
    data = shutil.copytree(recorded_run.killed_data_dir, directory / "data")
    (directory / "scratch").mkdir()
    settings = {
        "spark.cores.max": "2",
        "spark.executor.memory": "512m",
        "spark.task.maxFailures": "1",
        **SMALL_PLANS,
        "spark.driver.extraJavaOptions": quick_java(),
        "spark.executor.extraJavaOptions": QUICK_JAVA,
    }
    there = [
        *("--master", cluster.master_url, "--executor-python", PYTHON),
        *(word for pair in settings.items() for word in ("--conf", "=".join(pair))),
    ]
    without = ("ack-stats", "--data-dir", recorded_run.data_dir, "--output", output / "without")
    order: dict[str, Any] = {
        "commands": {
            "without the wheel": [*map(str, without), *there, "--conf", "spark.cores.max=1"],
            "rebuild-delayed-index": [
                *rebuilding(data, output / "rebuilt", broker_config),
                *there,
                *("--py-files", str(wheel)),
            ],
        },
        "master": cluster.master_url,
        "scratch": str(directory / "scratch"),
        "settings": settings,
        "python": PYTHON,
        "wheel": str(wheel),
        "jobs": {job: words_of(job, recorded_run, output / job) for job in RESULTS},
    }
    with (directory / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, json.dumps(order)],
            env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True,
        )  # fmt: skip
    CHILDREN.add(process.pid)
    with process:
        yield Driver(process, directory / "stderr", output, data)
        process.kill()  # unless it has ended, when all tests were run
    CHILDREN.remove(process.pid)


def cores_of(cluster: SparkCluster, application: str) -> int:
    """Of one that has ended, as soon as the master knows that."""
    deadline = time.monotonic() + 60
    while True:
        ended = {each["name"]: each["cores"] for each in cluster.state()["completedapps"]}
        if application in ended:
            return int(ended[application])
        assert time.monotonic() < deadline, f"{application} is not among {list(ended)}"
        time.sleep(0.1)


def test_workers_that_lack_the_package_are_told_in_a_line(driver):
    without = driver.done("without the wheel")

    assert without.code == 1
    assert without.told.splitlines()[-1] == (
        "ackgate: the cluster's workers lack the package 'ackgate': ship its wheel (--py-files), or "
        "install it in their Python, in the same version"
    )
    for told in (without.told, driver.stderr.read_text()):
        assert "\tat " not in told
        assert "Traceback" not in told
    assert without.printed == ""
    assert not [name for name in os.listdir(driver.output) if "without" in name]


def test_a_cluster_puts_the_same_delayed_index_in_place(
    driver, recorded_run, broker_config, pipeline, spark, tmp_path
):
    here = shutil.copytree(recorded_run.killed_data_dir, tmp_path / "here")
    assert pipeline(*rebuilding(here, tmp_path / "out", broker_config)) == 0
    rebuilt = driver.done("rebuild-delayed-index")
    assert rebuilt.code == 0, rebuilt.told

    register(spark)
    indexes = []
    for data in (driver.indexed, here):
        table = spark.read.format("ackgate").options(path=str(data), table="delayed_index").load()
        indexes.append(sorted(map(str, table.drop("snapshot_id").collect())))
    assert indexes[0] == indexes[1]
    assert len(indexes[0]) >= 20


@pytest.mark.parametrize("job", RESULTS)
def test_a_cluster_gives_the_same_results(driver, job_here, job):
    here, there = job_here(job), driver.done(job)

    assert (here.code, there.code) == (0, 0), there.told
    assert json.loads(there.printed) == json.loads(here.printed)
    for name in RESULTS[job]:
        assert rows(driver.output / job / name) == rows(here.output / name), name


def test_both_workers_had_a_part_in_it(machines, driver):
    for job in RESULTS:
        driver.done(job)
    assert driver.process.wait(120) == 0
    assert cores_of(machines[0], "ackgate jobs") == 2


def test_nothing_of_the_cluster_is_left(machines):
    cluster, _ = machines
    pids = cluster.pids
    assert set(pids) == {"master", "worker-0", "worker-1"}

    cluster.stop()

    assert cluster.pids == {}
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
    executors = [
        path
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if str(cluster.directory).encode() in contents(path)
    ]
    assert executors == []


def _text(value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def contents(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""
