"""MurmurHash3, x86, 32 bit: clients and brokers use it to spread keys over the partitions of a super stream.

1. Every intermediate value fits a signed 64-bit integer, so the compiled and the interpreted build agree bit by bit.

Source: Austin Appleby's MurmurHash3, in the public domain.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

_MASK: Final[i64] = 0xFFFFFFFF
_C1: Final[i64] = 0xCC9E2D51
_C2: Final[i64] = 0x1B873593


def murmur3(data: bytes, seed: i64) -> i64:
    """Return the hash of `data`, 0 to 2**32 - 1; `seed` is of 32 bits."""
    value: i64 = seed
    size: i64 = len(data)
    whole: i64 = size & ~3
    at: i64 = 0
    while at < whole:
        block: i64 = data[at] | (data[at + 1] << 8) | (data[at + 2] << 16) | (data[at + 3] << 24)
        value ^= _scrambled(block)
        value = _rotated(value, 13)
        value = (value * 5 + 0xE6546B64) & _MASK
        at += 4
    if whole < size:
        rest: i64 = 0
        at = size - 1
        while at >= whole:
            rest = (rest << 8) | data[at]
            at -= 1
        value ^= _scrambled(rest)
    value ^= size
    value = _times(value ^ (value >> 16), 0x85EBCA6B)
    value = _times(value ^ (value >> 13), 0xC2B2AE35)
    return value ^ (value >> 16)


def _scrambled(block: i64) -> i64:
    return _times(_rotated(_times(block, _C1), 15), _C2)


def _rotated(value: i64, bits: i64) -> i64:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def _times(value: i64, factor: i64) -> i64:
    """Multiply two numbers of 32 bits, in halves: the whole product would not fit."""
    low: i64 = (value & 0xFFFF) * factor
    high: i64 = ((value >> 16) * factor) & 0xFFFF
    return (low + (high << 16)) & _MASK
