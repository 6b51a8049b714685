"""STOMP: requests of one client at once, with n objects of its own."""

from __future__ import annotations

from stomp_harness import StompClient, frame, stomp_client

from step_counts.cases.case import BOUNDED, LINEAR, TIDIED, Act, case
from step_counts.meter import Meter


def owing_many(meter: Meter, n: int, mode: str) -> tuple[StompClient, str]:
    """Return a client that has n unanswered messages, and the name of the last."""
    client = stomp_client(meter)
    client.feed(frame("SEND", {"destination": "/queue/q"}, b"x") * n)
    messages = client.send("SUBSCRIBE", destination="/queue/q", id="0", ack=mode)
    assert len(messages) == n
    return client, messages[-1].headers["ack"]


def feeding(client: StompClient, data: bytes) -> Act:
    return lambda: client.peer.feed(data)


@case(None, BOUNDED)
def stomp_ack_of_all(meter: Meter, n: int) -> Act:
    client, last = owing_many(meter, n, "client")
    return feeding(client, frame("ACK", {"id": last}))


@case(None, BOUNDED)
def stomp_nack_of_all(meter: Meter, n: int) -> Act:
    client, last = owing_many(meter, n, "client")
    return feeding(client, frame("NACK", {"id": last, "requeue": "false"}))


@case(None, BOUNDED)
def stomp_end_with_unanswered(meter: Meter, n: int) -> Act:
    client, _ = owing_many(meter, n, "client-individual")
    return feeding(client, frame("DISCONNECT"))


@case(None, TIDIED)
def stomp_end_with_subscriptions(meter: Meter, n: int) -> Act:
    client = stomp_client(meter)
    for at in range(n):
        client.send("SUBSCRIBE", destination="/topic/t", id=str(at))
    return feeding(client, frame("DISCONNECT"))


@case(None, BOUNDED)
def stomp_commit_of_many(meter: Meter, n: int) -> Act:
    client = stomp_client(meter)
    client.send("BEGIN", transaction="t")
    client.feed(frame("SEND", {"destination": "/queue/q", "transaction": "t"}, b"x") * n)
    return feeding(client, frame("COMMIT", {"transaction": "t"}))


@case(None, LINEAR)
def stomp_body_in_pieces(meter: Meter, n: int) -> Act:
    client = stomp_client(meter)
    client.feed(b"SEND\ndestination:/queue/q\n\n")

    def act() -> None:
        for _ in range(n):
            client.peer.feed(b"x" * 100)

    return act


@case(None, LINEAR)
def stomp_head_in_pieces(meter: Meter, n: int) -> Act:
    client = stomp_client(meter)
    client.feed(b"SEND\n")

    def act() -> None:
        for _ in range(n):
            client.peer.feed(b"x" * 50)

    return act


@case(None, LINEAR)
def stomp_sends(meter: Meter, n: int) -> Act:
    client = stomp_client(meter)
    return feeding(client, frame("SEND", {"destination": "/queue/q"}, b"x") * n)


@case(None, BOUNDED)
def stomp_abort_of_many(meter: Meter, n: int) -> Act:
    client = stomp_client(meter)
    client.send("BEGIN", transaction="t")
    client.feed(frame("SEND", {"destination": "/queue/q", "transaction": "t"}, b"x") * n)
    return feeding(client, frame("ABORT", {"transaction": "t"}))


@case(None, BOUNDED)
def stomp_ack_of_all_in_a_transaction(meter: Meter, n: int) -> Act:
    client, last = owing_many(meter, n, "client")
    client.send("BEGIN", transaction="t")
    return feeding(client, frame("ACK", {"id": last, "transaction": "t"}))


@case(None, BOUNDED)
def stomp_commit_of_many_answers(meter: Meter, n: int) -> Act:
    client, last = owing_many(meter, n, "client")
    client.send("BEGIN", transaction="t")
    client.send("ACK", id=last, transaction="t")
    return feeding(client, frame("COMMIT", {"transaction": "t"}))


@case(None, BOUNDED)
def stomp_abort_of_many_answers(meter: Meter, n: int) -> Act:
    client, last = owing_many(meter, n, "client")
    client.send("BEGIN", transaction="t")
    client.send("ACK", id=last, transaction="t")
    return feeding(client, frame("ABORT", {"transaction": "t"}))


@case(None, BOUNDED)
def stomp_end_with_many_answers_in_a_transaction(meter: Meter, n: int) -> Act:
    client, last = owing_many(meter, n, "client")
    client.send("BEGIN", transaction="t")
    client.send("ACK", id=last, transaction="t")
    return feeding(client, frame("DISCONNECT"))


@case(None, BOUNDED)
def stomp_unsubscribe_with_unanswered(meter: Meter, n: int) -> Act:
    client, _ = owing_many(meter, n, "client")
    return feeding(client, frame("UNSUBSCRIBE", {"id": "0"}))


@case(None, LINEAR)
def stomp_acks_one_by_one_of_all(meter: Meter, n: int) -> Act:
    client, last = owing_many(meter, n, "client-individual")
    session = last.rpartition("@@")[0]
    return feeding(client, b"".join(frame("ACK", {"id": f"{session}@@{tag}"}) for tag in range(n, 0, -1)))


@case(None, LINEAR)
def stomp_sends_with_receipts(meter: Meter, n: int) -> Act:
    client = stomp_client(meter)
    headers = {"destination": "/queue/q", "persistent": "true"}
    return feeding(client, b"".join(frame("SEND", headers | {"receipt": str(at)}, b"x") for at in range(n)))


@case(None, LINEAR)
def stomp_subscriptions(meter: Meter, n: int) -> Act:
    client = stomp_client(meter)
    return feeding(client, b"".join(frame("SUBSCRIBE", {"destination": "/queue/q", "id": str(at)}) for at in range(n)))
