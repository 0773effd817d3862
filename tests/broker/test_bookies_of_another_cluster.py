"""A directory that another cluster uses is not used by this one, though its settings list it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ackgate.broker.server import BrokerServer
from ackgate.config.load import load_settings
from ackgate.errors import ConfigurationError
from ackgate.persistence import MemoryMetadataStore
from ackgate.persistence.metadata.memory import MemoryTree


async def start(directory: Path, tree: MemoryTree, *bookies: Path) -> BrokerServer:
    keys = {
        "brokerServicePort": 0,
        "webServicePort": 0,
        "bookieDirectories": ",".join(map(str, bookies)),
    }
    settings = load_settings(None, [f"{key}={value}" for key, value in keys.items()]).settings
    return await BrokerServer.start(settings, directory, metadata=MemoryMetadataStore(tree))


async def test_it_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    other = await start(tmp_path / "other", MemoryTree(), theirs)
    tree = MemoryTree()
    with pytest.raises(ConfigurationError, match="belongs to another cluster"):
        await start(tmp_path / "new", tree, theirs)
    await (await start(tmp_path / "new", tree, ours)).stop()
    again = await start(tmp_path / "new", tree, ours, theirs)
    assert [identity.rpartition("-")[0] for identity in again.storage.names] == ["ours"]
    assert f"{theirs} is left out for now: bookie {theirs} belongs to another" in caplog.text
    await again.stop()
    with pytest.raises(ConfigurationError, match="belongs to another cluster"):
        await start(tmp_path / "new", tree, theirs)
    await other.stop()
