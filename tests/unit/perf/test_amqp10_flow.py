"""AMQP 1.0 for the load tool: ids that continue, credit that is kept to, answers in any order, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from warren.amqp10.performatives import CLOSE, DISPOSITION, ERROR, FLOW, TRANSFER, described, frame
from warren.amqp10.values import Described, Symbol, UInt, ULong, encode
from warren.perf.amqp10_flow import Amqp10, Amqp10Connection, Amqp10Consumer, Amqp10Publisher, performative
from warren.perf.client import Address, BrokerError
from warren.perf.flow import Batch
from warren.perf.meter import Histogram
from warren.perf.workload import Workload

from .ends import Ends

BODY = bytes(range(20))
ACCEPTED = Described(ULong(0x24), [])
RELEASED = Described(ULong(0x26), [])


class _Ends(Ends, Amqp10Connection):
    """One to a broker that counts from somewhere else than 0."""

    first_transfer = 0xFFFFFFFC


@pytest.fixture
def ends() -> Iterator[_Ends]:
    made = _Ends()
    yield made
    made.end()


def cut(data: bytes) -> list[tuple[int, list[Any]]]:
    """Return codes and fields of whole frames."""
    found = []
    while data:
        length = int.from_bytes(data[:4], "big")
        found.append(performative(data, 0, length))
        data = data[length:]
    return found


def transfer(number: int, body: bytes = BODY) -> bytes:
    head = frame(0, TRANSFER, [UInt(0), UInt(number), number.to_bytes(4, "big"), UInt(0), False])
    data = encode(Described(ULong(0x75), body))
    return (len(head) + len(data)).to_bytes(4, "big") + head[4:] + data


def flow(credit: int, *, count: int = 0, window: int = 1000) -> bytes:
    return frame(0, FLOW, [UInt(0), UInt(window), UInt(0), UInt(1), UInt(0), UInt(count), UInt(credit)])


def publisher(ends: _Ends, *, window: int = 0, credit: int = 100) -> Amqp10Publisher:
    ends.leftover += flow(credit)
    work = Workload(confirms=window)
    batch = Batch(Amqp10().messages(work, 0, BODY, 300), stamp_at=-1)
    return Amqp10Publisher(ends, batch, window=window, confirm_latency=Histogram())


def consumer(ends: _Ends, *, ack_batch: int = 0, credit: int = 1 << 20) -> Amqp10Consumer:
    return Amqp10Consumer(
        ends,
        ack_batch=ack_batch,
        credit=credit,
        counted_from=0xFFFFFFFE,
        body_bytes=len(BODY),
        stamped=True,
        latency=Histogram(),
    )


def test_ids_and_tags_continue_over_the_ends_of_batches(ends: _Ends) -> None:
    sender = publisher(ends, credit=1000)
    dice = random.Random(5)
    data = b""
    while sender.published < 1000:
        sender.publish(min(dice.choice((1, 2, 70, 300)), sender.allowance()), 0)
        data += ends.broker.recv(1 << 20)
    ids = [(fields[1], fields[2]) for _, fields in cut(data)]
    assert ids == [(number, number.to_bytes(4, "big")) for number in range(1000)]


def test_no_more_is_sent_than_credit_and_window_allow(ends: _Ends) -> None:
    sender = publisher(ends, credit=10)
    assert sender.allowance() == 10
    sender.publish(10, 0)
    assert sender.allowance() == 0
    ends.broker.send(flow(5, count=10, window=12))
    sender.read_confirms(0)
    assert sender.allowance() == 2  # of the window
    ends.broker.send(flow(5, count=10, window=1000))
    sender.read_confirms(0)
    assert sender.allowance() == 5


def disposition(first: int, last: int | None, state: object = ACCEPTED) -> bytes:
    return frame(0, DISPOSITION, [True, UInt(first), None if last is None else UInt(last), True, state])


def test_answers_are_counted_in_any_order(ends: _Ends) -> None:
    sender = publisher(ends, window=20)
    sender.publish(20, 0)
    answers = disposition(0, 4) + disposition(7, None) + disposition(9, 12, RELEASED) + disposition(5, 6)
    for at in range(0, len(answers), 7):
        ends.broker.send(answers[at : at + 7])
        sender.read_confirms(0)
    assert (sender.confirmed, sender.nacked) == (12, 4)
    ends.broker.send(disposition(8, None) + disposition(13, 19))
    sender.read_confirms(0)
    assert (sender.confirmed, sender.nacked) == (20, 4)
    ends.broker.send(disposition(3, None))
    with pytest.raises(BrokerError, match="confirmed publish 4 twice"):
        sender.read_confirms(0)


def test_why_a_broker_ends_is_told(ends: _Ends) -> None:
    sender = publisher(ends)
    ends.broker.send(frame(0, CLOSE, [described(ERROR, [Symbol("amqp:not-allowed"), "because"])]))
    with pytest.raises(BrokerError, match="amqp:not-allowed: because"):
        sender.read_confirms(0)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("ack_batch", [0, 1, 7])
def test_transfers_are_counted_and_answered_however_they_are_cut(ends: _Ends, seed: int, ack_batch: int) -> None:
    dice = random.Random(seed)
    taker = consumer(ends, ack_batch=ack_batch)
    first = dice.choice((0, 200, 65_000))
    data = b"".join(transfer(first + number) + dice.choice((b"", b"\0\0\0\x08\x02\0\0\0")) for number in range(1200))
    answers = b""
    while data:
        size = dice.choice((1, 30, 1000, 20_000))
        ends.broker.send(data[:size])
        data = data[size:]
        taker.receive(0)
        try:
            answers += ends.broker.recv(1 << 20)
        except BlockingIOError:
            pass
    taker.acknowledge_rest()
    try:
        answers += ends.broker.recv(1 << 20)
    except BlockingIOError:
        assert ack_batch != 7
    assert taker.received == 1200
    ranges = [(fields[1], fields[2]) for code, fields in cut(answers) if code == DISPOSITION]
    assert [number for low, high in ranges for number in range(low, high + 1)] == (
        [first + number for number in range(1200)] if ack_batch else []
    )


def test_credit_is_given_again_when_half_of_it_is_used(ends: _Ends) -> None:
    taker = consumer(ends, credit=10)
    ends.broker.send(b"".join(transfer(number) for number in range(4)))
    taker.receive(0)
    with pytest.raises(BlockingIOError):
        ends.broker.recv(100)
    ends.broker.send(transfer(4))
    taker.receive(0)
    ((code, fields),) = cut(ends.broker.recv(100))
    assert (code, fields[0], fields[5:7]) == (FLOW, 1, [3, 10])


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (transfer(0, BODY + b"x"), "another size"),
        (transfer(0) + transfer(1, BODY[:-1]), "another size"),
        (frame(0, CLOSE, [described(ERROR, [Symbol("amqp:internal-error"), "oh"])]), "amqp:internal-error: oh"),
        (b"\xff\xff\xff\xff\x02\0\0\0", "no AMQP 1.0"),
        (b"\0\0\0\x07\x02\0\0\0", "no AMQP 1.0"),
    ],
)
def test_what_is_no_message_of_the_load_is_named(ends: _Ends, data: bytes, word: str) -> None:
    taker = consumer(ends)
    ends.broker.send(data)
    with pytest.raises(BrokerError, match=word):
        taker.receive(0)


def test_a_message_has_to_fit_into_a_frame(ends: _Ends) -> None:
    connection = Amqp10Connection.__new__(Amqp10Connection)
    connection.address = Address()
    batch = Batch(Amqp10().messages(Workload(), 0, bytes(600), 1), stamp_at=-1)
    with pytest.raises(BrokerError, match="takes frames of 512 bytes"):
        Amqp10().publisher(connection, batch, Workload(), 0, Histogram())
