"""SQL filters: refusals, and the results of conditions. In parentheses: ``selectors.py``."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from warren.amqp.field_table import Table, encode_table
from warren.amqp.properties import BasicProperties
from warren.amqp10.error_conditions import LinkError
from warren.amqp10.like_pattern import PART_MAX
from warren.amqp10.message_view import STEPS_MAX, MessageView
from warren.amqp10.selectors import (
    DEPTH_MAX,
    LENGTH_MAX,
    PARTS_MAX,
    TOKENS_MAX,
    selector_of,
)

from .test_like_pattern import slowly_like

NOW_MS = 1_700_000_000_000
START = 12


def view_of(headers: Table | None = None, **properties: object) -> MessageView:
    found = BasicProperties()
    for name, value in properties.items():
        setattr(found, name, value)
    if headers is not None:
        found.headers = encode_table(headers)
    content = bytes.fromhex("003c0000") + bytes(8) + found.encode()
    return MessageView(content, 0, len(content), NOW_MS)


HEADERS: Table = {
    "n": 5,
    "ratio": 2.5,
    "text": "emea",
    "yes": True,
    "no": False,
    "raw": b"\xff\x00",
    "order status": "new",
    "a.b": 7,
    "none": None,
    "x-amqp10-subject": "orders.new",
    "x-amqp10-group-sequence": 9,
}


def met(text: str) -> bool:
    view = view_of(
        HEADERS, priority=7, message_id="42", user_id="John", timestamp=1_700_000_000, app_id="g", reply_to="q"
    )
    return selector_of(text).matches(view)


@pytest.mark.parametrize(
    "text",
    [
        "n = 5",
        "a.n = 5.0 AND application_properties.n <> 6",
        "n != 6 AND n >= 5 AND n <= 5 AND n > -1 AND 4 < n",
        "ratio * 2 = n AND n / 2 = ratio AND n % 3 = 2 AND -n % 3 = -2",
        "n + 1 - 2 * 3 = 0",
        "(n + 1 - 2) * 3 = 12",
        "+n = 5 AND -n = -5 AND - n = - 5",
        ".5 < 1e0 AND 5. = 5 AND 1.5E+1 = 15 AND 150e-1 = 15",
        "text = 'emea' AND text = \"emea\" AND text <> 'it''s' AND 'it''s' = \"it's\"",
        "text > 'ema' AND text < 'emeb'",
        "raw = 0xff00 AND raw > 0xFE AND text = 0x656d6561",
        "yes AND NOT no AND yes = TRUE AND no = FALSE AND NOT NOT yes",
        "(yes OR no) = TRUE",
        "[order status] = 'new' AND a.[order status] LIKE 'n%' AND [a.b] = 7",
        "none IS NULL AND missing IS NULL AND n IS NOT NULL AND raw IS NOT NULL",
        "text IN ('amer', 'emea') AND text NOT IN ('apj') AND n IN (1 + 4) AND n IN (5.0)",
        "h.priority = 7 AND header.priority > 4",
        "p.subject LIKE 'orders.%' AND properties.group_sequence % 2 = 1",
        "p.message_id = '42' AND p.message_id <> 42 AND p.message_id IN (42, '42') AND 43 <> p.message_id",
        "p.user_id = 'John' AND p.user_id = 0x4a6f686e AND p.user_id LIKE 'J_hn'",
        "p.creation_time = 1700000000000 AND p.creation_time >= UTC() - 3600000 AND UTC() < 1700000000001",
        "p.reply_to = '/queues/q' AND p.group_id = 'g'",
        "p.to IS NULL AND p.correlation_id IS NULL AND p.absolute_expiry_time IS NULL",
        # Values of different kinds differ, and have no order.
        "text <> 5 AND NOT text > 5 AND NOT text <= 5 AND yes <> 1 AND NOT yes = 1 AND NOT n = '5'",
        "9223372036854775807 + 1 > 9223372036854775807 - 1 AND n < 9223372036854775807 * 9223372036854775807",
        "-9223372036854775808 < 0",
        # Precedence, as in all languages.
        "yes OR no AND no",
        "NOT no AND yes",
        "n = 5 OR\tmissing =\n1",
    ],
)
def test_a_condition_is_met(text: str) -> None:
    assert met(text)


@pytest.mark.parametrize(
    "text",
    [
        "n",
        "text",
        "missing",
        "missing = 5",
        "missing <> 5",
        "NOT missing = 5",
        "missing IN (1)",
        "missing NOT IN (1)",
        "missing LIKE '%'",
        "missing NOT LIKE '%'",
        "n LIKE '%'",
        "n NOT LIKE '5'",
        "raw LIKE '%'",
        "n / 0 = 1",
        "n % 0 = 1",
        "n % 1.5 = 0.5 OR n % 1.5 <> 0.5",
        "text + 'x' = 'emeax'",
        "yes + 1 = 2",
        "-text = 5 OR -yes = 1",
        "1e308 * 10 > 0",
        "n IS NULL",
        "UTC() < 5",
        "h.priority = 4",
    ],
)
def test_a_condition_that_is_not_true_is_not_met(text: str) -> None:
    assert not met(text)


def test_a_message_without_a_priority_has_the_standards() -> None:
    assert selector_of("h.priority = 4").matches(view_of())


UNKNOWN = "missing = 1"


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        ("TRUE", "TRUE", "TRUE", "TRUE"),
        ("TRUE", "FALSE", "FALSE", "TRUE"),
        ("TRUE", UNKNOWN, UNKNOWN, "TRUE"),
        ("FALSE", "FALSE", "FALSE", "FALSE"),
        ("FALSE", UNKNOWN, "FALSE", UNKNOWN),
        (UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
    ],
)
def test_logic_has_three_values(left: str, right: str, both: str, either: str) -> None:
    """expressions.py (2)"""

    def check(text: str, expected: str) -> None:
        assert selector_of(text).matches(view_of()) is (expected == "TRUE"), text
        assert selector_of(f"NOT ({text})").matches(view_of()) is (expected == "FALSE"), text

    for first, second in ((left, right), (right, left)):
        check(f"{first} AND {second}", both)
        check(f"{first} OR {second}", either)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a value is expected in place of the end"),
        ("n =", "a value is expected in place of the end"),
        ("n = 5 5", "an operator or the end is expected in place of 5 at character 7"),
        ("n = 5 and m = 6", "reserved words are in upper case"),
        ("n = m = 5", "an operator or the end is expected"),
        ("(n = 5", ") is expected in place of the end"),
        ("n = 5)", "in place of ) at character 6"),
        ("n IN ()", "a value is expected"),
        ("n IN 5", "( is expected"),
        ("n IN (5,)", "a value is expected"),
        ("n NOT 5", "IN or LIKE is expected"),
        ("n IS 5", "NULL is expected"),
        ("n = NULL", "a value is expected in place of NULL"),
        ("n LIKE m", "a pattern in quotes is expected"),
        ("n LIKE 'a' ESCAPE 'ab'", "an escape is one character"),
        ("n LIKE 'a' ESCAPE ''", "an escape is one character"),
        ("n LIKE 'a!' ESCAPE '!'", "a pattern ends with the escape character"),
        ("n LIKE '%" + "_" * (PART_MAX + 1) + "%'", f"more than {PART_MAX} characters between two %"),
        ("n LIKE '" + "%a" * PARTS_MAX + "'", f"more than {PARTS_MAX} parts"),
        (" OR ".join(["n LIKE '" + "%a" * 50 + "'"] * 4), f"more than {PARTS_MAX} parts"),
        ("n = 'text", "the quote at character 5 is not closed"),
        ("n = [text", "the bracket at character 5 is not closed"),
        ("[] = 5", "is empty"),
        ("a. = 5", "a name is expected after the dot"),
        ("a.b.c = 5", "'.' at character 4 is not expected"),
        ("foo.bar = 5", "a name with a dot is written in brackets"),
        ("m.x = 5", "sections are header, properties and application_properties"),
        ("h.durable = TRUE", "the header has only the field priority"),
        ("p.color = 'red'", "unknown field of properties"),
        ("n = 9223372036854775809", "does not fit into 64 bits"),
        ("n = " + "9" * 4000, "does not fit into 64 bits"),
        ("n = 1e999", "too large"),
        ("n = 0x123", "half a byte"),
        ("n = 0x", "half a byte, or none"),
        ("n = 5; DROP TABLE q", "';' at character 6 is not expected"),
        ("UTC(5) = 5", ") is expected"),
        ("n = \0", "'\\x00' at character 5"),
        ("-- 5 = 5", "a value is expected in place of -"),
        ("n = 5abc", "in place of abc"),
        ("x" * (LENGTH_MAX + 1), f"it has {LENGTH_MAX + 1} characters"),
        ("(" * 10_000 + "n" + ")" * 10_000, "it has 20001 characters"),
        ("(" * (DEPTH_MAX + 1) + "n" + ")" * (DEPTH_MAX + 1), f"nested deeper than {DEPTH_MAX}"),
        ("n" + "+1" * TOKENS_MAX + " = 5", f"more than {TOKENS_MAX} words and signs"),
    ],
)
def test_what_is_no_condition_is_refused_with_a_reason(text: str, why: str) -> None:
    with pytest.raises(LinkError) as refused:
        selector_of(text)
    assert refused.value.condition == "amqp:invalid-field"
    assert refused.value.explanation.startswith("the SQL filter is invalid: ")
    assert why in refused.value.explanation
    assert len(refused.value.explanation) < 300


def test_the_largest_conditions_are_taken() -> None:
    """(2)"""
    assert selector_of("(" * DEPTH_MAX + "TRUE" + ")" * DEPTH_MAX).matches(view_of())
    assert selector_of("TRUE" + " AND TRUE" * ((TOKENS_MAX - 1) // 2)).matches(view_of())
    assert selector_of("NOT " * (TOKENS_MAX - 2) + "TRUE").matches(view_of())
    many = (TOKENS_MAX - 3) // 2
    assert selector_of(f"{many} = 0" + " + 1" * many).matches(view_of())
    assert selector_of("TRUE" + " " * (LENGTH_MAX - 4)).matches(view_of())


def test_what_takes_too_long_for_a_message_does_not_match_it() -> None:
    text = "a" * 100_000
    assert selector_of("text LIKE '%a_a%'").matches(view_of({"text": text}))
    too_much = " OR ".join(["text LIKE '%b_b%'"] * 3 + ["TRUE"])
    view = view_of({"text": text})
    assert not selector_of(too_much).matches(view)
    assert view.is_exhausted and view.steps <= STEPS_MAX + 300_000
    assert not selector_of(f"NOT ({too_much})").matches(view_of({"text": text}))


# --- against Python -----------------------------------------------------------------------------------------------

Value = bool | int | float | str | None
Made = tuple[str, Callable[[], Value]]
KNOWN: dict[str, Value] = {"i": 3, "j": -2, "f": 1.5, "s": "ab", "t": "b", "y": True, "z": False, "u": None}


def both(left: Value, right: Value) -> Value:
    if left is False or right is False:
        return False
    return True if left is True and right is True else None


def either(left: Value, right: Value) -> Value:
    if left is True or right is True:
        return True
    return False if left is False and right is False else None


def number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def alike(left: Value, right: Value) -> bool:
    return (number(left) and number(right)) or type(left) is type(right)


def compared(sign: str, left: Value, right: Value) -> Value:
    if left is None or right is None:
        return None
    if sign in ("=", "<>"):
        return (alike(left, right) and left == right) is (sign == "=")
    if not alike(left, right) or isinstance(left, bool):
        return False
    return bool(eval(f"left {sign} right", {}, {"left": left, "right": right}))


def computed(sign: str, left: Value, right: Value) -> Value:
    if not number(left) or not number(right):
        return None
    assert isinstance(left, int | float) and isinstance(right, int | float)
    if sign == "%":
        if isinstance(left, float) or isinstance(right, float) or right == 0:
            return None
        return left - right * int(left / right)
    if sign == "/" and right == 0:
        return None
    return {"+": left + right, "-": left - right, "*": left * right, "/": left / (right or 1)}[sign]


class Maker:
    """Makes conditions, each with a function that decides it as Python would."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._left = 20

    def condition(self, depth: int) -> Made:
        self._left -= 1
        kind = self._chance.randrange(8) if depth and self._left > 0 else 7
        if kind < 2:
            left, right = self.condition(depth - 1), self.condition(depth - 1)
            word, join = ("AND", both) if kind else ("OR", either)
            return f"({left[0]}) {word} ({right[0]})", lambda: join(left[1](), right[1]())
        if kind == 2:
            part = self.condition(depth - 1)
            return f"NOT ({part[0]})", lambda: None if (found := part[1]()) is None else not found
        left = self.sum(2)
        if kind == 3:
            return f"({left[0]}) IS NULL", lambda: left[1]() is None
        if kind == 4:
            members = [self.sum(1) for _ in range(3)]
            text = ", ".join(member[0] for member in members)

            def is_in() -> Value:
                found = left[1]()
                if found is None:
                    return None
                return any(compared("=", found, member[1]()) is True for member in members)

            return f"({left[0]}) IN ({text})", is_in
        if kind == 5:
            pattern = "".join(self._chance.choices("ab_%", k=3))

            def is_like() -> Value:
                found = left[1]()
                return slowly_like(pattern, found) if isinstance(found, str) else None

            return f"({left[0]}) LIKE '{pattern}'", is_like
        sign = self._chance.choice(["=", "<>", "<", ">", "<=", ">="])
        right = self.sum(2)
        return f"{left[0]} {sign} {right[0]}", lambda: compared(sign, left[1](), right[1]())

    def sum(self, depth: int) -> Made:
        self._left -= 1
        if depth and self._left > 0 and self._chance.random() < 0.4:
            left, right = self.sum(depth - 1), self.sum(depth - 1)
            sign = self._chance.choice("+-*/%")
            return f"({left[0]} {sign} {right[0]})", lambda: computed(sign, left[1](), right[1]())
        if self._chance.random() < 0.5:
            name = self._chance.choice(list(KNOWN))
            return name, lambda: KNOWN[name]
        constants: list[Value] = [0, 1, 2.5, "ab", "b", True, False]
        constant = self._chance.choice(constants)
        text = f"'{constant}'" if isinstance(constant, str) else str(constant).upper()
        return text, lambda: constant


def test_random_conditions_agree_with_python() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    headers: Table = dict(KNOWN)
    outcomes = set()
    for _ in range(3000):
        text, decide = Maker(chance).condition(4)
        expected = decide()
        outcomes.add(expected)
        assert selector_of(text).matches(view_of(headers)) is (expected is True), text
        assert selector_of(f"NOT ({text})").matches(view_of(headers)) is (expected is False), text
    assert outcomes == {True, False, None}
