"""Compaction by key: of each key the last message stays, at its offset, whatever happens meanwhile."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, body_of, publish_frames

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import Table, decode_table, encode_table
from warren.msgstore.files.sealed_files import REPLACEMENT, sealed_path
from warren.streams.compaction import TOMBSTONE_MS
from warren.streams.stream import Stream

COMPACT: Table = {"x-queue-type": "stream", "x-cleanup": "compact", "x-stream-max-segment-size-bytes": 600}
CHUNK = 5


class Keys:
    """A compacting stream ``s``, bound to a topic exchange, and its messages: key, value and time by offset."""

    def __init__(self, arguments: Table, *, seed: int = 0) -> None:
        self.random = Random(seed)
        self.key_header = arguments.get("x-key-header")
        self.published: list[tuple[str | None, bytes, int]] = []
        self._begin(DurableHarness())
        self.client.call(1, m.ExchangeDeclare(0, "t", "topic", False, True, False, False, False, b"\0\0\0\0"))
        self.client.declare("s", durable=True, arguments=arguments)
        self.client.call(1, m.QueueBind(0, "s", "t", "#", False, b"\0\0\0\0"))

    def _begin(self, harness: DurableHarness) -> None:
        self.harness = harness
        self.log = harness.broker.log
        self.log.sealed.chunk_messages = CHUNK
        self.log.memory_bytes = 0  # the tail, which is delivered as it was published, is as short as can be
        self.client = harness.channel()
        self.client.call(1, m.ConfirmSelect(False))

    @property
    def stream(self) -> Stream:
        found = self.harness.queue("s")
        assert isinstance(found, Stream)
        return found

    def publish(self, key: str | None, value: bytes) -> None:
        headers: Table = {} if key is None or self.key_header is None else {str(self.key_header): key}
        route = "k" if key is None or self.key_header is not None else key
        self.client.feed(publish_frames("t", route, value, properties={"headers": encode_table(headers)}))
        self.published.append((key, value, int(self.log.now_ms)))
        self.harness.settle()

    def restart(self, *, clean: bool) -> None:
        self._begin(self.harness.restart(clean=clean))
        del self.published[self.stream.next_offset() :]

    def read(self, start: str | int = "first", **arguments: object) -> dict[int, bytes]:
        """Return the messages that a consumer gets from `start` on."""
        client = self.harness.channel()
        return self.read_with(client, start, **arguments)

    @staticmethod
    def read_with(client: Client, start: str | int = "first", **arguments: object) -> dict[int, bytes]:
        client.call(1, m.BasicQos(0, 60_000, False))
        client.consume("s", arguments={"x-stream-offset": start} | {f"x-{k}": v for k, v in arguments.items()})
        found = {}
        for each in client.deliveries():
            assert each.content is not None and each.content.properties.headers is not None
            offset = decode_table(each.content.properties.headers)["x-stream-offset"]
            assert isinstance(offset, int)
            found[offset] = body_of(each)
        client.hang_up()
        return found

    def check(self) -> None:
        """All messages were published; the last of each key is there, unless it is a tombstone that was old enough."""
        found = self.read()
        last: dict[str, int] = {}
        for offset, (key, value, _) in enumerate(self.published):
            if key is None:
                assert found.get(offset) == value, f"{offset} has no key, and is gone"
            else:
                last[key] = offset
        for offset, value in found.items():
            assert self.published[offset][1] == value
        for offset in last.values():
            _, value, time_ms = self.published[offset]
            if value or time_ms > int(self.log.now_ms) - TOMBSTONE_MS:
                assert found.get(offset) == value, f"{offset} is the last of its key, and is gone"
        table, tail = self.stream.messages.sealer.table, int(self.stream.messages.tail_from())
        assert self.stream.ready_count == table.count + len(self.published) - max(table.end, 0)
        if table.end <= tail:
            assert self.stream.ready_count == len(found)
            assert self.stream.ready.body_bytes == sum(map(len, found.values()))
        self.stream.check_invariants()

    def compact(self) -> None:
        """Publish so much that all until now is compacted: with keys that nobody else has."""
        for number in range(400):
            self.publish(f"filler.{number % 3}", b"-" * 60)


@pytest.mark.parametrize("key_header", [None, "id"])
def test_of_each_key_the_last_message_stays_at_its_offset(key_header: str | None) -> None:
    keys = Keys(COMPACT | ({"x-key-header": key_header} if key_header else {}))
    for number in range(60):
        keys.publish(f"user.{number % 4}", b"%d" % number + bytes(40))
    keys.compact()
    found = keys.read()
    assert [offset for offset in found if offset < 60] == [56, 57, 58, 59]
    assert [found[offset][:2] for offset in (56, 57, 58, 59)] == [b"56", b"57", b"58", b"59"]
    keys.check()


def test_messages_without_the_key_header_stay() -> None:
    keys = Keys(COMPACT | {"x-key-header": "id"})
    for number in range(40):
        keys.publish(None if number % 2 else "k", b"%d" % number + bytes(50))
    keys.compact()
    assert [offset for offset in keys.read() if offset < 40] == [*range(1, 38, 2), 38, 39]
    keys.check()


def test_a_tombstone_removes_its_key_and_goes_a_day_later() -> None:
    keys = Keys(COMPACT)
    keys.publish("user", b"there")
    keys.publish("user", b"")
    keys.compact()
    assert [offset for offset in keys.read() if offset < 2] == [1]
    keys.log.now_ms += TOMBSTONE_MS + 1
    keys.compact()
    assert [offset for offset in keys.read() if offset < 2] == []
    keys.check()


def test_who_begins_where_compaction_has_left_nothing_gets_what_comes_behind() -> None:
    keys = Keys(COMPACT)
    for number in range(200):
        keys.publish("user", b"%d" % number + bytes(50))
    (first, *_), table = keys.read(), keys.stream.messages.sealer.table
    emptied = table.segments[0].chunks[0]
    assert (emptied.count, emptied.first) == (0, 0)
    assert 1 < emptied.end <= first
    for start in (1, int(emptied.end) // 2):
        assert keys.read(start) == keys.read()
        assert keys.read(start, group=f"from-{start}") == keys.read()


def test_without_the_argument_everything_stays() -> None:
    keys = Keys({"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 600})
    for _ in range(30):
        keys.publish("user", b"x" * 50)
    keys.compact()
    assert len(keys.read()) == 430


def test_what_is_beside_damage_is_not_compacted() -> None:
    keys = Keys({"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 2000})
    for number in range(60):
        keys.publish("user", b"%02d" % number + bytes(50))
    keys.harness.write()
    fs = keys.harness._fs
    table = keys.stream.messages.sealer.table
    segment, chunk = table.segments[1], table.segments[1].chunks[-1]
    path = sealed_path(keys.stream.store_id, int(segment.first))
    fs.flip_bit(path, int(chunk.position), 0)
    evidence = fs.contents()[path]
    keys.restart(clean=True)
    gap = range(int(chunk.first), int(chunk.end))
    assert set(keys.read()) == set(range(60)) - set(gap)
    keys.stream.rules.compacts = True
    keys.compact()
    assert fs.contents()[path] == evidence
    beside = {offset for each in table.segments[1:3] for offset in range(int(each.first), int(each.end))}
    found = {offset for offset in keys.read() if offset < 60}
    assert found >= beside - set(gap) and not found & set(gap)
    assert 0 not in found, "others are"


def test_files_that_have_become_small_are_put_together() -> None:
    keys = Keys(COMPACT)
    for _ in range(20):
        for _ in range(30):
            keys.publish("one", b"x" * 60)
    segments = keys.stream.messages.sealer.table.segments
    assert len(segments) < 20  # of about fifty that were written
    assert len(keys.read()) < 300
    keys.check()


def test_of_a_stream_that_is_deleted_while_it_is_compacted_nothing_is_left() -> None:
    keys = Keys(COMPACT)
    store = keys.harness.store
    run = store.run

    def run_until_something_is_made() -> bool:
        store.hold = any(name.endswith(REPLACEMENT) for name in files())
        return run()

    def files() -> list[str]:
        return keys.harness._fs.names("streams")

    store.run = run_until_something_is_made  # type: ignore[method-assign]
    while not store.hold:
        keys.publish("user", b"x" * 50)
    store.run = run  # type: ignore[method-assign]
    keys.client.feed(method_frame(1, m.QueueDelete(0, "s", if_unused=False, if_empty=False, no_wait=True)))
    assert "s" not in keys.harness.vhost.queues
    store.hold = False
    keys.harness.settle()
    assert files() == []


@pytest.mark.parametrize("cleanup", ["compacted", 1, True])
def test_what_is_no_way_to_clean_up_is_refused(cleanup: object) -> None:
    client = Harness().channel()
    arguments: Table = {"x-queue-type": "stream", "x-cleanup": cleanup}
    client.send(1, m.QueueDeclare(0, "s", False, True, False, False, False, encode_table(arguments)))
    refused = client.expect(m.ChannelClose)
    assert refused.reply_code == 406
    assert refused.reply_text.startswith("PRECONDITION_FAILED - invalid arg 'x-cleanup' for queue 's' in vhost '/': ")


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_meanwhile_the_last_of_each_key_is_there(seed: int) -> None:
    print(f"seed {seed}")
    keys = Keys(COMPACT | ({"x-key-header": "id"} if seed % 2 else {}), seed=seed)
    random = keys.random
    for _ in range(60):
        step = random.randrange(10)
        if step < 7:
            for _ in range(random.choice((1, 10, 40))):
                key = None if random.random() < 0.1 and seed % 2 else f"k{random.randrange(random.choice((3, 30)))}"
                size = random.choice((0, 1, 30, 30, 200))
                value = b"" if size == 0 and key is not None else b"%d:" % len(keys.published) + bytes(size)
                keys.publish(key, value)
        elif step == 7:
            keys.log.now_ms += random.choice((1000, TOMBSTONE_MS // 2, TOMBSTONE_MS * 2))
        elif step == 8:
            keys.restart(clean=random.random() < 0.5)
        keys.check()


def test_a_stream_has_a_compactor_from_its_first_full_segment_on_if_it_wants_one() -> None:
    keys = Keys(COMPACT)
    assert keys.stream._compactor is None
    keys.compact()
    assert keys.stream._compactor is not None
    plain = Keys({key: value for key, value in COMPACT.items() if key != "x-cleanup"})
    plain.compact()
    assert len(plain.stream.messages.sealer.table.segments) > 2
    assert plain.stream._compactor is None


def test_it_runs_when_as_much_has_come_as_the_last_run_left() -> None:
    """``compaction.py`` (5)"""
    keys = Keys(COMPACT)
    runs: list[int] = []
    for number in range(600):
        keys.publish(f"own.{number}", b"-" * 60)  # nothing of it goes
        compactor = keys.stream._compactor
        end = 0 if compactor is None else int(compactor._compacted_to)
        if end and (not runs or end != runs[-1]):
            runs.append(end)
    assert len(runs) > 3
    assert all(later >= 2 * earlier - 60 for earlier, later in pairwise(runs)), runs
