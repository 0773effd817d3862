"""The plugin's fixtures, in suites of their own: each is a pytest run inside this one."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

CONFTEST = """
    pytest_plugins = ["ackgate.testing"]
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider -p no:asyncio\n")
    pytester.makeconftest(CONFTEST)
    return pytester


def test_what_a_test_creates_is_gone_after_it(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pulsar.schema
        import pytest
        from ackgate.testing import AdminRefusedError

        made = []

        @pytest.fixture(scope="session")
        def ackgate_settings(ackgate_certificates):  # by TLS only
            return {
                **ackgate_certificates.settings, "brokerServicePort": "", "webServicePort": ""
            }

        def test_creates(
            ackgate_admin, ackgate_tenant, create_ackgate_namespace, create_ackgate_topic
        ):
            namespace = create_ackgate_namespace(messageTTL=60)
            assert ackgate_admin.get("namespaces", namespace, "messageTTL") == 60
            parted = create_ackgate_topic(partitions=2, namespace=namespace)
            assert ackgate_admin.partitions(parted) == 2
            ackgate_admin.create_topic(f"{namespace}/mine")
            ackgate_admin.create_subscription(f"{namespace}/mine", "s")
            assert ackgate_admin.subscriptions(f"{namespace}/mine") == ["s"]
            assert ackgate_admin.backlog(f"{namespace}/mine", "s") == 0
            assert len(ackgate_admin.topics(namespace)) == 3
            typed = create_ackgate_topic(schema=pulsar.schema.StringSchema())
            assert ackgate_admin.schema(typed)["type"] == "STRING"
            assert ackgate_admin.create_schema(typed, "STRING", "null") == 0
            made.extend([ackgate_tenant, typed])

        def test_finds_nothing(ackgate_admin, ackgate_broker):
            tenant, topic = made
            assert tenant not in ackgate_admin.tenants()
            assert ackgate_admin.topics() == []
            ackgate_admin.delete_tenant(tenant)
            with pytest.raises(AdminRefusedError) as refused:
                ackgate_admin.stats(topic)
            assert refused.value.status == 404
            ackgate_admin.create_topic(topic)
            assert ackgate_admin.owner_url(topic) == ackgate_broker.service_url

        def test_has_names_of_its_own(ackgate_namespace, ackgate_tenant, fresh_ackgate_topic):
            assert ackgate_namespace.startswith(f"{ackgate_tenant}/")
            assert fresh_ackgate_topic() != fresh_ackgate_topic()
        """
    )
    suite.runpytest_inprocess().assert_outcomes(passed=3)


def test_brokers_end_with_their_scope_and_a_failed_test_shows_what_they_logged_in_it(
    suite: pytest.Pytester,
) -> None:
    suite.makepyfile(
        """
        brokers = []

        def test_passes(ackgate_broker_factory, ackgate_module_broker_factory):
            one = ackgate_broker_factory(brokerDeduplicationEnabled=True)
            other = ackgate_module_broker_factory({"clusterName": "other"})
            assert one.settings == {"brokerDeduplicationEnabled": True}
            brokers.extend([one, other])

        def test_fails():
            assert [broker.is_running for broker in brokers] == [False, True]
            brokers[1].stop()
            raise OSError("on purpose")
        """
    )
    result = suite.runpytest_inprocess("-q")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["E * OSError: on purpose", "*- log of broker ackgate1 on port * -*"]
    )
    result.stdout.fnmatch_lines(["*stopping*"])
    result.stdout.no_fnmatch_line("*starting on*")
    result.stdout.no_fnmatch_line("*broker ackgate0*")
