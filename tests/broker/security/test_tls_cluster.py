"""Two brokers that are reached by TLS only, ask each other by TLS, and have a ZooKeeper by TLS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pulsar
import pytest

from ackgate.commands.terminal.access import AdminAccess
from ackgate.commands.terminal.admin_client import AdminClient
from ackgate.network import ClientTls, PemFile, TrialCertificates, make_trial_certificates
from ackgate.testing import BrokerProcess, ZooKeeperProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrialCertificates:
    return make_trial_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def brokers(
    made: TrialCertificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    directory = tmp_path_factory.mktemp("cluster")
    store = directory / "store.pem"
    store.write_bytes(made.server.certificate.read_bytes() + made.server.key.read_bytes())
    conf = directory / "zookeeper.conf"
    conf.write_text(
        "zookeeper.client.secure=true\n"
        f"zookeeper.ssl.trustStore.location={made.authority}\n"
        f"zookeeper.ssl.keyStore.location={store}\n"
    )
    with ExitStack() as stack:
        zookeeper = stack.enter_context(
            ZooKeeperProcess(directory / "zookeeper", force_sync=False, tls=(store, made.authority))
        )
        settings = {
            "metadataStoreUrl": f"zk:127.0.0.1:{zookeeper.secure_port}/tls",
            "metadataStoreConfigPath": conf,
            "bookieDirectories": directory / "bookie",
            "brokerServicePort": "",
            "brokerServicePortTls": 0,
            "webServicePort": "",
            "webServicePortTls": 0,
            "tlsCertificateFilePath": made.server.certificate,
            "tlsKeyFilePath": made.server.key,
            "tlsTrustCertsFilePath": made.authority,
            "tlsRequireTrustedClientCertOnConnect": True,
            "brokerClientTlsEnabled": True,
            "brokerClientTrustCertsFilePath": made.authority,
            "brokerClientCertificateFilePath": made.server.certificate,
            "brokerClientKeyFilePath": made.server.key,
        }
        first, second = (
            stack.enter_context(BrokerProcess(directory / f"broker-{number}", settings=settings))
            for number in range(2)
        )
        yield first, second


def admin(broker: BrokerProcess, made: TrialCertificates) -> AdminClient:
    pair = made.clients["admin"]
    tls = ClientTls(
        trust=PemFile("", str(made.authority)),
        certificate=PemFile("", str(pair.certificate)),
        key=PemFile("", str(pair.key)),
    )
    return AdminClient(broker.admin_url, access=AdminAccess(tls))


def test_topics_of_both_brokers_through_one(brokers, made) -> None:
    first = brokers[0]
    asked = admin(first, made)
    names = sorted(urlsplit(broker.admin_url).netloc for broker in brokers)
    assert sorted(asked.get("brokers")) == names
    asked.ask("PUT", "persistent/public/default/parted/partitions", body=8)
    pair = made.clients["client"]
    client = pulsar.Client(
        first.service_url,
        tls_trust_certs_file_path=str(made.authority),
        tls_validate_hostname=True,
        authentication=pulsar.AuthenticationTLS(str(pair.certificate), str(pair.key)),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    try:
        consumer = client.subscribe("parted", "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer("parted")
        for number in range(40):
            producer.send(b"%d" % number)
            consumer.acknowledge(consumer.receive(timeout_millis=20_000))

        served = {name: asked.get(f"brokers/standalone/{name}/ownedNamespaces") for name in names}
        assert all(served.values())  # the partitions are shared out
        for broker in brokers:  # each asks the other for its partitions
            stats = admin(broker, made).get("persistent/public/default/parted/partitioned-stats")
            assert stats["msgInCounter"] == 40

        bundles = sorted(served[names[0]])
        _, _, bundle = bundles[0].rpartition("/")
        namespace = "namespaces/public/default"
        asked.ask("PUT", namespace, f"{bundle}/unload?destinationBroker={names[1]}")
        for number in range(40):
            producer.send(b"%d" % number)
            consumer.acknowledge(consumer.receive(timeout_millis=20_000))
        assert bundles[0] in asked.get(f"brokers/standalone/{names[1]}/ownedNamespaces")
    finally:
        client.close()
    for broker in brokers:
        assert "Traceback" not in broker.log
