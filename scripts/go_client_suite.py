"""The tests of Pulsar's Go client against ackgate: ``python -m scripts.go_client_suite WORK_DIR [TEST ...]``.

Needs Go and, the first time, the network; about fifteen minutes. The broker has the suite's own settings as
far as they are `TAKEN`, and free ports, which the suite's addresses become. Each test runs alone, since one
that panics ends the others of its process.

Exit code 0: `KNOWN` explains all that failed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ackgate.testing import BrokerAdmin, BrokerProcess

MODULE: Final = "github.com/apache/pulsar-client-go"
VERSION: Final = "v0.19.0"
PACKAGES: Final = ("pulsar", "pulsaradmin/pkg/admin")
TEST_SECONDS_MAX: Final = 90

TAKEN: Final = (
    "acknowledgmentAtBatchIndexLevelEnabled",
    "allowAutoSubscriptionCreation",
    "allowAutoTopicCreation",
    "anonymousUserRole",
    "authenticationEnabled",
    "authenticationProviders",
    "authorizationEnabled",
    "clusterName",
    "maxMessageSize",
    "maxUnackedMessagesPerConsumer",
    "superUserRoles",
    "tlsCertificateFilePath",
    "tlsKeyFilePath",
    "tlsTrustCertsFilePath",
    "tokenSecretKey",
)
"""Without the rate of durable writes, one in ten seconds: here a receipt waits for one."""

_TRANSACTIONS: Final = "there are no transactions"
_NON_PERSISTENT: Final = "there are no non-persistent topics"
_QUOTA: Final = "there is no backlog quota"
_DOCKER: Final = "the test starts a Pulsar of its own in a container"
_SETTING: Final = "it is a setting of the broker, not a policy"
_NOTHING: Final = "there is nothing that this policy would change"
_CLUSTER: Final = "the test wants a cluster that it describes"
KNOWN: Final = {
    r"TestTxn_.*": _TRANSACTIONS,
    r"TestNamespaceTopics.*|TestNonPersistentTopic": _NON_PERSISTENT,
    r"TestSendTimeout|TestSendContextExpired|TestProducerReconnectWhenBacklogQuotaExceed": _QUOTA,
    r"Test.*KeepReconnectingAndThenCallClose|TestReconnect.*": _DOCKER,
    r"TestSendAsyncCouldTimeoutWhileReconnecting": _DOCKER,
    r"Test.*Clustered.*|TestExtensibleLoadManager.*|TestBlueGreen.*|TestOAuth2": _CLUSTER,
    r"TestProducerWithSchemaAndConsumerSchemaNotFound": "a deleted schema stays readable for its messages",
    r"TestUpdateDynamicConfigurationWithCustomURL": "a setting that is true or false takes no other value",
    r"TestSetTopicAutoCreation": "the words of an error",
    r"Test(Namespaces_Set)?SchemaCompatibilityStrategy|TestSchemaValidationEnforced": _SETTING,
    r"Test(Topics_)?.*(Rate|Persistence|ReplicationClusters)": _NOTHING,
    r"TestDeduplicationSnapshotInterval|TestOffloadPolicies": _NOTHING,
    r"TestNamespaces_.*(Offload|CompactionThreshold|BookieAffinity|SubscriptionExpiration).*": _NOTHING,
    r"TestSchemas_CreateSchemaBySchemaInfo": "there is no path that finds a schema's version",
    r"Test(Partitioned)?TopicStatsTimestamps": "the fields are of a Pulsar after 4.0",
    r"Test(Non)?PartitionState": "statistics are always whole",
}


def main(work: Path, chosen: list[str]) -> int:
    """Run the tests; print each that failed, and why if that is known."""
    work = work.resolve()
    source = _source(work)
    with BrokerProcess(work / "data", settings=_settings(source / "integration-tests")) as broker:
        _prepare(broker, (source / "integration-tests/tokens/admin-token").read_text().strip())
        _put_addresses(source, broker)
        failed, tests = [], 0
        for package in PACKAGES:
            binary = work / f"{Path(package).name}.test"
            _run(["go", "test", "-c", "-o", str(binary), "."], source / package)
            for test in _listed(binary, source / package):
                if not chosen or test in chosen:
                    tests += 1
                    if not _passes(binary, source / package, test, work):
                        failed.append(test)
    unknown = [test for test in failed if _why(test) is None]
    for test in failed:
        print(f"{test}: {_why(test) or 'failed; see ' + str(_log(work, test))}")
    print(f"{tests - len(failed)} of {tests} passed, {len(unknown)} failed for no known reason")
    return 1 if unknown else 0


def _source(work: Path) -> Path:
    """A new copy of the client's source, which may be written to."""
    source = work / "source"
    shutil.rmtree(source, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    found = json.loads(_run(["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"], work))
    shutil.copytree(found["Dir"], source)
    _run(["chmod", "-R", "u+w", str(source)], work)
    return source


def _settings(suite: Path) -> dict[str, object]:
    """The suite's `standalone.conf`, with its files where they are."""
    settings: dict[str, object] = {}
    for line in (suite / "conf/standalone.conf").read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and key in TAKEN:
            settings[key] = value.replace("/pulsar/", f"{suite}/")
    return settings | {
        "advertisedAddress": "localhost",
        "brokerServicePortTls": 0,
        "webServicePortTls": 0,
        "basicAuthConf": suite / "conf/.htpasswd",
    }


def _prepare(broker: BrokerProcess, token: str) -> None:
    """What the suite's own script does before the tests."""
    admin = BrokerAdmin(broker.admin_url, token=token)
    grant = ["produce", "consume"]
    admin.ask("POST", "tenants", "public", body={"adminRoles": ["anonymous"]})
    admin.grant("public/default", "anonymous", grant)
    admin.create_tenant("private")
    admin.create_namespace("private/auth")
    admin.grant("private/auth", "token-principal", grant)


def _put_addresses(source: Path, broker: BrokerProcess) -> None:
    found = {
        6650: broker.service_url,
        6651: broker.service_url_tls,
        8080: broker.admin_url,
        8443: broker.admin_url_tls,
    }
    ports = {
        f"localhost:{theirs}": f"localhost:{urlsplit(url).port}" for theirs, url in found.items()
    }
    for path in source.rglob("*.go"):
        text = path.read_text()
        put = re.sub("|".join(ports), lambda address: ports[address[0]], text)
        if put != text:
            path.write_text(put)


def _listed(binary: Path, package: Path) -> list[str]:
    return [
        line
        for line in _run([str(binary), "-test.list", "."], package).splitlines()
        if line.startswith("Test")
    ]


def _passes(binary: Path, package: Path, test: str, work: Path) -> bool:
    command = [str(binary), "-test.v", f"-test.timeout={TEST_SECONDS_MAX}s", f"-test.run=^{test}$"]
    with _log(work, test).open("wb") as log:
        return (
            subprocess.run(command, cwd=package, stdout=log, stderr=log, check=False).returncode
            == 0
        )


def _log(work: Path, test: str) -> Path:
    return work / f"{test}.log"


def _why(test: str) -> str | None:
    return next((why for pattern, why in KNOWN.items() if re.fullmatch(pattern, test)), None)


def _run(command: list[str], where: Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=where).stdout


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2:]))
