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
import venv
from pathlib import Path

import pytest
from pyarrow import parquet

import ackgate
from ackgate.pipeline import register
from tests.pipeline.recorded import SETTINGS
from tests.pipeline.small_plans import QUICK_JAVA, SMALL_PLANS, small_plans
from tests.support.spark_cluster import SparkCluster

pytestmark = pytest.mark.slow

PYTHON = "python-of-this-machine"
RESULTS = {
    ("ack-stats", "--limit", "40"): ("subscriptions", "history", "hole_map", "forecasts", "holes"),
    ("audit",): ("subscriptions", "consumers", "hours", "duplicates", "losses", "findings"),
    ("what-if", "--set", "managedLedgerMaxUnackedRangesToPersist=5,1000"): (
        "results",
        "timeline",
        "differences",
    ),
}
SETTINGS_OF_SPARK = (
    *("spark.executor.memory=512m", "spark.task.maxFailures=1"),
    *(f"{key}={value}" for key, value in SMALL_PLANS.items()),
    *(f"spark.{who}.extraJavaOptions={QUICK_JAVA}" for who in ("driver", "executor")),
)
"""Compiling plans, and machine code of them, takes most of the time on next to no data."""
DELAYED = "persistent://public/default/delayed"
ONE_APPLICATION = """
import contextlib, io, json, sys
from pathlib import Path

from ackgate.pipeline.command import run_pipeline
from ackgate.pipeline.running.session import local_session

order = json.load(sys.stdin)
session = local_session(
    order["master"], app_name="ackgate jobs", scratch=Path(order["scratch"]), driver_memory="1g",
    settings=order["settings"], executor_python=order["python"], py_files=[Path(order["wheel"])],
)
done = {}
for job, words in order["jobs"].items():
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = run_pipeline(words, spark=session)
    done[job] = [code, printed.getvalue()]
session.stop()
print(json.dumps(done))
"""
"""A driver whose jobs share a session, as a notebook's do: most of a job's time is Spark's own start."""

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


def submitted(machines, *words):
    cluster, environment = machines
    return subprocess.run(
        [
            *(sys.executable, "-m", "ackgate", "pipeline", *map(str, words)),
            *("--master", cluster.master_url, "--executor-python", PYTHON),
            *(word for setting in SETTINGS_OF_SPARK for word in ("--conf", setting)),
        ],
        env=environment, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip


def rows(directory: Path) -> list[str]:
    return sorted(map(str, parquet.read_table(directory).to_pylist()))


@pytest.fixture(scope="module")
def done_there(machines, wheel, recorded_run, tmp_path_factory):
    """Exit code, what was printed, and the output's directory, by job."""
    cluster, environment = machines
    output = tmp_path_factory.mktemp("there")
    order = {
        "master": cluster.master_url,
        "scratch": str(tmp_path_factory.mktemp("scratch")),
        "settings": dict(setting.split("=", 1) for setting in SETTINGS_OF_SPARK),
        "python": PYTHON,
        "wheel": str(wheel),
        "jobs": {job[0]: words(job, recorded_run, output / job[0]) for job in RESULTS},
    }
    told = subprocess.run(
        [sys.executable, "-c", ONE_APPLICATION],
        env=environment, input=json.dumps(order), capture_output=True, text=True, check=False,
        timeout=280,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    return {
        job: (code, printed, output / job)
        for job, (code, printed) in json.loads(told.stdout.splitlines()[-1]).items()
    }


def words(job, recorded_run, output) -> list[str]:
    return [
        *job,
        "--data-dir",
        str(recorded_run.killed_data_dir),
        "--json",
        "--output",
        str(output),
    ]


@pytest.mark.parametrize("job", RESULTS, ids=lambda job: job[0])
def test_a_cluster_gives_the_same_results(
    machines, done_there, recorded_run, pipeline, spark, tmp_path, capsys, job
):
    code, printed, there = done_there[job[0]]

    assert code == 0
    with small_plans(spark):
        assert pipeline(*words(job, recorded_run, tmp_path / "here")) == 0
    assert json.loads(printed) == json.loads(capsys.readouterr().out)
    for name in RESULTS[job]:
        assert rows(there / name) == rows(tmp_path / "here" / name), name
    applications = machines[0].state()["completedapps"]
    assert applications
    assert all(each["cores"] == 2 for each in applications), "both workers had a part in it"


def test_a_cluster_puts_the_same_delayed_index_in_place(
    machines, wheel, recorded_run, pipeline, spark, tmp_path, capsys
):
    config = tmp_path / "broker.conf"
    config.write_text("".join(f"{key}={_text(value)}\n" for key, value in SETTINGS.items()))
    register(spark)
    words = ("--config", config, "--now-ms", NOW_MS, "--topic", DELAYED, "--json")
    indexes = {}
    for name, run in (
        ("there", lambda *words: submitted(machines, *words, "--py-files", wheel)),
        ("here", pipeline),
    ):
        data = shutil.copytree(recorded_run.killed_data_dir, tmp_path / name)
        done = run(
            *("rebuild-delayed-index", "--data-dir", data, "--output", tmp_path / f"out-{name}"),
            *words,
        )
        assert done == 0 or done.returncode == 0, done.stderr
        table = spark.read.format("ackgate").options(path=str(data), table="delayed_index").load()
        indexes[name] = sorted(map(str, table.drop("snapshot_id").collect()))

    assert indexes["there"] == indexes["here"]
    assert len(indexes["here"]) >= 20


def test_workers_that_lack_the_package_are_told_in_a_line(machines, recorded_run, tmp_path):
    told = submitted(
        machines, "ack-stats", "--data-dir", recorded_run.data_dir, "--output", tmp_path / "out"
    )

    assert told.returncode == 1
    assert told.stderr.splitlines()[-1] == (
        "ackgate: the cluster's workers lack the package 'ackgate': ship its wheel (--py-files), or "
        "install it in their Python, in the same version"
    )
    assert "\tat " not in told.stderr
    assert "Traceback" not in told.stderr
    assert told.stdout == ""
    assert os.listdir(tmp_path) == []


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
