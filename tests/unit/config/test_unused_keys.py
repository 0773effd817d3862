"""Keys without effect: which matter, which are misspelt, and which must not be passed over."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from ackgate.commands.cli import main
from ackgate.config import unused_keys
from ackgate.config.load import OLDER_NAMES, load_settings
from ackgate.config.settings import DYNAMIC_KEYS, FIELDS
from ackgate.config.unused_keys import (
    DEPRECATED,
    SECURITY_KEYS,
    SECURITY_SWITCHES,
    pulsar_defaults,
)
from ackgate.errors import ConfigurationError
from ackgate.testing import BrokerFailedError, BrokerProcess

REAL = Path(unused_keys.__file__).with_name("pulsar-4.0.conf")


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    return tmp_path / "broker.conf"


# ---------------------------------------------------------------------------------- security


@pytest.mark.parametrize("key", sorted(SECURITY_KEYS))
def test_a_switch_that_asks_for_security_is_refused_from_every_source(conf: Path, key: str) -> None:
    on = "true"
    conf.write_text(f"clusterName=c\n{key}={on}\n")
    sources = (
        (conf, [], {}, f"{conf}:2"),
        (None, [], {f"PULSAR_PREFIX_{key}": on}, f"environment PULSAR_PREFIX_{key}"),
        (None, [], {f"ACKGATE_{key}": on}, f"environment ACKGATE_{key}"),
        (None, [f"{key}={on}"], {}, "--set"),
    )
    for file, sets, environ, origin in sources:
        with pytest.raises(ConfigurationError) as caught:
            load_settings(file, sets, environ)
        assert f"{origin}: {key} asks for: " in str(caught.value)
        assert f"--set {key}=" in str(caught.value)


@pytest.mark.parametrize("key", sorted(SECURITY_KEYS))
def test_what_the_refusal_proposes_switches_it_off(conf: Path, key: str) -> None:
    conf.write_text(f"{key}=true\n")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(conf, environ={})
    proposed = str(caught.value).rpartition("--set ")[2]
    load_settings(conf, [proposed], {})


@pytest.mark.parametrize("key", sorted(SECURITY_KEYS))
def test_a_switch_that_is_off_is_a_key_like_any_other(conf: Path, key: str) -> None:
    for off in ("", "false"):
        conf.write_text(f"{key}={off}\n")
        assert [each.key for each in load_settings(conf, environ={}).unused] == [key] * bool(off)


def test_a_switch_that_pulsar_would_not_understand_is_meant_all_the_same(conf: Path) -> None:
    conf.write_text("encryptionRequireOnProducer=yes\n")
    with pytest.raises(ConfigurationError, match="encryptionRequireOnProducer asks for"):
        load_settings(conf, environ={})


def test_the_last_source_decides(conf: Path) -> None:
    conf.write_text("encryptionRequireOnProducer=true\n")
    load_settings(conf, environ={"PULSAR_PREFIX_encryptionRequireOnProducer": "false"})
    conf.write_text("encryptionRequireOnProducer=true\nencryptionRequireOnProducer=false\n")
    load_settings(conf, environ={})


def test_all_switches_are_named_at_once_and_no_secret(conf: Path) -> None:
    conf.write_text(
        "encryptionRequireOnProducer=true\ntlsEnabledWithKeyStore=true\ntokenSecretKey=hunter2\n"
        "brokerClientAuthenticationParameters=token:hunter2\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        load_settings(conf, environ={})
    assert f"{conf}:1: encryptionRequireOnProducer" in str(caught.value)
    assert f"{conf}:2: tlsEnabledWithKeyStore" in str(caught.value)
    assert "--set tlsEnabledWithKeyStore=false --set encryptionRequireOnProducer=false" in str(
        caught.value
    )
    assert "hunter2" not in str(caught.value)


def test_what_belongs_to_a_switch_that_is_off_protects_nothing_in_pulsar_either(
    conf: Path,
) -> None:
    conf.write_text("tlsKeyStore=/k\nencryptionAnything=1\nsaslJaasServerSectionName=x\n")
    assert len(load_settings(conf, environ={}).unused) == 3


def test_a_tool_that_nobody_connects_to_reads_the_file(conf: Path) -> None:
    conf.write_text(
        "encryptionRequireOnProducer=true\nclusterName=safe\nauthenticationEnabled=true\n"
        "authenticationProviders=org.example.Unknown\n"
    )
    assert load_settings(conf, environ={}, is_serving=False).settings.broker.cluster_name == "safe"


def test_a_port_that_encrypts_is_what_an_older_switch_asks_for(conf: Path) -> None:
    conf.write_text("tlsEnabled=true\nwebServicePortTls=8443\ntlsCertificateFilePath=/c.pem\n")
    assert [each.key for each in load_settings(conf, environ={}).unused] == ["tlsEnabled"]


# -------------------------------------------------------------------------------- the lists


def test_every_name_in_the_lists_is_pulsars() -> None:
    defaults = pulsar_defaults()
    assert len(defaults) > 540
    assert defaults.keys() >= SECURITY_KEYS
    assert defaults.keys() >= DEPRECATED
    assert defaults.keys() >= OLDER_NAMES.keys()
    assert not SECURITY_KEYS & FIELDS.keys(), "it is built: take it out of SECURITY_SWITCHES"
    assert not SECURITY_KEYS & DYNAMIC_KEYS


def test_pulsars_defaults_switch_nothing_on() -> None:
    for switch in SECURITY_SWITCHES:
        default = pulsar_defaults()[switch.key]
        assert not default or not switch.is_on(default)


@pytest.mark.parametrize(
    ("key", "text", "is_default"),
    [
        ("loadBalancerEnabled", "TRUE", True),
        ("loadBalancerEnabled", "false", False),
        ("httpRequestsMaxPerSecond", "100", True),
        ("httpRequestsMaxPerSecond", "100.5", False),
        ("brokerClient_anything", "x", False),
        ("nonsense", "", False),
    ],
)
def test_what_counts_as_pulsars_default(
    conf: Path, key: str, text: str, *, is_default: bool
) -> None:
    environ = {f"ACKGATE_{key}": text or "x"}
    (unused,) = load_settings(environ=environ).unused
    assert unused.is_at_default is is_default
    assert unused.is_known is (key != "nonsense")


# ----------------------------------------------------------------------------- the command


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("ACKGATE_", "PULSAR_PREFIX_")):
            monkeypatch.delenv(name)


def check(*arguments: str) -> int:
    return main(["config", "check", *arguments])


def test_a_file_that_says_what_pulsar_does_anyway(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(str(REAL)) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{REAL}: the broker starts\n")
    assert "loadBalancerEnabled" in out
    assert "tlsEnabled (deprecated)" in out
    assert "\\n" not in out
    assert max(map(len, out.splitlines()[1:])) <= 100
    assert "in effect: " in out


def test_what_is_in_a_file_does_not_move_the_cursor(
    conf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf.write_bytes(b"a\x00\x1b[2Jb=1\nmanagedLedgerMaxUnackedRangesToPersist=\x1b[H\n")
    assert check(str(conf)) == 2
    out = capsys.readouterr().out
    assert "a\\x00\\x1b[2Jb" in out
    assert all(line.isprintable() for line in out.splitlines())


def test_a_file_that_has_everything(
    conf: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    conf.write_text(
        "clusterName=prod\nencryptionRequireOnProducer=true\nbrokerServicePort=sixty\n"
        "loadBalancerEnabled=false\nnumIOThreads=8\ntlsTrustStorePassword=hunter2\n"
        "zookeeperServers=zk1:2181\nzooKeeperSessionTimeoutMillis=30000\n"
        "authenticationEnable=hunter3\nzzz.zzz=1\n"
    )
    key = "transactionCoordinatorEnabled"
    monkeypatch.setenv(f"PULSAR_PREFIX_{key}", "true")
    assert check(str(conf)) == 2
    out = capsys.readouterr().out
    assert "hunter" not in out
    lines = [" ".join(line.replace(str(conf), "FILE").split()) for line in out.splitlines()]
    for line in (
        "FILE: the broker would not start",
        "FILE:2 encryptionRequireOnProducer=true only encrypted messages are taken",
        "FILE:3: brokerServicePort=sixty is not allowed; it is a whole number from 0 to 65535, or nothing",
        "FILE:9 authenticationEnable did you mean authenticationEnabled?",
        "FILE:10 zzz.zzz",
        "FILE:4 loadBalancerEnabled=false Pulsar: true",
        "FILE:5 numIOThreads=8 Pulsar: nothing",
        "FILE:6 tlsTrustStorePassword=****** Pulsar: nothing",
        "FILE:8 zooKeeperSessionTimeoutMillis=30000 Pulsar: -1, deprecated",
        "FILE:7 zookeeperServers counts as metadataStoreUrl",
        f"environment PULSAR_PREFIX_{key} {key}=true Pulsar: false",
        "in effect: 3 keys",
    ):
        assert line in lines, out

    assert check(str(conf), "--json") == 2
    out = capsys.readouterr().out
    assert "hunter" not in out
    told = json.loads(out)
    assert told["starts"] is False
    assert [each["key"] for each in told["security"]] == ["encryptionRequireOnProducer"]
    assert [each["meant"] for each in told["unknown"]] == ["authenticationEnabled", None]
    assert told["older"] == {"zookeeperServers": "metadataStoreUrl"}
    assert told["inEffect"] == ["brokerServicePort", "clusterName", "metadataStoreUrl"]


ON_BOOKKEEPER = "bookkeeperMetadataServiceUri=zk+hierarchical://zk1:2181;zk2:2181/ledgers\n"


def test_the_exit_code_says_how_bad_it_is(
    conf: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for text, code in (
        ("", 0),
        ("clusterName=c\nloadBalancerEnabled=true\n", 0),
        ("loadBalancerEnabled=false\n", 1),
        ("zzz=1\n", 1),
        (f"{ON_BOOKKEEPER}auditorPeriodicCheckInterval=60\n", 1),
        (f"{ON_BOOKKEEPER}managedLedgerDefaultEnsembleSize=3\n", 0),
        (f"{ON_BOOKKEEPER}bookieDirectories=a,b\n", 2),
        ("brokerServicePort=x\n", 2),
        ("encryptionRequireOnProducer=true\nloadBalancerEnabled=false\n", 2),
        (r"a=\uXYZ", 2),
    ):
        conf.write_text(text)
        assert check(str(conf)) == code, text
    assert check(str(conf.parent / "none.conf")) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert check() == 0
    monkeypatch.setenv("ACKGATE_loadBalancerEnabled", "false")
    assert check() == 1


# --------------------------------------------------------------------------------- the start


@pytest.mark.slow
def test_a_broker_does_not_start_unprotected_and_counts_what_has_no_effect(
    conf: Path, tmp_path: Path
) -> None:
    conf.write_text("encryptionRequireOnProducer=true\nloadBalancerEnabled=false\nzzz=1\n")

    class Configured(BrokerProcess):
        def command(self) -> list[str]:
            return [*super().command(), "--config", str(conf)]

    broker = Configured(tmp_path / "data")
    with pytest.raises(BrokerFailedError, match="exit code 2") as caught:
        broker.start()
    assert f"{conf}:1: encryptionRequireOnProducer asks for: " in str(caught.value)
    assert not (tmp_path / "data").exists()

    with Configured(tmp_path / "data", settings={"encryptionRequireOnProducer": "false"}) as broker:
        warnings = [line for line in broker.log.splitlines() if "have no effect" in line]
    (warning,) = warnings
    assert logging.getLevelName(logging.WARNING) in warning
    assert "3 keys of the configuration have no effect here" in warning
    assert "1 that are not at Pulsar's default, 1 that Pulsar does not know" in warning
    assert f"`ackgate config check {conf}` lists them" in warning
