"""What TLS costs: one broker, the same work by its port in clear and by its TLS port, in turns.

Messages of 100 bytes and of 10 kB. In turns, so that a machine that grows busier meanwhile slows both. Where
client and broker share the cores, the rates hold what the client spends on TLS, too; the broker's own part is
its processor time.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

from ackgate.network import make_trial_certificates
from ackgate.testing import BrokerProcess
from bench.load import consume, publish
from bench.usage import cpu_seconds

ROUNDS: Final = 3
COST_MAX: Final = 0.30
"""What TLS may cost of the throughput."""


def run(*, smoke: bool) -> dict[str, Any]:
    """Messages per second sent, and received with an ack each; medians of the rounds."""
    with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as work:
        made = make_trial_certificates(Path(work) / "certificates")
        settings = {
            "brokerServicePortTls": 0,
            "tlsCertificateFilePath": made.server.certificate,
            "tlsKeyFilePath": made.server.key,
        }
        figures: dict[str, Any] = {}
        with BrokerProcess(Path(work) / "data", settings=settings) as broker:
            for name, size, count, batched in (
                ("unbatched_100_bytes", 100, 20_000, False),
                ("batched_100_bytes", 100, 100_000, True),
                ("unbatched_10_kb", 10_000, 8_000, False),
            ):
                figures[name] = _beside(
                    broker, str(made.authority), name, size, count // (100 if smoke else 1), batched
                )
    return figures


def _beside(
    broker: BrokerProcess, trust: str, name: str, size: int, count: int, batched: bool
) -> dict[str, Any]:
    rates: dict[str, list[tuple[float, float]]] = {"in_clear": [], "tls": []}
    cpu: dict[str, list[float]] = {"in_clear": [], "tls": []}
    for number in range(ROUNDS):
        for way, url in (("in_clear", broker.service_url), ("tls", broker.service_url_tls)):
            before = cpu_seconds(broker.pid)
            rates[way].append(_once(url, trust, f"{name}-{way}-{number}", size, count, batched))
            cpu[way].append(cpu_seconds(broker.pid) - before)
    figures: dict[str, Any] = {}
    for index, what in enumerate(("sent", "received_acked")):
        clear, tls = (
            statistics.median(rate[index] for rate in rates[way]) for way in ("in_clear", "tls")
        )
        figures[f"{what}_per_s_in_clear"], figures[f"{what}_per_s_tls"] = round(clear), round(tls)
        figures[f"{what}_cost_of_tls"] = f"{1 - tls / clear:.1%} (at most {COST_MAX:.0%})"
    for way, seconds in cpu.items():
        figures[f"broker_cpu_us_per_message_{way}"] = round(
            statistics.median(seconds) / count * 1e6, 1
        )
    return figures


def _once(
    url: str, trust: str, topic: str, size: int, count: int, batched: bool
) -> tuple[float, float]:
    sent = publish(url, topic, count, batched=batched, message_bytes=size, trust=trust)
    received = consume(url, topic, count, trust=trust)
    return sent["per_second"], received["per_second"]


if __name__ == "__main__":
    print(json.dumps(run(smoke=False), indent=2))
