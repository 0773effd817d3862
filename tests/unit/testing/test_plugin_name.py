"""`ackgate.testing` is a plugin's name and costs nothing to a test that only wants a broker."""

from __future__ import annotations

import subprocess
import sys

import ackgate.testing
from ackgate.testing import BrokerProcess, pytest_plugin


def test_names_the_plugin() -> None:
    assert ackgate.testing.pytest_plugins == (pytest_plugin.__name__,)


def test_a_broker_process_needs_no_pytest() -> None:
    code = "import sys, ackgate.testing.broker_process; sys.exit('pytest' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=BrokerProcess.environment(), check=True)
