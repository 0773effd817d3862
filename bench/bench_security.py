"""What security costs: the same work in the open and guarded, in turns.

TLS: one broker, by its port in clear and by its TLS port. Authorization: a broker that asks nobody who he is,
beside one that takes tokens only and looks up the permissions of each role; the client's role has them from
its namespace.

Messages of 100 bytes and of 10 kB. In turns, so that a machine that grows busier meanwhile slows both: a cost
is the median of the rounds' own costs, with its interval of 95 %. Where client and broker share the cores,
the rates hold what the client spends, too; the broker's own part is its processor time, of which the least of
all rounds counts: what else runs only adds to it.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ackgate.testing import BrokerAdmin, BrokerProcess, CertificateMaker, TokenMaker
from bench.load import consume, idle_topics, publish
from bench.usage import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

TLS_ROUNDS: Final = 11
TLS_COST_MAX: Final = 0.30
"""What TLS may cost of the throughput."""

AUTHORIZATION_ROUNDS: Final = 31
"""More, since two rounds of the same work differ by more than the aim."""

AUTHORIZATION_COST_MAX: Final = 0.03
SUBSCRIPTIONS: Final = 200
"""Opened one after the other. A permission is looked up when something is opened, not for each message."""


@dataclass(frozen=True, slots=True)
class _Way:
    """How a client comes to a broker."""

    name: str
    broker: BrokerProcess
    url: str
    credentials: dict[str, str]
    """Of the workloads of `bench.load`."""


def run(*, smoke: bool) -> dict[str, Any]:
    """Messages per second sent, and received with an ack each; medians of the rounds."""
    with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as work:
        return {
            "tls": _tls(Path(work), smoke=smoke),
            "authorization": _authorization(Path(work), smoke=smoke),
        }


def _tls(work: Path, *, smoke: bool) -> dict[str, Any]:
    certificates = CertificateMaker(work / "certificates")
    with BrokerProcess(work / "tls", settings=certificates.settings) as broker:
        ways = (
            _Way("in_clear", broker, broker.service_url, {}),
            _Way("tls", broker, broker.service_url_tls, {"trust": str(certificates.authority)}),
        )
        return _streams(ways, 1 if smoke else TLS_ROUNDS, TLS_COST_MAX, smoke=smoke)


def _authorization(work: Path, *, smoke: bool) -> dict[str, Any]:
    tokens = TokenMaker()
    guards = {**tokens.settings, "authorizationEnabled": True, "superUserRoles": "root"}
    rounds = 1 if smoke else AUTHORIZATION_ROUNDS
    with (
        BrokerProcess(work / "open") as anyone,
        BrokerProcess(work / "guarded", settings=guards) as guarded,
    ):
        root = BrokerAdmin(guarded.admin_url, token=tokens.token("root"))
        root.grant("public/default", "app", ["produce", "consume"])
        ways = (
            _Way("open", anyone, anyone.service_url, {}),
            _Way("authorized", guarded, guarded.service_url, {"token": tokens.token("app")}),
        )
        figures = _streams(ways, rounds, AUTHORIZATION_COST_MAX, smoke=smoke)
        figures["subscriptions_opened"] = _opened(ways, rounds, 20 if smoke else SUBSCRIPTIONS)
    return figures


def _streams(
    ways: tuple[_Way, _Way], rounds: int, cost_max: float, *, smoke: bool
) -> dict[str, Any]:
    return {
        name: _stream(ways, rounds, cost_max, name, size, count // (100 if smoke else 1), batched)
        for name, size, count, batched in (
            ("unbatched_100_bytes", 100, 20_000, False),
            ("batched_100_bytes", 100, 100_000, True),
            ("unbatched_10_kb", 10_000, 8_000, False),
        )
    }


def _stream(
    ways: tuple[_Way, _Way],
    rounds: int,
    cost_max: float,
    name: str,
    size: int,
    count: int,
    batched: bool,
) -> dict[str, Any]:
    sent: dict[str, list[float]] = {way.name: [] for way in ways}
    received: dict[str, list[float]] = {way.name: [] for way in ways}
    cpu: dict[str, list[float]] = {way.name: [] for way in ways}
    for way, number in _turns(ways, rounds):
        topic = f"{name}-{way.name}-{number}"
        before = cpu_seconds(way.broker.pid)
        published = publish(
            way.url, topic, count, batched=batched, message_bytes=size, **way.credentials
        )
        consumed = consume(way.url, topic, count, **way.credentials)
        cpu[way.name].append(cpu_seconds(way.broker.pid) - before)
        sent[way.name].append(published["per_second"])
        received[way.name].append(consumed["per_second"])
    figures = _rates("sent", ways, sent, cost_max) | _rates(
        "received_acked", ways, received, cost_max
    )
    least = [min(cpu[way.name]) for way in ways]
    for way, seconds in zip(ways, least, strict=True):
        figures[f"broker_cpu_us_per_message_{way.name}"] = round(seconds / count * 1e6, 2)
    figures["broker_cpu_cost"] = f"{least[1] / least[0] - 1:.1%}"
    return figures


def _opened(ways: tuple[_Way, _Way], rounds: int, count: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {way.name: [] for way in ways}
    for way, number in _turns(ways, rounds):
        began = time.perf_counter()
        idle_topics(way.url, f"opened-{number}", count, **way.credentials)
        rates[way.name].append(count / (time.perf_counter() - began))
    return _rates("opened", ways, rates, None)


def _turns(ways: tuple[_Way, _Way], rounds: int) -> list[tuple[_Way, int]]:
    """Each round begins with the other way, so that neither always comes second."""
    return [(way, number) for number in range(rounds) for way in ways[:: -1 if number % 2 else 1]]


def _rates(
    what: str, ways: tuple[_Way, _Way], rates: dict[str, list[float]], cost_max: float | None
) -> dict[str, Any]:
    aim = "" if cost_max is None else f"; at most {cost_max:.0%}"
    plain, guarded = rates.values()
    return {
        **{f"{what}_per_s_{way.name}": round(statistics.median(rates[way.name])) for way in ways},
        f"{what}_cost": _cost(1 - one / other for other, one in zip(plain, guarded, strict=True))
        + aim,
    }


def _cost(of_rounds: Iterable[float]) -> str:
    """The median, and between what it lies with 95 % certainty, by the ranks of the rounds."""
    costs = sorted(of_rounds)
    middle, aside = len(costs) / 2, 0.98 * math.sqrt(len(costs))
    low, high = max(math.floor(middle - aside), 0), min(math.ceil(middle + aside), len(costs)) - 1
    return f"{statistics.median(costs):.1%} ({costs[low]:.1%} to {costs[high]:.1%})"


if __name__ == "__main__":
    print(json.dumps(run(smoke=False), indent=2))
