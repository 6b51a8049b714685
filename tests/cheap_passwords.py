"""Passwords that cost nothing to hash: a hash takes as long as everything else that a broker does when it starts.

A broker hashes the password of its first user, and verifies it when a client logs in: a tenth of a second of a
processor each, which is the purpose of a password hash, in a thousand brokers of a test run. The hash looks the same
except for its parameter ``ln``. ``unit/server/logins/test_passwords.py`` tests the real cost, in processes of their
own.
"""

from __future__ import annotations

from typing import Final

from warren.server.logins import passwords

LOG2_N: Final = 4


def make_passwords_cheap() -> None:
    """Make new hashes, and the one that is verified for nobody, as cheap as possible.

    To be called before anything else imports from the module.
    """
    setattr(passwords, "DUMMY_HASH", _cheap(passwords.DUMMY_HASH))  # noqa: B010 - final to everybody else
    setattr(passwords, "_LOG2_N", LOG2_N)  # noqa: B010


def _cheap(dear: passwords.PasswordHash) -> passwords.PasswordHash:
    parameter = f"ln={passwords._LOG2_N},"
    assert parameter in dear.text
    return passwords.PasswordHash(dear.text.replace(parameter, f"ln={LOG2_N},"), dear.algorithm)
