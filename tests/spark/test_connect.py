"""The examples of docs/spark-connect.md, with the client that .cache/connect has.

The set-up of `make test` installs what Spark Connect needs besides (grpcio, pandas) there: nothing else of Warren does.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from .lake import DEADLINE_S
from .messages import Publisher

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "spark-connect.md"
PYTHON = ROOT / ".cache" / "connect" / "bin" / "python"


def test_batches_and_streaming_queries_work_from_a_thin_client(publisher: Publisher, tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON.relative_to(ROOT)} is not there: `make setup-test` installs it")
    publisher.stream("connect")
    publisher.bodies("connect", [b'{"id": 1}', b'{"id": 2}', b"?"])
    block = "".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    program = tmp_path / "program.py"
    program.write_text(block.replace('"orders"', '"connect"').replace('"lake/', f'"{tmp_path}/lake/'))
    environment = os.environ | {
        "PYSPARK_PYTHON": str(PYTHON),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "WARREN_MANAGEMENT_URL": publisher.url,
    }
    done = subprocess.run([PYTHON, program], env=environment, capture_output=True, text=True, timeout=10 * DEADLINE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "sum: 3\n" in done.stdout and "rows: 3 behind: {'connect': 0}\n" in done.stdout
    assert "counts: [3]\n" in done.stdout
