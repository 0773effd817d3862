"""The broker through the real client, beside the real Pulsar: the same work, one after the other.

Each figure is taken on a fresh broker with a fresh data directory. Sizes shrink in a smoke run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench.brokers import Ackgate, Pulsar, pulsar_is_missing, running

LOAD_SECONDS_MAX = 1_200
"""Of one piece of client work; the longest is ten minutes, and what goes before."""

GATE_ON = {
    "dispatcherPauseOnAckStatePersistentEnabled": "true",
    "managedLedgerMaxUnackedRangesToPersist": "1000",
}
STRICT = {"dispatcherPauseOnAckStateStrictEnabled": "true"}
SEED = 20261121
KILL_AFTER_SECONDS = 0.2


class Sizes(NamedTuple):
    """How much work one run does."""

    messages: int
    batched_messages: int
    shuffled: int
    gate_messages: int
    gate_queues: tuple[int, ...]


FULL = Sizes(200_000, 1_000_000, 20_000, 20_000, (1000, 100, 10))
SMOKE = Sizes(2_000, 10_000, 2_000, 6_000, (1000,))


def run(*, smoke: bool, with_peer: bool = True) -> dict[str, Any]:
    """All figures, by broker."""
    sizes = SMOKE if smoke else FULL
    results: dict[str, Any] = {}
    makers: list[type[Ackgate | Pulsar]] = [Ackgate]
    missing = pulsar_is_missing()
    if with_peer and not smoke:
        if missing:
            results["pulsar"] = {"skipped": missing}
        else:
            makers.append(Pulsar)
    with tempfile.TemporaryDirectory(prefix="ackgate-bench-") as work:
        for make in makers:
            results[make.name] = _measure(make, Path(work) / make.name, sizes)
    return results


def _measure(make: type[Ackgate | Pulsar], work: Path, sizes: Sizes) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    warm_up = make(work, {})
    with running(warm_up):  # fetches what must be fetched, fills the page cache
        pass
    figures.update(_start(make(work, {})))
    figures.update(_throughput(make(work, {}), sizes))
    figures["come_again"] = _come_again(make(work, {}), sizes)
    for queue in sizes.gate_queues:
        figures[f"gate_queue_{queue}"] = _gate(make(work, GATE_ON), sizes, queue)
        if make is Ackgate:
            figures[f"gate_strict_queue_{queue}"] = _gate(
                make(work, {**GATE_ON, **STRICT}), sizes, queue
            )
    return figures


def _start(broker: Ackgate | Pulsar) -> dict[str, Any]:
    try:
        arguments = json.dumps({"url": broker.service_url, "topic": "first"})
        client = subprocess.Popen(
            [sys.executable, "-m", "bench.load", "first_message", arguments, "when-told"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        time.sleep(2)  # its imports are not the broker's start
        began_wall = time.time()
        broker.start()
        answer, _ = client.communicate("go\n", timeout=60)
        done = json.loads(answer)["done"]
        return {
            "start_to_first_ack_s": round(done - began_wall, 3),
            "resident_mb": round(broker.resident_bytes() / 1e6, 1),
        }
    finally:
        broker.end()


def _throughput(broker: Ackgate | Pulsar, sizes: Sizes) -> dict[str, Any]:
    url = broker.service_url
    figures: dict[str, Any] = {}
    with running(broker):
        for name, count, batched in (
            ("unbatched", sizes.messages, False),
            ("batched", sizes.batched_messages, True),
        ):
            sent = load("publish", url=url, topic=name, count=count, batched=batched)
            got = load("consume", url=url, topic=name, count=count)
            figures[f"{name}_sent_per_s"] = round(sent["per_second"])
            figures[f"{name}_received_acked_per_s"] = round(got["per_second"])
        figures["resident_after_mb"] = round(broker.resident_bytes() / 1e6, 1)
    return figures


def _come_again(broker: Ackgate | Pulsar, sizes: Sizes) -> int:
    url = broker.service_url
    with running(broker):
        acked = load(
            "ack_shuffled",
            url=url,
            topic="again",
            count=sizes.shuffled,
            seed=SEED,
            linger=KILL_AFTER_SECONDS,
        )["acked"]
        broker.kill()
        broker.start()
        received = load("receive_all", url=url, topic="again")["received"]
    return len(set(acked) & set(received))


def _gate(broker: Ackgate | Pulsar, sizes: Sizes, queue: int) -> dict[str, Any]:
    with running(broker):
        return load(
            "gate",
            url=broker.service_url,
            admin=broker.admin_url,
            topic="gate",
            count=sizes.gate_messages,
            queue=queue,
        )


def load(workload: str, **arguments: object) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.load", workload, json.dumps(arguments)],
        capture_output=True,
        text=True,
        timeout=LOAD_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"workload {workload} failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


if __name__ == "__main__":
    print(json.dumps(run(smoke="--smoke" in sys.argv), indent=2))
