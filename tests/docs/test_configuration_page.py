"""`docs/configuration.md` says what the models say."""

from __future__ import annotations

from pathlib import Path

from ackgate.config.document import document

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_fresh(*, rewrite: bool) -> None:
    if rewrite:
        PAGE.write_text(document())
    assert PAGE.read_text() == document(), "run pytest --rewrite and read the difference"
