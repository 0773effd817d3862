"""`--workers` that cannot be: said in one line before anything is begun."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ackgate.__main__ import main
from ackgate.broker.workers import PAUSE_SECONDS_MAX, _pause_seconds, clear_directories
from ackgate.config.settings import Given, Settings
from ackgate.persistence.system.data_directory import DataDirectory


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield int(listening.getsockname()[1])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workers", "0"], "brokerWorkers=0 is not allowed; it is a whole number from 1 to 64"),
        (["--workers", "-1"], "brokerWorkers=-1 is not allowed"),
        (
            ["--workers", "2", "--set", "metadataStoreUrl=zk:localhost:2181"],
            "brokerWorkers=2 needs the embedded metadata store, and metadataStoreUrl is zk:localhost:2181",
        ),
        (["--workers", "2", "--set", "metadataStoreUrl=memory:"], "metadataStoreUrl is memory:"),
        (
            ["--workers", "2", "--http-port", "6660"],
            "brokerServicePort of worker 1 would be 6660, as webServicePort is",
        ),
        (
            ["--workers", "2", "--http-port", "65520"],
            "webServicePort of worker 2 would be 65540, and there is none",
        ),
        (
            ["--workers", "2", "--set", "advertisedListeners=a:pulsar://h:7000,b:pulsar://h:7010"],
            "advertisedListeners: a of worker 1 would be h:7010, as b is",
        ),
        (
            ["--workers", "2", "--set", "advertisedListeners=a:pulsar://h:65520"],
            "advertisedListeners: a of worker 2 would be h:65540, and there is no such port",
        ),
        (
            [
                *("--workers", "2", "--set", "advertisedListeners=a:pulsar://h:7000"),
                *("--set", "bindAddresses=a:pulsar://h:6670"),
            ],
            "brokerServicePort of worker 2 would be 6670, as that of a:pulsar://h:6670 is",
        ),
        (
            ["--workers", "2", "--port", "0", "--set", "advertisedListeners=a:pulsar://h:7000"],
            "brokerServicePort is 0, so nobody can map a port of advertisedListeners",
        ),
    ],
)
def test_what_cannot_be(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", *words]) == 2
    assert said in capsys.readouterr().err


def test_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["broker", "--workers", "x"])
    assert ended.value.code == 2
    assert "argument --workers: invalid int value: 'x'" in capsys.readouterr().err


def test_a_port_that_is_taken(
    tmp_path: Path, busy_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["broker", "--workers", "2", "--data-dir", str(tmp_path / "data")]
    assert main([*words, "--port", str(busy_port), "--http-port", "0"]) == 2
    assert (
        f"cannot listen on 127.0.0.1:{busy_port}: Address already in use" in capsys.readouterr().err
    )


def test_a_data_directory_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = DataDirectory.acquire(tmp_path)
    try:
        assert main(["broker", "--workers", "2", "--data-dir", str(tmp_path)]) == 2
    finally:
        held.release()
    assert "is held by another broker" in capsys.readouterr().err


def test_ports_of_workers() -> None:
    given = {"brokerWorkers": "3", "brokerServicePort": "6650", "webServicePort": "0"}
    settings = Settings().with_given({key: Given(text, "test") for key, text in given.items()})
    assert settings.broker.ports_of_worker(3) == {"brokerServicePort": 6680, "webServicePort": 0}


def test_listeners_of_workers() -> None:
    text = "inside:pulsar://10.0.0.7:6650,outside:pulsar+ssl://[::1]:16651"
    given = {"brokerWorkers": "2", "advertisedListeners": text}
    settings = Settings().with_given({key: Given(text, "test") for key, text in given.items()})
    assert ",".join(settings.broker.listeners_of_worker(0)) == text
    assert settings.broker.listeners_of_worker(2) == (
        "inside:pulsar://10.0.0.7:6670",
        "outside:pulsar+ssl://[::1]:16671",
    )


def test_a_worker_that_dies_again_and_again_is_started_ever_more_seldom() -> None:
    pauses = [_pause_seconds(deaths) for deaths in range(1, 12)]
    assert pauses[:4] == [0.0, 0.5, 1.0, 2.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_SECONDS_MAX


def test_what_killed_workers_have_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for number in ("1", "2"):
        directory = tmp_path / "workers" / number
        directory.mkdir(parents=True)
        (directory / "lock").touch()
        (directory / "reserve").write_bytes(bytes(1000))
    somebodys = tmp_path / "workers" / "2" / "notes"
    somebodys.touch()
    clear_directories(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [somebodys]
    somebodys.unlink()
    clear_directories(tmp_path)
    assert list(tmp_path.iterdir()) == []
