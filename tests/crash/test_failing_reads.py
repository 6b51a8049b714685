"""Reads of the message store that fail for a while, under load, with kills and stops in between: nothing is lost.

The disk gives EIO for a tenth of a second to one and a half, to all reads or to some, and is well again. Nothing on it
was changed, so afterwards every confirmed message is there, and every queue that was declared.

`WARREN_TEST_READ_CYCLES` is how many cycles there are (3), `WARREN_TEST_CRASH_SEED` the seed of the first life.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from itertools import chain
from pathlib import Path
from typing import Any

import pika
import pytest
from broker_process import WarrenProcess, wait_until
from integration.peers import connect
from pika.exceptions import AMQPError

from .failing_disk import BOTH, CATALOGUE, LOG, STREAMS, FailingDisk
from .life import Life
from .load import Load
from .test_kill_9 import SEED

CYCLES = int(os.environ.get("WARREN_TEST_READ_CYCLES", "3"))
CYCLES_PER_LIFE = 5
REACHED_WITHIN_S = 20.0  # at the latest a read should have failed
_PERSISTENT = pika.BasicProperties(delivery_mode=2)
_STREAM = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 65536}


class Keeper:
    """Declares durable queues with one message each, and publishes to a stream: in a thread of its own, confirmed.

    Another thread reads the stream from the beginning, again and again: so there are reads of the disk all the time.
    """

    def __init__(self) -> None:
        self.queues: list[str] = []
        self.offsets: list[int] = []  # numbers that the stream has confirmed
        self._asked = 0
        self._threads: list[threading.Thread] = []

    def begin(self, process: WarrenProcess) -> None:
        """Work until the connections end."""
        self._threads = [
            threading.Thread(target=work, args=(process,), daemon=True) for work in (self._work, self._read)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Wait until the broker that has ended is noticed."""
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _read(self, process: WarrenProcess) -> None:
        try:
            channel = connect(process).channel()
            channel.queue_declare("events", durable=True, arguments=_STREAM)
            channel.basic_qos(prefetch_count=100)
            while True:
                first = {"x-stream-offset": "first"}
                for method, _, _ in channel.consume("events", arguments=first, inactivity_timeout=0.2):
                    if method is None:
                        break  # at the end, or while a read fails
                    assert method.delivery_tag is not None
                    channel.basic_ack(method.delivery_tag)
                channel.cancel()
        except (AMQPError, OSError):
            pass

    def _work(self, process: WarrenProcess) -> None:
        try:
            channel = connect(process).channel()
            channel.confirm_delivery()
            channel.queue_declare("events", durable=True, arguments=_STREAM)
            while True:
                number = self._asked = self._asked + 1
                channel.queue_declare(f"kept-{number}", durable=True)
                channel.basic_publish("", f"kept-{number}", b"k", _PERSISTENT)
                self.queues.append(f"kept-{number}")
                for at in range(20):
                    channel.basic_publish("", "events", b"%d" % (number * 20 + at) + bytes(500), _PERSISTENT)
                    self.offsets.append(number * 20 + at)
        except (AMQPError, OSError):
            pass

    def judge(self, process: WarrenProcess) -> None:
        """Assert that all of it is there."""
        with connect(process) as connection:
            channel = connection.channel()
            for queue in self.queues:
                assert channel.queue_declare(queue, passive=True).method.message_count == 1, queue
            if not self.offsets:
                return
            left = set(self.offsets)
            channel.basic_qos(prefetch_count=500)
            for method, _, body in channel.consume(
                "events", arguments={"x-stream-offset": "first"}, inactivity_timeout=20
            ):
                assert method is not None and body is not None, f"{len(left)} messages of the stream are missing"
                left.discard(int(body.rstrip(b"\0")))
                assert method.delivery_tag is not None
                channel.basic_ack(method.delivery_tag)
                if not left:
                    return


class FailingReads(Life):
    """A life on a disk whose reads fail from time to time."""

    def __init__(self, process: WarrenProcess, chooser: random.Random, disk: FailingDisk) -> None:
        self.disk = disk
        self.keeper = Keeper()
        super().__init__(process, chooser)

    def cycle(self) -> None:
        """Load with reads that fail, then a stop or a kill, which may come while they fail; start, judge."""
        self.keeper.begin(self.process)
        chooser = self._chooser
        {0: self.stop, 1: self.crash}[chooser.randrange(2)]()
        self.keeper.judge(self.process)

    def _run(self, load: Load) -> None:
        chooser = self._chooser
        self._load_for(load, chooser.uniform(0.05, 0.5))
        for _ in range(chooser.randint(1, 2)):
            which = chooser.choice([LOG, BOTH, BOTH, STREAMS])
            self.disk.fail(which, one_of=chooser.choice([1, 1, 2, 5]))
            self._load_for(load, chooser.uniform(0.1, 1.5))
            if which != STREAMS:  # of a stream nothing may be sealed yet
                self._until_reached(load)
            if chooser.random() < 0.3:
                return  # the end comes while they fail
            self.disk.heal()
            self._load_for(load, chooser.uniform(0.05, 0.5))

    def _until_reached(self, load: Load) -> None:
        """Load until one more read has failed, or for long enough that one should have."""
        failed = self.disk.failed
        end_at = time.monotonic() + REACHED_WITHIN_S
        load.run_until(lambda: self.disk.failed > failed or time.monotonic() > end_at)

    def _load_for(self, load: Load, seconds: float) -> None:
        end_at = time.monotonic() + seconds
        load.run_until(lambda: time.monotonic() > end_at)

    def _start_and_judge(self, *, clean: bool) -> None:
        self.keeper.end()
        healer = threading.Timer(self._chooser.uniform(0, 1.5), self.disk.heal)
        if self._chooser.random() < 0.5:
            self.disk.fail(BOTH)
            healer.start()
        else:
            self.disk.heal()
        super()._start_and_judge(clean=clean)
        healer.cancel()
        self.disk.heal()


def small_store(chooser: random.Random) -> dict[str, object]:
    """Return settings that make the store read all the time, and change files."""
    return {
        "store.segment_bytes": chooser.choice([64 << 10, 64 << 10, 1 << 20]),
        "store.checkpoint_bytes": chooser.choice([64 << 10, 2 << 20]),
        "store.memory_bytes": chooser.choice([0, 0, 64 << 10]),
        "store.paging_watermark": chooser.choice(["0.2", "0.001"]),
        "store.compaction_bytes_per_s": 1 << 30,
        "store.scrub_bytes_per_s": 1 << 30,
        "store.disk_free_min_bytes": 0,
    }


_THREE_READS = """
import os
for name in ("other", "messages/log/1", "messages/streams/1"):
    with open(name, "rb") as file:
        for at in (0, 10):
            try:
                print(os.pread(file.fileno(), 4, at).decode(), flush=True)
            except OSError as error:
                print(error.errno, flush=True)
"""


def test_the_shim_fails_reads_of_the_store_and_of_nothing_else(tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path)
    for name in ("other", "messages/log/1", "messages/streams/1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"abcdefghijklmnop")

    def read() -> list[str]:
        command = [*disk.wrapper, sys.executable, "-c", _THREE_READS]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout.decode().split()

    assert read() == ["abcd", "klmn"] * 3
    disk.fail(LOG)
    assert read() == ["abcd", "klmn", "5", "5", "abcd", "klmn"]
    disk.fail(BOTH, first=10)
    assert read() == ["abcd", "klmn", "abcd", "5", "abcd", "5"]
    assert disk.failed == 4
    disk.heal()
    assert read() == ["abcd", "klmn"] * 3


@pytest.mark.long
@pytest.mark.parametrize("number", range(-(-CYCLES // CYCLES_PER_LIFE)))
def test_reads_that_fail_for_a_while_lose_nothing(tmp_path: Path, number: int) -> None:
    seed = SEED + 5_000_000 + number
    chooser = random.Random(seed)
    settings = small_store(chooser)
    print(f"seed {seed - 5_000_000}, " + ", ".join(f"{key} = {value}" for key, value in settings.items()))
    disk = FailingDisk(tmp_path)
    process = WarrenProcess(tmp_path, {"http": "off"}, settings, wrapper=disk.wrapper)
    life = FailingReads(process, chooser, disk)
    try:
        for cycle in range(min(CYCLES_PER_LIFE, CYCLES - number * CYCLES_PER_LIFE)):
            print(f"cycle {cycle}")
            life.cycle()
    finally:
        life.process.kill()
        print(life.summary(), f"{len(life.keeper.queues)} queues", f"{len(life.keeper.offsets)} in the stream")
        print(f"{disk.failed} reads failed")
    assert disk.failed > 0, "the attack has reached nothing"
    assert life.history.counts["confirmed"] > 0
    assert "damaged on disk" not in process.log() and "are lost" not in process.log()


def test_a_queue_waits_for_a_read_that_fails_and_the_others_do_not(tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path)
    settings = {"store.memory_bytes": 0, "store.segment_bytes": 64 << 10}
    with WarrenProcess(tmp_path, None, settings, wrapper=disk.wrapper) as process:
        with connect(process) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("deep", durable=True)
            channel.queue_declare("shallow", durable=True)
            for number in range(400):
                channel.basic_publish("", "deep", b"%d" % number + bytes(1000), _PERSISTENT)
        process.stop()
        process.start()
        with connect(process) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            disk.fail(LOG)
            got: list[bytes] = []
            channel.basic_consume("deep", lambda _channel, _method, _properties, body: got.append(body), auto_ack=True)
            wait_until(lambda: process.health() == 503, "the broker to say that it cannot read")
            for number in range(10):
                channel.basic_publish("", "shallow", b"%d" % number, _PERSISTENT)
                assert channel.basic_get("shallow", auto_ack=True)[2] == b"%d" % number
            assert got == []
            disk.heal()

            def are_all_here() -> bool:
                connection.process_data_events(0.01)
                return len(got) == 400

            wait_until(are_all_here, "the messages of the queue")
            assert [body.rstrip(b"\0") for body in got] == [b"%d" % number for number in range(400)]
            wait_until(lambda: process.health() == 200, "the broker to be well again")
        process.signal(signal.SIGTERM)
        assert process.wait() == 0


def _declare(process: WarrenProcess, names: list[str]) -> None:
    with connect(process) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for name in names:
            channel.queue_declare(name, durable=True)
            channel.basic_publish("", name, name.encode(), _PERSISTENT)


@pytest.mark.long
def test_a_metadata_store_that_cannot_be_read_loses_no_queue(tmp_path: Path) -> None:
    """SQLite reads its file itself, not through the simulated disk: it is failed by the preloaded library."""
    disk = FailingDisk(tmp_path)
    names = {when: [f"{when}-{number}" for number in range(20)] for when in ("before", "killed", "stopped")}
    with WarrenProcess(tmp_path, None, {}, wrapper=disk.wrapper) as process:
        _declare(process, names["before"])
        process.stop()
        before = (process.data_directory / "catalogue.db").read_bytes()
        disk.fail(CATALOGUE)
        process.spawn()
        assert process.wait() == 1, "it is not taken for an empty one"
        assert (process.data_directory / "catalogue.db").read_bytes() == before
        assert disk.failed > 0
        for when, end in (("killed", process.kill), ("stopped", process.stop)):
            disk.heal()
            process.start()
            disk.fail(CATALOGUE)
            _declare(process, names[when])  # the log has them
            end()
        disk.heal()
        process.start()
        with connect(process) as connection:
            channel = connection.channel()
            for name in chain(*names.values()):
                assert channel.basic_get(name)[2] == name.encode()
    print(f"{disk.failed} reads failed")


def _asked(process: WarrenProcess, path: str, body: object = None) -> Any:
    """Return what the management API answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{process.http_port}/api/{path}", data)
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


def _rows(process: WarrenProcess) -> list[tuple[str, int, int]]:
    return [(row["what"], row["first"], row["end"]) for row in _asked(process, "warren/damage") if row["queue"] == "q"]


@pytest.mark.long
def test_a_damaged_message_is_named_until_it_is_given_up_and_its_file_stays(tmp_path: Path) -> None:
    settings = {"store.memory_bytes": 0, "store.segment_bytes": 64 << 10, "store.scrub_bytes_per_s": 0}
    bodies = [b"%03d" % number * 300 for number in range(200)]
    with WarrenProcess(tmp_path, None, settings) as process:
        with connect(process) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            for body in bodies:
                channel.basic_publish("", "q", body, _PERSISTENT)
        process.stop()
        (path,) = [
            each for each in (process.data_directory / "messages/log").iterdir() if b"077077" in each.read_bytes()
        ]
        data = bytearray(path.read_bytes())
        data[data.index(b"077077") + 10] ^= 1
        path.write_bytes(data)
        for _ in range(2):
            process.start()
            with connect(process) as connection:
                channel = connection.channel()
                got = [channel.basic_get("q")[2] for _ in range(199)]
                assert got == bodies[:77] + bodies[78:]
                assert channel.basic_get("q")[0] is None
            assert _rows(process) == [("messages", 77, 78)]
            with urllib.request.urlopen(f"http://127.0.0.1:{process.http_port}/health") as answer:
                assert json.loads(answer.read())["degraded"] == ["messages"]
            assert path.exists()
            process.stop()
        process.start()
        with connect(process) as connection:
            channel = connection.channel()
            for _ in range(199):
                channel.basic_get("q", auto_ack=True)
            assert channel.basic_get("q")[0] is None
            answered = _asked(process, "warren/damage/give-up", {"vhost": "/", "queue": "q"})
            assert answered == {"messages": 1, "reads": 0}
            assert _rows(process) == []
        wait_until(lambda: not path.exists(), "the file to go")


@pytest.mark.long
def test_what_the_disk_never_gives_is_given_up_block_by_block(tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path)
    settings = {"store.memory_bytes": 0, "store.scrub_bytes_per_s": 0}
    bodies = [b"%03d" % number * 300 for number in range(200)]
    with WarrenProcess(tmp_path, None, settings, wrapper=disk.wrapper) as process:
        with connect(process) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q", durable=True)
            for body in bodies:
                channel.basic_publish("", "q", body, _PERSISTENT)
        process.stop()
        (path,) = [
            each for each in (process.data_directory / "messages/log").iterdir() if b"077077" in each.read_bytes()
        ]
        place = path.read_bytes().index(b"077077")
        process.start()
        disk.fail(LOG, first=place, end=place + 1)
        with connect(process) as connection:
            channel = connection.channel()
            got: list[bytes] = []
            channel.basic_consume("q", lambda _channel, _method, _properties, body: got.append(body), auto_ack=True)
            wait_until(lambda: process.health() == 503, "the broker to say that it cannot read")
            (row,) = _asked(process, "warren/damage")
            assert (row["what"], row["queue"], row["reason"]) == ("read that fails", "q", "Input/output error")
            answered = _asked(process, "warren/damage/give-up", {"vhost": "/", "queue": "q", "unreadable": True})
            assert answered == {"messages": 0, "reads": 1}

            def has_last() -> bool:
                connection.process_data_events(0.01)
                return bool(got) and got[-1] == bodies[-1]

            wait_until(has_last, "the last message of the queue")
            missing = [number for number, body in enumerate(bodies) if body not in got]
            assert 77 in missing and len(missing) <= 6, missing
            assert _rows(process) == [("messages", missing[0], missing[-1] + 1)]
            assert process.health() == 200
