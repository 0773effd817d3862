"""A broker and a host that embeds ackgate do not go on with each other's storage, and each says so."""

from __future__ import annotations

from pathlib import Path

import pytest

import ackgate
from ackgate.errors import ConfigurationError
from ackgate.testing.broker_process import BrokerFailedError, BrokerProcess


@pytest.mark.slow
@pytest.mark.parametrize("messages", [[], [b"one", b"two"]])
async def test_a_broker_refuses_the_directory_of_a_host(
    tmp_path: Path, messages: list[bytes]
) -> None:
    async with ackgate.open_embedded(tmp_path) as storage:
        if messages:
            await (await storage.topic("orders")).publish(messages)
    broker = BrokerProcess(tmp_path)
    with pytest.raises(BrokerFailedError, match="exit code 2"):
        broker.start()
    line = broker.log.splitlines()[-1]
    assert f"{tmp_path}/bookies/0 belongs to a host that embeds ackgate (open_embedded)" in line
    assert "use another --data-dir" in line
    assert "adopt" not in line
    assert "older" not in line
    async with ackgate.open_embedded(tmp_path) as storage:
        assert (await storage.topic("orders")).message_count == len(messages)


@pytest.mark.slow
async def test_a_host_refuses_the_directory_of_a_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    broker.stop()
    refusal = r"bookies/0 belongs to a broker: .*use another directory"
    with pytest.raises(ConfigurationError, match=refusal) as caught:
        async with ackgate.open_embedded(tmp_path):
            pytest.fail("opened the directory of a broker")
    assert "adopt" not in str(caught.value)
    broker.start()
    broker.stop()
