"""Three servers, of which one dies, or all are silent."""

from __future__ import annotations

import asyncio

import pytest

from ackgate.errors import OutcomeUnknownError, SessionLostError
from ackgate.persistence import SessionState, ZooKeeperMetadataStore
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.testing import ZooKeeperEnsemble, ZooKeeperProcess
from tests.zookeeper.conftest import QUICK, Connect, States

pytestmark = pytest.mark.slow

PATIENT = SessionOptions(session_timeout_ms=6_000, operation_timeout_seconds=30)


async def _count_up(store: ZooKeeperMetadataStore, path: str, times: int) -> int:
    """Compare-and-set again and again; the version that must be there at the end."""
    node = await store.get(path)
    assert node is not None
    version = node.version
    for _ in range(times):
        try:
            version = await store.put(path, b"", expected_version=version)
        except OutcomeUnknownError:
            node = await store.get(path)
            assert node is not None
            assert node.version in {version, version + 1}
            version = node.version
    return version


def _server_of(store: ZooKeeperMetadataStore, ensemble: ZooKeeperEnsemble) -> ZooKeeperProcess:
    """The server that the store is connected to, by what each says of its clients' sessions."""
    assert store._session._bridge is not None
    session = f"sid=0x{store._session._bridge._client.client_id[0]:x}"
    [found] = [member for member in ensemble.servers if session in member.ask("cons")]
    return found


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_a_session_moves_to_another_server(
    ensemble: ZooKeeperEnsemble, connect: Connect, how: str
) -> None:
    store = await connect(ensemble.connection_string, PATIENT)
    states = States(store)
    await store.create("/mine", b"", ephemeral=True)
    await store.create("/count", b"")
    served = _server_of(store, ensemble)
    counting = asyncio.ensure_future(_count_up(store, "/count", 300))
    await asyncio.sleep(0.05)
    getattr(served, how)()
    version = await asyncio.wait_for(counting, 30)
    assert SessionState.LOST not in states.told
    node = await store.get("/count")
    assert node is not None
    assert node.version == version
    assert await store.get("/mine") is not None
    if how == "pause":
        served.resume()
        assert await _count_up(store, "/count", 10) == version + 10


async def test_without_a_majority_the_session_is_lost_and_then_renewed(
    ensemble: ZooKeeperEnsemble, connect: Connect
) -> None:
    store = await connect(ensemble.connection_string, QUICK)
    states = States(store)
    await store.create("/mine", b"", ephemeral=True)
    ensemble.pause()
    await states.until(SessionState.LOST)
    with pytest.raises(SessionLostError):
        await store.get("/mine")
    ensemble.resume()
    await store.renew()
    async with asyncio.timeout(20):
        while await store.get("/mine") is not None:
            await asyncio.sleep(0.05)
    await store.create("/mine", b"2", ephemeral=True)
    assert states.told == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
