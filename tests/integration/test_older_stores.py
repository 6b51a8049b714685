"""Stores that released versions have left behind, killed in the middle of their work, are served by this one.

``stores/version_0_1.tar.xz``   SQL schema 4, made by version 0.1: two vhosts, a user, a policy, an exchange, and four
                                queues to which 10 messages each went; killed, so most of the metadata is in the -wal
                                file
"""

from __future__ import annotations

import sqlite3
import stat
import tarfile
from contextlib import closing
from pathlib import Path

import pika
from broker_process import WarrenProcess

from warren.server.catalogue.schema import SCHEMA_VERSION

from .peers import connect

STORES = Path(__file__).parent / "stores"


def _schema_version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        (version,) = database.execute("SELECT version FROM warren_schema").fetchone()
    assert isinstance(version, int)
    return version


def _bodies(process: WarrenProcess, queue: str) -> list[bytes]:
    with connect(process) as client:
        channel = client.channel()
        found = []
        while (got := channel.basic_get(queue))[0] is not None:
            found.append(got[2])
        return found  # unacknowledged: they go back


def test_a_store_of_version_0_1_is_served_and_its_metadata_kept_beside(tmp_path: Path) -> None:
    with tarfile.open(STORES / "version_0_1.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    process = WarrenProcess(tmp_path)
    kept = process.data_directory / "catalogue.db.schema-4"
    for start in range(2):
        process.start()
        try:
            assert _bodies(process, "orders") == [b"order %d" % number for number in range(10)]
            assert _bodies(process, "limited") == [b"limited 8", b"limited 9"]
            levels = [
                b"level %d" % number for level in (3, 2, 1, 0) for number in range(10) if min(number % 4, 3) == level
            ]
            assert _bodies(process, "levels") == levels
            with connect(process) as client:
                channel = client.channel()
                arguments = {"x-queue-type": "stream"}
                assert channel.queue_declare("stream", durable=True, arguments=arguments).method.message_count == 10
                channel.exchange_declare("of old", "topic", durable=True)
                channel.queue_declare(f"new {start}", durable=True)
                channel.queue_bind(f"new {start}", "of old", "#")
            login = pika.PlainCredentials("someone", "secret")
            pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.amqp_port, "other", login)).close()
        finally:
            process.kill()
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert _schema_version(kept) == 4
        with closing(sqlite3.connect(kept)) as database:
            queues = {name for (name,) in database.execute("SELECT name FROM warren_queues")}
        assert queues == {"orders", "limited", "levels", "stream"}, "as they were before the first start"
    process.start()
    process.stop()
    assert _schema_version(process.data_directory / "catalogue.db") == SCHEMA_VERSION == 6
    with closing(sqlite3.connect(process.data_directory / "catalogue.db")) as database:
        names = {name for (name,) in database.execute("SELECT name FROM warren_queues")}
    assert names == {"orders", "limited", "levels", "stream", "new 0", "new 1"}
