"""Hash and verify passwords: RabbitMQ's salted hashes are verified, new ones are scrypt.

    rabbit_password_hashing_{sha256,sha512,md5}   base64( salt:4 H(salt password) )
    scrypt                                        $scrypt$ln=14,r=8,p=1$base64(salt:16)$base64(key:32)

1. Comparison takes the same time wherever the first difference is.
2. A hash that is malformed for its algorithm, or outside the bounds below, verifies no password and does not raise:
   hashes come from imports. `check_hash` refuses such a hash at the import.
3. Verifying a stored hash takes at most `_COST_BYTES_MAX` of memory, and at most four times the work of ours, whatever
   parameters it claims.

One scrypt costs about 50 ms and 16 MiB: never call these functions on the event loop.
Source of the first form: RabbitMQ, "Passwords", computing a password hash.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from dataclasses import dataclass
from typing import Final

SCRYPT: Final = "scrypt"
RABBITMQ_DIGESTS: Final = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
}

_LOG2_N: Final = 14
_R: Final = 8
_P: Final = 1
_KEY_BYTES: Final = 32
_SALT_BYTES: Final = 16
_RABBITMQ_SALT_BYTES: Final = 4
_COST_BYTES_MAX: Final = 64 << 20
_LOG2_N_RANGE: Final = range(4, 20)
_R_RANGE: Final = range(1, 33)
_P_RANGE: Final = range(1, 5)
_SALT_RANGE: Final = range(8, 65)
_KEY_RANGE: Final = range(16, 65)
# n * r * p of ours, times four.
_WORK_MAX: Final = 4 << (_LOG2_N + 3)

_ENCODED_MAX: Final = 256
_ENCODED: Final = re.compile(
    r"\$scrypt\$ln=([0-9]{1,2}),r=([0-9]{1,2}),p=([0-9]{1,2})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)"
)


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """A hash and the name of the algorithm that verifies it, as a user record keeps them."""

    text: str
    algorithm: str


# Fits no password, and costs as much as a real hash: verified for unknown users, so that the time tells nothing.
DUMMY_HASH: Final = PasswordHash(f"$scrypt$ln={_LOG2_N},r={_R},p={_P}${'A' * 22}${'A' * 43}", SCRYPT)


def hash_password(password: bytes) -> PasswordHash:
    """Hash `password` with a fresh salt. Takes about 50 ms."""
    salt = os.urandom(_SALT_BYTES)
    key = _scrypt(password, salt, _LOG2_N, _R, _P, _KEY_BYTES)
    return PasswordHash(f"$scrypt$ln={_LOG2_N},r={_R},p={_P}${_encode(salt)}${_encode(key)}", SCRYPT)


def hash_password_for_rabbitmq(password: bytes, algorithm: str) -> PasswordHash:
    """Hash `password` in RabbitMQ's form; `algorithm` is a key of `RABBITMQ_DIGESTS`."""
    salt = os.urandom(_RABBITMQ_SALT_BYTES)
    digest = hashlib.new(RABBITMQ_DIGESTS[algorithm], salt + password).digest()
    return PasswordHash(base64.b64encode(salt + digest).decode("ascii"), algorithm)


def verify_password(password: bytes, password_hash: PasswordHash) -> bool:
    """Tell whether `password` is the hashed one. An empty hash fits no password."""
    if password_hash.algorithm == SCRYPT:
        return _verify_scrypt(password, password_hash.text)
    digest = RABBITMQ_DIGESTS.get(password_hash.algorithm)
    return digest is not None and _verify_rabbitmq(password, password_hash.text, digest)


def check_hash(password_hash: PasswordHash) -> None:
    """Make sure that a hash can be verified. An empty hash can: it fits no password.

    Raises:
        binascii.Error: it is not base64. ValueError: it cannot be verified for another reason, which the text says.
    """
    text, algorithm = password_hash.text, password_hash.algorithm
    if algorithm != SCRYPT and algorithm not in RABBITMQ_DIGESTS:
        raise ValueError(f"hashing_algorithm '{algorithm}' is not one of {', '.join((SCRYPT, *RABBITMQ_DIGESTS))}")
    if not text:
        return
    if algorithm == SCRYPT:
        _parse_scrypt(text)
        return
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        raise binascii.Error("password_hash is not base64") from None


def _verify_scrypt(password: bytes, text: str) -> bool:
    try:
        log2_n, r, p, salt, key = _parse_scrypt(text)
        return hmac.compare_digest(_scrypt(password, salt, log2_n, r, p, len(key)), key)
    except ValueError:
        return False


def _parse_scrypt(text: str) -> tuple[int, int, int, bytes, bytes]:
    """Return log2 of n, r, p, the salt and the key.

    Raises:
        ValueError: it is not such a hash, or out of bounds.
    """
    match = _ENCODED.fullmatch(text) if len(text) <= _ENCODED_MAX else None
    salt, key = (_maybe_decode(match[4]), _maybe_decode(match[5])) if match is not None else (None, None)
    if match is None or salt is None or key is None:
        raise ValueError("password_hash is not of the form $scrypt$ln=…,r=…,p=…$salt$key")
    log2_n, r, p = (int(number) for number in match.group(1, 2, 3))
    for name, value, allowed in (
        ("ln", log2_n, _LOG2_N_RANGE),
        ("r", r, _R_RANGE),
        ("p", p, _P_RANGE),
        ("length of the salt", len(salt), _SALT_RANGE),
        ("length of the key", len(key), _KEY_RANGE),
    ):
        if value not in allowed:
            raise ValueError(f"password_hash: {name} must be from {allowed[0]} to {allowed[-1]}")
    if 128 * r * ((1 << log2_n) + p + 2) > _COST_BYTES_MAX or (r * p << log2_n) > _WORK_MAX:
        raise ValueError("password_hash: these ln, r and p cost too much to verify")
    if log2_n >= 16 * r:
        raise ValueError("password_hash: ln must be less than 16 times r")
    return log2_n, r, p, salt, key


def _verify_rabbitmq(password: bytes, text: str, digest: str) -> bool:
    salted = _maybe_decode(text)
    if salted is None or len(salted) != _RABBITMQ_SALT_BYTES + hashlib.new(digest).digest_size:
        return False
    salt, expected = salted[:_RABBITMQ_SALT_BYTES], salted[_RABBITMQ_SALT_BYTES:]
    return hmac.compare_digest(hashlib.new(digest, salt + password).digest(), expected)


def _scrypt(password: bytes, salt: bytes, log2_n: int, r: int, p: int, key_bytes: int) -> bytes:
    return hashlib.scrypt(
        password, salt=salt, n=1 << log2_n, r=r, p=p, maxmem=_COST_BYTES_MAX + (1 << 20), dklen=key_bytes
    )


def _encode(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii").rstrip("=")


def _maybe_decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
