"""Which bookie a directory is, whatever happens to one of the two files that say so."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ackgate.errors import AckGateError, ConfigurationError
from ackgate.persistence import open_bookies
from ackgate.persistence.bookies.layout import CLUSTER_FILE, IDENTITY_FILE
from ackgate.persistence.ledgers.opening import BookieOpener

NAMES = (IDENTITY_FILE, CLUSTER_FILE)
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "zeroed": lambda content: bytes(len(content)),
    "another bookie's": lambda content: content.replace(b'"bookie_id": "', b'"bookie_id": "x'),
}


@pytest.fixture
async def bookie_id(tmp_path: Path) -> str:
    """Of a bookie that a cluster has claimed."""
    (bookie,) = await open_bookies([tmp_path])
    await bookie.claim("ours")
    await bookie.close()
    return bookie.bookie_id


async def opened_again(directory: Path) -> str:
    (bookie,) = await open_bookies([directory])
    await bookie.claim("ours")
    await bookie.close()
    return bookie.bookie_id


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", DAMAGES)
async def test_one_damaged_file_is_made_anew_and_told(
    tmp_path: Path, bookie_id: str, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / name
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[damage](whole))
    looking = await BookieOpener(is_read_only=True).open(tmp_path)
    assert looking.bookie_id == bookie_id
    assert name in "".join(looking.statistics().damages)
    await looking.close()
    with caplog.at_level(logging.WARNING):
        assert await opened_again(tmp_path) == bookie_id
    assert f"{path} is damaged" in caplog.text
    assert path.read_bytes() == whole
    caplog.clear()
    assert await opened_again(tmp_path) == bookie_id
    assert not caplog.text


@pytest.mark.parametrize("name", NAMES)
async def test_a_deleted_file_is_made_anew_and_told(
    tmp_path: Path, bookie_id: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).unlink()
    with caplog.at_level(logging.WARNING):
        assert await opened_again(tmp_path) == bookie_id
    assert f"{tmp_path / name} is missing" in caplog.text
    assert (tmp_path / name).exists()


async def test_when_both_are_damaged_nobody_can_say(tmp_path: Path, bookie_id: str) -> None:
    for name in NAMES:
        (tmp_path / name).write_bytes(b"{]")
    with pytest.raises(ConfigurationError, match=rf"{IDENTITY_FILE}.*{CLUSTER_FILE}"):
        await open_bookies([tmp_path])
    for name in NAMES:
        (tmp_path / name).unlink()
    assert bookie_id


async def test_files_of_different_bookies_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (bookie,) = await open_bookies([tmp_path / name])
        await bookie.claim("ours")
        await bookie.close()
    (tmp_path / "a" / CLUSTER_FILE).write_bytes((tmp_path / "b" / CLUSTER_FILE).read_bytes())
    with pytest.raises(ConfigurationError, match="name different bookies"):
        await open_bookies([tmp_path / "a"])


@pytest.mark.parametrize("seed", range(20))
async def test_no_flipped_bit_makes_it_another_bookie(
    tmp_path: Path, bookie_id: str, seed: int
) -> None:
    rng = random.Random(seed)
    path = tmp_path / rng.choice(NAMES)
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content) * 8)
    content[at // 8] ^= 1 << at % 8
    path.write_bytes(content)
    try:
        found = await opened_again(tmp_path)
    except AckGateError as error:
        assert path.name in str(error)  # noqa: PT017
    else:
        assert found == bookie_id


async def test_files_without_checksums_are_read_and_brought_up_to_date(
    tmp_path: Path, bookie_id: str
) -> None:
    """As versions before this one wrote them."""
    (tmp_path / IDENTITY_FILE).write_text(json.dumps({"format": 1, "bookie_id": bookie_id}))
    (tmp_path / CLUSTER_FILE).write_text(json.dumps({"format": 1, "cluster": "ours"}))
    looking = await BookieOpener(is_read_only=True).open(tmp_path)
    assert (looking.bookie_id, looking.statistics().damages) == (bookie_id, ())
    await looking.close()
    assert await opened_again(tmp_path) == bookie_id
    for name in NAMES:
        stored = json.loads((tmp_path / name).read_bytes())
        assert stored["format"] == 2
        assert stored["bookie"] == {"bookie_id": bookie_id, "cluster": "ours"}
