"""Logins of a broker under test: the same rules for logins, without the cost that makes guessing expensive.

A hash of the production kind costs 50 ms and 16 MiB on purpose; a suite of a thousand tests would pay a minute for
hiding a password that stands in its own source. So passwords given to a `Broker` are hashed with the least cost scrypt
has, and verified on the loop. Other hashes, set through the management API for instance, are verified as they are. A
refusal is not delayed and not counted: a test that logs in with a wrong password fifty times is not an attacker.
"""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Final

from warren.server.logins.authenticator import Authenticator
from warren.server.logins.passwords import SCRYPT, PasswordHash, verify_password
from warren.server.threads import LOGINS, in_thread

_CHEAP: Final = "$scrypt$ln=4,r=1,p=1$"  # the least that is verified


def hash_cheaply(password: str) -> PasswordHash:
    """Hash `password` in a few microseconds."""
    salt = os.urandom(16)
    key = hashlib.scrypt(password.encode(), salt=salt, n=1 << 4, r=1, p=1, dklen=32)
    text = "$".join(base64.b64encode(part).decode().rstrip("=") for part in (salt, key))
    return PasswordHash(_CHEAP + text, SCRYPT)


def is_cheap(text: str) -> bool:
    """Tell whether a stored hash is one of ours."""
    return text.startswith(_CHEAP)


class LoginsInTests(Authenticator):
    """Checks passwords."""

    async def check(self, user: str, password: bytes, peer_address: str) -> bool:
        """Tell whether `password` opens `user` for a peer at `peer_address`."""
        record = self._users.get(user)
        if record is None or not password or not self.may_log_in_from(user, peer_address):
            return False
        stored = PasswordHash(record.password_hash, record.hashing_algorithm)
        if is_cheap(stored.text):
            return verify_password(password, stored)
        return await in_thread(LOGINS, verify_password, password, stored, abandon=True)
