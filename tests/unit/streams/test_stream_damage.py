"""Streams of which a part is damaged, sealed or about to be: said once, counted right, and the rest is served.

In parentheses: the invariants in the header of the module that is named.
"""

from __future__ import annotations

import pytest
from engine_harness import publish_frames
from sealing_stream import ONE_CHUNK_EACH, Sealing, offset_of

from warren.amqp import methods as m
from warren.amqp.field_table import Table
from warren.msgstore.log.scrub import Scrubber
from warren.queues.damage import damaged_places, give_up_damage, has_damage
from warren.streams.sealed_reads import SealedReader
from warren.streams.stream import Stream


def test_a_damaged_chunk_is_reported_once_and_passed_over() -> None:
    """``stream_sealed_reads.py`` (3)"""
    s = Sealing()
    for _ in range(45):
        s.publish(1)
        s.harness.pass_time(1)
    s.restart(clean=False)
    s.damage(13)
    left = [*range(10), *range(20, 45)]
    for _ in range(3):
        assert s.read() == left
        assert s.read(15) == list(range(20, 45))
        assert [each.place for each in s.looked()] == left
        assert s.sought(s.times[15]) in range(10, 21)
    (damage,) = s.log.damage.reports
    assert (damage.vhost, damage.queue, damage.sequence_number) == ("/", "s", 10)
    assert (s.stream.ready_count, s.stream.first_offset()) == (45, 0), "it is still there, and cannot be read"
    s.check_memory()


@pytest.mark.parametrize("arguments", [{}, ONE_CHUNK_EACH], ids=["one-file", "file-each"])
@pytest.mark.parametrize("size", [1000, 0], ids=["large", "small"])
def test_a_chunk_that_nobody_can_read_and_the_log_still_has_is_sealed_again(arguments: Table, size: int) -> None:
    """``sealed_files.py`` (2), (7)"""
    s = Sealing(arguments=arguments)
    s.publish(20, size=size)
    s.harness.write()
    run = s.harness.store.run

    def run_but_seals() -> bool:
        return len(s.seal_without_telling()) > 0 or run()

    s.harness.store.run = run_but_seals  # type: ignore[method-assign]
    s.publish(12, size=size)
    s.harness.store.run = run  # type: ignore[method-assign]
    assert (s.table.end, s.live) == (20, 12)
    path = f"streams/{s.files()[-1]}"
    written = s.fs.contents()[path]
    s.fs.spoil(path, len(written) - 64, len(written))
    s.chunk = 4
    s.restart(clean=False)
    assert s.log.damage.reports == [], "nothing is missing"
    for _ in range(3):
        s.pass_sealing_time()
        assert s.table.end >= 28
        s.check()
        s.publish(5)
        s.restart(clean=False)
    assert written in [content[: len(written)] for content in s.fs.contents().values()]
    s.fs.heal(f"streams/{s.files()[0]}")
    s.restart(clean=False)
    s.check()


def scrub(s: Sealing, scrubber: Scrubber, passes: int = 1) -> list[int]:
    """Look at everything so often; return how much was begun with each step."""
    begun = []
    end = scrubber.passes + passes
    while scrubber.passes < end:
        begun.append(scrubber.step())
        s.harness.settle()
    return begun


def test_the_scrubber_reads_every_chunk_once_in_a_pass_and_reports_what_is_damaged_once() -> None:
    """``scrub.py`` (1), (2)"""
    s = Sealing(arguments=ONE_CHUNK_EACH)
    s.publish(45)
    s.publisher.declare("other", durable=True, arguments={"x-queue-type": "stream"})
    s.publisher.feed(b"".join(publish_frames("", "other", bytes(range(256))) for _ in range(21)))
    s.publisher.take()
    s.publisher.declare("nothing sealed", durable=True, arguments={"x-queue-type": "stream"})
    other = s.harness.queue("other")
    assert isinstance(other, Stream)
    other.messages.sealer.step(other)
    s.harness.settle()
    sizes = [
        int(chunk.stored_bytes)
        for table in (s.table, other.messages.sealer.table)
        for segment in table.segments
        for chunk in segment.chunks
    ]
    assert len(sizes) == 4 + 2 and len(set(sizes)) == 2
    scrubber = Scrubber(s.log)
    for _ in range(2):
        assert scrub(s, scrubber) == [*sizes, 0]
    assert (scrubber.read_bytes, s.log.damage.reports) == (2 * sum(sizes), [])
    s.restart(clean=True)
    scrubber = Scrubber(s.log)
    s.damage(13)
    s.damage(33)
    scrub(s, scrubber, passes=3)
    found = [(damage.queue, damage.sequence_number) for damage in s.log.damage.reports]
    assert found == [("s", 10), ("s", 30)]
    assert s.read() == [*range(10), *range(20, 30), *range(40, 45)]
    assert len(s.log.damage.reports) == 2, "a reader does not say it again"


def test_the_scrubber_passes_over_a_chunk_that_the_disk_does_not_give() -> None:
    """``scrub.py`` (4)"""
    s = Sealing(arguments=ONE_CHUNK_EACH)
    s.publish(45)
    scrubber = Scrubber(s.log)
    assert scrubber.step() > 0
    (job,) = s.log.read_jobs
    s.log.read_jobs.clear()
    job.is_left = True
    job.finished()
    assert [size > 0 for size in scrub(s, scrubber)] == [True, True, True, False]
    assert s.log.damage.reports == []


def test_the_scrubber_looks_at_so_many_streams_in_a_step_whether_it_finds_a_chunk_or_not() -> None:
    s = Sealing(arguments=ONE_CHUNK_EACH)
    s.publish(15)
    (size,) = {int(chunk.stored_bytes) for segment in s.table.segments for chunk in segment.chunks}
    for n in range(4):
        s.publisher.declare(f"nothing sealed {n}", durable=True, arguments={"x-queue-type": "stream"})
    s.publisher.declare("last", durable=True, arguments={"x-queue-type": "stream"})
    s.publisher.feed(b"".join(publish_frames("", "last", bytes(range(256))) for _ in range(11)))
    s.publisher.take()
    last = s.harness.queue("last")
    assert isinstance(last, Stream)
    last.messages.sealer.step(last)
    s.harness.settle()
    scrubber = Scrubber(s.log)
    scrubber.looked_at_max = 2
    begun = scrub(s, scrubber)
    assert begun[0] == size and begun[1:4] == [0, 0, begun[3]] and begun[3] > 0 and begun[-1] == 0
    assert scrub(s, scrubber) == begun


def test_the_scrubber_finds_what_comes_and_misses_nothing_that_goes() -> None:
    s = Sealing(arguments=ONE_CHUNK_EACH)
    scrubber = Scrubber(s.log)
    assert (scrubber.step(), scrubber.passes) == (0, 0), "there is nothing"
    s.publish(60)
    assert scrubber.step() > 0
    assert scrubber.step() == 0, "the first is not here"
    s.damage(1)
    s.damage(33)
    s.put_policy(max_length_bytes=30)  # while the first is read
    first = s.stream.first_offset()
    assert first > 33
    s.publish(10)
    begun = scrub(s, scrubber)
    assert len([size for size in begun if size]) == len(s.files())
    assert s.log.damage.reports == []
    assert scrubber.step() > 0
    s.delete()  # likewise
    s.harness.settle()
    scrub(s, scrubber)
    assert s.log.damage.reports == []
    assert s.log.sealed.served == {}
    s.log.check_invariants()


def test_a_chunk_that_retention_has_removed_is_no_damage() -> None:
    s = Sealing(arguments=ONE_CHUNK_EACH)
    s.publish(60)
    s.restart(clean=True)
    reader = s.consumer(prefetch=5)
    assert s.offsets(reader) == list(range(5))
    s.put_policy(max_length_bytes=100)
    first = s.stream.first_offset()
    found = []
    reader.send(1, m.BasicAck(0, True))
    while came := s.offsets(reader):
        found += came
        reader.send(1, m.BasicAck(0, True))
    assert found == [*range(5, 10), *range(first, 60)], "what was read already is delivered"
    assert s.log.damage.reports == []
    reader.hang_up()


def test_nothing_is_sealed_from_a_damaged_message_on_until_it_is_given_up() -> None:
    """sealer.py (6)"""
    s = Sealing(chunk=1000)
    s.publish(60, size=100)
    s.restart(clean=True)
    index = s.stream.messages.index
    assert index is not None
    lsn = int(index.lsn_of(33))
    segment = s.log.segments.find(lsn)
    s.fs.flip_bit(f"log/{int(segment.number):010d}", lsn - int(segment.base_lsn) + 40, 1)
    s.log.sealed.chunk_messages = 30
    s.pass_sealing_time()
    assert s.table.end == 30
    left = [offset for offset in range(60) if offset != 33]
    assert s.read() == left
    (damage,) = s.log.damage.reports
    assert damage.sequence_number == 33
    assert index.lsn_of(33) == lsn and s.stream.ready_count == 60
    s.restart(clean=True)
    s.log.sealed.chunk_messages = 30
    assert s.read() == left
    (place,) = damaged_places(s.log, 10)
    assert (place.queue, place.what, place.first, place.end, place.messages) == ("s", "messages", 33, 34, 1)
    assert give_up_damage(s.log, "/", "s") == 1
    s.log.sealed.chunk_messages = 29
    s.harness.settle()
    s.pass_sealing_time()
    s.harness.settle()
    assert damaged_places(s.log, 10) == [] and not has_damage(s.log)
    assert s.table.end == 60
    assert s.read() == left
    assert (s.table.count, s.stream.ready_count) == (59, 59)
    assert s.stream.ready_bytes == sum(len(s.bodies[offset]) for offset in left)
    s.stream.check_invariants()
    s.put_policy(max_length_bytes=1)
    s.check_memory()


def test_counts_are_right_when_an_index_page_is_damaged_that_is_half_sealed() -> None:
    s = Sealing(chunk=1000)
    s.publish(100, size=20)
    s.restart(clean=True)
    s.page_out()
    messages, index = s.stream.messages, s.stream.messages.index
    assert index is not None
    s.seal_once(20)
    page = index.page(1)
    assert page is not None and not page.resident, "the chunk ends within the second page, which is not in memory"
    assert (s.table.end, messages.middle.count, s.live) == (20, 80, 84)
    lsn = int(page.lsn)
    segment = s.log.segments.find(lsn)
    s.fs.flip_bit(f"log/{int(segment.number):010d}", lsn - int(segment.base_lsn) + 40, 1)
    left = [*range(20), *range(32, 100)]
    assert s.read() == left
    assert (s.stream.ready_count, messages.middle.count) == (88, 68)
    assert abs(int(s.stream.ready_bytes) - sum(len(s.bodies[offset]) for offset in left)) < 5
    s.log.sealed.chunk_messages = 20
    s.seal()
    assert s.read() == left
    assert s.table.count + messages.middle.count == 88


def test_a_group_whose_requeued_message_is_gone_gets_what_comes_behind_it_as_it_is() -> None:
    """``stream_group_serving.py`` (3): the message to send again is damaged when it is sealed."""
    s = Sealing(chunk=1000)
    s.publish(60, size=100)
    s.restart(clean=True)
    reader = s.consumer(prefetch=60, group="g")
    tags = {offset_of(each): each.method.delivery_tag for each in reader.deliveries()}
    assert list(tags) == list(range(60))
    index = s.stream.messages.index
    assert index is not None
    lsn = int(index.lsn_of(33))
    segment = s.log.segments.find(lsn)
    s.fs.flip_bit(f"log/{int(segment.number):010d}", lsn - int(segment.base_lsn) + 40, 1)
    s.stream.pause(paused=True)
    for offset in (33, 50):
        reader.send(1, m.BasicReject(tags[offset], True))
    s.log.sealed.chunk_messages = 59
    s.pass_sealing_time()
    assert (s.table.end, give_up_damage(s.log, "/", "s")) == (0, 1)
    s.harness.settle()
    assert s.table.end == 60
    s.stream.pause(paused=False)
    s.harness.settle()
    assert s.offsets(reader) == [50]
    reader.hang_up()


def test_a_chunk_that_was_replaced_while_its_read_waited_is_not_damaged() -> None:
    """``message_store.py`` (10): the read finds that the file is gone."""
    s = Sealing()
    s.publish(45)
    s.restart(clean=False)
    table = s.table
    segment, place = table.place(0)
    reader = SealedReader(s.log)
    reader.load(s.stream, segment, place)
    (job,) = s.log.read_jobs
    s.log.read_jobs.clear()
    assert table.has(place)
    table.drop_oldest()
    assert not table.has(place)
    job.finished()
    assert s.log.damage.reports == [] and not reader.is_bad(place) and not reader.is_reading()
