"""kill -9 of a broker whose queues have rules: what was confirmed is in exactly one place, wherever it was going to.

    job-*     into `work`: a quorum queue; failed and rejected messages go to `dead`, at least once
    old-*     into `aged`: a time to live of 100 ms, then `expired`
    soon-*    into `soon` with a delay between 50 ms and 15 s
    once-*    into `once`, which drops what it has accepted before; each is published in every cycle

1. A confirmed message is there once, in one of its two queues, or when its time has come. Only what was acknowledged
   may be gone.
2. A message that was published and not confirmed is there once or not at all.
3. A message of which any publish to `once` was confirmed is known there for good: in later lives it does not come as
   new, and once it is gone not at all. Nothing comes as new twice in one life, confirmed or not. A delivery does not
   promise anything: a message that was seen, but never confirmed, may be lost with its key, and is then accepted again.

`WARREN_TEST_CRASH_CYCLES` and `WARREN_TEST_CRASH_SEED` are those of ``test_kill_9.py``.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pika
import pytest
from broker_process import WarrenProcess, wait_until
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from .life import small_store

CYCLES = int(os.environ.get("WARREN_TEST_CRASH_CYCLES", "20")) // 4 + 1
SEED = int(os.environ.get("WARREN_TEST_CRASH_SEED") or random.SystemRandom().getrandbits(32))
LONGEST_DELAY_MS = 15_000
ONCE_IDS = 40

QUEUES: dict[str, dict[str, Any]] = {
    "work": {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1,
        "x-overflow": "reject-publish",
        "x-dead-letter-strategy": "at-least-once",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    },
    "dead": {},
    "aged": {"x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "expired"},
    "expired": {},
    "soon": {},
    "once": {"x-message-deduplication": True},
}
PLACES = {"job": ("work", "dead"), "old": ("aged", "expired"), "soon": ("soon",), "once": ("once",)}
GONE = (AMQPError, OSError)


class Repetitions:
    """Deliveries of `once`, and those that a broker without repetitions would not have sent, by (3)."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.count = 0  # of messages that came as new
        self._known: set[str] = set()  # confirmed in an earlier life
        self._gone: set[str] = set()  # known, and not in the queue after a restart
        self._new: set[str] = set()  # came as new in this life

    def delivered(self, name: str, *, redelivered: bool) -> None:
        """Note that `name` came to a consumer."""
        if name in self._gone:
            self.faults.append(f"{name} was gone and came back")
        if redelivered:
            return
        if name in self._known:
            self.faults.append(f"{name} was confirmed in an earlier life and came as new")
        if name in self._new:
            self.faults.append(f"{name} came as new twice in one life")
        self._new.add(name)
        self.count += 1

    def restarted(self, confirmed: set[str], found: set[str]) -> None:
        """Note what the queue has after a restart, all of it delivered meanwhile, and what was `confirmed` before."""
        self.faults += [f"{name} was gone and is back" for name in sorted(found & self._gone)]
        self._known |= confirmed
        self._gone |= self._known - found
        self._new.clear()


class Books:
    """The actions of the clients of all lives, by name of the message."""

    def __init__(self) -> None:
        self.published: set[str] = set()
        self.confirmed: set[str] = set()
        self.acknowledged: set[str] = set()  # perhaps: the broker may have died before it read that
        self.repetitions = Repetitions()
        self.number = 0

    def new(self, kind: str) -> str:
        self.number += 1
        return f"{kind}-{self.number}"


def connect(process: WarrenProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.amqp_port, heartbeat=0))


def publish(channel: BlockingChannel, books: Books, name: str, headers: dict[str, Any] | None = None) -> None:
    """Publish `name` into the queue of its kind, and wait for the confirm."""
    queue = {"job": "work", "old": "aged"}.get(name.partition("-")[0], name.partition("-")[0])
    books.published.add(name)
    properties = pika.BasicProperties(delivery_mode=2, headers=headers)
    channel.basic_publish("", queue, name.encode(), properties)
    books.confirmed.add(name)


def publish_all(process: WarrenProcess, books: Books, chooser: random.Random) -> None:
    """Publish until the broker is gone."""
    try:
        channel = connect(process).channel()
        channel.confirm_delivery()
        while True:
            publish(channel, books, books.new("job"))
            publish(channel, books, books.new("old"))
            publish(channel, books, books.new("soon"), {"x-delay": chooser.choice([50, 500, LONGEST_DELAY_MS])})
            name = f"once-{chooser.randrange(ONCE_IDS)}"
            publish(channel, books, name, {"x-deduplication-header": name})
    except GONE:
        return


def consume_all(process: WarrenProcess, books: Books, chooser: random.Random) -> None:
    """Fail, reject and take jobs, and take what comes `once`, until the broker is gone."""
    try:
        channel = connect(process).channel()
        channel.basic_qos(prefetch_count=20)

        def job(_channel: BlockingChannel, method: Any, _properties: Any, body: bytes) -> None:
            choice = chooser.random()
            if choice < 0.3:
                books.acknowledged.add(body.decode())
                channel.basic_ack(method.delivery_tag)
            else:
                channel.basic_reject(method.delivery_tag, requeue=choice < 0.8)

        def once(_channel: BlockingChannel, method: Any, _properties: Any, body: bytes) -> None:
            books.repetitions.delivered(body.decode(), redelivered=method.redelivered)
            books.acknowledged.add(body.decode())
            channel.basic_ack(method.delivery_tag)

        channel.basic_consume("work", job)
        channel.basic_consume("once", once)
        channel.start_consuming()
    except GONE:
        return


def everything(process: WarrenProcess, queues: Iterable[str] = QUEUES) -> dict[str, list[str]]:
    """Return what is in each of the queues, in its order, and leave it there."""
    found: dict[str, list[str]] = {}
    with connect(process) as connection:
        channel = connection.channel()
        for queue in queues:
            found[queue] = []
            while True:
                method, _, body = channel.basic_get(queue)
                if method is None:
                    break
                assert body is not None
                found[queue].append(body.decode())
        # Only now all of it goes back: that may be one failure too many, and the end of it in `work`.
        channel.close()
    return found


def judge(books: Books, found: dict[str, list[str]]) -> None:
    """Check (1) to (3), but for what is held and is missed at the end only."""
    for kind, places in PLACES.items():
        there = Counter(name for queue in places for name in found[queue])
        several = sorted(name for name, count in there.items() if count > 1)
        assert not several, f"in two places: {several[:10]}"
        unknown = sorted(set(there) - books.published)
        assert not unknown, f"nobody published {unknown[:10]}"
        if kind != "soon":
            missing = sorted(missing_of(books, kind, set(there)))
            assert not missing, f"confirmed and gone: {missing[:10]}"
    books.repetitions.restarted({name for name in books.confirmed if name.startswith("once-")}, set(found["once"]))
    assert not books.repetitions.faults, books.repetitions.faults[:10]


def missing_of(books: Books, kind: str, there: set[str]) -> set[str]:
    confirmed = {name for name in books.confirmed if name.startswith(kind)}
    return confirmed - books.acknowledged - there


def run_and_kill(process: WarrenProcess, books: Books, chooser: random.Random) -> None:
    """Make clients do their work, and kill the broker at some moment after they have begun."""
    begun = len(books.confirmed) + 10
    clients = [
        threading.Thread(target=work, args=(process, books, random.Random(chooser.getrandbits(32))))
        for work in (publish_all, publish_all, consume_all)
    ]
    for client in clients:
        client.start()
    wait_until(lambda: len(books.confirmed) >= begun and books.repetitions.count > 0, "the clients to begin")
    time.sleep(chooser.uniform(0, 1.4))  # a random moment, without waiting for an event
    process.kill()
    for client in clients:
        client.join()


@pytest.mark.long
def test_what_was_confirmed_is_in_one_place_after_kill_9(tmp_path: Path) -> None:
    chooser = random.Random(SEED)
    settings = small_store(chooser)
    print(f"seed {SEED}, " + ", ".join(f"{key} = {value}" for key, value in settings.items()))
    process = WarrenProcess(tmp_path, {"http": "off"}, settings)
    books = Books()
    try:
        process.start()
        with connect(process) as connection:
            for queue, arguments in QUEUES.items():
                connection.channel().queue_declare(queue, durable=True, arguments=arguments)
        for cycle in range(CYCLES):
            print(f"cycle {cycle}: {len(books.confirmed)} confirmed of {len(books.published)}")
            run_and_kill(process, books, chooser)
            process.start()
            judge(books, everything(process))
        wait_until(
            lambda: not missing_of(books, "soon", set(everything(process, ["soon"])["soon"])),
            "all delayed messages to be there",
            LONGEST_DELAY_MS / 1000 + 120,
        )
        judge(books, everything(process))
        assert "Traceback" not in process.log(), process.log_tail()
    finally:
        process.kill()


# --- the judge of (3) -------------------------------------------------------------------------------------------------

Step = Callable[[Repetitions], None]


def comes(*, redelivered: bool = False) -> Step:
    return lambda told: told.delivered("m", redelivered=redelivered)


def crash(*, confirmed: bool, found: bool) -> Step:
    return lambda told: told.restarted({"m"} if confirmed else set(), {"m"} if found else set())


LOST = crash(confirmed=False, found=False)
KEPT = crash(confirmed=True, found=True)
TAKEN = crash(confirmed=True, found=False)


@pytest.mark.parametrize(
    "steps",
    [
        [comes(), LOST, comes(), LOST],
        [comes(), LOST, comes(), TAKEN, TAKEN],
        [comes(), crash(confirmed=False, found=True), comes(redelivered=True), TAKEN],
        [KEPT, comes(redelivered=True), KEPT, comes(redelivered=True), TAKEN],
    ],
)
def test_a_broker_that_drops_repetitions_is_not_blamed(steps: list[Step]) -> None:
    told = Repetitions()
    for step in steps:
        step(told)
    assert told.faults == []


@pytest.mark.parametrize(
    ("steps", "fault"),
    [
        ([comes(), comes()], "came as new twice in one life"),
        ([comes(), TAKEN, comes()], "was confirmed in an earlier life and came as new"),
        ([KEPT, comes()], "was confirmed in an earlier life and came as new"),
        ([comes(), TAKEN, comes(redelivered=True)], "was gone and came back"),
        ([comes(), TAKEN, KEPT], "was gone and is back"),
    ],
)
def test_a_broker_that_takes_a_repetition_is_blamed(steps: list[Step], fault: str) -> None:
    told = Repetitions()
    for step in steps:
        step(told)
    assert f"m {fault}" in told.faults
