"""Without Java 17 and the packages nothing is started, and it is said what is missing."""

import importlib.util
import socket

import pytest

from ackgate.errors import ConfigurationError
from ackgate.pipeline.running.session import check_java, check_master, check_spark_can_run


def java_that_says(tmp_path, text):
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\n")
    java.chmod(0o755)
    return str(java)


@pytest.mark.parametrize(
    "text",
    ['openjdk version "17.0.9" 2023-10-17', 'openjdk version "21" 2023', 'java version "17-ea"'],
)
def test_a_new_java_will_do(tmp_path, text):
    check_java(java_that_says(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('java version "1.8.0_392"', "is Java 8"),
        ('openjdk version "11.0.21" 2023-10-17', "is Java 11"),
        ("Segmentation fault", "may not be Java"),
    ],
)
def test_another_one_is_refused(tmp_path, text, told):
    with pytest.raises(ConfigurationError, match=told):
        check_java(java_that_says(tmp_path, text))


def test_where_java_was_looked_for_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))

    with pytest.raises(
        ConfigurationError, match=r"Java 17 or newer, and there is no .*nowhere/bin/java"
    ):
        check_spark_can_run()


def test_missing_packages_are_named(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyspark" else found(name)
    )

    with pytest.raises(ConfigurationError, match=r"pyspark is not installed.*ackgate\[spark\]"):
        check_spark_can_run()


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,3]", "yarn"])
def test_masters_that_need_no_answer(master):
    check_master(master)


@pytest.mark.parametrize("master", ["", "locally", "http://host:7077", "spark://"])
def test_an_unknown_kind_of_master_is_refused(master):
    with pytest.raises(ConfigurationError, match=r"must be local\[N\], or spark://HOST:PORT"):
        check_master(master)


@pytest.mark.parametrize("address", ["host", "host:", "host:70000", "host:1x"])
def test_a_master_without_a_port_is_refused(address):
    with pytest.raises(ConfigurationError, match="is not HOST:PORT"):
        check_master(f"spark://{address}")


def test_one_master_that_answers_is_enough_and_none_is_told():
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"127.0.0.1:{server.getsockname()[1]}"
        with socket.create_server(("127.0.0.1", 0)) as other:
            gone = f"127.0.0.1:{other.getsockname()[1]}"
        check_master(f"spark://{gone},{there}")

        with pytest.raises(ConfigurationError, match=rf"no master answers \({gone}: .*refused"):
            check_master(f"spark://{gone}")
