"""Settings to replay under: combinations, files, and what is refused before anything is read."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from ackgate.errors import ConfigurationError
from ackgate.pipeline.command import run_pipeline
from ackgate.pipeline.jobs.what_if.job import JOB
from ackgate.pipeline.jobs.what_if.variants import KEYS, TAKEN_KEYS, Variant, variants_of

LIMIT = "managedLedgerMaxUnackedRangesToPersist"
LINGER = "ackPersistLingerMs"
RESUME = "dispatcherPauseOnAckStateResumeRanges"


def test_the_recorded_settings_come_first_and_alone_if_nothing_is_asked():
    assert variants_of([], None) == (Variant("recorded"),)


def test_a_grid_is_all_combinations():
    found = variants_of([f"{LIMIT}=10,100", f"{LINGER}=1, 2"], None)
    assert [variant.changes for variant in found[1:]] == [
        {LIMIT: "10", LINGER: "1"},
        {LIMIT: "10", LINGER: "2"},
        {LIMIT: "100", LINGER: "1"},
        {LIMIT: "100", LINGER: "2"},
    ]
    assert found[1].name == f"{LIMIT}=10,{LINGER}=1"


def test_a_file_names_its_variants(tmp_path):
    file = tmp_path / "variants.json"
    strict = "dispatcherPauseOnAckStateStrictEnabled"
    file.write_text(json.dumps({"careful": {strict: True, LIMIT: 50}, "as it is": {}}))
    careful, plain = variants_of([], file)[1:]
    assert careful == Variant("careful", {strict: "true", LIMIT: "50"})
    assert plain == Variant("as it is")


def test_a_broker_conf_is_a_variant_of_what_can_change(tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text(f"{LIMIT}=7\nbrokerServicePort=6650\nclusterName=there\n")
    assert variants_of([], file)[1:] == (Variant("broker.conf", {LIMIT: "7"}),)


def test_changes_lie_over_what_was_recorded():
    recorded = {LIMIT: "20", LINGER: "5", "brokerServicePort": "1", "clusterName": ""}
    variant = Variant("v", {LIMIT: "30"})
    settings = variant.settings(recorded).persistence
    assert settings.managed_ledger_max_unacked_ranges_to_persist == 30
    assert settings.ack_persist_linger_ms == 5


def test_only_settings_of_pace_move_the_moments():
    recorded = {LINGER: "5"}
    assert Variant("v", {LINGER: "6"}).is_paced(recorded)
    assert not Variant("v", {LINGER: "5", LIMIT: "1"}).is_paced(recorded)


@pytest.mark.parametrize(
    ("grid", "why"),
    [
        ([f"{LIMIT}"], "must be NAME=VALUE"),
        ([f"{LIMIT}="], "must be NAME=VALUE"),
        (["managedLedgerMaxUnackedRangesToPresist=1"], f"did you mean {LIMIT}"),
        ([f"{LIMIT}=-1"], f"variant {LIMIT}=-1"),
        ([f"{LIMIT}=ten"], "whole number"),
        (["dispatcherMaxReadBatchSize=5"], "nothing that a replay can change"),
        ([f"{LIMIT}=5", f"{RESUME}=6"], f"variant {LIMIT}=5,{RESUME}=6"),
        ([f"{LIMIT}=1,1"], "several variants"),
        ([f"{LIMIT}=" + ",".join(map(str, range(1001)))], "more than 1000"),
    ],
)
def test_what_cannot_be_is_refused_by_name(grid, why):
    with pytest.raises(ConfigurationError, match=why):
        variants_of(grid, None)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[", "no JSON"),
        ("[]", "must be an object"),
        ('{"a": 1}', "must be an object"),
        (None, "read"),
    ],
)
def test_so_is_a_file(tmp_path, content, why):
    file = tmp_path / "variants.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match=why):
        variants_of([], file)


def test_a_resume_mark_may_wait_for_the_recorded_limit():
    (variant,) = variants_of([f"{RESUME}=15000"], None)[1:]
    with pytest.raises(ConfigurationError, match=f"variant {RESUME}=15000 cannot be"):
        variant.settings({LIMIT: "20"})
    variant.settings({LIMIT: "20000"})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"interval_seconds": 0}, "--interval-seconds 0"),
        ({"settings_groups": 2}, "--settings-groups 2"),
        ({"set": ["nonsense=1"]}, "nonsense"),
    ],
)
def test_the_job_refuses_before_it_reads(changes, why):
    arguments = {"set": [], "variants": None, "interval_seconds": 60, "settings_groups": None}

    with pytest.raises(ConfigurationError, match=why):
        JOB.check_arguments(Namespace(**(arguments | changes)))


def test_the_command_refuses_before_spark_starts(tmp_path, capsys):
    words = ["what-if", "--data-dir", str(tmp_path), "--output", str(tmp_path / "out")]
    assert run_pipeline([*words, "--set", f"{LIMIT}=-1"]) == 2
    assert f"variant {LIMIT}=-1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_can_change_is_recorded():
    from ackgate.broker.journal.journaling import KEYS as RECORDED_KEYS

    assert KEYS < TAKEN_KEYS
    assert TAKEN_KEYS <= RECORDED_KEYS
