"""The two checksums of the store's files, under the numbers that a file's header names them by.

1. A checksum is an integer from 0 to 2**32 - 1, and that of nothing is `previous`, or 0 if the caller gives none.
2. Bytes may come in pieces: ``checksum(a, x + y) == checksum(a, y, checksum(a, x))``. The change of the whole
   follows from that of ``x`` and the length of ``y`` (`change_behind`).
3. Both algorithms work in every installation, so that a store written on one host can be read on another. Which one
   new files get depends on what is fast here: without its wheel CRC-32C runs from a table, hundreds of times slower.

They find damage by disks and torn writes. They do not prove the origin of data.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Final

from mypy_extensions import i64

CRC32C: Final = 1  # Castagnoli: iSCSI, ext4, Btrfs; one instruction on current processors
CRC32: Final = 2  # IEEE 802.3, as zlib and gzip have it

ChecksumFunction = Callable[[bytes, int], int]

# x**32 is implied; the lowest bit stands for x**31.
CASTAGNOLI_REFLECTED: Final = 0x82F63B78

_table: list[int] = []
# What 1, 2, 4, ... zeros do to each bit of a change, by checksum; made when they are needed.
_zeros: dict[ChecksumFunction, list[list[int]]] = {}


def table_crc32c(data: bytes, previous: int = 0) -> int:
    """Return the CRC-32C of `data`, continued from `previous`, without the wheel."""
    if not _table:
        _table.extend(reflected_table(CASTAGNOLI_REFLECTED))
    table = _table
    crc: i64 = i64(previous) ^ 0xFFFFFFFF
    for byte in data:
        crc = i64(table[(crc ^ byte) & 0xFF]) ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def reflected_table(polynomial: int) -> list[int]:
    """Return the change of a reflected 32-bit CRC for each value of the lowest byte when it is shifted out."""
    table: list[int] = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ polynomial if crc & 1 else crc >> 1
        table.append(crc)
    return table


def maybe_wheel() -> ChecksumFunction | None:
    """Return CRC-32C as the crc32c wheel has it, or None when it is not installed.

    Only its extension is loaded: the package around it asks for its own version, which loads a megabyte of parsers.
    """
    package = find_spec("crc32c")
    places = None if package is None else package.submodule_search_locations
    found = None if places is None else PathFinder.find_spec("crc32c._crc32c", places)
    if found is None or found.loader is None:
        return None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    function: ChecksumFunction = module.crc32c
    return function


_wheel: ChecksumFunction | None = maybe_wheel()
_crc32c: ChecksumFunction = _wheel if _wheel is not None else table_crc32c
_crc32: ChecksumFunction = zlib.crc32


def default_algorithm() -> int:
    """Return the number of the algorithm for new files: CRC-32C when its wheel is installed, else CRC-32."""
    return CRC32C if _wheel is not None else CRC32


def checksum_function(algorithm: int) -> ChecksumFunction:
    """Return the function ``(data, previous) -> checksum`` of `algorithm`, for frequent calls.

    Raises:
        ValueError: no such algorithm.
    """
    if algorithm == CRC32C:
        return _crc32c
    if algorithm == CRC32:
        return _crc32
    raise ValueError(f"unknown checksum algorithm {algorithm}")


def checksum(algorithm: int, data: bytes, previous: int = 0) -> int:
    """Return the checksum of `data`; `previous` is that of the bytes before it.

    Raises:
        ValueError: no such algorithm.
    """
    return checksum_function(algorithm)(data, previous)


def change_behind(checksum: ChecksumFunction, change: int, size: int) -> int:
    """Return the change of the checksum of ``x + y`` when that of ``x`` changes by `change`. `size`: bytes of ``y``.

    A change is the exclusive or of both values. It takes as long as `size` has bits.
    """
    operators = _zeros.setdefault(checksum, [])
    power = 0
    while size >> power:
        if power == len(operators):
            operators.append(_twice(operators[-1]) if operators else _one_zero(checksum))
        if size >> power & 1:
            change = _applied(operators[power], change)
        power += 1
    return change


def _one_zero(checksum: ChecksumFunction) -> list[int]:
    nothing = checksum(b"\0", 0)
    return [checksum(b"\0", 1 << bit) ^ nothing for bit in range(32)]


def _twice(operator: list[int]) -> list[int]:
    return [_applied(operator, value) for value in operator]


def _applied(operator: list[int], change: int) -> int:
    found = 0
    for bit in range(32):
        if change >> bit & 1:
            found ^= operator[bit]
    return found
