"""Hashes of RabbitMQ are verified, new ones are scrypt, and nothing else verifies anything."""

from __future__ import annotations

import base64
import binascii
import subprocess
import sys

import pytest

from warren.server.logins import passwords
from warren.server.logins.passwords import (
    DUMMY_HASH,
    RABBITMQ_DIGESTS,
    SCRYPT,
    PasswordHash,
    check_hash,
    hash_password,
    hash_password_for_rabbitmq,
    verify_password,
)

# The worked example of RabbitMQ's "Passwords" page: salt 908DC60A, password "test12".
RABBITMQ_EXAMPLE = PasswordHash("kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", "rabbit_password_hashing_sha256")


def test_a_new_hash_fits_its_password_and_no_other() -> None:
    hashed = hash_password(b"secret")
    assert hashed.algorithm == SCRYPT
    assert verify_password(b"secret", hashed)
    assert not verify_password(b"Secret", hashed)
    assert not verify_password(b"", hashed)


def test_hashes_cost_what_the_page_says_but_in_tests() -> None:
    program = "from warren.server.logins.passwords import *; print(hash_password(b'x').text, DUMMY_HASH.text)"
    hashed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert [text.split("$")[2] for text in hashed] == ["ln=14,r=8,p=1"] * 2


def test_two_hashes_of_one_password_differ() -> None:
    assert hash_password(b"secret") != hash_password(b"secret")


def test_a_password_need_not_be_text() -> None:
    assert verify_password(b"\xff\x00\xfe", hash_password(b"\xff\x00\xfe"))


@pytest.mark.parametrize("algorithm", RABBITMQ_DIGESTS)
def test_a_hash_of_the_wrong_length_fits_nothing(algorithm: str) -> None:
    whole = base64.b64decode(hash_password_for_rabbitmq(b"secret", algorithm).text)
    for wrong in (whole[:-1], whole + b"\x00", whole[:4], b""):
        text = base64.b64encode(wrong).decode()
        assert not verify_password(b"secret", PasswordHash(text, algorithm))


@pytest.mark.parametrize("algorithm", RABBITMQ_DIGESTS)
def test_a_rabbitmq_hash_fits_its_password_and_no_other(algorithm: str) -> None:
    hashed = hash_password_for_rabbitmq(b"secret", algorithm)
    assert verify_password(b"secret", hashed)
    assert not verify_password(b"secret ", hashed)


def test_the_worked_example_of_rabbitmq_fits() -> None:
    assert verify_password(b"test12", RABBITMQ_EXAMPLE)
    assert not verify_password(b"test13", RABBITMQ_EXAMPLE)


@pytest.mark.parametrize(
    "broken",
    [
        PasswordHash("", SCRYPT),
        PasswordHash("", "rabbit_password_hashing_sha256"),
        PasswordHash("!!!", "rabbit_password_hashing_sha256"),
        PasswordHash("AAAA", "rabbit_password_hashing_sha512"),
        PasswordHash("secret", "plain"),
        PasswordHash("secret", ""),
        PasswordHash("$scrypt$ln=14,r=8,p=1$AAAA", SCRYPT),
        PasswordHash("$scrypt$ln=0,r=8,p=1$AAAA$AAAA", SCRYPT),
        PasswordHash("$scrypt$ln=14,r=0,p=1$AAAA$AAAA", SCRYPT),
        PasswordHash("$scrypt$ln=14,r=8,p=0$AAAA$AAAA", SCRYPT),
        PasswordHash("$scrypt$ln=14,r=8,p=1$A$A", SCRYPT),
        PasswordHash("$scrypt$ln=\u0661,r=8,p=1$AAAA$AAAA", SCRYPT),
        PasswordHash("\u00e9", "rabbit_password_hashing_md5"),
    ],
)
def test_what_is_no_hash_fits_nothing_and_raises_nothing(broken: PasswordHash) -> None:
    assert not verify_password(b"secret", broken)
    assert not verify_password(b"", broken)


@pytest.mark.parametrize("parameters", ["ln=20,r=8,p=1", "ln=14,r=99,p=1", "ln=14,r=8,p=99"])
def test_a_hash_that_would_cost_too_much_is_not_computed(parameters: str) -> None:
    hashed = PasswordHash(f"$scrypt${parameters}${'A' * 22}${'A' * 43}", SCRYPT)
    assert not verify_password(b"secret", hashed)


def test_other_affordable_parameters_are_honoured() -> None:
    import hashlib

    key = hashlib.scrypt(b"secret", salt=b"0123456789", n=1 << 10, r=4, p=2, dklen=24)
    salt_text, key_text = (base64.b64encode(raw).decode().rstrip("=") for raw in (b"0123456789", key))
    hashed = PasswordHash(f"$scrypt$ln=10,r=4,p=2${salt_text}${key_text}", SCRYPT)
    assert verify_password(b"secret", hashed)


def test_the_dummy_is_a_well_formed_hash_that_fits_nothing() -> None:
    assert not verify_password(b"", DUMMY_HASH)
    assert not verify_password(b"guest", DUMMY_HASH)


def scrypt(*, ln: int = 14, r: int = 8, p: int = 1, salt: int = 16, key: int = 32) -> PasswordHash:
    """Return a hash of these parameters that fits nothing."""
    texts = [base64.b64encode(bytes(size)).decode().rstrip("=") for size in (salt, key)]
    return PasswordHash(f"$scrypt$ln={ln},r={r},p={p}${texts[0]}${texts[1]}", SCRYPT)


OUT_OF_BOUNDS = [
    *(scrypt(ln=ln) for ln in (0, 1, 3, 17, 20, 62, 63, 64, 99)),
    *(scrypt(r=r) for r in (0, 33, 99)),
    *(scrypt(p=p) for p in (0, 5, 99)),
    *(scrypt(ln=ln, r=1) for ln in (16, 17, 18, 19)),  # for which OpenSSL raises
    *(scrypt(salt=salt) for salt in (1, 7, 65, 3000)),
    *(scrypt(key=key) for key in (1, 15, 65, 3000)),
    scrypt(ln=15, r=8, p=4),
    PasswordHash("$scrypt$", SCRYPT),
    PasswordHash("x" * 100_000, SCRYPT),
]


@pytest.mark.parametrize("hashed", OUT_OF_BOUNDS, ids=lambda hashed: hashed.text[:30])
def test_parameters_out_of_bounds_are_refused_and_fit_nothing_where_they_are_stored(hashed: PasswordHash) -> None:
    with pytest.raises(ValueError, match="password_hash"):
        check_hash(hashed)
    assert not verify_password(b"secret", hashed)


def test_every_pair_of_parameters_in_bounds_can_be_verified() -> None:
    accepted = []
    for ln in range(100):
        for r in range(100):
            try:
                check_hash(scrypt(ln=ln, r=r))
            except ValueError:
                continue
            accepted.append((ln, r))
    assert (14, 8) in accepted and len(accepted) > 100
    for ln, r in accepted:
        if ln <= 10 or ln == 15:  # the others cost the same work with other numbers
            passwords._scrypt(b"", bytes(8), ln, r, 1, 16)


@pytest.mark.parametrize("algorithm", [SCRYPT, *RABBITMQ_DIGESTS])
def test_an_empty_hash_and_one_of_ours_can_be_stored(algorithm: str) -> None:
    check_hash(PasswordHash("", algorithm))
    check_hash(hash_password(b"x") if algorithm == SCRYPT else hash_password_for_rabbitmq(b"x", algorithm))


def test_an_unknown_algorithm_and_what_is_no_base64_are_refused() -> None:
    with pytest.raises(ValueError, match="is not one of"):
        check_hash(PasswordHash("", "rot13"))
    for text in ("!!", "\u00e9", "AAA"):
        with pytest.raises(binascii.Error):
            check_hash(PasswordHash(text, "rabbit_password_hashing_sha256"))
