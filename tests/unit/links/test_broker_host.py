"""The broker as its links see it: federated objects, waiting consumers, permissions for parameters, and reports."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
import trio
from engine_harness import USER, Harness
from trio.testing import MockClock

from warren.amqp import methods as m
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.field_table import EMPTY_TABLE, Table, encode_table
from warren.engine_view.engine_view import EngineView
from warren.links.broker_host import AT_ONCE, DEMAND_EVERY_S, BrokerHost
from warren.links.host import Host, LocalBinding, LocalExchange, LocalQueue, Policy
from warren.server.management import CommitTimeout, Management
from warren.vhosts.metadata import (
    MetadataChange,
    ParameterDelete,
    ParameterPut,
    PolicyDelete,
    PolicyPut,
    VhostDelete,
    VhostPut,
)
from warren.vhosts.topology_watcher import INTERNAL_USER

LOCAL_SHOVEL = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}


class Administration:
    """Stands in for `Management`, over an engine without a loop. `problem` is raised instead of a change."""

    def __init__(self, harness: Harness) -> None:
        self.view = EngineView(harness.broker, harness.settle)
        self.internal_password = b"secret"
        self.changes: list[tuple[MetadataChange, str]] = []
        self.problem: Exception | None = None
        self._harness = harness

    async def administer(self, change: MetadataChange, by: str) -> None:
        await trio.lowlevel.checkpoint()
        if self.problem is not None:
            raise self.problem
        self.changes.append((change, by))
        self._harness.broker.administer(change, by)
        self._harness.settle()


class Told:
    """A listener that writes down what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, ...]] = []

    def definitions_changed(self) -> None:
        self.heard.append(("definitions",))

    def bindings_changed(self, vhost: str, exchange: str) -> None:
        self.heard.append(("bindings", vhost, exchange))

    def binding_changed(self, vhost: str, exchange: str, binding: LocalBinding, count: int) -> None:
        self.heard.append(("binding", vhost, exchange, binding.binding_key, f"{count:+}"))

    def demand_changed(self, vhost: str, queue: str) -> None:
        self.heard.append(("demand", vhost, queue))

    def take(self) -> set[tuple[str, ...]]:
        heard = set(self.heard)
        self.heard.clear()
        return heard


class Place:
    """An engine with one client, and its host."""

    def __init__(self) -> None:
        self.harness = Harness()
        self.administration = Administration(self.harness)
        self.host = BrokerHost(cast(Management, self.administration))
        self.told = Told()
        self.unsubscribe = self.host.subscribe(self.told)
        self.client = self.harness.channel()
        self.told.take()

    def queues(self) -> Sequence[LocalQueue]:
        return trio.run(self.host.federated_queues)

    def exchanges(self) -> Sequence[LocalExchange]:
        return trio.run(self.host.federated_exchanges)

    def administer(self, change: MetadataChange, by: str = USER) -> None:
        self.harness.broker.administer(change, by)
        self.harness.settle()

    def policy(self, name: str, pattern: str, apply_to: str = "all", priority: int = 0, **keys: Any) -> None:
        definition = json.dumps({key.replace("_", "-"): value for key, value in keys.items()})
        self.administer(PolicyPut("/", name, pattern, apply_to, priority, definition))

    def parameter(self, component: str, name: str, value: object, by: str = USER, vhost: str = "/") -> None:
        self.administer(ParameterPut(vhost, component, name, json.dumps(value)), by)

    def exchange(self, name: str, kind: str = "topic", arguments: Table | None = None) -> None:
        declare = m.ExchangeDeclare(0, name, kind, False, True, False, False, False, encode_table(arguments or {}))
        assert isinstance(self.client.call(1, declare), m.ExchangeDeclareOk)

    def queue(self, name: str, arguments: Table | None = None, *, exclusive: bool = False) -> None:
        self.client.declare(name, durable=not exclusive, exclusive=exclusive, arguments=arguments)

    def consume(self, queue: str, tag: str, priority: int = 0, prefetch: int = 0) -> None:
        assert self.client.call(1, m.BasicQos(0, prefetch, False)) == m.BasicQosOk()
        assert self.client.consume(queue, tag, arguments={"x-priority": priority}) == tag


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.harness.check()


def names(found: Any) -> list[str]:
    return [one.name for one in found]


def declared(found: Sequence[LocalExchange] | Sequence[LocalQueue]) -> list[str]:
    return [one.declaration.name for one in found]


# --- what is federated ------------------------------------------------------------------------------------------------


def test_exchanges_and_queues_are_federated_by_the_policy_that_is_in_effect(place: Place) -> None:
    place.exchange("orders", arguments={"alternate-exchange": "amq.fanout"})
    place.exchange("other")
    place.queue("orders")
    place.queue("strict")
    assert not place.exchanges() and not place.queues()
    place.policy("all", "^orders", federation_upstream_set="all")
    (exchange,) = place.exchanges()
    arguments = encode_table({"alternate-exchange": "amq.fanout"})
    orders = ExchangeDeclaration("orders", "topic", durable=True, arguments=arguments)
    assert exchange == LocalExchange("/", orders, Policy(upstream_set="all"))
    (queue,) = place.queues()
    assert queue == LocalQueue("/", QueueDeclaration("orders", durable=True), Policy(upstream_set="all"))
    # One policy applies: a better one without federation keys takes the others' away.
    place.policy("limit", "^orders$", "queues", 1, max_length=10)
    assert not place.queues() and declared(place.exchanges()) == ["orders"]
    place.policy("limit", "^orders$", "queues", 1, max_length=10, federation_upstream="up")
    assert place.queues()[0].policy == Policy(upstream="up")
    place.policy("one", "strict", "exchanges", 1, federation_upstream_pattern="^up")
    assert declared(place.queues()) == ["orders"]
    place.administer(PolicyDelete("/", "all"))
    assert not place.exchanges()


def test_what_belongs_to_the_broker_or_to_a_connection_is_not_federated(place: Place) -> None:
    place.exchange("made upstream", arguments={"x-internal-purpose": "federation"})
    place.queue("made upstream", {"x-internal-purpose": "federation"})
    place.queue("exclusive", exclusive=True)
    place.queue("usual")
    place.exchange("usual")
    place.policy("all", ".*", federation_upstream_set="all")
    assert declared(place.queues()) == ["usual"]
    exchanges = declared(place.exchanges())
    assert "" not in exchanges and "made upstream" not in exchanges and "usual" in exchanges


def test_a_policy_for_quorum_queues_federates_those(place: Place) -> None:
    place.queue("classic")
    place.queue("quorum", {"x-queue-type": "quorum"})
    place.policy("some", ".*", "quorum_queues", federation_upstream="up")
    assert declared(place.queues()) == ["quorum"]
    assert not place.exchanges()


def test_the_bindings_of_a_federated_exchange_are_those_to_queues_and_to_exchanges(place: Place) -> None:
    place.exchange("source")
    place.exchange("further")
    place.queue("q")
    arguments = encode_table({"x": 1})
    for call in (
        m.QueueBind(0, "q", "source", "a.#", False, EMPTY_TABLE),
        m.QueueBind(0, "q", "source", "b", False, arguments),
        m.ExchangeBind(0, "further", "source", "c", False, EMPTY_TABLE),
        m.QueueBind(0, "q", "further", "not ours", False, EMPTY_TABLE),
    ):
        place.client.call(1, call)
    bindings = sorted(place.host.bindings("/", "source"), key=lambda one: one.binding_key)
    assert bindings == [LocalBinding("a.#", EMPTY_TABLE), LocalBinding("b", arguments), LocalBinding("c", EMPTY_TABLE)]
    assert not list(place.host.bindings("/", "gone")) and not list(place.host.bindings("gone", "source"))


def test_objects_of_a_vhost_without_federation_cost_links_nothing(place: Place) -> None:
    place.policy("other", ".*", max_length=10)
    policies = place.harness.vhost.policies

    def searched(name: str) -> int:
        before = policies.searched
        place.queue(name)
        place.exchange(name)
        return int(policies.searched - before)

    usual = searched("first")
    place.policy("later", "^federated", federation_upstream="up")
    assert searched("second") > usual
    place.administer(PolicyDelete("/", "later"))
    assert searched("third") == usual


# --- demand -----------------------------------------------------------------------------------------------------------


def test_a_queue_wants_messages_while_it_is_empty_and_a_consumer_has_room(place: Place) -> None:
    def wants() -> bool:
        return place.host.wants_messages("/", "q")

    assert not wants(), "there is no such queue"
    place.queue("q")
    assert not wants(), "nobody consumes"
    place.consume("q", "c", prefetch=1)
    assert wants()
    place.client.publish("", "q")
    assert not wants(), "the one consumer has all it may have"
    place.client.publish("", "q")
    assert not wants(), "a message is ready"
    place.client.send(1, m.BasicAck(1, False))
    assert not wants(), "the second message took the room"
    place.client.send(1, m.BasicAck(2, False))
    assert wants()
    place.client.take()
    assert isinstance(place.client.call(1, m.BasicCancel("c", False)), m.BasicCancelOk)
    assert not wants()


def test_links_that_consume_from_here_are_no_demand(place: Place) -> None:
    place.queue("q")
    place.consume("q", "federation-link-up", priority=-1)
    assert not place.host.wants_messages("/", "q")
    place.consume("q", "somebody")
    assert place.host.wants_messages("/", "q")


def looks(place: Place, *steps: Callable[[], object]) -> list[set[tuple[str, ...]]]:
    """Return what is told after each step, when the queues have been looked at again."""
    heard: list[set[tuple[str, ...]]] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(place.host.watch_demand)
            for step in steps:
                step()
                await trio.sleep(3 * DEMAND_EVERY_S)
                heard.append(place.told.take())
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    return heard


def test_nothing_is_looked_at_that_no_link_has_asked_for(place: Place) -> None:
    steps = 0

    class Counter(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal steps
            steps += task.name.endswith("watch_demand")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(place.host.watch_demand)
            await trio.sleep(1000 * DEMAND_EVERY_S)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[Counter()])
    assert steps < 5


def test_others_have_their_turns_while_many_queues_are_looked_at(place: Place) -> None:
    """The queues are gone: each has been looked at when its answer is."""
    looked: list[int] = []

    class Look(trio.abc.Instrument):
        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            looked.append(before - len(place.host._answers))

    for number in range(10 * AT_ONCE):
        place.host.wants_messages("/", str(number))
    before = len(place.host._answers)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(place.host.watch_demand)
            while place.host._answers:
                await trio.sleep(DEMAND_EVERY_S)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[Look()])
    steps = [later - earlier for earlier, later in itertools.pairwise(looked)]
    assert sum(steps) == before and max(steps) <= AT_ONCE


def test_who_asked_is_told_when_the_answer_is_another_one(place: Place) -> None:
    for name in ("q", "not asked for"):
        place.queue(name)
    place.told.take()
    assert looks(
        place,
        lambda: place.host.wants_messages("/", "q"),
        lambda: place.consume("not asked for", "d"),
        lambda: place.consume("q", "c"),
        lambda: place.host.wants_messages("/", "q"),
        lambda: place.client.call(1, m.BasicCancel("c", False)),
        lambda: place.consume("q", "c"),  # nobody has asked again
    ) == [set(), set(), {("demand", "/", "q")}, set(), {("demand", "/", "q")}, set()]


def test_an_answer_that_was_true_for_a_moment_only_is_set_right(place: Place) -> None:
    place.queue("q")
    place.consume("q", "c", prefetch=1)
    place.told.take()

    def ask_in_between() -> None:
        place.client.publish("", "q")
        assert not place.host.wants_messages("/", "q")
        place.client.send(1, m.BasicAck(1, False))

    def ask() -> None:
        assert place.host.wants_messages("/", "q")

    assert looks(place, ask, ask_in_between, ask) == [set(), {("demand", "/", "q")}, set()]


def test_a_link_hears_of_a_queue_that_is_declared_again_before_the_link_ends(place: Place) -> None:
    place.policy("all", "^q$", federation_upstream_set="all")
    place.queue("q")
    place.told.take()
    demand = ("demand", "/", "q")
    heard = looks(
        place,
        lambda: place.host.wants_messages("/", "q"),
        lambda: place.client.call(1, m.QueueDelete(0, "q", False, False, False)),
        lambda: place.queue("q"),
        lambda: place.host.wants_messages("/", "q"),
        lambda: place.consume("q", "c"),
    )
    assert [demand in each for each in heard] == [False, True, True, False, True]


# --- what is told -----------------------------------------------------------------------------------------------------


def test_everything_that_has_or_loses_a_link_is_told(place: Place) -> None:
    steps: list[Callable[[], object]] = [
        lambda: place.policy("p", "^f", federation_upstream="up"),
        lambda: place.exchange("fe"),
        lambda: place.queue("fq"),
        lambda: place.parameter("federation-upstream", "up", {"uri": "amqp://somewhere"}),
        lambda: place.administer(ParameterDelete("/", "federation-upstream", "up")),
        lambda: place.client.call(1, m.QueueDelete(0, "fq", if_unused=False, if_empty=False, no_wait=False)),
        lambda: place.client.call(1, m.ExchangeDelete(0, "fe", if_unused=False, no_wait=False)),
        lambda: place.administer(PolicyDelete("/", "p")),
    ]
    for number, step in enumerate(steps):
        step()
        assert place.told.take() - {("bindings", "/", "fe"), ("demand", "/", "fq")} == {("definitions",)}, number
    place.administer(VhostPut("v"))
    place.administer(VhostDelete("v"))
    assert place.told.take() == {("definitions",)}
    place.unsubscribe()
    place.policy("p", "^f", federation_upstream="up")
    assert not place.told.take()


def test_what_has_no_federation_policy_comes_and_goes_unheard(place: Place) -> None:
    place.policy("p", "^f", federation_upstream="up")
    place.policy("q", "^g", max_length=5)
    place.told.take()
    for name in ("g", "other"):
        place.exchange(name)
        place.queue(name)
        place.client.call(1, m.QueueDelete(0, name, if_unused=False, if_empty=False, no_wait=False))
        place.client.call(1, m.ExchangeDelete(0, name, if_unused=False, no_wait=False))
    assert not place.told.take()


def test_bindings_are_told_with_their_source(place: Place) -> None:
    place.policy("p", "^e", federation_upstream="up")
    place.exchange("e")
    place.queue("q")
    place.told.take()
    place.client.call(1, m.QueueBind(0, "q", "e", "k", False, EMPTY_TABLE))
    assert place.told.take() == {("binding", "/", "e", "k", "+1")}
    place.client.call(1, m.QueueUnbind(0, "q", "e", "k", EMPTY_TABLE))
    assert place.told.take() == {("binding", "/", "e", "k", "-1")}


def test_an_exchange_that_comes_tells_that_its_bindings_are_to_be_read(place: Place) -> None:
    place.policy("p", "^e", federation_upstream="up")
    place.told.take()
    place.exchange("e")
    assert ("bindings", "/", "e") in place.told.take()


def test_bindings_of_an_exchange_that_is_gone_are_not_those_of_another_of_its_name(place: Place) -> None:
    count = 2000  # more than one turn unbinds
    place.policy("p", "^e", federation_upstream="up")
    place.exchange("e")
    place.queue("q")
    for number in range(count):
        place.client.call(1, m.QueueBind(0, "q", "e", str(number), False, EMPTY_TABLE))
    place.client.call(1, m.ExchangeDelete(0, "e", if_unused=False, no_wait=False))
    place.exchange("e")
    place.told.take()
    place.client.call(1, m.QueueBind(0, "q", "e", "k", False, EMPTY_TABLE))
    place.harness.settle()
    assert place.told.take() == {("binding", "/", "e", "k", "+1")}


def test_a_queue_that_goes_tells_of_the_bindings_it_had(place: Place) -> None:
    place.policy("p", "^e", federation_upstream="up")
    place.exchange("e")
    place.queue("q")
    place.client.call(1, m.QueueBind(0, "q", "e", "k", False, EMPTY_TABLE))
    place.told.take()
    place.client.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    assert ("binding", "/", "e", "k", "-1") in place.told.take()
    assert not list(place.host.bindings("/", "e"))


# --- parameters -------------------------------------------------------------------------------------------------------


def test_parameters_of_links_are_those_of_all_vhosts_and_of_no_other_component(place: Place) -> None:
    place.administer(VhostPut("v"))
    place.harness.broker.parameters.validators["other"] = lambda vhost, name, value, by: []
    place.parameter("shovel", "s", LOCAL_SHOVEL, INTERNAL_USER, "v")
    place.parameter("federation-upstream", "up", {"uri": "amqp://somewhere"})
    place.parameter("federation-upstream-set", "set", [{"upstream": "up"}])
    place.parameter("other", "o", 1)
    assert {(one.component, one.vhost, one.name): one.value for one in place.host.parameters()} == {
        ("shovel", "v", "s"): LOCAL_SHOVEL,
        ("federation-upstream", "/", "up"): {"uri": "amqp://somewhere"},
        ("federation-upstream-set", "/", "set"): [{"upstream": "up"}],
    }
    place.administer(VhostDelete("v"))
    assert names(place.host.parameters()) == ["up", "set"]


@pytest.mark.parametrize(
    ("component", "value", "problem"),
    [
        ("shovel", {}, "Must specify 'src-exchange' or 'src-queue'"),
        ("federation-upstream", {"uri": "http://x"}, "not a valid URI"),
        ("federation-upstream-set", "text", "should be list"),
    ],
)
def test_a_parameter_that_is_wrong_is_refused_and_changes_nothing(
    place: Place, component: str, value: object, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        place.parameter(component, "p", value)
    assert not place.host.parameters() and not place.told.take()


PLACES = [
    ("shovel", LOCAL_SHOVEL | {"src-uri": "amqp:///closed"}),
    ("shovel", LOCAL_SHOVEL | {"dest-uri": "amqp:///closed"}),
    ("shovel", LOCAL_SHOVEL | {"dest-uri": ["amqp://", "amqp:///closed"]}),
    ("federation-upstream", {"uri": "amqp:///closed"}),
    ("federation-upstream", {"uri": ["amqp://elsewhere", "amqp://alice:alice@/closed"]}),
]


@pytest.mark.parametrize(("component", "value"), PLACES)
def test_nobody_can_have_a_link_where_it_may_not_go_itself(
    place: Place, component: str, value: dict[str, object]
) -> None:
    place.harness.add_user("alice", tags=("policymaker",))
    place.administer(VhostPut("closed"))
    with pytest.raises(ValueError, match=r'^user "alice" may not connect to vhost "closed"$'):
        place.parameter(component, "p", value, "alice")
    with pytest.raises(ValueError, match="may not connect"):
        place.parameter(component, "p", value, "nobody")
    assert not place.host.parameters()
    # The broker itself may, as when definitions are loaded at the start; and alice once she is let in.
    for by in ("", INTERNAL_USER):
        place.parameter(component, "p", value, by)
    place.harness.permit("alice", vhost="closed")
    place.parameter(component, "q", value, "alice")
    assert names(place.host.parameters()) == ["p", "q"]


def test_an_upstream_without_vhost_means_the_one_of_the_same_name_here(place: Place) -> None:
    place.harness.add_user("alice", tags=("policymaker",))
    place.administer(VhostPut("v"))
    with pytest.raises(ValueError, match='may not connect to vhost "v"'):
        place.parameter("federation-upstream", "up", {"uri": "amqp://"}, "alice", "v")
    place.parameter("federation-upstream", "up", {"uri": "amqp://"}, "alice")


def test_a_shovel_that_is_done_deletes_its_parameter_as_the_broker_itself(place: Place) -> None:
    place.parameter("shovel", "s", LOCAL_SHOVEL, INTERNAL_USER)
    place.told.take()
    trio.run(place.host.delete_parameter, "shovel", "/", "s", LOCAL_SHOVEL)
    assert place.administration.changes == [(ParameterDelete("/", "shovel", "s"), INTERNAL_USER)]
    assert not place.host.parameters()
    assert place.told.take() == {("definitions",)}
    trio.run(place.host.delete_parameter, "shovel", "/", "s", LOCAL_SHOVEL)  # gone already
    assert not place.told.take()


def test_a_shovel_that_is_done_leaves_a_parameter_that_has_taken_the_place_of_its_own(place: Place) -> None:
    other = {**LOCAL_SHOVEL, "dest-queue": "c"}
    place.parameter("shovel", "s", LOCAL_SHOVEL, INTERNAL_USER)
    place.parameter("shovel", "s", other, INTERNAL_USER)
    trio.run(place.host.delete_parameter, "shovel", "/", "s", LOCAL_SHOVEL)
    assert [each.value for each in place.host.parameters()] == [other]


@pytest.mark.parametrize("problem", [ValueError("vhost 'v' does not exist"), CommitTimeout()])
def test_a_parameter_that_cannot_be_deleted_is_no_error_of_the_link(
    place: Place, problem: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    place.parameter("shovel", "s", LOCAL_SHOVEL, INTERNAL_USER)
    place.administration.problem = problem
    with caplog.at_level("WARNING", "warren"):
        trio.run(place.host.delete_parameter, "shovel", "/", "s", LOCAL_SHOVEL)
    assert "a parameter was not deleted" in caplog.text


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_the_host_is_called_what_the_broker_is_called_and_has_its_password(place: Place) -> None:
    host: Host = place.host
    assert host.cluster_name == place.harness.broker.cluster_name()
    assert host.node_name == place.harness.broker.node
    assert host.local_login() == (INTERNAL_USER, "secret")


def test_a_value_with_a_password_is_not_in_the_text_of_a_parameter(place: Place) -> None:
    place.parameter("federation-upstream", "up", {"uri": "amqp://u:s3cret@somewhere"})
    assert "s3cret" not in repr(place.host.parameters())
    with pytest.raises(ValueError, match="not a valid URI") as caught:
        place.parameter("federation-upstream", "up", {"uri": "amqp://u:s3cret@somewhere:port"})
    assert "s3cret" not in str(caught.value)
