"""`Backlog` without a disk against a list, `Outbox` against a byte string."""

from __future__ import annotations

from collections import deque

from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_store import memory_log

from warren.amqp.outbox import CHUNK_MIN_BYTES, Outbox, SpareWriters
from warren.msgstore.log.message import Envelope, Message, build_message
from warren.queues.backlog import Backlog

ENVELOPE = Envelope("", "q")


def message(number: int) -> Message:
    return build_message(ENVELOPE, b"\x00\x00", b"%d" % number, 0, False)


FIFO_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([1, 2, 30, 1500])),
        st.tuples(st.just("pop"), st.sampled_from([1, 2, 25, 1400])),
        st.tuples(st.just("clear"), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=examples(80), deadline=None)
@given(FIFO_STEPS)
def test_a_backlog_in_memory_is_a_list_that_numbers_its_messages(steps: list[tuple[str, int]]) -> None:
    log = memory_log()
    backlog = Backlog(log, lambda lost, lost_bytes: None)
    plain: deque[tuple[int, Message]] = deque()
    some = [message(number) for number in range(7)]
    given_in = 0
    for name, count in steps:
        if name == "append":
            for _ in range(count):
                assert backlog.append(some[given_in % 7]) == given_in
                plain.append((given_in, some[given_in % 7]))
                given_in += 1
        elif name == "pop":
            for _ in range(min(count, len(plain))):
                assert backlog.ready_or_fetch()
                popped = backlog.pop()
                assert (int(backlog.popped_number), popped) == plain.popleft()
        else:
            plain.clear()
            backlog.clear()
            while not log.reclamation.is_empty():
                assert log.resident_bytes > 0, "what is still to be taken apart counts"
                log.reclamation.take_apart(1)
        assert backlog.residents() == list(plain)
        assert backlog.ready_or_fetch() == bool(plain)
        assert backlog.delivered_below() == (plain[0][0] if plain else given_in)
        assert (log.resident_bytes == 0) == (not plain)
    assert len(backlog.head.items) <= 2 * len(plain) + 1025, "what was taken is let go"


OUTBOX_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 300)),
        st.tuples(st.just("writer"), st.integers(1, 4000) | st.integers(50_000, 60_000)),
        st.tuples(st.just("chunk"), st.integers(CHUNK_MIN_BYTES, CHUNK_MIN_BYTES + 50)),
        st.tuples(st.just("take"), st.just(0)),
        st.tuples(st.just("sent"), st.integers(1, 20_000)),
    ),
    max_size=40,
)


@settings(max_examples=examples(150), deadline=None)
@given(OUTBOX_STEPS, st.sampled_from([100, 5000, 1 << 20]), st.booleans())
def test_an_outbox_sends_what_was_written_in_order(steps: list[tuple[str, int]], limit: int, spares: bool) -> None:
    dirty: list[Outbox] = []
    outbox = Outbox(1, dirty, limit, SpareWriters() if spares else None)
    written = bytearray()
    taken = bytearray()
    in_flight = 0
    stopped = False
    for at, (name, size) in enumerate(steps):
        data = bytes([at % 256]) * size
        is_checked = name == "chunk"
        if name == "write":
            outbox.write(data)
            written += data
        elif name == "writer":
            outbox.touch()
            outbox.writer.write(data)
            is_checked = len(outbox.writer) > outbox.piece_bytes
            if is_checked:
                outbox.end_piece()
                assert len(outbox.writer) == 0
            written += data
        elif name == "chunk":
            outbox.touch()
            outbox.write_chunk(data)
            written += data
        elif name == "take":
            assert dirty == ([outbox] if len(written) > len(taken) else [])
            dirty.clear()
            new = b"".join(outbox.take())
            taken += new
            in_flight += len(new)
        elif in_flight:
            size = min(size, in_flight)
            in_flight -= size
            drained = len(written) == len(taken) and in_flight == 0
            assert outbox.sent(size) == (stopped and drained)
        waiting = len(written) - len(taken) + in_flight
        assert outbox.waiting_bytes() == waiting
        if is_checked and waiting > limit:
            stopped = True
        elif waiting == 0:
            stopped = False
        assert outbox.writable == (not stopped)
    taken += b"".join(outbox.take())
    assert taken == written
