"""The page about testing: its suite passes, its code runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

PAGE = Path("docs/testing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


def block(text: str) -> str:
    (found,) = (each for each in BLOCKS if text in each)
    return found


def test_the_suite_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_orders=block("def test_an_order_is_billed_once"))
    pytester.makeini("[pytest]\naddopts = -p no:asyncio\n")
    pytester.runpytest_inprocess().assert_outcomes(passed=2)


def test_the_suite_passes_with_tokens(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(block("# conftest.py\nimport pytest"))
    pytester.makepyfile(
        """
        import pulsar
        import pytest
        from ackgate.testing import AdminRefusedError, BrokerAdmin, TokenMaker

        def test_tells_friends_from_strangers(ackgate_broker, ackgate_namespace, ackgate_tokens):
            for token in (None, TokenMaker().token("admin")):
                with pytest.raises(AdminRefusedError) as refused:
                    BrokerAdmin(ackgate_broker.admin_url, token=token).tenants()
                assert refused.value.status == 401
            shown = pulsar.AuthenticationToken(ackgate_tokens.token("billing"))
            client = pulsar.Client(ackgate_broker.service_url, authentication=shown)
            client.create_producer(f"{ackgate_namespace}/orders").send(b"order 1")
            client.close()
        """
    )
    pytester.makeini("[pytest]\naddopts = -p no:asyncio\n")
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_the_code_without_pytest_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block("BrokerProcess(Path("), "docs/testing.md", "exec"), {})
