"""What cannot be read is refused in a line, before Spark is started and anything is written."""

from __future__ import annotations

import os
import shutil
import sqlite3

import pytest

from ackgate.__main__ import main
from ackgate.pipeline import command

JOB = "ack-stats"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("generated") / "data"
    words = ["--messages", "30", "--seed", "1", "--topics", "3"]
    assert main(["pipeline", "generate", "--data-dir", str(directory), *words]) == 0
    return directory


@pytest.fixture
def refused(monkeypatch, tmp_path, capsys):
    """Run a job that must not come to start Spark; its one line and its exit code."""

    def no_session(_):
        raise AssertionError("Spark is started")

    monkeypatch.setattr(command, "_session", no_session)
    capsys.readouterr()  # what fixtures had to say

    def run(*words):
        output = tmp_path / "results" / "out"
        code = main(["pipeline", JOB, "--output", str(output), *map(str, words)])
        told = capsys.readouterr()
        assert told.out == ""
        assert not output.parent.exists() or os.listdir(output.parent) == []
        [line] = told.err.splitlines()
        return line, code

    return run


def test_a_path_that_is_not_there(refused, tmp_path):
    line, code = refused("--data-dir", tmp_path / "nowhere")
    assert (line, code) == (f"ackgate: there is no directory {tmp_path / 'nowhere'}", 2)


def test_a_path_below_a_file(refused, tmp_path):
    (tmp_path / "file").touch()
    line, code = refused("--data-dir", tmp_path / "file" / "data")
    assert "file/data" in line
    assert code == 2


def test_a_file(refused, tmp_path):
    (tmp_path / "file").touch()
    assert refused("--data-dir", tmp_path / "file") == (
        f"ackgate: {tmp_path / 'file'} is not a directory",
        2,
    )


def test_a_path_that_the_system_does_not_let_us_read(refused, tmp_path):
    line, code = refused("--data-dir", tmp_path / ("x" * 300))  # refused to root, too
    assert line.endswith("cannot be read: File name too long")
    assert code == 2


def test_an_empty_directory(refused, tmp_path):
    (tmp_path / "data").mkdir()
    line, code = refused("--data-dir", tmp_path / "data")
    assert line == f"ackgate: {tmp_path / 'data'} is empty: no broker has kept anything here"
    assert code == 2


def test_a_directory_of_something_else(refused, tmp_path):
    (tmp_path / "data" / "photos").mkdir(parents=True)
    line, code = refused("--data-dir", tmp_path / "data")
    assert "no bookies in" in line
    assert code == 2


def test_a_metadata_store_of_something_else(refused, data, tmp_path):
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "data" / "metadata.sqlite").write_bytes(b"photos" * 1_000)
    line, code = refused("--data-dir", tmp_path / "data")
    assert "metadata.sqlite" in line
    assert code == 2


def test_a_database_of_something_else(refused, data, tmp_path):
    shutil.copytree(data, tmp_path / "data")
    store = tmp_path / "data" / "metadata.sqlite"
    store.unlink()
    with sqlite3.connect(store) as database:
        database.execute("create table photos (name text)")
    database.close()
    line, code = refused("--data-dir", tmp_path / "data")
    assert "metadata.sqlite" in line
    assert code == 2


def test_an_unknown_topic_with_those_that_look_like_it(refused, data):
    line, code = refused("--data-dir", data, "--topic", "generate-1")
    assert "there is no topic persistent://public/default/generate-1" in line
    assert "did you mean" in line
    assert "generated-1" in line
    assert code == 2


def test_an_unknown_subscription_with_those_that_look_like_it(refused, data):
    line, code = refused("--data-dir", data, "--subscription", "subscribtion-0")
    assert "there is no subscription 'subscribtion-0'" in line
    assert "did you mean subscription-0?" in line
    assert code == 2


def test_an_output_that_exists(data, tmp_path, capsys, monkeypatch):
    (tmp_path / "mine").write_text("precious")
    words = ["--data-dir", str(data), "--output", str(tmp_path / "mine")]

    assert main(["pipeline", JOB, *words]) == 2

    assert (
        capsys.readouterr().err == f"ackgate: output {tmp_path / 'mine'} exists; it is left alone\n"
    )
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_data_directory_of_no_kind_known(refused):
    line, code = refused("--data-dir", "gopher://host/data")
    assert "gopher" in line
    assert code == 1, "which addresses there are depends on what is installed"


@pytest.mark.parametrize("words", [(), ("--config", "/nowhere/broker.conf")])
def test_no_place_to_read(refused, words):
    line, code = refused(*words)
    assert line.startswith("ackgate: ")
    assert code == 2


def test_no_java(refused, data, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    line, code = refused("--data-dir", data)
    assert line.startswith("ackgate: Spark needs Java 17 or newer, and there is no java")
    assert code == 2


def test_an_old_java(refused, data, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    line, code = refused("--data-dir", data)
    assert line == f"ackgate: Spark needs Java 17 or newer; {java} is Java 8"
    assert code == 2


def test_a_master_that_does_not_answer(refused, data):
    line, code = refused("--data-dir", data, "--master", "spark://127.0.0.1:1")
    assert line == (
        "ackgate: --master spark://127.0.0.1:1: no master answers (127.0.0.1:1: Connection refused)"
    )
    assert code == 2
