"""A small hash and a small random generator. Their values do not depend on the process, the build or the version.

    hash   = FNV-1a over the bytes, 32 bit, then two multiply-xorshift rounds
    jump   = jump consistent hashing (Lamping, Veach 2014) over a sequence derived from the hash

1. Every intermediate value fits a signed 64-bit integer, so the compiled and the interpreted build agree bit
   by bit.
2. Python's ``hash()`` is salted per process and is never used where a choice must survive a restart.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

FNV_BASIS: Final[i64] = 0x811C9DC5
# The most buckets that `jump` can tell apart without leaving 63 bits.
JUMP_BUCKETS_MAX: Final = 0x7FFFFFFF

_MASK: Final[i64] = 0xFFFFFFFF
_FNV_PRIME: Final[i64] = 0x01000193
_MIX: Final[i64] = 0x045D9F3B
_GOLDEN: Final[i64] = 0x9E3779B9


def mix(value: i64) -> i64:
    """Scramble 32 bits so that each input bit reaches every output bit."""
    value = ((value ^ (value >> 16)) * _MIX) & _MASK
    value = ((value ^ (value >> 16)) * _MIX) & _MASK
    return value ^ (value >> 16)


def stable_hash(data: bytes, basis: i64 = FNV_BASIS) -> i64:
    """Return the hash of `data`, 0 to 2**32 - 1. An earlier hash as `basis` chains several pieces."""
    value: i64 = basis
    for byte in data:
        value = ((value ^ i64(byte)) * _FNV_PRIME) & _MASK
    return mix(value)


def jump(value: i64, buckets: i64) -> i64:
    """Return the bucket, 0 to ``buckets - 1``, of a hash. A new bucket takes only its own share of the hashes.

    `buckets` is 1 to `JUMP_BUCKETS_MAX`.
    """
    bucket: i64 = 0
    candidate: i64 = 0
    state: i64 = value
    while candidate < buckets:
        bucket = candidate
        state = (state + _GOLDEN) & _MASK
        candidate = ((bucket + 1) << 32) // (mix(state) + 1)
    return bucket


class Xorshift:
    """A 32-bit xorshift generator (Marsaglia 2003), for choices that need to be even, not secret."""

    def __init__(self, seed: int) -> None:
        mixed: i64 = mix(i64(seed & 0xFFFFFFFF))
        # Zero must not be the state: the generator would stay there.
        self._state: i64 = mixed if mixed != 0 else _GOLDEN

    def below(self, limit: i64) -> i64:
        """Return the next number, 0 to ``limit - 1``; `limit` is at most 2**31."""
        state: i64 = self._state
        state ^= (state << 13) & _MASK
        state ^= state >> 17
        state ^= (state << 5) & _MASK
        self._state = state
        return (state * limit) >> 32
