"""Defaults of settings in the core are those of the configuration: a host gets what a broker gets."""

from __future__ import annotations

import pytest

from ackgate.config import Settings
from ackgate.dispatcher import GateSettings, gate_settings
from ackgate.dispatcher.buckets import BucketSettings, bucket_settings
from ackgate.persistence.bookies.settings import (
    BookieSettings,
    LedgerClientSettings,
    bookie_settings,
    ledger_client_settings,
)
from ackgate.persistence.metadata.session_options import SessionOptions

SETTINGS = Settings()


@pytest.mark.parametrize(
    ("configured", "core"),
    [
        (gate_settings(SETTINGS, is_pausing=False), GateSettings()),
        (bucket_settings(SETTINGS.delayed), BucketSettings()),
        (bookie_settings(SETTINGS.persistence), BookieSettings()),
        (ledger_client_settings(SETTINGS.persistence), LedgerClientSettings()),
        (SessionOptions.of(SETTINGS.persistence), SessionOptions()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_default_is_the_same_in_the_core(configured: object, core: object) -> None:
    assert configured == core
