"""Namespaces, brokers and clusters over HTTP, as Pulsar 4.0.7 answers its own admin client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ackgate.broker.cluster.bundles import BUNDLES_MAX
from tests.broker.admin.conftest import InProcessBroker

NOT_TOLD = {
    "encryption_required",
}
EIGHT = [f"0x{eighth * 2**29:08x}" for eighth in range(8)] + ["0xffffffff"]


CLUSTERS = [
    (["standalone"], 204, None),
    (["standalone", "global"], 204, None),
    (None, 204, None),
    (["elsewhere"], 412, "Clusters do not exist"),
    (["standalone", "elsewhere"], 412, "Clusters do not exist"),
    ([1], 412, "Clusters do not exist"),
    ([["standalone"]], 412, "Clusters do not exist"),
    ([], 412, "Clusters cannot be empty or blank"),
    ([""], 412, "Clusters cannot be empty or blank"),
    ([None], 412, "Clusters cannot be empty or blank"),
    ("standalone", 400, "allowedClusters is not a list"),
]


def put(broker: InProcessBroker, name: str, body: object = None) -> int:
    return broker.ask("PUT", f"namespaces/public/{name}", body).status


def bundles(broker: InProcessBroker, name: str) -> Any:
    return broker.get(f"namespaces/public/{name}/bundles")


def test_a_namespace_gets_the_bundles_that_it_was_made_with(broker: InProcessBroker) -> None:
    assert put(broker, "eight", {"bundles": {"numBundles": 8}}) == 204
    assert bundles(broker, "eight") == {"boundaries": EIGHT, "numBundles": 8}
    assert broker.get("namespaces/public/eight")["bundles"]["numBundles"] == 8
    assert put(broker, "six", {"bundles": {"numBundles": "6"}}) == 204
    assert bundles(broker, "six")["numBundles"] == 6


def test_a_namespace_is_cut_where_that_is_said(broker: InProcessBroker) -> None:
    boundaries = ["0x00000000", "0x10000000", "0xffffffff"]
    wanted = {"boundaries": boundaries, "numBundles": 9}  # Pulsar goes by the boundaries
    assert put(broker, "cut", {"bundles": wanted}) == 204
    assert bundles(broker, "cut") == {"boundaries": boundaries, "numBundles": 2}


@pytest.mark.parametrize(
    "body",
    [
        None,
        {},
        {"bundles": None},
        {"bundles": {}},
        {"bundles": {"numBundles": 0}},
        {"bundles": {"numBundles": -3}},
        {"bundles": {"boundaries": ["0x10000000", "0x80000000"]}},
        {"numBundles": 8},
    ],
)
def test_a_namespace_without_a_number_of_bundles_gets_the_default(
    broker: InProcessBroker, body: object, request: pytest.FixtureRequest
) -> None:
    name = f"default-{request.node.callspec.indices['body']}"
    assert put(broker, name, body) == 204
    assert bundles(broker, name)["numBundles"] == 4


@pytest.mark.parametrize(
    "body",
    [
        [],
        7,
        {"bundles": 8},
        {"bundles": {"numBundles": "many"}},
        {"bundles": {"numBundles": 2.5}},
        {"bundles": {"numBundles": BUNDLES_MAX + 1}},
        {"bundles": {"numBundles": 10**30}},
        {"bundles": {"numBundles": 2, "boundaries": ["0x00000000", "0x80000000"]}},
        {"bundles": {"numBundles": 2, "boundaries": ["0xffffffff", "0x00000000"]}},
        {"bundles": {"numBundles": 2, "boundaries": 5}},
        {"bundles": {"numBundles": 2, "boundaries": [5]}},
        {"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}},
        {"retention_policies": 5},
        {"message_ttl_in_seconds": "soon"},
        {"dispatcherPauseOnAckStatePersistentEnabled": "yes"},
        {"delayed_delivery_policies": {"tickTime": "y"}},
        {"encryption_required": []},
        {"encryption_required": "yes"},
        {"auth_policies": {"namespace_auth": {"role": [["produce"]]}}},
    ],
)
def test_a_namespace_that_cannot_be_made_so_is_not_made(
    broker: InProcessBroker, body: object
) -> None:
    answer = broker.ask("PUT", "namespaces/public/impossible", body)
    assert answer.status == 400
    assert answer.value["reason"]
    assert broker.ask("GET", "namespaces/public/impossible").status == 404


def test_a_namespace_is_made_with_its_policies(broker: InProcessBroker) -> None:
    delayed = {"tickTime": 700, "active": True, "maxDeliveryDelayInMillis": 0}
    wanted = {
        "auth_policies": {
            "namespace_auth": {},
            "destination_auth": {},
            "subscription_auth_roles": {},
        },
        "encryption_required": False,
        "subscription_auth_mode": "None",
        "replication_clusters": ["standalone"],
        "retention_policies": {"retentionTimeInMinutes": 7, "retentionSizeInMB": 9},
        "message_ttl_in_seconds": 55,
        "delayed_delivery_policies": delayed,
        "dispatcherPauseOnAckStatePersistentEnabled": True,
        "max_producers_per_topic": 3,
        "max_topics_per_namespace": 4,
    }
    assert put(broker, "whole", wanted) == 204
    told = broker.get("namespaces/public/whole")
    for key in told.keys() & wanted.keys():
        assert told[key] == wanted[key], key
    assert told.keys() >= wanted.keys() - NOT_TOLD
    assert broker.get("namespaces/public/whole/messageTTL") == 55
    assert broker.get("namespaces/public/whole/delayedDelivery") == delayed


def test_a_namespace_of_another_cluster_is_refused(broker: InProcessBroker) -> None:
    answer = broker.ask("PUT", "namespaces/public/far", {"replication_clusters": ["elsewhere"]})
    assert answer.status == 403
    assert "Cluster [elsewhere] is not in the list" in answer.value["reason"]
    assert broker.ask("GET", "namespaces/public/far").status == 404


@pytest.mark.parametrize(
    "body",
    [
        {"encryption_required": True},
        {"auth_policies": {"namespace_auth": {"role": ["produce"]}}},
        {"subscription_auth_mode": "Prefix"},
    ],
)
def test_a_namespace_is_not_made_as_if_it_were_protected(
    broker: InProcessBroker, body: dict[str, object]
) -> None:
    answer = broker.ask("PUT", "namespaces/public/safe", body)
    assert answer.status == 412
    assert f"{next(iter(body))} protects nothing here" in answer.value["reason"]
    assert broker.ask("GET", "namespaces/public/safe").status == 404


def test_a_namespace_that_was_used_before_keeps_its_bundles_and_says_so(
    broker: InProcessBroker,
) -> None:
    assert put(broker, "again", {"bundles": {"numBundles": 3}}) == 204
    assert broker.ask("DELETE", "namespaces/public/again").status == 204
    answer = broker.ask("PUT", "namespaces/public/again", {"bundles": {"numBundles": 5}})
    assert answer.status == 409
    assert "keeps its 3 bundles" in answer.value["reason"]
    assert broker.ask("GET", "namespaces/public/again").status == 404
    assert put(broker, "again", {"bundles": {"numBundles": 3}}) == 204


def test_bundles_and_policies_of_a_new_namespace_outlive_the_broker(tmp_path: Path) -> None:
    body = {"bundles": {"numBundles": 8}, "message_ttl_in_seconds": 5}
    with InProcessBroker(tmp_path) as first:
        assert put(first, "kept", body) == 204
    with InProcessBroker(tmp_path) as second:
        assert bundles(second, "kept")["numBundles"] == 8
        assert second.get("namespaces/public/kept/messageTTL") == 5


def test_there_are_no_topics_that_are_not_persistent(broker: InProcessBroker) -> None:
    """Java's `topics().getList(namespace)` asks for both kinds, and fails if one of them does."""
    put(broker, "kinds")
    broker.ask("PUT", "persistent/public/kinds/t")
    topics = ["persistent://public/kinds/t"]
    assert broker.get("persistent/public/kinds") == topics
    assert broker.get("non-persistent/public/kinds") == []
    assert broker.get("non-persistent/public/kinds/partitioned") == []
    assert broker.get("namespaces/public/kinds/topics?mode=NON_PERSISTENT") == []
    for mode in ("PERSISTENT", "ALL", ""):
        assert broker.get(f"namespaces/public/kinds/topics?mode={mode}") == topics
    missing = broker.ask("GET", "non-persistent/public/nowhere")
    assert (missing.status, missing.value) == (404, {"reason": "Namespace does not exist"})


@pytest.mark.parametrize("body", [3, "3", " 3 ", "+3", 3.0, {"partitions": 3}, {"partitions": "3"}])
def test_a_number_of_partitions_may_be_a_text(broker: InProcessBroker, body: object) -> None:
    topic = "persistent/public/default/parted"
    assert broker.ask("PUT", f"{topic}/partitions", body).status == 204
    assert broker.get(f"{topic}/partitions")["partitions"] == 3
    assert broker.ask("POST", f"{topic}/partitions", "4").status == 204
    assert broker.get(f"{topic}/partitions")["partitions"] == 4
    assert broker.ask("DELETE", f"{topic}/partitions").status == 204


def test_other_numbers_may_be_texts_too(broker: InProcessBroker) -> None:
    put(broker, "numbers")
    assert broker.ask("POST", "namespaces/public/numbers/messageTTL", "77").status == 204
    assert broker.get("namespaces/public/numbers/messageTTL") == 77
    subscription = "persistent/public/numbers/t/subscription/s"
    broker.ask("PUT", subscription)
    position = {"ledgerId": "-1", "entryId": "-1"}
    assert broker.ask("POST", f"{subscription}/resetcursor", position).status == 204


def test_brokers_are_listed_by_the_name_of_their_cluster(broker: InProcessBroker) -> None:
    me = [broker.server.broker_id]
    assert broker.get("brokers") == me
    assert broker.get("brokers/standalone") == me
    for name in ("anything", "internal-configurations", "%20", "STANDALONE"):
        answer = broker.ask("GET", f"brokers/{name}")
        assert (answer.status, answer.value) == (404, {"reason": "Cluster does not exist"})


def test_the_internal_configuration_says_where_the_metadata_are(broker: InProcessBroker) -> None:
    url = f"sqlite:{broker.directory / 'metadata.sqlite'}"
    assert broker.get("brokers/internal-configuration") == {
        "zookeeperServers": url,
        "configurationStoreServers": url,
        "metadataStoreUrl": url,
        "configurationMetadataStoreUrl": url,
        "ledgersRootPath": "/ledgers",
    }


@pytest.mark.parametrize("roles", ["", 0, False, {}, "boss", [[]], [""]])
def test_admin_roles_that_are_none_are_refused(broker: InProcessBroker, roles: object) -> None:
    answer = broker.ask("PUT", "tenants/odd", {"adminRoles": roles})
    assert answer.status == 412
    assert answer.value["reason"].startswith("adminRoles: ")
    assert broker.ask("GET", "tenants/odd").status == 404


@pytest.mark.parametrize(("clusters", "status", "reason"), CLUSTERS)
def test_a_tenant_is_of_clusters_that_exist(
    broker: InProcessBroker, clusters: object, status: int, reason: str | None
) -> None:
    body = {"adminRoles": [], "allowedClusters": clusters}
    made = broker.ask("PUT", "tenants/of-clusters", body)
    assert (made.status, (made.value or {}).get("reason")) == (status, reason)
    assert broker.ask("GET", "tenants/of-clusters").status == (200 if status == 204 else 404)
    broker.ask("PUT", "tenants/of-clusters")
    changed = broker.ask("POST", "tenants/of-clusters", {**body, "adminRoles": ["boss"]})
    assert changed.status == status
    roles = ["boss"] if status == 204 else []
    assert broker.get("tenants/of-clusters")["adminRoles"] == roles
    assert broker.ask("DELETE", "tenants/of-clusters").status == 204


def test_nothing_is_deleted_with_force(broker: InProcessBroker) -> None:
    broker.ask("PUT", "tenants/forced")
    broker.ask("PUT", "namespaces/forced/ns")
    for path, what in (("tenants/forced", "tenants"), ("namespaces/forced/ns", "namespaces")):
        for each in (path, f"{path}-which-is-not-there"):
            answer = broker.ask("DELETE", f"{each}?force=true")
            assert (answer.status, answer.value) == (
                405,
                {"reason": f"Broker doesn't allow forced deletion of {what}"},
            )
        assert broker.ask("GET", path).status == 200
    assert broker.ask("DELETE", "namespaces/forced/ns?force=false").status == 204
    assert broker.ask("DELETE", "tenants/forced").status == 204
