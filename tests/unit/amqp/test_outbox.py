"""An outbox keeps the bytes to send, and frees memory while nothing is sent."""

from __future__ import annotations

from warren.amqp.outbox import Outbox


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
