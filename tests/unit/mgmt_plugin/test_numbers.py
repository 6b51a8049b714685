"""Integers as texts: those that there are, and those that cost or break something elsewhere."""

from __future__ import annotations

import pytest

from warren.mgmt_plugin.http.numbers import integer


@pytest.mark.parametrize("value", [0, 7, -7, (1 << 63) - 1, -(1 << 63)])
def test_an_integer_is_read(value: int) -> None:
    assert integer(str(value)) == value


def test_leading_zeros_are_digits_like_others() -> None:
    assert integer("007") == 7


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-",
        "+1",
        "1 ",
        " 1",
        "1\n",
        "1.0",
        "1e3",
        "0x1",
        "1_000",
        "\u0663",
        "\uff11",
        str(1 << 63),
        "9" * 20,
        "9" * 4999,
        "nan",
    ],
)
def test_whatever_else_there_is_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="integer"):
        integer(text)
