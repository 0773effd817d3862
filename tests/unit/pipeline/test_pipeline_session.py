"""What a session is given, as far as it needs no Spark to tell."""

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from ackgate.errors import ConfigurationError
from ackgate.pipeline.session import is_cluster, java_output, shippable


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
