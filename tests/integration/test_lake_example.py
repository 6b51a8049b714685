"""The example of a table that grows by itself: it passes, also when interrupted, and it would notice if it did not."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPT = EXAMPLES / "weather_lake.py"
PAGE = EXAMPLES.parent / "docs" / "lake-example.md"
DEADLINE_S = 400.0

sys.path.insert(0, str(EXAMPLES))
import weather_lake as example  # noqa: E402
import weather_page as pages  # noqa: E402

STATION_DAY = pages.StationDay("JFK", date(2013, 5, 1), 10.0, 20.0, 21.0, 3.0)
ALERT = pages.Alert("heat", "JFK", date(2013, 5, 1), datetime(2013, 5, 1, 17), 35.5)


def run_example(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def summary(days: int, alerts: int = 0, rows: int = 3, growth: tuple[int, ...] = (0, 3)) -> pages.Summary:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return pages.Summary(now, rows, datetime(2013, 5, 1, 23), [STATION_DAY] * days, [ALERT] * alerts, growth)


def plots_of(shown: pages.Summary) -> dict[str, str]:
    return {
        "temperatures": pages.temperatures(shown, example.STATIONS),
        "gusts": pages.gusts(shown, example.STATIONS, 20.0),
        "rain": pages.rain(shown, example.STATIONS),
        "growth": pages.growth(shown),
    }


def rows_shown(out: Path) -> int:
    found = re.search(r"<dt>Rows</dt><dd>([\d,]+)</dd>", (out / "dashboard.html").read_text())
    assert found is not None
    return int(found[1].replace(",", ""))


@pytest.mark.long
@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_run_goes_on_where_one_was_interrupted_and_all_of_it_is_in_the_table_once(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg_core")
    pytest.importorskip("duckdb")
    out = tmp_path / "weather"
    command = [sys.executable, str(SCRIPT), "--out", str(out), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        printed: Iterator[str] = iter(process.stdout)
        management_url = next(printed).split()[-3]
        assert management_url.startswith("http://127.0.0.1:")
        assert "rows" in next(printed)
        rows_before = rows_shown(out)
        assert 'http-equiv="refresh"' in (out / "dashboard.html").read_text()
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, rest + said
    assert said.splitlines()[-1] == "lake-example: interrupted; the next run continues from here"

    result = run_example("--out", str(out), "--days", "45")
    assert result.returncode == 0, result.stdout + result.stderr
    wanted = re.search(r"^([\d,]+) rows in .*: as published$", result.stdout, re.MULTILINE)
    assert wanted is not None, result.stdout
    assert rows_shown(out) == int(wanted[1].replace(",", "")) > rows_before > 0
    readings = example.load_readings()[: rows_shown(out)]
    alerts = example.expected_alerts(readings)
    assert alerts, "nothing to be alarmed about in what was published"
    assert f"{len(alerts)} alerts taken by a consumer: each once, as expected" in result.stdout
    page = (out / "dashboard.html").read_text()
    assert 'http-equiv="refresh"' not in page
    assert re.findall(r'(?:src|href|url)[=(]"?([^\s">]+)', page) == []
    for name in ("temperatures", "gusts", "rain", "growth"):
        ElementTree.parse(out / f"{name}.svg")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--days", "0"], "argument --days: must be a number of days, 1 or more"),
        (["--days", "-3"], "argument --days: must be a number of days, 1 or more"),
        (["--days", "many"], "argument --days: must be a number of days, 1 or more"),
        (["--out", "FULL"], "FULL has something else in it: name a directory that is new, or of an earlier run"),
        (["--out", "FULL/file"], "FULL/file: Not a directory"),
        (["--out", "FULL/a,b"], "FULL/a,b/lake: tables cannot be below a directory with , in its name"),
    ],
)
def test_what_does_not_fit_is_said_in_a_line_before_anything_is_started(
    tmp_path: Path, arguments: list[str], line: str
) -> None:
    (tmp_path / "file").touch()
    result = run_example(*(argument.replace("FULL", str(tmp_path)) for argument in arguments))
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1].endswith(f": {line.replace('FULL', str(tmp_path))}")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_records_are_hourly_ones_of_three_stations_in_the_order_of_time() -> None:
    readings = example.load_readings()
    assert len(readings) == 26_115
    assert {reading.station for reading in readings} == set(example.STATIONS) == set(example.TOPICS)
    assert [reading.time for reading in readings] == sorted(reading.time for reading in readings)
    assert len({(reading.station, reading.time) for reading in readings}) == len(readings)
    kinds = {kind for kind, *_ in example.expected_alerts(readings)}
    assert kinds == set(example.LIMITS) == set(example.UNITS), "some kind of alert never happens"


def test_days_are_published_from_where_the_stream_ends() -> None:
    readings = example.load_readings()
    none = dict.fromkeys(example.TOPICS, 0)
    days = example.days_to_publish(readings, none, None)
    assert sum(len(day) for day in days) == len(readings)
    assert all(len({reading.time.date() for reading in day}) == 1 for day in days)
    counts = {station: sum(reading.station == station for day in days[:7] for reading in day) for station in none}
    assert example.days_to_publish(readings, counts, None) == days[7:]
    assert example.days_to_publish(readings, counts, 2) == days[7:9]
    assert example.days_to_publish(readings, dict.fromkeys(none, len(readings)), 2) == []


def test_whatever_is_missing_doubled_or_changed_is_named() -> None:
    sent = example.load_readings()[:3_000]
    alerts = example.expected_alerts(sent)
    totals: list[dict[str, Any]] = [
        {"station": station, "rows": rows, "hours": rows, "temperature": temperature, "rain": rain}
        for station, (rows, temperature, rain) in example.expected_totals(sent).items()
    ]
    assert example.differences(sent, totals, alerts) == []
    assert len(example.differences(sent, totals[1:], alerts)) == 1
    for column, more in (("rows", 1), ("temperature", 0.1), ("rain", -0.1)):
        changed = [{**totals[0], column: totals[0][column] + more}, *totals[1:]]
        assert example.differences(sent, changed, alerts), column
    # One is missing and another one there twice: the count is right.
    assert example.differences(sent, [{**totals[0], "hours": totals[0]["hours"] - 1}, *totals[1:]], alerts)
    assert example.differences(sent, totals, [*alerts, alerts[0]]) == [f"an alert too many came: {alerts[0]}"]
    assert example.differences(sent, totals, alerts[1:]) == [f"no alert came of {alerts[0]}"]


def test_what_the_page_of_the_documentation_shows_stands_in_the_program() -> None:
    program = {line.strip() for line in SCRIPT.read_text().splitlines()}
    blocks = re.findall(r"^```(?:python|sql)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 5
    assert [line for block in blocks for line in block.splitlines() if line.strip() not in program] == []


@pytest.mark.parametrize(("days", "alerts"), [(1, 0), (1, 1), (2, 20)])
def test_plots_are_well_formed_however_little_there_is_to_draw(days: int, alerts: int) -> None:
    for name, plot in plots_of(summary(days, alerts)).items():
        ElementTree.fromstring(plot)
        assert ElementTree.fromstring(pages.standalone(plot)).tag.endswith("svg"), name


def test_a_page_of_an_empty_table_has_no_plots_of_weather() -> None:
    empty = pages.Summary(datetime(2026, 1, 1, tzinfo=UTC), 0, None, [], [], ())
    assert set(plots_of(empty).values()) == {""}
    text = pages.page(empty, plots_of(empty), example.UNITS, reload_s=None)
    assert "<svg" not in text and "<table" not in text and "<dd>none</dd>" in text


def test_what_a_record_calls_its_station_is_text_in_the_page() -> None:
    alert = pages.Alert("heat", "<script>", date(2013, 5, 1), datetime(2013, 5, 1, 17), 35.5)
    shown = pages.Summary(datetime(2026, 1, 1, tzinfo=UTC), 1, None, [STATION_DAY], [alert], (1,))
    text = pages.page(shown, plots_of(shown), example.UNITS, reload_s=None)
    assert "<script" not in text and "&lt;script&gt;" in text


@pytest.mark.parametrize("highest", [0, 0.3, 1, 4, 5, 7, 10, 222, 26_115, 10**9])
def test_an_axis_ends_at_a_round_value_that_is_not_below_the_highest(highest: float) -> None:
    levels = pages.ticks(highest)
    assert levels[0] == 0 and levels[-1] >= highest
    assert 2 <= len(levels) <= 6
