"""The tail: how long a message takes from publish to receive, at a steady 10,000 a second of 1 kB.

One process with the real Python client sends and receives (``python -m bench.load tail``), so both ends read
one clock. A message counts from the moment at which it was due, not from when the client came to send it:
whoever is late may not slow the sender down and hide it. Ours and the real Pulsar, ten minutes each::

    python -m bench --only bench_tail

``python -m bench.bench_tail --watch --seconds 30`` runs ours alone, under a watch that names what held its
event loop up (`bench/loop_watch.py`).
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.bench_broker import load
from bench.brokers import Ackgate, Pulsar, pulsar_is_missing, running

MESSAGE_BYTES: Final = 1024


class Sizes(NamedTuple):
    """How much work one run does."""

    seconds: float
    warm_seconds: float
    """Before that, not counted: a JVM compiles, caches fill."""

    per_second: int


FULL = Sizes(600, 60, 10_000)
SMOKE = Sizes(2, 1, 500)


def run(*, smoke: bool, with_peer: bool = True) -> dict[str, Any]:
    """Figures by broker, then by whether the client batches."""
    sizes = SMOKE if smoke else FULL
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as work:
        results["ackgate"] = measure(Ackgate(Path(work) / "ackgate", {}), sizes)
        if with_peer and not smoke:
            missing = pulsar_is_missing()
            results["pulsar"] = (
                {"skipped": missing}
                if missing
                else measure(Pulsar(Path(work) / "pulsar", {}), sizes)
            )
    return results


def measure(broker: Ackgate | Pulsar, sizes: Sizes, *, batched: bool = True) -> dict[str, Any]:
    """Percentiles in ms."""
    with running(broker):
        return load(
            "tail",
            url=broker.service_url,
            topic="tail",
            message_bytes=MESSAGE_BYTES,
            batched=batched,
            **sizes._asdict(),
        )


class WatchedAckgate(Ackgate):
    """Ours, under a watch."""

    @property
    def report(self) -> Path:
        """What the watch has seen, once it has ended."""
        return self.work / "watch.json"

    def command(self) -> list[str]:
        """See `Ackgate.command`."""
        return [sys.executable, "-m", "bench.loop_watch", str(self.report)]

    def stop(self) -> dict[str, Any]:
        """SIGTERM; the report."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        report: dict[str, Any] = json.loads(self.report.read_text())
        return report


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bench_tail")
    parser.add_argument("--watch", action="store_true", help="name what holds the loop up")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--warm-seconds", type=float, default=5)
    parser.add_argument("--per-second", type=int, default=FULL.per_second)
    parser.add_argument("--unbatched", action="store_true", help="each message an entry of its own")
    parser.add_argument("--peer", action="store_true", help="the real Pulsar instead of ours")
    arguments = parser.parse_args()
    sizes = Sizes(arguments.seconds, arguments.warm_seconds, arguments.per_second)
    with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as work:
        kind = WatchedAckgate if arguments.watch else Pulsar if arguments.peer else Ackgate
        broker = kind(Path(work) / "broker", {})
        with running(broker):
            figures = load(
                "tail",
                url=broker.service_url,
                topic="tail",
                message_bytes=MESSAGE_BYTES,
                batched=not arguments.unbatched,
                **sizes._asdict(),
            )
            if isinstance(broker, WatchedAckgate):
                figures["watch"] = broker.stop()
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    _main()
