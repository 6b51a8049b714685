"""Statements of STOMP 1.2 that no other test here shows; docs/stomp-conformance.md has all with their tests."""

from __future__ import annotations

import pytest
from engine_harness import Harness
from stomp_harness import StompClient, stomp_client


def test_stomp_connects_as_connect_does(harness: Harness) -> None:
    (reply,) = StompClient(harness).feed(b"STOMP\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\n\0")
    assert (reply.command, reply.headers["version"]) == ("CONNECTED", "1.2")


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_lines_end_in_either_way(harness: Harness, end: bytes) -> None:
    client = stomp_client(harness)
    client.feed(end.join([b"SEND", b"destination:/queue/q", b"", b"x\0"]))
    assert int(harness.queue("q").ready_count) == 1


@pytest.mark.parametrize("command", ["SEND", "SUBSCRIBE"])
def test_a_destination_is_needed(harness: Harness, command: str) -> None:
    assert stomp_client(harness).refused(command, id="0").headers["message"]


@pytest.mark.parametrize("command", ["UNSUBSCRIBE", "ACK", "NACK", "BEGIN", "COMMIT", "ABORT"])
def test_headers_that_a_frame_needs_are_demanded(harness: Harness, command: str) -> None:
    stomp_client(harness).refused(command)


@pytest.mark.parametrize("mode", ["", "Client", "none"])
def test_there_are_three_modes_of_acknowledgement(harness: Harness, mode: str) -> None:
    stomp_client(harness).refused("SUBSCRIBE", destination="/queue/q", id="0", ack=mode)


def test_a_transaction_begins_once(harness: Harness) -> None:
    client = stomp_client(harness)
    client.send("BEGIN", transaction="t")
    client.refused("BEGIN", transaction="t")


def test_messages_say_where_they_come_from_and_differ(harness: Harness) -> None:
    reader = stomp_client(harness)
    reader.send("SUBSCRIBE", destination="/queue/q", id="mine", ack="client-individual")
    for _ in range(3):
        reader.send("SEND", b"x", destination="/queue/q", receipt="r")
    writer = stomp_client(harness)
    for _ in range(3):
        writer.send("SEND", b"y", destination="/queue/q", kind="of\\c mine")
    messages = [reply for reply in reader.take() if reply.command == "MESSAGE"]
    assert {reply.headers["subscription"] for reply in messages} == {"mine"}
    assert {reply.headers["destination"] for reply in messages} == {"/queue/q"}
    assert {reply.headers["kind"] for reply in messages} == {"of\\c mine"}
    assert len({reply.headers["message-id"] for reply in messages}) == len({r.headers["ack"] for r in messages}) == 3


def test_a_receipt_says_that_all_before_it_was_handled(harness: Harness) -> None:
    client = stomp_client(harness)
    for at in range(5):
        client.send("SEND", b"%d" % at, destination="/queue/q")
    (reply,) = client.send("SEND", b"last", destination="/queue/q", receipt="r")
    assert reply.headers == {"receipt-id": "r"} and int(harness.queue("q").ready_count) == 6


def test_nothing_follows_an_error(harness: Harness) -> None:
    client = stomp_client(harness)
    replies = client.feed(b"NONSENSE\nreceipt:r\n\n\0SEND\ndestination:/queue/q\n\nx\0")
    assert [reply.command for reply in replies] == ["ERROR"]
    assert replies[0].headers["message"] and client.ended and "q" not in harness.vhost.queues
