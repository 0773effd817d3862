"""Without its extras the core works, and whatever needs one says its name."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ackgate.extras import EXTRA_OF

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

HIDING = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        for module in %r:
            if name == module or name.startswith(module + "."):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def run_without(extras: set[str], code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Python in a world where these extras are not installed."""
    hidden = [module for module, extra in EXTRA_OF.items() if extra in extras]
    return subprocess.run(
        [sys.executable, "-c", HIDING % hidden + code],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


EMBED = """
import asyncio, ackgate
async def main():
    async with ackgate.open_embedded("data") as storage:
        topic = await storage.topic("orders")
        consumer = (await topic.subscribe("billing")).attach("alice")
        await topic.publish([b"one", b"two"])
        assert (await consumer.ack(await anext(consumer))).is_complete
asyncio.run(main())
from ackgate.__main__ import main
sys.exit(main(["stats", "orders", "--data-dir", "data"]))
"""


@pytest.mark.slow
def test_embedding_and_its_statistics_need_no_extra(tmp_path: Path) -> None:
    ran = run_without(set(EXTRA_OF.values()), EMBED, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "persistent://embedded/default/orders" in ran.stdout


USES = {
    "import ackgate.client": "client",
    "from ackgate.persistence import ZooKeeperMetadataStore": "zookeeper",
    "import asyncio\nfrom ackgate.persistence import open_metadata_store\n"
    "asyncio.run(open_metadata_store('zk:localhost:1/x'))": "zookeeper",
    "import ackgate.pipeline\nackgate.pipeline.register(None)": "spark",
}


@pytest.mark.slow
@pytest.mark.parametrize("code", USES)
def test_use_of_a_missing_extra_names_it(code: str, tmp_path: Path) -> None:
    ran = run_without({USES[code]}, code, tmp_path)
    wanted = rf"MissingExtraError: this needs \w+, .*pip install 'ackgate\[{USES[code]}\]'"
    assert re.search(wanted, ran.stderr), ran.stderr


COMMANDS = {
    "broker --data-dir data --port 0 --http-port 0": "broker",
    "broker --data-dir data --port 0 --http-port 0 --set openTelemetryTracesEnabled=true": "opentelemetry",
    "pipeline audit --data-dir data --output audit": "spark",
    "stats orders --metadata-url zk:localhost:1/x --bookies data": "zookeeper",
}


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS)
def test_command_without_its_extra_prints_one_line(words: str, tmp_path: Path) -> None:
    code = f"from ackgate.__main__ import main\nsys.exit(main({words.split()!r}))"
    ran = run_without({COMMANDS[words]}, code, tmp_path)
    assert ran.returncode == 2
    assert ran.stdout == ""
    *logged, line = ran.stderr.splitlines()
    assert all(each.startswith("time=") for each in logged)
    assert line.endswith(f"pip install 'ackgate[{COMMANDS[words]}]'")


def test_extras_install_what_they_are_named_for() -> None:
    packages = {
        "google.protobuf": "protobuf",
        "jwt": "pyjwt",
        "opentelemetry": "opentelemetry-api",
        "passlib": "libpass",
        "pulsar": "pulsar-client",
        "_pulsar": "pulsar-client",
        "vl_convert": "vl-convert-python",
    }
    for module, extra in EXTRA_OF.items():
        package = packages.get(module, module)
        wanted = PROJECT["optional-dependencies"][extra]
        assert any(re.match(rf"{package}[<>=;]", one) for one in wanted), (package, extra)
        assert not any(one.startswith(package) for one in PROJECT["dependencies"])


def test_core_wants_little() -> None:
    names = {re.split(r"[<>=]", one)[0] for one in PROJECT["dependencies"]}
    assert names == {"cramjam", "fastavro", "google-crc32c", "numpy", "pydantic", "pyroaring"}
