"""Permissions that are refused, or were taken by an earlier version, and users that lose their own."""

from __future__ import annotations

import pytest
from engine_harness import Harness
from peer_frames import USER

from warren.amqp import methods as m
from warren.vhosts.metadata import (
    PermissionDelete,
    PermissionPut,
    TopicPermissionDelete,
    TopicPermissionPut,
    UserDelete,
    UserPut,
    VhostDelete,
    VhostPut,
)

BROKEN = "("


@pytest.mark.parametrize(
    "put",
    [
        PermissionPut(USER, "/", BROKEN, "", ""),
        PermissionPut(USER, "/", "", BROKEN, ""),
        PermissionPut(USER, "/", "", "", BROKEN),
        TopicPermissionPut(USER, "/", "amq.topic", BROKEN, ""),
        TopicPermissionPut(USER, "/", "amq.topic", "", BROKEN),
        TopicPermissionPut(USER, "/", "amq.topic", "{username}(", ""),
    ],
)
@pytest.mark.parametrize("is_connected", [True, False])
def test_what_is_no_pattern_is_refused_and_changes_nothing(
    put: PermissionPut | TopicPermissionPut, is_connected: bool
) -> None:
    harness = Harness()
    client = harness.channel() if is_connected else None
    access = harness.broker.access
    before = dict(access.permissions), dict(access.topic_permissions)
    with pytest.raises(ValueError, match="missing"):
        harness.broker.administer(put)
    assert (access.permissions, access.topic_permissions) == before
    if client is not None:
        client.declare("still mine")


@pytest.mark.parametrize("topic", [True, False])
def test_a_pattern_that_is_too_long_today_counts_when_it_was_stored_before(topic: bool) -> None:
    harness = Harness()
    text = "^mine$|" + "x" * 2000
    put = (
        TopicPermissionPut(USER, "/", "amq.topic", text, text) if topic else PermissionPut(USER, "/", text, text, text)
    )
    with pytest.raises(ValueError, match="longer than"):
        harness.broker.administer(put)
    harness.broker.restore(put)
    client = harness.channel()
    client.open(2)
    if topic:
        client.send(1, m.BasicPublish(0, "amq.topic", "mine", mandatory=False, immediate=False))
        client.publish("amq.topic", "mine", number=2)
        client.nothing()
        client.publish("amq.topic", "not mine", number=2)
        assert client.refusal().code == 403
    else:
        client.declare("mine")
        assert client.refused(2, m.QueueDeclare(0, "yours", False, False, False, False, False, bytes(4))).code == 403


def test_all_connections_of_a_user_that_is_deleted_are_closed_whichever_ended_before() -> None:
    harness = Harness()
    harness.add_user("bob")
    first, second, third = (harness.client("bob") for _ in range(3))
    first.hang_up()
    harness.broker.administer(UserDelete("bob"))
    harness.settle()
    for client in (second, third):
        assert client.refusal().code == 320


def test_what_a_user_may_do_is_listed_in_order_and_goes_with_each_permission() -> None:
    harness = Harness()
    broker = harness.broker
    for vhost in ("b", "a"):
        broker.administer(VhostPut(vhost))
    for user in ("bob", "eve"):
        broker.administer(UserPut(user, "", ""))
    puts = [PermissionPut("bob", vhost, ".*", vhost, "") for vhost in ("b", "a")]
    topics = [TopicPermissionPut("bob", vhost, exchange, exchange, "") for vhost in ("b", "a") for exchange in "yx"]
    for put in puts:
        broker.administer(put)
    for topic in topics:
        broker.administer(topic)
    access = broker.access
    assert access.permissions_of("bob") == puts[::-1]
    assert access.topic_permissions_of("bob") == topics[::-1]
    assert access.permissions_of("eve") == access.permissions_of("nobody") == []
    assert access.topic_permissions_of("eve") == access.topic_permissions_of("nobody") == []
    broker.administer(TopicPermissionDelete("bob", "a", "y"))
    assert access.topic_permissions_of("bob") == [topics[3], topics[1], topics[0]]
    broker.administer(TopicPermissionDelete("bob", "b", ""))
    assert access.topic_permissions_of("bob") == [topics[3]]
    broker.administer(PermissionDelete("bob", "a"))
    assert access.permissions_of("bob") == puts[:1]


def test_a_vhost_that_is_made_again_is_nobodys() -> None:
    harness = Harness()
    broker, access = harness.broker, harness.broker.access
    before = dict(access.permissions), dict(access.topic_permissions)
    broker.administer(VhostPut("v"))
    broker.administer(PermissionPut(USER, "v", ".*", ".*", ".*"))
    broker.administer(TopicPermissionPut(USER, "v", "amq.topic", ".*", ".*"))
    assert access.maybe_principal(USER, "v") is not None
    broker.administer(VhostDelete("v"))
    harness.settle()
    assert (access.permissions, access.topic_permissions) == before
    broker.administer(VhostPut("v"))
    assert access.maybe_principal(USER, "v") is None


def test_nobody_gets_what_was_granted_to_an_earlier_user_of_the_name() -> None:
    """An import plans with users that may be deleted before it grants them anything."""
    harness = Harness()
    broker = harness.broker
    for put in (PermissionPut("bob", "/", ".*", ".*", ".*"), TopicPermissionPut("bob", "/", "amq.topic", ".*", ".*")):
        ticket = broker.journal.last_ticket
        with pytest.raises(ValueError, match="user 'bob' does not exist"):
            broker.administer(put)
        assert broker.journal.last_ticket == ticket
    broker.administer(UserPut("bob", "", ""))
    assert broker.access.maybe_principal("bob", "/") is None
    assert broker.access.topic_permissions_of("bob") == []
