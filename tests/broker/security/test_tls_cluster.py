"""Two brokers that are reached by TLS only, ask each other by TLS, and have a ZooKeeper by TLS.

Their clients prove who they are by certificates, tokens, or tokens of an OpenID Connect issuer (HTTPS).
"""

from __future__ import annotations

import json
import re
import ssl
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from jwt.algorithms import RSAAlgorithm

from ackgate.broker.security import new_key_pair, private_key, sign
from ackgate.network import TrialCertificates, make_trial_certificates
from ackgate.testing import AdminRefusedError, BrokerAdmin, BrokerProcess, ZooKeeperProcess
from tests.broker.security.secured import TOKENS_ON, token
from tests.broker.target import eventually
from tests.support.loopback_http import QuietHandler, http_served

pytestmark = pytest.mark.slow

PROVIDERS = [
    f"org.apache.pulsar.broker.authentication.{name}"
    for name in (
        "AuthenticationProviderTls",
        "AuthenticationProviderToken",
        "oidc.AuthenticationProviderOpenID",
    )
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrialCertificates:
    return make_trial_certificates(tmp_path_factory.mktemp("certificates"))


class Issuer:
    """An OpenID Connect issuer over HTTPS: publishes the keys that it has just now."""

    def __init__(self) -> None:
        self.url = ""
        self._pairs = {name: new_key_pair("RS256") for name in ("first", "second")}
        self.published = ["first"]

    def answer(self, path: str) -> dict[str, Any]:
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        return {"keys": [self._jwk(name) for name in self.published]}

    def _jwk(self, name: str) -> dict[str, Any]:
        public = serialization.load_der_public_key(self._pairs[name][1])
        return {**json.loads(RSAAlgorithm.to_jwk(public)), "kid": name}  # type: ignore[arg-type]

    def token(self, role: str, key: str) -> str:
        claims = {"iss": self.url, "aud": "ackgate", "sub": role, "exp": time.time() + 3600}
        return sign(private_key(self._pairs[key][0], "RS256", what="test"), claims, {"kid": key})


@pytest.fixture(scope="module")
def issuer(made: TrialCertificates) -> Iterator[Issuer]:
    running = Issuer()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made.server.certificate, made.server.key)

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            body = json.dumps(running.answer(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http_served(Handler, tls=tls) as url:
        running.url = url
        yield running


@pytest.fixture(scope="module")
def brokers(
    made: TrialCertificates, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory
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
            "bookkeeperTLSClientAuthentication": True,  # of no use with directories
            "bookkeeperTLSCertificateFilePath": made.server.certificate,
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
            "brokerClientAuthenticationPlugin": (
                "org.apache.pulsar.client.impl.auth.AuthenticationToken"
            ),
            "brokerClientAuthenticationParameters": f"token:{token('broker')}",
            **TOKENS_ON,
            "authenticationProviders": ",".join(PROVIDERS),
            "openIDAllowedTokenIssuers": issuer.url,
            "openIDAllowedAudiences": "ackgate",
            "openIDTokenIssuerTrustCertsFilePath": made.authority,
            "openIDKeyIdCacheMissRefreshSeconds": 0,
            "authorizationEnabled": True,
            "superUserRoles": "admin,client,broker",
        }
        first, second = (
            stack.enter_context(BrokerProcess(directory / f"broker-{number}", settings=settings))
            for number in range(2)
        )
        for broker in (first, second):  # each has heard of the other
            asked = admin(broker, made)
            eventually(lambda asked=asked: len(asked.get("brokers")) == 2)
        yield first, second


def admin(broker: BrokerProcess, made: TrialCertificates, shown: str | None = None) -> BrokerAdmin:
    """The admin interface for a certificate; `shown`: for a token, which counts more."""
    return BrokerAdmin(
        broker.admin_url, token=shown, authority=made.authority, certificate=made.clients["admin"]
    )


def client(broker: BrokerProcess, made: TrialCertificates, shown: str) -> pulsar.Client:
    pair = made.clients["client"]
    return pulsar.Client(
        broker.service_url,
        tls_trust_certs_file_path=str(made.authority),
        tls_validate_hostname=True,
        tls_certificate_file_path=str(pair.certificate),
        tls_private_key_file_path=str(pair.key),
        authentication=pulsar.AuthenticationToken(shown),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


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
        parts = json.loads(admin(first, made).own_text("ledgers/public/default/parted"))["topics"]
        assert {part["broker"] for part in parts} == {broker.admin_url for broker in brokers}
        assert sum(part["stats"]["numberOfEntries"] for part in parts) == 40

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


def test_when_the_certificates_expire_that_a_broker_shows_to_others(brokers, made) -> None:
    context = ssl.create_default_context(cafile=made.authority)
    pair = made.clients["admin"]
    context.load_cert_chain(pair.certificate, pair.key)
    with urllib.request.urlopen(f"{brokers[0].admin_url}/metrics", context=context) as answer:
        text = answer.read().decode()
    name = "ackgate_tls_client_certificate_expiry_timestamp_seconds"
    found = dict(re.findall(rf'^{name}{{.*to="(\w+)"}} (.*)$', text, re.MULTILINE))
    assert sorted(found) == ["brokers", "zookeeper"]
    assert all(float(when) > time.time() for when in found.values())


def test_a_role_and_the_topics_of_both_brokers(brokers, made) -> None:
    first = brokers[0]
    root = admin(first, made)
    root.create_tenant("shop")
    root.create_namespace("shop/orders")
    root.grant("shop/orders", "app", ["produce", "consume"])
    owners = {}
    for number in range(16):
        topic = f"shop/orders/t{number}"
        owners[topic] = root.ask("GET", f"topic/persistent/{topic}", root="lookup/v2")[
            "brokerUrlTls"
        ]
    here, there = (
        next(topic for topic, owner in owners.items() if owner == broker.service_url_tls)
        for broker in brokers
    )
    root.ask("POST", f"persistent/{there}/permissions/viewer", body=["consume"])

    app = client(first, made, token("app"))
    try:
        for topic in (here, there):
            consumer = app.subscribe(topic, "billing")
            app.create_producer(topic).send(b"hello")
            assert consumer.receive(timeout_millis=20_000).data() == b"hello"
    finally:
        app.close()
    stranger = client(first, made, token("stranger"))
    try:
        with pytest.raises(pulsar.AuthorizationError):
            stranger.subscribe(there, "billing")
    finally:
        stranger.close()

    # redirected to the other broker, which decides for itself
    stats = f"persistent/{there}/stats"
    assert admin(first, made, token("app")).get(stats)["msgInCounter"] == 1
    with pytest.raises(AdminRefusedError, match="'stranger' is not authorized"):
        admin(first, made, token("stranger")).get(stats)

    # what the page may not be redirected to is fetched for it
    shown = json.loads(admin(first, made, token("app")).own_text(f"ledgers/{there}"))
    [ledgers] = shown["topics"]
    assert (ledgers["broker"], ledgers["why"]) == (brokers[1].admin_url, None)
    assert ledgers["stats"]["numberOfEntries"] == 1
    with pytest.raises(AdminRefusedError, match="not authorized"):
        admin(first, made, token("stranger")).own_text(f"ledgers/{there}")

    def seen(role: str) -> list[tuple[str, str]]:
        view = json.loads(admin(first, made, token(role)).own_text("overview?rows=200"))
        assert view["missing"] == []
        assert len(view["rows"]) == view["total"] == view["matching"]
        return sorted((row["topic"], row["subscription"]) for row in view["rows"])

    of_both = sorted((f"persistent://{topic}", "billing") for topic in (here, there))
    eventually(lambda: seen("app") == of_both)
    assert seen("viewer") == [(f"persistent://{there}", "billing")]
    assert seen("stranger") == []
    assert set(of_both) <= set(seen("admin"))

    # a broker that may not ask the others names them, and shows what it has
    credentials = "brokers/configuration/brokerClientAuthenticationParameters"
    root.ask("POST", f"{credentials}/token:{token('nobody')}")

    def refused() -> str:
        view = json.loads(admin(first, made, token("app")).own_text("overview"))
        return " ".join(view["missing"])

    eventually(lambda: "only a superuser may ask" in refused())
    root.ask("DELETE", credentials)
    eventually(lambda: seen("app") == of_both)
    for broker in brokers:
        assert "Traceback" not in broker.log
        assert token("nobody") not in broker.log


def test_keys_of_an_issuer_change_while_brokers_run(brokers, made, issuer) -> None:
    def knows(key: str) -> bool:
        try:
            admin(brokers[0], made, issuer.token("app", key)).get("clusters")
        except AdminRefusedError as refused:
            return refused.status != 401
        return True

    assert knows("first")
    assert not knows("second")
    issuer.published = ["second"]
    assert knows("second")
    assert not knows("first")
    root = admin(brokers[0], made)
    root.grant("public/default", "app", ["produce"])
    app = client(brokers[0], made, issuer.token("app", "second"))
    try:
        app.create_producer("issued").send(b"hello")
    finally:
        app.close()
