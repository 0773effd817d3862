"""``ackgate delayed``: for people and for programs, a topic or its partitions, and bad input."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import urllib.request
from pathlib import Path

import pulsar
import pytest

from ackgate.commands.cli import main
from tests.broker.admin.conftest import InProcessBroker
from tests.broker.target import eventually
from tests.support.loopback_http import QuietHandler, http_served

LATER = dt.timedelta(hours=1)


@pytest.fixture
def ackgate(broker: InProcessBroker, capsys: pytest.CaptureFixture[str]):
    """Runs the command on the broker; its exit code and what it printed."""

    def run(*words: str) -> tuple[int, str]:
        code = main(["delayed", *words, "--admin-url", broker.url])
        return code, "".join(capsys.readouterr())

    return run


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"persistent://public/default/{request.node.name}"


def published(client: pulsar.Client, topic: str, count: int) -> list[str]:
    """Positions of messages that wait for an hour, and of one that does not."""
    producer = client.create_producer(topic, batching_enabled=False)
    after = [LATER] * count + [None]
    ids = [producer.send(b"x", deliver_after=delay) for delay in after]
    return [f"{sent.ledger_id()}:{sent.entry_id()}" for sent in ids]


def subscribed(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    return client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, consumer_name="worker"
    )


def test_cancel_list_clear(
    broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str, ackgate
) -> None:
    path = topic.replace("://", "/")
    subscribed(pulsar_client, topic)
    first, second, third, now = published(pulsar_client, topic, 3)
    held = f"{path}/delayed"
    eventually(lambda: broker.get(held)["subscriptions"]["s"]["delayedEntries"] == 3)

    code, text = ackgate("cancel", topic, first, second)
    assert code == 0
    lines = text.splitlines()
    assert lines[0].startswith(f"{first}  ".ljust(16) + "cancelled           was due 20")
    assert lines[-1] == "2 messages: 2 cancelled"

    code, text = ackgate("cancel", topic, first, now, "99:0")
    assert code == 1
    assert [line.split()[0] for line in text.splitlines()] == [first, now, "99:0", "3"]
    assert "already cancelled" in text
    assert "not delayed" in text
    assert "no such message" in text

    code, text = ackgate("list", topic)
    assert code == 0
    assert text.splitlines()[0] == f"{topic}  2 cancelled"
    assert text.splitlines()[1] == "  s"
    assert text.splitlines()[2].startswith("    1 delayed, ")
    assert "next due 20" in text

    code, text = ackgate("clear", topic, "--subscription", "s")
    assert (code, text) == (
        0,
        f"{topic}: the index of s is cleared and is built again by reading\n",
    )
    eventually(lambda: broker.get(held)["subscriptions"]["s"]["delayedEntries"] == 1)
    code, text = ackgate("clear", topic)
    assert (code, text.split(": ")[1]) == (
        0,
        "the index of every subscription is cleared and is built again by reading\n",
    )
    eventually(lambda: broker.get(held)["subscriptions"]["s"]["delayedEntries"] == 1)
    assert third


def test_for_programs(pulsar_client: pulsar.Client, topic: str, ackgate) -> None:
    subscribed(pulsar_client, topic)
    first, now = published(pulsar_client, topic, 1)
    code, text = ackgate("cancel", topic, first, now, "--json")
    told = json.loads(text)
    assert code == 1
    assert told["counts"] == {"cancelled": 1, "notDelayed": 1}
    assert [each["position"] for each in told["outcomes"]] == [first, now]
    [listed] = json.loads(ackgate("list", topic, "--json")[1])
    assert listed["topic"] == topic
    assert listed["cancelled"] == 1
    cleared = ackgate("clear", topic, "--subscription", "s", "--json")
    assert json.loads(cleared[1]) == {"cleared": [topic]}


def test_positions_from_a_file_and_many_of_them(
    pulsar_client: pulsar.Client,
    topic: str,
    ackgate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ackgate.commands.delayed_command.POSITIONS_AT_ONCE", 7)
    positions = published(pulsar_client, topic, 30)[:-1]
    file = tmp_path / "positions"
    file.write_text("# these\n\n" + "\n".join(f"{position}  # x" for position in positions[:25]))
    code, text = ackgate("cancel", topic, "--file", str(file))
    assert code == 0
    assert text.splitlines()[-1] == "25 messages: 25 cancelled"
    assert len(text.splitlines()) == 21
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(positions)))
    code, text = ackgate("cancel", topic, "--file", "-")
    assert text.splitlines()[-1] == "30 messages: 25 already cancelled, 5 cancelled"


def test_partitions(
    broker: InProcessBroker, pulsar_client: pulsar.Client, topic: str, ackgate
) -> None:
    broker.ask("PUT", f"{topic.replace('://', '/')}/partitions", 2)
    texts = [
        f"{published(pulsar_client, f'{topic}-partition-{number}', 1)[0]}:{number}"
        for number in range(2)
    ]
    code, text = ackgate("cancel", topic, *texts)
    assert code == 0
    assert f"{topic}-partition-1" in text
    code, text = ackgate("list", topic)
    assert text.count("1 cancelled") == 2
    code, text = ackgate("cancel", topic, "1:0")
    assert code == 2
    assert "has 2 partitions: 1:0 needs one of them, 1:0:0 to 1:0:1" in text
    code, text = ackgate("cancel", f"{topic}-partition-0", texts[0])
    assert (code, text.splitlines()[-1]) == (0, "1 message: 1 already cancelled")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["cancel", "t"], "which messages?"),
        (["cancel", "t", "12"], "'12' is no position"),
        (["cancel", "t", "12:x"], "'12:x' is no position"),
        (["cancel", "t", "1:2:3:4"], "'1:2:3:4' is no position"),
        (["cancel", "t", "1:" + "9" * 20], "is no position"),
        (["cancel", "t", "--file", "/nonexistent/positions"], "cannot be read"),
    ],
)
def test_bad_command_lines(ackgate, words: list[str], complaint: str) -> None:
    code, text = ackgate(*words)
    assert code == 2
    assert complaint in text


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["list", "persistent://public/default/nope"], "nope not found"),
        (["list", "non-persistent://public/default/t"], "non-persistent"),
        (["cancel", "nope", "1:2"], "nope not found"),
        (["clear", "nope", "--subscription", "s"], "nope not found"),
    ],
)
def test_what_is_not_there(ackgate, words: list[str], complaint: str) -> None:
    code, text = ackgate(*words)
    assert code == 1
    assert complaint in text


def test_a_bad_line_of_a_file_is_named_and_nothing_is_cancelled(ackgate, tmp_path: Path) -> None:
    file = tmp_path / "positions"
    file.write_text("1:2\n\nnonsense\n")
    code, text = ackgate("cancel", "t", "--file", str(file))
    assert code == 2
    assert f"{file}, line 3: 'nonsense' is no position: ledger:entry or ledger:" in text


def test_no_broker_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["delayed", "list", "t", "--admin-url", "http://127.0.0.1:1"]) == 1
    assert "no answer from http://127.0.0.1:1" in capsys.readouterr().err
    assert main(["delayed", "list", "t", "--admin-url", "file:///etc/passwd"]) == 2
    assert "not the address of an admin interface" in capsys.readouterr().err


def refusing(url: str, requests: int) -> contextlib.AbstractContextManager[str]:
    """Stands before a broker, and hangs up from the given request on."""
    left = requests

    class Front(QuietHandler):
        def answer(self) -> None:
            nonlocal left
            if left == 0:
                self.close_connection = True
                return
            left -= self.command != "GET"
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked = urllib.request.Request(
                url + self.path,
                data=body or None,
                headers={"Content-Type": "application/json"},
                method=self.command,
            )
            with urllib.request.urlopen(asked) as response:
                answered = response.read()
                self.send_response(response.status)
            self.send_header("Content-Length", str(len(answered)))
            self.end_headers()
            self.wfile.write(answered)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 - the name that is looked for

    return http_served(Front)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_what_was_done_before_the_broker_died_is_said(
    broker: InProcessBroker,
    pulsar_client: pulsar.Client,
    topic: str,
    form: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ackgate.commands.delayed_command.POSITIONS_AT_ONCE", 2)
    topic = f"{topic.partition('[')[0]}-{len(form)}"
    subscribed(pulsar_client, topic)
    positions = published(pulsar_client, topic, 6)[:-1]
    with refusing(broker.url, requests=2) as url:
        assert main(["delayed", "cancel", topic, *positions, "--url", url, *form]) == 1
    out, err = capsys.readouterr()
    assert f"no answer from {url}" in err
    if form:
        assert json.loads(out)["counts"] == {"cancelled": 4}
    else:
        assert out.splitlines()[-1] == "4 messages: 4 cancelled"
    with refusing(broker.url, requests=0) as url:
        assert main(["delayed", "cancel", topic, *positions, "--url", url, *form]) == 1
    assert capsys.readouterr().out == ""

    broker.ask("PUT", f"{topic.replace('://', '/')}-parted/partitions", 3)
    for number in range(3):
        subscribed(pulsar_client, f"{topic}-parted-partition-{number}")
    with refusing(broker.url, requests=2) as url:
        assert main(["delayed", "clear", f"{topic}-parted", "--url", url, *form]) == 1
    out, err = capsys.readouterr()
    assert f"no answer from {url}" in err
    assert (f"{topic}-parted-partition-1" in out, f"{topic}-parted-partition-2" in out) == (
        True,
        False,
    )
