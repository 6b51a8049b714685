"""Hashes of RabbitMQ are verified, new ones are scrypt, and nothing else verifies anything."""

from __future__ import annotations

import base64

import pytest

from warren.server.passwords import (
    DUMMY_HASH,
    RABBITMQ_DIGESTS,
    SCRYPT,
    PasswordHash,
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
