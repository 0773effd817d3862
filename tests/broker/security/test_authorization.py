"""A broker with authorization: real clients do what their role was granted, and nothing else."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

from ackgate.broker.admin.app import SECTIONS
from ackgate.broker.security import need_of_command, need_of_path
from ackgate.broker.security.actions import Scope
from ackgate.broker.wire.errors import ServerError
from ackgate.broker.wire.intake import ROUTES
from ackgate.broker.wire.proto import pulsar_pb2 as pb
from ackgate.testing import BrokerProcess
from tests.broker.security.secured import TOKENS_ON, http, token
from tests.broker.target import eventually
from tests.support.wire_client import RefusedError, WireClient, WireConsumer, WireProducer

NUMBERS = itertools.count()
ROOT = token("root")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        **TOKENS_ON,
        "authorizationEnabled": True,
        "superUserRoles": "root",
        "proxyRoles": "proxy",
        "logLevel": "DEBUG",
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=settings) as process:
        yield process


class Namespace:
    """A namespace of this test alone, and the superuser's way to change it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.tenant = f"tenant-{next(NUMBERS)}"
        self.name = f"{self.tenant}/ns"
        self.topic = f"persistent://{self.name}/orders"
        assert self.admin("PUT", f"tenants/{self.tenant}", {"adminRoles": ["boss"]})[0] == 204
        assert self.admin("PUT", f"namespaces/{self.name}", role="boss")[0] == 204

    def admin(
        self, method: str, path: str, body: object = None, role: str = "root", **headers: str
    ) -> tuple[int, Any]:
        url = f"{self.broker.admin_url}/admin/v2/{path}"
        return http(url, token(role), method=method, body=body, **headers)

    def grant(self, role: str, *actions: str, topic: str = "") -> None:
        place = f"persistent/{self.name}/{topic}" if topic else f"namespaces/{self.name}"
        answer = self.admin("POST", f"{place}/permissions/{role}", list(actions), role="boss")
        assert answer[0] == 204, answer


@pytest.fixture
def namespace(broker: BrokerProcess) -> Namespace:
    return Namespace(broker)


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[Callable[[str], pulsar.Client]]:
    """A real client of a role."""
    clients = []

    def make(role: str) -> pulsar.Client:
        clients.append(
            pulsar.Client(
                broker.service_url,
                authentication=pulsar.AuthenticationToken(token(role)),
                operation_timeout_seconds=10,
                logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            )
        )
        return clients[-1]

    yield make
    for each in clients:
        each.close()


def test_a_role_does_what_it_was_granted(
    namespace: Namespace, client: Callable[[str], pulsar.Client]
) -> None:
    namespace.grant("writer", "produce")
    namespace.grant("reader", "consume", topic="orders")
    reader, writer = client("reader"), client("writer")
    consumer = reader.subscribe(namespace.topic, "worker")
    writer.create_producer(namespace.topic).send(b"hello")
    assert consumer.receive(60_000).data() == b"hello"
    for attempt in (
        lambda: reader.create_producer(namespace.topic),
        lambda: reader.subscribe(f"{namespace.topic}-2", "worker"),
        lambda: writer.subscribe(namespace.topic, "worker"),
        lambda: client("stranger").create_producer(namespace.topic),
    ):
        with pytest.raises(pulsar.AuthorizationError):
            attempt()


def test_a_namespace_that_nobody_made_takes_grants(
    broker: BrokerProcess, client: Callable[[str], pulsar.Client]
) -> None:
    url = f"{broker.admin_url}/admin/v2/namespaces/public/default/permissions/app"
    assert http(url, ROOT, method="POST", body=["produce"])[0] == 204
    client("app").create_producer("persistent://public/default/granted").send(b"hello")
    with pytest.raises(pulsar.AuthorizationError):
        client("stranger").create_producer("persistent://public/default/granted")


def test_a_right_that_is_taken_back_ends_what_it_allowed(
    namespace: Namespace, client: Callable[[str], pulsar.Client]
) -> None:
    namespace.grant("app", "produce", "consume")

    async def revoke() -> None:
        async with await WireClient.connect(
            "127.0.0.1", namespace.broker.port, token=token("app")
        ) as wire:
            producer = await wire.producer(namespace.topic)
            await producer.send(b"1")
            consumer = await wire.subscribe(namespace.topic, "worker")
            consumer.flow(10)
            path = f"namespaces/{namespace.name}/permissions/app"
            assert (await asyncio.to_thread(namespace.admin, "DELETE", path))[0] == 204
            await wire.until(lambda: len(wire.events) >= 2)
            types = {event.type for event in wire.events}
            assert types == {pb.BaseCommand.CLOSE_PRODUCER, pb.BaseCommand.CLOSE_CONSUMER}
            for again in (
                wire.producer(namespace.topic),
                wire.subscribe(namespace.topic, "worker"),
            ):
                with pytest.raises(RefusedError) as caught:
                    await again
                assert caught.value.code == ServerError.AUTHORIZATION

    asyncio.run(revoke())
    stats = namespace.admin("GET", f"persistent/{namespace.name}/orders/stats")[1]
    assert stats["publishers"] == []
    assert stats["subscriptions"]["worker"]["consumers"] == []


def test_subscriptions_are_reserved_and_begin_with_the_role(
    namespace: Namespace, client: Callable[[str], pulsar.Client]
) -> None:
    for role in ("one", "two"):
        namespace.grant(role, "consume")
    permissions = f"namespaces/{namespace.name}/permissions"
    assert namespace.admin("POST", f"{permissions}/subscription/billing", ["one"])[0] == 204
    assert namespace.admin("GET", f"{permissions}/subscription")[1] == {"billing": ["one"]}
    skip = f"persistent/{namespace.name}/orders/subscription/billing/skip_all"
    client("one").subscribe(namespace.topic, "billing").close()
    with pytest.raises(pulsar.AuthorizationError):
        client("two").subscribe(namespace.topic, "billing")
    assert namespace.admin("POST", skip, role="two")[0] == 403
    assert namespace.admin("POST", skip, role="one")[0] == 204
    assert namespace.admin("DELETE", f"{permissions}/billing/one")[0] == 204
    client("two").subscribe(namespace.topic, "billing").close()

    mode = f"namespaces/{namespace.name}/subscriptionAuthMode"
    assert namespace.admin("POST", mode, "Prefix")[0] == 204
    assert namespace.admin("GET", mode) == (200, "Prefix")
    with pytest.raises(pulsar.AuthorizationError):
        client("two").subscribe(namespace.topic, "billing")
    client("two").subscribe(namespace.topic, "two-billing").close()


def test_grants_are_shown_as_pulsar_shows_them(namespace: Namespace) -> None:
    namespace.grant("app", "produce", "consume")
    namespace.grant("app", "functions", topic="orders")
    namespace.grant("audit", "consume", topic="orders")
    place, topic = f"namespaces/{namespace.name}", f"persistent/{namespace.name}/orders"
    everywhere = {"app": ["consume", "produce"]}
    assert namespace.admin("GET", f"{place}/permissions", role="boss")[1] == everywhere
    here = {"app": ["consume", "functions", "produce"], "audit": ["consume"]}
    assert namespace.admin("GET", f"{topic}/permissions", role="boss")[1] == here
    assert namespace.admin("GET", f"{topic}-partition-3/permissions")[1] == here
    stored = namespace.admin("GET", place)[1]["auth_policies"]
    assert stored == {
        "namespace_auth": everywhere,
        "destination_auth": {namespace.topic: {"app": ["functions"], "audit": ["consume"]}},
        "subscription_auth_roles": {},
    }
    assert namespace.admin("DELETE", f"{topic}/permissions/audit")[0] == 204
    assert namespace.admin("DELETE", f"{topic}/permissions/audit")[0] == 412
    for wrong in (["fly"], "produce", None):
        assert namespace.admin("POST", f"{place}/permissions/x", wrong)[0] == 400
    copy = namespace.admin("PUT", f"namespaces/{namespace.tenant}/copy", {"auth_policies": stored})
    assert copy[0] == 204
    told = namespace.admin("GET", f"namespaces/{namespace.tenant}/copy/permissions")
    assert told[1] == everywhere


def test_a_deleted_topic_leaves_no_rights(namespace: Namespace) -> None:
    namespace.grant("app", "produce", topic="orders")
    topic = f"persistent/{namespace.name}/orders"
    assert namespace.admin("PUT", topic)[0] == 204
    assert namespace.admin("DELETE", topic)[0] == 204
    assert namespace.admin("GET", f"{topic}/permissions")[1] == {}


def test_a_tenants_admin_has_everything_in_it_and_nothing_outside(namespace: Namespace) -> None:
    other = Namespace(namespace.broker)
    tenant = f"tenants/{other.tenant}"
    assert namespace.admin("GET", tenant)[1]["adminRoles"] == ["boss"]
    assert namespace.admin("POST", tenant, {"adminRoles": ["chief"]})[0] == 204
    assert namespace.admin("GET", f"namespaces/{other.tenant}", role="chief")[0] == 200
    assert namespace.admin("GET", f"namespaces/{other.tenant}", role="boss")[0] == 403
    for path in ("tenants", "brokers", "brokers/configuration/runtime"):
        assert namespace.admin("GET", path, role="boss")[0] == 403
        assert namespace.admin("GET", path)[0] == 200
    assert namespace.admin("POST", tenant, {"adminRoles": [""]})[0] == 412
    for namespaces in (f"namespaces/{other.name}",):
        assert namespace.admin("DELETE", namespaces)[0] == 204
    assert namespace.admin("DELETE", tenant)[0] == 204
    assert namespace.admin("PUT", tenant, {})[0] == 204
    assert namespace.admin("GET", f"namespaces/{other.tenant}", role="chief")[0] == 403


def test_the_overview_has_what_a_role_may_look_at(namespace: Namespace) -> None:
    other = Namespace(namespace.broker)
    for place in (namespace, other):
        for name in ("billing", "audit"):
            path = f"persistent/{place.name}/orders/subscription/{name}"
            assert namespace.admin("PUT", path, role="boss")[0] == 204
    namespace.grant("viewer", "consume", topic="orders")
    reserved = f"namespaces/{namespace.name}/permissions/subscription/audit"
    assert namespace.admin("POST", reserved, ["someone"])[0] == 204

    def overview(role: str, query: str = "") -> tuple[int, Any]:
        return http(f"{namespace.broker.admin_url}/ackgate/overview?rows=200{query}", token(role))

    def seen(role: str, query: str = "") -> list[tuple[str, str]]:
        status, view = overview(role, query)
        assert status == 200, view
        rows = [(row["topic"], row["subscription"]) for row in view["rows"]]
        assert len(rows) == view["total"] == view["matching"] == sum(view["severities"].values())
        return rows

    everything = {
        (place.topic, name) for place in (namespace, other) for name in ("audit", "billing")
    }
    eventually(lambda: everything <= set(seen("root")))
    assert seen("viewer") == [(namespace.topic, "billing")]
    assert everything <= set(seen("boss"))  # but a reserved one is its tenant's admin's, too
    assert seen("stranger") == []
    assert seen("root", "&role=viewer") == [(namespace.topic, "billing")]
    assert seen("root", "&role=viewer&originalRole=stranger") == []
    assert overview("viewer", "&role=root")[0] == 403


def test_every_path_refuses_a_role_without_rights(namespace: Namespace) -> None:
    """Whatever the table says: of all routes, only those for every client answer this role."""
    names = {
        "tenant": namespace.tenant,
        "namespace": "ns",
        "topic": "orders",
        "subscription": "worker",
        "bundle": "0x00000000_0xffffffff",
        "role": "app",
        "cluster": "standalone",
        "broker": "b",
        "key": "superUserRoles",
        "value": "nobody",
    }
    for route in itertools.chain(*SECTIONS.values()):
        need = need_of_path(route.method, route.template)
        path = route.template
        for piece in route.template.split("/"):
            if piece.startswith("{"):
                path = path.replace(piece, names.get(piece[1:-1], "1"))
        url = f"{namespace.broker.admin_url}{path}"
        if need.scope is Scope.VISIBLE and path.endswith("/events"):
            assert http(url)[0] == 401  # with a token it goes on for ten minutes
            continue
        status, answer = http(url, token("nobody"), method=route.method)
        if need.scope in {Scope.NOTHING, Scope.METRICS, Scope.CLIENT, Scope.VISIBLE}:
            assert status in {200, 404}, (route.method, path, answer)  # 404: no such file
        else:
            assert status == 403, (route.method, path, answer)
            assert http(url, method=route.method)[0] == 401


def test_every_command_refuses_a_role_without_rights(namespace: Namespace) -> None:
    """A sample of each command that names a topic or namespace; the others need what these opened."""
    topic, request_id = namespace.topic, 77
    samples = {
        "PARTITIONED_METADATA": pb.BaseCommand(
            partitionMetadata=pb.CommandPartitionedTopicMetadata(topic=topic, request_id=request_id)
        ),
        "LOOKUP": pb.BaseCommand(
            lookupTopic=pb.CommandLookupTopic(topic=topic, request_id=request_id)
        ),
        "GET_SCHEMA": pb.BaseCommand(
            getSchema=pb.CommandGetSchema(topic=topic, request_id=request_id)
        ),
        "GET_OR_CREATE_SCHEMA": pb.BaseCommand(
            getOrCreateSchema=pb.CommandGetOrCreateSchema(
                topic=topic,
                request_id=request_id,
                schema=pb.Schema(name="s", schema_data=b"", type=pb.Schema.String),
            )
        ),
        "GET_TOPICS_OF_NAMESPACE": pb.BaseCommand(
            getTopicsOfNamespace=pb.CommandGetTopicsOfNamespace(
                namespace=namespace.name, request_id=request_id
            )
        ),
        "WATCH_TOPIC_LIST": pb.BaseCommand(
            watchTopicList=pb.CommandWatchTopicList(
                namespace=namespace.name, request_id=request_id, watcher_id=1, topics_pattern=".*"
            )
        ),
        "PRODUCER": pb.BaseCommand(
            producer=pb.CommandProducer(topic=topic, request_id=request_id, producer_id=1)
        ),
        "SUBSCRIBE": pb.BaseCommand(
            subscribe=pb.CommandSubscribe(
                topic=topic,
                subscription="s",
                subType=pb.CommandSubscribe.Shared,
                request_id=request_id,
                consumer_id=1,
            )
        ),
    }
    named = {Scope.TOPIC, Scope.NAMESPACE, Scope.TENANT, Scope.CLUSTER}
    commands = {pb.BaseCommand.Type.Name(number) for number in ROUTES}
    assert {name for name in commands if need_of_command(name).scope in named} == set(samples)

    async def ask_all(role: str, **fields: str) -> dict[str, str]:
        codes = {}
        async with await WireClient.connect(
            "127.0.0.1", namespace.broker.port, token=token(role), **fields
        ) as wire:
            for name, command in samples.items():
                command.type = pb.BaseCommand.Type.Value(name)
                try:
                    await wire.request(command, request_id)
                    codes[name] = ""
                except RefusedError as error:
                    codes[name] = error.code.name
        return codes

    assert set(asyncio.run(ask_all("nobody")).values()) == {"AUTHORIZATION"}
    namespace.grant("app", "produce", "consume")
    refused = {
        name for name, code in asyncio.run(ask_all("app")).items() if code == "AUTHORIZATION"
    }
    assert refused == set()
    proxied = asyncio.run(ask_all("proxy", original_principal="app"))
    assert set(proxied.values()) == {"AUTHORIZATION"}, "the proxy must be allowed, too"


def test_an_original_principal_of_one_request_is_for_proxies(namespace: Namespace) -> None:
    namespace.grant("app", "produce")
    namespace.grant("proxy", "produce", "consume")

    async def look_up(role: str, original: str, **fields: str) -> str:
        async with await WireClient.connect(
            "127.0.0.1", namespace.broker.port, token=token(role), **fields
        ) as wire:
            command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
            body = command.lookupTopic
            body.topic, body.request_id, body.original_principal = namespace.topic, 7, original
            try:
                await wire.request(command, 7)
            except RefusedError as error:
                return error.code.name
            return ""

    assert asyncio.run(look_up("app", "app")) == ""
    assert asyncio.run(look_up("app", "root")) == "AUTHORIZATION"
    assert asyncio.run(look_up("proxy", "app", original_principal="nobody")) == ""
    assert asyncio.run(look_up("proxy", "nobody", original_principal="app")) == "AUTHORIZATION"
    assert asyncio.run(look_up("proxy", "proxy", original_principal="app")) == "AUTHORIZATION"


def test_an_initial_subscription_needs_consume(namespace: Namespace) -> None:
    namespace.grant("app", "produce")

    async def attempt() -> tuple[WireProducer, WireConsumer] | None:
        async with await WireClient.connect(
            "127.0.0.1", namespace.broker.port, token=token("app")
        ) as wire:
            await wire.producer(namespace.topic)
            await wire.producer(namespace.topic, initial_subscription_name="s")
        return None

    with pytest.raises(RefusedError, match="AUTHORIZATION"):
        asyncio.run(attempt())


def test_a_superuser_of_run_time(namespace: Namespace) -> None:
    path = "brokers/configuration/superUserRoles"
    assert namespace.admin("GET", "tenants", role="second")[0] == 403
    assert namespace.admin("POST", f"{path}/root,second")[0] == 200
    assert namespace.admin("GET", "tenants", role="second")[0] == 200
    assert namespace.admin("DELETE", path)[0] == 200
    assert namespace.admin("GET", "tenants", role="second")[0] == 403


@pytest.mark.parametrize(
    "trick",
    [
        "persistent/{t}%2Fns/orders/stats",
        "persistent/public%2F..%2F{t}/ns/orders/stats",
        "persistent/{t}/ns/..%2Forders/stats",
        "persistent/{t}/ns//orders/stats",
        "persistent/{t}/ns/orders%2Fstats",
        "persistent/{t}/ns/orders/stats/",
        "persistent//{t}/ns/orders/stats",
        "./persistent/{t}/ns/orders/stats",
        "PERSISTENT/{t}/ns/orders/stats",
        "persistent/{t}/ns/%6Frders/stats",
    ],
)
def test_no_spelling_of_a_path_goes_round_the_table(namespace: Namespace, trick: str) -> None:
    other = Namespace(namespace.broker)
    assert namespace.admin("PUT", f"persistent/{namespace.name}/orders")[0] == 204
    other.grant("app", "produce", "consume")
    status, answer = namespace.admin("GET", trick.replace("{t}", namespace.tenant), role="app")
    assert status in {400, 403, 404, 405, 412}, answer
    assert "msgRateIn" not in str(answer)


def test_decisions_are_in_the_log(namespace: Namespace) -> None:
    namespace.grant("app", "produce")
    assert namespace.admin("GET", f"persistent/{namespace.name}", role="app")[0] == 200
    assert namespace.admin("GET", "tenants", role="app")[0] == 403

    def lines(level: str) -> list[str]:
        return [
            line
            for line in namespace.broker.log.splitlines()
            if f"level={level} logger=ackgate.broker.security.decisions" in line
        ]

    (allowed,) = eventually(
        lambda: [
            each for each in lines("DEBUG") if f"GET /admin/v2/persistent/{namespace.name}" in each
        ][-1:]
    )
    assert "'app'" in allowed
    (denied,) = eventually(
        lambda: [
            each
            for each in lines("INFO") + lines("DEBUG")
            if "'app' is not authorized for the cluster" in each
        ][-1:]
    )
    assert "127.0.0.1" in denied
    assert "superusers" in denied
