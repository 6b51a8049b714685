"""Rows and records in every format, on a terminal and in a pipe."""

from __future__ import annotations

import io
import json
import re

import pytest

from warren.ctl.output import Format, Output, cell, shown, value_at


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


ROWS = [["a", 1, True, None, {"x": [1]}], ["b\tc", 1.5, False, ["p", "q"], "é"]]
COLUMNS = ("one", "two", "three", "four", "five")


def written(form: Format, *, terminal: bool = False, headers: bool = True) -> str:
    stream = Terminal() if terminal else io.StringIO()
    Output(form, headers=headers, stream=stream).rows(COLUMNS, ROWS)
    return stream.getvalue()


@pytest.mark.parametrize("form", [Format.TABLE, Format.TSV])
def test_lines_in_a_pipe_are_split_by_tabs_and_nothing_else(form: Format) -> None:
    assert written(form) == ('one\ttwo\tthree\tfour\tfive\na\t1\ttrue\t\t{"x":[1]}\nb\\tc\t1.5\tfalse\t[p, q]\té\n')


def test_csv_quotes_as_csv_does() -> None:
    assert written(Format.CSV) == ('one,two,three,four,five\na,1,true,,"{""x"":[1]}"\nb\tc,1.5,false,"[p, q]",é\n')


def test_json_keeps_values_and_has_a_row_a_line() -> None:
    text = written(Format.JSON)
    assert json.loads(text) == [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]
    assert len(text.splitlines()) == 3 + 1


def test_json_is_json_in_an_encoding_that_lacks_what_a_name_has() -> None:
    data = io.BytesIO()
    stream = io.TextIOWrapper(data, "ascii", errors="backslashreplace")
    Output(Format.JSON, stream=stream).rows(("name",), [["🐇é"]])
    stream.flush()
    assert json.loads(data.getvalue()) == [{"name": "🐇é"}]


def test_json_of_no_rows_is_an_empty_list() -> None:
    stream = io.StringIO()
    Output(Format.JSON, stream=stream).rows(("a",), [])
    assert stream.getvalue() == "[]\n"


def test_headers_can_be_left_out() -> None:
    assert written(Format.TSV, headers=False).startswith("a\t")
    assert written(Format.CSV, headers=False).startswith("a,")
    assert "one" not in written(Format.TABLE, terminal=True, headers=False)


def test_a_table_for_eyes_is_aligned() -> None:
    lines = re.sub(r"\x1b\[\d+m", "", written(Format.TABLE, terminal=True)).splitlines()
    assert [line.split()[0] for line in lines] == ["one", "a", "b\\tc"]
    assert lines[1].index("true") == lines[2].index("false")


def test_a_pretty_table_in_a_pipe_is_as_wide_as_it_must_be() -> None:
    stream = io.StringIO()
    Output(Format.PRETTY_TABLE, stream=stream).rows(("name",), [["x" * 300]])
    assert "x" * 300 in stream.getvalue()


def test_markup_in_names_is_not_obeyed() -> None:
    stream = Terminal()
    Output(Format.TABLE, stream=stream).rows(("name",), [["[red]q[/red]"]])
    assert "[red]q[/red]" in stream.getvalue()


def test_a_thousand_rows_and_more_are_aligned_too() -> None:
    stream = Terminal()
    Output(Format.TABLE, stream=stream).rows(("name", "n"), [[f"q{n}", n] for n in range(1200)])
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1201
    assert lines[0] == "name   n" and lines[1] == "q0     0" and lines[-1] == "q1199  1199"


def test_nothing_is_printed_when_the_first_row_cannot_be_fetched() -> None:
    def rows() -> object:
        raise ValueError
        yield

    stream = io.StringIO()
    with pytest.raises(ValueError):  # noqa: PT011
        Output(Format.TSV, stream=stream).rows(("a",), rows())  # type: ignore[arg-type]
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (Format.TABLE, "Title\n  a    1\n  bcd  x\\ny\n"),
        (Format.CSV, 'a,1\nbcd,"x\ny"\n'),
        (Format.TSV, "a\t1\nbcd\tx\\ny\n"),
        (Format.JSON, '{\n  "a": 1,\n  "bcd": "x\\ny"\n}\n'),
    ],
)
def test_a_record_is_lines_of_name_and_value(form: Format, text: str) -> None:
    stream = io.StringIO()
    Output(form, stream=stream).record("Title", {"a": 1, "bcd": "x\ny"})
    assert stream.getvalue() == text


@pytest.mark.parametrize(
    ("form", "quiet", "text"),
    [(Format.TABLE, False, "done\n"), (Format.TABLE, True, ""), (Format.JSON, False, ""), (Format.CSV, False, "")],
)
def test_what_was_done_is_said_to_people_only(form: Format, quiet: bool, text: str) -> None:
    stream = io.StringIO()
    Output(form, quiet=quiet, stream=stream).say("done")
    assert stream.getvalue() == text


def test_escape_sequences_of_names_do_not_reach_a_terminal() -> None:
    assert shown("\x1b[2Jq\x9b1m\r\n") == "\\x1b[2Jq\\x9b1m\\r\\n"
    stream = Terminal()
    Output(Format.TABLE, stream=stream).rows(("name",), [["\x1b]0;owned\x07"]])
    assert "\x1b]" not in stream.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0, "0"), (0.0, "0"), (12.345, "12.35"), (100.0, "100"), ([], "[]"), ([1], "[1]"), ({}, "{}")],
)
def test_values_as_text(value: object, text: str) -> None:
    assert cell(value) == text


@pytest.mark.parametrize(
    ("path", "value"), [("a.b.c", 1), ("a.b", {"c": 1}), ("a.x.c", None), ("a.b.c.d", None), ("z", None)]
)
def test_a_dotted_path_reaches_inside(path: str, value: object) -> None:
    assert value_at({"a": {"b": {"c": 1}}}, path) == value


HOSTILE = "\x1b[2Jq\x07\x7f\x9b31m\r\x85\u202egnp.\xad\u2028\U000e0061"


@pytest.mark.parametrize("form", list(Format))
@pytest.mark.parametrize("terminal", [False, True])
def test_names_say_nothing_to_the_terminal(form: Format, terminal: bool) -> None:
    stream = Terminal() if terminal else io.StringIO()
    out = Output(form, stream=stream)
    out.rows(("name", "arguments"), [[HOSTILE, {HOSTILE: [HOSTILE]}]] * 2)
    out.record(HOSTILE, {HOSTILE: HOSTILE})
    out.heading(HOSTILE)
    out.say(HOSTILE)
    out.result(HOSTILE)
    out.document({HOSTILE: HOSTILE})
    written = re.sub(r"\x1b\[\d*m", "", stream.getvalue())  # colours of our own
    assert all(character in "\n\t" or character.isprintable() for character in written)


def test_names_in_all_letters_are_as_they_are() -> None:
    name = "été\xa0Ж 注文\u3000😀"
    stream = io.StringIO()
    Output(Format.TSV, headers=False, stream=stream).rows(("name",), [[name]])
    Output(Format.JSON, stream=stream).document(name)
    assert stream.getvalue() == f'{name}\n"{name}"\n'


def test_names_in_json_are_what_they_were() -> None:
    stream = io.StringIO()
    Output(Format.JSON, stream=stream).rows(("name",), [[HOSTILE]])
    assert json.loads(stream.getvalue()) == [{"name": HOSTILE}]
