"""Readers that remember positions, and a broker that was restored from an older backup, or is a copy of it.

Each remembers how far it has read, 200 messages; the directory as it was after 100 is started instead, and written on.
A reader never gets the new messages as if they continued the ones it had read, neither before the log has grown past
its position nor afterwards: each learns where the histories have diverged.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from broker_process import WarrenProcess
from warren_command import run_warren

from warren.lake.marks import marks_of, places_of
from warren.lake.options import Limits
from warren.lake.source import DrainSource, StreamSource
from warren.spark_bridge.bridge_errors import DataLoss
from warren.spark_bridge.control import BrokerClient
from warren.spark_bridge.drain import DrainReader
from warren.spark_bridge.lives import id_at
from warren.spark_bridge.options import read_options
from warren.spark_bridge.schema import spark_schema
from warren.spark_bridge.stream import StreamReader

STREAM = {"x-queue-type": "stream"}
BEFORE, READ, LATER = 100, 200, 250
DRAINED = ("q1", "q2", "q3")  # each has a drain c


def publish(broker: WarrenProcess, first: int, end: int, path: str) -> None:
    """Publish messages to the stream and to the queues. The last ones are confirmed, and with them those before."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))
    channel = connection.channel()
    channel.queue_declare("s", durable=True, arguments=STREAM)
    for queue in DRAINED:
        channel.queue_declare(queue, durable=True)
    for number in range(first, end):
        if number == end - 1:
            channel.confirm_delivery()
        for queue in ("s", *DRAINED):
            channel.basic_publish("", queue, f"{path} {number}".encode(), pika.BasicProperties(delivery_mode=2))
    connection.close()


def client_of(broker: WarrenProcess) -> BrokerClient:
    return BrokerClient(f"http://127.0.0.1:{broker.http_port}", retries=1)


class Reader:
    """Reads all there is, and remembers where that was; after `at` it is asked of another broker."""

    queue = "s"

    def __init__(self, broker: WarrenProcess, directory: Path) -> None:
        self.directory = directory
        self.memory: Any = None
        self.at(broker)

    def at(self, broker: WarrenProcess) -> None:
        self.broker = broker
        self.client = client_of(broker)

    def read(self) -> None:
        """Read from what is remembered up to the end, and remember that."""
        raise NotImplementedError

    def again(self) -> None:
        """Read once more what was read last, if the reader may do that."""
        raise DataLoss("the histories have diverged: not asked")


class Http(Reader):
    def read(self) -> None:
        found = self.client.describe("s")
        life, first = self.memory or (None, found.first)
        known = found.id if life is None else f"{id_at(found.id, life)}:{first}"
        data, reached = self.client.chunks("s", first, found.end, known)
        assert data.size or first == found.end
        assert found.lives is not None
        self.memory = found.lives.at(reached), reached


class Spark(Reader):
    def read(self) -> None:
        reader = self.reader()
        start = self.memory[1] if self.memory else reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end != start:
            self.batch(start, end)
            self.memory = start, end

    def batch(self, start: Any, end: Any) -> None:
        """Read what is between two offsets, as a new driver does."""
        reader = self.reader()
        for piece in reader.partitions(start, end):
            for _ in reader.read(piece):
                pass

    def again(self) -> None:
        self.batch(*self.memory)

    def options(self, **given: str) -> Any:
        return read_options(
            {"managementUrl": f"http://127.0.0.1:{self.broker.http_port}", **given}, streaming=True, environment={}
        )

    def reader(self) -> Any:
        raise NotImplementedError


class SparkStream(Spark):
    def reader(self) -> Any:
        options = self.options(subscribe="s", startingOffsets="earliest")
        return StreamReader(options, spark_schema("typed"), sleep=lambda _: None)


class Grouped(Reader):
    """Has the broker show how far its group has come."""

    def read(self) -> None:
        if self.memory is None:
            found = self.client.describe("s")
            assert found.lives is not None
            self.memory = found.end, found.lives.at(found.end)
        self.client.store_offset("s", "group", *self.memory)


class SparkDrain(Spark):
    queue = "q1"

    def reader(self) -> Any:
        options = self.options(subscribe="q1", mode="drain", consumerName="c")
        return DrainReader(options, spark_schema("typed"), sleep=lambda _: None)


class Lake(Reader):
    def source(self) -> Any:
        return StreamSource(self.client, "s")

    def read(self) -> None:
        source = self.source()
        places = places_of(self.memory or {})
        places |= source.begin(places)
        plan = source.plan(places, Limits())
        self.memory = marks_of(plan.after)


class LakeDrain(Lake):
    queue = "q2"

    def source(self) -> Any:
        return DrainSource(self.client, "q2", "c", "test")


class Drained(Reader):
    """A drain over HTTP."""

    queue = "q3"

    def read(self) -> None:
        session = self.client.open_drain("q3", "c")
        end, life = self.memory or (session.first, None)
        claim = self.client.claim("q3", "c", session.epoch, end, 1000, life=life)
        self.memory = claim.end, claim.life


class Exported(Reader):
    def read(self) -> None:
        words = ["export", "s", "--to", self.directory / "files", "--url", f"http://127.0.0.1:{self.broker.http_port}"]
        ended = run_warren(*map(str, words))
        if ended.returncode:
            raise DataLoss(ended.stderr)


READERS: list[type[Reader]] = [Http, Grouped, SparkStream, SparkDrain, Lake, LakeDrain, Drained, Exported]


@pytest.fixture(scope="module", params=["stopped", "running"])
def histories(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[type[Reader]], tuple[Reader, Path, str]]]:
    """Readers that have read 200 of one history, the directory as it was after 100, and where the histories diverge.

    That is known when one life has written the 200.
    """
    is_stopped = request.param == "stopped"
    base = tmp_path_factory.mktemp("histories")
    original = WarrenProcess(base / "original")
    backup = base / "backup"
    original.start()
    publish(original, 0, BEFORE, "common")
    with client_of(original) as client:
        for queue in DRAINED:
            session = client.open_drain(queue, "c")
            client.claim(queue, "c", session.epoch, session.first, 1000)
    if is_stopped:
        original.stop()
    shutil.copytree(original.data_directory, backup)
    if is_stopped:
        original.start()
    publish(original, BEFORE, READ, "ours")

    where = f"diverged before offset {READ}, by a life" if is_stopped else f"diverged at offset {BEFORE}"

    def make(kind: type[Reader]) -> tuple[Reader, Path, str]:
        directory = base / kind.__name__
        directory.mkdir()
        reader = kind(original, directory)
        reader.read()
        if reader.queue in DRAINED:
            reader.read()  # the claims of the backup first
        return reader, backup, where

    yield make
    original.stop()


@pytest.mark.parametrize("kind", READERS, ids=lambda kind: kind.__name__)
def test_no_reader_takes_another_history_for_its_own(
    kind: type[Reader], histories: Callable[[type[Reader]], tuple[Reader, Path, str]], tmp_path: Path
) -> None:
    reader, backup, where = histories(kind)
    restored = WarrenProcess(tmp_path / "restored")
    shutil.copytree(backup, restored.data_directory)
    with restored:
        reader.at(restored)
        for more in (0, LATER):
            publish(restored, 0, more, "theirs")
            if more and reader.queue in DRAINED:
                with client_of(restored) as client:
                    session = client.open_drain(reader.queue, "c")
                    claim = client.claim(reader.queue, "c", session.epoch, session.end, 1000)
                    assert claim.end > READ, "another reader has claimed beyond what this one knows"
            with pytest.raises(DataLoss, match=where):
                reader.read()
            with pytest.raises(DataLoss, match="diverged"):
                reader.again()


def test_a_backup_without_the_session_of_a_drain_gives_no_message_twice(tmp_path: Path) -> None:
    original, restored = WarrenProcess(tmp_path / "original"), WarrenProcess(tmp_path / "restored")

    def exported(broker: WarrenProcess, *more: str) -> Any:
        words = ["export", "q1", "--mode", "drain", "--to", str(tmp_path / "files"), *more]
        return run_warren(*words, "--url", f"http://127.0.0.1:{broker.http_port}")

    with original:
        publish(original, 0, BEFORE, "common")
    shutil.copytree(original.data_directory, restored.data_directory)
    with original:
        source = DrainSource(client_of(original), "q2", "c", "test")
        places = dict(source.begin({}))
        places = dict(source.plan(places, Limits()).after)
        assert places["q2"].next == BEFORE
        assert exported(original).returncode == 0
    with original:  # another life of the same history
        publish(original, 0, 5, "more")
        ended = exported(original)
        assert (ended.returncode, "5 rows" in ended.stdout) == (0, True), ended.stderr
    with restored:
        client = client_of(restored)
        for other in range(3):  # so that sessions have other numbers here
            client.open_drain("q3", str(other))
        with pytest.raises(DataLoss, match="restored from a backup"):
            DrainSource(client, "q2", "c", "test").begin(places)
        ended = exported(restored)
        assert (ended.returncode, "Use another directory" in ended.stderr) == (3, True), ended.stderr
        assert [client.describe(queue).messages for queue in ("q1", "q2")] == [BEFORE, BEFORE]
        ended = exported(restored, "--skip-lost")
        assert (ended.returncode, "205 rows" in ended.stdout) == (0, True), ended.stdout
