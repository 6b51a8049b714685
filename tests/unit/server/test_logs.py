"""One event, one line, no credentials."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import unicodedata
from collections.abc import Iterator

import pytest

from warren.server.logs import (
    RECENT,
    RECENT_CHARACTERS,
    RECENT_LINES,
    RECENT_VALUE_CHARACTERS,
    LogFormat,
    configure,
    get_logger,
    level,
    redact_url,
    set_level,
)


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("warren")
    before = (list(root.handlers), root.level, ours.level, logging.raiseExceptions)
    yield
    root.handlers[:], logging.raiseExceptions = before[0], before[3]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def lines(log_format: LogFormat, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure(level, log_format, stream)
    return stream


def test_a_json_line_has_time_level_logger_event_and_fields() -> None:
    stream = lines("json")
    get_logger("part").info("something happened", count=3, ok=True, ratio=0.5, nothing=None, name="x")
    line = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "info",
        "logger": "warren.part",
        "event": "something happened",
        "count": 3,
        "ok": True,
        "ratio": 0.5,
        "nothing": None,
        "name": "x",
    }


def test_a_console_line_reads_like_a_sentence_with_fields() -> None:
    stream = lines("console")
    get_logger("part").warning("something happened", count=3, name="two words")
    assert re.fullmatch(
        r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} warning something happened  count=3  name="two words"\n',
        stream.getvalue(),
    )


@pytest.mark.parametrize("log_format", ["console", "json"])
@pytest.mark.parametrize(
    "value",
    [
        "a\nb",
        "a\r\nERROR forged",
        "\x1b[31mred",
        "\u2028",
        "\x9b31m",
        "\ud800",
        b"\xff\n",
        "back\\slash",
        "\x7f",
        "queue-\u202egnp.exe",
        "a\u2066b\u2069",
        "zero\u200bwidth\ufeff",
        "a\U000e0061",
    ],
)
def test_a_value_cannot_end_the_line_or_speak_to_the_terminal(log_format: LogFormat, value: object) -> None:
    stream = lines(log_format)
    get_logger("part").info("event", value=value)
    written = stream.getvalue()
    assert written.endswith("\n")
    assert written[:-1].isprintable()
    written.encode()


@pytest.mark.parametrize("category", ["Cc", "Cf", "Cs", "Zl", "Zp"])
def test_everything_that_unicode_has_of_a_kind_is_escaped(category: str) -> None:
    stream = lines("console")
    every = "".join(filter(lambda each: unicodedata.category(each) == category, map(chr, range(sys.maxunicode + 1))))
    get_logger("part").info("event", value=every)
    assert stream.getvalue()[:-1].isprintable()


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_no_text_of_an_exception_looks_like_a_line_or_speaks_to_the_terminal(log_format: LogFormat) -> None:
    stream = lines(log_format)
    try:
        raise ValueError("queue '\x1b[2J\n2026-01-01 00:00:00.000 info    all is well\r\x9b31m'")
    except ValueError as error:
        get_logger("part").error("failed", exception=error)
    first, *more = stream.getvalue().removesuffix("\n").split("\n")
    assert first.isprintable()
    assert all(line.startswith("    ") and line.isprintable() for line in more)
    assert len(more) > 1 or log_format == "json"


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_credentials_are_never_written(log_format: LogFormat) -> None:
    stream = lines(log_format, "debug")
    log = get_logger("part")
    log.debug("login", password="hunter2", user="alice", password_hash="hunter2", token="hunter2")
    log.info("config", private_key_password="hunter2", Authorization="hunter2", new_secret=b"hunter2")
    log.error("cannot connect", url="postgresql+psycopg://bob:hunter2@db/warren")
    log.error("cannot connect to amqp://bob:hunter2@db/warren")
    try:
        raise ValueError("amqp://bob:hunter2@db")
    except ValueError as error:
        log.error("failed", exception=error)
    assert "hunter2" not in stream.getvalue()
    assert "alice" in stream.getvalue()
    assert "***" in stream.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("amqp://u:p@h/v", "amqp://u:***@h/v"),
        ("amqp://u:p@ss@h/v", "amqp://u:***@h/v"),
        ("amqp://:p@h", "amqp://:***@h"),
        ("amqp://h:5672/v", "amqp://h:5672/v"),
        ("a amqp://u:p@h and b amqp://x:y@z", "a amqp://u:***@h and b amqp://x:***@z"),
    ],
)
def test_only_the_password_of_a_url_is_hidden(text: str, shown: str) -> None:
    assert redact_url(text) == shown


def test_lines_below_the_level_are_not_written_nor_their_values_looked_at() -> None:
    class Untouchable:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    stream = lines("console", "warning")
    get_logger("part").info("quiet", value=Untouchable())
    assert stream.getvalue() == ""


def test_a_field_may_be_called_like_a_part_of_the_line_or_of_logging() -> None:
    stream = lines("json")
    get_logger("part").info("event", level="mine", msg="m", args=1, name="n")
    line = json.loads(stream.getvalue())
    assert (line["level"], line["level_"], line["msg"], line["args"], line["name"]) == (
        "info",
        "mine",
        "m",
        1,
        "n",
    )


def test_percent_signs_mean_nothing() -> None:
    stream = lines("console")
    get_logger("part").info("100 %s %d", share="%s")
    assert "100 %s %d  share=%s" in stream.getvalue()


def test_libraries_are_heard_from_warning_on_in_the_same_form() -> None:
    stream = lines("json", "debug")
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("trouble with %s", "x")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["event"] == "trouble with x"


def test_configuring_again_replaces() -> None:
    first, second = lines("console"), lines("json")
    get_logger("part").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_a_stderr_that_is_gone_does_not_stop_the_broker() -> None:
    stream = lines("console")
    stream.close()
    get_logger("part").info("nobody hears this")


@pytest.mark.parametrize(("before", "after"), [("info", "error"), ("error", "debug"), ("warning", "error")])
def test_who_changes_the_level_is_seen_whichever_way_it_goes(before: str, after: str) -> None:
    stream = lines("json", before)
    set_level(after, "user bob")
    assert level() == after
    line = json.loads(stream.getvalue())
    assert (line["level"], line["event"]) == ("warning", "log level changed")
    assert (line["was"], line["by"]) == (before, "user bob")
    get_logger("part").info("after")
    assert ("after" in stream.getvalue()) is (after in ("debug", "info"))


def test_the_same_level_again_is_no_change() -> None:
    stream = lines("json")
    set_level("info", "user bob")
    assert stream.getvalue() == ""


def test_the_last_lines_are_kept_redacted_and_numbered() -> None:
    lines("console")
    log = get_logger("part")
    first = RECENT.next_number
    log.debug("not written")
    log.info("shown", url="amqp://me:hidden@host", password="hidden", number=7, text="\ud800", data=b"\xff")
    log.error("failed", exception=ValueError("amqp://me:hidden@host"))
    shown, failed = RECENT.lines()[-2:]
    assert (shown["number"], failed["number"]) == (first, first + 1)
    assert shown["number_"] == 7 and shown["text"] == "?" and shown["data"] == "ff"
    assert shown["url"] == "amqp://me:***@host" and shown["password"] == "***"
    assert (shown["level"], shown["logger"], shown["event"]) == ("info", "warren.part", "shown")
    assert "hidden" not in str(RECENT.lines()[-2:])


def test_what_is_kept_of_lines_is_bounded() -> None:
    lines("console")
    log = get_logger("part")
    for number in range(RECENT_LINES + 10):
        log.info("short", at=number)
    kept = RECENT.lines()
    assert len(kept) == RECENT_LINES
    assert [line["number"] for line in kept] == list(range(RECENT.next_number - RECENT_LINES, RECENT.next_number))
    for _ in range(RECENT_LINES):
        log.info("long", text="x" * (2 * RECENT_VALUE_CHARACTERS))
    kept = RECENT.lines()
    assert 0 < sum(len(str(line["text"])) for line in kept) <= RECENT_CHARACTERS
    assert {len(str(line["text"])) for line in kept} == {RECENT_VALUE_CHARACTERS}
