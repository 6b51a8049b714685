"""A message store that is older than its metadata store, of another broker, or missing (``server/histories.py``)."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pika
import pytest
from broker_process import WarrenProcess

from .management.client import Api

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def broker(directory: Path, **settings: object) -> WarrenProcess:
    return WarrenProcess(directory, settings=settings)


def publish(process: WarrenProcess, bodies: Sequence[bytes], *, declare: str = "") -> None:
    """Publish to queue ``orders``, each message confirmed; `declare` another queue before."""
    parameters = pika.ConnectionParameters("127.0.0.1", process.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        if declare:
            channel.queue_declare(declare, durable=True)
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", "orders", body, PERSISTENT)


def drained(process: WarrenProcess) -> list[bytes]:
    """Return the bodies of all messages of the queue, and take them out."""
    found: list[bytes] = []
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.amqp_port)) as connection:
        channel = connection.channel()
        while True:
            method, _, body = channel.basic_get("orders", auto_ack=True)
            if method is None or body is None:
                return found
            found.append(body)


def refusal(process: WarrenProcess) -> str:
    """Start a broker that must not start; return why, in one line."""
    before = len(process.log())
    process.spawn()
    assert process.wait() == 1
    told = process.log()[before:]
    (line,) = [line for line in told.splitlines() if line.startswith("warren: ")]
    return line


def go_back(process: WarrenProcess, kept: Path) -> None:
    """Put an earlier copy of the messages in the place of those there are."""
    messages = process.data_directory / "messages"
    shutil.rmtree(messages)
    shutil.copytree(kept, messages)


@pytest.mark.long
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
@pytest.mark.parametrize("is_declared", [False, True], ids=["messages", "metadata"])
def test_messages_older_than_the_metadata_are_refused_until_loss_is_accepted(
    tmp_path: Path, request: pytest.FixtureRequest, is_declared: bool, database: str
) -> None:
    process = broker(tmp_path)
    if database == "postgresql":
        process.flags["metadata-url"] = request.getfixturevalue("postgres").fresh_url()
    kept = tmp_path / "kept"
    with process:
        publish(process, [b"1", b"2"])
        process.stop()
        shutil.copytree(process.data_directory / "messages", kept)
        process.start()
        assert drained(process) == [b"1", b"2"]
        publish(process, [b"3"], declare="later" if is_declared else "")
        process.stop()
        go_back(process, kept)
        told = refusal(process)
        assert "it is older than the metadata store: it ends at LSN " in told
        assert "warren serve --accept-loss" in told
        process._settings["accept_loss"] = "true"
        process.start()
        assert "messages are missing, and loss is accepted" in process.log()
        assert drained(process) == [b"1", b"2"]
        publish(process, [b"4"], declare="later still")
        process.stop()
        del process._settings["accept_loss"]
        process.start()
        assert drained(process) == [b"4"]


def test_a_missing_message_store_is_refused_until_loss_is_accepted(tmp_path: Path) -> None:
    process = broker(tmp_path)
    with process:
        publish(process, [b"1"])
        process.stop()
        shutil.rmtree(process.data_directory / "messages")
        assert "it is empty, and the metadata store is that of message store " in refusal(process)
        assert "it is empty" in refusal(process), "the first refusal has changed nothing"
        process._settings["accept_loss"] = "true"
        process.start()
        publish(process, [b"2"])
        process.kill()
        del process._settings["accept_loss"]
        process.start()
        assert drained(process) == [b"2"]


def test_the_message_store_of_another_broker_is_refused(tmp_path: Path) -> None:
    first, second = broker(tmp_path / "first"), broker(tmp_path / "second")
    for process in (first, second):
        with process:
            publish(process, [b"1"])
    go_back(first, second.data_directory / "messages")
    told = refusal(first)
    assert " and the metadata store is that of message store " in told


@pytest.mark.long
def test_a_broker_that_was_killed_is_not_older_than_itself(tmp_path: Path) -> None:
    process = broker(tmp_path)
    process.start()
    process.kill()
    for number in range(6):
        process.start()
        publish(process, [b"%d" % number], declare=f"q{number}")
        process.kill()
        process.start()
        process.stop()
    process.start()
    assert sorted(drained(process)) == [b"%d" % number for number in range(6)]
    process.stop()


def test_a_missing_segment_is_told_at_the_start(tmp_path: Path) -> None:
    process = broker(tmp_path, **{"store.segment_bytes": 65536, "store.compaction_bytes_per_s": 65536})
    with process:
        publish(process, [b"%d" % number + bytes(30_000) for number in range(9)])
        api = Api(process.http_port)
        assert (api.get("/warren/store")["losses"], "degraded" in api.get("//health")) == ([], False)
        process.stop()
        (process.data_directory / "messages" / "log" / "0000000002").unlink()
        process.start()
        assert api.get("//health")["degraded"] == ["messages"]
        (loss,) = api.get("/warren/store")["losses"]
        assert (loss["what"], loss["segment"]) == ("a segment of the message log is missing", 2)
        assert loss["messages"] > 0
        assert "a segment of the message log is missing" in process.log()


def test_messages_whose_queues_an_older_metadata_store_lacks_are_told_and_come_back_with_the_newer_one(
    tmp_path: Path,
) -> None:
    """/health was ok, and the API named no loss: only the log did."""

    def catalogue(place: Path) -> list[Path]:
        return sorted(place.glob("catalogue.db*"))

    process = broker(tmp_path / "broker")
    older, newer = tmp_path / "older", tmp_path / "newer"
    with process:
        data = process.data_directory
        for kept, declare in ((older, ""), (newer, "later")):
            publish(process, [b"%d" % number for number in range(5)], declare=declare)
            if declare:
                with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.amqp_port)) as connection:
                    channel = connection.channel()
                    channel.confirm_delivery()
                    channel.basic_publish("", declare, b"kept", PERSISTENT)
            process.stop()
            kept.mkdir()
            for path in catalogue(data):
                shutil.copy(path, kept)
            process.start()
        process.stop()
        for put in (older, newer):
            for path in catalogue(data):
                path.unlink()
            for path in catalogue(put):
                shutil.copy(path, data)
            process.start()
            api = Api(process.http_port)
            losses = {
                (loss["what"], loss.get("queue"), loss.get("messages")) for loss in api.get("/warren/store")["losses"]
            }
            if put is older:
                assert api.get("//health")["degraded"] == ["messages"]
                kept_line = "messages of a queue that is not in the metadata store are kept, but not served"
                lost_line = "changes of the metadata are lost: damaged in the message log, or the metadata store is an "
                assert losses == {(kept_line, "later", 1), (f"{lost_line}older one", None, None)}
            else:
                assert (losses, "degraded" in api.get("//health")) == (set(), False)
            process.stop()


def test_messages_of_another_history_are_refused_however_far_they_go(tmp_path: Path) -> None:
    """A copy was started elsewhere and went further: its positions alone look newer."""
    process, other = broker(tmp_path / "one"), broker(tmp_path / "other")
    with process:
        publish(process, [b"1"])
        process.stop()
        shutil.copytree(process.data_directory, other.data_directory)
        process.start()
        publish(process, [b"2"])
        process.stop()
        with other:
            publish(other, [b"%d" % number for number in range(100, 200)])
            other.stop()
        kept = tmp_path / "kept"
        shutil.copytree(process.data_directory / "messages", kept)
        go_back(process, other.data_directory / "messages")
        told = refusal(process)
        assert "it is of another history than the metadata store: life " in told
        go_back(process, kept)
        process.start()
        assert drained(process) == [b"1", b"2"]
        process.stop()
        go_back(process, other.data_directory / "messages")
        process._settings["accept_loss"] = "true"
        process.start()
        assert len(drained(process)) == 101
        process.stop()
        del process._settings["accept_loss"]
        process.start()
        assert "only positions are compared" not in process.log()


def test_a_position_of_an_earlier_version_has_no_life_and_that_is_told_once(tmp_path: Path) -> None:
    process = broker(tmp_path)
    with process:
        publish(process, [b"1"])
        process.stop()
        with closing(sqlite3.connect(process.data_directory / "catalogue.db")) as catalogue, catalogue:
            assert catalogue.execute("DELETE FROM warren_applied WHERE length(store_id) > 20").rowcount == 1
        for _ in range(2):
            process.start()
            publish(process, [b"2"], declare="another")
            process.stop()
        assert process.log().count("only positions are compared") == 1
