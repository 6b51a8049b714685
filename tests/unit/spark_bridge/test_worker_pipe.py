"""Workers whose reader has gone: worker_pipe.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

WORKER = """
import os, socket
from warren.spark_bridge.worker_pipe import end_quietly_when_nobody_reads

near, far = socket.socketpair()
end_quietly_when_nobody_reads()
far.close()
code = "try: near.send(b'row')\\nfinally: environ.get('PATH')"
exec(code, {"__package__": PACKAGE, "near": near, "environ": os.environ})
"""


@pytest.mark.parametrize(("package", "status"), [("pyspark.sql.worker", 0), ("warren.spark_bridge", 1), ("", 1)])
def test_a_worker_ends_without_a_word_when_pyspark_writes_to_nobody(package: str, status: int) -> None:
    code = WORKER.replace("PACKAGE", repr(package))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == status
    assert ("BrokenPipeError" in done.stderr) == bool(status)
