"""flow.py: deliveries counted by arithmetic (1, 2), confirms, batches (4), numbers (5)."""

from __future__ import annotations

from struct import pack, unpack_from

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.amqp import methods
from warren.amqp.codec import frame, method_frame
from warren.amqp_client import frames
from warren.amqp_client.client_errors import BrokerError, PeerClosed
from warren.perf.flow import Batch, ConfirmTracker, DeliveryStream, NumberedBatch, number_of, running_octets
from warren.perf.meter import Histogram


def delivery(tag: int, body: bytes, *, consumer_tag: str = "c", piece_bytes: int = 100_000) -> bytes:
    parts = [
        method_frame(1, methods.BasicDeliver(consumer_tag, tag, redelivered=False, exchange="x", routing_key="key"))
    ]
    parts.append(frame(methods.FRAME_HEADER, 1, pack(">HHQH", 60, 0, len(body), 0)))
    parts += [frames.body_frame(1, body[at : at + piece_bytes]) for at in range(0, len(body), piece_bytes)]
    return b"".join(parts)


def stream(*, body_bytes: int = 16, stamped: bool = False, first_number: int | None = None) -> DeliveryStream:
    return DeliveryStream(
        "broker", body_bytes=body_bytes, stamped=stamped, latency=Histogram(), first_number=first_number
    )


def feed(target: DeliveryStream, data: bytes, now_ns: int = 0) -> int:
    target.buffer[target.filled : target.filled + len(data)] = data
    return target.take(len(data), now_ns)


@given(st.integers(0, 40), st.integers(0, 700), st.sampled_from([7, 100_000]), st.data())
def test_deliveries_are_counted_whatever_the_splits(size: int, count: int, piece: int, data: st.DataObject) -> None:
    octets = b"".join(delivery(tag, bytes(size), piece_bytes=piece) for tag in range(1, count + 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(octets)), max_size=8)))
    target = stream()
    counted = sum(
        feed(target, octets[start:stop]) for start, stop in zip([0, *cuts], [*cuts, len(octets)], strict=True)
    )
    assert counted == target.received == count
    assert target.filled == 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_deliveries_of_changing_length_are_counted_too(sizes: list[int]) -> None:
    target = stream()
    octets = b"".join(delivery(tag, bytes(10 * size)) for tag, size in enumerate(sizes, start=1))
    assert feed(target, octets) == len(sizes)


@pytest.mark.parametrize("wrong_tag", [2, 4, 300])
def test_a_delivery_tag_out_of_sequence_is_an_error(wrong_tag: int) -> None:
    target = stream()
    tags = [1, 2, wrong_tag, 4, 5, 6]
    with pytest.raises(BrokerError, match=f"delivery {wrong_tag} where 3 was due"):
        feed(target, b"".join(delivery(tag, bytes(16)) for tag in tags))


def test_every_octet_that_is_checked_is_checked() -> None:
    """Change one octet of the middle delivery: an end octet or the tag's lowest octet must be noticed."""
    one = delivery(3, bytes(16))
    ends = [found.end - 1 for found in frames.frames(one, 0, len(one))]
    octets = b"".join(delivery(tag, bytes(16)) for tag in range(1, 6))
    for offset in [*ends, 20]:
        broken = bytearray(octets)
        broken[2 * len(one) + offset] ^= 0x40
        target = stream()
        with pytest.raises(BrokerError):
            feed(target, bytes(broken))


def test_a_close_among_deliveries_raises_with_code_and_text() -> None:
    close = methods.ChannelClose(404, "NOT_FOUND - no queue 'q'", 0, 0)
    octets = delivery(1, bytes(16)) + method_frame(1, close)
    with pytest.raises(PeerClosed, match="closed the channel: 404 NOT_FOUND - no queue 'q'"):
        feed(stream(), octets)


def test_a_cancelled_consumer_is_an_error() -> None:
    cancel = method_frame(1, methods.BasicCancel("c", no_wait=True))
    with pytest.raises(BrokerError, match="cancelled"):
        feed(stream(), cancel)


def test_latency_is_now_minus_the_stamp_with_the_weight_of_the_messages_it_stands_for() -> None:
    latency = Histogram()
    target = DeliveryStream("broker", body_bytes=16, stamped=True, latency=latency)
    octets = b"".join(delivery(tag, pack(">QQ", 1000, 0)) for tag in range(1, 101))
    feed(target, octets, now_ns=51_000)
    assert latency.maximum_ns == 50_000
    assert 100 <= latency.samples <= 110


def test_a_stamp_survives_the_wrap_of_its_40_bits() -> None:
    latency = Histogram()
    target = DeliveryStream("broker", body_bytes=8, stamped=True, latency=latency)
    feed(target, delivery(1, pack(">Q", 2**40 - 10)), now_ns=3 * 2**40 + 20)
    assert latency.maximum_ns == 30


def test_stamping_changes_only_the_stamps_of_the_messages_named() -> None:
    message = b"head" + bytes(8) + b"tail"
    batch = Batch([message] * 4, stamp_at=4)
    batch.mark(1, 3, now_ns=0x0102030405, published=0)
    stamps = [unpack_from(">Q", batch.data, 16 * index + 4)[0] for index in range(4)]
    assert stamps == [0, 0x0102030405, 0x0102030405, 0]
    assert all(batch.data[16 * index : 16 * index + 4] == b"head" for index in range(4))
    batch.mark(2, 3, now_ns=2**40 + 7, published=0)
    assert unpack_from(">Q", batch.data, 16 * 2 + 4)[0] == 7


def numbered(count: int, *, queue: int = 0, first: int = 0) -> list[bytes]:
    """Deliveries that carry places ``first`` and on of a queue, tagged from 1."""
    return [delivery(tag, pack(">QQ", number_of(queue, first + tag - 1), 0)) for tag in range(1, count + 1)]


@given(st.integers(0, 3), st.integers(0, 2**33), st.integers(1, 700), st.data())
def test_numbered_deliveries_are_counted_whatever_the_splits(
    queue: int, first: int, count: int, data: st.DataObject
) -> None:
    octets = b"".join(numbered(count, queue=queue, first=first))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(octets)), max_size=5)))
    target = stream(first_number=number_of(queue, first))
    for start, stop in zip([0, *cuts], [*cuts, len(octets)], strict=True):
        feed(target, octets[start:stop])
    assert target.received == count


@pytest.mark.parametrize("wrong", [0, 1, 30, 98, 99])
@pytest.mark.parametrize("change", [-1, 1, 256, -256, 1 << 16])
def test_a_number_out_of_sequence_is_an_error(wrong: int, change: int) -> None:
    """In the middle of a buffer the two low octets are looked at, at its ends all of them."""
    deliveries = numbered(100, queue=2, first=1000)
    body = pack(">QQ", number_of(2, 1000 + wrong + change), 0)
    deliveries[wrong] = delivery(wrong + 1, body)
    target = stream(first_number=number_of(2, 1000))
    if abs(change) == 1 << 16 and 1 < wrong < 99:
        assert feed(target, b"".join(deliveries)) == 100
        return
    told = f"delivered message {1000 + wrong + change} of queue 2 where message {1000 + wrong} of queue 2 was due"
    with pytest.raises(BrokerError, match=told):
        feed(target, b"".join(deliveries))


def test_a_message_of_another_queue_and_one_without_a_number_are_errors() -> None:
    with pytest.raises(BrokerError, match="message 0 of queue 1 where message 0 of queue 0 was due"):
        feed(stream(first_number=0), numbered(1, queue=1)[0])
    with pytest.raises(BrokerError, match="without a number where message 0 of queue 0 was due"):
        feed(stream(first_number=0), delivery(1, b"short"))


@given(st.integers(0, 2**40), st.integers(0, 600), st.sampled_from([1, 3, 256, 1000, 3 << 16]))
def test_running_octets_are_the_low_octets_of_the_numbers_divided(first: int, count: int, run: int) -> None:
    assert running_octets(first, count, run) == bytes(number // run & 255 for number in range(first, first + count))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**34), st.data())
def test_a_numbered_batch_gives_each_message_its_queue_and_its_place_there(
    queues: int, rounds: int, earlier_rounds: int, data: st.DataObject
) -> None:
    message = b"head" + bytes(8) + b"tail"
    batch = NumberedBatch([message] * (queues * rounds), body_at=4, queues=queues)
    first = data.draw(st.integers(0, batch.count - 1))
    stop = data.draw(st.integers(first, batch.count))
    published = earlier_rounds * batch.count + first
    batch.mark(first, stop, now_ns=0, published=published)
    for index in range(batch.count):
        octets = bytes(batch.data[16 * index : 16 * index + 16])
        place = (published + index - first) // queues if first <= index < stop else 0
        assert octets == b"head" + pack(">Q", number_of(index % queues, place)) + b"tail"


def test_a_numbered_batch_is_whole_rounds_of_the_queues() -> None:
    with pytest.raises(ValueError, match="no whole rounds of 3 queues"):
        NumberedBatch([bytes(16)] * 4, body_at=4, queues=3)


def test_messages_of_different_length_make_no_batch() -> None:
    with pytest.raises(ValueError, match="one length"):
        Batch([b"a", b"bb"], stamp_at=-1)


@given(st.permutations(range(1, 30)), st.randoms(use_true_random=False))
def test_confirms_settle_each_publish_once_in_any_order(tags: list[int], draw: object) -> None:
    tracker = ConfirmTracker()
    for position, tag in enumerate(tags, start=1):
        tracker.settle(tag, multiple=False)
        assert tracker.settled == position


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=60))
def test_confirms_agree_with_a_set_of_tags(acks: list[tuple[int, bool]]) -> None:
    tracker = ConfirmTracker()
    settled: set[int] = set()
    for tag, multiple in acks:
        fresh = set(range(1, tag + 1)) - settled if multiple else {tag} - settled
        if not fresh or (multiple and tag in settled and tag <= min(set(range(1, 50)) - settled) - 1):
            continue
        settled |= fresh
        tracker.settle(tag, multiple=multiple)
        assert tracker.settled == len(settled)


def test_a_publish_confirmed_twice_is_an_error() -> None:
    tracker = ConfirmTracker()
    tracker.settle(3, multiple=True)
    tracker.settle(7, multiple=False)
    for tag in (2, 3, 7):
        with pytest.raises(BrokerError, match=f"publish {tag} twice"):
            tracker.settle(tag, multiple=False)
