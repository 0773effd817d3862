"""Requests over HTTP whose writes of metadata get no answer are answered as if they had got one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from ackgate.persistence import MemoryMetadataStore
from tests.broker.admin.conftest import InProcessBroker
from tests.broker.security.secured import TOKENS_ON, http, token
from tests.support.faults import Fault, FaultPlan, Rule
from tests.support.faulty_metadata import FaultyMetadataStore

ROOT = token("root")


class Ask(NamedTuple):
    """A request; `@` in its path stands for the tenant."""

    status: int
    method: str
    path: str
    body: object = None


AVRO = {"type": "AVRO", "schema": '"int"', "properties": {}}
NAMESPACE = "namespaces/@/ns"
TOPIC = "persistent/@/ns/t"
PARTED = "persistent/@/ns/p"
SCHEMA = "schemas/@/ns/t/schema"
CLUSTERS = {"allowedClusters": ["standalone"]}

STORY = (
    Ask(204, "PUT", "tenants/@", {"adminRoles": ["boss"], **CLUSTERS}),
    Ask(409, "PUT", "tenants/@", {"adminRoles": ["boss"], **CLUSTERS}),
    Ask(204, "POST", "tenants/@", {"adminRoles": ["other"], **CLUSTERS}),
    Ask(204, "PUT", NAMESPACE, {"bundles": {"numBundles": 3}}),
    Ask(409, "PUT", NAMESPACE, {"bundles": {"numBundles": 3}}),
    Ask(204, "POST", f"{NAMESPACE}/permissions/app", ["produce"]),
    Ask(204, "POST", f"{NAMESPACE}/permissions/subscription/s", ["app", "audit"]),
    Ask(204, "DELETE", f"{NAMESPACE}/permissions/s/audit"),
    Ask(204, "DELETE", f"{NAMESPACE}/permissions/s/app"),
    Ask(404, "DELETE", f"{NAMESPACE}/permissions/s/app"),
    Ask(204, "POST", f"{NAMESPACE}/permissions/subscription/s", []),
    Ask(204, "DELETE", f"{NAMESPACE}/permissions/app"),
    Ask(204, "POST", f"{NAMESPACE}/subscriptionAuthMode", "Prefix"),
    Ask(204, "POST", f"{NAMESPACE}/messageTTL", 5),
    Ask(204, "DELETE", f"{NAMESPACE}/messageTTL"),
    Ask(204, "PUT", TOPIC),
    Ask(204, "POST", f"{TOPIC}/permissions/app", ["consume"]),
    Ask(204, "DELETE", f"{TOPIC}/permissions/app"),
    Ask(412, "DELETE", f"{TOPIC}/permissions/app"),
    Ask(204, "POST", f"{TOPIC}/messageTTL?messageTTL=5"),
    Ask(204, "PUT", f"{TOPIC}/subscription/s"),
    Ask(204, "DELETE", f"{TOPIC}/subscription/s"),
    Ask(200, "POST", SCHEMA, AVRO),
    Ask(200, "DELETE", SCHEMA),
    Ask(200, "POST", SCHEMA, AVRO),
    Ask(200, "DELETE", f"{SCHEMA}?force=true"),
    Ask(404, "GET", SCHEMA),
    Ask(200, "POST", SCHEMA, AVRO),
    Ask(409, "PUT", TOPIC),
    Ask(204, "PUT", f"{PARTED}/partitions", 2),
    Ask(409, "PUT", f"{PARTED}/partitions", 5),
    Ask(204, "POST", f"{PARTED}/partitions", 3),
    Ask(204, "DELETE", f"{PARTED}/partitions"),
    Ask(404, "DELETE", f"{PARTED}/partitions"),
    Ask(204, "DELETE", TOPIC),
    Ask(404, "DELETE", TOPIC),
    Ask(204, "DELETE", NAMESPACE),
    Ask(404, "DELETE", NAMESPACE),
    Ask(204, "DELETE", "tenants/@"),
    Ask(404, "DELETE", "tenants/@"),
    Ask(404, "GET", "tenants/@"),
    Ask(200, "POST", "brokers/configuration/brokerDeleteInactiveTopicsEnabled/true"),
    Ask(200, "DELETE", "brokers/configuration/brokerDeleteInactiveTopicsEnabled"),
)


class Teller:
    """Tells the story to a broker whose metadata store does what a plan says."""

    def __init__(self, broker: InProcessBroker, plan: FaultPlan) -> None:
        self._broker = broker
        self._plan = plan
        self._tenants = 0

    def tell(self, *faults: tuple[Fault, str, str, int]) -> list[str]:
        """The answers that are not as in the story, with the faults; each request suffers all of these."""
        self._tenants += 1
        wrong = []
        for ask in STORY:
            self._plan.injected.clear()
            self._plan.rules = [Rule(*each) for each in faults]
            url = f"{self._broker.url}/admin/v2/{ask.path.replace('@', f't{self._tenants}')}"
            status, value = http(url, ROOT, method=ask.method, body=ask.body)
            self._plan.rules = []
            if status != ask.status:
                told = f"{ask.method} {ask.path}: {status} {value}, not {ask.status}"
                wrong.append(f"{told}\n{self._plan.story()}")
        return wrong


@pytest.fixture(scope="module")
def teller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teller]:
    plan = FaultPlan()
    settings = {**TOKENS_ON, "authorizationEnabled": True, "superUserRoles": "root"}
    with InProcessBroker(
        tmp_path_factory.mktemp("broker"),
        settings,
        lambda: FaultyMetadataStore(MemoryMetadataStore(), plan),
    ) as broker:
        yield Teller(broker, plan)


def test_the_story_without_faults(teller: Teller) -> None:
    assert teller.tell() == []


@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.LANDS_LATE])
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("operation", ["create", "put", "delete"])
def test_a_write_without_an_answer_changes_no_answer(
    teller: Teller, fault: Fault, nth: int, operation: str
) -> None:
    wrong = teller.tell((fault, f"metadata.{operation}", "*", nth))
    assert not wrong, "\n".join(wrong)
