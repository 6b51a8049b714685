"""The benchmark: that it runs to its end and writes what it measured. Its figures are nobody's business here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 600


# How long each load lasts: on a machine that is busy enough nothing may come through in the first of them.
LONGER_AND_LONGER_S = (0.5, 4.0, 30.0)


def page_of(script: str, *options: str, directory: Path, figure: Callable[[str], float]) -> str:
    """Run a benchmark of Warren alone, longer until a figure on its page is more than nothing; return the page."""
    written = directory / "page.md"
    for seconds in LONGER_AND_LONGER_S:
        command = [sys.executable, str(ROOT / "benchmarks" / script), "--warren-only", "--rounds", "1", *options]
        command += ["--seconds", f"{seconds:g}", "--directory", str(directory), "--output", str(written)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        if figure(written.read_text()) > 0:
            break
    return written.read_text()


def row_of(page: str, begin: str) -> list[str]:
    """Return the cells of the only row that begins so."""
    (row,) = [line for line in page.splitlines() if line.startswith(begin)]
    return [cell.strip().replace(",", "") for cell in row.strip("|").split("|")]


@pytest.mark.long
def test_a_load_is_measured_with_several_brokers_at_once_and_written_down(tmp_path: Path) -> None:
    def cells(page: str) -> list[str]:
        return row_of(page, "| 16 B, ack + 2000 confirms")

    page = page_of("run.py", "--only", "16b-confirm", directory=tmp_path, figure=lambda page: float(cells(page)[1]))
    assert float(cells(page)[1]) > 0
    assert any(int(cell) > 0 for cell in cells(page) if cell.isdigit()), page


@pytest.mark.long
def test_streams_are_measured_and_written_down(tmp_path: Path) -> None:
    def received(page: str) -> float:
        return float(row_of(page, "| stream, ten consumers | Warren")[3])

    page = page_of("streams.py", "--messages", "100000", directory=tmp_path, figure=received)
    assert received(page) > 0, page


@pytest.mark.long
def test_very_many_of_a_kind_are_measured_written_down_and_drawn(tmp_path: Path) -> None:
    written = tmp_path / "scale.md"
    command = [sys.executable, str(ROOT / "benchmarks" / "scale.py"), "--warren-only", "--only", "queues"]
    command += [
        "--share",
        "0.0005",
        "--rounds",
        "1",
        "--seconds",
        "0.2",
        "--idle-seconds",
        "1",
        "--directory",
        str(tmp_path),
        "--output",
        str(written),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in written.read_text().splitlines() if line.startswith("| Warren, 50 |")]
    assert len(rows) == 1 and float(rows[0].split("|")[2].replace(",", "")) > 0, written.read_text()
    assert (tmp_path / "scale.png").stat().st_size > 1000


@pytest.mark.long
def test_protocols_are_measured_and_written_down(tmp_path: Path) -> None:
    def figures(page: str) -> list[float]:
        rows = [line for line in page.splitlines() if line.startswith(("| AMQP", "| MQTT", "| STOMP"))]
        assert len(rows) == 8, page
        return [float(cell) for row in rows for cell in row_of(page, row)[1:3]]

    page = page_of("protocols.py", directory=tmp_path, figure=lambda page: min(figures(page)))
    assert min(figures(page)) > 0, page
