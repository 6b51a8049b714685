"""kill -9 while large messages are on their way to the disk: what was confirmed is there whole, nothing by halves."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pika
import pytest
from broker_process import WarrenProcess, wait_until
from integration.peers import connect
from pika.exceptions import AMQPError

BODY_BYTES = 20 << 20
# Of a transaction whose contents are written ahead of its commit (``msgstore.log.bodies_ahead``).
COMMIT_BODIES = 24
COMMIT_BODY_BYTES = 1 << 19
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def mark_of(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def body_of(number: int) -> bytes:
    return mark_of(number) * (BODY_BYTES // 32)


class Publisher:
    """Publishes one large message after the other, each with its confirm, until the connection is gone."""

    def __init__(self, process: WarrenProcess, first: int) -> None:
        self.confirmed: list[int] = []
        self.begun: list[int] = []
        self._number = first
        self._connection = connect(process, heartbeat=0)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            channel = self._connection.channel()
            channel.confirm_delivery()
            while True:
                number = self._number
                self._number += 1
                self.begun.append(number)
                channel.basic_publish("", "large", body_of(number), PERSISTENT)
                self.confirmed.append(number)
        except (AMQPError, OSError):
            pass  # the broker was killed

    def join(self) -> None:
        self._thread.join()


@pytest.mark.long
@pytest.mark.parametrize("moment", range(3))
def test_confirmed_large_messages_survive_a_kill_and_others_are_whole_or_absent(tmp_path: Path, moment: int) -> None:
    """`moment`: how much of the last batch has been written when the process is killed, as far as that can be aimed."""
    with WarrenProcess(tmp_path) as process:
        setup = connect(process)
        setup.channel().queue_declare("large", durable=True)
        setup.close()
        publishers = [Publisher(process, first) for first in (0, 1000)]
        log = tmp_path / "data" / "messages" / "log"
        wait_until(lambda: all(each.confirmed for each in publishers), "a confirm for each")
        size = written(log)
        wait_until(lambda: written(log) > size + moment * BODY_BYTES // 3, "more on the disk")
        process.kill()
        for each in publishers:
            each.join()
        process.start()
        channel = connect(process).channel()
        found = []
        while True:
            method, _, body = channel.basic_get("large", auto_ack=True)
            if method is None or body is None:
                break
            number = next(n for each in publishers for n in each.begun if body[:32] == mark_of(n))
            assert body == body_of(number)
            found.append(number)
        assert len(found) == len(set(found))
        for each in publishers:
            assert set(each.confirmed) <= set(found)
            own = [number for number in found if number in each.begun]
            assert own == sorted(own)


class Committer:
    """Commits one transaction of large messages after the other, until the connection is gone."""

    def __init__(self, process: WarrenProcess) -> None:
        self.done = 0  # transactions that were answered
        self._connection = connect(process, heartbeat=0)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            channel = self._connection.channel()
            channel.tx_select()
            while True:
                body = mark_of(self.done) * (COMMIT_BODY_BYTES // 32)
                for _ in range(COMMIT_BODIES):
                    channel.basic_publish("", "large", body, PERSISTENT)
                channel.tx_commit()
                self.done += 1
        except (AMQPError, OSError):
            pass  # the broker was killed

    def join(self) -> None:
        self._thread.join()


@pytest.mark.parametrize("moment", ["contents", "frame", "anywhere"])
def test_a_large_transaction_survives_a_kill_whole_or_is_absent(tmp_path: Path, moment: str) -> None:
    """`moment`: its contents are on their way to the disk, they have become a segment, or one or the other."""
    with WarrenProcess(tmp_path) as process:
        setup = connect(process)
        setup.channel().queue_declare("large", durable=True)
        setup.close()
        log = tmp_path / "data" / "messages" / "log"
        committer = Committer(process)
        wait_until(lambda: committer.done > 0, "a commit")
        if moment == "anywhere":
            size = written(log)
            wait_until(lambda: written(log) > size + 3 * COMMIT_BODY_BYTES, "more on the disk")
        else:
            wait_until(lambda: (log / "ahead").exists(), "contents ahead")
        if moment == "frame":
            wait_until(lambda: not (log / "ahead").exists(), "a segment with them")
        process.kill()
        committer.join()
        process.start()
        assert not (log / "ahead").exists()
        channel = connect(process).channel()
        found = [0] * (committer.done + 2)
        while True:
            method, _, body = channel.basic_get("large", auto_ack=True)
            if method is None or body is None:
                break
            number = next(n for n in range(len(found)) if body[:32] == mark_of(n))
            assert body == mark_of(number) * (COMMIT_BODY_BYTES // 32)
            found[number] += 1
        assert found[: committer.done] == [COMMIT_BODIES] * committer.done
        assert found[committer.done] in (0, COMMIT_BODIES)
        assert found[-1] == 0


def written(log: Path) -> int:
    """Return how many bytes of the log's files have been given blocks."""
    total = 0
    for path in log.iterdir():
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            pass  # a new segment has its name now; the next look finds it
    return total
