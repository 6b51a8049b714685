"""Sessions inside the process: the permission to open one, and answers that are values."""

from __future__ import annotations

from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import Harness, publish_frames
from peer_frames import USER

from warren.amqp import methods as m
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.errors import AmqpError, ChannelException, ConnectionException
from warren.amqp.field_table import encode_table
from warren.amqp.properties import BasicProperties
from warren.channels.commit_check import CommitCheck
from warren.channels.direct_session import DirectSession, Got, Publish, Published, StagedPublishes
from warren.channels.shared import PAUSED_ALARM, PAUSED_COMMIT, PAUSED_WORK
from warren.channels.transaction import commit_checked
from warren.vhosts.metadata import UserPut, VhostPut


def encoded(**properties: Any) -> bytes:
    made = BasicProperties()
    for name, value in properties.items():
        setattr(made, name, value)
    return made.encode()


NO_PROPERTIES = encoded()


def answers_of(session: DirectSession) -> list[Any]:
    found = list(session.direct.answers)
    session.direct.answers.clear()
    return found


def delete(queue: str) -> m.QueueDelete:
    return m.QueueDelete(0, queue, if_unused=False, if_empty=False, no_wait=False)


@pytest.mark.parametrize(
    ("user", "vhost", "text"),
    [
        (USER, "nowhere", "vhost nowhere not found"),
        (USER, "v", f"access to vhost 'v' refused for user '{USER}'"),
        ("bob", "/", "access to vhost '/' refused for user 'bob'"),
        ("nobody", "/", "access to vhost '/' refused for user 'nobody'"),
    ],
)
def test_a_user_acts_only_where_it_may_connect(user: str, vhost: str, text: str) -> None:
    harness = Harness()
    harness.broker.administer(VhostPut("v"))
    harness.broker.administer(UserPut("bob", "", ""))
    with pytest.raises(ConnectionException) as refused:
        harness.broker.open_direct(user, vhost)
    assert (refused.value.reply_code, refused.value.explanation) == (530, text)
    assert not harness.broker.connections


@pytest.mark.parametrize("properties", [NO_PROPERTIES, encoded(delivery_mode=2), encoded(expiration="90000")])
def test_a_large_body_is_not_copied(properties: bytes) -> None:
    """To copy 30 MB twice held up all others for some 30 ms."""
    harness = DurableHarness()
    session = harness.broker.open_direct(USER, "/")
    session.command(QueueDeclaration("q", durable=True))
    parts = [bytes([number]) * (1 << 19) for number in range(4)]
    session.command(Publish("", "q", properties, *parts))
    session.command(m.BasicGet(0, "q", True))
    harness.settle()
    got = next(each for each in answers_of(session) if isinstance(each, Got))
    assert got.message.pieces is not None
    assert [piece for piece in got.message.pieces if len(piece) >= 1 << 19] == parts
    assert all(any(piece is part for piece in got.message.pieces) for part in parts)
    assert got.message.body() == b"".join(parts)
    session.command(Publish("", "q", properties, parts[0] * 2))
    session.command(m.BasicGet(0, "q", True))
    harness.settle()
    got = next(each for each in answers_of(session) if isinstance(each, Got))
    assert got.message.pieces is not None and got.message.body() is got.message.pieces[2]


def test_the_caller_is_told_when_no_pause_is_left() -> None:
    """(5)"""
    peer = Harness().broker.open_direct(USER, "/").direct
    told: list[None] = []
    peer.on_answer = lambda: told.append(None)
    peer.pause(PAUSED_COMMIT)
    peer.pause(PAUSED_WORK)
    peer.resume(PAUSED_COMMIT)
    assert peer.paused == PAUSED_WORK and not told
    peer.resume(PAUSED_WORK)
    assert peer.paused == 0 and len(told) == 1
    peer.resume(PAUSED_WORK)
    assert len(told) == 1


def test_a_command_that_has_to_wait_is_done_before_later_ones() -> None:
    """(3)"""
    session = Harness().broker.open_direct(USER, "/")
    session.peer.pause(PAUSED_WORK)
    session.command(QueueDeclaration("q", durable=False))
    session.command(delete("q"))
    assert not answers_of(session) and len(session.commands) == 2
    session.peer.resume(PAUSED_WORK)
    session.resume()
    assert answers_of(session) == [m.QueueDeclareOk("q", 0, 0), m.QueueDeleteOk(0)]
    assert not session.commands


def test_an_answer_waits_for_its_change_and_holds_back_later_ones() -> None:
    """(4)"""
    harness = DurableHarness()
    session = harness.broker.open_direct(USER, "/")
    told: list[None] = []
    session.direct.on_answer = lambda: told.append(None)
    session.command(QueueDeclaration("q", durable=True))
    session.command(QueueDeclaration("transient", durable=False))
    assert {"q", "transient"} <= harness.vhost.queues.keys()
    assert not answers_of(session) and not told
    harness.settle()
    assert answers_of(session) == [m.QueueDeclareOk("q", 0, 0), m.QueueDeclareOk("transient", 0, 0)]
    assert len(told) == 2


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (QueueDeclaration("amq.mine", durable=True), 403, "queue name 'amq.mine' contains reserved prefix 'amq.*'"),
        (ExchangeDeclaration("e", "odd", durable=True), 406, "unknown exchange type 'odd'"),
        (delete("q"), None, ""),
        (m.QueuePurge(0, "nowhere", no_wait=False), 404, "no queue 'nowhere' in vhost '/'"),
        (Publish("nowhere", "", NO_PROPERTIES, b""), 404, "no exchange 'nowhere' in vhost '/'"),
        (
            Publish("", "q", encoded(expiration="soon"), b""),
            406,
            "invalid expiration 'soon': no_integer",
        ),
    ],
)
def test_a_refusal_is_the_last_answer_and_the_same_as_a_clients(command: Any, code: int | None, text: str) -> None:
    harness = Harness()
    session = harness.broker.open_direct(USER, "/")
    session.command(command)
    session.command(QueueDeclaration("after", durable=False))
    harness.settle()
    if code is None:
        assert [type(each) for each in answers_of(session)] == [m.QueueDeleteOk, m.QueueDeclareOk]
        return
    (refused,) = answers_of(session)
    assert isinstance(refused, ChannelException)
    assert (refused.reply_code, refused.explanation) == (code, text)
    assert "after" not in harness.vhost.queues and not session.is_open()


def test_a_content_header_that_no_client_could_be_sent_is_refused() -> None:
    harness = Harness()
    session = harness.broker.open_direct(USER, "/")
    properties = encoded(headers=encode_table({"text": "x" * 140_000}))
    session.command(Publish("", "q", properties, b""))
    (refused,) = answers_of(session)
    assert isinstance(refused, ConnectionException)
    size, limit = 12 + len(properties), harness.broker.limits.frame_max_bytes
    assert refused.explanation == f"type 2, {size} octets: {{frame_too_large,{size},{limit - 8}}}"
    assert not session.peer.running


def test_a_session_that_is_closed_from_outside_answers_with_the_reason() -> None:
    harness = Harness()
    session = harness.broker.open_direct(USER, "/")
    session.peer.pause(PAUSED_WORK)
    session.command(QueueDeclaration("q", durable=False))
    harness.broker.shut_down("shutdown")
    harness.settle()
    session.resume()
    (refused,) = answers_of(session)
    assert isinstance(refused, ConnectionException)
    assert (refused.reply_code, refused.explanation) == (320, "broker forced connection closure with reason 'shutdown'")
    assert not session.commands and "q" not in harness.vhost.queues
    session.peer.lost()
    assert not harness.broker.connections


def test_a_publish_is_answered_with_whether_it_was_routed_and_accepted() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    session = harness.broker.open_direct(USER, "/")
    for key in ("q", "q", "nowhere", "q"):
        session.command(Publish("", key, NO_PROPERTIES, b"body"))
        harness.settle()
    assert answers_of(session) == [
        Published(True, True),
        Published(True, False),
        Published(False, True),
        Published(True, False),
    ]
    got = client.get("q", no_ack=True)
    assert got is not None and got.content is not None and got.content.body == b"body"


def test_a_publish_waits_while_publishers_are_blocked() -> None:
    harness = Harness()
    harness.channel().declare("q")
    session = harness.broker.open_direct(USER, "/")
    harness.broker.set_alarm("disk", True)
    session.command(Publish("", "q", NO_PROPERTIES, b""))
    harness.settle()
    assert session.peer.paused == PAUSED_ALARM and not answers_of(session)
    harness.broker.set_alarm("disk", False)
    harness.settle()
    assert session.peer.paused == 0
    session.resume()
    harness.settle()
    assert answers_of(session) == [Published(True, True)]


@pytest.mark.parametrize("size", [0, 1, 4000, 200_000, 3_000_000])
def test_a_message_is_got_as_it_is_and_goes_back_when_the_session_ends(size: int) -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    client.publish("", "q", body, message_id="id")
    session = harness.broker.open_direct(USER, "/")
    session.command(m.BasicGet(0, "q", no_ack=False))
    session.command(m.BasicGet(0, "q", no_ack=False))
    got, empty = answers_of(session)
    assert isinstance(got, Got)
    assert b"".join(got.message.body_parts(size)) == body
    assert (got.delivery_tag, got.redelivered, got.message_count) == (1, False, 0)
    assert empty == m.BasicGetEmpty("")
    session.peer.lost()
    harness.settle()
    again = client.get("q", no_ack=True)
    assert again is not None and again.content is not None
    assert again.method.redelivered and again.content.body == body
    assert again.content.properties.message_id == "id"


def test_staged_messages_are_published_by_the_commit_of_their_transaction() -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    session = harness.broker.open_direct(USER, "/")
    session.command(m.TxSelect())
    bodies = [b"", b"one", b"x" * 300_000, b"last"]
    session.command(StagedPublishes(b"".join(publish_frames("", "q", body) for body in bodies)))
    assert answers_of(session) == [m.TxSelectOk()]
    assert session.transaction is not None and len(session.transaction.publishes) == len(bodies)
    assert client.get("q", no_ack=True) is None
    noted: list[str] = []
    commit_checked(session, CommitCheck(mandatory=True), lambda: noted.append("note"))
    harness.settle()
    assert answers_of(session) == [m.TxCommitOk()] and noted == ["note"]
    received = [client.get("q", no_ack=True) for _ in bodies]
    assert [each.content.body for each in received if each is not None and each.content is not None] == bodies


def test_staged_messages_wait_where_publishers_are_blocked_and_none_is_published_twice() -> None:
    harness = Harness()
    harness.channel().declare("q")
    session = harness.broker.open_direct(USER, "/")
    session.command(m.TxSelect())
    one = publish_frames("", "q", b"body")
    harness.broker.set_alarm("memory", True)
    session.command(StagedPublishes(one * 3))
    assert len(session.commands) == 1
    harness.broker.set_alarm("memory", False)
    harness.settle()
    session.resume()
    assert session.transaction is not None and len(session.transaction.publishes) == 3


def test_a_staged_message_larger_than_the_limit_of_now_is_refused() -> None:
    harness = Harness(message_max_bytes=10)
    session = harness.broker.open_direct(USER, "/")
    session.command(StagedPublishes(publish_frames("", "q", bytes(11))))
    (refused,) = answers_of(session)
    assert isinstance(refused, AmqpError)
    assert refused.explanation == "message size 11 is larger than configured max size 10"


def test_a_persistent_message_is_answered_when_it_is_on_disk() -> None:
    harness = DurableHarness()
    harness.channel().declare("q", durable=True)
    session = harness.broker.open_direct(USER, "/")
    session.command(Publish("", "q", encoded(delivery_mode=2), b"kept"))
    assert not answers_of(session)
    harness.settle()
    assert answers_of(session) == [Published(True, True)]
