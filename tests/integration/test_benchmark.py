"""The benchmark: that it runs to its end and writes what it measured. Its figures are nobody's business here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 600


def test_a_load_is_measured_with_several_brokers_at_once_and_written_down(tmp_path: Path) -> None:
    written = tmp_path / "results.md"
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--warren-only", "--only", "16b-confirm"]
    command += ["--rounds", "1", "--seconds", "0.5", "--directory", str(tmp_path), "--output", str(written)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [line for line in written.read_text().splitlines() if line.startswith("| 16 B, ack + 2000 confirms")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert float(cells[1]) > 0, row
    assert any(int(cell.replace(",", "")) > 0 for cell in cells if cell.replace(",", "").isdigit()), row


def test_streams_are_measured_and_written_down(tmp_path: Path) -> None:
    written = tmp_path / "streams.md"
    command = [sys.executable, str(ROOT / "benchmarks" / "streams.py"), "--warren-only", "--rounds", "1"]
    command += ["--seconds", "0.5", "--messages", "100000", "--directory", str(tmp_path), "--output", str(written)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in written.read_text().splitlines() if line.startswith("| stream, ten consumers | Warren")]
    assert len(rows) == 1, written.read_text()
    assert int(rows[0].split("|")[4].strip().replace(",", "")) > 0, rows


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


def test_protocols_are_measured_and_written_down(tmp_path: Path) -> None:
    written = tmp_path / "protocols.md"
    command = [sys.executable, str(ROOT / "benchmarks" / "protocols.py"), "--warren-only", "--rounds", "1"]
    command += ["--seconds", "0.2", "--directory", str(tmp_path), "--output", str(written)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [
        line.split("|") for line in written.read_text().splitlines() if line.startswith(("| AMQP", "| MQTT", "| STOMP"))
    ]
    assert len(rows) == 8, written.read_text()
    assert all(float(row[2]) > 0 and int(row[3].strip().replace(",", "")) > 0 for row in rows), rows
