"""The module for Java's tests, run by Maven with the real Java client. Nothing is fetched here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ackgate.testing import BrokerProcess

pytestmark = pytest.mark.slow


def test_java_starts_brokers(tmp_path: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None or shutil.which("javac") is None:
        pytest.skip("Maven or javac is not here")
    environment = BrokerProcess.environment() | {
        "ACKGATE_COMMAND": str(Path(sys.executable).with_name("ackgate")),
    }
    run = subprocess.run(
        [maven, "-o", "-q", "-B", "-f", "java/pom.xml", f"-Doutput={tmp_path}/target", "test"],
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if "in offline mode" in run.stdout:
        pytest.skip("Maven has not fetched the Java client: make test-java")
    assert run.returncode == 0, run.stdout
    assert list(tmp_path.glob("target/surefire-reports/*AckgateExtensionTest.txt"))
