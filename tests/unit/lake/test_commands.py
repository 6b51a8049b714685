"""The command line of warren lake."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from unit.spark_bridge.export_broker import ExportBroker
from warren.lake import commands, runner
from warren.spark_bridge import commands as bridge
from warren.spark_bridge.commands import BrokerLogin, ExitCode


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> ExportBroker:
    made = ExportBroker()
    monkeypatch.setattr(bridge, "client_of", lambda: made)
    monkeypatch.setattr(ExportBroker, "__copy__", lambda self: self, raising=False)
    return made


def connect(flags: Mapping[str, Any]) -> BrokerLogin:
    raise AssertionError("the test has a broker")


def lake(*arguments: object) -> int:
    return commands.main([str(argument) for argument in arguments], connect)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--to", "lake/shop.orders"], "either a stream or a queue"),
        (["--stream", "orders", "--to", "lake/a.b", "--file", "lake.toml"], "with --file other options"),
        (["--stream", "orders", "--to", "lake/a.b", "--warehouse", "w"], "are for a --catalog"),
        (["--stream", "o", "--to", "d", "--format", "delta", "--catalog", "c"], "are for iceberg"),
        (["--stream", "orders", "--to", "lake/a.b", "--property", "a"], "must be KEY=VALUE"),
        (["--stream", "orders", "--to", "lake/a.b", "--metrics", "9000"], "must be HOST:PORT"),
        (["--stream", "orders", "--to", "lake/a.b", "--interval", "soon"], "is not a duration"),
        (["--strem", "orders"], "no such option: --strem"),
        (["--stream", "o", "--to", "lake/a.b", "--engine", "flink"], "must be one of arrow, spark"),
        (["--stream", "o", "--to", "lake/a.b", "--master", "local"], "--master is for --engine spark"),
        (["--queue", "q", "--to", "lake/a.b", "--engine", "spark"], "a queue is drained by one process"),
    ],
)
def test_what_does_not_fit_is_one_line_and_exit_code_2(
    broker: ExportBroker, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert lake(*arguments) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1


def test_without_its_libraries_it_says_how_to_install_them(
    broker: ExportBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broker.stream(count=1)
    for name in ("delta_table", "iceberg_table"):
        monkeypatch.delitem(sys.modules, f"warren.lake.{name}", raising=False)
    for name in ("pyiceberg", "pyiceberg.catalog", "deltalake"):
        monkeypatch.setitem(sys.modules, name, None)
    assert lake("--stream", "orders", "--to", tmp_path / "a.b", "--once") == ExitCode.USAGE
    assert lake("--stream", "orders", "--to", tmp_path / "c", "--format", "delta", "--once") == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "pyiceberg is not installed: pip install './warren[lake]'" in said
    assert "deltalake is not installed: pip install './warren[lake]'" in said


def test_without_pyspark_it_says_how_to_install_that(
    broker: ExportBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert lake("--stream", "orders", "--to", tmp_path / "a.b", "--engine", "spark") == ExitCode.USAGE
    assert capsys.readouterr().err.endswith("pyspark is not installed: pip install './warren[lake,spark]'\n")


def test_a_panic_of_a_library_is_no_success(
    broker: ExportBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Panic(BaseException):
        """As of a library in Rust."""

    def run(*_: object, once: bool) -> None:
        raise Panic("at the disco")

    monkeypatch.setattr(runner.Runner, "run", run)
    assert lake("--stream", "orders", "--to", tmp_path / "a.b", "--once") == ExitCode.FAILED
    assert capsys.readouterr().err == "warren lake: Panic: at the disco\n"


def test_several_tables_follow_by_one_file(
    broker: ExportBroker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    deltalake = pytest.importorskip("deltalake")
    pytest.importorskip("pyiceberg_core")
    broker.stream("orders", count=5)
    broker.queue("jobs", 4)
    path = tmp_path / "lake.toml"
    path.write_text(
        f"""
[[tables]]
stream = "orders"
to = "{tmp_path}/ice/shop.orders"

[[tables]]
queue = "jobs"
to = "{tmp_path}/delta/jobs"
format = "delta"

[[tables]]
stream = "nothing"
to = "{tmp_path}/delta/nothing"
format = "delta"
"""
    )
    assert lake("--file", path, "--once", "--json") == ExitCode.FAILED
    said, failed = capsys.readouterr()
    assert failed == "warren lake: nothing: Object not found\n"
    events = [json.loads(line) for line in said.splitlines()]
    messages = {event["message"] for event in events if "message" in event}
    assert {"shop.orders: 5 rows, 0 waiting", f"{tmp_path}/delta/jobs: 4 rows, 0 waiting"} <= messages
    found = deltalake.DeltaTable(f"{tmp_path}/delta/jobs").to_pyarrow_table()
    assert sorted(found.column("body").to_pylist()) == [b"0", b"1", b"2", b"3"]
