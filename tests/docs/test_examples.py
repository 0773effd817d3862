"""Every example runs, and does what it says."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ackgate.testing import BrokerCluster, BrokerProcess, ZooKeeperProcess, free_ports

EXAMPLES = Path(__file__).parents[2] / "examples"


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Python on these arguments, in a process group of its own, with `tmp_path` for its files."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**BrokerProcess.environment(), "TMPDIR": str(tmp_path), "PYTHONIOENCODING": "utf-8"},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def output_of(tmp_path: Path, *arguments: str, code: int = 0) -> str:
    with start(tmp_path, *arguments) as process:
        try:
            output, _ = process.communicate(timeout=250)
        finally:
            process.kill()
    assert process.returncode == code, output
    return output


def short_demo(change: str) -> tuple[str, ...]:
    """The demo with just as many messages as shut the gate."""
    program = (
        f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); import demo; demo.MESSAGES = 5_000; "
        f"{change}\nsys.exit(demo.main())"
    )
    return "-c", program


def brokers_in(output: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"process (\d+) listens", output)]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def check_nothing_is_left(tmp_path: Path, output: str) -> None:
    assert list(tmp_path.iterdir()) == []
    assert [pid for pid in brokers_in(output) if is_running(pid)] == []


@pytest.mark.slow
def test_minimal_embedding(tmp_path: Path) -> None:
    program = str(EXAMPLES / "embed_minimal.py")
    killed = output_of(tmp_path, program, code=-signal.SIGKILL)
    assert killed.splitlines() == ["0 orders stored, 0 to bill"]
    assert output_of(tmp_path, program).splitlines() == [
        "300 orders stored, 200 to bill",
        "all billed",
    ]
    shutil.rmtree(tmp_path / "orders-data")
    check_nothing_is_left(tmp_path, "")


def test_machine_alone(tmp_path: Path) -> None:
    lines = output_of(tmp_path, str(EXAMPLES / "embed_machine.py")).splitlines()
    gets = [re.sub(r"^ *\d+ ms  ", "", line) for line in lines if " gets " in line]
    assert gets[:6] == [f"alice gets 7:{entry}" for entry in (0, 1, 3, 4, 5, 6)]
    assert "alice gets 7:0, try 2" in gets, "the nack"
    assert gets[-1] == "bob gets 7:2", "the delayed message, and no acked one before it"
    assert not {"bob gets 7:0", "bob gets 7:1"} & set(gets)
    assert [line.split("durable: ")[1] for line in lines if "durable" in line] == [
        "ack of 7:1",
        "ack of 7:0",
    ]
    assert lines[-1] == "mark-delete 7:1, 21 to do"
    check_nothing_is_left(tmp_path, "")


@pytest.mark.slow
def test_host_with_a_gate(tmp_path: Path) -> None:
    assert output_of(tmp_path, str(EXAMPLES / "embed_cursor_store_gate.py")).splitlines() == [
        "paused (budget): 100 ranges, 101 messages held",
        "went on: 799 more messages, 0 left",
    ]
    check_nothing_is_left(tmp_path, "")


@pytest.mark.slow
def test_nacks_with_a_delay_each(tmp_path: Path) -> None:
    output = output_of(tmp_path, str(EXAMPLES / "nack_delays.py"))
    billed = re.findall(r"^billed after +(\d+) ms, attempt (\d): (.+)$", output, flags=re.MULTILINE)
    assert [place for _, _, place in billed] == ["printer", "bank", "tax office", "nobody"]
    assert [int(attempt) for _, attempt, _ in billed] == [2, 2, 2, 4]
    waits = [int(after_ms) for after_ms, _, _ in billed]
    for waited, least in zip(waits, [300, 600, 900, 1_400], strict=True):
        assert waited >= least - 4 * 16, "no earlier than by the precision"
    check_nothing_is_left(tmp_path, output)


@pytest.mark.slow
def test_test_suite_as_a_user_has_it(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "test_with_ackgate.py", tmp_path)  # away from this project's settings
    output = output_of(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert re.search(r"^3 passed in", output, flags=re.MULTILINE), output


@pytest.mark.slow
def test_failover_of_two_brokers(
    tmp_path: Path, zookeeper: ZooKeeperProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokerProcess, "is_forked", False)  # a fork has its parent's command line
    settings = {"advertisedAddress": "127.0.0.1"}
    cluster = BrokerCluster(
        tmp_path, settings=settings, zookeeper=zookeeper, root="/failover-example"
    )
    for broker, port in zip(cluster.brokers, free_ports(2), strict=True):
        broker.port = port  # the example knows a broker by its command line
    with cluster:
        urls = (cluster.service_url, cluster.brokers[0].admin_url)
        output = output_of(tmp_path, str(EXAMPLES / "compose_failover.py"), *urls)
        assert [broker.is_running for broker in cluster.brokers].count(False) == 1
    assert "1000 messages, every second one acknowledged" in output
    assert "0 messages are missing, 0 acknowledged messages came again" in output


@pytest.mark.slow
def test_demo_tells_the_whole_story(tmp_path: Path) -> None:
    output = output_of(tmp_path, str(EXAMPLES / "demo.py"))
    ticked = re.findall(r"^   ✓ (.+)$", output, flags=re.MULTILINE)
    assert len(ticked) == 12
    assert ticked.count("0 acked messages came again") == 2
    assert any("isBlockedOnAckStatePersistent is true" in claim for claim in ticked)
    assert output.splitlines()[-1].startswith("12 claims checked in ")
    assert len(brokers_in(output)) == 2
    assert "\r" not in output, "a pipe gets no moving line"
    assert "\x1b" not in output
    told = [line for line in output.splitlines() if line.startswith("   ")]
    assert max(map(len, told)) <= 100, "one line of the story is one line of a terminal"
    check_nothing_is_left(tmp_path, output)


@pytest.mark.slow
def test_demo_fails_when_a_claim_does_not_hold(tmp_path: Path) -> None:
    without_gate = "demo.SETTINGS['dispatcherPauseOnAckStatePersistentEnabled'] = False"
    output = output_of(tmp_path, *short_demo(without_gate), code=1)
    assert (
        "FAILED: the gate is shut: isBlockedOnAckStatePersistent is true\n"
        "   expected  True\n"
        "   seen      False\n"
    ) in output
    check_nothing_is_left(tmp_path, output)


@pytest.mark.slow
def test_demo_ends_though_a_library_swallows_the_interruption(tmp_path: Path) -> None:
    swallowed = (
        "import os, signal, contextlib; story = demo.Story; begin = story.start_broker\n"
        "def start_broker(self):\n"
        "    with contextlib.suppress(KeyboardInterrupt):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    begin(self)\n"
        "story.start_broker = start_broker\n"
    )
    output = output_of(tmp_path, *short_demo(swallowed), code=130)
    assert output.splitlines()[-1] == "interrupted"
    check_nothing_is_left(tmp_path, output)


@pytest.mark.slow
def test_demo_ends_a_command_that_was_just_being_started(tmp_path: Path) -> None:
    started = (
        "import os, signal\n"
        "class Popen(demo.subprocess.Popen):\n"
        "    def __init__(self, command, **options):\n"
        "        super().__init__(command, **options)\n"
        "        if 'stats' in command:\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "demo.subprocess.Popen = Popen\n"
    )
    output = output_of(tmp_path, *short_demo(started), code=130)
    assert output.splitlines()[-1] == "interrupted"
    check_nothing_is_left(tmp_path, output)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_leaves_nothing_when_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    with start(tmp_path, *short_demo("pass")) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "received" in line:  # the broker works, the client is connected
                if number is signal.SIGINT:
                    os.killpg(process.pid, number)  # as a terminal does it
                else:
                    process.send_signal(number)
                break
        lines += process.stdout
    output = "".join(lines)
    assert (process.returncode, lines[-1]) == (130, "interrupted\n"), output
    check_nothing_is_left(tmp_path, output)
