"""Exports into Delta tables, when the package is there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from warren.spark_bridge.bridge_errors import BridgeError, UsageError
from warren.spark_bridge.export import Export, ExportOptions
from warren.spark_bridge.import_files import Import, ImportOptions

from .export_broker import ExportBroker, Watched
from .killing import killed_everywhere

OPTIONS: dict[str, Any] = {"form": "delta", "max_file_bytes": 300, "columns": ("offset", "routing_key", "body")}


def export(broker: ExportBroker, directory: Path, **options: Any) -> None:
    Export(broker, ExportOptions("orders", directory, **{**OPTIONS, **options}), Watched()).run()


def bodies(directory: Path) -> list[bytes]:
    deltalake = pytest.importorskip("deltalake")
    found: list[bytes] = deltalake.DeltaTable(str(directory)).to_pyarrow_table().column("body").to_pylist()
    return found


def stream(count: int) -> ExportBroker:
    broker = ExportBroker()
    made = broker.stream()
    for number in range(count):
        made.add(1, routing_key=f"k{number % 3}")
    return broker


def test_without_the_package_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(UsageError, match="pip install deltalake"):
        export(stream(1), tmp_path)


@pytest.mark.parametrize("partition_by", [None, "date", "routing_key"])
def test_a_stream_becomes_a_table_and_goes_on_in_it(tmp_path: Path, partition_by: str | None) -> None:
    pytest.importorskip("deltalake")
    broker = stream(10)
    export(broker, tmp_path, partition_by=partition_by)
    broker.queues["orders"].add(3, routing_key="k0")
    export(broker, tmp_path, partition_by=partition_by)
    assert Counter(bodies(tmp_path)) == Counter(b"%d" % number for number in range(13))
    state = Import(broker, ImportOptions(tmp_path, exchange=""), Watched()).run()
    assert state.published == 13
    assert Counter(each.body for each in broker.published) == Counter(b"%d" % number for number in range(13))


def test_an_empty_text_that_a_table_is_divided_by_is_null_there_and_comes_back_empty(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    broker = ExportBroker()
    made = broker.stream()
    for key in ("", "k", ""):
        made.add(1, routing_key=key, exchange="to")
    export(broker, tmp_path, partition_by="routing_key", columns=("exchange", "routing_key", "body"))
    rows = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table().select(["routing_key", "body"]).to_pylist()
    assert {row["body"]: row["routing_key"] for row in rows} == {b"0": None, b"1": "k", b"2": None}
    Import(broker, ImportOptions(tmp_path), Watched()).run()
    assert Counter((each.routing_key, each.body) for each in broker.published) == Counter(
        [("", b"0"), ("k", b"1"), ("", b"2")]
    )


def test_what_deltalake_says_is_told_with_the_table(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    broker = stream(2)
    export(broker, tmp_path)
    (log,) = (tmp_path / "_delta_log").glob("*.json")
    log.write_text("no log")
    broker.queues["orders"].add(1, routing_key="k0")
    with pytest.raises(BridgeError, match=str(tmp_path)):
        export(broker, tmp_path)
    with pytest.raises(BridgeError, match=str(tmp_path)):
        Import(broker, ImportOptions(tmp_path, exchange=""), Watched()).run()


def test_killed_anywhere_every_row_is_in_the_table_once(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    current: list[tuple[ExportBroker, Path]] = []

    def work() -> None:
        current.append((stream(10), tmp_path / str(len(current))))
        export(*current[-1])

    for at in killed_everywhere(work, (deltalake, "write_deltalake")):
        broker, directory = current[-1]
        export(broker, directory)
        assert Counter(bodies(directory)) == Counter(b"%d" % number for number in range(10)), at
