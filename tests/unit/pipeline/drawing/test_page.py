"""Pages and pictures: nothing that comes from outside is markup."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from ackgate.pipeline.drawing.axes import moment_text, named_axis
from ackgate.pipeline.drawing.markup import shortened
from ackgate.pipeline.drawing.page import cards, cell, page, paragraph, section, table
from ackgate.pipeline.drawing.plot import Plot

EVIL = "</style><script>\"'&"


def test_no_text_is_markup():
    parts = [cards([(EVIL, EVIL)]), paragraph(EVIL), table([(EVIL, EVIL)], [[cell(EVIL, EVIL)]])]
    text = page(EVIL, EVIL, [section(*parts, anchor=EVIL)])

    assert "<script>" not in text
    assert text.count("</style>") == 1


def test_a_plot_may_have_names_below_it():
    plot = Plot(EVIL, EVIL, named_axis(EVIL, [EVIL, "other"]), y_top=10)
    plot.rectangle("box0", 0.1, 0.9, 0, 5)
    svg = ET.fromstring(plot.drawn([(0, EVIL)], [("box", "box0", EVIL)]))

    words = [element.text for element in svg.iter("text")]
    assert words.count(EVIL) == 6
    assert "other" in words


def test_a_cell_without_a_second_line_has_none():
    assert cell("a") == "a"
    assert cell("a", "b", is_alarm=True) == '<span class="alarm">a</span><small>b</small>'


def test_a_long_name_keeps_its_ends():
    assert shortened("billing") == "billing"
    assert shortened("0123456789", 5) == "01\N{HORIZONTAL ELLIPSIS}89"
    assert len(shortened("x" * 100)) == 24


def test_a_moment_is_told_to_the_millisecond():
    assert moment_text(1_800_000_000_007) == "2027-01-15 08:00:00.007"
