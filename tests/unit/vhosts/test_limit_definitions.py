"""Limits of vhosts and users as JSON, and when one is reached."""

from __future__ import annotations

import re

import pytest

from warren.vhosts.limits import MAX_QUEUES, USER_LIMITS, VHOST_LIMITS, is_reached, parse_limits
from warren.vhosts.metadata import (
    LABEL_BYTES_MAX,
    TEXT_BYTES_MAX,
    TEXTS_MAX,
    GlobalParameterPut,
    PolicyPut,
    UserLimitsPut,
    VhostPut,
    check_storable,
)


def test_what_is_said_is_read() -> None:
    assert parse_limits('{"max-connections":5,"max-queues":-1}', VHOST_LIMITS, "limits") == {
        "max-connections": 5,
        "max-queues": -1,
    }
    assert parse_limits("{}", USER_LIMITS, "user-limits") == {}


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ('{"max-queues":"x"}', 'max-queues should be a number, actually was <<"x">>'),
        ('{"max-queues":1.5}', "max-queues should be a number, actually was 1.5"),
        ('{"max-queues":null}', "max-queues should be a number, actually was null"),
        ('{"max-queues":true}', "max-queues should be a number, actually was true"),
        ('{"max-channels":5}', 'Unrecognised terms [{<<"max-channels">>,5}] in limits'),
        (
            '{"zz":5,"max-queues":1.5}',
            'Unrecognised terms [{<<"zz">>,5}] in limits\nmax-queues should be a number, actually was 1.5',
        ),
        ("[]", "a definition must be a JSON object"),
    ],
)
def test_anything_else_is_refused_in_rabbitmqs_words(definition: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        parse_limits(definition, VHOST_LIMITS, "limits")


@pytest.mark.parametrize(
    ("limits", "count", "reached"),
    [
        ({}, 10**9, False),
        ({"max-queues": -1}, 10**9, False),
        ({"max-queues": 0}, 0, True),
        ({"max-queues": 2}, 1, False),
        ({"max-queues": 2}, 2, True),
        ({"max-queues": 2}, 3, True),
        ({"max-queues": 10**30}, 10**9, False),
        ({"max-connections": 0}, 0, False),
    ],
)
def test_zero_is_none_and_less_is_any_number(limits: dict[str, int], count: int, reached: bool) -> None:
    assert is_reached(limits, MAX_QUEUES, count) is reached


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (VhostPut("v\x00"), "name contains a NUL character"),
        (VhostPut("v", tags=("good", "b\x00d")), "tags contains a NUL character"),
        (VhostPut("\ud800"), "name is not valid Unicode"),
        (UserLimitsPut("u", '{"\udfff":1}'), "definition is not valid Unicode"),
        (PolicyPut("/", "é" * 128, "", "all", 0, "{}"), "name is longer than 255 bytes"),
        (VhostPut("v", "é" * (LABEL_BYTES_MAX // 2) + "x"), "description is longer than 65536 bytes"),
        (VhostPut("v", tags=("x" * (LABEL_BYTES_MAX // 2),) * 3), "tags is longer than 65536 bytes"),
        (VhostPut("v", tags=("x",) * (TEXTS_MAX + 1)), "tags: 1001 are too many (maximum 1000)"),
        (GlobalParameterPut("p", "x" * (TEXT_BYTES_MAX + 1)), "value is longer than 4194304 bytes"),
    ],
)
def test_text_that_no_database_or_no_file_takes_is_refused(
    change: VhostPut | UserLimitsPut | PolicyPut | GlobalParameterPut, text: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        check_storable(change)


def test_other_text_is_stored() -> None:
    check_storable(PolicyPut("/", "é" * 127, "\x01\r\n" * 200, "all", 0, "{}", operator=True))
