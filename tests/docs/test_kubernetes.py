"""`deploy/kubernetes/`: allowed by Kubernetes' schemas, agreed with itself, and understood by the broker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from ackgate.broker.security import need_of_path
from ackgate.commands import cli
from ackgate.config.load import load_settings
from ackgate.config.settings import Settings

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "deploy" / "kubernetes"
SCHEMAS = json.loads((Path(__file__).parent / "kubernetes_schemas" / "v1.34.json").read_text())
ONE, SEVERAL = "broker.yaml", "cluster.yaml"
BOTH = pytest.mark.parametrize("name", [ONE, SEVERAL])
POD = {"POD_NAME": "ackgate-0", "POD_NAMESPACE": "shop"}
POD_IP = "10.244.0.7"


@cache
def objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((PLACE / name).read_text()))


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [each for each in objects(name) if each["kind"] == kind]


def stateful_set(name: str) -> Any:
    (found,) = of_kind(name, "StatefulSet")
    return found["spec"]


def pod(name: str) -> Any:
    return stateful_set(name)["template"]["spec"]


def broker(name: str) -> Any:
    (container,) = pod(name)["containers"]
    return container


def mistakes(stated: dict[str, Any]) -> list[str]:
    definition = SCHEMAS["kinds"][f"{stated['apiVersion']} {stated['kind']}"]
    validator = Draft7Validator({"$ref": f"#/$defs/{definition}", "$defs": SCHEMAS["$defs"]})
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(stated)]


def environment(name: str) -> dict[str, str]:
    """That of the broker in pod 0."""
    return {
        each["name"]: re.sub(r"\$\((\w+)\)", lambda found: POD[found[1]], each["value"])
        for each in broker(name)["env"]
        if "value" in each
    }


def settings(name: str, tmp_path: Path) -> Settings:
    """As the broker in pod 0 would read them. Every key must have an effect."""
    (stated,) = of_kind(name, "ConfigMap")
    file = tmp_path / "broker.conf"
    file.write_text(stated["data"]["broker.conf"])
    program, *words = broker(name)["command"]
    arguments: Any = cli.command_parser().parse_args(words)
    assert program == "ackgate"
    assert arguments.config.name in stated["data"]
    loaded = load_settings(file, arguments.overrides, environment(name))
    assert loaded.unused == loaded.of_directories == ()
    return loaded.settings


@BOTH
def test_kubernetes_understands_it(name: str) -> None:
    assert [mistakes(each) for each in objects(name)] == [[]] * len(objects(name))


def test_a_misspelt_key_would_be_found() -> None:
    wrong = json.loads(json.dumps(of_kind(ONE, "StatefulSet")[0]))
    container = wrong["spec"]["template"]["spec"]["containers"][0]
    container["readynessProbe"] = container.pop("readinessProbe")
    container["ports"][0]["containerPort"] = "6650"
    found = mistakes(wrong)
    assert len(found) == 2
    assert "readynessProbe" in str(found)
    assert "containerPort" in str(found)


@BOTH
def test_clients_are_led_to_the_pods_name(name: str, tmp_path: Path) -> None:
    read = settings(name, tmp_path).broker
    headless, for_clients = of_kind(name, "Service")
    governing = headless["metadata"]["name"]
    assert stateful_set(name)["serviceName"] == governing
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"]
    assert read.advertised_address == f"ackgate-0.{governing}.shop.svc.cluster.local"
    assert read.bind_address == "0.0.0.0"
    assert for_clients["metadata"]["name"] in read.web_service_allowed_hosts


@BOTH
def test_ports_and_probes_are_the_brokers(name: str, tmp_path: Path) -> None:
    read = settings(name, tmp_path).broker
    ports = {each["name"]: each["containerPort"] for each in broker(name)["ports"]}
    assert ports == {"pulsar": read.broker_service_port, "http": read.web_service_port}
    for service in of_kind(name, "Service"):
        assert {each["targetPort"]: each["port"] for each in service["spec"]["ports"]} == ports
    (policy,) = of_kind(name, "NetworkPolicy")
    (rule,) = policy["spec"]["ingress"]
    assert {each["port"] for each in rule["ports"]} == set(ports)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = broker(name)[probe]["httpGet"]
        assert asked["port"] == "http"
        assert need_of_path("GET", asked["path"]).is_open  # credentials are not asked for


@BOTH
def test_everything_selects_the_brokers(name: str) -> None:
    labels = stateful_set(name)["template"]["metadata"]["labels"]
    selected = [stateful_set(name)["selector"]["matchLabels"]]
    selected += [each["spec"]["selector"] for each in of_kind(name, "Service")]
    selected += [
        each["spec"]["selector"]["matchLabels"] for each in of_kind(name, "PodDisruptionBudget")
    ]
    selected += [
        each["spec"]["podSelector"]["matchLabels"] for each in of_kind(name, "NetworkPolicy")
    ]
    assert selected == [labels] * len(selected)


@BOTH
def test_it_runs_as_the_images_user_and_writes_to_its_volumes_alone(name: str) -> None:
    security = pod(name)["securityContext"]
    assert security["runAsNonRoot"]
    user, group = security["runAsUser"], security["runAsGroup"]
    assert f"\nUSER {user}:{group}\n" in (ROOT / "Dockerfile").read_text()
    own = broker(name)["securityContext"]
    assert own["readOnlyRootFilesystem"]
    assert not own["allowPrivilegeEscalation"]
    assert own["capabilities"] == {"drop": ["ALL"]}
    volumes = {each["name"] for each in pod(name)["volumes"]}
    claims = stateful_set(name).get("volumeClaimTemplates", [])
    volumes |= {each["metadata"]["name"] for each in claims}
    mounts = {each["mountPath"]: each for each in broker(name)["volumeMounts"]}
    assert {each["name"] for each in mounts.values()} == volumes
    arguments: Any = cli.command_parser().parse_args(broker(name)["command"][1:])
    assert str(arguments.data_dir) in mounts
    assert mounts[str(arguments.config.parent)]["readOnly"]


@BOTH
def test_a_stop_has_the_time_that_the_broker_takes(name: str, tmp_path: Path) -> None:
    takes_ms = settings(name, tmp_path).broker.broker_shutdown_timeout_ms
    assert pod(name)["terminationGracePeriodSeconds"] * 1000 > takes_ms


def test_one_broker_keeps_all_on_its_volume(tmp_path: Path) -> None:
    read = settings(ONE, tmp_path).persistence
    assert stateful_set(ONE)["replicas"] == 1
    assert not read.metadata_store_url
    assert not read.is_on_bookkeeper
    (claim,) = stateful_set(ONE)["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "data"


def test_pod_0_runs_answers_its_probes_and_stops(tmp_path: Path) -> None:
    """Its own command and environment; its volumes are folders, its ports are free ones."""
    (config,) = of_kind(ONE, "ConfigMap")
    (tmp_path / "broker.conf").write_text(config["data"]["broker.conf"])
    folders = {"/etc/ackgate/broker.conf": tmp_path / "broker.conf", "/data": tmp_path / "data"}
    words = [str(folders.get(word, word)) for word in broker(ONE)["command"]]
    command = [sys.executable, "-m", *words, "--port", "0", "--http-port", "0"]
    search_path = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(ONE) | search_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        name = environment(ONE)["ACKGATE_advertisedAddress"]
        found = re.fullmatch(rf"ackgate ready pulsar://{name}:(\d+) http://{name}:(\d+)\n", ready)
        assert found is not None, ready
        service_port, web_port = found.groups()
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            status, _ = asked(web_port, broker(ONE)[probe]["httpGet"]["path"], POD_IP)
            assert status == 200, probe
        lookup = "/lookup/v2/topic/persistent/public/default/orders"
        status, answer = asked(web_port, lookup, "ackgate.shop")
        assert (status, json.loads(answer)["brokerUrl"]) == (200, f"pulsar://{name}:{service_port}")
        assert asked(web_port, lookup, "attacker.example")[0] == 403
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=pod(ONE)["terminationGracePeriodSeconds"]) == 0


def asked(port: str, path: str, host: str) -> tuple[int, bytes]:
    """Status and body, as whoever knows the broker as `host` gets them."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    request.add_header("Host", f"{host}:{port}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_several_brokers_share_zookeeper_and_bookkeeper(tmp_path: Path) -> None:
    read = settings(SEVERAL, tmp_path).persistence
    assert stateful_set(SEVERAL)["replicas"] > 1
    assert read.metadata_store_url.startswith("zk:")
    assert read.is_on_bookkeeper
    (budget,) = of_kind(SEVERAL, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
