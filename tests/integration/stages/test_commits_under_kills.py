"""The broker is killed while batches are staged and committed: every batch is in the queue once. stages (1) and (2).

The seed decides sizes and moments; the broker's progress by then depends on the machine.
"""

from __future__ import annotations

import http.client
import os
import random
import threading
import time
from pathlib import Path

from broker_process import WarrenProcess, wait_until

from ..management.client import Api, connect
from ..staging import Stager, new_stage, to_queue

CYCLES = int(os.environ.get("WARREN_TEST_STAGE_KILLS", "10"))
DEADLINE_S = 60.0
# Of a body in a batch that is published in several pieces (of 8 MiB).
LARGE_BYTES = 100_000
_AWAY = (OSError, http.client.HTTPException)


def bodies_of(batch: int, chooser: random.Random) -> list[bytes]:
    """Return what a batch consists of; each body begins with its place."""
    if chooser.random() < 0.3:
        return [b"%d %d " % (batch, number) + bytes(LARGE_BYTES) for number in range(chooser.randrange(100, 250))]
    return [
        b"%d %d " % (batch, number) + bytes(chooser.choice([0, 100])) for number in range(chooser.randrange(1, 400))
    ]


class Writer(threading.Thread):
    """Stages and commits batch after batch, each until it is told that it is committed, as a Spark query does."""

    def __init__(self, port: int, chooser: random.Random) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._chooser = chooser
        self.sent: list[int] = []  # messages of each batch that was committed
        self.duplicates = 0
        self.committing = threading.Event()
        self.enough = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.enough.is_set():
                self._batch(len(self.sent))
        except BaseException as error:
            self.failure = error

    def _batch(self, batch: int) -> None:
        bodies = bodies_of(batch, self._chooser)
        cut = self._chooser.randrange(len(bodies) + 1)
        contents = [to_queue("q", part) for part in (bodies[:cut], bodies[cut:])]
        while True:
            # The previous stages may be on any node: a new attempt has new stages, as a new attempt of a task has.
            names = [new_stage() for _ in contents]
            try:
                api = Api(self._port)
                stager = Stager(api, "/")
                for name, content in zip(names, contents, strict=True):
                    stored = stager.put(name, 0, content)
                    assert stored.status == 201, stored
                self.committing.set()
                answer = stager.commit("query", batch, *names)
                api.close()
            except _AWAY:
                time.sleep(0.01)  # it is down, or just going: nobody can say when it will be back
                continue
            assert answer.status == 200, answer
            self.duplicates += "duplicate" in answer.json
            assert answer.json["committed"] or answer.json["duplicate"]
            self.sent.append(len(bodies))
            return


def read_all(process: WarrenProcess) -> list[tuple[int, int]]:
    """Return the places of all messages of the queue, in their order."""
    found = []
    connection = connect(process.amqp_port, "/")
    channel = connection.channel()
    channel.basic_qos(prefetch_count=100)
    left = channel.queue_declare("q", passive=True).method.message_count
    if left:
        for method, _, body in channel.consume("q"):
            batch, number, _ = body.split(b" ", 2)
            found.append((int(batch), int(number)))
            assert method.delivery_tag is not None
            channel.basic_ack(method.delivery_tag)
            if len(found) == left:
                break
        channel.cancel()
    connection.close()
    return found


def test_every_batch_is_in_the_queue_once_however_often_the_broker_is_killed(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chooser = random.Random(seed)
    settings = {"store.segment_bytes": chooser.choice([64 << 10, 4 << 20]), "store.disk_free_min_bytes": 0}
    with WarrenProcess(tmp_path, settings=settings) as process:
        api = Api(process.http_port)
        api.put("/queues/%2F/q", {"durable": True})
        api.close()
        writer = Writer(process.http_port, random.Random(seed))
        writer.start()
        for cycle in range(CYCLES):
            if chooser.random() < 0.7:
                writer.committing.clear()
                assert writer.committing.wait(DEADLINE_S) or writer.failure
            time.sleep(chooser.choice([0.0, 0.02, 0.1, 0.4]) * chooser.random())  # a random moment
            process.kill()
            if chooser.random() < 0.3:
                process.spawn()
                time.sleep(chooser.uniform(0.2, 0.8))  # as above
                process.kill()
            process.start()
            assert writer.failure is None, (cycle, writer.failure)
        written = len(writer.sent)
        wait_until(lambda: writer.failure is not None or len(writer.sent) > written, "one more batch", DEADLINE_S)
        writer.enough.set()
        writer.join(DEADLINE_S)
        assert writer.failure is None and not writer.is_alive()
        print(f"{len(writer.sent)} batches, {writer.duplicates} told to be duplicates")
        found = read_all(process)
        expected = [(batch, number) for batch, count in enumerate(writer.sent) for number in range(count)]
        assert len(found) == len(expected)
        assert found == expected
        stager = Stager(Api(process.http_port), "/")
        assert stager.commits()["query"]["done"]
        left = [row for row in stager.api.get("/warren/stages") if row["needed_by"] is not None]
        stager.api.close()
        assert left == []
