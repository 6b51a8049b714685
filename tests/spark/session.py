"""A Spark session for tests: small, quick to start, quiet; and what has to be known to look into it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# To start in half of the time: tests end before the second compiler pays, or checking classes.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"


def start_session(master: str, directory: Path, **more: str) -> SparkSession:
    """Start a session whose files are below `directory`."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.setdefault("SPARK_WORKER_DIR", str(directory / "work"))
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} -Dderby.system.home={directory}",
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        "spark.local.dir": str(directory / "local"),
        # Without checksums beside every file of a checkpoint.
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # On a busy machine a worker takes longer to start than the 15 s that it has by default.
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.sql.streaming.noDataProgressEventInterval": "100",
        **more,
    }
    builder = SparkSession.builder.master(master).appName("warren")
    for name, value in settings.items():
        builder = builder.config(name, value)
    before = os.environ.get("SPARK_HOME")
    os.environ["SPARK_HOME"] = str(home_without_archives(directory))  # for the machine that starts now
    try:
        return builder.getOrCreate()
    finally:
        if before is None:
            del os.environ["SPARK_HOME"]
        else:
            os.environ["SPARK_HOME"] = before


def home_without_archives(directory: Path) -> Path:
    """Return a SPARK_HOME whose Python processes have PySpark from where it is installed, with its bytecode.

    From Spark's own home they have it from an archive, and compile it each time: three times the processor's time for
    a start, which Spark gives ten seconds.
    """
    home = directory / "home"
    if not home.exists():
        installed = Path(pyspark.__file__).parent
        home.mkdir(parents=True)
        for name in ("bin", "jars"):
            (home / name).symlink_to(installed / name)
    return home


def keep_worker_log(spark: SparkSession, path: Path) -> None:
    """Write to `path` as well what Python workers print on stderr. No worker has been started yet."""
    jvm: Any = spark._jvm
    both = jvm.org.apache.commons.io.output.TeeOutputStream(
        jvm.java.lang.System.err, jvm.java.io.FileOutputStream(str(path))
    )
    jvm.java.lang.System.setErr(jvm.java.io.PrintStream(both, True))


def children_of(pid: int) -> list[int]:
    """Return the processes below `pid`, all generations."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def command_of(pid: int) -> str:
    """Return the command line of a process, empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
