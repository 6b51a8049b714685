"""`warren store` and changes of the metadata that only the log has."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pika
from broker_process import WarrenProcess

from warren.queues.lanes import METADATA

from ..peers import connect
from .stores import of_type, problems, run


def _killed_before_sql_followed(tmp_path: Path) -> WarrenProcess:
    """Return a broker that is not running: SQL has the queue ``first``, the log has ``second`` with a message, too."""
    process = WarrenProcess(tmp_path)
    process.start()
    with connect(process) as client:
        client.channel().queue_declare("first", durable=True)
    process.stop()
    process.start()
    with closing(sqlite3.connect(process.data_directory / "catalogue.db", isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        with connect(process) as client:
            channel = client.channel()
            channel.confirm_delivery()
            channel.queue_declare("second", durable=True)
            channel.basic_publish("", "second", b"m", pika.BasicProperties(delivery_mode=2))
        process.kill()
    return process


def _served(process: WarrenProcess) -> None:
    process.start()
    with connect(process) as client:
        channel = client.channel()
        channel.queue_declare("first", passive=True)
        assert channel.basic_get("second", auto_ack=True)[2] == b"m"
    process.stop()
    with closing(sqlite3.connect(process.data_directory / "catalogue.db")) as database:
        assert database.execute("SELECT name FROM warren_queues ORDER BY name").fetchall() == [("first",), ("second",)]


def test_changes_that_sql_lacks_are_part_of_a_whole_store_and_no_messages(tmp_path: Path) -> None:
    process = _killed_before_sql_followed(tmp_path)
    code, lines = run("verify", process.data_directory)
    assert (code, problems(lines)) == (0, [])
    shown = of_type(run("inspect", process.data_directory)[1], "queue")
    assert [line["messages"] for line in shown if line.get("lane") == METADATA] == [1]
    code, lines = run("export", process.data_directory, "--output", tmp_path / "exported")
    assert (code, lines) == (0, [{"type": "summary", "queues": 1, "messages": 1, "problems": 0}])
    _served(process)


def test_they_are_there_after_a_repair_without_a_checkpoint(tmp_path: Path) -> None:
    process = _killed_before_sql_followed(tmp_path)
    (process.data_directory / "messages" / "checkpoint").write_bytes(b"nonsense")
    code, _ = run("repair", "--apply", process.data_directory)
    assert code == 0
    assert run("verify", process.data_directory)[0] == 0
    _served(process)
