"""Looking into a queue: the four claims at the top of ``warren/queues/browse.py``, each on its own."""

from __future__ import annotations

import pytest
from engine_harness import Client, Harness, body_of, publish_frames

from warren.amqp import methods as m
from warren.msgstore.log.jobs import Errand
from warren.msgstore.log.queue_index import LSN_MASK, QueueIndex
from warren.queues import browse
from warren.queues.browse import Cursor, Seen, look, settle_seen, still_waits
from warren.queues.disk_reads import MessagesRead
from warren.queues.fetch import Fetch
from warren.queues.key_sharing import KeyShared

PAGE = 256
ROUND = 250


class Long:
    """A durable queue ``q`` of `count` messages, whose bodies are their numbers; all but the head is on disk only."""

    def __init__(self, count: int, *, body: bytes = b"") -> None:
        self.harness = Harness()
        self.client = self.harness.channel()
        self.client.declare("q", durable=True)
        self.log = self.harness.broker.log
        self.log.memory_bytes = 0
        self.bodies = [b"%d" % number + body for number in range(count)]
        for first in range(0, count, ROUND):
            frames = [publish_frames("", "q", each, properties={"delivery_mode": 2}) for each in self._round(first)]
            self.client.feed(b"".join(frames))
            self.close_batch()
        self.close_batch()
        self.queue = self.harness.queue("q")
        assert self.queue.ready_count == count
        self.messages_read = 0
        self._loaded = self.harness.store.loaded
        self.harness.store.loaded = self._count  # type: ignore[method-assign]

    def _round(self, first: int) -> list[bytes]:
        return self.bodies[first : first + ROUND]

    def _count(self, read: Errand) -> None:
        if isinstance(read, MessagesRead) and isinstance(read.reader, Fetch):
            self.messages_read += len(read.numbers)
        self._loaded(read)

    @property
    def index(self) -> QueueIndex:
        found = self.queue.ready.index_of(0)
        assert found is not None
        return found

    def close_batch(self) -> None:
        self.log.close_if_due(lingered=True)
        self.harness.settle()

    def look(self, *, most: int = 100, cursor: Cursor) -> list[Seen]:
        told: list[list[Seen]] = []
        look(self.queue, cursor, most, told.append)
        self.harness.settle()
        (seen,) = told
        return seen

    def everything(self, skip: int = 0, piece: int = 100) -> list[bytes]:
        """Return the bodies from a place on."""
        cursor = Cursor(skip)
        found: list[bytes] = []
        while not cursor.ended:
            found += [seen.message.body() for seen in self.look(most=piece, cursor=cursor)]
        return found

    def resident_pages(self) -> int:
        return sum(page is not None and page.resident for page in self.index.pages)

    def spoil(self, lsn: int) -> None:
        """Change a byte on disk."""
        segments = self.harness.store.segments
        base = max(base for base in segments if base <= lsn)
        segments[base][lsn - base + 12] ^= 0x55

    def get_all(self) -> list[bytes]:
        found: list[bytes] = []
        while (received := self.client.get("q", no_ack=True)) is not None:
            found.append(body_of(received))
        return found


def test_a_look_at_a_long_queue_gives_the_memory_of_its_index_back() -> None:
    long = Long(20 * PAGE)
    pages, resident_bytes = long.resident_pages(), int(long.log.resident_bytes)
    assert pages < 5 and long.queue.ready.paged_out_count() > 18 * PAGE
    assert long.everything(piece=70) == long.bodies
    assert long.resident_pages() <= pages
    assert long.log.resident_bytes == resident_bytes
    assert long.get_all() == long.bodies


def test_skipping_reads_no_message_before_the_page_in_which_it_ends() -> None:
    long = Long(20 * PAGE)
    taken = 100
    for _ in range(taken):
        assert long.client.get("q", no_ack=True) is not None  # the part on disk begins in the middle of a page
    for skip in (15 * PAGE, 15 * PAGE + 100, 18 * PAGE - 1):
        long.messages_read = 0
        cursor = Cursor(skip)
        seen: list[Seen] = []
        while not seen:
            seen = long.look(most=10, cursor=cursor)
        assert [each.message.body() for each in seen] == long.bodies[taken + skip : taken + skip + len(seen)]
        assert long.messages_read <= 2 * PAGE


def test_one_look_reads_no_more_than_its_limit_and_at_least_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    long = Long(3 * PAGE, body=b"x" * 1000)
    sizes: list[int] = []
    loaded = long.harness.store.loaded

    def count(read: Errand) -> None:
        if isinstance(read, MessagesRead) and isinstance(read.reader, Fetch):
            sizes.append(sum(int(read.lengths[at]) for at in range(len(read.lengths))))
        loaded(read)

    long.harness.store.loaded = count  # type: ignore[method-assign]
    if not monkeypatch_limit(monkeypatch, 5000):
        pytest.skip("the limit is compiled in")
    assert long.everything(piece=100) == long.bodies
    assert sizes and max(sizes) <= 5000
    sizes.clear()
    monkeypatch_limit(monkeypatch, 1)
    assert long.everything(skip=2 * PAGE, piece=100) == long.bodies[2 * PAGE :]
    assert len(sizes) >= 100, "one message at a time"


def monkeypatch_limit(monkeypatch: pytest.MonkeyPatch, limit: int) -> bool:
    """Make a look read at most `limit` bytes; False when the compiler has written the limit into the code."""
    if not browse.__file__.endswith(".py"):
        return False
    monkeypatch.setattr(browse, "READ_BYTES_MAX", limit)
    return True


def test_a_look_passes_over_a_bounded_number_of_messages_in_memory() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    count = browse.PASSED_MAX + 10
    client.feed(b"".join(publish_frames("", "q", b"%d" % number) for number in range(count)))
    cursor = Cursor(count - 1)
    told: list[list[Seen]] = []
    look(harness.queue("q"), cursor, 100, told.append)
    assert told == [[]] and not cursor.ended
    look(harness.queue("q"), cursor, 100, told.append)
    assert [each.message.body() for each in told[1]] == [b"%d" % (count - 1)]


def test_a_damaged_index_page_is_passed_over_and_left_for_the_consumer_to_find() -> None:
    long = Long(8 * PAGE)
    index = long.index
    at = next(at for at, page in enumerate(index.pages) if at > 2 and page is not None and not page.resident)
    page = index.pages[at]
    assert page is not None
    long.spoil(int(page.lsn))
    first = (int(index.first_page) + at) * PAGE
    healthy = long.bodies[:first] + long.bodies[first + PAGE :]
    for _ in range(2):
        assert long.everything() == healthy
        assert long.queue.ready_count == len(long.bodies)
        assert not long.log.damage.reports and index.damaged_count == 0
    assert long.get_all() == healthy
    assert len(long.log.damage.reports) == 1 and index.damaged_count == PAGE
    assert (long.queue.ready_count, long.queue.ready.body_bytes) == (0, 0)


def test_a_damaged_message_is_passed_over_and_left_for_the_consumer_to_find() -> None:
    long = Long(8 * PAGE)
    cursor = Cursor(4 * PAGE + 3)
    told: list[list[Seen]] = []
    look(long.queue, cursor, 1, told.append)
    lsn = 0
    while not told:
        page = long.index.page(4)
        if page is not None and page.resident:
            lsn = int(page.entries[2 * 3] & LSN_MASK)
        long.harness._turn(True)
    assert lsn > 0
    long.spoil(lsn)
    healthy = long.bodies[: 4 * PAGE + 3] + long.bodies[4 * PAGE + 4 :]
    for _ in range(2):
        assert long.everything() == healthy
        assert not long.log.damage.reports and long.queue.ready_count == len(long.bodies)
    assert long.get_all() == healthy
    assert len(long.log.damage.reports) == 1 and long.index.damaged_count == 1
    assert (long.queue.ready_count, long.queue.ready.body_bytes) == (0, 0)


@pytest.mark.parametrize("kept", range(3))
def test_what_is_not_written_yet_is_taken_out_of_turn_one_by_one(kept: int) -> None:
    long = Long(6 * PAGE)
    long.log.memory_bytes = 1 << 30
    fresh = [b"x", b"yy", b"zzz"]
    for body in fresh:
        long.client.publish("", "q", body)
    seen = long.look(cursor=Cursor(6 * PAGE))
    assert [each.message.body() for each in seen] == fresh
    for each in seen[:kept] + seen[kept + 1 :]:
        settle_seen(long.queue, each)
    assert long.get_all() == [*long.bodies, fresh[kept]]
    assert (long.queue.ready_count, long.queue.ready.body_bytes) == (0, 0)


@pytest.mark.parametrize("ends", ["purge", "delete"])
def test_a_queue_that_is_emptied_while_it_is_read_tells_nothing_more(ends: str) -> None:
    long = Long(6 * PAGE)
    cursor = Cursor(3 * PAGE)
    told: list[list[Seen]] = []
    long.harness.store.hold = True
    look(long.queue, cursor, 10, told.append)
    queue = long.queue
    if ends == "purge":
        long.client.send(1, m.QueuePurge(0, "q", False))
    else:
        long.client.send(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    assert not told
    long.harness.store.hold = False
    long.harness.settle()
    assert told == [[]]
    if ends == "delete":
        assert cursor.ended
    while not cursor.ended:
        look(queue, cursor, 10, told.append)
        long.harness.settle()
    assert not any(told)
    assert long.log.resident_bytes == 0


def test_what_is_delivered_while_it_is_read_is_not_told() -> None:
    long = Long(6 * PAGE)
    head = long.queue.ready.backlog(0).on_disk()[0]
    slow: list[Errand] = []
    loaded = long.harness.store.loaded

    def be_slow(read: Errand) -> None:
        if isinstance(read, MessagesRead) and isinstance(read.reader, Fetch):
            slow.append(read)
        else:
            loaded(read)

    long.harness.store.loaded = be_slow  # type: ignore[method-assign]
    told: list[list[Seen]] = []
    look(long.queue, Cursor(head), 10, told.append)
    long.harness.settle()
    for _ in range(head + 4):
        assert long.client.get("q") is not None
    assert not told
    (read,) = slow
    loaded(read)
    # Of the ten that were asked for four are out; the others are in memory meanwhile.
    assert [[each.message.body() for each in piece] for piece in told] == [long.bodies[head + 4 : head + 10]]


def of_priority(client: Client, level: int, body: bytes) -> None:
    client.publish("", "q", body, priority=level)


def bodies_of(harness: Harness) -> list[tuple[bytes, bool]]:
    """Return what waits in ``q``, and whether it says that it was delivered before."""
    told: list[list[Seen]] = []
    look(harness.queue("q"), Cursor(), 1000, told.append)
    return [(each.message.body(), each.redelivered) for each in told[0]]


def test_what_came_back_to_a_low_priority_is_behind_what_waits_with_a_high_one() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", arguments={"x-max-priority": 2})
    of_priority(client, 0, b"low")
    received = client.get("q")
    assert received is not None
    of_priority(client, 2, b"high")
    of_priority(client, 0, b"later")
    client.send(1, m.BasicNack(received.method.delivery_tag, multiple=False, requeue=True))
    assert bodies_of(harness) == [(b"high", False), (b"low", True), (b"later", False)]
    got = [client.get("q", no_ack=True) for _ in range(3)]
    assert [body_of(each) for each in got if each is not None] == [b"high", b"low", b"later"]


def test_what_was_set_aside_for_its_key_does_not_say_that_it_was_delivered() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", arguments={"x-key-shared": True})
    client.send(1, m.BasicQos(0, 1, False))
    client.take()
    client.consume("q", "one")
    client.publish("", "q", b"out")
    (out,) = client.deliveries()
    other = harness.channel()
    other.send(1, m.BasicQos(0, 1, False))
    other.take()
    other.consume("q", "two")
    client.publish("", "q", b"aside")
    sharing = harness.plain_queue("q").need_keeper().dispatch
    assert isinstance(sharing, KeyShared) and sharing.keys.count() == 1
    assert bodies_of(harness) == [(b"aside", False)]
    client.send(1, m.BasicCancel("one", False))
    client.take()
    client.send(1, m.BasicNack(out.method.delivery_tag, multiple=False, requeue=True))
    (back,) = other.deliveries()
    assert body_of(back) == b"out" and back.method.redelivered
    assert bodies_of(harness) == [(b"aside", False)]


def test_many_that_came_back_are_taken_out_of_turn_without_looking_at_each_other() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    count = 3000
    client.feed(b"".join(publish_frames("", "q", b"%d" % number) for number in range(count)))
    client.send(1, *[m.BasicGet(0, "q", False)] * count)
    client.take()
    client.send(1, m.BasicNack(0, multiple=True, requeue=True))
    queue = harness.queue("q")
    cursor = Cursor(1)
    while not cursor.ended:
        told: list[list[Seen]] = []
        look(queue, cursor, 100, told.append)
        for seen in told[0]:
            if int(seen.message.body()) % 2:
                assert still_waits(queue, seen)
                settle_seen(queue, seen)
                assert not still_waits(queue, seen)
    assert [body for body, _ in bodies_of(harness)][:1000] == [b"%d" % number for number in range(0, 2000, 2)]
    client.publish("", "q", b"new")
    got: list[bytes] = []
    while (received := client.get("q", no_ack=True)) is not None:
        got.append(body_of(received))
    assert got == [*(b"%d" % number for number in range(0, count, 2)), b"new"]
