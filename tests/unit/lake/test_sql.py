"""The answers of `warren sql`. sql (1) to (3), sql_output (1) to (6)."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow.parquet as pq
import pytest

from unit.spark_bridge.chunks import Sent
from unit.spark_bridge.export_broker import ExportBroker
from warren.lake import commands, sql_commands
from warren.lake.sql import Query
from warren.spark_bridge import commands as bridge
from warren.spark_bridge.commands import BrokerLogin, ExitCode

duckdb = pytest.importorskip("duckdb")

ENDLESS = "SELECT sum(hash(a.range + b.range)) FROM range(1000000000) a, range(1000000000) b"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> ExportBroker:
    made = ExportBroker()
    monkeypatch.setattr(bridge, "client_of", lambda: made)
    return made


def connect(flags: Mapping[str, Any]) -> BrokerLogin:
    raise AssertionError("the test has a broker")


def sql(*arguments: object) -> int:
    return sql_commands.main([str(argument) for argument in arguments], connect)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_a_stream_is_asked_and_only_what_is_needed_is_read(
    broker: ExportBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.stream(count=50)
    assert sql("""SELECT count(*) AS n, max("offset") AS last FROM stream('orders') WHERE "offset" >= 40""") == 0
    shown = lines(capsys)
    assert shown[0].split() == ["n", "last"] and shown[-1].split() == ["10", "49"]
    assert [asked for asked in broker.asked if asked.startswith("read")] == ["read orders 40 50 "]


def test_equal_calls_have_the_same_rows(broker: ExportBroker, capsys: pytest.CaptureFixture[str]) -> None:
    broker.stream(count=6)
    query = """SELECT count(*) AS n FROM stream('orders') a JOIN stream( 'orders' ) b USING ("offset")"""
    assert sql(query, "--format", "csv") == 0
    assert lines(capsys) == ["n", "6"]
    assert broker.asked.count("describe orders") == 1


def test_streams_and_tables_of_the_lake_are_joined(
    broker: ExportBroker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("pyiceberg_core")
    pytest.importorskip("deltalake")
    stream = broker.stream(count=5)
    ice, delta = f"{tmp_path}/ice/shop.orders", f"{tmp_path}/delta"
    for arguments in (["--to", ice], ["--to", delta, "--format", "delta"]):
        assert commands.main(["--stream", "orders", "--once", *arguments], connect) == 0
    stream.add(3)
    capsys.readouterr()
    query = f"""
        SELECT s."offset", i.body IS NOT NULL AS ice, d.body IS NOT NULL AS delta
        FROM stream('orders', since => 3) s
        LEFT JOIN (SELECT * FROM lake('{ice}') WHERE "offset" > 3) i USING ("offset")
        LEFT JOIN lake('{delta}') d USING ("offset")
        ORDER BY 1 LIMIT 3"""
    assert sql(query, "--format", "csv") == 0
    assert lines(capsys) == ["offset,ice,delta", "3,false,true", "4,true,true", "5,false,false"]
    assert sql(f"FROM lake('{tmp_path}/ice/shop.none')") == ExitCode.FAILED
    assert sql(f"FROM lake('{tmp_path}/nothing')") == ExitCode.FAILED
    assert capsys.readouterr().err.count("no table") == 2
    assert not (tmp_path / "nothing").exists()


def test_files_of_an_iceberg_table_that_cannot_pass_are_not_opened(
    broker: ExportBroker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("pyiceberg_core")
    stream = broker.stream(count=5)
    table = f"{tmp_path}/ice/shop.orders"
    arguments = ["--stream", "orders", "--once", "--to", table, "--partition-by", "none"]
    assert commands.main(arguments, connect) == 0
    [first] = tmp_path.rglob("*.parquet")
    stream.add(5)
    assert commands.main(arguments, connect) == 0
    first.unlink()
    capsys.readouterr()
    assert sql(f"""SELECT sum("offset") AS n FROM lake('{table}') WHERE "offset" >= 5""", "--format", "csv") == 0
    assert lines(capsys) == ["n", "35"]
    assert sql(f"""SELECT sum("offset") AS n FROM lake('{table}') WHERE "offset" >= 4""") == ExitCode.FAILED


def test_rows_are_csv_json_and_parquet(
    broker: ExportBroker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broker.stream().messages += [Sent(0, b'a,"\n'), Sent(1, b"\xff")]
    query = """SELECT "offset", body, timestamp, MAP {'k': 1} AS m, [1, 2] AS l, priority FROM stream('orders')"""
    assert sql(query, "--format", "csv") == 0
    found = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert found[1] == ["0", 'a,"\n', "2023-11-14T22:13:20Z", '{"k": 1}', "[1, 2]", ""]
    assert found[2][1] == "\\xff"
    assert sql(query, "--to", tmp_path / "rows.json") == 0
    [first, second] = map(json.loads, (tmp_path / "rows.json").read_text().splitlines())
    assert first == {
        "offset": 0,
        "body": 'a,"\n',
        "timestamp": "2023-11-14T22:13:20Z",
        "m": {"k": 1},
        "l": [1, 2],
        "priority": None,
    }
    assert second["body"] == "\\xff"
    assert sql(query, "--to", tmp_path / "rows.parquet") == 0
    assert pq.read_table(tmp_path / "rows.parquet").column("body").to_pylist() == [b'a,"\n', b"\xff"]
    assert capsys.readouterr().out.endswith("rows.parquet: 2 rows\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.json", "rows.parquet"]


def test_only_files_are_replaced(broker: ExportBroker, tmp_path: Path) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    link.symlink_to(file)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert sql("SELECT 1 AS one", "--format", "csv", "--to", pipe) == 0
        assert os.read(reading, 100) == b"one\n1\n"
    finally:
        os.close(reading)
    assert sql("SELECT 2 AS two", "--format", "csv", "--to", link) == 0
    assert pipe.is_fifo() and link.is_symlink() and file.read_text() == "two\n2\n"
    assert sql("SELECT 1", "--format", "csv", "--to", tmp_path) == ExitCode.FAILED
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "pipe"]


def test_a_table_shows_control_characters_as_such_and_is_not_endless(
    broker: ExportBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warren.lake.sql_output.TABLE_ROWS", 2)
    broker.stream().messages += [Sent(number, b"\x1b[31m[red]\n") for number in range(3)]
    assert sql("SELECT body FROM stream('orders')") == 0
    shown, said = capsys.readouterr()
    assert shown.count("\\x1b[31m[red]\\n") == 2 and "\x1b" not in shown
    assert "only the first 2 rows are shown" in said


def test_names_of_columns_may_come_from_messages(
    broker: ExportBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.stream().messages += [Sent(0, b"\x1b[31m\xc2\x9b")]
    query = "PIVOT (SELECT body::VARCHAR AS b FROM (SELECT decode(body) AS body FROM stream('orders'))) ON b"
    assert sql(query) == 0
    assert "\\x1b[31m\\x9b" in capsys.readouterr().out
    assert sql(query, "--format", "csv") == 0
    assert "\x1b[31m\x9b" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for form in ("csv", "json"):
        assert sql(query, "--format", form) == 0
        assert not {"\x1b", "\x9b"} & set(capsys.readouterr().out)


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_who_reads_may_go_and_may_not_know_all_characters(form: str) -> None:
    program = """
import sys
from warren.lake.sql_commands import main
from warren.spark_bridge.commands import BrokerLogin
sys.exit(main(sys.argv[1:], lambda flags: BrokerLogin("http://127.0.0.1:1", "u", "p", "/", None, False, 1.0)))
"""
    query = "SELECT '€' AS x, range AS y FROM range(100000)"
    arguments = [sys.executable, "-c", program, query, "--format", form]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stderr is not None
        found = b""
        while b"u20ac" not in found and (line := process.stdout.readline()):
            found += line
        process.stdout.close()
        said = process.stderr.read()
        # A table has 1,000 rows, which a pipe may take before it is closed.
        assert b"\\u20ac" in found and b"Traceback" not in said
        assert process.wait() == ExitCode.UNREAD or form == "table"


def test_csv_has_a_carriage_return_in_quotes(broker: ExportBroker, capsys: pytest.CaptureFixture[str]) -> None:
    assert sql("SELECT 'a' || chr(13) || 'b' AS x, 'c' AS y", "--format", "csv") == 0
    assert capsys.readouterr().out == 'x,y\n"a\rb",c\n'


def test_json_is_json_whatever_the_values_are(broker: ExportBroker, capsys: pytest.CaptureFixture[str]) -> None:
    query = """SELECT 'nan'::DOUBLE AS a, ['inf'::DOUBLE, -('inf'::DOUBLE)] AS b, {'n': 'nan'::FLOAT} AS c,
               MAP {[1]: 1.5::DOUBLE} AS d, MAP {'x'::BLOB: 2} AS e, MAP {true: 3} AS f"""
    expected = {
        "a": "NaN",
        "b": ["Infinity", "-Infinity"],
        "c": {"n": "NaN"},
        "d": {"[1]": 1.5},
        "e": {"x": 2},
        "f": {"true": 3},
    }
    assert sql(query, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == expected
    assert sql(query, "--format", "csv") == 0
    [_, row] = csv.reader(io.StringIO(capsys.readouterr().out))
    assert json.loads(row[1]) == expected["b"] and json.loads(row[3]) == expected["d"]


def test_days_and_moments_that_python_does_not_know_are_shown(
    broker: ExportBroker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    values = [
        "timestamptz '57878-05-28 01:02:03.5+00'",
        "timestamp '10000-01-01'",
        "timestamptz '0044-03-15 (BC) 12:00:00+00'",
        "timestamp_ns '2026-02-28 01:02:03.000000004'",
        "date '57878-02-28'",
        "date '2026-02-28'",
    ]
    query = "SELECT " + ", ".join(f"{value} AS c{number}" for number, value in enumerate(values))
    texts = ["57878-05-28T01:02:03.500000Z", "10000-01-01T00:00:00.000000", "-0043-03-15T12:00:00.000000Z"]
    texts += ["2026-02-28T01:02:03.000000004", "57878-02-28", "2026-02-28"]
    assert sql(query, "--format", "csv") == 0
    assert lines(capsys)[1].split(",") == texts
    assert sql(query, "--format", "json") == 0
    assert list(json.loads(lines(capsys)[0]).values()) == texts
    assert sql(query) == 0
    assert lines(capsys)[-1].split() == texts
    nested = "SELECT [timestamp '57878-01-01'] AS moments, NULL::DATE AS day"
    assert sql(nested, "--format", "csv") == ExitCode.USAGE
    assert "'moments' has values that cannot be shown" in capsys.readouterr().err
    assert sql(nested, "--to", tmp_path / "rows.parquet") == 0


def test_columns_of_one_name_are_no_row_of_json(
    broker: ExportBroker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    query = "SELECT 1 AS a, 2 AS b, 3 AS a"
    for more in (("--format", "json"), ("--to", tmp_path / "rows.json")):
        assert sql(query, *more) == ExitCode.USAGE
        assert "two columns are called 'a'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert sql(query, "--format", "csv") == 0
    assert lines(capsys) == ["a,b,a", "1,2,3"]


def test_values_that_do_not_fit_are_spoken_of(broker: ExportBroker, capsys: pytest.CaptureFixture[str]) -> None:
    broker.stream().messages += [Sent(0, b'{"a": 1}'), Sent(1, b"{")]
    assert sql("SELECT sum(a) AS n FROM stream('orders', json => true)", "--format", "csv") == 0
    shown, said = capsys.readouterr()
    assert shown == "n\n1\n"
    assert said == (
        "warren sql: stream('orders', json => true): bodies and values that do not fit the columns, and are null: 1\n"
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["SELEC 1"], 'syntax error at or near "SELEC"'),
        (["SELECT nothing FROM stream('orders')"], '"nothing" not found'),
        (["FROM stream('jobs')"], "'jobs' is classic and no stream"),
        (["FROM stream(5)"], "stream() needs a name"),
        (["FROM stream('orders', sinse => '1h')"], "stream() has no argument sinse"),
        (["FROM stream('orders', since => true)"], "since must be a text"),
        (["FROM lake('a', since => '1h')"], "lake() takes the name of a table and nothing else"),
        (["SELECT 1", "--format", "parquet"], "--format parquet needs a file"),
        (["SELECT 1", "--format", "xml"], "--format xml: must be one of"),
        (["SELECT 1", "--to", "rows"], "--format says what it is to be"),
        (["SELECT 1", "--warehouse", "w"], "--warehouse is for a --catalog"),
        (["SELECT 1", "--memory", "much"], "is not a size"),
    ],
)
def test_what_does_not_fit_is_one_line_and_exit_code_2(
    broker: ExportBroker, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    broker.stream(count=1)
    broker.queue("jobs", 1)
    assert sql(*arguments) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1


def test_what_a_scan_fails_with_is_what_the_command_ends_with(
    broker: ExportBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stream = broker.stream(count=20)
    real = duckdb.connect

    def connect_late(*arguments: Any, **more: Any) -> Any:
        stream.trim(10)  # by retention, after it was looked what there is
        return real(*arguments, **more)

    monkeypatch.setattr(duckdb, "connect", connect_late)
    to = tmp_path / "rows.csv"
    assert sql("FROM stream('orders')", "--to", to) == ExitCode.DATA_LOSS
    assert "With skip_lost they are passed over" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    stream.add(10)
    assert sql("""SELECT "offset" FROM stream('orders')""", "--to", to, "--skip-lost") == 0


@pytest.mark.parametrize("query", [ENDLESS, f"{ENDLESS}, stream('orders') s"])
def test_who_interrupts_it_is_told_so(
    broker: ExportBroker,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    query: str,
) -> None:
    broker.stream(count=1)
    real = duckdb.connect

    def connect(*arguments: Any, **more: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)  # before it has begun, or later: the signal arrives in the main thread
        return real(*arguments, **more)

    monkeypatch.setattr(duckdb, "connect", connect)
    assert sql(query, "--to", tmp_path / "rows.csv") == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "warren sql: interrupted\n"
    assert not list(tmp_path.iterdir())


def test_a_query_that_is_interrupted_when_it_has_just_ended_has_ended(
    broker: ExportBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(broker, pytest.fail)
    closed = MagicMock()

    class BrokerLogin:
        """One of DuckDB that is interrupted while it is closed, and after it."""

        def __init__(self, real: Any) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def close(self) -> None:
            query.interrupt()
            self._real.close()
            query.interrupt()
            closed()

    real = duckdb.connect
    monkeypatch.setattr(duckdb, "connect", lambda *arguments, **more: BrokerLogin(real(*arguments, **more)))
    with query.run("SELECT 1 AS one") as rows:
        assert rows.read_all().to_pylist() == [{"one": 1}]
    closed.assert_called_once_with()


def test_without_its_library_it_says_how_to_install_it(
    broker: ExportBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert sql("SELECT 1") == ExitCode.USAGE
    assert "duckdb is not installed: pip install './warren[sql,lake]'" in capsys.readouterr().err
