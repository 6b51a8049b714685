"""Permissions: every operation with the permissions it needs, live changes, topic permissions."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from engine_harness import Client, Harness, Refusal, basic_consume, exchange_declare, publish_frames, queue_declare

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import EMPTY_TABLE, encode_table
from warren.vhosts.metadata import (
    PermissionPut,
    TopicPermissionDelete,
    TopicPermissionPut,
    UserDelete,
    UserPut,
    VhostDelete,
    VhostPut,
)

from .rules import rule

ACTIONS = ("configure", "write", "read")


class Operation(NamedTuple):
    """A method, or the frames of a publish, and every permission it needs: action, kind, name."""

    call: Any
    needs: tuple[tuple[str, str, str], ...]


def exchange_binding(kind: type[Any]) -> Any:
    return kind(0, "destination", "source", "k", False, EMPTY_TABLE)


BINDS_QUEUE = (("write", "queue", "q"), ("read", "exchange", "source"))
BINDS_EXCHANGE = (("write", "exchange", "destination"), ("read", "exchange", "source"))

OPERATIONS = {
    "exchange.declare": Operation(exchange_declare("new"), (("configure", "exchange", "new"),)),
    "exchange.declare existing": Operation(exchange_declare("source"), (("configure", "exchange", "source"),)),
    "exchange.declare with alternate": Operation(
        exchange_declare("new", arguments={"alternate-exchange": "aside"}),
        (("configure", "exchange", "new"), ("read", "exchange", "new"), ("write", "exchange", "aside")),
    ),
    "exchange.declare with the default as alternate": Operation(
        exchange_declare("new", arguments={"alternate-exchange": ""}),
        (("configure", "exchange", "new"), ("read", "exchange", "new"), ("write", "exchange", "amq.default")),
    ),
    "exchange.delete": Operation(
        m.ExchangeDelete(0, "source", if_unused=False, no_wait=False), (("configure", "exchange", "source"),)
    ),
    "exchange.bind": Operation(exchange_binding(m.ExchangeBind), BINDS_EXCHANGE),
    "exchange.unbind": Operation(exchange_binding(m.ExchangeUnbind), BINDS_EXCHANGE),
    "queue.declare": Operation(queue_declare("new"), (("configure", "queue", "new"),)),
    "queue.declare existing": Operation(queue_declare("q"), (("configure", "queue", "q"),)),
    "queue.declare with dead letters": Operation(
        queue_declare("new", arguments={"x-dead-letter-exchange": "aside"}),
        (("configure", "queue", "new"), ("read", "queue", "new"), ("write", "exchange", "aside")),
    ),
    "queue.declare with dead letters to the default": Operation(
        queue_declare("new", arguments={"x-dead-letter-exchange": ""}),
        (("configure", "queue", "new"), ("read", "queue", "new"), ("write", "exchange", "amq.default")),
    ),
    "queue.delete": Operation(
        m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False), (("configure", "queue", "q"),)
    ),
    "queue.bind": Operation(m.QueueBind(0, "q", "source", "k", False, EMPTY_TABLE), BINDS_QUEUE),
    "queue.unbind": Operation(m.QueueUnbind(0, "q", "source", "k", EMPTY_TABLE), BINDS_QUEUE),
    "queue.purge": Operation(m.QueuePurge(0, "q", False), (("read", "queue", "q"),)),
    "basic.get": Operation(m.BasicGet(0, "q", True), (("read", "queue", "q"),)),
    "basic.consume": Operation(basic_consume("q"), (("read", "queue", "q"),)),
    "basic.publish": Operation(publish_frames("source", "k"), (("write", "exchange", "source"),)),
    "basic.publish to the default": Operation(publish_frames("", "q"), (("write", "exchange", "amq.default"),)),
}


@pytest.fixture
def topology(client: Client) -> None:
    for name in ("source", "destination", "aside"):
        client.declare_exchange(name)
    client.declare("q")


def only(needs: list[tuple[str, str, str]]) -> list[str]:
    """Patterns that grant these permissions and no others."""
    patterns = []
    for action in ACTIONS:
        names = [name.replace(".", "\\.") for needed, _, name in needs if needed == action]
        patterns.append(f"^({'|'.join(names)})$" if names else "^$")
    return patterns


def attempt(client: Client, operation: Operation) -> Refusal | None:
    """Try `operation`; return how it was refused."""
    call = operation.call
    client.feed(call if isinstance(call, bytes) else method_frame(1, call))
    received = client.take()
    if not received or not isinstance(received[-1].method, m.ChannelClose | m.ConnectionClose):
        return None
    close = received[-1].method
    assert isinstance(close, m.ChannelClose)
    assert (close.class_id, close.method_id) != (0, 0)
    return Refusal("channel", close.reply_code, close.reply_text, None)


@rule("abuse.authorize", "Each operation succeeds with the permissions it needs and no others.")
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.usefixtures("topology")
def test_an_operation_needs_no_more_than_its_permissions(harness: Harness, name: str) -> None:
    operation = OPERATIONS[name]
    harness.add_user("bob", *only(list(operation.needs)))
    assert attempt(harness.channel("bob"), operation) is None


@rule("abuse.authorize", "Each operation is refused with 403 without any one of the permissions it needs.")
@rule("rabbitmq.access", "The text names action, kind, name, vhost and user.")
@pytest.mark.parametrize(
    ("name", "missing"),
    [(name, missing) for name, operation in OPERATIONS.items() for missing in range(len(operation.needs))],
)
@pytest.mark.usefixtures("topology")
def test_an_operation_needs_each_of_its_permissions(harness: Harness, name: str, missing: int) -> None:
    operation = OPERATIONS[name]
    needs = list(operation.needs)
    action, kind, what = needs.pop(missing)
    harness.add_user("bob", *only(needs))
    text = f"ACCESS_REFUSED - {action} access to {kind} '{what}' in vhost '/' refused for user 'bob'"
    assert attempt(harness.channel("bob"), operation) == Refusal("channel", 403, text, None)
    assert "new" not in harness.vhost.queues
    assert "new" not in harness.vhost.exchanges


@rule("abuse.authorize", "Permissions are asked for before it is told whether something exists or is locked.")
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
def test_without_permission_nothing_is_learnt(harness: Harness, client: Client, name: str, exists: bool) -> None:
    if exists:
        for exchange in ("source", "destination", "aside", "new"):
            client.declare_exchange(exchange)
        client.declare("q", exclusive=True)
        client.declare("new", exclusive=True)
    harness.add_user("bob", "", "", "")
    refusal = attempt(harness.channel("bob"), OPERATIONS[name])
    assert refusal is not None and refusal.code == 403


PASSIVE = {"queue": queue_declare("q", passive=True), "exchange": exchange_declare("source", passive=True)}


@rule("rabbitmq.access.passive", "A passive declare needs any one of the three permissions, and is 403 without.")
@pytest.mark.parametrize("kind", PASSIVE)
@pytest.mark.usefixtures("topology")
def test_a_passive_declare_needs_any_permission(harness: Harness, kind: str) -> None:
    operation = Operation(PASSIVE[kind], ())
    name = "q" if kind == "queue" else "source"
    for action in ACTIONS:
        harness.add_user(action, *only([(action, kind, name)]))
        assert attempt(harness.channel(action), operation) is None
    harness.add_user("none", "", "", "")
    text = f"ACCESS_REFUSED - configure access to {kind} '{name}' in vhost '/' refused for user 'none'"
    assert attempt(harness.channel("none"), operation) == Refusal("channel", 403, text, None)


@rule("rabbitmq.access", "Patterns are searched, not matched from the start; an empty one matches nothing.")
@pytest.mark.parametrize(
    ("pattern", "name", "allowed"),
    [
        ("b", "abc", True),
        ("^b", "abc", False),
        ("", "abc", False),
        ("^$", "abc", False),
        ("^(a|x)", "abc", True),
        (".*", "\u00fc", True),
        ("^\u00fc$", "\u00fc", True),
    ],
)
def test_patterns_are_searched(harness: Harness, pattern: str, name: str, allowed: bool) -> None:
    harness.add_user("bob", pattern, "", "")
    refusal = attempt(harness.channel("bob"), Operation(queue_declare(name), ()))
    assert (refusal is None) == allowed


@rule("rabbitmq.access", "A queue that the server names needs configure on the name it gets.")
def test_server_named_queues_need_configure(harness: Harness) -> None:
    harness.add_user("bob", "^bob", "", "")
    refusal = attempt(harness.channel("bob"), Operation(queue_declare(""), ()))
    assert refusal is not None and refusal.code == 403
    harness.permit("bob", "^amq\\.gen", "", "")
    assert attempt(harness.channel("bob"), Operation(queue_declare(""), ())) is None


@rule("rabbitmq.access.reply-to", "Consuming replies needs no permission on any queue.")
def test_direct_replies_need_no_queue_permission(harness: Harness) -> None:
    harness.add_user("bob", "", "^amq\\.default$", "")
    bob = harness.channel("bob")
    bob.consume("amq.rabbitmq.reply-to", no_ack=True)
    bob.publish("", "service", reply_to="amq.rabbitmq.reply-to")
    bob.nothing()


# --- patterns of bad will ---------------------------------------------------------------------------------------------


@rule("abuse.patterns", "Patterns that explode elsewhere are answered at once.")
def test_an_exploding_pattern_is_harmless(harness: Harness) -> None:
    harness.add_user("bob", "^(a+)+$", "", "")
    refusal = attempt(harness.channel("bob"), Operation(queue_declare("a" * 254 + "!"), ()))
    assert refusal is not None and refusal.code == 403


@rule("rabbitmq.access", "A pattern may begin by excluding names.")
@pytest.mark.parametrize(("name", "allowed"), [("orders", True), ("sys.orders", False), ("a.sys.", True)])
def test_patterns_may_exclude(harness: Harness, name: str, allowed: bool) -> None:
    harness.add_user("bob", r"^(?!sys\.).*", "", "")
    refusal = attempt(harness.channel("bob"), Operation(queue_declare(name), ()))
    assert (refusal is None) == allowed


@rule("abuse.patterns", "What is no pattern of RE2, or longer than 1 KiB, is refused and changes nothing.")
@pytest.mark.parametrize("pattern", ["(", "(?!a)", "a" * 1025, "(?P<n>a)(?P=n)"])
@pytest.mark.usefixtures("topology")
def test_an_impossible_pattern_changes_nothing(harness: Harness, pattern: str) -> None:
    harness.add_user("bob", ".*", "", "")
    with pytest.raises(ValueError, match="pattern"):
        harness.broker.administer(PermissionPut("bob", "/", "", "", pattern))
    assert attempt(harness.channel("bob"), Operation(queue_declare("x"), ())) is None


@rule("abuse.patterns", "Names put into patterns are quoted: a user called .* is not everybody.")
def test_names_in_patterns_are_quoted(harness: Harness) -> None:
    harness.add_user(".*")
    harness.broker.administer(TopicPermissionPut(".*", "/", "amq.topic", "^{username}\\.", "^$"))
    client = harness.channel(".*")
    client.publish("amq.topic", ".*.news")
    client.nothing()
    client.publish("amq.topic", "bob.news")
    assert client.refusal().code == 403


@rule("abuse.patterns", "A topic pattern that a name makes too long is refused whole, and its user can still log in.")
def test_names_that_make_a_pattern_too_long_are_refused_when_it_is_set(harness: Harness) -> None:
    name = "." * 200
    harness.add_user(name)
    with pytest.raises(ValueError, match="pattern longer than 1024 bytes"):
        harness.broker.administer(TopicPermissionPut(name, "/", "amq.topic", "^{username}", "^$"))
    assert harness.broker.access.topic_permissions == {}
    client = harness.channel(name)
    client.publish("amq.topic", "anything")
    client.nothing()


# --- topic permissions ------------------------------------------------------------------------------------------------


def topic_refusal(action: str, key: str) -> str:
    return (
        f"ACCESS_REFUSED - {action} access to topic '{key}' in exchange 'amq.topic' in vhost '/' refused for user 'bob'"
    )


@pytest.fixture
def bob(harness: Harness) -> Client:
    """A user with permission to write news and read weather, of topic amq.topic."""
    harness.add_user("bob")
    harness.broker.administer(TopicPermissionPut("bob", "/", "amq.topic", "^news\\.", "^weather\\.{username}"))
    return harness.channel("bob")


@rule("rabbitmq.access.topic", "A topic permission limits the routing keys of publishes.")
def test_topic_permissions_limit_publishes(bob: Client) -> None:
    bob.publish("amq.topic", "news.today")
    bob.nothing()
    bob.publish("amq.topic", "weather.today")
    assert bob.refusal() == Refusal("channel", 403, topic_refusal("write", "weather.today"), m.BasicPublish)


@rule("rabbitmq.access.topic", "The keys of CC and BCC are checked like the routing key.")
@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_topic_permissions_limit_copies(bob: Client, header: str) -> None:
    bob.publish("amq.topic", "news.today", headers=encode_table({header: ["news.x"]}))
    bob.nothing()
    bob.publish("amq.topic", "news.today", headers=encode_table({header: ["news.x", "secret"]}))
    assert bob.refusal() == Refusal("channel", 403, topic_refusal("write", "secret"), m.BasicPublish)


@rule("rabbitmq.access.topic", "The binding key of queue.bind and exchange.bind is checked for reading.")
def test_topic_permissions_limit_bindings(bob: Client) -> None:
    bob.declare("q")
    bob.bind("q", "amq.topic", "weather.bob")
    for call in (
        m.QueueBind(0, "q", "amq.topic", "news.#", False, EMPTY_TABLE),
        m.ExchangeBind(0, "amq.fanout", "amq.topic", "news.#", False, EMPTY_TABLE),
    ):
        assert bob.refused(1, call) == Refusal("channel", 403, topic_refusal("read", "news.#"), type(call))


@rule("rabbitmq.access.topic", "Unbinding needs what binding needs.")
def test_topic_permissions_limit_unbinding(bob: Client, client: Client) -> None:
    client.declare("q")
    client.bind("q", "amq.topic", "news.#")
    bind_exchange = m.ExchangeBind(0, "amq.fanout", "amq.topic", "news.#", False, EMPTY_TABLE)
    assert client.call(1, bind_exchange) == m.ExchangeBindOk()
    for call in (
        m.QueueUnbind(0, "q", "amq.topic", "news.#", EMPTY_TABLE),
        m.ExchangeUnbind(0, "amq.fanout", "amq.topic", "news.#", False, EMPTY_TABLE),
    ):
        assert bob.refused(1, call) == Refusal("channel", 403, topic_refusal("read", "news.#"), type(call))


@rule("rabbitmq.access.topic", "A topic is asked for before it is told whether the destination exists.")
def test_topic_permissions_come_before_existence(bob: Client) -> None:
    for call in (
        m.QueueBind(0, "nowhere", "amq.topic", "news.#", False, EMPTY_TABLE),
        m.QueueUnbind(0, "nowhere", "amq.topic", "news.#", EMPTY_TABLE),
        m.ExchangeBind(0, "nowhere", "amq.topic", "news.#", False, EMPTY_TABLE),
        m.ExchangeUnbind(0, "nowhere", "amq.topic", "news.#", False, EMPTY_TABLE),
    ):
        assert bob.refused(1, call) == Refusal("channel", 403, topic_refusal("read", "news.#"), type(call))


@rule("rabbitmq.access.topic", "{username} and {vhost} stand for the names of whoever asks.")
def test_names_stand_in_topic_patterns(harness: Harness) -> None:
    harness.broker.administer(VhostPut("v.1"))
    for user in ("ann", "bob"):
        harness.add_user(user)
        for vhost in ("/", "v.1"):
            harness.permit(user, vhost=vhost)
            harness.broker.administer(TopicPermissionPut(user, vhost, "amq.topic", "^{vhost}:{username}$", "^$"))
    for user, vhost in (("ann", "/"), ("bob", "v.1")):
        client = harness.client(user, vhost)
        client.open(1)
        client.publish("amq.topic", f"{vhost}:{user}")
        client.nothing()
        for key in (f"{vhost}:x{user}", "v-1:bob", f"{{vhost}}:{user}"):
            client.publish("amq.topic", key)
            assert client.refusal().code == 403
            client.open(1)


@rule("abuse.revocation", "A topic permission changes which keys an open channel may bind.")
def test_topic_permissions_for_bindings_change_live(bob: Client, harness: Harness) -> None:
    bob.declare("q")
    bind = m.QueueBind(0, "q", "amq.topic", "news.#", False, EMPTY_TABLE)
    assert bob.refused(1, bind).code == 403
    harness.broker.administer(TopicPermissionPut("bob", "/", "amq.topic", "", "^news\\."))
    assert bob.call(1, bind) == m.QueueBindOk()
    harness.broker.administer(TopicPermissionPut("bob", "/", "amq.topic", "", "^weather$"))
    assert bob.refused(1, bind).code == 403


@rule("rabbitmq.access.topic", "Other exchanges and other users are not touched.")
def test_topic_permissions_hold_for_one_exchange_and_user(bob: Client, client: Client) -> None:
    bob.publish("amq.direct", "weather")
    client.publish("amq.topic", "weather")
    bob.declare_exchange("t", "topic")
    bob.publish("t", "weather")
    bob.nothing()
    client.nothing()


@rule("abuse.revocation", "A topic permission changes what an open channel may do, cached routes or not.")
def test_topic_permissions_change_live(bob: Client, harness: Harness) -> None:
    bob.publish("amq.topic", "news.today")
    bob.publish("amq.topic", "news.today")
    harness.broker.administer(TopicPermissionPut("bob", "/", "amq.topic", "^nothing$", ""))
    bob.publish("amq.topic", "news.today")
    assert bob.refusal().text == topic_refusal("write", "news.today")
    bob.open(1)
    harness.broker.administer(TopicPermissionDelete("bob", "/", "amq.topic"))
    bob.publish("amq.topic", "anything")
    bob.nothing()


# --- live changes -----------------------------------------------------------------------------------------------------


@rule("abuse.revocation", "A lost write permission stops the next publish of an open channel, cached routes or not.")
def test_a_lost_write_permission_stops_publishing(harness: Harness, client: Client) -> None:
    harness.add_user("bob")
    bob = harness.channel("bob")
    client.declare("q")
    for _ in range(3):
        bob.publish("", "q")
    harness.permit("bob", write="^other$")
    bob.publish("", "q")
    text = "ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for user 'bob'"
    assert bob.refusal() == Refusal("channel", 403, text, m.BasicPublish)
    assert harness.queue("q").ready_count == 3
    bob.open(1)
    harness.permit("bob")
    bob.publish("", "q")
    assert harness.queue("q").ready_count == 4


@rule("abuse.revocation", "A content in flight goes through; the next one does not.")
def test_a_content_in_flight_goes_through(harness: Harness, client: Client) -> None:
    harness.add_user("bob")
    bob = harness.channel("bob")
    client.declare("q")
    data = publish_frames("", "q", b"body")
    bob.feed(data[:-3])
    harness.permit("bob", write="")
    bob.feed(data[-3:])
    bob.nothing()
    assert harness.queue("q").ready_count == 1


@rule("abuse.revocation", "Consumers of a queue that may no longer be read are cancelled; their unacked stay.")
def test_a_lost_read_permission_cancels_consumers(harness: Harness, client: Client) -> None:
    harness.add_user("bob")
    bob = harness.channel("bob")
    client.declare("p")
    client.declare("q")
    bob.consume("p", "keeps")
    bob.consume("q", "loses")
    client.publish("", "q", b"1")
    assert bob.bodies() == [b"1"]
    harness.permit("bob", read="^p$")
    assert bob.expect(m.BasicCancel) == m.BasicCancel("loses", True)
    client.publish("", "q", b"2")
    client.publish("", "p", b"3")
    assert bob.bodies() == [b"3"]
    bob.send(1, m.BasicAck(1, False))
    assert (harness.queue("q").ready_count, harness.queue("q").unacked_count) == (1, 0)
    harness.permit("bob")
    bob.nothing()


@rule("abuse.revocation", "The permission for each other operation is looked up anew each time.")
@pytest.mark.parametrize("name", [name for name in OPERATIONS if "publish" not in name])
@pytest.mark.usefixtures("topology")
def test_lost_permissions_hold_for_the_next_operation(harness: Harness, name: str) -> None:
    harness.add_user("bob")
    bob = harness.channel("bob")
    harness.permit("bob", "", "", "")
    refusal = attempt(bob, OPERATIONS[name])
    assert refusal is not None and refusal.code == 403


@rule("abuse.revocation", "A deleted user's connections are closed with 320, and nobody else's.")
def test_a_deleted_user_is_closed(harness: Harness, client: Client) -> None:
    harness.add_user("bob")
    bob = harness.channel("bob")
    harness.broker.administer(UserDelete("bob"))
    harness.settle()
    assert bob.refusal() == Refusal("connection", 320, "CONNECTION_FORCED - user 'bob' was deleted", None)
    client.nothing()


@rule("abuse.revocation", "A deleted vhost's connections are closed with 320.")
def test_a_deleted_vhost_is_closed(harness: Harness, client: Client) -> None:
    client.declare("q", exclusive=True)
    harness.broker.administer(VhostDelete("/"))
    harness.settle()
    assert client.refusal() == Refusal("connection", 320, "CONNECTION_FORCED - vhost '/' was deleted", None)


@rule("abuse.revocation", "A lost tag holds from the next message on.")
def test_a_lost_tag_holds_at_once(harness: Harness) -> None:
    harness.add_user("bob", tags=("impersonator",))
    bob = harness.channel("bob")
    bob.publish("", "q", user_id="alice")
    bob.nothing()
    harness.broker.administer(UserPut("bob", "", "", ()))
    bob.publish("", "q", user_id="alice")
    assert bob.refusal().code == 406
