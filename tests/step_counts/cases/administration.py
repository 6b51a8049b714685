"""Requests of administrators and the shell, with n objects."""

from __future__ import annotations

from engine_harness import USER, basic_consume, queue_declare

from step_counts.cases.case import (
    BOUNDED,
    LINEAR,
    TIDIED,
    Act,
    another_vhost,
    case,
    consuming,
    feed,
    publishing,
    watched,
)
from step_counts.meter import Meter
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.vhosts.metadata import PermissionPut, PolicyPut, TopicPermissionPut, UserDelete, VhostDelete


@case(None, BOUNDED)
def policy_of_many_queues(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, *[queue_declare(f"q{at}") for at in range(n)])
    policy = PolicyPut("/", "p", ".*", "all", 0, '{"max-length":10}')
    return lambda: meter.broker.administer(policy)


@case(None, BOUNDED)
def policy_of_many_queues_that_is_watched(meter: Meter, n: int) -> Act:
    act = policy_of_many_queues(meter, n)
    watched(meter)
    return act


@case(None, BOUNDED)
def deletion_of_a_vhost_with_queues(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, *[queue_declare(f"q{at}", durable=True) for at in range(n)])
    return lambda: meter.broker.administer(VhostDelete("/"))


@case(None, BOUNDED)
def deletion_of_a_vhost_with_queues_that_is_watched(meter: Meter, n: int) -> Act:
    watched(meter)
    vhost = another_vhost(meter)
    for at in range(n):
        vhost.declare_queue(QueueDeclaration(f"q{at}", durable=True))
    return lambda: meter.broker.administer(VhostDelete("v"))


@case(None, BOUNDED)
def deletion_of_a_vhost_with_exchanges_that_is_watched(meter: Meter, n: int) -> Act:
    watched(meter)
    vhost = another_vhost(meter)
    for at in range(n):
        vhost.declare_exchange(ExchangeDeclaration(f"x{at}", "direct", durable=True))
    return lambda: meter.broker.administer(VhostDelete("v"))


@case(None, BOUNDED)
def deletion_of_a_vhost_with_policies_that_is_watched(meter: Meter, n: int) -> Act:
    watched(meter)
    vhost = another_vhost(meter)
    for at in range(n):
        vhost.policies.put(PolicyPut("v", f"p{at}", ".*", "all", 0, '{"max-length":10}'))
    return lambda: meter.broker.administer(VhostDelete("v"))


@case(None, TIDIED)
def deletion_of_a_vhost_with_connections(meter: Meter, n: int) -> Act:
    for _ in range(n):
        meter.channel()
    return lambda: meter.broker.administer(VhostDelete("/"))


@case(None, TIDIED)
def deletion_of_a_user_with_connections(meter: Meter, n: int) -> Act:
    for _ in range(n):
        meter.channel()
    return lambda: meter.broker.administer(UserDelete(USER))


@case(None, BOUNDED)
def deletion_of_a_user_beside_connections(meter: Meter, n: int) -> Act:
    meter.add_user("u")
    for _ in range(n):
        meter.client()
    return lambda: meter.broker.administer(UserDelete("u"))


@case(None, TIDIED)
def permission_of_a_user_with_connections(meter: Meter, n: int) -> Act:
    for _ in range(n):
        consumer = meter.channel()
        consumer.declare("q")
        feed(consumer, 1, basic_consume("q", "c"))
    return lambda: meter.broker.administer(PermissionPut(USER, "/", ".*", ".*", ""))


@case(None, BOUNDED)
def permission_of_a_user_beside_connections(meter: Meter, n: int) -> Act:
    meter.add_user("u")
    for _ in range(n):
        meter.client()
    return lambda: meter.broker.administer(PermissionPut("u", "/", ".*", ".*", ""))


@case(None, LINEAR)
def deletion_of_a_vhost_with_permissions(meter: Meter, n: int) -> Act:
    for at in range(n):
        meter.add_user(f"u{at}")
        assert meter.broker.access.maybe_principal(f"u{at}", "/") is not None
    return lambda: meter.broker.administer(VhostDelete("/"))


@case(None, LINEAR)
def deletion_of_a_vhost_with_permissions_that_is_watched(meter: Meter, n: int) -> Act:
    watched(meter)
    another_vhost(meter)
    for at in range(n):
        meter.add_user(f"u{at}")
        meter.permit(f"u{at}", vhost="v")
        meter.broker.administer(TopicPermissionPut(f"u{at}", "v", "amq.topic", "", ""))
    return lambda: meter.broker.administer(VhostDelete("v"))


@case(None, TIDIED)
def permission_that_consumers_had(meter: Meter, n: int) -> Act:
    consuming(meter, n)
    return lambda: meter.broker.administer(PermissionPut(USER, "/", ".*", ".*", ""))


@case(None, LINEAR)
def tick_of_many_connections(meter: Meter, n: int) -> Act:
    for _ in range(n):
        meter.client()
    return lambda: meter.broker.tick(meter.now_s)


@case(None, LINEAR)
def alarm_with_many_connections(meter: Meter, n: int) -> Act:
    for _ in range(n):
        meter.client()
    return lambda: meter.broker.set_alarm("memory", True)


@case(None, BOUNDED)
def end_of_an_alarm_with_many_publishers(meter: Meter, n: int) -> Act:
    clients = [meter.channel() for _ in range(n)]
    meter.broker.set_alarm("memory", True)
    for client in clients:
        publishing(client, 1)
    return lambda: meter.broker.set_alarm("memory", False)
