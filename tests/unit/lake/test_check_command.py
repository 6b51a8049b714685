"""warren lake check. check_command (1) to (3)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from warren.lake import commands
from warren.lake.table import Table
from warren.spark_bridge.commands import BrokerLogin, ExitCode

from .conftest import Delta, Iceberg
from .test_doubled import OPTIONS
from .test_tables import KEYS, SCHEMA, marks, offsets, rows


def connect(flags: Mapping[str, Any]) -> BrokerLogin:
    raise AssertionError("no broker is asked")


def check(place: Delta | Iceberg, *arguments: str) -> int:
    if isinstance(place, Delta):
        return commands.main(["check", place.place, "--format", "delta", *arguments], connect)
    return commands.main(["check", f"{place.directory}/shop.orders", *arguments], connect)


@pytest.fixture(params=["delta", "iceberg"])
def place(request: pytest.FixtureRequest) -> Delta | Iceberg:
    found: Delta | Iceberg = request.getfixturevalue(request.param)
    return found


def made(place: Delta | Iceberg) -> Table:
    table = place(SCHEMA, OPTIONS)
    table.load(KEYS)
    table.append(rows(3, 7), marks(1, 7))
    return table


def test_a_table_that_is_right_is_said_to_be(place: Delta | Iceberg, capsys: pytest.CaptureFixture[str]) -> None:
    made(place)
    assert check(place, "--repair") == ExitCode.OK
    assert capsys.readouterr().out.rstrip().endswith("orders, partition 0: offsets 3 to 6")


def test_manifests_are_read_once_however_many_files_there_are(
    iceberg: Iceberg, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.table import DataScan

    table = made(iceberg)
    for first in range(7, 12):
        table.append(rows(first, first + 1), marks(1, first + 1))
    plans: list[int] = []
    plan_files = DataScan.plan_files

    def counted(scan: DataScan) -> Any:
        plans.append(1)
        return plan_files(scan)

    monkeypatch.setattr(DataScan, "plan_files", counted)
    assert check(iceberg) == ExitCode.OK
    assert len(plans) == 1


def test_rows_that_are_there_twice_are_told_and_taken_out(
    place: Delta | Iceberg, capsys: pytest.CaptureFixture[str]
) -> None:
    table = made(place)
    table.append(rows(4, 6), marks(1, 7))
    assert check(place) == ExitCode.FAILED
    assert "  2 there more than once: 4 to 5\n" in capsys.readouterr().out
    assert offsets(place) == [3, 4, 4, 5, 5, 6]
    assert check(place, "--repair", "--json") == ExitCode.OK
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["checked", "repair", "repaired"]
    assert events[0]["doubled"] == [[4, 5]] and events[1]["rows"] == events[2]["rows"] == 2
    assert offsets(place) == [3, 4, 5, 6]
    table.load(KEYS)
    assert table.marks() == marks(1, 7)  # a follower continues
    table.append(rows(7, 8), marks(1, 8))
    assert check(place) == ExitCode.OK


def test_messages_that_are_missing_are_told_and_nothing_is_changed(
    place: Delta | Iceberg, capsys: pytest.CaptureFixture[str]
) -> None:
    made(place).append(rows(9, 10), marks(1, 10))
    assert check(place, "--repair") == ExitCode.DATA_LOSS
    said = capsys.readouterr().out
    assert "  2 missing: 7 to 8\n" in said and "take the table back" in said
    assert offsets(place) == [3, 4, 5, 6, 9]


@pytest.mark.parametrize("arguments", [["--format", "delta"], []])
def test_a_table_that_is_not_there_is_not_made(
    tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(["check", f"{tmp_path}/shop.orders", *arguments], connect) == ExitCode.USAGE
    assert "shop.orders: no " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
