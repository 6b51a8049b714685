"""The Spark session of a command: the existing one, or one that is started for it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from warren.spark_bridge.bridge_errors import BridgeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(master: str | None, name: str) -> tuple[SparkSession, bool]:
    """Return a session that knows the format, and whether it was begun for that.

    Raises:
        BridgeError: Spark cannot be started.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from warren.spark_bridge.helpers import register

    running = SparkSession.getActiveSession()
    if running is not None:
        register(running)
        return running, False
    builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "ERROR")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master is None or master.startswith("local"):
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    if master is not None:
        builder = builder.master(master)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        reason = str(error).partition("\n")[0]
        raise BridgeError(
            f"Spark cannot be started ({reason}): it takes Java 17 or newer, and a master that answers"
        ) from None
    register(spark)
    return spark, True
