"""Tokens for the listener of data alone: one user may read one queue until a time.

    token    base64url of  MAC 32 bytes | {"e": ends, s since 1970, "u": user, "v": vhost, "q": queue}

1. A token says what it is for, and the broker does not store it. So tokens cannot run out, and a token outlives a
   restart. The MAC is HMAC-SHA256 over its text and the hash of the user's password: it becomes invalid with the
   password and with the user.
2. A token gives access to what its user may read at the moment of each request, and never to more than its queue. It
   opens nothing on any other port.
3. The key is in the data directory, readable by the broker alone. Nodes with a secret in common derive the key from
   that, so that the next leader knows the tokens.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from warren.mgmt_plugin.http.server import HttpError, Request
from warren.server.logins.authenticator import Users
from warren.server.start_errors import StartError

TTL_MAX_S: Final = 24 * 3600
TOKEN_BYTES_MAX: Final = 4096
KEY_FILE: Final = "data_tokens.key"
_KEY_BYTES: Final = 32
_MAC_BYTES: Final = 32
_PURPOSE: Final = b"tokens for the listener of data"


class Grant(msgspec.Struct):
    """The content of a token."""

    ends: int = msgspec.field(name="e")
    user: str = msgspec.field(name="u")
    vhost: str = msgspec.field(name="v")
    queue: str = msgspec.field(name="q")


class DataTokens:
    """Makes tokens, and looks at them."""

    def __init__(self, key: bytes, users: Users, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self._users = users
        self._clock = clock

    def issue(self, user: str, vhost: str, queue: str, ttl_s: int) -> str:
        """Return a token of an existing user."""
        record = self._users.get(user)
        assert record is not None
        said = msgspec.json.encode(Grant(int(self._clock()) + ttl_s, user, vhost, queue))
        return base64.urlsafe_b64encode(self._mac(said, record.password_hash) + said).decode().rstrip("=")

    def grant_of(self, request: Request) -> Grant:
        """Return the content of the token of a request.

        Raises:
            HttpError: 401, the token is missing, is not one of ours, or has ended.
        """
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise _refused("a token is required: POST /api/warren/data/VHOST/QUEUE/token of the management API")
        grant = self._maybe_grant(text.strip())
        if grant is None:
            raise _refused("invalid token: issued by another broker, or the password of its user has changed")
        if self._clock() >= grant.ends:
            raise _refused("the token has expired")
        return grant

    def _maybe_grant(self, text: str) -> Grant | None:
        if len(text) > TOKEN_BYTES_MAX:
            return None
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            grant = msgspec.json.decode(raw[_MAC_BYTES:], type=Grant)
        except (ValueError, binascii.Error):
            return None
        record = self._users.get(grant.user)
        if record is None or not hmac.compare_digest(
            raw[:_MAC_BYTES], self._mac(raw[_MAC_BYTES:], record.password_hash)
        ):
            return None
        return grant

    def _mac(self, said: bytes, password_hash: str) -> bytes:
        return hmac.digest(self._key, hashlib.sha256(password_hash.encode()).digest() + said, hashlib.sha256)


def _refused(reason: str) -> HttpError:
    return HttpError(401, "not_authorized", reason, (("WWW-Authenticate", "Bearer"),))


def key_of(data_dir: Path, secret_file: Path | None) -> bytes:
    """Return the key that tokens are made with: of the secret that nodes share, or a file that is made once.

    Raises:
        StartError: it can be neither read nor made.
    """
    path = data_dir / KEY_FILE
    try:
        if secret_file is not None:
            return hmac.digest(secret_file.read_bytes().strip(), _PURPOSE, hashlib.sha256)
        if not path.exists():
            made = path.with_suffix(".new")
            with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            made.rename(path)
        key = path.read_bytes()
    except OSError as error:
        raise StartError(f"{error.filename}: {error.strerror}") from None
    if len(key) != _KEY_BYTES:
        raise StartError(f"{path}: not a key of {_KEY_BYTES} bytes; without the file a new one is made")
    return key
