"""Policies hold at once for present and future objects, and only as long as they exist."""

from __future__ import annotations

import json

import pytest
from engine_harness import Client, Harness, Refusal, exchange_declare, queue_declare

from warren.amqp import methods as m
from warren.amqp.field_table import EMPTY_TABLE
from warren.vhosts.metadata import ExchangePut, PolicyDelete, PolicyPut, QueuePut, VhostDelete, VhostPut

from .rules import rule


def put(
    harness: Harness,
    name: str = "p",
    pattern: str = "^x",
    apply_to: str = "all",
    priority: int = 0,
    *,
    vhost: str = "/",
    operator: bool = False,
    **definition: object,
) -> None:
    """Set a policy; underscores in keys stand for hyphens."""
    settings = json.dumps({key.replace("_", "-"): value for key, value in definition.items()})
    harness.broker.administer(PolicyPut(vhost, name, pattern, apply_to, priority, settings, operator))
    harness.settle()


def delete(harness: Harness, name: str = "p") -> None:
    harness.broker.administer(PolicyDelete("/", name))
    harness.settle()


def ready(harness: Harness, queue: str) -> int:
    return int(harness.queue(queue).ready_count)


@pytest.fixture
def aside(client: Client) -> None:
    """Exchanges x and aside and other; queue q is bound to x by k, queues a and o get all of the other two."""
    for name, kind in (("x", "direct"), ("aside", "fanout"), ("other", "fanout")):
        client.declare_exchange(name, kind)
    for queue, exchange, key in (("q", "x", "k"), ("a", "aside", ""), ("o", "other", "")):
        client.declare(queue)
        client.bind(queue, exchange, key)


# --- alternate exchanges ----------------------------------------------------------------------------------------------


@rule("rabbitmq.policy.alternate", "A policy gives an exchange its alternate at once, and takes it away again.")
@pytest.mark.usefixtures("aside")
def test_an_alternate_exchange_comes_and_goes(client: Client, harness: Harness) -> None:
    def publish_all() -> tuple[int, int, int]:
        # Twice each: the second time the route is in the cache.
        for key in ("k", "nobody", "k", "nobody"):
            client.publish("x", key)
        return ready(harness, "q"), ready(harness, "a"), ready(harness, "o")

    assert publish_all() == (2, 0, 0)
    put(harness, alternate_exchange="aside")
    assert publish_all() == (4, 2, 0)
    put(harness, alternate_exchange="other")
    assert publish_all() == (6, 2, 2)
    put(harness, pattern="^y", alternate_exchange="aside")
    assert publish_all() == (8, 2, 2)
    put(harness, alternate_exchange="aside")
    delete(harness)
    assert publish_all() == (10, 2, 2)


@rule("rabbitmq.policy.alternate", "The argument of an exchange goes before its policy, and is what is compared.")
@pytest.mark.usefixtures("aside")
def test_the_argument_wins(client: Client, harness: Harness) -> None:
    put(harness, alternate_exchange="other")
    client.declare_exchange("x1", arguments={"alternate-exchange": "aside"})
    client.declare_exchange("x2")
    client.publish("x1", "")
    client.publish("x2", "")
    assert (ready(harness, "a"), ready(harness, "o")) == (1, 1)
    client.declare_exchange("x2")
    delete(harness)
    client.publish("x1", "")
    client.publish("x2", "")
    assert (ready(harness, "a"), ready(harness, "o")) == (2, 1)


@rule("rabbitmq.policy.alternate", "A policy holds for exchanges declared later, and those that were always there.")
@pytest.mark.usefixtures("aside")
def test_policies_hold_for_all_exchanges(client: Client, harness: Harness) -> None:
    put(harness, pattern="", apply_to="exchanges", alternate_exchange="aside")
    client.declare_exchange("late")
    client.publish("late", "")
    client.publish("amq.topic", "")
    client.publish("amq.headers", "")
    assert ready(harness, "a") == 3


@rule("rabbitmq.policy.alternate", "The default exchange has no alternate, whatever a policy says.")
@pytest.mark.usefixtures("aside")
def test_the_default_exchange_has_no_alternate(client: Client, harness: Harness) -> None:
    put(harness, pattern="", alternate_exchange="aside")
    client.publish("", "no such queue", mandatory=True)
    (returned,) = client.take()
    assert isinstance(returned.method, m.BasicReturn)
    assert ready(harness, "a") == 0


@rule(
    "rabbitmq.policy.alternate",
    "What the broker publishes itself and nobody is bound to does not go to an alternate.",
    deviation="In RabbitMQ it does; a policy for all exchanges would fill a queue with traces and events.",
)
@pytest.mark.usefixtures("aside")
def test_the_brokers_own_messages_have_no_alternate(client: Client, harness: Harness) -> None:
    put(harness, pattern="", alternate_exchange="aside")
    client.declare_exchange("told of")
    client.declare("told of")
    assert ready(harness, "a") == 0


@rule("rabbitmq.policy.alternate", "An alternate need not exist; it is asked from when it does.")
@pytest.mark.usefixtures("aside")
def test_an_alternate_may_come_later(client: Client, harness: Harness) -> None:
    put(harness, alternate_exchange="later")
    client.publish("x", "nobody", mandatory=True)
    (returned,) = client.take()
    assert isinstance(returned.method, m.BasicReturn)
    client.declare_exchange("later", "fanout")
    client.bind("a", "later")
    client.publish("x", "nobody", mandatory=True)
    client.nothing()
    assert ready(harness, "a") == 1


@rule("rabbitmq.policy.alternate", "An alternate that looks at headers looks at those of each message.")
@pytest.mark.usefixtures("aside")
def test_an_alternate_may_route_by_headers(client: Client, harness: Harness) -> None:
    client.bind("a", "amq.headers", arguments={"kind": "a"})
    client.publish("x", "nobody")
    put(harness, alternate_exchange="amq.headers")
    for kind in (b"\x04kindS\x00\x00\x00\x01a", b"\x04kindS\x00\x00\x00\x01b") * 2:
        client.publish("x", "nobody", headers=len(kind).to_bytes(4, "big") + kind)
    assert ready(harness, "a") == 2


@rule("rabbitmq.policy.alternate", "Setting one by policy needs no permission of those who publish.")
@pytest.mark.usefixtures("aside")
def test_publishers_need_no_permission_for_the_alternate(harness: Harness) -> None:
    harness.add_user("bob", "", "^x$", "")
    put(harness, alternate_exchange="aside")
    bob = harness.channel("bob")
    bob.publish("x", "nobody")
    bob.nothing()
    assert ready(harness, "a") == 1


# --- queues -----------------------------------------------------------------------------------------------------------


def fill(client: Client, harness: Harness, queue: str, count: int = 9) -> int:
    """Publish `count` messages, some to queues that are there and cached; return how many the queue has kept."""
    for _ in range(count):
        client.publish("", queue)
    return ready(harness, queue)


@rule("rabbitmq.policy.queues", "A policy holds at once for the queues that are there, and no longer than it does.")
def test_a_policy_holds_for_a_queue_at_once(client: Client, harness: Harness) -> None:
    client.declare("x")
    assert fill(client, harness, "x") == 9
    put(harness, max_length=4)
    assert ready(harness, "x") == 4
    assert fill(client, harness, "x") == 4
    put(harness, max_length=6)
    assert fill(client, harness, "x") == 6
    put(harness, pattern="^y", max_length=6)
    assert fill(client, harness, "x") == 15
    put(harness, max_length=3)
    delete(harness)
    assert fill(client, harness, "x") == 12


@rule("rabbitmq.policy.queues", "A policy holds for queues declared later: durable, exclusive and server-named ones.")
def test_a_policy_holds_for_queues_to_come(client: Client, harness: Harness) -> None:
    put(harness, pattern="", max_length=2)
    names = [
        client.declare("x", durable=True).queue,
        client.declare("y", exclusive=True, auto_delete=True).queue,
        client.declare("").queue,
    ]
    assert [fill(client, harness, name) for name in names] == [2, 2, 2]


@rule("rabbitmq.policy.queues", "Of a number in argument, policy and operator policy the smallest holds.")
@pytest.mark.parametrize(
    ("argument", "user", "operator", "kept"),
    [(5, 3, 4, 3), (3, 4, 5, 3), (4, 5, 3, 3), (None, 3, 2, 2), (None, None, 2, 2), (4, None, None, 4)],
)
def test_the_smallest_number_holds(
    client: Client, harness: Harness, argument: int | None, user: int | None, operator: int | None, kept: int
) -> None:
    client.declare("x", arguments={} if argument is None else {"x-max-length": argument})
    if user is not None:
        put(harness, max_length=user)
    if operator is not None:
        put(harness, operator=True, max_length=operator)
    assert fill(client, harness, "x") == kept


@rule("rabbitmq.policy.queues", "Of a text the argument holds, then the operator policy's, then the policy's.")
def test_the_argument_holds_before_the_policy(client: Client, harness: Harness) -> None:
    client.declare("x1", arguments={"x-overflow": "drop-head"})
    client.declare("x2")
    put(harness, max_length=2, overflow="reject-publish")
    for name in ("x1", "x2"):
        for body in (b"1", b"2", b"3"):
            client.publish("", name, body)
    kept = {}
    for name in ("x1", "x2"):
        client.consume(name, no_ack=True)
        kept[name] = client.bodies()
    assert kept == {"x1": [b"2", b"3"], "x2": [b"1", b"2"]}
    put(harness, operator=True, overflow="drop-head")
    client.declare("x3")
    for body in (b"1", b"2", b"3"):
        client.publish("", "x3", body)
    client.consume("x3", no_ack=True)
    assert client.bodies() == [b"2", b"3"]


@rule("rabbitmq.policy.queues", "A policy for exchanges, or for quorum queues, does not touch a classic queue.")
@pytest.mark.parametrize("apply_to", ["exchanges", "quorum_queues", "streams"])
def test_policies_for_others_do_not_touch_a_queue(client: Client, harness: Harness, apply_to: str) -> None:
    client.declare("x")
    put(harness, apply_to=apply_to, max_length=2)
    assert fill(client, harness, "x") == 9


@rule(
    "rabbitmq.policy.queues", "A policy with a key that a queue's type lacks does not hold for it, the next one does."
)
def test_a_key_that_a_queue_lacks_lets_the_policy_pass_over_it(client: Client, harness: Harness) -> None:
    client.declare("x")
    put(harness, "high", priority=1, max_length=2, dead_letter_strategy="at-most-once")
    put(harness, "low", max_length=5)
    assert fill(client, harness, "x") == 5


@rule("rabbitmq.policy.queues", "A policy is no part of a queue's declaration: redeclaring as before is equivalent.")
def test_a_policy_is_not_compared(client: Client, harness: Harness) -> None:
    client.declare("x", arguments={"x-max-length": 9})
    put(harness, max_length=2)
    client.declare("x", arguments={"x-max-length": 9})
    assert client.refused(1, queue_declare("x", arguments={"x-max-length": 2})).code == 406


# --- which policy -----------------------------------------------------------------------------------------------------


@rule("rabbitmq.policy", "One policy applies, that of the highest priority, even if it says nothing of the matter.")
@pytest.mark.usefixtures("aside")
def test_one_policy_applies(client: Client, harness: Harness) -> None:
    put(harness, "low", alternate_exchange="aside")
    client.publish("x", "nobody")
    assert ready(harness, "a") == 1
    put(harness, "high", priority=1, max_length=10)
    client.publish("x", "nobody")
    assert ready(harness, "a") == 1
    put(harness, "high", apply_to="queues", priority=1, max_length=10)
    client.publish("x", "nobody")
    assert ready(harness, "a") == 2


@rule("rabbitmq.policy", "Of equal priorities the first by name applies.")
@pytest.mark.usefixtures("aside")
def test_ties_go_by_name(client: Client, harness: Harness) -> None:
    put(harness, "b", alternate_exchange="aside")
    put(harness, "a", alternate_exchange="other")
    client.publish("x", "nobody")
    assert (ready(harness, "a"), ready(harness, "o")) == (0, 1)


@rule("rabbitmq.policy", "Policies are those of one vhost, and go with it.")
def test_policies_belong_to_a_vhost(harness: Harness) -> None:
    for name in ("v", "w"):
        harness.broker.administer(VhostPut(name))
        harness.permit("guest", vhost=name)
    put(harness, pattern="", vhost="v", alternate_exchange="amq.fanout")
    alternates = {name: vhost.exchanges["amq.topic"].alternate for name, vhost in harness.broker.vhosts.items()}
    assert alternates == {"/": "", "v": "amq.fanout", "w": ""}
    harness.broker.administer(VhostDelete("v"))
    harness.broker.administer(VhostPut("v"))
    vhost = harness.broker.vhosts["v"]
    assert (vhost.exchanges["amq.topic"].alternate, vhost.policies.policies) == ("", {})


@rule("rabbitmq.policy.operator", "Operator policies do not touch exchanges.")
@pytest.mark.usefixtures("aside")
def test_operator_policies_are_for_queues(client: Client, harness: Harness) -> None:
    put(harness, alternate_exchange="aside")
    put(harness, pattern="", priority=9, operator=True, max_length=1000)
    client.publish("x", "nobody")
    assert ready(harness, "a") == 1


# --- administration ---------------------------------------------------------------------------------------------------


@rule("rabbitmq.policy", "A policy that is not valid is refused and changes nothing.")
@pytest.mark.usefixtures("aside")
def test_an_invalid_policy_changes_nothing(client: Client, harness: Harness) -> None:
    put(harness, alternate_exchange="aside")
    tickets = harness.broker.journal.last_ticket
    for change, text in (
        (PolicyPut("/", "p", "(", "all", 0, '{"expires":1}'), "pattern should be regular expression but is invalid"),
        (PolicyPut("/", "p", "", "all", 0, '{"expires":0}'), "0 is not a valid queue expiry"),
        (PolicyPut("nowhere", "p", "", "all", 0, '{"expires":1}'), "vhost 'nowhere' does not exist"),
        (PolicyDelete("nowhere", "p"), "vhost 'nowhere' does not exist"),
        (PolicyPut("/", "p\x00", "", "all", 0, '{"expires":1}'), "name contains a NUL character"),
    ):
        with pytest.raises(ValueError, match=text.replace("(", r"\(")):
            harness.broker.administer(change)
    assert harness.broker.journal.last_ticket == tickets
    client.publish("x", "nobody")
    assert ready(harness, "a") == 1


@rule("rabbitmq.policy", "Policies are stored like everything durable: whoever sets one gets a ticket to wait for.")
def test_policies_are_journalled(harness: Harness) -> None:
    harness.hold_commits = True
    change = PolicyPut("/", "p", "", "all", 0, '{"alternate-exchange":"amq.fanout"}')
    ticket = harness.broker.administer(change)
    harness.settle()
    assert harness.broker.journal.committed_ticket < ticket
    harness.hold_commits = False
    harness.settle()
    assert (harness.take_changes(), harness.broker.journal.committed_ticket) == ([change], ticket)


@rule("rabbitmq.policy", "After a start policies hold for what is restored.")
def test_policies_hold_after_a_start(harness: Harness) -> None:
    harness.broker.restore(PolicyPut("/", "p", "^x", "all", 0, '{"alternate-exchange":"amq.fanout"}'))
    harness.broker.restore(PolicyPut("/", "p", "^x", "all", 0, '{"max-length":2}', operator=True))
    harness.broker.restore(ExchangePut("/", "x", "direct", auto_delete=False, internal=False, arguments=EMPTY_TABLE))
    harness.broker.restore(QueuePut("/", "x", False, EMPTY_TABLE, 1))
    client = harness.channel()
    client.declare("q")
    client.bind("q", "amq.fanout")
    client.publish("x", "nobody")
    assert ready(harness, "q") == 1
    assert fill(client, harness, "x") == 2


@rule("rabbitmq.policy", "A policy is no part of a declaration: redeclaring with its value as an argument differs.")
@pytest.mark.usefixtures("aside")
def test_a_policy_is_no_part_of_a_declaration(client: Client, harness: Harness) -> None:
    put(harness, alternate_exchange="aside")
    refusal = client.refused(1, exchange_declare("x", arguments={"alternate-exchange": "aside"}))
    text = (
        "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange 'x' in vhost '/': received the value "
        "'aside' of type 'longstr' but current is none"
    )
    assert refusal == Refusal("channel", 406, text, m.ExchangeDeclare)
