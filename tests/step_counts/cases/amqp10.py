"""AMQP 1.0: requests of one client at once, with n objects of its own."""

from __future__ import annotations

from typing import Any

from amqp10_harness import Amqp10Client, amqp10_client, message, section

from step_counts.cases.case import BOUNDED, LINEAR, TIDIED, Act, case, publishing
from step_counts.meter import Meter
from warren.amqp10.performatives import (
    ACCEPTED,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    MODIFIED,
    REJECTED,
    RELEASED,
    described,
    frame,
)
from warren.amqp10.values import Described, Symbol, UInt, ULong

WINDOW = 1 << 20
LINKS_PER_SESSION = 200


def feeding(client: Amqp10Client, data: bytes) -> Act:
    return lambda: client.peer.feed(data)


def filled(meter: Meter, n: int) -> None:
    """Put n messages into queue q."""
    publisher = meter.channel()
    publisher.declare("q")
    publishing(publisher, n)


def receiving(meter: Meter, n: int) -> Amqp10Client:
    """Return a client with a link from queue q, which has n messages, and no credit yet."""
    filled(meter, n)
    client = amqp10_client(meter)
    client.receiver(0, "/queues/q")
    return client


def owing(meter: Meter, n: int) -> Amqp10Client:
    """Return a client that has n unanswered messages on link 0."""
    client = receiving(meter, n)
    assert len(client.credit(0, n, window=WINDOW)) == n
    return client


def owing_few_of_many(meter: Meter, n: int) -> Amqp10Client:
    """Return a client that has n unanswered messages, with many between them that it has answered."""
    client = owing(meter, 20 * n)
    for at in range(n):
        client.settle(20 * at + 1, 20 * at + 19, ACCEPTED)
    assert meter.queue("q").unacked_count == n
    return client


def disposition(n: int, state: int, *, settled: bool = True, fields: list[Any] | None = None, first: int = 0) -> bytes:
    return frame(
        0, DISPOSITION, [True, UInt(first), UInt(first + n - 1), settled, described(state, list(fields or []))]
    )


# --- answers --------------------------------------------------------------------------------------------------------
# The broker lists single answers at once: a step for each.


@case(None, BOUNDED)
def amqp10_accepted_all(meter: Meter, n: int) -> Act:
    return feeding(owing(meter, n), disposition(n, ACCEPTED))


@case(None, TIDIED)
def amqp10_accepted_all_and_did_not_settle(meter: Meter, n: int) -> Act:
    return feeding(owing(meter, n), disposition(n, ACCEPTED, settled=False))


@case(None, TIDIED)
def amqp10_released_all(meter: Meter, n: int) -> Act:
    client = owing(meter, n)
    client.credit(0, 0, count=n, window=WINDOW, seen=n)
    return feeding(client, disposition(n, RELEASED))


@case(None, TIDIED)
def amqp10_rejected_all(meter: Meter, n: int) -> Act:
    return feeding(owing(meter, n), disposition(n, REJECTED))


@case(None, TIDIED)
def amqp10_modified_all(meter: Meter, n: int) -> Act:
    return feeding(owing(meter, n), disposition(n, MODIFIED, fields=[True, True]))


@case(None, BOUNDED)
def amqp10_released_what_is_answered_beside_many(meter: Meter, n: int) -> Act:
    return feeding(owing_few_of_many(meter, n), disposition(1, RELEASED, first=1) * 50)


@case(None, TIDIED)
def amqp10_detached_with_unanswered(meter: Meter, n: int) -> Act:
    return feeding(owing(meter, n), frame(0, DETACH, [UInt(0), True]))


@case(None, BOUNDED)
def amqp10_detached_another_beside_many(meter: Meter, n: int) -> Act:
    client = owing(meter, n)
    client.receiver(1, "/queues/q")
    return feeding(client, frame(0, DETACH, [UInt(1), True]))


@case(None, BOUNDED)
def amqp10_ended_with_unanswered(meter: Meter, n: int) -> Act:
    return feeding(owing(meter, n), frame(0, END, []))


@case(None, BOUNDED)
def amqp10_closed_with_unanswered(meter: Meter, n: int) -> Act:
    return feeding(owing(meter, n), frame(0, CLOSE, []))


# --- links and sessions -----------------------------------------------------------------------------------------------


def linked(meter: Meter, n: int) -> Amqp10Client:
    """Return a client with n links from queue q, on as many sessions as they need."""
    client = receiving(meter, 0)
    for at in range(1, n + 1):
        channel, handle = 1 + at // LINKS_PER_SESSION, at % LINKS_PER_SESSION
        if at == 1 or handle == 0:
            client.begin(channel)
        client.receiver(handle, "/queues/q", channel=channel)
    return client


@case(None, TIDIED)
def amqp10_closed_with_links(meter: Meter, n: int) -> Act:
    return feeding(linked(meter, n), frame(0, CLOSE, []))


@case(None, TIDIED)
def amqp10_queue_deleted_with_links(meter: Meter, n: int) -> Act:
    linked(meter, n)
    queue = meter.queue("q")
    return lambda: meter.broker.delete_queue(meter.vhost, queue)


@case(None, LINEAR)  # sixty-four at most
def amqp10_begun_sessions(meter: Meter, n: int) -> Act:
    client = amqp10_client(meter)
    begin = [None, UInt(0), UInt(10), UInt(10)]
    return feeding(client, b"".join(frame(1 + at, BEGIN, list(begin)) for at in range(min(n // 10, 60))))


# --- credit -----------------------------------------------------------------------------------------------------------


# A turn hands out two thousand, or looks at as many; a drain as many again.


@case(None, LINEAR)
def amqp10_gave_credit_for_all(meter: Meter, n: int) -> Act:
    client = receiving(meter, n)
    flow = [UInt(0), UInt(WINDOW), UInt(0), UInt(10), UInt(0), UInt(0), UInt(n)]
    return feeding(client, frame(0, FLOW, list(flow)))


@case(None, LINEAR)
def amqp10_drained_all(meter: Meter, n: int) -> Act:
    client = receiving(meter, n)
    flow = [UInt(0), UInt(WINDOW), UInt(0), UInt(10), UInt(0), UInt(0), UInt(n + 10), None, True]
    return feeding(client, frame(0, FLOW, list(flow)))


@case(None, LINEAR)
def amqp10_drained_what_nothing_meets(meter: Meter, n: int) -> Act:
    filled(meter, n)
    client = amqp10_client(meter)
    nothing = {Symbol("f"): Described(Symbol("amqp:sql-filter"), "there = 'is none'")}
    client.receiver(0, "/queues/q", filter=nothing)
    flow = [UInt(0), UInt(WINDOW), UInt(0), UInt(10), UInt(0), UInt(0), UInt(10), None, True]
    return feeding(client, frame(0, FLOW, list(flow)))


@case(None, LINEAR)
def amqp10_asked_for_echoes(meter: Meter, n: int) -> Act:
    client = receiving(meter, 0)
    flow = [UInt(0), UInt(10), UInt(0), UInt(10), UInt(0), UInt(0), UInt(0), None, None, True]
    return feeding(client, frame(0, FLOW, list(flow)) * n)


# --- transfers --------------------------------------------------------------------------------------------------------


def sending(meter: Meter, address: str | None = "/queues/q") -> Amqp10Client:
    meter.channel().declare("q")
    client = amqp10_client(meter)
    client.sender(0, address)
    return client


@case(None, LINEAR)
def amqp10_transfers(meter: Meter, n: int) -> Act:
    client = sending(meter)
    return feeding(client, b"".join(client.transfer_frame(0, message(b"x")) for _ in range(n)))


@case(None, LINEAR)
def amqp10_transfers_to_nowhere(meter: Meter, n: int) -> Act:
    client = sending(meter, None)
    nowhere = section(0x73, [None, None, "/queues/nowhere"])
    return feeding(client, b"".join(client.transfer_frame(0, message(b"x", before=nowhere)) for _ in range(n)))


@case(None, LINEAR)
def amqp10_delivery_in_pieces(meter: Meter, n: int) -> Act:
    client = sending(meter)
    client.feed(client.transfer_frame(0, message(b"x" * 100)[:-50], more=True))
    piece = client.transfer_frame(0, b"x" * 50, more=True, delivery_id=0)
    return feeding(client, piece * n)


@case(None, LINEAR)
def amqp10_frame_in_pieces(meter: Meter, n: int) -> Act:
    client = sending(meter)
    whole = client.transfer_frame(0, message(b"x" * 60 * (n + 1)))
    client.feed(whole[:20])

    def act() -> None:
        for at in range(n):
            client.peer.feed(whole[20 + 60 * at : 80 + 60 * at])

    return act


@case(None, LINEAR)
def amqp10_message_of_many_sections(meter: Meter, n: int) -> Act:
    client = sending(meter)
    return feeding(client, client.transfer_frame(0, section(0x75, b"x") * n))


@case(None, LINEAR)
def amqp10_message_of_many_properties(meter: Meter, n: int) -> Act:
    client = sending(meter)
    properties: dict[object, object] = {f"p{at}": at for at in range(n)}
    return feeding(client, client.transfer_frame(0, section(0x74, properties) + section(0x75, b"x")))


# --- management, and values -------------------------------------------------------------------------------------------


@case(None, LINEAR)
def amqp10_management_lists_bindings(meter: Meter, n: int) -> Act:
    owner = meter.channel()
    owner.declare("q")
    for at in range(n):
        owner.bind("q", "amq.direct", "k", {"n": at})
    client = amqp10_client(meter)
    client.sender(0, "/management", properties={Symbol("paired"): True})
    client.receiver(1, "/management", properties={Symbol("paired"): True})
    client.credit(1, 10)
    path = "/bindings?src=amq.direct&dstq=q&key=k"
    request = section(0x73, ["1", None, path, "GET", "$me"]) + section(0x77, None)
    return feeding(client, client.transfer_frame(0, request, settled=True))


@case(None, LINEAR)
def amqp10_attached_with_a_long_selector(meter: Meter, n: int) -> Act:
    meter.channel().declare("q")
    client = amqp10_client(meter)
    condition = " OR ".join(f"a = {at}" for at in range(n))
    selector = {Symbol("f"): Described(Symbol("amqp:sql-filter"), condition)}
    source = described(0x28, ["/queues/q", None, None, None, None, None, None, selector])
    return feeding(client, frame(0, 0x12, ["link", UInt(0), True, None, None, source, described(0x29, [])]))


@case(None, LINEAR)
def amqp10_modified_with_many_annotations(meter: Meter, n: int) -> Act:
    client = owing(meter, 1)
    annotations: dict[object, object] = {Symbol(f"x-{at}"): ULong(at) for at in range(n)}
    return feeding(client, disposition(1, MODIFIED, settled=False, fields=[True, False, annotations]))
