"""Sources of settings: which one wins, what an error says, what a real `broker.conf` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ackgate.config import Settings, unused_keys
from ackgate.config.load import FILE_BYTES_MAX, load_settings
from ackgate.errors import ConfigurationError

REAL = Path(unused_keys.__file__).with_name("pulsar-4.0.conf")
RANGES = "managedLedgerMaxUnackedRangesToPersist"


def ranges(settings: Settings) -> int:
    return settings.persistence.managed_ledger_max_unacked_ranges_to_persist


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_without_sources_there_are_the_defaults() -> None:
    assert load_settings(environ={}).settings == Settings()


def test_the_last_source_wins(tmp_path: Path) -> None:
    file = write(tmp_path / "broker.conf", f"{RANGES}=1\n{RANGES}=2\n")
    pulsars = {f"PULSAR_PREFIX_{RANGES}": "3"}
    ours = {f"ACKGATE_{RANGES}": "4"}
    assert ranges(load_settings(file, environ={}).settings) == 2
    assert ranges(load_settings(file, environ=pulsars).settings) == 3
    assert ranges(load_settings(file, environ=pulsars | ours).settings) == 4
    sets = [f"{RANGES}=5", f"{RANGES} = 6"]
    assert ranges(load_settings(file, sets, pulsars | ours).settings) == 6


def test_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"ACKGATE_{RANGES}", "7")
    assert ranges(load_settings().settings) == 7


def test_an_empty_value_leaves_a_key_unset(tmp_path: Path) -> None:
    file = write(tmp_path / "broker.conf", f"{RANGES}=\nbrokerServicePort=7000\n")
    settings = load_settings(file, environ={f"ACKGATE_{RANGES}": " "}).settings
    assert ranges(settings) == 10_000
    assert settings.broker.broker_service_port == 7000


def test_an_empty_set_brings_back_the_default(tmp_path: Path) -> None:
    file = write(tmp_path / "broker.conf", f"{RANGES}=5\n")
    assert ranges(load_settings(file, [f"{RANGES}="], {}).settings) == 10_000


def test_a_real_broker_conf_loads_as_it_is() -> None:
    keys = {
        line.partition("=")[0].strip()
        for line in REAL.read_text().splitlines()
        if "=" in line and not line.startswith("#")
    }
    assert len(keys) > 360
    loaded = load_settings(REAL, environ={})
    assert loaded.settings.broker.bind_address == "0.0.0.0"
    assert loaded.settings.persistence.managed_ledger_default_mark_delete_rate_limit == 1.0
    assert loaded.settings.persistence.managed_cursor_info_compression_type == "NONE"
    assert (
        loaded.settings.broker.broker_delete_inactive_topics_max_inactive_duration_seconds is None
    )
    unused = {each.key: each for each in loaded.unused}
    assert {"loadBalancerEnabled", "httpMaxRequestHeaderSize"} < unused.keys()
    assert RANGES not in unused
    assert all(each.is_at_default for each in unused.values())


def test_a_broker_conf_gets_as_many_bookies_as_it_wants_copies() -> None:
    settings = load_settings(REAL, environ={}).settings
    assert settings.persistence.bookie_paths(Path("data")) == (
        Path("data/bookies/0"),
        Path("data/bookies/1"),
    )


@pytest.mark.parametrize(
    ("key", "text", "allowed"),
    [
        (RANGES, "ten", "a whole number from 0 to 2147483647 (ranges)"),
        (RANGES, "-1", "a whole number from 0 to 2147483647 (ranges)"),
        (RANGES, "1.5", "a whole number from 0 to 2147483647 (ranges)"),
        ("managedLedgerDefaultMarkDeleteRateLimit", "nan", "a number from 0 to 1000000 (writes/s)"),
        ("managedLedgerDefaultMarkDeleteRateLimit", "inf", "a number from 0 to 1000000 (writes/s)"),
        ("allowAutoTopicCreation", "maybe", "true or false"),
        ("managedLedgerDigestType", "MD5", "CRC32C, MAC, CRC32 or DUMMY"),
        ("brokerServicePort", "65536", "a whole number from 0 to 65535, or nothing"),
        (
            "subscriptionTypesEnabled",
            "Shared,Sharded,Foo",
            "a comma-separated list of Exclusive, Shared, Failover or Key_Shared",
        ),
        (
            "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
            "0",
            "a whole number from 1 to 2147483647 (s), or nothing",
        ),
        ("maxMessageSize", "99999999999", "a whole number from 1024 to 1073741824 (bytes)"),
    ],
)
def test_a_bad_value_says_where_what_and_what_is_allowed(
    tmp_path: Path, key: str, text: str, allowed: str
) -> None:
    file = write(tmp_path / "broker.conf", f"# a comment\n\n{key}={text}\n")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(file, environ={})
    assert str(caught.value) == f"{file}:3: {key}={text} is not allowed; it is {allowed}"

    with pytest.raises(ConfigurationError) as caught:
        load_settings(environ={f"ACKGATE_{key}": text})
    assert str(caught.value).startswith(f"environment ACKGATE_{key}: {key}={text} is not allowed")

    with pytest.raises(ConfigurationError) as caught:
        load_settings(None, [f"{key}={text}"], {})
    assert str(caught.value).startswith(f"--set: {key}={text} is not allowed")


def test_every_bad_value_is_named_at_once(tmp_path: Path) -> None:
    file = write(tmp_path / "broker.conf", f"brokerServicePort=x\n{RANGES}=y\n")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(file, ["logLevel=LOUD"], {})
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (
            ["managedLedgerDefaultWriteQuorum=2"],
            ">= managedLedgerDefaultAckQuorum, got 1, 2 and 1 (managedLedgerDefaultWriteQ",
        ),
        (
            ["dispatcherPauseOnAckStateResumeRanges=11", f"{RANGES}=10"],
            "need dispatcherPauseOnAckStateResumeRanges <= managedLedgerMaxUnackedRangesToPersist",
        ),
        (["maxEntryBytes=5000000"], "need maxEntryBytes >= maxMessageSize + 10240"),
        (["cursorRecordChunkBytes=5253120"], "need cursorRecordChunkBytes <= maxEntryBytes"),
        (
            ["managedLedgerMinLedgerRolloverTimeMinutes=300"],
            "need managedLedgerMinLedgerRolloverTimeMinutes <=",
        ),
        (
            ["managedLedgerDefaultEnsembleSize=2", "bookieDirectories=a, a"],
            "need at least managedLedgerDefaultEnsembleSize (2) different bookieDirectories",
        ),
    ],
)
def test_settings_must_fit_together(sets: list[str], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(None, sets, {})
    assert words in str(caught.value)
    assert "--set" in str(caught.value)


def test_the_entry_size_follows_the_message_size_unless_it_is_set() -> None:
    settings = load_settings(None, ["maxMessageSize=10485760"], {}).settings
    assert settings.persistence.max_entry_bytes == 10485760 + 10240


def test_a_mistyped_key_is_an_error_with_the_nearest_one_in_set() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(None, ["managedledgerMaxUnackedRangeToPersist=1"], {})
    assert str(caught.value) == (
        "--set: managedledgerMaxUnackedRangeToPersist is not a setting of this broker; "
        f"did you mean {RANGES}?"
    )
    with pytest.raises(ConfigurationError, match=r"not a setting of this broker$"):
        load_settings(None, ["zzz=1"], {})
    with pytest.raises(ConfigurationError, match="--set zzz: must have the form KEY=VALUE"):
        load_settings(None, ["zzz"], {})


def test_an_unused_key_is_only_noted_in_file_and_environment(tmp_path: Path) -> None:
    file = write(tmp_path / "broker.conf", "loadBalancerEnabled=true\nmade.up=1\nempty=\n")
    environ = {"PULSAR_PREFIX_fromImage": "x", "PULSAR_MEM": "1g", "HOME": "/"}
    loaded = load_settings(file, environ=environ)
    assert loaded.settings == Settings()
    assert [each.key for each in loaded.unused] == ["fromImage", "loadBalancerEnabled", "made.up"]


def test_variables_of_commands_and_of_kubernetes_are_no_settings() -> None:
    names = ("CLIENT_authParams", "COMMAND", "PORT", "PORT_6650_TCP", "BENCH_PULSAR_LIB")
    environ = {f"ACKGATE_{name}": "x" for name in names} | {"ACKGATE_BrokerServicePort": "1"}
    assert [each.key for each in load_settings(environ=environ).unused] == ["BrokerServicePort"]


def test_a_secret_is_never_shown() -> None:
    secret = "hunter2"
    settings = load_settings(None, [f"managedLedgerPassword={secret}"], {}).settings
    assert settings.persistence.managed_ledger_password.get_secret_value() == secret
    assert secret not in f"{settings!r} {settings} {settings.texts()}"


class TestOlderNames:
    KEY = "managedLedgerMaxUnackedRangesToPersistInMetadataStore"
    OLDER = "managedLedgerMaxUnackedRangesToPersistInZooKeeper"

    def limit(self, settings: Settings) -> int:
        return settings.persistence.managed_ledger_max_unacked_ranges_to_persist_in_metadata_store

    def test_an_older_name_wins_in_its_own_source_only(self, tmp_path: Path) -> None:
        file = write(tmp_path / "broker.conf", f"{self.OLDER}=5\n{self.KEY}=6\n")
        assert self.limit(load_settings(file, environ={}).settings) == 5
        assert self.limit(load_settings(file, [f"{self.KEY}=7"], {}).settings) == 7
        assert self.limit(load_settings(None, [f"{self.OLDER}=8"], {}).settings) == 8

    def test_minus_one_means_unset(self, tmp_path: Path) -> None:
        file = write(tmp_path / "broker.conf", f"{self.KEY}=6\n{self.OLDER}=-1\n")
        loaded = load_settings(file, environ={})
        assert self.limit(loaded.settings) == 6
        assert loaded.unused == ()

    def test_its_bad_value_is_shown_where_it_was_said(self, tmp_path: Path) -> None:
        file = write(tmp_path / "broker.conf", f"{self.OLDER}=many\n")
        with pytest.raises(ConfigurationError, match=rf":1: {self.KEY}=many is not allowed"):
            load_settings(file, environ={})

    def test_zookeeper_servers_are_a_metadata_store(self, tmp_path: Path) -> None:
        file = write(tmp_path / "broker.conf", "zookeeperServers=a:2181,b:2181\n")
        settings = load_settings(file, environ={}).settings
        assert settings.persistence.metadata_store_url == "zk:a:2181,b:2181"
        write(file, "zookeeperServers=a:2181\nmetadataStoreUrl=sqlite:x\n")
        assert load_settings(file, environ={}).settings.persistence.metadata_store_url == "sqlite:x"


class TestBadFiles:
    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"none\.conf: cannot be read: No such file"):
            load_settings(tmp_path / "none.conf", environ={})

    def test_a_directory_is_not_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
            load_settings(tmp_path, environ={})

    def test_a_huge_file_is_refused(self, tmp_path: Path) -> None:
        file = write(tmp_path / "big", b"#" * (FILE_BYTES_MAX + 1))
        with pytest.raises(ConfigurationError, match="larger than 1048576 bytes"):
            load_settings(file, environ={})

    def test_a_byte_order_mark_and_latin_1_are_read(self, tmp_path: Path) -> None:
        file = write(tmp_path / "bom", b"\xef\xbb\xbfclusterName=a\n")
        assert load_settings(file, environ={}).settings.broker.cluster_name == "a"
        write(file, b"clusterName=caf\xe9\n")
        assert load_settings(file, environ={}).settings.broker.cluster_name == "café"
