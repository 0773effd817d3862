"""`ackgate pipeline JOB` around a job: output, summary, exit codes. Without Spark."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from types import ModuleType

import pytest

from ackgate.__main__ import main
from ackgate.errors import (
    ConfigurationError,
    CorruptRecordError,
    NoSuchNodeError,
    OwnershipError,
    StorageError,
)
from ackgate.pipeline import command
from ackgate.pipeline.jobs.job import JobSummary, SummaryTable
from ackgate.pipeline.running import arguments

SUMMARY = JobSummary(
    {"messages": 1_234_567, "share": 0.5, "is_exact": True, "newest": None},
    (
        SummaryTable(
            "By topic", ("topic", "entries"), (("a", 1_000), ("long-name", 7)), rows_left_out=3
        ),
    ),
)
TOLD = """\
messages  1,234,567
share     0.500
is_exact  yes
newest    -

By topic
topic      entries
a            1,000
long-name        7
... and 3 more
"""


class FakeJob:
    name = "audit"
    help = "a job of this test"

    def __init__(self):
        self.answer = SUMMARY
        self.error = None
        self.given = None

    def add_arguments(self, parser):
        parser.add_argument("--own", type=int, default=3)

    def run(self, run):
        self.given = run
        run.progress("at work")
        (run.output / "result").write_text("1")
        if self.error is not None:
            raise self.error
        return self.answer


@pytest.fixture
def job(monkeypatch):
    module, job = ModuleType("ackgate.pipeline.jobs.audit"), FakeJob()
    module.JOB = job
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(arguments, "offered_jobs", lambda: ("audit",))
    monkeypatch.setattr(command, "check_spark_can_run", lambda: None)
    monkeypatch.setattr(command, "check_data", lambda _: None)
    monkeypatch.setattr(command, "_session", lambda _: contextlib.nullcontext(None))
    return job


@pytest.fixture
def run(tmp_path):
    (tmp_path / "data").mkdir()

    def run(*words, data="data"):
        base = ["pipeline", "audit", "--data-dir", str(tmp_path / data)]
        return main([*base, "--output", str(tmp_path / "out"), *words])

    return run


def test_the_summary_is_told_and_kept(job, run, tmp_path, capsys):
    assert run("--topic", "t", "--own", "5", "--format", "csv") == 0

    told = capsys.readouterr()
    assert told.out == TOLD
    assert told.err == "at work\n"
    assert sorted(os.listdir(tmp_path / "out")) == ["result", "summary.json"]
    kept = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert kept["figures"] == dict(SUMMARY.figures)
    assert kept["tables"]["By topic"][1] == {"topic": "long-name", "entries": 7}
    assert job.given.arguments.own == 5
    assert job.given.result_format == "csv"
    assert job.given.data.options == {"path": str(tmp_path / "data"), "topic": "t"}


def test_json_alone_for_programs(job, run, capsys):
    assert run("--json") == 0

    assert json.loads(capsys.readouterr().out)["figures"]["messages"] == 1_234_567


def test_a_job_that_finds_what_must_not_be_says_so_by_its_exit_code(job, run, tmp_path):
    job.answer = JobSummary({"losses": 1}, is_fine=False)

    assert run() == 1
    assert (tmp_path / "out" / "summary.json").exists(), "what it found is what it is for"


class Py4JJavaError(Exception):
    __module__ = "py4j.protocol"


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (StorageError("disk is away"), 1, "ackgate: disk is away"),
        (ConfigurationError("not so"), 2, "ackgate: not so"),
        (NoSuchNodeError("no topic t"), 2, "ackgate: no topic t"),
        (OwnershipError("a broker owns it"), 2, "ackgate: a broker owns it"),
        (CorruptRecordError("torn"), 1, "ackgate: torn"),
        (KeyboardInterrupt(), 130, "ackgate: interrupted; nothing was written"),
        (
            Py4JJavaError("o1.save\nackgate.errors.StorageError: f is gone\n\tat a.b(C.java:1)\n"),
            1,
            "ackgate: f is gone",
        ),
    ],
)
def test_a_failure_is_a_line_and_leaves_nothing(job, run, tmp_path, capsys, error, code, told):
    job.error = error

    assert run() == code

    assert capsys.readouterr().err.splitlines() == ["at work", told]
    assert os.listdir(tmp_path) == ["data"]


def test_a_defect_of_ours_is_not_hidden(job, run, tmp_path):
    job.error = ZeroDivisionError()

    with pytest.raises(ZeroDivisionError):
        run()
    assert os.listdir(tmp_path) == ["data"]


def test_an_output_that_exists_is_refused_before_anything_is_done(job, run, tmp_path, capsys):
    (tmp_path / "out").mkdir()

    assert run() == 2

    assert "exists" in capsys.readouterr().err
    assert job.given is None


def test_an_output_that_is_an_address_is_refused_before_anything_is_done(
    job, run, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)

    assert run("--output", "s3://bucket/out") == 2

    [told] = capsys.readouterr().err.splitlines()
    assert told.startswith("ackgate: s3://bucket/out is an address")
    assert job.given is None
    assert os.listdir(tmp_path) == ["data"]


def test_data_is_generated_into_a_directory_only(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["generate", "--messages", "1", "--seed", "1", "--data-dir", "s3://bucket/data"]

    assert main(["pipeline", *words]) == 2

    assert "ackgate: s3://bucket/data is an address" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_a_wrong_command_line_ends_with_2(job, run, monkeypatch, capsys):
    monkeypatch.setattr(
        command, "_session", lambda a: contextlib.nullcontext(arguments.spark_settings(a))
    )

    assert run("--conf", "spark.x") == 2
    assert "must be KEY=VALUE" in capsys.readouterr().err


def test_a_session_that_the_caller_has_is_used_and_kept(job, tmp_path):
    class Session:
        registered = 0

        @property
        def dataSource(self):
            return self

        def register(self, source):
            self.registered += 1

        @property
        def sparkContext(self):
            return self

        def statusTracker(self):
            return None

        def getConf(self):
            return {}

        master = "local[1]"

    session = Session()
    words = ["audit", "--data-dir", str(tmp_path), "--output", str(tmp_path / "out")]

    assert command.run_pipeline(words, spark=session) == 0

    assert job.given.spark is session
    assert session.registered == 1
    assert session.pythonExec == sys.executable


def test_sigterm_ends_a_job_and_leaves_nothing(job, run, tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM)
    job.run = lambda _: signal.raise_signal(signal.SIGTERM)

    assert run() == 143

    assert capsys.readouterr().err == "ackgate: terminated; nothing was written\n"
    assert os.listdir(tmp_path) == ["data"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_jobs_that_are_not_there_are_not_offered(capsys):
    assert "generate" in arguments.offered_jobs()
    with pytest.raises(SystemExit) as end:
        main(["pipeline", "no-such-job"])
    assert end.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


def test_what_py4j_says_of_an_interrupted_call_is_not_printed():
    """It tells the root logger, or one of its own, by how far the call had come."""
    code = (
        "import logging\n"
        "from ackgate.pipeline import command\n"
        "command._hush()\n"
        "logging.error('root')\n"
        "logging.basicConfig()\n"
        "logging.getLogger('py4j.clientserver').error('its own')\n"
        "logging.getLogger('another').error('somebody else')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr == "ERROR:another:somebody else\n"
