from __future__ import annotations

from ackgate.broker.admin.exposition import Exposition


def test_samples_of_a_metric_stand_together_under_its_type() -> None:
    exposition = Exposition({"cluster": "c"})
    exposition.add("a_total", 1, {"t": "x"})
    exposition.add("b", 2.5)
    exposition.add("a_total", True, {"t": "y"})
    assert exposition.text() == (
        "# TYPE a_total counter\n"
        'a_total{cluster="c",t="x"} 1\n'
        'a_total{cluster="c",t="y"} 1\n'
        "# TYPE b gauge\n"
        'b{cluster="c"} 2.5\n'
    )


def test_labels_are_escaped() -> None:
    exposition = Exposition({})
    exposition.add("m", 0, {"name": 'a"b\\c\nd'})
    assert exposition.text().splitlines()[1] == r'm{name="a\"b\\c\nd"} 0'
