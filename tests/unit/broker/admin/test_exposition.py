from __future__ import annotations

from ackgate.broker.admin.metrics import Distribution, Exposition, Metric


def text(exposition: Exposition) -> str:
    return b"".join(exposition.pieces()).decode()


def test_samples_of_a_metric_stand_together_under_its_type() -> None:
    exposition = Exposition({"cluster": "c"})
    exposition.labelled(t="x").add("a_total", 1)
    exposition.labelled().add("b", 2.5)
    exposition.labelled(t="y").labelled(u="z").add("a_total", True)
    assert text(exposition) == (
        "# TYPE a_total counter\n"
        'a_total{cluster="c",t="x"} 1\n'
        'a_total{cluster="c",t="y",u="z"} 1\n'
        "# TYPE b gauge\n"
        'b{cluster="c"} 2.5\n'
    )


def test_labels_are_escaped() -> None:
    exposition = Exposition({})
    exposition.labelled(name='a"b\\c\nd').add("m", 0)
    assert text(exposition).splitlines()[1] == r'm{name="a\"b\\c\nd"} 0'


def test_a_name_that_misleads_is_corrected() -> None:
    exposition = Exposition(
        {},
        {
            "m_total": Metric("m_total", "", float, "gauge"),
            "m_count": Metric("m_count", "", float, "counter"),
        },
    )
    exposition.labelled().add("m_total", 1)
    exposition.labelled().add("m_count", 1)
    assert text(exposition).splitlines()[::2] == ["# TYPE m_total gauge", "# TYPE m_count counter"]


def test_a_metric_that_is_known_has_a_line_of_help() -> None:
    exposition = Exposition({}, {"m": Metric("m", "What\nit is, bytes", float)})
    exposition.labelled().add("m", 1)
    assert text(exposition).splitlines() == [
        r"# HELP m What\nit is, bytes",
        "# TYPE m gauge",
        "m{} 1",
    ]


def test_a_histogram_adds_up_and_a_summary_may_have_no_quantiles() -> None:
    histogram = Metric("h_seconds", "", float, "histogram")
    summary = Metric("s", "", float, "summary")
    exposition = Exposition({"c": "x"}, {"h_seconds": histogram, "s": summary})
    labelled = exposition.labelled()
    labelled.add_distribution(histogram, Distribution(3, 1.5, [("0.1", 1), ("1.0", 2)]))
    labelled.add_distribution(summary, Distribution(3, 1500.0))
    assert text(exposition).splitlines() == [
        "# TYPE h_seconds histogram",
        'h_seconds_bucket{c="x",le="0.1"} 1',
        'h_seconds_bucket{c="x",le="1.0"} 2',
        'h_seconds_bucket{c="x",le="+Inf"} 3',
        'h_seconds_sum{c="x"} 1.5',
        'h_seconds_count{c="x"} 3',
        "# TYPE s summary",
        's_sum{c="x"} 1500.0',
        's_count{c="x"} 3',
    ]
