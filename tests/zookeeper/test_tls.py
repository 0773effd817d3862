"""ZooKeeper by TLS: with certificates on both sides, and what does not fit named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ackgate.config.persistence import PersistenceSettings
from ackgate.errors import ConfigurationError, MetadataStoreError
from ackgate.network import TrialCertificates, make_trial_certificates
from ackgate.persistence import ZooKeeperMetadataStore
from ackgate.persistence.metadata.session_options import SessionOptions
from ackgate.testing import ZooKeeperProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrialCertificates:
    return make_trial_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(
    made: TrialCertificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ZooKeeperProcess]:
    directory = tmp_path_factory.mktemp("secure")
    store = directory / "store.pem"
    store.write_bytes(made.server.key.read_bytes() + made.server.certificate.read_bytes())
    with ZooKeeperProcess(
        directory / "server", force_sync=False, tls=(store, made.authority)
    ) as server:
        yield server


def options(path: Path, *, seconds: int = 30, **properties: object) -> SessionOptions:
    lines = {"client.secure": "true"} | {
        name.replace("__", "."): value for name, value in properties.items()
    }
    path.write_text("".join(f"zookeeper.{name}={value}\n" for name, value in lines.items()))
    return SessionOptions.of(
        PersistenceSettings(
            metadata_store_config_path=str(path),
            metadata_store_operation_timeout_seconds=seconds,
            metadata_store_session_timeout_millis=30_000,  # a third of it for one handshake
        )
    )


def client_store(made: TrialCertificates, path: Path) -> Path:
    pair = made.clients["client"]
    path.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
    return path


async def test_nodes_large_and_small_go_by_tls(secure, made, tmp_path) -> None:
    chosen = options(
        tmp_path / "zk.conf",
        ssl__trustStore__location=made.authority,
        ssl__keyStore__location=client_store(made, tmp_path / "client.pem"),
    )
    store = await ZooKeeperMetadataStore.open(
        f"localhost:{secure.secure_port}/root", options=chosen
    )
    try:
        large = bytes(range(256)) * 2_000  # many records of TLS in one answer
        await store.create("/large", large)
        for number in range(200):
            await store.create(f"/small-{number}", b"%d" % number)
        found = await store.get("/large")
        assert found is not None
        assert found.value == large
        assert len(await store.children("/")) == 201
    finally:
        await store.close()


async def test_what_does_not_fit_is_named(secure, made, tmp_path) -> None:
    others = make_trial_certificates(tmp_path / "others")
    mine = client_store(made, tmp_path / "client.pem")

    async def refusal(**properties: object) -> str:
        chosen = options(tmp_path / "zk.conf", seconds=6, **properties)
        with pytest.raises(MetadataStoreError) as caught:
            await ZooKeeperMetadataStore.open(f"127.0.0.1:{secure.secure_port}", options=chosen)
        return str(caught.value)

    stranger = await refusal(
        ssl__trustStore__location=others.authority, ssl__keyStore__location=mine
    )
    assert "certificate verify failed" in stranger.lower()
    assert "no session with zk:127.0.0.1" in await refusal(ssl__trustStore__location=made.authority)


def test_files_that_cannot_be_used_are_refused(made, tmp_path) -> None:
    conf = tmp_path / "zk.conf"
    with pytest.raises(
        ConfigurationError, match=r"trustStore.location=/t.jks: a store of type JKS"
    ):
        options(conf, ssl__trustStore__location="/t.jks")
    with pytest.raises(ConfigurationError, match=r"trustStore.location=/t.pem: cannot be read"):
        options(conf, ssl__trustStore__location="/t.pem")
    with pytest.raises(ConfigurationError, match=r"keyStore.location=.*holds no private key"):
        options(conf, ssl__keyStore__location=made.authority)
    with pytest.raises(
        ConfigurationError, match=r"metadataStoreConfigPath=/nowhere: cannot be read"
    ):
        SessionOptions.of(PersistenceSettings(metadata_store_config_path="/nowhere"))
    assert options(conf, client__secure="false").tls is None
