"""The wire's ``ack_set`` as one integer.

On the wire: 64-bit words, least significant bit first, a set bit is a message not acked.

Pure. Bit i of the integer stands for message i of the batch, as the cursor keeps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ackgate.errors import PositionError

if TYPE_CHECKING:
    from collections.abc import Sequence

WORDS_MAX: Final = 1024
"""65,536 messages in one batch: far above any client's bound, low enough to be harmless."""

_WORD_MASK: Final = 2**64 - 1


def mask_of_words(words: Sequence[int]) -> int:
    """One integer of signed 64-bit words. Raises `PositionError` above `WORDS_MAX` words."""
    if len(words) > WORDS_MAX:
        raise PositionError(f"an ack set of {len(words)} words is longer than {WORDS_MAX}")
    mask = 0
    for index, word in enumerate(words):
        mask |= (word & _WORD_MASK) << (64 * index)
    return mask


def words_of_mask(mask: int) -> list[int]:
    """Signed 64-bit words of one integer; none for 0."""
    words = []
    while mask:
        word = mask & _WORD_MASK
        words.append(word - 2**64 if word >= 2**63 else word)
        mask >>= 64
    return words
