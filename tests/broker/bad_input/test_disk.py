"""A disk that is full or may not be written: those who write hear of it, nothing confirmed is lost."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from ackgate.testing import BrokerFailedError, BrokerProcess
from tests.broker.target import Target, eventually, numbered, payloads, receive

MEGABYTES = 12
PAYLOAD_BYTES = 50_000
DISK_IS_FULL = "No space left on device|the disk is full"
"""Who notices first, a write or the look at the free space, is a race between the two."""


def errors_only() -> pulsar.ConsoleLogger:
    return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, some megabytes large."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mount_point = tmp_path / "small"
    mount_point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(mount_point)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield mount_point
    subprocess.run(["umount", "-l", str(mount_point)], check=True)


def publish_until(broker: BrokerProcess, topic: str, trouble: str) -> list[bytes]:
    """Send until `trouble`, a pattern, is found in the broker's log; return what was confirmed, in order.

    The client does not give up when a broker refuses to store: it reconnects and tries again.
    """
    client = pulsar.Client(
        broker.service_url,
        operation_timeout_seconds=2,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
    )
    confirmed: list[bytes] = []
    producer = client.create_producer(topic, max_pending_messages=10, block_if_queue_full=True)

    def confirm(payload: bytes) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def note(result: pulsar.Result, _: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                confirmed.append(payload)

        return note

    def publish() -> None:
        for number in range(2_000):
            payload = str(number).encode().ljust(PAYLOAD_BYTES, b".")
            try:
                producer.send_async(payload, confirm(payload))
            except pulsar.PulsarException:
                return  # closed while it waited

    publisher = threading.Thread(target=publish)
    publisher.start()
    while not re.search(trouble, broker.log):
        before = len(confirmed)
        eventually(lambda: re.search(trouble, broker.log) or len(confirmed) > before, seconds=60)  # noqa: B023
    client.close()
    publisher.join(10)
    assert not publisher.is_alive()
    return confirmed


def check_everything_is_there(broker: BrokerProcess, topic: str, confirmed: list[bytes]) -> None:
    client = pulsar.Client(broker.service_url, logger=errors_only())
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [reader.read_next(10_000).data() for _ in confirmed]
    assert found == confirmed
    client.close()


def test_a_full_disk_loses_nothing_that_was_confirmed(small_disk, tmp_path):
    with BrokerProcess(small_disk / "data") as broker:
        client = pulsar.Client(broker.service_url, logger=errors_only())
        keeper = client.subscribe("t", "keeper")  # nothing may be trimmed
        confirmed = publish_until(broker, "t", DISK_IS_FULL)
        assert confirmed
        assert broker.is_running
        assert payloads(receive(keeper, len(confirmed))) == confirmed  # reading goes on
        client.close()
        broker.kill()
        # A larger disk, as an operator would give it.
        shutil.copytree(small_disk / "data", tmp_path / "larger")
        with BrokerProcess(tmp_path / "larger") as second:
            check_everything_is_there(second, "t", confirmed)


def test_acks_on_a_full_disk_are_kept_in_memory_until_there_is_room(small_disk, tmp_path):
    with BrokerProcess(small_disk / "data") as broker:
        target = Target(broker.service_url, broker.admin_url, is_ackgate=True)
        topic = "persistent://public/default/t"
        client = pulsar.Client(broker.service_url, logger=errors_only())
        consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer(topic)
        for payload in numbered(100):
            producer.send(payload)
        messages = receive(consumer, 100)
        ballast = fill(small_disk)
        for message in messages[::2]:
            consumer.acknowledge(message)
        failing = lambda: target.subscription_stats(topic, "s")["ackState"]["store"]  # noqa: E731
        trouble = eventually(lambda: failing()["lastFailure"])
        assert re.search("No space left|disk is full", trouble)
        assert target.backlog(topic, "s") == 50
        ballast.unlink()
        eventually(lambda: failing()["failingSinceMs"] is None, seconds=30)
        client.close()
        broker.kill()
        broker.start()
        again = pulsar.Client(broker.service_url, logger=errors_only())
        rest = again.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        assert payloads(receive(rest, 50)) == numbered(100)[1::2]
        again.close()


def fill(directory: Path) -> Path:
    """Use up what is free."""
    ballast = directory / "ballast"
    with ballast.open("wb") as file:
        block = bytes(64 * 1024)
        while True:
            try:
                file.write(block)
                file.flush()
            except OSError:
                break
            if len(block) < 512:
                break
    try:
        with ballast.open("ab") as file:
            while True:
                file.write(bytes(512))
                file.flush()
    except OSError:
        return ballast


def test_a_file_size_limit_is_survived_like_a_full_disk(tmp_path):
    """Writing beyond it fails with EFBIG, and with a signal that kills a process by default."""
    with BrokerProcess(tmp_path / "data") as broker:
        limit = 3_000_000
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (limit, limit))
        client = pulsar.Client(broker.service_url, logger=errors_only())
        client.subscribe("t", "keeper")
        confirmed = publish_until(broker, "t", "File too large")
        assert broker.is_running
        client.close()
        broker.kill()
        broker.start()
        check_everything_is_there(broker, "t", confirmed)


# ---------------------------------------------------------------- directories that cannot be used


@pytest.fixture
def read_only(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory in which nothing can be made, for root either."""
    if os.geteuid() != 0:
        shut = tmp_path / "read-only"
        shut.mkdir(mode=0o555)
        return shut
    directory: Path = request.getfixturevalue("small_disk")
    subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True)
    return directory


def test_a_read_only_directory_is_named(read_only):
    with pytest.raises(BrokerFailedError, match=str(read_only / "data")) as failure:
        BrokerProcess(read_only / "data").start()
    assert re.search(r"Permission denied|Read-only file system", str(failure.value))
    assert "Traceback" not in str(failure.value)


@pytest.mark.parametrize("part", ["", "bookies", "bookies/0", "bookies/0/ledgers"])
def test_a_file_where_a_directory_should_be_is_named(tmp_path, part):
    place = tmp_path / "data" / part
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("I was here first")
    with pytest.raises(BrokerFailedError, match=str(tmp_path / "data")) as failure:
        BrokerProcess(tmp_path / "data").start()
    assert "Traceback" not in str(failure.value)
    assert place.read_text() == "I was here first"


def test_a_directory_where_the_metadata_should_be_is_named(tmp_path):
    (tmp_path / "data" / "metadata.sqlite").mkdir(parents=True)
    with pytest.raises(BrokerFailedError, match=r"metadata\.sqlite") as failure:
        BrokerProcess(tmp_path / "data").start()
    assert "Traceback" not in str(failure.value)
