"""Checksums of the store's files: checksum.py (1) to (3)."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from random import Random

import pytest

from warren.msgstore.log.checksum import CRC32, CRC32C, checksum, checksum_function, default_algorithm, table_crc32c

ALGORITHMS = (CRC32C, CRC32)


@pytest.mark.parametrize(("algorithm", "expected"), [(CRC32C, 0xE3069283), (CRC32, 0xCBF43926)])
def test_the_check_value_is_the_published_one(algorithm: int, expected: int) -> None:
    assert checksum(algorithm, b"123456789") == expected


def test_the_table_gives_the_published_values() -> None:
    """RFC 3720, B.4."""
    assert table_crc32c(b"123456789") == 0xE3069283
    assert table_crc32c(bytes(32)) == 0x8A9136AA
    assert table_crc32c(b"\xff" * 32) == 0x62A8AB43
    assert table_crc32c(bytes(range(32))) == 0x46DD794E
    assert table_crc32c(bytes(reversed(range(32)))) == 0x113FDB5C


@pytest.mark.parametrize("seed", range(20))
def test_the_table_agrees_with_the_wheel(seed: int) -> None:
    random = Random(seed)
    data = random.randbytes(random.randrange(3000))
    previous = random.getrandbits(32)
    assert table_crc32c(data, previous) == checksum(CRC32C, data, previous)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("seed", range(10))
def test_bytes_may_come_in_pieces(algorithm: int, seed: int) -> None:
    random = Random(seed)
    data = random.randbytes(2000)
    cuts = [0, *sorted(random.choices(range(len(data)), k=5)), len(data)]
    crc = 0
    for start, end in pairwise(cuts):
        crc = checksum(algorithm, data[start:end], crc)
    assert crc == checksum(algorithm, data)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_checksum_of_nothing_is_the_previous_one(algorithm: int) -> None:
    assert checksum(algorithm, b"") == 0
    assert checksum(algorithm, b"", 0x12345678) == 0x12345678
    assert checksum(algorithm, b"", 0xFFFFFFFF) == 0xFFFFFFFF


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_flipped_bit_is_found_wherever_it_is(algorithm: int) -> None:
    data = Random(1).randbytes(64)
    crc = checksum(algorithm, data)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert checksum(algorithm, bytes(flipped)) != crc


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_function_of_an_algorithm_is_its_checksum(algorithm: int) -> None:
    assert checksum_function(algorithm)(b"frame", 7) == checksum(algorithm, b"frame", 7)


@pytest.mark.parametrize("algorithm", [0, 3, -1, 255])
def test_an_unknown_algorithm_is_refused(algorithm: int) -> None:
    with pytest.raises(ValueError, match=f"algorithm {algorithm}"):
        checksum_function(algorithm)
    with pytest.raises(ValueError, match=f"algorithm {algorithm}"):
        checksum(algorithm, b"")


def test_new_files_get_crc32c_where_its_wheel_is_installed() -> None:
    assert default_algorithm() == CRC32C


def test_without_the_wheel_new_files_get_crc32_and_crc32c_can_still_be_read() -> None:
    program = (
        "import sys; sys.modules['crc32c'] = None\n"
        "from warren.msgstore.log.checksum import CRC32C, checksum, default_algorithm\n"
        "print(default_algorithm(), hex(checksum(CRC32C, b'6789', checksum(CRC32C, b'12345'))))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == [str(CRC32), "0xe3069283"]
