"""The examples of docs/spark-connect.md, with the client that .cache/connect has.

The set-up of `make test` installs what they need besides (grpcio, pandas) there: nothing else of Warren does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from .lake import DEADLINE_S
from .messages import Publisher

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "spark-connect.md"
PYTHON = ROOT / ".cache" / "connect" / "bin" / "python"
ORDERS = [b'{"id": 1, "customer": "a", "amount": 5}', b'{"id": 2, "customer": "b", "amount": 7}', b"?"]
MORE = b'{"id": 3, "customer": "a", "amount": 10}'

# Each begins with a Java machine, or two, of its own.
pytestmark = pytest.mark.long


class Reader:
    """A process that follows the page in a directory, with the stream of a test instead of ``orders``."""

    def __init__(self, publisher: Publisher, stream: str, directory: Path) -> None:
        if not PYTHON.exists():
            pytest.skip(f"{PYTHON.relative_to(ROOT)} is not there: `make test-long` installs it")
        self._stream = stream
        self._directory = directory
        self._environment = os.environ | {
            "PATH": f"{PYTHON.parent}:{os.environ['PATH']}",
            "PYSPARK_PYTHON": str(PYTHON),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "WARREN_MANAGEMENT_URL": publisher.url,
        }

    def block(self, word: str, language: str = "python") -> str:
        """Return the example that has a word, of those in a language."""
        blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
        (found,) = [block for block in blocks if word in block]
        return found.replace('(spark, "orders"', f'(spark, "{self._stream}"')

    def run(self, *command: str | Path) -> str:
        """Run a program and return what it prints."""
        done = subprocess.run(
            command,
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=10 * DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout


def stream_of(publisher: Publisher, name: str) -> str:
    publisher.stream(name)
    publisher.bodies(name, ORDERS)
    return name


def test_batches_and_streams_are_read_from_a_thin_client(publisher: Publisher, tmp_path: Path) -> None:
    reader = Reader(publisher, stream_of(publisher, "connect"), tmp_path)
    program = tmp_path / "program.py"
    program.write_text(reader.block('remote("local[2]")'))
    printed = reader.run(PYTHON, program)
    assert "sum: 3\n" in printed and "rows: 3\n" in printed


def test_state_goes_on_where_it_was(publisher: Publisher, tmp_path: Path) -> None:
    stream = stream_of(publisher, "state")
    reader = Reader(publisher, stream, tmp_path)
    program = tmp_path / "program.py"
    program.write_text(reader.block("StatefulProcessor").replace('"value.*")', '"value.*").where("amount > 0")'))
    assert "totals: [('a', 5), ('b', 7)]\n" in reader.run(PYTHON, program)
    publisher.bodies(stream, [MORE])
    assert "totals: [('a', 15)]\n" in reader.run(PYTHON, program)


def test_a_pipeline_brings_its_tables_up_to_date(publisher: Publisher, tmp_path: Path) -> None:
    pyarrow_parquet = pytest.importorskip("pyarrow.parquet")
    stream = stream_of(publisher, "pipeline")
    reader = Reader(publisher, stream, tmp_path)
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "orders.py").write_text(reader.block("pipelines as dp"))
    (tmp_path / "spark-pipeline.yml").write_text(
        reader.block("spark-pipeline.yml", "yaml").replace("/srv/shop", str(tmp_path))
    )
    (command,) = re.findall(r"(?m)^    (spark-pipelines run.*)$", PAGE.read_text())
    scripts = Path(sysconfig.get_path("scripts"))

    def totals() -> dict[str | None, int | None]:
        reader.run(scripts / "spark-pipelines", *command.split()[1:])
        rows = pyarrow_parquet.read_table(tmp_path / "spark-warehouse" / "totals").to_pylist()
        return {row["customer"]: row["amount"] for row in rows}

    assert totals() == {"a": 5, "b": 7, None: None}
    publisher.bodies(stream, [MORE])
    assert totals() == {"a": 15, "b": 7, None: None}
