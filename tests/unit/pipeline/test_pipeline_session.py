"""What a session is given, as far as it needs no Spark to tell."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ackgate.errors import ConfigurationError
from ackgate.pipeline.running import session
from ackgate.pipeline.running.session import (
    PYTHON_KEY,
    choose_python,
    is_cluster,
    java_output,
    shippable,
    wait_for_executors,
)


def test_a_wheel_goes_to_the_workers_as_a_zip(tmp_path):
    wheel, module = tmp_path / "thing-1.0-py3-none-any.whl", tmp_path / "other.py"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("thing/__init__.py", "")
    module.touch()

    shipped = shippable([wheel, module], tmp_path / "scratch")

    assert [path.name for path in shipped] == ["thing-1.0-py3-none-any.zip", "other.py"]
    assert zipfile.ZipFile(shipped[0]).namelist() == ["thing/__init__.py"]
    assert wheel.exists()


def test_a_file_to_ship_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ConfigurationError, match=r"--py-files .*gone\.whl: there is no such file"):
        shippable([tmp_path / "gone.whl"], tmp_path)


@pytest.mark.parametrize(
    ("master", "expected"),
    [("local", False), ("local[3]", False), ("local[*,2]", False), ("spark://h:7077", True)],
)
def test_which_masters_are_clusters(master, expected):
    assert is_cluster(master) is expected


def test_what_a_child_says_goes_to_the_file_and_ours_does_not(tmp_path, capfd):
    log = tmp_path / "log"
    with java_output(log):
        subprocess.run(["sh", "-c", "echo child >&2"], check=True)
    os.write(2, b"ours\n")

    assert log.read_text() == "child\n"
    assert capfd.readouterr().err == "ours\n"


def test_or_it_stays_where_it_was(capfd):
    with java_output(None):
        os.write(2, b"ours\n")

    assert capfd.readouterr().err == "ours\n"


def test_a_failing_block_gives_the_terminal_back(tmp_path: Path, capfd):
    with pytest.raises(ValueError, match="x"), java_output(tmp_path / "log"):
        raise ValueError("x")
    os.write(2, b"ours\n")

    assert capfd.readouterr().err == "ours\n"


class Cluster:
    """A session of which executors come after so many looks."""

    def __init__(self, looks: int):
        self.looks = looks

    @property
    def sparkContext(self):
        return self

    _jsc = sparkContext

    def sc(self):
        return self

    def getExecutorMemoryStatus(self):
        self.looks -= 1
        return self

    def size(self):
        return 2 if self.looks < 0 else 1


def test_a_cluster_without_free_cores_is_waited_for_and_that_is_told_once(monkeypatch):
    now = iter(range(0, 1_000, 10))
    monkeypatch.setattr(session.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(session.time, "sleep", lambda _: None)
    told = []

    wait_for_executors(Cluster(5), told.append)

    assert told == ["waiting for the cluster: no worker has cores and memory for this job yet"]


def test_a_cluster_with_free_cores_is_not_worth_a_word():
    wait_for_executors(Cluster(0), lambda _: pytest.fail("nothing to tell"))


def test_the_workers_python_has_to_be_here_as_well(tmp_path):
    with pytest.raises(
        ConfigurationError, match=r"--executor-python .*/nowhere/python: there is no"
    ):
        session._interpreter("/nowhere/python")
    assert session._interpreter(None) == sys.executable
    assert session._interpreter("sh") == "sh", "a name, for each machine to look up"


class Session:
    """A session that somebody has made, as PySpark leaves it."""

    def __init__(self, master, asked=None):
        self.sparkContext = self
        self.pythonExec = "python3"
        self.master = master
        self._conf = {} if asked is None else {PYTHON_KEY: asked}

    def getConf(self):
        return self._conf


def python_on_path(directory, monkeypatch):
    directory.mkdir()
    (directory / "python3").write_text("#!/bin/sh\nexit 1\n")
    (directory / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))


@pytest.mark.parametrize("master", ["local[2]", "spark://h:7077"])
def test_tasks_run_in_this_python_when_nobody_says_which(master, tmp_path, monkeypatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    python_on_path(tmp_path / "another", monkeypatch)
    session = Session(master)

    choose_python(session)

    assert session.pythonExec == sys.executable


def test_on_a_cluster_each_machine_looks_up_its_own(monkeypatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    session = Session("spark://h:7077")

    choose_python(session)

    assert session.pythonExec == "python3"


def test_a_python_that_was_asked_for_stays(tmp_path, monkeypatch):
    python_on_path(tmp_path / "another", monkeypatch)
    of_conf, of_environment = Session("local[2]", "python-of-ours"), Session("local[2]")

    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    choose_python(of_conf)
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    choose_python(of_environment)

    assert of_conf.pythonExec == "python-of-ours"
    assert of_environment.pythonExec == "python3"


def test_a_session_elsewhere_has_a_python_of_its_own():
    choose_python(object())


@pytest.mark.parametrize(("cores", "expected"), [(None, 4), ("1", 4), ("2", 4), ("8", 16)])
def test_a_shuffle_has_two_partitions_for_each_core(cores, expected):
    assert session._partitions(cores) == expected
