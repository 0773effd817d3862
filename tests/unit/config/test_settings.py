"""What every setting must have, how it stands to Pulsar's, and change at run time."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import get_origin

import pydantic
import pytest

from ackgate.config import DispatcherSettings, PersistenceSettings, Settings
from ackgate.config.field import about, allowed, bounds, is_secret, key_of
from ackgate.config.load import load_settings
from ackgate.config.settings import DYNAMIC_KEYS, FIELDS, ROOMS
from ackgate.config.unused_keys import pulsar_defaults
from ackgate.errors import ConfigurationError

HERE = Path(__file__).parent
PULSAR_DYNAMIC_KEYS = set((HERE / "dynamic-keys-4.0.txt").read_text().split())
PULSAR_DEFAULTS = pulsar_defaults()
PAUSE = "dispatcherPauseOnAckStatePersistentEnabled"


@pytest.mark.parametrize(
    ("attribute", "key"),
    [
        ("default_retention_size_in_mb", "defaultRetentionSizeInMB"),
        ("managed_ledger_max_size_per_ledger_mbytes", "managedLedgerMaxSizePerLedgerMbytes"),
        ("cluster_name", "clusterName"),
        ("broker_service_port_tls", "brokerServicePortTls"),
        ("bookkeeper_tls_key_file_path", "bookkeeperTLSKeyFilePath"),
    ],
)
def test_keys_are_spelt_as_pulsar_spells_them(attribute: str, key: str) -> None:
    assert key_of(attribute) == key


def test_no_key_is_in_two_rooms() -> None:
    assert len(FIELDS) == sum(len(room.model_fields) for room in ROOMS.values())


@pytest.mark.parametrize("key", FIELDS)
def test_every_setting_is_described_and_bounded(key: str) -> None:
    field = FIELDS[key]
    assert field.description
    assert field.description.endswith(".")
    assert allowed(field)
    if field.annotation in (int, float, int | None):
        lowest, highest = bounds(field)
        assert lowest is not None
        assert highest is not None
        assert about(field).unit or key.endswith(("Port", "PortTls"))


@pytest.mark.parametrize("key", FIELDS)
def test_a_setting_stands_to_pulsars_as_it_says(key: str) -> None:
    field = FIELDS[key]
    known = about(field)
    assert known.is_own == (key not in PULSAR_DEFAULTS)
    if known.is_own:
        assert not known.departs_because
        return
    assert known.is_dynamic == (key in PULSAR_DYNAMIC_KEYS)
    # Pulsar computes these from the machine's memory.
    if key in {"managedLedgerCacheSizeMB", "maxMessagePublishBufferSizeInMB"}:
        assert PULSAR_DEFAULTS[key] == ""
        return
    default = field.default
    if isinstance(default, pydantic.SecretStr):
        default = default.get_secret_value()
    assert bool(known.departs_because) == (known.pulsar_default != default)

    text = known.pulsar_default
    if get_origin(field.annotation) is tuple:
        assert isinstance(text, tuple)
        text = ",".join(text)
    text = "" if text is None else str(text).lower() if isinstance(text, bool) else str(text)
    assert text == PULSAR_DEFAULTS[key]


def test_settings_are_frozen_and_take_no_unknown_names() -> None:
    settings = Settings()
    with pytest.raises(pydantic.ValidationError):
        settings.dispatcher = DispatcherSettings()
    with pytest.raises(pydantic.ValidationError):
        settings.dispatcher.dispatcher_max_read_batch_size = 1
    with pytest.raises(ConfigurationError, match="DispatcherSettings: made_up Extra inputs"):
        DispatcherSettings(made_up=1)  # type: ignore[call-arg]


def test_a_group_is_made_by_attribute_name_and_checks_itself() -> None:
    settings = Settings(dispatcher=DispatcherSettings(dispatcher_max_read_batch_size=7))
    assert settings.dispatcher.dispatcher_max_read_batch_size == 7
    with pytest.raises(ConfigurationError, match="managedLedgerDefaultEnsembleSize >="):
        PersistenceSettings(managed_ledger_default_ack_quorum=2)


@pytest.mark.parametrize("room", ROOMS)
def test_defaults_unvalidated_are_those_that_validation_gives(room: str) -> None:
    defaults, validated = ROOMS[room].defaults(), ROOMS[room]()
    assert defaults == validated
    assert defaults.model_dump_json() == validated.model_dump_json()
    assert pickle.loads(pickle.dumps(defaults)) == validated


def test_texts_are_what_a_file_would_say() -> None:
    given = ["subscriptionTypesEnabled=Shared,Failover", "ackReceiptDurability=applied"]
    settings = load_settings(None, given, {}).settings
    secrets = {key for key, field in FIELDS.items() if is_secret(field)}
    sets = [f"{key}={text}" for key, text in settings.texts().items() if key not in secrets]
    assert load_settings(None, sets, {}).settings == settings


class TestChangeAtRunTime:
    def test_a_dynamic_key_changes_and_the_rest_stays(self) -> None:
        before = Settings()
        after = before.with_dynamic({PAUSE: "true", "dispatcherMaxReadBatchSize": "7"})
        assert after.dispatcher.dispatcher_pause_on_ack_state_persistent_enabled is True
        assert after.dispatcher.dispatcher_max_read_batch_size == 7
        assert after.persistence == before.persistence
        assert before == Settings()

    def test_a_change_taken_back_is_one_left_out(self) -> None:
        start = load_settings(None, [f"{PAUSE}=true"], {}).settings
        assert start.with_dynamic({PAUSE: "false"}) != start
        assert start.with_dynamic({}) == start

    @pytest.mark.parametrize(
        ("key", "text", "words"),
        [
            ("managedLedgerDefaultEnsembleSize", "2", "cannot change while the broker runs"),
            ("dispatcherMaxReadBatchsize", "2", "did you mean dispatcherMaxReadBatchSize?"),
            ("dispatcherMaxReadBatchSize", "0", "is not allowed; it is a whole number from 1 to"),
            ("dispatcherPauseOnAckStateResumeRanges", "10001", "need dispatcherPauseOnAckState"),
        ],
    )
    def test_a_change_that_cannot_be_is_refused(self, key: str, text: str, words: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            Settings().with_dynamic({PAUSE: "true", key: text})
        assert words in str(caught.value)
        assert "dynamic configuration" in str(caught.value)

    def test_what_pulsar_can_change_changes_here(self) -> None:
        assert PULSAR_DYNAMIC_KEYS & FIELDS.keys() <= DYNAMIC_KEYS
