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


def test_the_suite_passes_with_tokens_authorization_and_tls(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(block("# conftest.py\nimport pytest"))
    pytester.makepyfile(
        test_permissions=block("def test_billing_may_only_consume"),
        test_strangers="""
        import pytest
        from ackgate.errors import StorageError
        from ackgate.testing import AdminRefusedError, BrokerAdmin, TokenMaker

        def test_tells_friends_from_strangers(
            ackgate_admin_token, ackgate_broker, ackgate_certificates
        ):
            for token in (None, TokenMaker().token("admin")):
                with pytest.raises(AdminRefusedError) as refused:
                    BrokerAdmin(ackgate_broker.admin_url, token=token).tenants()
                assert refused.value.status == 401
            url = ackgate_broker.admin_url_tls
            with pytest.raises(StorageError, match="certificate"):
                BrokerAdmin(url, token=ackgate_admin_token).tenants()
            assert BrokerAdmin(
                url,
                token=ackgate_admin_token,
                authority=ackgate_certificates.authority,
                certificate=ackgate_certificates.clients["admin"],
            ).tenants()
        """,
    )
    pytester.makeini("[pytest]\naddopts = -p no:asyncio\n")
    pytester.runpytest_inprocess().assert_outcomes(passed=2)


def test_the_code_without_pytest_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block("BrokerProcess(Path("), "docs/testing.md", "exec"), {})
