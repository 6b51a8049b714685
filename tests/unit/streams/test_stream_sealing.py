"""Streams whose chunks are small: sealed messages leave the log, invisibly for clients.

In parentheses: the invariants in the header of ``streams/sealer.py``, unless another module is named.
"""

from __future__ import annotations

from random import Random

import pytest
from durable_harness import DurableHarness
from engine_harness import publish_frames
from sealing_stream import CHUNK, OFFSET, ONE_CHUNK_EACH, PAGE, Sealing

from warren.amqp import methods as m
from warren.amqp.field_table import Table, decode_table, encode_table
from warren.streams.sealed_reads import RAWS_MAX
from warren.streams.sealer import SEGMENT_MIN_BYTES

# --- what is sealed leaves the log ------------------------------------------------------------------------------------


def test_a_full_chunk_is_sealed_and_the_log_forgets_it() -> None:
    """(3)"""
    s = Sealing()
    s.publisher.feed(b"".join(publish_frames("", "s", b"x") for _ in range(CHUNK)))
    assert s.bounds() == [[(0, CHUNK)]], "with the sync that confirms it, whether another batch comes or not"
    s = Sealing()
    s.publish(CHUNK - 1)
    assert (s.bounds(), s.live) == ([], CHUNK - 1)
    s.publish(1)
    assert (s.bounds(), s.live) == ([[(0, CHUNK)]], 0)
    s.publish(25)
    assert (s.bounds(), s.live) == ([[(0, 10), (10, 20), (20, 30)]], 5)
    s.check()
    s.check_memory()


@pytest.mark.parametrize("size", [200, 1000, 5000])
def test_a_chunk_is_full_by_bytes_too_and_a_large_message_has_one_of_its_own(size: int) -> None:
    """(3)"""
    s = Sealing(chunk=1000, seal_bytes=2000)
    s.publish(21, size=size, at_once=False)
    each = -(-2000 // (size + 14))
    expected = [(at, at + each) for at in range(0, 21 - each + 1, each)]
    (chunks,) = s.bounds()
    assert len(chunks) in (len(expected), len(expected) - 1)
    assert all(end - first <= each for first, end in chunks)
    s.check()


def test_segments_of_the_log_go_when_what_is_in_them_is_sealed() -> None:
    """(1)"""

    def log_bytes(chunk: int) -> int:
        s = Sealing(chunk=chunk, seal_bytes=1 << 30)
        for _ in range(40):
            s.publish(CHUNK, size=20_000)
        for _ in range(2):
            s.harness.write()
            s.log.checkpoints.want()
            s.harness.settle()
        assert len(s.read()) == 400
        return sum(len(content) for path, content in s.fs.contents().items() if path.startswith("log/"))

    assert log_bytes(100_000) > 8_000_000
    # The record of the lineage keeps the first segment until compaction moves it.
    assert log_bytes(CHUNK) < 3_000_000


def test_the_index_of_what_is_sealed_goes() -> None:
    s = Sealing()
    s.publish(500)
    index = s.stream.messages.index
    assert index is not None
    assert len(index.pages) <= 2
    assert (index.next_number, index.live_count) == (500, 0)


def test_nothing_is_sealed_before_it_is_synced() -> None:
    """(2)"""
    s = Sealing()
    client = s.harness.channel()  # without confirms
    client.feed(b"".join(publish_frames("", "s", b"%d " % number) for number in range(25)))
    s.bodies = [b"%d " % number for number in range(25)]
    s.log.close_if_due(lingered=True)
    s.harness.settle()
    assert s.log.written_lsn > s.log.durable_lsn, "it is written"
    assert (s.live, s.bounds(), s.stream.messages.sealer.next) == (25, [], 0)
    s.seal()
    assert s.stream.messages.sealer.next == 0
    s.log.force()
    s.harness.settle()
    s.seal()
    assert s.bounds() == [[(0, 10), (10, 20)]]
    s.check()


def test_one_chunk_is_written_at_a_time_and_the_next_is_gathered_meanwhile() -> None:
    """(4)"""
    s = Sealing()
    held = s.hold_seals()
    for _ in range(7):
        s.publish(CHUNK)
    assert len(held) == 1
    assert s.stream.messages.sealer.next == 2 * CHUNK
    for number in range(7):
        assert len(held) == 1
        s.release(held)
        assert s.table.end == (number + 1) * CHUNK
    assert held == []
    s.check()


def test_what_is_sealed_is_as_it_was_published() -> None:
    s = Sealing(chunk=3)
    s.publisher.declare_exchange("e", "fanout")
    s.publisher.bind("s", "e")
    s.publisher.bind("s", "amq.topic", "#")
    headers: Table = {"a": 1, OFFSET: 99, "t": {"x": [True, "y"]}}
    body = bytes(range(256)) * 1000
    properties = {"content_type": "text/plain", "delivery_mode": 1, "priority": 4, "message_id": "m"}
    for exchange, key in (("e", ""), ("amq.topic", "a.b.ü"), ("", "s"), ("e", "other")):
        frames = publish_frames(exchange, key, body, properties=properties | {"headers": encode_table(headers)})
        s.publisher.feed(frames)
        s.bodies.append(body)
    s.seal()
    assert s.bounds() == [[(0, 3)]]
    for clean in (None, True, False):
        if clean is not None:
            s.restart(clean=clean)
        for frame_max in (4096, 131072):
            client = s.harness.client(frame_max_bytes=frame_max)
            client.open(1)
            client.call(1, m.BasicQos(0, 10, False))
            client.consume("s", arguments={OFFSET: "first"})
            received = client.deliveries()
            assert [(each.method.exchange, each.method.routing_key) for each in received] == [
                ("e", ""),
                ("amq.topic", "a.b.ü"),
                ("", "s"),
                ("e", "other"),
            ]
            for offset, each in enumerate(received):
                assert each.content is not None and each.content.properties.headers is not None
                assert each.content.body == body
                assert max(each.content.frame_bytes) <= frame_max
                assert decode_table(each.content.properties.headers) == headers | {OFFSET: offset}
                for name, value in properties.items():
                    assert getattr(each.content.properties, name) == value
                assert not each.method.redelivered
            client.hang_up()


# --- restarts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 16, 29, 30, 31, 32, 80])
def test_what_was_sealed_and_what_was_not_come_back(count: int, clean: bool) -> None:
    """(1)"""
    s = Sealing()
    s.publish(count)
    for _ in range(2):
        s.restart(clean=clean)
        s.check()
    s.publish(21)
    s.check()
    s.pass_sealing_time()
    s.restart(clean=clean)
    s.check()
    s.check_memory()


@pytest.mark.parametrize("told", [False, True], ids=["written", "entered"])
@pytest.mark.parametrize("count", [10, 15, 16, 20, 33])
def test_what_is_in_a_chunk_and_in_the_log_is_there_once(count: int, told: bool) -> None:
    """(1)"""
    s = Sealing()
    if told:
        s.publish(count)
        assert s.log.durable_lsn < s.log.next_lsn or not s.log.is_idle(), "that the log forgets it is not written yet"
    else:
        run = s.harness.store.run

        def run_but_seals() -> bool:
            return len(s.seal_without_telling()) > 0 or run()

        s.harness.store.run = run_but_seals  # type: ignore[method-assign]
        s.publish(count)
        assert (s.table.end, s.live) == (0, count)
    s.restart(clean=False)
    assert s.table.end in (10, 20, 30)
    assert s.live == count - s.table.end
    s.check()
    s.publish(20)
    s.check()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_a_page_of_the_index_that_is_half_sealed_counts_for_what_is_left(seed: int, clean: bool) -> None:
    """``stream_backlog.py``: entries of an absent page stay until it is here."""
    random = Random(seed)
    s = Sealing(chunk=1000)  # first much that is not sealed
    s.publish(random.randrange(40, 200))
    s.restart(clean=clean)
    s.page_out()
    assert s.absent_pages() >= len(s.bodies) // PAGE - 1
    s.chunk = random.choice((5, 7, 10, 40))
    for _ in range(4):
        s.restart(clean=clean, memory_bytes=random.choice((0, 64 << 20)))
        assert s.stream.ready_count == len(s.bodies)
        s.pass_sealing_time()
        s.check()
        s.publish(random.randrange(1, 30))
        if random.random() < 0.5:
            s.page_out()
        s.check()
    s.harness.write()
    s.restart(clean=clean)
    s.check()
    s.check_memory()


def test_chunks_that_end_within_one_absent_page_leave_what_is_behind_them() -> None:
    """``stream_backlog.py``: entries go from the beginning of a page."""
    s = Sealing(chunk=1000)
    s.publish(60)
    s.restart(clean=True)
    left = 60
    for count in (8, 1, 3, 2, 1, 1, 5, 30):
        s.page_out()
        s.seal_once(count)
        left -= count
        assert s.stream.messages.middle.count == left
        assert s.stream.ready_count == 60
        assert s.read(60 - left - 1) == list(range(60 - left - 1, 60))
    s.check()
    s.restart(clean=False)
    s.check()


def test_a_chunk_behind_one_that_ended_within_an_absent_page_leaves_what_is_behind_it() -> None:
    """``stream_backlog.py``: nothing is taken for sealed whose page is gone."""
    s = Sealing(chunk=1000)
    s.publish(3 * PAGE + 4)
    s.restart(clean=True)
    s.page_out()
    held = s.hold_seals()
    s.log.sealed.chunk_messages = PAGE + 4
    s.seal()
    s.log.sealed.chunk_messages = 2 * PAGE - 4
    s.seal()
    assert s.stream.messages.sealer.next == 3 * PAGE
    s.release(held)
    assert (s.table.end, s.stream.messages.middle.count) == (PAGE + 4, 2 * PAGE)
    assert s.absent_pages() >= 2, "the one in which the first chunk ends, too"
    s.release(held)
    assert (s.table.end, s.stream.messages.middle.count) == (3 * PAGE, 4)
    s.publish(2 * PAGE)
    s.release(held)
    s.check()


def test_what_a_restart_finds_unsealed_is_sealed_without_another_publish() -> None:
    s = Sealing(chunk=1000)
    s.publish(95)
    s.chunk = CHUNK
    s.restart(clean=False)
    assert s.bounds() == []
    s.pass_sealing_time()
    assert (s.table.end, s.live) == (90, 5)
    s.check()


def test_offsets_are_not_used_again_when_the_last_chunk_is_lost_and_that_is_reported() -> None:
    s = Sealing()
    s.publish(30)
    s.harness.write()
    position = int(s.table.segments[0].chunks[2].position)
    s.fs.flip_bit(f"streams/{s.files()[0]}", position, 0)
    s._begin(s.harness.restart(clean=True))
    assert s.bounds() == [[(0, 10), (10, 20)]]
    assert s.stream.next_offset() == 30
    (damage,) = s.log.damage.reports
    assert (damage.vhost, damage.queue, damage.sequence_number) == ("/", "s", 20)
    assert s.stream.ready_count == 20
    s.publish(15)
    assert s.read() == [*range(20), *range(30, 45)]
    assert [each.place for each in s.looked()] == [*range(20), *range(30, 45)]
    s.harness.write()
    s.restart(clean=False)
    assert s.read() == [*range(20), *range(30, 45)]
    assert s.bounds() == [[(0, 10), (10, 20), (30, 40)]]
    assert s.log.damage.reports == [], "that is said once"


def test_keys_of_what_is_sealed_are_remembered() -> None:
    s = Sealing(arguments={"x-message-deduplication": True})
    for number in [*range(25), *range(25)]:
        headers = encode_table({"x-deduplication-header": f"k{number}"})
        s.publisher.feed(publish_frames("", "s", b"%d " % number, properties={"headers": headers}))
    s.bodies = [b"%d " % number for number in range(25)]
    assert s.table.end == 20
    s.restart(clean=False)
    headers = encode_table({"x-deduplication-header": "k3"})
    s.publisher.feed(publish_frames("", "s", b"again", properties={"headers": headers}))
    s.check()


# --- memory -----------------------------------------------------------------------------------------------------------


def test_what_is_gathered_counts_as_memory_until_it_is_written() -> None:
    """(4)"""
    s = Sealing(chunk=16 * CHUNK)
    s.publish(2 * CHUNK, size=1000)
    tail = sum(len(body) + 250 for body in s.bodies)
    assert s.log.resident_bytes >= tail + 20 * 1000, "it is gathered already"
    s.publish(14 * CHUNK)
    assert s.table.end == 16 * CHUNK
    s.check_memory()


@pytest.mark.parametrize("size", [0, 3000])
def test_while_memory_is_short_nothing_is_gathered_ahead_and_chunks_are_read_back(size: int) -> None:
    """(4)"""
    s = Sealing(chunk=100, memory_bytes=0)
    for _ in range(42):
        s.publish(CHUNK, size=size)
        assert s.stream.messages.memory_bytes() < 200_000
    assert s.table.end in (300, 400)
    assert s.jobs["MessagesRead"] > 0
    s.check()
    s.check_memory()


def test_what_is_gathered_is_given_up_when_memory_becomes_short() -> None:
    """(4)"""
    s = Sealing(chunk=100)
    s.publish(50, size=100)
    assert s.stream.messages.sealer.next == 50
    s.log.memory_bytes = 0
    s.publish(20, size=100)
    gathered = sum(len(body) for body in s.bodies[:50])
    assert s.log.resident_bytes == s.stream.messages.memory_bytes() < gathered + 70 * 250 + gathered
    s.publish(30, size=100)
    assert s.bounds() == [[(0, 100)]]
    s.log.memory_bytes = 64 << 20
    s.publish(130)
    assert s.bounds() == [[(0, 100), (100, 200)]]
    s.check()
    s.check_memory()


def test_raw_chunks_leave_memory_when_nobody_reads_them_any_more() -> None:
    """``stream_sealed_reads.py`` (1)"""
    s = Sealing()
    s.publish(200, size=500)
    s.restart(clean=True)
    assert s.log.resident_bytes == 0
    reader = s.consumer(prefetch=25)
    assert s.offsets(reader) == list(range(25))
    assert 0 < s.log.resident_bytes < (RAWS_MAX + 2) * CHUNK * 1000
    reader.send(1, m.BasicAck(0, True))
    while s.offsets(reader):
        reader.send(1, m.BasicAck(0, True))
    assert s.log.resident_bytes == 0, "it has caught up, and stays"
    s.publish(1)
    assert s.offsets(reader) == [200]
    reader.hang_up()
    s.check_memory()


def test_all_memory_is_given_back_whoever_reads_what() -> None:
    s = Sealing(chunk=20)
    s.publish(130, size=100)
    s.restart(clean=False)
    clients = [s.consumer(at, prefetch=3) for at in (0, 25, 50, 75, 100, 125)]
    s.publish(30)
    for client in clients[::2]:
        client.hang_up()
    s.publish(30)
    for client in clients[1::2]:
        client.send(1, m.BasicCancel("c", False))
        client.hang_up()
    s.check_memory()


# --- retention --------------------------------------------------------------------------------------------------------


def test_retention_by_bytes_removes_whole_segments_and_never_the_last() -> None:
    """``stream.py`` (6)"""
    s = Sealing(arguments=ONE_CHUNK_EACH | {"x-max-length-bytes": 400})
    size = len(b"100 ") + 10
    for _ in range(30):
        s.publish(CHUNK, size=10)
        kept = s.stream.ready_bytes
        first = s.stream.first_offset()
        assert first % CHUNK == 0
        assert first == 0 or 400 <= kept < 400 + CHUNK * size
        assert len(s.files()) == len(s.table.segments) == (len(s.bodies) - first) // CHUNK
    s.put_policy(max_length_bytes=1)
    assert s.stream.first_offset() == 290
    s.check()
    s.restart(clean=False)
    assert s.stream.first_offset() == 290, "the last segment tells where the stream goes on"
    s.check()
    s.publish(CHUNK)
    assert s.bounds() == [[(300, 310)]]


def test_retention_by_age_removes_whole_segments_and_never_the_last() -> None:
    """``stream.py`` (6)"""
    s = Sealing(arguments=ONE_CHUNK_EACH | {"x-max-age": "10s"})
    for _ in range(20):
        s.publish(CHUNK)
        s.harness.pass_time(1)
        oldest = s.log.now_ms - s.times[s.stream.first_offset() + CHUNK - 1]
        assert s.stream.first_offset() % CHUNK == 0 and oldest <= 11_000
    assert s.stream.first_offset() >= 80
    s.harness.pass_time(3600)
    assert s.bounds() == [[(190, 200)]]
    s.check()
    s.restart(clean=False)
    s.harness.pass_time(3600)
    s.publish(CHUNK)
    s.harness.pass_time(3)
    assert s.bounds() == [[(200, 210)]]
    s.check()


@pytest.mark.parametrize("clean", [True, False])
def test_segments_of_a_clock_that_was_ahead_go_by_age_after_a_start_with_it_set_back(clean: bool) -> None:
    """``retention.py`` (2)"""
    s = Sealing(arguments=ONE_CHUNK_EACH | {"x-max-age": "10s"})
    s.publish(2 * CHUNK)
    s.restart(clean=clean, down_s=-3600)
    s.publish(2 * CHUNK)
    s.harness.pass_time(9)
    assert len(s.bounds()) == 4
    s.harness.pass_time(3)
    assert s.bounds() == [[(30, 40)]]
    s.check()


def test_what_retention_removes_while_its_chunk_is_written_does_not_come_back() -> None:
    """(5)"""
    s = Sealing(chunk=3 * PAGE, arguments=ONE_CHUNK_EACH)
    s.publish(3 * PAGE - 1, size=100)
    s.page_out()
    held = s.hold_seals()
    s.publish(1, size=100)
    for _ in range(10):
        s.publish(20)
        s.page_out()
    assert len(held) == 1
    s.put_policy(max_length_bytes=100)
    first = s.stream.first_offset()
    while held:
        s.release(held)
        assert s.stream.first_offset() >= first
        s.stream.check_invariants()
    s.check()


def test_a_retention_that_a_crash_undoes_leaves_everything_right() -> None:
    s = Sealing(arguments=ONE_CHUNK_EACH)
    s.publish(95)
    s.put_policy(max_length_bytes=60)
    first = s.stream.first_offset()
    assert first > 0
    for state in s.fs.crash_states(1, 12):
        catalogue = dict(s.harness._catalogue)
        again = Sealing.__new__(Sealing)
        again.chunk, again.seal_bytes, again.bodies, again.times = CHUNK, 0, s.bodies, s.times
        again._begin(DurableHarness(state, catalogue))
        assert again.stream.first_offset() <= first
        again.check()


# --- segments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [1, 1000, 5000, 1 << 20])
def test_a_segment_is_full_when_it_has_the_bytes_that_the_stream_wants(wanted: int) -> None:
    s = Sealing(arguments={"x-stream-max-segment-size-bytes": wanted})
    s.publish(400, size=50)
    body_bytes = [sum(len(body) for body in s.bodies[first:end]) for each in s.bounds() for first, end in each[-1:]]
    assert len(s.files()) == len(s.table.segments) == (1 if wanted == 1 << 20 else len(body_bytes))
    for segment in s.table.segments[:-1]:
        last = segment.chunks[-1]
        assert segment.body_bytes >= wanted or segment.file_bytes >= wanted
        assert segment.body_bytes - last.body_bytes < wanted and last.position < max(wanted, 65)
    s.check()


def test_a_stream_that_keeps_little_has_small_segments() -> None:
    s = Sealing(chunk=1000, arguments={"x-max-length-bytes": 4 * SEGMENT_MIN_BYTES})
    assert s.stream.messages.sealer.segment_bytes == SEGMENT_MIN_BYTES
    s.put_policy(max_length_bytes=100)
    assert s.stream.messages.sealer.segment_bytes == SEGMENT_MIN_BYTES
    s = Sealing(chunk=1000, arguments={"x-max-length-bytes": 400 << 20})
    assert s.stream.messages.sealer.segment_bytes == 64 << 20


# --- deletion ---------------------------------------------------------------------------------------------------------


def test_a_deleted_stream_leaves_no_file_and_no_memory() -> None:
    s = Sealing(arguments={"x-stream-max-segment-size-bytes": 300})
    s.publish(255)
    reader = s.consumer(prefetch=30)
    assert len(s.files()) > 3
    s.check_memory()
    reader.hang_up()
    assert s.files() == []
    assert [path for path in s.fs.open_paths() if path.startswith("streams/")] == []


@pytest.mark.parametrize("begins", [True, False], ids=["first-of-its-file", "behind-others"])
@pytest.mark.parametrize("written", [True, False])
def test_a_stream_that_is_deleted_while_a_chunk_is_written_leaves_nothing(begins: bool, written: bool) -> None:
    s = Sealing(arguments=ONE_CHUNK_EACH if begins else {})
    s.publish(2 * CHUNK)
    held = s.hold_seals()
    s.publish(2 * CHUNK)
    (job,) = held
    if written:
        job.carry_out(s.harness.store._store)
    s.delete()
    if not written:
        job.carry_out(s.harness.store._store)
    s.harness.store.loaded(job)
    s.harness.settle()
    assert s.files() == []
    assert s.log.resident_bytes == 0
    s.publisher.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    s.bodies.clear()
    s.publish(15)
    s.check()


def test_a_stream_that_is_deleted_while_it_is_read_back_and_read_leaves_nothing() -> None:
    s = Sealing(chunk=100, memory_bytes=0)
    s.publish(99)
    s.page_out()
    reader = s.consumer(prefetch=5)
    s.publish(60)
    s.harness.store.hold = True
    s.publisher.feed(b"".join(publish_frames("", "s", b"x") for _ in range(60)))
    other = s.consumer(40)
    s.publisher.send(1, m.QueueDelete(0, "s", if_unused=False, if_empty=False, no_wait=False))
    s.harness.store.hold = False
    s.harness.settle()
    assert (s.files(), s.log.resident_bytes) == ([], 0)
    for client in (reader, other):
        client.pick(m.BasicCancel)
        client.hang_up()


@pytest.mark.parametrize("is_deleted", [False, True])
def test_what_was_found_at_a_start_is_sealed_although_nothing_comes(is_deleted: bool) -> None:
    """(7)"""
    s = Sealing(chunk=1000)
    assert s.stream._recovered is None, "it was not found at a start"
    s.publish(2 * CHUNK)
    s.chunk = CHUNK
    s.restart(clean=True)
    stream = s.stream
    assert stream._recovered is not None
    assert s.bounds() == []
    if is_deleted:
        s.delete()
    s.pass_sealing_time()
    assert stream.messages.sealer.table.end == (0 if is_deleted else 2 * CHUNK)
    assert (stream._recovered is None) == is_deleted
