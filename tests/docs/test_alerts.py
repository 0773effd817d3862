"""Alert rules and the board: tested by Prometheus' own tool, explained, on metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest
import yaml

from ackgate.broker.admin.metrics import METRICS, Distribution, Exposition
from ackgate.testing import BrokerProcess

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
TESTS = RULES.with_name("alerts_test.yml")
BOARD = ROOT / "deploy" / "grafana" / "ackgate.json"
SAMPLES = re.compile(r"(?<=_latency_seconds)_(?:bucket|sum|count)$")
LINTS_OF_PULSARS_NAMES = ('_count" suffix', "not 'camelCase'")


def rules() -> dict[str, str]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


def promtool(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("no promtool: it comes with Debian's package prometheus")
    return subprocess.run([tool, *arguments], input=given, capture_output=True, check=False)


def test_each_alert_has_its_paragraph_and_its_test() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    assert re.findall(r"^\* \*\*(Ackgate\w+)\.\*\*", page, flags=re.MULTILINE) == list(rules())
    assert [test["name"] for test in yaml.safe_load(TESTS.read_text())["tests"]] == list(rules())


def test_alerts_and_panels_are_on_metrics_that_there_are() -> None:
    known = (ROOT / "docs" / "metrics.md").read_text()
    panels = json.loads(BOARD.read_text())["panels"]
    shown = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(shown) > 10
    for expression in (*rules().values(), *shown):
        for name in re.findall(r"\b(?:ackgate|process|pulsar)_\w+", expression):
            assert f"`{SAMPLES.sub('', name)}`" in known, name


def test_the_panels_ask_what_prometheus_understands(tmp_path: Path) -> None:
    panels = json.loads(BOARD.read_text())["panels"]
    shown = [target["expr"] for panel in panels for target in panel["targets"]]
    recorded = [{"record": f"panel_{number}", "expr": each} for number, each in enumerate(shown)]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    done = promtool("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_fire_when_they_should() -> None:
    done = promtool("test", "rules", str(TESTS))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_metrics_are_in_good_form_but_for_pulsars_own_names() -> None:
    """Every family, also of what a broker has only with BookKeeper, a journal or trackers."""
    exposition = Exposition({"cluster": "c"}, METRICS)
    for metric in METRICS.values():
        labelled = exposition.labelled()
        if metric.type in {"histogram", "summary"}:
            labelled.add_distribution(metric, Distribution(1, 1.0, [("0.1", 0)]))
        else:
            labelled.add(metric.name, 1)
    lines = promtool("check", "metrics", given=b"".join(exposition.pieces())).stderr.decode()
    assert "pulsar_ml_cursor_persistLedgerErrors" in lines
    assert [line for line in lines.splitlines() if not line.startswith("pulsar_")] == []


@pytest.mark.slow
def test_what_a_broker_serves_is_explained_and_in_good_form(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        for way, path in (("PUT", "t"), ("PUT", "t/subscription/s")):
            url = f"{broker.admin_url}/admin/v2/persistent/public/default/{path}"
            urllib.request.urlopen(urllib.request.Request(url, method=way), timeout=60).close()
        with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=60) as answer:
            text = answer.read()
    names = set(re.findall(rb"^# TYPE (\w+) ", text, flags=re.MULTILINE))
    assert names == set(re.findall(rb"^# HELP (\w+) \S", text, flags=re.MULTILINE))
    assert b"ackgate_gate_open" in names
    assert b"process_open_fds" in names
    lines = promtool("check", "metrics", given=text).stderr.decode().splitlines()
    assert [
        line
        for line in lines
        if not (line.startswith("pulsar_") and line.endswith(LINTS_OF_PULSARS_NAMES))
    ] == []
