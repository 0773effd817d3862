"""Passwords of ledgers: never stored, only a salted check value of them.

Pure but for the salt. The key that protects entries (digest type MAC) comes from the password and
the same salt; the check value comes from the key, so that the one cannot be had from the other.
There is no slow key stretching: every MAC'ed entry lets a guess be tried at the price of one HMAC
anyway. The password has to be a secret worth the name.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final, NamedTuple

from ackgate.errors import DigestMismatchError
from ackgate.persistence.ledgers.entry_codec import CrcDigest, MacDigest
from ackgate.persistence.ports import DigestType

if TYPE_CHECKING:
    from collections.abc import Callable

    from ackgate.persistence.ledgers.entry_codec import Digest

SALT_BYTES: Final = 16
_CHECK_BYTES: Final = 16


class PasswordCheck(NamedTuple):
    """What is stored in a password's place."""

    salt: bytes
    check: bytes

    @classmethod
    def of(cls, password: bytes, random_bytes: Callable[[int], bytes]) -> PasswordCheck:
        """A check value for a new ledger."""
        salt = random_bytes(SALT_BYTES)
        return cls(salt, _check(_key(password, salt)))

    def digest(self, ledger_id: int, digest_type: DigestType, password: bytes) -> Digest:
        """The digest of the ledger's entries. Raises `DigestMismatchError` for a wrong password."""
        key = _key(password, self.salt)
        if not hmac.compare_digest(_check(key), self.check):
            raise DigestMismatchError(
                f"ledger {ledger_id}: the password is not the one it was created with"
            )
        return MacDigest(key) if digest_type is DigestType.MAC else CrcDigest()


def _key(password: bytes, salt: bytes) -> bytes:
    return hmac.digest(password, b"ackgate ledger key" + salt, "sha256")


def _check(key: bytes) -> bytes:
    return hmac.digest(key, b"ackgate ledger check", "sha256")[:_CHECK_BYTES]
