from __future__ import annotations

import pytest

from ackgate.broker.admin.http.call import Call, Reply
from ackgate.broker.admin.http.refusals import RefusedError
from ackgate.broker.admin.http.router import Route, Router


async def one(call: Call) -> Reply:
    raise NotImplementedError


async def other(call: Call) -> Reply:
    raise NotImplementedError


ROUTER = Router(
    (
        Route("GET", "/topics/{tenant}/partitioned", one),
        Route("GET", "/topics/{tenant}/{topic}", other),
        Route("PUT", "/topics/{tenant}/{topic}", one),
    )
)


def test_parameters_are_decoded_once_after_the_path_was_cut() -> None:
    found = ROUTER.find("GET", "/topics/a%2Fb/c%20d%2Be+f%252F")
    assert found.handler is other
    assert found.parameters == {"tenant": "a/b", "topic": "c d+e f%2F"}


def test_literal_pieces_listed_first_win() -> None:
    assert ROUTER.find("GET", "/topics/t/partitioned").handler is one


def test_dots_are_names_and_no_way_up() -> None:
    for dots in ("..", "%2e%2e"):
        assert ROUTER.find("GET", f"/topics/{dots}/x").parameters["tenant"] == ".."
    with pytest.raises(RefusedError) as refused:
        ROUTER.find("GET", "/topics/../topics/t/x")
    assert refused.value.status == 404


def test_a_slash_at_the_end_is_no_piece() -> None:
    assert ROUTER.find("GET", "/topics/t/x/").handler is other


@pytest.mark.parametrize("path", ["", "/", "topics/t/x", "/topics/t", "/topics//", "/x" * 500])
def test_paths_that_nothing_fits(path: str) -> None:
    with pytest.raises(RefusedError) as refused:
        ROUTER.find("GET", path)
    assert refused.value.status == 404


def test_the_wrong_way_says_the_right_ones() -> None:
    with pytest.raises(RefusedError, match="GET, PUT") as refused:
        ROUTER.find("POST", "/topics/t/x")
    assert refused.value.status == 405


def test_bytes_that_are_not_text_are_refused() -> None:
    with pytest.raises(RefusedError, match="UTF-8") as refused:
        ROUTER.find("GET", "/topics/t/%FF%FE")
    assert refused.value.status == 400
