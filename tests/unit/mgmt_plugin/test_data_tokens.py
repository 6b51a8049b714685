"""Tokens for the listener of data alone. data_tokens (1) to (3)."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.channels.access import AccessControl
from warren.mgmt_plugin.data_tokens import KEY_FILE, DataTokens, Grant, key_of
from warren.mgmt_plugin.http.server import HttpError, Request
from warren.server.start_errors import StartError
from warren.vhosts.metadata import UserDelete, UserPut

KEY = bytes(32)


async def nothing(limit_bytes: int, look: object = None) -> bytes:
    return b""


def asked(authorization: str | None) -> Request:
    headers = {} if authorization is None else {"authorization": authorization}
    return Request("GET", "/", "", headers, "127.0.0.1", False, nothing)


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def users(password_hash: str = "h") -> AccessControl:
    found = AccessControl(lambda: None)
    found.apply(UserPut("ada", password_hash, "scrypt", ()))
    return found


def refusal(tokens: DataTokens, authorization: str | None) -> str:
    with pytest.raises(HttpError) as caught:
        tokens.grant_of(asked(authorization))
    assert caught.value.status == 401
    return str(caught.value.reason)


def test_a_token_says_what_it_is_for_until_it_ends() -> None:
    clock = Clock()
    tokens = DataTokens(KEY, users(), clock)
    token = tokens.issue("ada", "/", "orders/ä", 60)
    assert tokens.grant_of(asked(f"Bearer {token}")) == Grant(1060, "ada", "/", "orders/ä")
    clock.now_s = 1060
    assert refusal(tokens, f"Bearer {token}") == "the token has expired"


def test_it_is_known_after_a_restart_and_to_nobody_with_another_key() -> None:
    token = DataTokens(KEY, users()).issue("ada", "/", "q", 60)
    assert DataTokens(KEY, users()).grant_of(asked(f"bearer {token}")).user == "ada"
    assert "issued by another broker" in refusal(DataTokens(b"1" * 32, users()), f"Bearer {token}")


def test_it_ends_with_the_password_and_with_the_user() -> None:
    token = DataTokens(KEY, users()).issue("ada", "/", "q", 60)
    assert "password of its user" in refusal(DataTokens(KEY, users("other")), f"Bearer {token}")
    gone = users()
    gone.apply(UserDelete("ada"))
    assert "password of its user" in refusal(DataTokens(KEY, gone), f"Bearer {token}")


@given(st.integers(0), st.binary(min_size=1, max_size=3))
def test_no_changed_token_is_taken(at: int, change: bytes) -> None:
    tokens = DataTokens(KEY, users())
    raw = base64.urlsafe_b64decode(tokens.issue("ada", "/", "queue", 60) + "==")
    place = at % len(raw)
    changed = raw[:place] + change + raw[place + len(change) :]
    if changed != raw:
        refusal(tokens, "Bearer " + base64.urlsafe_b64encode(changed).decode())


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer ä", "Bearer " + "A" * 9999, "Basic Z3Vlc3Q6Z3Vlc3Q=", "Bearer AAAA"],
)
def test_what_is_no_token_is_refused(authorization: str | None) -> None:
    refusal(DataTokens(KEY, users()), authorization)


def test_the_key_is_made_once_and_for_the_broker_alone(tmp_path: Path) -> None:
    key = key_of(tmp_path, None)
    assert len(key) == 32 and key_of(tmp_path, None) == key
    assert os.stat(tmp_path / KEY_FILE).st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [KEY_FILE]
    (tmp_path / KEY_FILE).write_bytes(b"short")
    with pytest.raises(StartError, match="not a key of 32 bytes"):
        key_of(tmp_path, None)
    with pytest.raises(StartError, match="No such file"):
        key_of(tmp_path / "nowhere", None)


def test_nodes_with_a_secret_in_common_have_the_same_key(tmp_path: Path) -> None:
    secrets = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    for path, text in zip(secrets, ("s3cret", "s3cret\n", "other"), strict=True):
        path.write_text(text)
    keys = [key_of(tmp_path, path) for path in secrets]
    assert keys[0] == keys[1] != keys[2]
    assert not (tmp_path / KEY_FILE).exists()
