"""The bound on messages on their way to the disk: what settings, machine and container say."""

from __future__ import annotations

from pathlib import Path

import pytest

from ackgate.broker.wire import publish_buffer
from ackgate.broker.wire.publish_buffer import memory_bytes, publish_buffer_bytes
from ackgate.config.broker import BrokerSettings

MEBIBYTE = 1024 * 1024


@pytest.mark.parametrize(
    ("memory_mb", "expected_mb"), [(24_000, 64), (1_024, 64), (512, 32), (64, 16)]
)
def test_a_share_of_the_memory_unless_it_is_set(
    monkeypatch: pytest.MonkeyPatch, memory_mb: int, expected_mb: int
) -> None:
    monkeypatch.setattr(publish_buffer, "memory_bytes", lambda: memory_mb * MEBIBYTE)
    assert publish_buffer_bytes(BrokerSettings()) == expected_mb * MEBIBYTE


@pytest.mark.parametrize(("megabytes", "expected_mb"), [(0, None), (-1, None), (200, 200)])
def test_what_is_set_holds(megabytes: int, expected_mb: int | None) -> None:
    settings = BrokerSettings(max_message_publish_buffer_size_in_mb=megabytes)
    expected = None if expected_mb is None else expected_mb * MEBIBYTE
    assert publish_buffer_bytes(settings) == expected


def test_there_is_room_for_two_of_the_largest_messages() -> None:
    settings = BrokerSettings(
        max_message_publish_buffer_size_in_mb=1, max_message_size=50 * MEBIBYTE
    )
    limit = publish_buffer_bytes(settings)
    assert limit is not None
    assert limit >= 100 * MEBIBYTE


def test_a_container_has_the_memory_that_it_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(publish_buffer, "_CGROUP_LIMITS", (limit, tmp_path / "absent"))
    whole = memory_bytes()
    limit.write_text("max\n")
    assert memory_bytes() == whole
    limit.write_text("1048576\n")
    assert memory_bytes() == 1048576
