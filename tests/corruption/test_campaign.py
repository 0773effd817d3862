"""A part of the campaign; `make corruption` has as many cases as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corruption.campaign import KINDS, Campaign, kind_of

SEED = 13
CASES = 24


@pytest.mark.slow
async def test_no_damage_is_silent_and_none_gives_wrong_data(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, SEED)
    failed = [str(case) async for case in campaign.run(CASES) if case.end == "failed"]
    assert failed == []
    assert len({kind for kind, _ in campaign.ends}) > len(KINDS) // 2


def test_a_file_of_no_kind_is_noticed() -> None:
    with pytest.raises(LookupError, match="no kind of file fits bookies/0/new-file"):
        kind_of("bookies/0/new-file")
