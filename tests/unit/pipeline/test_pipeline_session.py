"""What a session is given, as far as it needs no Spark to tell."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ackgate.errors import ConfigurationError
from ackgate.pipeline import session
from ackgate.pipeline.session import is_cluster, java_output, shippable, wait_for_executors


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


@pytest.mark.parametrize(("cores", "expected"), [(None, 4), ("1", 4), ("2", 4), ("8", 16)])
def test_a_shuffle_has_two_partitions_for_each_core(cores, expected):
    assert session._partitions(cores) == expected
