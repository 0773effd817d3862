"""Settings changed at run time, as the brokers of a cluster store and follow them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from ackgate.broker.cluster import DynamicConfiguration
from ackgate.config.settings import Settings
from ackgate.errors import ConfigurationError
from ackgate.persistence import MemoryMetadataStore

PATH = "/admin/configuration"
KEY = "dispatcherMaxReadBatchSize"
NEWER = "aKeyOfANewerVersion"


def batch_size(broker: SimpleNamespace) -> int:
    size: int = broker.settings.dispatcher.dispatcher_max_read_batch_size
    return size


async def test_keys_that_only_a_newer_version_knows_stay_and_have_no_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metadata = MemoryMetadataStore()
    await metadata.put(PATH, json.dumps({KEY: "7", NEWER: "x"}).encode(), expected_version=None)
    broker = SimpleNamespace(settings=Settings(), metadata=metadata)
    dynamic = DynamicConfiguration(broker, lambda: None)
    await dynamic.load()
    assert batch_size(broker) == 7
    assert f"{NEWER} has no effect in this version" in caplog.text
    await dynamic.change(KEY, "8")
    assert batch_size(broker) == 8
    stored = await metadata.get(PATH)
    assert stored is not None
    assert json.loads(stored.value) == {KEY: "8", NEWER: "x"}
    assert caplog.text.count(NEWER) == 1
    with pytest.raises(ConfigurationError, match="cannot be changed at run time"):
        await dynamic.change(NEWER, "y")
