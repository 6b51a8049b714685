"""An outbox keeps the bytes to send, and frees memory while nothing is sent."""

from __future__ import annotations

from warren.amqp.outbox import CHUNK_MIN_BYTES, REUSE_MAX_BYTES, SPARE_MAX_BYTES, SPARE_WRITERS, Outbox, SpareWriters


def outbox(key: int = 1) -> Outbox:
    return Outbox(key, [])


def flush(of: Outbox) -> bytes:
    taken = b"".join(of.take())
    of.sent(len(taken))
    return taken


def test_an_outbox_that_rests_holds_no_buffer_and_writes_again() -> None:
    one = outbox()
    one.write(b"first")
    assert flush(one) == b"first"
    buffer = one.writer
    one.rest()
    assert one.writer is not buffer
    one.rest()
    one.write(b"second")
    assert flush(one) == b"second"


def test_outboxes_that_rest_have_nothing_in_common_when_they_are_written_to() -> None:
    one, other = outbox(1), outbox(2)
    for each in (one, other):
        each.rest()
    assert one.writer is other.writer
    one.touch()
    one.writer.write(b"1")
    other.write(b"2")
    other.write_chunk(b"3")
    assert (flush(one), flush(other)) == (b"1", b"23")
    assert one.waiting_bytes() == other.waiting_bytes() == 0


def test_what_waits_does_not_rest() -> None:
    one = outbox()
    one.write(b"waits")
    one.rest()
    assert flush(one) == b"waits"


def test_a_large_chunk_may_follow_a_rest() -> None:
    one = outbox()
    one.rest()
    one.touch()
    one.write_chunk(b"c" * 10_000)
    one.writer.write(b"tail")
    assert flush(one) == b"c" * 10_000 + b"tail"


MUCH = b"m" * (REUSE_MAX_BYTES + 1)


def test_the_next_outbox_with_much_to_send_takes_a_large_buffer() -> None:
    """(4)"""
    spare = SpareWriters()
    one, other = Outbox(1, [], spare=spare), Outbox(2, [], spare=spare)
    one.write(MUCH)
    large = one.writer
    assert flush(one) == MUCH
    other.write(MUCH)
    assert other.writer is not large, "it did not have much to send before"
    assert flush(other) == MUCH
    assert one.writer is other.writer is not large, "nobody holds a buffer"
    other.write(b"1")
    other.write(MUCH)
    one.write(b"2")
    assert other.writer is large and one.writer is not large
    assert flush(other) == b"1" + MUCH
    other.write(b"3")
    assert other.writer is large
    assert flush(other) == b"3"
    other.write(b"4")
    assert other.writer is not large, "one with little to send gives it back"
    assert (flush(one), flush(other)) == (b"2", b"4")


def test_spare_buffers_are_few_and_not_too_large() -> None:
    """(4)"""
    spare = SpareWriters()
    outboxes = [Outbox(key, [], spare=spare) for key in range(SPARE_WRITERS + 5)]
    for each in outboxes:
        each.write(MUCH)
        each.write_chunk(MUCH)
        each.write(MUCH)
    assert all(flush(each) == MUCH * 3 for each in outboxes)
    assert len(spare._writers) == SPARE_WRITERS
    huge = Outbox(1, [], 1 << 30, spare)
    huge.write(MUCH)
    flush(huge)
    huge.write(b"h" * (SPARE_MAX_BYTES + 1))
    flush(huge)
    assert len(spare._writers) == SPARE_WRITERS - 1


def test_all_that_is_sent_in_a_turn_goes_through_one_buffer_that_does_not_grow() -> None:
    """(4)"""
    one = Outbox(1, [], spare=SpareWriters())
    one.touch()
    first = one.writer
    for _ in range(4):
        one.writer.write(b"p" * (one.piece_bytes + CHUNK_MIN_BYTES))
        one.end_piece()
        assert one.writer is first and len(first) == 0
    one.write(b"rest")
    assert one.writable
    pieces = one.take()
    assert b"".join(pieces) == 4 * b"p" * (one.piece_bytes + CHUNK_MIN_BYTES) + b"rest"
    assert len(pieces) == 5


def test_deliveries_stop_at_a_limit_that_is_smaller_than_a_piece() -> None:
    """(3)"""
    one = Outbox(1, [], 100, SpareWriters())
    one.touch()
    one.writer.write(b"d" * 101)
    assert len(one.writer) > one.piece_bytes
    one.end_piece()
    assert not one.writable


def test_connections_that_come_and_go_leave_one_spare_buffer() -> None:
    """(4)"""
    spare = SpareWriters()
    for key in range(5):
        one = Outbox(key, [], spare=spare)
        one.write(MUCH)
        assert flush(one) == MUCH
    assert len(spare._writers) == 1


def test_much_and_little_to_send_in_turn_leave_one_spare_buffer() -> None:
    """(4)"""
    spare = SpareWriters()
    one = Outbox(1, [], spare=spare)
    for _ in range(5):
        for data in (MUCH, b"little", b"little"):
            one.write(data)
            assert flush(one) == data
    assert len(spare._writers) == 1


def test_there_are_as_many_spare_buffers_as_were_in_use_at_the_same_time() -> None:
    """(4)"""
    spare = SpareWriters()
    outboxes = [Outbox(key, [], spare=spare) for key in range(5)]
    for at_once in (2, 5, 3):
        for _ in range(3):
            for each in outboxes[:at_once]:
                each.write(MUCH)
            assert all(flush(each) == MUCH for each in outboxes[:at_once])
    assert len(spare._writers) == 5
