"""Properties of namespaces, as Pulsar 4.0.7 answers."""

from __future__ import annotations

from pathlib import Path

from ackgate.broker.admin.http.call import PROPERTIES_MAX
from tests.broker.admin.conftest import InProcessBroker

NAMESPACE = "namespaces/public/labelled"
ALL = f"{NAMESPACE}/properties"
ONE = f"{NAMESPACE}/property"


def test_properties_are_added_and_removed(broker: InProcessBroker) -> None:
    assert broker.ask("GET", ALL).status == 404
    assert broker.ask("PUT", ALL, {"a": "1"}).status == 404
    broker.ask("PUT", NAMESPACE)
    assert broker.get(ALL) == {}
    assert broker.ask("PUT", ALL, {"a": "1", "b": "2"}).status == 204
    assert broker.ask("PUT", ALL, {"b": "3"}).status == 204
    assert broker.get(ALL) == broker.get(NAMESPACE)["properties"] == {"a": "1", "b": "3"}
    assert broker.ask("PUT", f"{ONE}/c/x%20y").status == 204
    told = broker.ask("GET", f"{ONE}/c")
    assert (told.status, told.text) == (200, "x y")
    assert broker.ask("DELETE", f"{ONE}/c").text == "x y"
    for method in ("GET", "DELETE"):
        absent = broker.ask(method, f"{ONE}/c")
        assert (absent.status, absent.text) == (200, "")
    assert broker.ask("DELETE", ALL).status == 204
    assert broker.get(ALL) == {}
    assert "properties" not in broker.get(NAMESPACE)


def test_they_are_bounded(broker: InProcessBroker) -> None:
    broker.ask("PUT", NAMESPACE)
    most = {f"k{number}": "" for number in range(PROPERTIES_MAX)}
    assert broker.ask("PUT", ALL, most).status == 204
    assert broker.ask("PUT", f"{ONE}/one/more").status == 400
    assert broker.ask("PUT", ALL, {"k0": "x" * 60_000}).status == 204
    assert broker.ask("PUT", ALL, {"k1": "x" * 60_000}).status == 412
    for body in ([1], {"k": 1}, "text"):
        assert broker.ask("PUT", ALL, body).status == 400
    assert broker.ask("DELETE", ALL).status == 204


def test_they_outlive_the_broker(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path) as first:
        assert first.ask("PUT", NAMESPACE, {"properties": {"a": "1"}}).status == 204
        assert first.ask("POST", f"{NAMESPACE}/messageTTL", 5).status == 204
    with InProcessBroker(tmp_path) as second:
        assert second.get(ALL) == {"a": "1"}
