"""`ackgate pipeline` with a real session of its own: what a person sees, and what is left."""

import json
import os
import signal
import subprocess
import sys

import pytest

PROGRAM = '''
import sys
from types import ModuleType

from ackgate.__main__ import main
from ackgate.pipeline import command
from ackgate.pipeline.running import arguments
from ackgate.pipeline.jobs.job import JobSummary
from tests.pipeline.small_plans import QUICK_JAVA


class Job:
    """Doubles numbers in tasks; 7 is damaged when asked for."""

    name = "audit"
    help = "of this test"

    def add_arguments(self, parser):
        parser.add_argument("--damaged", action="store_true")

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

        frame = run.spark.range(10, numPartitions=2).mapInArrow(double, "doubled bigint")
        run.progress("doubling")
        run.write("numbers", frame)
        return JobSummary({"rows": run.spark.read.parquet(str(run.output / "numbers")).count()})


module = ModuleType("ackgate.pipeline.jobs.audit")
module.JOB = Job()
sys.modules[module.__name__] = module
arguments.offered_jobs = lambda: ("audit",)
command.check_data = lambda _: None
directory = sys.argv[1]
quick = f"spark.driver.extraJavaOptions={QUICK_JAVA}"
base = ["pipeline", "audit", "--data-dir", directory, "--master", "local[2]", "--conf", quick]
print(main([*base, "--output", directory + "/good", "--json"]))
print(main([*base, "--output", directory + "/bad", "--damaged"]))
'''


@pytest.mark.slow
def test_a_good_run_and_one_that_fails_in_a_task(tmp_path):
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip

    lines = told.stdout.splitlines()
    assert lines[-1] == "1", told.stderr
    assert lines[-2] == "0"
    assert json.loads("\n".join(lines[:-2]))["figures"] == {"rows": 10}
    assert told.stderr.splitlines() == [
        "doubling", "doubling", "ackgate: ledger 3: entry 7 is damaged",
    ]  # fmt: skip
    assert os.listdir(tmp_path) == ["good"]
    assert sorted(os.listdir(tmp_path / "good")) == ["numbers", "summary.json"]


INTERRUPTED = (
    PROGRAM.partition('print(main([*base, "--output", directory + "/good"')[0].replace(
        "frame = run.spark.range(10", "frame = run.spark.range(10**13"
    )
    + 'sys.exit(main([*base, "--output", directory + "/out"]))'
)


def started(directory):
    """A job that never ends, at work."""
    running = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(directory)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stderr is not None
    assert any(line == "doubling\n" for line in running.stderr)
    return running


@pytest.mark.slow
def test_killed_and_run_again_and_interrupted_it_leaves_nothing(tmp_path):
    with started(tmp_path) as running:
        running.kill()
        running.communicate(timeout=200)
    [left] = os.listdir(tmp_path)
    assert "staging" in left

    with started(tmp_path) as running:
        [staging] = os.listdir(tmp_path)
        assert staging != left, "what the killed one left is gone"
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=200)

    assert running.returncode == 130
    assert told == "ackgate: interrupted; nothing was written\n"
    assert os.listdir(tmp_path) == []
