"""A driver of its own, to be killed: writes the numbers of DIRECTORY/source to a queue, a few files at a time.

python -m spark.writing_driver DIRECTORY MANAGEMENT_URL QUEUE
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    from warren.spark_bridge import register

    from .session import start_session

    directory, url, queue = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    session = start_session("local[2,4]", directory / "spark")
    register(session)
    source = session.readStream.schema("body string").option("maxFilesPerTrigger", "2")
    query = (
        source.parquet(str(directory / "source" / "*"))
        .writeStream.format("warren")
        .options(managementUrl=url, queue=queue, checkpointLocation=str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main()
