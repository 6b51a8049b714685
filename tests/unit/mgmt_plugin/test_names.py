"""What requests say beside their path."""

from __future__ import annotations

from typing import Any, cast

import pytest

from warren.mgmt_plugin.http.server import Request
from warren.mgmt_plugin.names import CLOSED_BY_MANAGEMENT, reason_of
from warren.mgmt_plugin.operators import Operator
from warren.mgmt_plugin.routes import Call


async def no_body(limit_bytes: int, look: Any = None) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"too slow", "too slow"),
        ("gr\u00f6\u00dfer".encode(), "gr\u00f6\u00dfer"),  # programs
        ("gr\u00f6\u00dfer".encode("latin-1"), "gr\u00f6\u00dfer"),  # browsers
        ("\u4f60\u597d".encode(), "\u4f60\u597d"),
        (b"", CLOSED_BY_MANAGEMENT),
    ],
)
def test_a_reason_is_utf_8_or_else_latin_1(sent: bytes, told: str) -> None:
    headers = {"x-reason": sent.decode("latin-1")}
    request = Request("DELETE", "/", "", headers, "127.0.0.1", False, no_body)
    call = Call(request, {}, cast(Operator, None), {}, cast(Any, None))
    assert reason_of(call) == told


def test_without_a_reason_it_is_the_usual_one() -> None:
    request = Request("DELETE", "/", "", {}, "127.0.0.1", False, no_body)
    assert reason_of(Call(request, {}, cast(Operator, None), {}, cast(Any, None))) == CLOSED_BY_MANAGEMENT
