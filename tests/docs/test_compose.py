"""`docker-compose.yml` and `Dockerfile`: sound in form, pinned, and they run the real command.

No container engine is needed. The models take what the Compose specification allows of the keys
used here, and nothing else; where the docker command has compose, it has the last word.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, StringConstraints

from ackgate.commands import cli
from ackgate.config.load import load_settings
from ackgate.testing import BrokerProcess

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yml"

Duration = Annotated[str, StringConstraints(pattern=r"^(\d+(us|ms|s|m|h))+$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]+$")]
Port = Annotated[str, StringConstraints(pattern=r"^([\d.]+:)?(\d+:)?\d+(/(tcp|udp))?$")]
Mount = Annotated[str, StringConstraints(pattern=r"^[^:]+:/[^:]+(:(ro|rw))?$")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class HealthCheck(Strict):
    test: list[str]
    interval: Duration
    timeout: Duration
    retries: int
    start_period: Duration | None = None


class Dependency(Strict):
    condition: Literal["service_started", "service_healthy", "service_completed_successfully"]
    required: bool = True


class Service(Strict):
    image: str
    pid: Annotated[str, StringConstraints(pattern=r"^service:[a-z0-9-]+$")] | None = None
    build: str | None = None
    profiles: list[Name] = []
    hostname: Name | None = None
    entrypoint: list[str] | None = None
    command: list[str] | None = None
    restart: Literal["no", "always", "on-failure", "unless-stopped"]
    environment: dict[str, str] = {}
    ports: list[Port] = []
    volumes: list[Mount] = []
    depends_on: dict[Name, Dependency] = {}
    healthcheck: HealthCheck | None = None
    stop_grace_period: Duration | None = None
    read_only: bool = False
    tmpfs: list[str] = []
    cap_drop: list[Literal["ALL"]] = []
    security_opt: list[Literal["no-new-privileges:true"]] = []


class Compose(Strict):
    name: Name
    services: dict[Name, Service]
    volumes: dict[Name, None]


ENVIRONMENT_FILE = ROOT / "examples/compose_bookkeeper.env"


def read_compose(variables: dict[str, str]) -> Compose:
    """The file with these variables in place of `${NAME:-default}` and `${NAME-default}`."""

    def value(found: re.Match[str]) -> str:
        name, colon, default = found.groups()
        given = variables.get(name)
        return default if given is None or (colon and not given) else given

    text = re.sub(r"\$\{(\w+)(:?)-([^}]*)\}", value, COMPOSE_FILE.read_text())
    stated = yaml.safe_load(text)
    extensions = [key for key in stated if key.startswith("x-")]  # only anchors to merge
    environments = [service.get("environment", {}) for service in stated["services"].values()]
    for environment in environments:
        environment.update({k: v or "" for k, v in environment.items()})
    return Compose.model_validate({k: v for k, v in stated.items() if k not in extensions})


@pytest.fixture(scope="module")
def compose() -> Compose:
    return read_compose({})


@pytest.fixture(scope="module")
def on_bookkeeper() -> Compose:
    lines = ENVIRONMENT_FILE.read_text().splitlines()
    return read_compose(dict(line.split("=", 1) for line in lines if not line.startswith("#")))


BROKERS = ("broker-1", "broker-2")
BOOKIES = ("bookie-1", "bookie-2", "bookie-3")


def dockerfile(instruction: str) -> list[str]:
    """What stands behind every such instruction."""
    found = re.findall(rf"^{instruction} (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert found
    return found


def test_the_services_are_there(compose: Compose) -> None:
    always = {name for name, service in compose.services.items() if not service.profiles}
    assert always == {"zookeeper", *BROKERS, "demo"}
    profiles = {name: service.profiles for name, service in compose.services.items()}
    assert {name for name in profiles if profiles[name] == ["bookkeeper"]} == {
        "bookkeeper-init",
        *BOOKIES,
    }
    assert {name for name in profiles if profiles[name] == ["secured"]} == {"secured"}
    assert set(profiles) == {*always, "bookkeeper-init", *BOOKIES, "secured"}


def test_every_image_is_pinned(compose: Compose) -> None:
    images = [service.image for service in compose.services.values()]
    images += [line.split()[0] for line in dockerfile("FROM")]
    for image in images:
        assert re.search(r":\d+\.\d+\.\d+", image), f"{image} is not pinned to a version"


def test_servers_are_watched_and_clients_wait_for_them(compose: Compose) -> None:
    for name, service in compose.services.items():
        assert (service.healthcheck is None) == (name in {"demo", "bookkeeper-init"})
        for needed, dependency in service.depends_on.items():
            is_server = compose.services[needed].healthcheck is not None
            assert (dependency.condition == "service_healthy") == is_server
            # What belongs to a profile may be left out.
            is_left_out = set(compose.services[needed].profiles) - set(service.profiles)
            assert dependency.required == (not is_left_out)


def test_state_lies_in_named_volumes(compose: Compose) -> None:
    mounted = {
        mount.split(":")[0]
        for service in compose.services.values()
        for mount in service.volumes
        if not mount.startswith(".")
    }
    assert mounted == set(compose.volumes)


def test_ports_are_open_to_this_machine_only(compose: Compose) -> None:
    for service in compose.services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.ports)


@pytest.mark.parametrize("name", BROKERS)
def test_the_command_is_the_one_that_is_run_by_hand(compose: Compose, name: str) -> None:
    broker = compose.services[name]
    assert broker.command is not None
    (image_command,) = dockerfile("CMD")
    own = json.loads(image_command)
    assert broker.command[: len(own)] == own
    assert broker.command[0] == "ackgate"

    arguments: Any = cli.command_parser().parse_args(broker.command[1:])
    assert str(arguments.data_dir) in broker.volumes[0].split(":")
    loaded = load_settings(None, arguments.overrides, broker.environment)
    assert loaded.settings.broker.advertised_address == name
    assert loaded.unused == ()


def test_the_brokers_share_metadata_and_bookies_and_nothing_else(compose: Compose) -> None:
    first, second = (compose.services[name] for name in BROKERS)
    assert first.environment == second.environment
    settings = load_settings(None, (), first.environment).settings.persistence
    assert settings.metadata_store_url.startswith("zk:zookeeper:2181")
    assert set(first.volumes) & set(second.volumes) == {"bookies:/bookies"}
    assert not settings.is_on_bookkeeper
    places = settings.bookie_paths(Path("/data"))
    assert len(places) == settings.managed_ledger_default_ensemble_size
    assert all(place.is_relative_to("/bookies") for place in places)


def test_with_the_profile_the_brokers_are_on_real_bookies(
    compose: Compose, on_bookkeeper: Compose
) -> None:
    broker = on_bookkeeper.services["broker-1"]
    loaded = load_settings(None, (), broker.environment)
    assert loaded.unused == loaded.of_directories == ()
    settings = loaded.settings.persistence
    conf = (ROOT / "examples/bookkeeper.conf").read_text()
    assert f"\nmetadataServiceUri={settings.bookkeeper_metadata_service_uri}\n" in conf
    assert settings.managed_ledger_default_ensemble_size == len(BOOKIES)
    directories = load_settings(None, (), compose.services["broker-1"].environment)
    # A metadata store has ledgers of one kind.
    assert settings.metadata_store_url != directories.settings.persistence.metadata_store_url
    for name in BOOKIES:
        bookie = on_bookkeeper.services[name]
        assert bookie.hostname == name  # which is its id
        assert f"{name}-data:/data" in bookie.volumes
    assert "COMPOSE_PROFILES=bookkeeper\n" in ENVIRONMENT_FILE.read_text()


def test_the_demo_can_kill_a_broker(compose: Compose) -> None:
    assert {compose.services[name].pid for name in BROKERS} == {"service:demo"}


def test_the_demo_runs_an_example_that_exists(compose: Compose) -> None:
    demo = compose.services["demo"]
    assert demo.command is not None
    program = demo.command[1]
    assert demo.volumes == ["./examples:/examples:ro"]
    assert (ROOT / program.removeprefix("/")).is_file()


def test_the_image_does_not_run_as_root() -> None:
    (user,) = dockerfile("USER")
    assert user == "10001:10001"  # Kubernetes' runAsNonRoot wants a number
    assert any("--uid 10001" in line for line in dockerfile("RUN"))


def test_the_image_and_the_services_are_watched_alike(compose: Compose) -> None:
    (check,) = re.findall(r"^    CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for name in BROKERS:
        health = compose.services[name].healthcheck
        assert health is not None
        assert health.test == ["CMD", *json.loads(check)]


def test_what_the_image_copies_is_not_ignored() -> None:
    let_in = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied: set[str] = set()
    for line in dockerfile("COPY"):
        if not line.startswith("--from"):
            copied |= set(line.split()[:-1])
    assert copied == let_in


DEPLOYING = (ROOT / "docs" / "deploying.md").read_text()
SECURED = DEPLOYING.partition("### With TLS and tokens")[2].partition("\n## ")[0]


def test_the_secured_broker_answers_by_tls_alone(compose: Compose) -> None:
    service = compose.services["secured"]
    broker = load_settings(None, (), service.environment).settings.broker
    assert broker.broker_service_port is None
    assert broker.web_service_port is None
    ports = {broker.broker_service_port_tls, broker.web_service_port_tls}
    assert set(service.ports) == {f"127.0.0.1:{port}:{port}" for port in ports}
    assert service.healthcheck is not None
    assert f"https://127.0.0.1:{broker.web_service_port_tls}/" in service.healthcheck.test[-1]


@pytest.mark.slow
def test_the_page_leads_to_a_client_with_tls_and_a_token(compose: Compose, tmp_path: Path) -> None:
    """The commands in the container, and the program, with another directory and free ports."""
    service, data = compose.services["secured"], tmp_path / "data"
    tools = Path(sys.executable).parent
    inside = re.findall(r"^docker compose .* secured (ackgate .*)$", SECURED, re.MULTILINE)
    assert len(inside) == 3
    for command in inside:
        run(f"{shlex.quote(str(tools))}/{command.replace('/data', str(data))}", cwd=tmp_path)
    shutil.copy(data / "certificates" / "ca.pem", tmp_path)
    settings = {
        key.removeprefix("ACKGATE_"): "0" if value in {"6661", "8443"} else value
        for key, value in service.environment.items()
    }
    settings = {key: value.replace("/data", str(data)) for key, value in settings.items()}
    with BrokerProcess(data / "broker", settings={**settings, "bindAddress": "0.0.0.0"}) as broker:
        (program,) = re.findall(r"```python\n(.*?)```", SECURED, re.DOTALL)
        assert "pulsar+ssl://localhost:6661" in program
        program = program.replace("pulsar+ssl://localhost:6661", broker.service_url)
        program += "client.create_producer('orders').send(b'hello')\nclient.close()\n"
        (tmp_path / "program.py").write_text(program)
        run(f"{shlex.quote(sys.executable)} program.py", cwd=tmp_path)
        assert service.healthcheck is not None
        check = service.healthcheck.test[-1].replace("/data", str(data))
        check = check.replace("https://127.0.0.1:8443", broker.admin_url)
        subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
        closed = check.replace("brokers/health", "clusters")
        refused = subprocess.run(
            [sys.executable, "-c", closed], capture_output=True, text=True, timeout=60, check=False
        )
        assert "HTTP Error 401" in refused.stderr


def run(command: str, *, cwd: Path) -> None:
    subprocess.run(["bash", "-e", "-c", command], cwd=cwd, check=True, timeout=60)


def test_docker_compose_agrees() -> None:
    docker = shutil.which("docker") or pytest.skip("there is no docker command here")
    version = subprocess.run([docker, "compose", "version"], check=False, capture_output=True)
    if version.returncode:
        pytest.skip("the docker command here has no compose")
    subprocess.run(
        [docker, "compose", "-f", str(COMPOSE_FILE), "config", "--quiet"], check=True, timeout=60
    )
