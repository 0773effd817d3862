"""Figures of the process, as Prometheus' own collectors give them."""

from __future__ import annotations

import resource
from types import SimpleNamespace
from typing import Any

import pytest

from ackgate.broker.admin.metrics import METRICS, Exposition


@pytest.mark.parametrize(
    ("soft", "sample"),
    [
        (1024, "process_max_fds{} 1024"),
        (resource.RLIM_INFINITY, "process_max_fds{} 1.8446744073709552e+19"),
    ],
)
def test_how_many_files_may_be_open(
    soft: int, sample: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a limit it is the largest number that the kernel could name, as of client_golang."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, resource.RLIM_INFINITY))
    figures: Any = SimpleNamespace(broker=SimpleNamespace(started_at=0.0))
    exposition = Exposition({})
    value = METRICS["process_max_fds"].read(figures)
    assert isinstance(value, int | float)
    exposition.labelled().add("process_max_fds", value)
    assert b"".join(exposition.pieces()).decode().splitlines()[-1] == sample
