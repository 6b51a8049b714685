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


RESET = """
import traceback
from warren.spark_bridge.worker_pipe import end_quietly_when_nobody_reads

end_quietly_when_nobody_reads()
end_quietly_when_nobody_reads()  # once for each task of a worker
code = "def flush(): raise ERROR('gone')\\ntry: flush()\\nexcept BaseException: traceback.print_exc()"
exec(code, {"__package__": PACKAGE, "__name__": "__main__", "traceback": traceback})
"""


@pytest.mark.parametrize(
    ("package", "error", "told"),
    [
        ("pyspark", "ConnectionResetError", False),
        ("pyspark", "ValueError", True),
        ("warren.spark_bridge", "ConnectionResetError", True),
    ],
)
def test_a_reset_of_pysparks_connection_is_not_told_and_everything_else_is(
    package: str, error: str, told: bool
) -> None:
    code = RESET.replace("PACKAGE", repr(package)).replace("ERROR", error)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert (f"{error}: gone" in done.stderr) == told
    assert done.stderr.count("Traceback") == told
