"""Every state that a crash at one moment may leave, as far as a bound allows.

A process kill leaves what is in the page cache, and of an append under way perhaps only a part. A
power loss leaves one of the fates of every change that no sync has covered (see
`tests.support.simulation.disk`): kept or lost, and of a write also its first half, nothing but
its size, and all but its first sector. When the product of these choices is within the bound, all
of them are made. Else: nothing kept, everything kept, every ordered prefix, every single change
lost, torn or kept, and for the rest of the bound random ones.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import TYPE_CHECKING

from tests.support.simulation.inodes import KEPT, LOST, Change, Fate, Inode, Write
from tests.support.simulation.power_loss import choose_fates, torn_head, torn_prefix, zeros

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.simulation.disk import Operation, SimulatedFiles


def choices(change: Change) -> list[Fate]:
    """The fates considered for one change."""
    fates = [LOST, KEPT]
    if isinstance(change, Write) and change.data:
        size = len(change.data)
        fates += [torn_prefix(size // 2), zeros(size)]
        if (head := torn_head(change)) is not None:
            fates.append(head)
    return list(dict.fromkeys(fates))


def combinations(
    changes: Sequence[Change], bound: int, rng: random.Random
) -> Iterator[dict[int, Fate]]:
    """Fates of all changes: all there are, or the most telling `bound` of them."""
    options = [choices(change) for change in changes]
    numbers = [change.sequence for change in changes]
    if math.prod(map(len, options)) <= bound:
        for every in itertools.product(*options):
            yield dict(zip(numbers, every, strict=True))
        return
    telling = list(_telling(options))
    if len(telling) > bound:
        telling = [*telling[:2], *rng.sample(telling[2:], bound - 2)]
    for fates in telling:
        yield dict(zip(numbers, fates, strict=True))
    for _ in range(bound - len(telling)):
        yield choose_fates(changes, rng)


def _telling(options: Sequence[Sequence[Fate]]) -> Iterator[list[Fate]]:
    count = len(options)
    yield [LOST] * count
    yield [KEPT] * count
    for i in range(1, count):
        yield [KEPT] * i + [LOST] * (count - i)
    for i, fates in enumerate(options):
        yield [LOST] * i + [KEPT] + [LOST] * (count - i - 1)
        for fate in fates:
            if fate != KEPT:
                yield [KEPT] * i + [fate] + [KEPT] * (count - i - 1)


def after_power_loss(
    files: SimulatedFiles, bound: int, rng: random.Random
) -> Iterator[Callable[[], SimulatedFiles]]:
    """Ways to make the machine after each of these; `files` stays as it is."""
    for fates in combinations(files.pending(), bound, rng):
        yield partial(_settled, files, fates)


def after_kill(
    files: SimulatedFiles, operation: Operation
) -> Iterator[Callable[[], SimulatedFiles]]:
    """The same after all processes were killed, just after an operation or within it."""
    yield files.copy
    if operation.kind == "append" and operation.size > 1:
        yield partial(_half_appended, files, operation)


def _settled(files: SimulatedFiles, fates: dict[int, Fate]) -> SimulatedFiles:
    state = files.copy()
    state.settle(fates)
    return state


def _half_appended(files: SimulatedFiles, operation: Operation) -> SimulatedFiles:
    state = files.copy()
    _, _, inode = state.place_of(operation.path)
    if isinstance(inode, Inode) and inode.pending and isinstance(inode.pending[-1], Write):
        write = inode.pending[-1]
        inode.pending[-1] = write._replace(data=write.data[: operation.size // 2])
        del inode.content[write.offset + operation.size // 2 :]
    return state
