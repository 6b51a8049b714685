"""Readers of a stream sealed in small chunks see no difference: consumers, filters, times, and browsing.

In parentheses: the invariants in the header of ``streams/sealed_reads.py``, unless another module is named.
"""

from __future__ import annotations

import pytest
from engine import START_MS
from sealing_stream import CHUNK, ONE_CHUNK_EACH, Sealing

from warren.amqp import methods as m
from warren.amqp.field_table import Timestamp, encode_table
from warren.queues.browse import Cursor, Seen, look
from warren.streams.consumer import AT_TIME, OFFSET, Start, at_time, start_of
from warren.streams.offset_search import find


def test_a_filter_passes_over_chunks_that_cannot_have_what_it_wants() -> None:
    s = Sealing()
    for value in ("a", "b", "a", None, "c"):
        s.publish_filtered(*[value] * CHUNK)
    s.publish_filtered("b", None, "c")
    s.restart(clean=False)
    expected = {"a": [0, 2], "b": [1], "c": [4], "d": []}
    for value, chunks in expected.items():
        s.jobs.clear()
        tail = {"b": [50], "c": [52]}.get(value, [])
        assert s.read(stream_filter=value) == [at for n in chunks for at in range(10 * n, 10 * n + 10)] + tail
        assert s.jobs["_Load"] == len(chunks), value
    s.jobs.clear()
    assert s.read(stream_filter=["b", "c"]) == [*range(10, 20), *range(40, 50), 50, 52]
    assert s.jobs["_Load"] == 2
    s.jobs.clear()
    assert s.read(stream_filter="d", stream_match_unfiltered=True) == [*range(30, 40), 51]
    assert s.jobs["_Load"] == 1
    s.jobs.clear()
    assert s.read() == list(range(53))
    assert s.jobs["_Load"] == 5


def test_looking_for_many_values_in_many_chunks_counts_against_the_turn() -> None:
    s = Sealing()
    s.publish_filtered(*["a"] * CHUNK * 40)
    assert s.table.end == CHUNK * 40
    s.log.memory_bytes = 0  # sealed messages leave memory
    s.publish_filtered("a")
    stream = s.stream
    stream.paused = True
    client = s.consumer(stream_filter=["b", *(f"c{number}" for number in range(4000))])
    (consumer,) = stream.consumers
    stream.paused = False
    stream.drain()
    assert 0 < stream.offset_of(consumer) < CHUNK * 20
    s.harness.settle()
    assert stream.offset_of(consumer) == CHUNK * 40 + 1
    assert s.offsets(client) == []


def test_a_chunk_with_empty_values_has_messages_without_a_value() -> None:
    s = Sealing()
    for value in ("a", "", "b"):
        s.publish_filtered(*[value] * CHUNK)
    s.restart(clean=True)
    assert s.read(stream_filter="b", stream_match_unfiltered=True) == [*range(10, 30)]
    assert s.read(stream_filter="b") == [*range(20, 30)]


def test_a_filter_finds_the_one_message_in_a_chunk_of_others() -> None:
    s = Sealing()
    s.publish_filtered(*["a"] * 4, "b", *["a"] * 5, *["c"] * 10)
    assert s.read(stream_filter="b") == [4]
    s.restart(clean=True)
    assert s.read(stream_filter="b") == [4]
    assert s.read(7, stream_filter="b") == []


def test_a_chunk_is_read_once_for_all_who_wait_for_it() -> None:
    """``stream_sealed_reads.py`` (2)"""
    s = Sealing()
    s.publish(30)
    s.restart(clean=True)
    s.harness.store.hold = True
    clients = [s.consumer(at) for at in (0, 0, 3, 9, 9)]
    s.harness.store.hold = False
    s.harness.settle()
    for client, first in zip(clients, (0, 0, 3, 9, 9), strict=True):
        assert s.offsets(client) == list(range(first, 30))
    assert s.jobs["_Load"] == 3
    s.jobs.clear()
    late = s.consumer(5)
    assert s.offsets(late) == list(range(5, 30))
    assert s.jobs["_Load"] <= 3


def test_readers_at_more_places_than_are_kept_in_memory_all_get_everything() -> None:
    """``stream_sealed_reads.py`` (1)"""
    for memory_bytes in (0, 64 << 20):
        s = Sealing()
        s.publish(120, size=100)
        s.restart(clean=True, memory_bytes=memory_bytes)
        places = [0, 15, 37, 49, 52, 68, 70, 91, 103, 118]
        s.harness.store.hold = True
        clients = [s.consumer(at, prefetch=3) for at in places]
        s.harness.store.hold = False
        s.harness.settle()
        found: list[list[int]] = [[] for _ in places]
        while any(found[at][-1:] != [119] for at in range(len(places))):
            for at, client in enumerate(clients):
                came = s.offsets(client)
                assert came or found[at][-1:] == [119]
                found[at] += came
                client.send(1, m.BasicAck(0, True))
        assert found == [list(range(at, 120)) for at in places]
        for client in clients:
            client.hang_up()
        assert s.log.resident_bytes == 0


def test_a_reader_goes_from_what_is_sealed_into_the_log_and_into_memory() -> None:
    s = Sealing(chunk=50)
    s.publish(110)
    s.restart(clean=False)
    s.publish(7)
    assert s.table.end == 100
    assert (s.live, s.stream.messages.tail_from()) == (17, 110)
    for at in (0, 49, 50, 99, 100, 105, 109, 110, 113, 117):
        assert s.read(at) == list(range(at, 117))
    reader = s.consumer(98, prefetch=1)
    found = []
    while came := s.offsets(reader):
        found += came
        reader.send(1, m.BasicAck(0, True))
        if len(found) == 5:
            s.publish(40)
    assert found == list(range(98, 157))


@pytest.mark.parametrize("where", ["sealed", "log", "tail", "everywhere"])
def test_a_time_is_found_wherever_it_is(where: str) -> None:
    s = Sealing(chunk={"sealed": 10, "log": 1000, "tail": 1000, "everywhere": 40}[where])
    for _ in range(100):
        s.publish(1)
        s.harness.pass_time(1)
    if where in ("log", "everywhere"):
        s.restart(clean=True)
        s.publish(5)
    for time_ms in range(START_MS - 500, START_MS + 100_600, 3_500):
        expected = next((at for at, published in enumerate(s.times) if published >= time_ms), len(s.times))
        assert s.sought(time_ms) == expected
    assert s.sought(s.times[-1]) == s.times.index(s.times[-1])


FAR_S = [2**43, 9_223_372_036_855, 10**13, 2**48, 2**53, 2**62, 2**63, 2**64 - 1]


@pytest.mark.parametrize("time_s", FAR_S)
def test_a_time_after_all_messages_is_the_end_however_far_it_is(time_s: int) -> None:
    """Compiled, what does not fit into 64 bits would be another time: in microseconds, as chunks have it, too."""
    s = Sealing()
    s.publish(2 * CHUNK + 3)
    s.restart(clean=True)
    encoded = encode_table({OFFSET: Timestamp(time_s)})
    for start in (start_of("s", "/", encoded, START_MS), at_time(time_s), at_time(time_s * 1000)):
        assert 0 <= start.value * 1000 < 2**63
        told: list[int] = []
        find(s.stream, start, told.append)
        s.harness.settle()
        assert told == [2 * CHUNK + 3]
    assert at_time(-time_s).value == 0


@pytest.mark.parametrize("age", ["99Y", "999Y", "1h"])
def test_an_age_before_all_messages_is_the_beginning(age: str) -> None:
    start = start_of("s", "/", encode_table({OFFSET: age}), START_MS)
    assert 0 <= start.value <= START_MS


def test_a_time_is_found_although_what_was_searched_is_sealed_meanwhile() -> None:
    s = Sealing(chunk=1000)
    for _ in range(95):
        s.publish(1)
        s.harness.pass_time(1)
    s.chunk = CHUNK
    s.restart(clean=True)
    told: list[int] = []
    s.harness.store.hold = True
    for second in (0, 13, 50, 89, 92):
        find(s.stream, Start(AT_TIME, START_MS + second * 1000), told.append)
    s.stream.messages.sealer.step(s.stream)
    s.harness.store.hold = False
    s.harness.settle()
    s.pass_sealing_time()
    assert s.table.end == 90
    assert sorted(told) == [0, 13, 50, 89, 92]


@pytest.mark.parametrize("most", [1, 4, 100])
def test_looking_passes_over_what_is_to_be_skipped_wherever_it_is(most: int) -> None:
    s = Sealing(chunk=40)
    s.publish(115)
    s.restart(clean=False)
    s.publish(4)
    assert (s.table.end, s.live, s.stream.messages.tail_from()) == (80, 39, 115)
    for skip in (0, 1, 39, 40, 41, 79, 80, 81, 100, 114, 115, 116, 118, 119, 200):
        s.jobs.clear()
        seen = s.looked(skip=skip, most=most)
        assert [each.place for each in seen] == list(range(skip, 119))
        assert not any(each.redelivered for each in seen)
        if most == 100:
            assert s.jobs["SealedLook"] == max(0, 2 - skip // 40), "chunks that are skipped are not read"


def test_looking_at_a_stream_of_which_retention_removes_the_beginning_goes_on() -> None:
    s = Sealing(arguments=ONE_CHUNK_EACH)
    s.publish(60)
    cursor = Cursor()
    told: list[list[Seen]] = []
    look(s.stream, cursor, 4, told.append)
    s.harness.settle()
    s.put_policy(max_length_bytes=100)
    first = s.stream.first_offset()
    assert first > 10
    while not cursor.ended:
        look(s.stream, cursor, 4, told.append)
        s.harness.settle()
    assert [each.place for piece in told for each in piece] == [*range(4), *range(first, 60)]
