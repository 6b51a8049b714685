"""``route_cache.py``: remembered routes count by bytes, end with their topology, and go when memory is short."""

from __future__ import annotations

from engine_harness import Client, Harness, publish_frames, queue_declare

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.channels import route_cache
from warren.channels.route_cache import BYTES_MAX, CACHE_BYTES_MAX, REPLY_ROUTES_MAX, Route, RouteCache
from warren.vhosts.metadata import UserDelete, VhostDelete, VhostPut

QUEUES = 300


def fan_out(queues: int = QUEUES) -> tuple[Harness, Client]:
    """Return a broker with this number of queues at ``amq.fanout``, and a client."""
    harness = Harness()
    client = harness.channel()
    for number in range(queues):
        client.feed(method_frame(1, queue_declare(f"q{number}")))
        client.take()
        client.bind(f"q{number}", "amq.fanout")
    return harness, client


def cache_of(harness: Harness, user: str = "guest") -> RouteCache:
    principal = harness.broker.access.maybe_principal(user, "/")
    assert principal is not None
    return principal.routes


def publish_keys(client: Client, exchange: str, keys: range) -> None:
    client.feed(b"".join(publish_frames(exchange, f"key {number}") for number in keys))
    client.take()


def test_routes_of_a_fanout_exchange_share_one_list() -> None:
    """(3)"""
    harness, client = fan_out()
    publish_keys(client, "amq.fanout", range(50))
    cache = cache_of(harness)
    assert len({id(route.queues) for route in cache.routes.values()}) == 1
    assert cache.bytes < QUEUES * 8 + 50 * 1000


def test_a_cache_has_at_most_its_bytes() -> None:
    """(2)"""
    harness, client = fan_out(1)
    keys = 2 * CACHE_BYTES_MAX // 600
    for first in range(0, keys, 500):
        publish_keys(client, "", range(first, first + 500))
        cache = cache_of(harness)
        assert 0 < cache.bytes <= CACHE_BYTES_MAX
        assert harness.broker.access.routes.bytes == cache.bytes
    assert keys / 4 < len(cache.routes) < keys / 2 + 500


def test_a_publisher_to_more_queues_in_turn_than_fit_finds_many_of_them() -> None:
    """(2)"""
    harness, client = fan_out(1)
    keys = 5 * CACHE_BYTES_MAX // (4 * (route_cache.ROUTE_BYTES + 80))
    cache = cache_of(harness)
    for _ in range(2):
        publish_keys(client, "", range(keys))
    remembered = set(cache.routes)
    publish_keys(client, "", range(keys))
    assert len(remembered & set(cache.routes)) > keys / 2
    assert all(route.cacheable for route in cache.routes.values())


def test_routes_with_lists_of_their_own_empty_the_cache_when_it_is_full() -> None:
    """(2): lists stay counted when their routes are forgotten."""
    harness, client = fan_out()
    cache = cache_of(harness)
    keys = 2 * CACHE_BYTES_MAX // (route_cache.ROUTE_BYTES + 80 + 8 * QUEUES)
    for number in range(keys):
        client.publish("amq.fanout", f"a {number}")
        cache._lists.clear()
        assert cache.bytes <= CACHE_BYTES_MAX
    assert 0 < len(cache.routes) < keys


def test_routes_of_an_emptied_cache_are_freed_little_by_little() -> None:
    """(8)"""
    harness, client = fan_out(1)
    publish_keys(client, "", range(100))
    memory = harness.broker.access.routes
    cache_of(harness).drop()
    assert [len(routes) for routes in memory.dropped] == [100]
    publish_keys(client, "", range(10))
    assert [len(routes) for routes in memory.dropped] == [80]
    harness.broker.tick(1.0)
    assert memory.dropped == []


def test_all_caches_together_are_bounded_and_the_oldest_is_emptied() -> None:
    """(2)"""
    harness = Harness()
    count = 2 * BYTES_MAX // CACHE_BYTES_MAX
    clients = []
    for number in range(count):
        harness.add_user(f"user{number}")
        client = harness.client(f"user{number}")
        client.open(1)
        clients.append(client)
    for number, client in enumerate(clients):
        # Three quarters of a full cache each.
        publish_keys(client, "", range(3 * CACHE_BYTES_MAX // 4 // (route_cache.ROUTE_BYTES + 80)))
        assert cache_of(harness, f"user{number}").bytes > CACHE_BYTES_MAX // 2
        assert harness.broker.access.routes.bytes <= BYTES_MAX
    assert cache_of(harness, "user0").bytes == 0
    assert (
        sum(cache_of(harness, f"user{number}").bytes for number in range(count)) == harness.broker.access.routes.bytes
    )


def test_deleted_queues_are_not_kept_in_memory_by_routes() -> None:
    """(1), (5): neither by the cache, nor by the last publish of a channel."""
    harness, client = fan_out(20)
    publish_keys(client, "amq.fanout", range(3))
    client.open(2)
    client.publish("amq.fanout", "other", number=2)
    routes = list(cache_of(harness).routes.values())
    assert [len(route.queues) for route in routes] == [20] * 4
    for number in range(20):
        client.call(1, m.QueueDelete(0, f"q{number}", if_unused=False, if_empty=False, no_wait=False))
    harness.settle()
    harness.broker.tick(1.0)
    assert cache_of(harness).bytes == 0
    assert [len(route.queues) for route in routes] == [0] * 4
    assert not any(route.cacheable for route in routes)


def test_the_alarm_for_memory_empties_all_caches_and_publishers_find_their_routes_again() -> None:
    """(6)"""
    harness, client = fan_out(5)
    publish_keys(client, "amq.fanout", range(5))
    assert cache_of(harness).bytes > 0
    harness.broker.set_alarm("memory", True)
    assert cache_of(harness).bytes == 0 == harness.broker.access.routes.bytes
    harness.broker.set_alarm("memory", False)
    harness.settle()
    publish_keys(client, "amq.fanout", range(5))
    assert harness.queue("q0").message_count == 10


def test_a_content_that_is_under_way_when_its_route_is_dropped_goes_where_it_belongs() -> None:
    """(5)"""
    harness, client = fan_out(3)
    frames = publish_frames("amq.fanout", "key 0", b"x" * 100)
    publish_keys(client, "amq.fanout", range(1))
    client.feed(frames[: len(frames) // 2])
    harness.broker.access.routes.drop_all(harness.broker.log.reclamation)
    client.feed(frames[len(frames) // 2 :])
    assert [harness.queue(f"q{number}").message_count for number in range(3)] == [2, 2, 2]


def found_in_place(cache: RouteCache, arguments: bytes) -> Route | None:
    """Look the arguments up between other bytes, as in a read buffer."""
    return cache.maybe_at(b"before" + arguments + b"after", 6, 6 + len(arguments))


def test_most_routes_are_found_where_their_arguments_lie_and_no_wrong_one() -> None:
    """(4)"""
    harness, client = fan_out(1)
    publish_keys(client, "amq.fanout", range(1000))
    client.feed(b"".join(publish_frames("", f"{number}") for number in range(150)))
    cache = cache_of(harness)
    assert len(cache.routes) == 1150
    found = [found_in_place(cache, arguments) for arguments in cache.routes]
    for route, right in zip(found, cache.routes.values(), strict=True):
        assert route is None or route is right
    assert found.count(None) < 100
    for arguments in cache.routes:
        assert found_in_place(cache, arguments[:-1]) is None
        assert found_in_place(cache, arguments[:-1] + b"\x7f") is None
    assert found_in_place(cache, b"") is None
    cache.drop()
    assert found_in_place(cache, cache_key("amq.fanout", "key 0")) is None


def test_a_route_whose_places_are_taken_is_still_found() -> None:
    """(4)"""
    harness, client = fan_out(1)
    client.declare("wanted")
    publish_keys(client, "amq.fanout", range(100))
    client.publish("", "wanted")
    cache = cache_of(harness)
    route = cache.routes[cache_key("", "wanted")]
    cache._places = [next(iter(cache.routes.values()))] * len(cache._places)
    assert found_in_place(cache, route.arguments) is None
    client.publish("", "wanted")
    assert harness.queue("wanted").message_count == 2


def cache_key(exchange: str, routing_key: str) -> bytes:
    """Return the argument bytes of basic.publish."""
    return method_frame(1, m.BasicPublish(0, exchange, routing_key, False, False))[11:-1]


def test_nothing_is_kept_of_a_deleted_user() -> None:
    harness = Harness()
    harness.add_user("bob")
    client = harness.client("bob")
    client.open(1)
    client.declare("q")
    client.publish("", "q")
    access = harness.broker.access
    cache = cache_of(harness, "bob")
    assert cache.bytes > 0
    harness.broker.administer(UserDelete("bob"))
    harness.settle()
    client.hang_up()
    assert cache.bytes == 0 == access.routes.bytes
    assert access.maybe_principal("bob", "/") is None
    assert "bob" not in access._rights and "bob" not in access._usages
    assert access.usage("bob").connections == 0 and "bob" not in access._usages, "asking keeps nothing"


def test_nothing_is_kept_of_a_deleted_vhost() -> None:
    harness = Harness()
    harness.broker.administer(VhostPut("v"))
    harness.permit("guest", vhost="v")
    client = harness.client(vhost="v")
    client.open(1)
    client.declare("q")
    client.publish("", "q")
    access = harness.broker.access
    assert access.routes.bytes > 0
    harness.broker.administer(VhostDelete("v"))
    harness.settle()
    assert access.routes.bytes == 0
    assert "v" not in access._rights["guest"].principals


REPLY_TO = "amq.rabbitmq.reply-to"


def caller_of(harness: Harness) -> tuple[Client, str]:
    """Return a client that consumes replies, and its address."""
    before = set(harness.vhost.reply_queues)
    client = harness.channel()
    client.consume(REPLY_TO, tag="replies", no_ack=True)
    (address,) = set(harness.vhost.reply_queues) - before
    return client, address


def answer_routes(harness: Harness) -> list[Route]:
    return [route for route in cache_of(harness).routes.values() if route.envelope.routing_key.startswith(REPLY_TO)]


def test_the_routes_to_callers_are_remembered_until_these_leave() -> None:
    """(7)"""
    harness = Harness()
    service = harness.channel()
    callers = [caller_of(harness) for _ in range(3)]
    for _ in range(3):
        for _, address in callers:
            service.publish("", address, b"!")
    assert len(answer_routes(harness)) == 3
    assert [len(client.deliveries()) for client, _ in callers] == [3, 3, 3]
    (gone, address), (other, others) = callers[:2]
    queue = harness.vhost.reply_queues[address]
    gone.call(1, m.BasicCancel("replies", False))
    service.publish("", address, b"!", mandatory=True)
    (returned,) = service.take()
    assert returned.method.reply_code == 312
    service.publish("", others, b"!")
    gone.nothing()
    assert len(other.deliveries()) == 1
    assert not any(queue in route.queues for route in cache_of(harness).routes.values())


def test_an_answer_in_a_transaction_is_returned_when_the_caller_leaves_before_the_commit() -> None:
    """(7)"""
    harness = Harness()
    service = harness.channel()
    caller, address = caller_of(harness)
    service.publish("", address, b"!")
    service.call(1, m.TxSelect())
    service.publish("", address, b"!", mandatory=True)
    assert len(caller.deliveries()) == 1
    caller.hang_up()
    service.feed(method_frame(1, m.TxCommit()))
    assert [type(each.method) for each in service.take()] == [m.BasicReturn, m.TxCommitOk]


def test_the_routes_to_a_caller_do_not_grow_with_changes_of_the_topology() -> None:
    """(7)"""
    harness = Harness()
    service = harness.channel()
    _, address = caller_of(harness)
    for number in range(3 * REPLY_ROUTES_MAX):
        service.publish("", address, b"!")
        service.declare(f"q{number}")
    (routes,) = harness.broker.access.routes._to_replies.values()
    assert len(routes) == 1


def test_few_routes_to_one_caller_are_remembered() -> None:
    """(7)"""
    harness = Harness()
    caller, address = caller_of(harness)
    for number in range(REPLY_ROUTES_MAX + 1):
        harness.add_user(f"user{number}")
        service = harness.client(f"user{number}")
        service.open(1)
        for _ in range(2):
            service.publish("", address, b"!")
    assert len(caller.deliveries()) == 2 * (REPLY_ROUTES_MAX + 1)
    assert len(harness.broker.access.routes._to_replies) == 1
    caller.hang_up()
    assert harness.broker.access.routes._to_replies == {}
