"""`ackgate pipeline` with a real session of its own: what a person sees, and what is left."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ackgate.__main__ import main

PROGRAM = '''
import sys
from types import ModuleType

from ackgate.__main__ import main
from ackgate.pipeline import command
from ackgate.pipeline.running import arguments
from ackgate.pipeline.jobs.job import JobSummary
from tests.pipeline.small_plans import quick_java


class Job:
    """Doubles numbers in tasks; 7 is damaged when asked for."""

    name = "audit"
    help = "of this test"

    def add_arguments(self, parser):
        parser.add_argument("--damaged", action="store_true")
        parser.add_argument("--endless", action="store_true")

    def run(self, run):
        is_damaged = run.arguments.damaged

        def double(batches):
            import pyarrow as pa
            import pyarrow.compute as pc

            from ackgate.errors import CorruptRecordError

            for batch in batches:
                ids = batch.column(0)
                if is_damaged and 7 in ids.to_pylist():
                    raise CorruptRecordError("ledger 3: entry 7 is damaged")
                yield pa.RecordBatch.from_arrays([pc.multiply(ids, 2)], ["doubled"])

        rows = 10**13 if run.arguments.endless else 10
        frame = run.spark.range(rows, numPartitions=2).mapInArrow(double, "doubled bigint")
        run.progress("doubling")
        run.write("numbers", frame)
        return JobSummary({"rows": run.spark.read.parquet(str(run.output / "numbers")).count()})


module = ModuleType("ackgate.pipeline.jobs.audit")
module.JOB = Job()
sys.modules[module.__name__] = module
arguments.offered_jobs = lambda: ("audit",)
command.check_data = lambda _: None
quick = f"spark.driver.extraJavaOptions={quick_java()}"
for words in sys.argv[2:]:
    output, *options = words.split()
    base = ["pipeline", "audit", "--data-dir", sys.argv[1], "--master", "local[2]", "--conf", quick]
    code = main([*base, "--output", f"{sys.argv[1]}/{output}", *options])
    print(code, flush=True)
sys.exit(code)
'''


def started(directory, *jobs):
    """The jobs (name of the output and options), one after the other; of the last one we do not wait."""
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directory), *jobs],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stderr is not None
    told = []
    while told.count("doubling") < len(jobs):
        line = running.stderr.readline()
        assert line, f"it has ended: {told}"
        told.append(line.removesuffix("\n"))
    return running, told


@pytest.fixture(scope="module")
def first_life(tmp_path_factory):
    """A process with a good job, one that fails and one that is killed at work; and all that it wrote."""
    directory = tmp_path_factory.mktemp("jobs")
    running, told = started(directory, "good --json", "bad --damaged", "out --endless")
    with running:
        running.kill()
        printed, rest = running.communicate(timeout=200)
    return directory, printed, [*told, *rest.splitlines()]


@pytest.mark.slow
def test_a_good_run_and_one_that_fails_in_a_task(first_life):
    directory, printed, told = first_life

    *summary, good, bad = printed.splitlines()
    assert (good, bad) == ("0", "1"), told
    assert json.loads("\n".join(summary))["figures"] == {"rows": 10}
    assert told == ["doubling", "doubling", "ackgate: ledger 3: entry 7 is damaged", "doubling"]
    assert sorted(os.listdir(directory / "good")) == ["numbers", "summary.json"]
    assert not [name for name in os.listdir(directory) if "bad" in name]


@pytest.mark.slow
def test_killed_and_run_again_and_interrupted_it_leaves_nothing(first_life):
    directory, _, _ = first_life
    [left] = set(os.listdir(directory)) - {"good"}
    assert "staging" in left

    running, told = started(directory, "out --endless")
    with running:
        [staging] = set(os.listdir(directory)) - {"good"}
        assert staging != left, "what the killed one left is gone"
        running.send_signal(signal.SIGINT)
        _, rest = running.communicate(timeout=200)

    assert running.returncode == 130
    assert told == ["doubling"]
    assert rest == "ackgate: interrupted; nothing was written\n"
    assert os.listdir(directory) == ["good"]


def has_java(group):
    """Whether Spark's Java runs in this group of processes."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            is_ours = os.getpgid(int(process.name)) == group
        except OSError:
            continue  # it has ended
        if is_ours and b"org.apache.spark.deploy.SparkSubmit" in words:
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_while_spark_starts_it_leaves_no_java(tmp_path, number, code):
    data = str(tmp_path / "data")
    made = ["pipeline", "generate", "--messages", "10", "--seed", "1", "--data-dir", data]
    assert main(made) == 0
    words = ["pipeline", "ack-stats", "--data-dir", data, "--output", str(tmp_path / "out")]
    with subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-m", "ackgate", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as running:  # fmt: skip
        try:
            while not has_java(running.pid):
                assert running.poll() is None
            running.send_signal(number)
            # Java has the other end of standard output, and would keep it.
            out, told = running.communicate(timeout=60)
        except BaseException:
            os.killpg(running.pid, signal.SIGKILL)
            raise
    assert (running.returncode, out) == (code, "")
    assert told.endswith("; nothing was written\n")
    assert os.listdir(tmp_path) == ["data"]
