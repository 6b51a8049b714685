"""The effect of each command, as its sender and others see it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import pytest
from engine_harness import Harness, publish_frames
from stomp_harness import Reply, StompClient, frame, stomp_client

from warren.amqp import methods as m
from warren.channels.ending import force_close
from warren.channels.reply_gate import REPLIES_MAX
from warren.stomp.session import DECLARED_MIN, RECEIPTS_MAX_BYTES, StompSession


def bodies(replies: list[Reply]) -> list[bytes]:
    assert all(reply.command == "MESSAGE" for reply in replies), replies
    return [reply.body for reply in replies]


# --- connecting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accepted", "agreed"), [("1.0", "1.0"), ("1.0,1.1", "1.1"), ("1.2,1.1,1.0", "1.2"), ("1.1,2.0", "1.1")]
)
def test_the_highest_version_that_both_speak_is_agreed(harness: Harness, accepted: str, agreed: str) -> None:
    assert StompClient(harness).connect(accepted).headers["version"] == agreed


def test_no_common_version_is_an_error_that_names_ours(harness: Harness) -> None:
    reply = StompClient(harness).connect("3.0")
    assert reply.command == "ERROR" and b"1.0, 1.1 and 1.2" in reply.body


def test_connect_without_accept_version_means_1_0(harness: Harness) -> None:
    (reply,) = StompClient(harness).feed(b"CONNECT\nlogin:guest\npasscode:guest\n\n\0")
    assert (reply.command, reply.headers["version"]) == ("CONNECTED", "1.0")


def test_a_wrong_passcode_is_refused_and_ends_the_connection(harness: Harness) -> None:
    client = StompClient(harness)
    assert client.connect(passcode="wrong").command == "ERROR"
    assert client.ended


def test_an_unknown_vhost_is_told_with_what_to_set(harness: Harness) -> None:
    reply = StompClient(harness).connect(host="localhost")
    assert reply.command == "ERROR" and b"host:/" in reply.body


def test_a_certificate_logs_in_without_login(harness: Harness) -> None:
    client = StompClient(harness, certificate_user="guest")
    (reply,) = client.feed(b"CONNECT\naccept-version:1.2\nhost:/\n\n\0")
    assert reply.command == "CONNECTED"


@pytest.mark.parametrize("given", ["1000", "a,b", "-1,0", "1,2,3", "99999999999,0"])
def test_a_heart_beat_that_is_not_two_numbers_is_refused(harness: Harness, given: str) -> None:
    assert StompClient(harness).connect(**{"heart-beat": given}).command == "ERROR"


def test_heart_beats_are_agreed_sent_and_expected(harness: Harness) -> None:
    client = StompClient(harness)
    assert client.connect(**{"heart-beat": "4000,2000"}).headers["heart-beat"] == "2000,4000"
    heard = 0
    for _ in range(6):
        client.peer.feed(b"\n")
        harness.advance(1.0)
        harness.settle()
        heard += harness.clients[client.peer.key].take().count(b"\n")
    assert heard >= 2
    assert not client.ended
    for _ in range(20):
        harness.advance(0.5)
    harness.settle()
    assert client.ended


def test_heart_beats_come_as_often_as_was_promised(harness: Harness) -> None:
    client = StompClient(harness)
    assert client.connect(**{"heart-beat": "0,1001"}).headers["heart-beat"] == "1001,0"
    for _ in range(6):
        harness.advance(0.75)  # the next look would be too late
        harness.settle()
        assert harness.clients[client.peer.key].take() == b"\n"


@pytest.mark.parametrize("command", ["SEND", "SUBSCRIBE", "ACK", "DISCONNECT"])
def test_nothing_comes_before_connect(harness: Harness, command: str) -> None:
    assert b"before CONNECT" in StompClient(harness).refused(command).body


def test_a_second_connect_is_an_error(harness: Harness) -> None:
    stomp_client(harness).refused("CONNECT")


# --- sending and receiving --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/queue/a%2Fb", "/topic/a.b", "/exchange/amq.direct/k", "/exchange/amq.fanout"])
def test_what_is_sent_to_a_destination_comes_to_its_subscribers(harness: Harness, path: str) -> None:
    reader, writer = stomp_client(harness), stomp_client(harness)
    reader.send("SUBSCRIBE", destination=path, id="0")
    writer.send("SEND", b"one\0two", destination=path, content_length=7)
    (message,) = reader.take()
    assert message.body == b"one\0two"
    assert message.headers["subscription"] == "0"
    if path != "/exchange/amq.fanout":
        assert message.headers["destination"] == path
    assert "ack" not in message.headers


def test_messages_pass_between_stomp_and_amqp(harness: Harness) -> None:
    stomp, amqp = stomp_client(harness), harness.client()
    amqp.open(1)
    stomp.send("SUBSCRIBE", destination="/queue/q", id="0")
    amqp.publish("", "q", b"from amqp", content_type="text/plain", delivery_mode=2, message_id="m1")
    (message,) = stomp.take()
    assert message.body == b"from amqp"
    assert message.headers["content-type"] == "text/plain"
    assert message.headers["persistent"] == "true"
    assert message.headers["amqp-message-id"] == "m1"
    stomp.send("UNSUBSCRIBE", id="0")
    amqp.call(1, m.BasicConsume(0, "q", "c", False, True, False, False, b"\0\0\0\0"))
    stomp.send("SEND", b"x" * 40000, destination="/queue/q", foo="bar", priority=3, correlation_id="c1")
    (delivered,) = amqp.deliveries()
    assert delivered.content is not None and delivered.content.body == b"x" * 40000
    properties = delivered.content.properties
    assert (properties.priority, properties.correlation_id) == (3, "c1")
    assert properties.headers is not None and b"foo" in properties.headers


def test_a_queue_is_durable_unless_the_headers_say_otherwise(harness: Harness) -> None:
    client = stomp_client(harness)
    client.send("SUBSCRIBE", destination="/queue/kept", id="0")
    client.send(
        "SUBSCRIBE",
        destination="/queue/passing",
        id="1",
        durable="false",
        auto_delete="true",
        **{"x-max-length": 5, "x-message-ttl": 60000},
    )
    kept, passing = harness.vhost.queues["kept"], harness.vhost.queues["passing"]
    assert kept.durable and not kept.auto_delete
    assert not passing.durable and passing.auto_delete
    assert b"x-max-length" in passing.arguments


def test_a_queue_that_is_there_with_other_arguments_is_an_error_before_the_end(harness: Harness) -> None:
    stomp_client(harness).send("SUBSCRIBE", destination="/queue/q", id="0")
    reply = stomp_client(harness).refused("SUBSCRIBE", destination="/queue/q", id="0", durable="false", receipt="r")
    assert "inequivalent arg 'durable'" in reply.body.decode()
    assert reply.headers["receipt-id"] == "r"


def test_amq_queue_has_to_be_there(harness: Harness) -> None:
    reply = stomp_client(harness).refused("SUBSCRIBE", destination="/amq/queue/none", id="0")
    assert b"no queue 'none'" in reply.body


def test_an_exchange_that_is_not_there_is_an_error(harness: Harness) -> None:
    assert b"no exchange 'none'" in stomp_client(harness).refused("SEND", b"x", destination="/exchange/none/k").body


@pytest.mark.parametrize("path", ["", "/", "/queue", "/queue/", "/queue/a/b", "/nowhere/x", "/exchange/", "queue/a"])
def test_what_is_no_destination_is_refused(harness: Harness, path: str) -> None:
    stomp_client(harness).refused("SEND", b"x", destination=path)


def test_a_queue_that_was_deleted_is_declared_again_by_the_next_send(harness: Harness) -> None:
    writer, amqp = stomp_client(harness), harness.client()
    amqp.open(1)
    writer.send("SEND", b"1", destination="/queue/q")
    writer.send("SEND", b"2", destination="/queue/q")
    amqp.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    writer.send("SEND", b"3", destination="/queue/q")
    assert int(harness.vhost.queues["q"].ready_count) == 1


def test_a_user_needs_the_rights_of_amqp(harness: Harness) -> None:
    harness.add_user("reader", configure="^$", write="^$")
    client = StompClient(harness)
    assert client.connect(login="reader", passcode="reader").command == "CONNECTED"
    assert b"configure access to queue 'q'" in client.refused("SEND", b"x", destination="/queue/q").body


# --- answers ----------------------------------------------------------------------------------------------------------


def subscribed(harness: Harness, mode: str, version: str = "1.2", **headers: str) -> tuple[StompClient, list[Reply]]:
    writer = stomp_client(harness)
    for number in range(4):
        writer.send("SEND", b"%d" % number, destination="/queue/q")
    reader = stomp_client(harness, version)
    return reader, reader.send("SUBSCRIBE", destination="/queue/q", id="0", ack=mode, **headers)


def unacked(harness: Harness) -> int:
    return int(harness.vhost.queues["q"].unacked_count)


def test_client_answers_all_before_and_client_individual_one(harness: Harness) -> None:
    reader, messages = subscribed(harness, "client")
    reader.send("ACK", id=messages[2].headers["ack"])
    assert unacked(harness) == 1


def test_client_individual_answers_one(harness: Harness) -> None:
    reader, messages = subscribed(harness, "client-individual")
    reader.send("ACK", id=messages[2].headers["ack"])
    assert unacked(harness) == 3


def test_an_answer_of_one_subscription_leaves_another_alone(harness: Harness) -> None:
    reader, _ = subscribed(harness, "client")
    reader.send("SUBSCRIBE", destination="/queue/other", id="1", ack="client")
    (message,) = reader.send("SEND", b"x", destination="/queue/other")
    reader.send("ACK", id=message.headers["ack"])
    assert unacked(harness) == 4


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_older_versions_answer_by_message_id(harness: Harness, version: str) -> None:
    reader, messages = subscribed(harness, "client-individual", version)
    reader.send("ACK", **{"message-id": messages[0].headers["message-id"], "subscription": "0"})
    assert unacked(harness) == 3


def test_nack_gives_back_unless_it_says_that_it_drops(harness: Harness) -> None:
    reader, messages = subscribed(harness, "client-individual")
    (again,) = reader.send("NACK", id=messages[0].headers["ack"])
    assert (again.body, again.headers["redelivered"]) == (b"0", "true")
    assert reader.send("NACK", id=again.headers["ack"], requeue="false") == []
    assert int(harness.vhost.queues["q"].message_count) == 3


def test_prefetch_count_bounds_what_is_out(harness: Harness) -> None:
    reader, messages = subscribed(harness, "client-individual", prefetch_count="2")
    assert bodies(messages) == [b"0", b"1"]
    assert bodies(reader.send("ACK", id=messages[0].headers["ack"])) == [b"2"]


def test_what_is_not_answered_goes_back_when_the_connection_ends(harness: Harness) -> None:
    reader, _ = subscribed(harness, "client")
    reader.send("DISCONNECT")
    assert reader.ended and unacked(harness) == 0
    assert int(harness.vhost.queues["q"].ready_count) == 4


@pytest.mark.parametrize("name", ["x", "@@", "other@@1", "@@1", "99999999999999999999"])
def test_an_answer_for_nothing_is_an_error(harness: Harness, name: str) -> None:
    subscribed(harness, "client")[0].refused("ACK", id=name)


def test_an_answer_twice_is_an_error(harness: Harness) -> None:
    reader, messages = subscribed(harness, "client")
    reader.send("ACK", id=messages[0].headers["ack"])
    assert b"unknown delivery tag" in reader.refused("ACK", id=messages[0].headers["ack"]).body


@pytest.mark.parametrize("answer", ["ACK", "NACK"])
@pytest.mark.parametrize("mode", ["client", "client-individual"])
def test_an_answer_after_the_visibility_timeout_is_an_error(harness: Harness, mode: str, answer: str) -> None:
    reader = stomp_client(harness)
    reader.send("SUBSCRIBE", destination="/queue/q", id="0", ack=mode, x_visibility_timeout=1000)
    (first,) = reader.send("SEND", b"m", destination="/queue/q")
    harness.pass_time(1)
    (again,) = reader.take()
    assert again.headers["redelivered"] == "true"
    assert b"unknown delivery tag" in reader.refused(answer, id=first.headers["ack"]).body


@pytest.mark.parametrize("mode", ["client", "client-individual"])
def test_a_consumer_timeout_ends_the_connection(harness: Harness, mode: str) -> None:
    reader = stomp_client(harness)
    reader.send("SUBSCRIBE", destination="/queue/q", id="0", ack=mode, x_consumer_timeout=1000)
    (first,) = reader.send("SEND", b"m", destination="/queue/q")
    harness.pass_time(1)
    (error,) = reader.take()
    assert (error.command, reader.ended) == ("ERROR", True)
    assert reader.send("ACK", id=first.headers["ack"]) == []
    assert int(harness.vhost.queues["q"].ready_count) == 1


def test_a_content_length_that_a_client_echoes_in_ack_means_nothing(harness: Harness) -> None:
    reader, messages = subscribed(harness, "client-individual")
    assert reader.send("ACK", id=messages[0].headers["ack"], content_length="17") == []
    assert unacked(harness) == 3


# --- receipts ---------------------------------------------------------------------------------------------------------


def test_the_receipt_of_a_persistent_send_comes_when_it_is_on_disk(harness: Harness) -> None:
    client = stomp_client(harness)
    client.send("SEND", b"x", destination="/queue/q")
    harness.hold_commits = True
    assert client.send("SEND", b"x", destination="/queue/q", persistent="true", receipt="r1") == []
    harness.hold_commits = False
    harness.settle()
    assert client.take() == [Reply("RECEIPT", {"receipt-id": "r1"}, b"")]


def test_the_receipt_of_disconnect_comes_when_all_that_was_sent_is_on_disk(harness: Harness) -> None:
    client = stomp_client(harness)
    client.send("SEND", b"x", destination="/queue/q")
    harness.hold_commits = True
    client.send("SEND", b"x", destination="/queue/q", persistent="true")
    assert client.send("DISCONNECT", receipt="bye") == [] and not client.ended
    harness.hold_commits = False
    harness.settle()
    assert client.take() == [Reply("RECEIPT", {"receipt-id": "bye"}, b"")] and client.ended


def test_the_receipt_of_disconnect_comes_when_what_was_declared_is_on_disk(harness: Harness) -> None:
    client = stomp_client(harness)
    harness.broker.journal.hold()
    assert client.send("SEND", b"x", destination="/queue/q", persistent="true", receipt="x") == []
    assert client.send("DISCONNECT", receipt="bye") == [] and not client.ended
    harness.broker.journal.release()
    harness.settle()
    assert [reply.headers["receipt-id"] for reply in client.take()] == ["x", "bye"] and client.ended


def test_the_receipt_of_a_subscription_waits_for_its_durable_queue(harness: Harness) -> None:
    client = stomp_client(harness)
    harness.hold_commits = True
    assert client.send("SUBSCRIBE", destination="/queue/q", id="0", receipt="r") == []
    harness.hold_commits = False
    harness.settle()
    assert [reply.command for reply in client.take()] == ["RECEIPT"]


def test_a_refused_send_with_a_receipt_is_an_error_with_its_id(harness: Harness) -> None:
    client = stomp_client(harness)
    headers = {"x-max-length": 1, "x-overflow": "reject-publish"}
    client.send("SUBSCRIBE", destination="/queue/q", id="0", ack="client", prefetch_count=1, **headers)
    client.send("SEND", b"1", destination="/amq/queue/q")
    client.send("SEND", b"2", destination="/amq/queue/q")
    assert client.refused("SEND", b"3", destination="/amq/queue/q", receipt="r3").headers["receipt-id"] == "r3"


# --- transactions -----------------------------------------------------------------------------------------------------


def test_what_is_in_a_transaction_happens_at_its_commit(harness: Harness) -> None:
    reader, messages = subscribed(harness, "client-individual")
    reader.send("BEGIN", transaction="t")
    reader.send("ACK", id=messages[0].headers["ack"], transaction="t")
    reader.send("SEND", b"new", destination="/queue/q", transaction="t", persistent="true")
    assert unacked(harness) == 4 and int(harness.vhost.queues["q"].message_count) == 4
    replies = reader.send("COMMIT", transaction="t", receipt="done")
    assert {reply.command for reply in replies} == {"MESSAGE", "RECEIPT"}
    assert unacked(harness) == 4 and int(harness.vhost.queues["q"].message_count) == 4


def test_what_is_aborted_did_not_happen(harness: Harness) -> None:
    reader, messages = subscribed(harness, "client-individual")
    reader.send("BEGIN", transaction="t")
    reader.send("ACK", id=messages[0].headers["ack"], transaction="t")
    reader.send("SEND", b"new", destination="/queue/q", transaction="t")
    assert [reply.command for reply in reader.send("ABORT", transaction="t", receipt="r")] == ["RECEIPT"]
    reader.send("ACK", id=messages[0].headers["ack"])
    assert unacked(harness) == 3 and int(harness.vhost.queues["q"].message_count) == 3


def test_two_transactions_do_not_mix(harness: Harness) -> None:
    client = stomp_client(harness)
    for name in ("a", "b"):
        client.send("BEGIN", transaction=name)
    client.send("SEND", b"a", destination="/queue/q", transaction="a")
    client.send("SEND", b"b", destination="/queue/q", transaction="b")
    client.send("ABORT", transaction="a")
    client.send("COMMIT", transaction="b")
    assert bodies(client.send("SUBSCRIBE", destination="/queue/q", id="0")) == [b"b"]


@pytest.mark.parametrize("aborted", [("a",), ("a", "b"), ("b", "a")])
def test_what_was_answered_in_a_transaction_that_was_aborted_can_be_answered_for_many_again(
    harness: Harness, aborted: tuple[str, ...]
) -> None:
    reader, messages = subscribed(harness, "client")
    for name, number in (("a", 0), ("b", 1)):
        reader.send("BEGIN", transaction=name)
        reader.send("ACK", id=messages[number].headers["ack"], transaction=name)
    for name in aborted:
        reader.send("ABORT", transaction=name)
    queue = harness.vhost.queues["q"]
    assert int(queue.unacked_count) == len(messages)
    reader.send("ACK", id=messages[0].headers["ack"])
    assert int(queue.unacked_count) == len(messages) - 1
    reader.send("ACK", id=messages[-1].headers["ack"])
    assert int(queue.unacked_count) == (0 if "b" in aborted else 1)


@pytest.mark.parametrize("receipt", [None, "c"])
def test_a_commit_that_a_queue_would_refuse_does_not_happen_at_all(harness: Harness, receipt: str | None) -> None:
    reader, messages = subscribed(harness, "client-individual")
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    harness.channel().declare("full", arguments=arguments)
    harness.channel().declare("other")
    reader.send("BEGIN", transaction="t")
    reader.send("ACK", id=messages[0].headers["ack"], transaction="t")
    for queue in ("other", "full", "full"):
        reader.send("SEND", b"x", destination=f"/amq/queue/{queue}", transaction="t")
    given = {} if receipt is None else {"receipt": receipt}
    error = reader.refused("COMMIT", transaction="t", **given)
    assert error.headers["message"] == "precondition_failed" and error.headers.get("receipt-id") == receipt
    counts = {name: int(queue.ready_count) for name, queue in harness.vhost.queues.items()}
    assert counts == {"q": len(messages), "full": 0, "other": 0}
    harness.check()


def test_a_commit_that_takes_turns_is_let_in_as_a_whole(harness: Harness) -> None:
    harness.channel().declare("full", arguments={"x-max-length": 100, "x-overflow": "reject-publish"})
    client = stomp_client(harness)
    other = harness.channel()
    client.send("BEGIN", transaction="t")
    client.feed(frame("SEND", {"destination": "/amq/queue/full", "transaction": "t"}, b"x") * 80)
    harness.broker.work.turn_steps = 64
    harness.broker.work.end_turn()
    client.feed(frame("COMMIT", {"transaction": "t", "receipt": "c"}), settle=False)
    queue = harness.queue("full")
    while queue.message_count == 0:
        harness.broker.end_turn()
    assert queue.message_count < 80
    other.connection.feed(publish_frames("", "full", b"other") * 200)
    harness.settle()
    assert [reply.command for reply in client.take()] == ["RECEIPT"]
    assert queue.message_count == 100


def test_a_send_beyond_the_size_of_a_transaction_is_refused_and_nothing_of_it_is_done() -> None:
    harness = Harness(transaction_max_bytes=30_000)
    client = stomp_client(harness)
    for name in ("a", "b"):
        client.send("BEGIN", transaction=name)
    for name in ("a", "b", "a", "b"):
        client.send("SEND", b"x" * 10_000, destination="/queue/q", transaction=name)
    assert client.send("COMMIT", transaction="a", receipt="r")[0].command == "RECEIPT"
    error = client.refused("SEND", b"x" * 10_000, destination="/queue/q", transaction="b", receipt="s")
    assert error.headers["message"] == "precondition_failed" and error.headers["receipt-id"] == "s"
    assert b"too large (maximum 30000)" in error.body
    assert int(harness.vhost.queues["q"].ready_count) == 2
    harness.check()


def test_refusals_read_as_those_of_rabbitmq(harness: Harness) -> None:
    error = StompClient(harness).connect(login="ann", passcode="wrong")
    assert (error.headers["message"], error.body) == ("Bad CONNECT", b"Access refused for user 'ann'")
    error = stomp_client(harness).refused("SEND", b"x", destination="/exchange/none/k")
    assert (error.headers["message"], error.body) == ("not_found", b"no exchange 'none' in vhost '/'")


def test_a_connection_that_ends_gives_back_what_its_transactions_had(harness: Harness) -> None:
    reader, messages = subscribed(harness, "client-individual")
    reader.send("BEGIN", transaction="t")
    reader.send("ACK", id=messages[1].headers["ack"], transaction="t")
    reader.send("DISCONNECT")
    assert int(harness.vhost.queues["q"].ready_count) == 4


def test_a_commit_that_is_refused_when_its_client_has_gone_gives_back_what_it_had(harness: Harness) -> None:
    harness.channel().declare("full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    reader, messages = subscribed(harness, "client-individual")
    reader.send("BEGIN", transaction="t")
    for at, command in ((0, "ACK"), (1, "NACK")):
        reader.send(command, id=messages[at].headers["ack"], transaction="t")
    for _ in range(100):
        reader.send("SEND", b"x", destination="/amq/queue/full", transaction="t")
    harness.broker.work.turn_steps = 64
    harness.broker.work.end_turn()
    reader.feed(frame("COMMIT", {"transaction": "t"}), settle=False)
    assert len(harness.broker.work) == 1, "it is not decided yet"
    reader.hang_up()
    queue = harness.queue("q")
    assert (int(queue.ready_count), int(queue.unacked_count)) == (4, 0)
    harness.check_idle()


class Touched(deque[int]):
    """Tags that wait, and how many were taken out or put in."""

    touched = 0

    def clear(self) -> None:
        self.touched += len(self)
        super().clear()

    def popleft(self) -> int:
        self.touched += 1
        return super().popleft()

    def extendleft(self, tags: Iterable[int]) -> None:
        added = list(tags)
        self.touched += len(added)
        super().extendleft(added)


def test_an_abort_looks_at_what_it_restores_and_not_at_all_that_waits(harness: Harness) -> None:
    """With 500,000 waiting each ABORT of one answer took 18 ms, and a read has dozens of them."""
    writer = stomp_client(harness)
    writer.feed(frame("SEND", {"destination": "/queue/q"}, b"x") * 300)
    reader = stomp_client(harness)
    messages = reader.send("SUBSCRIBE", destination="/queue/q", id="0", ack="client")
    session = reader.peer._session
    assert session is not None and len(messages) == 300
    waiting = Touched(session._ledger.cumulative["T_0"])
    session._ledger.cumulative["T_0"] = waiting
    for name, last in (("a", 2), ("b", 4)):
        reader.send("BEGIN", transaction=name)
        reader.send("ACK", id=messages[last].headers["ack"], transaction=name)
    for name in ("a", "b"):
        waiting.touched = 0
        reader.send("ABORT", transaction=name)
        assert waiting.touched <= 10
    assert list(waiting) == list(range(1, 301))
    reader.send("ACK", id=messages[-1].headers["ack"])
    assert harness.vhost.queues["q"].message_count == 0


@pytest.mark.parametrize("command", ["COMMIT", "ABORT"])
def test_a_transaction_has_to_be_there(harness: Harness, command: str) -> None:
    stomp_client(harness).refused(command, transaction="none")


# --- subscriptions ----------------------------------------------------------------------------------------------------


def test_a_durable_subscription_keeps_what_comes_while_nobody_is_there(harness: Harness) -> None:
    wanted = {"destination": "/topic/news", "id": "me", "durable": "true", "auto-delete": "false"}
    reader, writer = stomp_client(harness), stomp_client(harness)
    reader.send("SUBSCRIBE", **wanted)
    reader.send("DISCONNECT")
    writer.send("SEND", b"missed", destination="/topic/news")
    again = stomp_client(harness)
    assert bodies(again.send("SUBSCRIBE", **wanted)) == [b"missed"]
    assert len([name for name in harness.vhost.queues if name.startswith("stomp-subscription-")]) == 1
    again.send("UNSUBSCRIBE", **wanted)
    assert not harness.vhost.queues


def test_the_queue_of_a_subscription_that_is_not_durable_goes_with_it(harness: Harness) -> None:
    client = stomp_client(harness)
    client.send("SUBSCRIBE", destination="/topic/a", id="0")
    client.send("SUBSCRIBE", destination="/topic/a", id="1")
    assert len(harness.vhost.queues) == 2
    client.send("UNSUBSCRIBE", id="0")
    assert len(harness.vhost.queues) == 1
    client.send("DISCONNECT")
    assert not harness.vhost.queues


def test_replies_come_to_a_temporary_queue_without_a_subscription(harness: Harness) -> None:
    asker, server = stomp_client(harness), stomp_client(harness)
    server.send("SUBSCRIBE", destination="/queue/service", id="0")
    asker.send("SEND", b"?", destination="/queue/service", reply_to="/temp-queue/mine")
    (asked,) = server.take()
    assert asked.headers["reply-to"].startswith("/reply-queue/")
    server.send("SEND", b"!", destination=asked.headers["reply-to"])
    (answer,) = asker.take()
    assert (answer.body, answer.headers["subscription"]) == (b"!", "/temp-queue/mine")
    asker.send("SEND", b"?", destination="/queue/service", reply_to="/temp-queue/mine")
    assert len([name for name in harness.vhost.queues if name.startswith("stomp-")]) == 1


@pytest.mark.parametrize("character", ["%00", "%0A", "%0D"])
def test_a_queue_whose_name_cannot_be_kept_is_refused(harness: Harness, character: str) -> None:
    named = {"destination": f"/queue/li{character}ne"}
    assert b"contains a NUL or a line break" in stomp_client(harness).refused("SEND", b"x", **named).body
    stomp_client(harness).refused("SUBSCRIBE", id="0", **named)
    assert not harness.vhost.queues


@pytest.mark.parametrize("name", ["a%2Fb", "a/b", "a b", "\u00e9"])
def test_a_reply_reaches_the_queue_that_the_message_names(harness: Harness, name: str) -> None:
    server, asker = stomp_client(harness), harness.client()
    server.send("SUBSCRIBE", destination="/queue/service", id="0")
    asker.open(1)
    asker.declare(name)
    asker.publish("", "service", reply_to=name)
    harness.settle()
    (asked,) = server.take()
    server.send("SEND", b"!", destination=asked.headers["reply-to"])
    assert harness.queue(name).ready_count == 1


def test_an_id_is_used_once(harness: Harness) -> None:
    client = stomp_client(harness)
    client.send("SUBSCRIBE", destination="/queue/q", id="0")
    client.refused("SUBSCRIBE", destination="/queue/q", id="0")


def test_a_subscription_whose_queue_is_deleted_is_told(harness: Harness) -> None:
    client, amqp = stomp_client(harness), harness.client()
    amqp.open(1)
    client.send("SUBSCRIBE", destination="/queue/q", id="0")
    amqp.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    (reply,) = client.take()
    assert reply.command == "ERROR" and b"subscription '0'" in reply.body and client.ended


def test_what_a_subscription_left_unanswered_is_answered_after_its_end(harness: Harness) -> None:
    reader, messages = subscribed(harness, "client")
    reader.send("UNSUBSCRIBE", id="0")
    reader.send("ACK", id=messages[1].headers["ack"])
    assert unacked(harness) == 2
    again = reader.send("SUBSCRIBE", destination="/queue/q", id="0", ack="client")
    assert again == []
    reader.send("ACK", id=messages[3].headers["ack"])
    assert unacked(harness) == 0


# --- the broker's side ------------------------------------------------------------------------------------------------


def test_a_publisher_waits_while_memory_is_short_and_loses_nothing(harness: Harness) -> None:
    client = stomp_client(harness)
    client.send("SEND", b"0", destination="/queue/q")
    harness.broker.set_alarm("memory", True)
    client.feed(frame("SEND", {"destination": "/queue/q"}, b"1") + frame("SEND", {"destination": "/queue/q"}, b"2"))
    assert int(harness.vhost.queues["q"].ready_count) == 1
    harness.broker.set_alarm("memory", False)
    harness.settle()
    assert int(harness.vhost.queues["q"].ready_count) == 3


def test_a_client_may_declare_little_while_memory_is_short(harness: Harness) -> None:
    client = stomp_client(harness)
    harness.broker.set_alarm("memory", True)
    assert client.send("SUBSCRIBE", destination="/queue/one", id="one", receipt="r")[0].command == "RECEIPT"
    replies = []
    for at in range(40):
        if not client.ended:
            replies += client.send("SUBSCRIBE", destination=f"/queue/{at}", id=str(at))
    assert [reply.command for reply in replies] == ["ERROR"] and b"memory is short" in replies[0].body
    assert len(harness.vhost.queues) < 40


def test_the_broker_says_why_it_closes(harness: Harness) -> None:
    client = stomp_client(harness)
    force_close(client.peer, "maintenance")
    harness.settle()
    (reply,) = client.take()
    assert reply.command == "ERROR" and b"maintenance" in reply.body and client.ended


def test_counts_and_users_are_as_before_when_all_have_gone(harness: Harness) -> None:
    for command in ("DISCONNECT", "NONSENSE"):
        client = stomp_client(harness)
        client.send("SUBSCRIBE", destination="/topic/a", id="0")
        client.send(command)
        assert client.ended
    usage = harness.broker.access.usage("guest")
    assert (usage.connections, usage.channels) == (0, 0)
    assert harness.broker.open_connections == 0 and not harness.vhost.queues


def test_who_asks_for_receipts_faster_than_the_disk_answers_waits(harness: Harness) -> None:
    client = stomp_client(harness)
    client.send("SEND", destination="/queue/q")
    harness.hold_commits = True
    count = 3 * RECEIPTS_MAX_BYTES // 10_000
    for at in range(count):
        client.send("SEND", b"x", destination="/queue/q", persistent="true", receipt=f"{at:010000}")
    assert int(harness.queue("q").ready_count) < count // 2
    harness.hold_commits = False
    harness.settle()
    assert [int(reply.headers["receipt-id"][-9:]) for reply in client.take()] == list(range(count))
    assert int(harness.queue("q").ready_count) == 1 + count
    assert [reply.command for reply in client.send("DISCONNECT", receipt="bye")] == ["RECEIPT"]


def test_receipts_that_wait_behind_a_declaration_are_bounded_too(harness: Harness) -> None:
    client = stomp_client(harness)
    harness.hold_commits = True
    client.send("SUBSCRIBE", destination="/queue/durable", id="0", receipt="first")
    client.send("BEGIN", transaction="t")
    for at in range(2 * REPLIES_MAX):
        client.send("SEND", b"x", destination="/topic/t", transaction="t", receipt=str(at))
    transactions, _ = client.peer.channels[1].uncommitted()
    assert transactions < REPLIES_MAX + 10
    harness.hold_commits = False
    harness.settle()
    assert [reply.headers["receipt-id"] for reply in client.take()] == ["first", *map(str, range(2 * REPLIES_MAX))]


@pytest.mark.parametrize(
    ("command", "undone"),
    [
        (frame("BEGIN", {"transaction": "t", "receipt": "r" * 1000}), frame("ABORT", {"transaction": "t"})),
        (frame("BEGIN", {"transaction": "t"}), frame("ABORT", {"transaction": "t", "receipt": "r" * 1000})),
        (frame("BEGIN", {"transaction": "t"}), frame("COMMIT", {"transaction": "t", "receipt": "r" * 1000})),
        (
            frame("SUBSCRIBE", {"id": "0", "destination": "/topic/t", "receipt": "r" * 1000}),
            frame("UNSUBSCRIBE", {"id": "0"}),
        ),
        (
            frame("SUBSCRIBE", {"id": "0", "destination": "/topic/t"}),
            frame("UNSUBSCRIBE", {"id": "0", "receipt": "r" * 1000}),
        ),
    ],
    ids=["BEGIN", "ABORT", "COMMIT", "SUBSCRIBE", "UNSUBSCRIBE"],
)
def test_who_does_not_take_receipts_is_not_read_beyond_a_limit_and_then_again(command: bytes, undone: bytes) -> None:
    harness = Harness(outbox_soft_bytes=10_000, outbox_hard_bytes=20_000)
    client = stomp_client(harness)
    client.client.stalled = True
    for _ in range(100):
        client.feed(command + undone)
    assert 20_000 < client.peer.outbox.waiting_bytes() < 25_000
    assert client.peer.paused
    harness.wake(client.client)
    assert [reply.command for reply in client.take()] == ["RECEIPT"] * 100
    assert not client.peer.paused


def test_acknowledgements_are_taken_while_much_waits() -> None:
    harness = Harness(outbox_soft_bytes=1000, outbox_hard_bytes=2000)
    client = stomp_client(harness)
    client.send("SEND", b"x" * 3000, destination="/queue/q")
    client.client.stalled = True
    client.send("SUBSCRIBE", destination="/queue/q", id="0", ack="client")
    assert harness.queue("q").unacked_count == 1
    client.send("ACK", id=f"{client.peer.session_name}@@1")
    assert harness.queue("q").unacked_count == 0


def test_queues_that_are_gone_are_not_remembered(harness: Harness) -> None:
    client = stomp_client(harness)
    for at in range(3 * DECLARED_MIN):
        client.send("SEND", b"x", **{"destination": f"/queue/q{at}", "x-expires": 1000, "durable": "false"})
        if at % 100 == 0:
            harness.pass_time(2)
    session = client.peer.channels[1]
    assert isinstance(session, StompSession)
    assert len(session._declared) <= DECLARED_MIN
