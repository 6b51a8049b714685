"""The example of docs/spark-connect.md, with the client that .cache/connect has.

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


@pytest.mark.long
def test_batches_are_read_from_a_thin_client(publisher: Publisher, tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON.relative_to(ROOT)} is not there: `make setup-test` installs it")
    publisher.stream("connect")
    publisher.bodies("connect", [b'{"id": 1}', b'{"id": 2}', b"?"])
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = tmp_path / "program.py"
    program.write_text(block.replace('"orders"', '"connect"'))
    environment = os.environ | {
        "PYSPARK_PYTHON": str(PYTHON),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "WARREN_MANAGEMENT_URL": publisher.url,
    }
    done = subprocess.run([PYTHON, program], env=environment, capture_output=True, text=True, timeout=10 * DEADLINE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "sum: 3\n" in done.stdout
