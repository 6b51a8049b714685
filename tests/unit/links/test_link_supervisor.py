"""Links come, go and fail, each for itself; nothing secret is said about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import trio
from link_host import FakeHost
from trio.testing import MockClock

from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.links import supervisor as supervisor_module
from warren.links.address_guard import AddressGuard
from warren.links.amqp_client import ClientSettings
from warren.links.amqp_uri import BrokerUri, parse_uri
from warren.links.exchange_federation import ExchangeLink
from warren.links.host import LocalExchange, LocalQueue, Policy
from warren.links.shovel import Shovel
from warren.links.starts import START_EVERY_S
from warren.links.supervisor import AT_ONCE, PAUSE_PER_S, Supervisor, timestamp

SHOVEL = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}


class UnreachableHost(FakeHost):
    """A host whose broker does not take connections; it counts the attempts, or raises something else."""

    def __init__(self) -> None:
        super().__init__(0)
        self.attempts: list[float] = []
        self.problem: Exception = OSError("not now")

    async def open_local(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        self.attempts.append(trio.current_time())
        raise self.problem

    def now(self) -> float:
        return trio.current_time()


def run(test: Callable[[UnreachableHost, Supervisor], Any]) -> None:
    async def main() -> None:
        host = UnreachableHost()
        supervisor = Supervisor(host, ClientSettings(AddressGuard()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.testing.wait_all_tasks_blocked()
            await test(host, supervisor)
            nursery.cancel_scope.cancel()
        assert host.listeners == []

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_link_is_tried_again_after_its_reconnect_delay() -> None:
    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        host.set_parameter("shovel", "s", SHOVEL | {"reconnect-delay": 7})
        await trio.sleep(22)
        gaps = [after - before for before, after in zip(host.attempts, host.attempts[1:], strict=False)]
        assert gaps == [pytest.approx(7)] * 3
        (status,) = supervisor.shovels()
        assert (status["state"], status["name"], status["vhost"]) == ("terminated", "s", "/")
        assert "lost during the handshake" in str(status["reason"])
        assert [event for _, event, _ in host.logged] == ["link_down"], "said once"

    run(test)


def test_held_links_are_shown_and_begin_when_they_are_released() -> None:
    """(6)"""

    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        host.held_reason = "restored from backup 2"
        host.set_parameter("shovel", "s", SHOVEL)
        host.set_parameter("federation-upstream", "u", {"uri": "amqp://127.0.0.1"})
        queue = LocalQueue("/", QueueDeclaration("q", durable=True), Policy(upstream="u"))
        host.federate(queue)
        await trio.sleep(100)
        (shovel,), (link,) = supervisor.shovels(), supervisor.federation_links()
        assert (shovel["state"], shovel["reason"]) == ("held", "restored from backup 2")
        assert (link["status"], link["error"]) == ("held", "restored from backup 2")
        assert supervisor.restart_shovel("/", "s")
        host.clear_parameter("federation-upstream", "u")  # its upstream is not told: it never ran here
        await trio.sleep(100)
        assert (host.attempts, supervisor.federation_links()) == ([], [])
        host.held_reason = ""
        host.changed()
        await trio.sleep(1)
        assert len(host.attempts) == 1
        host.held_reason = "held again"
        host.changed()
        await trio.sleep(1)
        assert supervisor.shovels()[0]["state"] == "held"
        await trio.sleep(100)
        assert len(host.attempts) == 1

    run(test)


def test_links_that_are_held_and_released_while_they_are_looked_for_begin() -> None:
    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        async def federated_queues() -> list[LocalQueue]:
            host.held_reason = "a copy"
            return []

        with patch.object(host, "federated_queues", federated_queues):
            host.set_parameter("shovel", "s", SHOVEL)
            while not supervisor.shovels():
                await trio.lowlevel.checkpoint()
        assert supervisor.shovels()[0]["state"] == "held"
        host.held_reason = ""
        host.changed()
        await trio.sleep(1)
        assert supervisor.shovels()[0]["state"] == "terminated" and host.attempts

    run(test)


def test_reconnect_delay_0_means_never_until_it_is_asked_for() -> None:
    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        host.set_parameter("shovel", "s", SHOVEL | {"reconnect-delay": 0})
        await trio.sleep(100)
        assert len(host.attempts) == 1
        assert supervisor.restart_shovel("/", "s")
        await trio.sleep(100)
        assert len(host.attempts) == 2
        host.set_parameter("shovel", "s", SHOVEL | {"reconnect-delay": 0, "src-queue": "c"})
        await trio.sleep(100)
        assert len(host.attempts) == 3

    run(test)


def test_a_fault_of_ours_ends_one_attempt_of_one_link() -> None:
    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        host.problem = ZeroDivisionError("amqp://u:s3cret@h")
        host.set_parameter("shovel", "s", SHOVEL)
        await trio.sleep(1)
        host.problem = OSError("not now")
        host.set_parameter("shovel", "t", SHOVEL)
        await trio.sleep(1)
        first, second = supervisor.shovels()
        assert "ZeroDivisionError" in str(first["reason"]) and "handshake" in str(second["reason"])
        assert "s3cret" not in repr(supervisor.shovels()) + repr(host.logged)
        await trio.sleep(10)
        assert "handshake" in str(supervisor.shovels()[0]["reason"]), "it was tried again"

    run(test)


def test_a_shovel_that_is_done_leaves_the_one_that_has_taken_its_place() -> None:
    """Its parameter is another one already when it ends, and nobody has looked at the parameters since."""

    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        host.set_parameter("shovel", "s", SHOVEL)
        await trio.testing.wait_all_tasks_blocked()
        entry = supervisor._entries["shovel", "/", "s"]
        link = entry.link
        assert isinstance(link, Shovel)
        done = trio.Event()

        async def attempt(running: Callable[[], None]) -> None:
            await done.wait()
            host.definitions["shovel", "/", "s"] = {**SHOVEL, "dest-queue": "c"}

        with patch.object(link, "attempt", attempt):
            await trio.sleep(6)
            done.set()
            await trio.testing.wait_all_tasks_blocked()
        assert host.definitions["shovel", "/", "s"] == {**SHOVEL, "dest-queue": "c"}
        host.changed()
        await trio.testing.wait_all_tasks_blocked()
        assert supervisor._entries["shovel", "/", "s"] is not entry

    run(test)


def test_a_parameter_that_is_not_valid_is_shown_with_the_reason() -> None:
    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        host.set_parameter("shovel", "s", {"src-uri": "amqp://u:s3cret@h:port", "dest-uri": "amqp://"})
        await trio.sleep(1)
        (status,) = supervisor.shovels()
        assert status["state"] == "terminated"
        assert "Must specify" in str(status["reason"]) and "s3cret" not in repr(status)
        host.set_parameter("shovel", "s", SHOVEL)
        await trio.sleep(1)
        assert len(host.attempts) == 1
        host.clear_parameter("shovel", "s")
        await trio.sleep(1)
        assert supervisor.shovels() == []

    run(test)


@pytest.mark.parametrize("number", [10**400, -(10**400), 1e400])
def test_a_number_that_an_earlier_version_has_stored_ends_nothing(number: float) -> None:
    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        host.set_parameter("shovel", "s", SHOVEL | {"reconnect-delay": number})
        host.set_parameter("federation-upstream", "u", {"uri": "amqp://h", "reconnect-delay": number})
        host.set_parameter("federation-upstream-set", "us", [{"upstream": "u", "max-hops": number}])
        host.set_parameter("shovel", "t", SHOVEL)
        await trio.sleep(100)
        invalid, valid = supervisor.shovels()
        assert "reconnect-delay should be a number" in str(invalid["reason"])
        assert valid["name"] == "t" and len(host.attempts) > 1
        logged = [(event, details["name"]) for _, event, details in host.logged]
        assert sorted(logged) == [
            ("link_down", "s"),
            ("link_down", "t"),
            ("parameter_invalid", "u"),
            ("parameter_invalid", "us"),
        ], "each once"

    run(test)


def test_each_upstream_of_a_queue_is_a_link_and_goes_with_the_policy() -> None:
    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        for name in ("east", "west"):
            value = {"uri": f"amqp://u:s3cret@{name}/v?x=s3cret"}
            host.set_parameter("federation-upstream", name, value)
        host.federate(LocalQueue("/", QueueDeclaration("q", durable=True), Policy(upstream_set="all")))
        await trio.sleep(1)
        links = supervisor.federation_links()
        assert [link["upstream"] for link in links] == ["east", "west"]
        assert {link["status"] for link in links} == {"error"}
        assert len({link["id"] for link in links}) == 2
        assert links[0]["uri"] == "amqp://east/v" and "handshake" in str(links[0]["error"])
        assert "s3cret" not in repr(links) + repr(host.logged)
        assert supervisor.federation_links("other") == []
        assert supervisor.restart_federation_link("/", str(links[0]["id"]))
        assert not supervisor.restart_federation_link("/", "no such")
        host.clear_parameter("federation-upstream", "east")
        await trio.sleep(1)
        assert [link["upstream"] for link in supervisor.federation_links()] == ["west"]
        host.federate()
        await trio.sleep(1)
        assert supervisor.federation_links() == []

    run(test)


UPSTREAM = {"uri": "amqp://one", "exchange": "there"}


@contextmanager
def clean_ups() -> Iterator[list[str]]:
    """Yield the upstream exchanges whose queues links remove meanwhile."""
    gone: list[str] = []

    async def clean_up(link: ExchangeLink) -> None:
        await trio.lowlevel.checkpoint()
        gone.append(link.upstream_exchange)

    with patch.object(ExchangeLink, "clean_up", clean_up):
        yield gone


@pytest.mark.parametrize(
    ("name", "value", "cleaned"),
    [
        ("renamed", UPSTREAM, []),
        ("renamed", UPSTREAM | {"uri": ["amqp://another", "amqp://one"]}, []),
        ("renamed", UPSTREAM | {"uri": "amqp://another"}, ["there"]),
        ("renamed", UPSTREAM | {"exchange": "elsewhere"}, ["there"]),
        ("up", UPSTREAM | {"exchange": "elsewhere"}, ["there"]),
        ("up", UPSTREAM | {"uri": "amqp://another"}, []),
        ("up", UPSTREAM | {"prefetch-count": 1}, []),
        ("", {}, ["there"]),
    ],
)
def test_the_queue_upstream_goes_with_the_last_link_that_uses_it(name: str, value: object, cleaned: list[str]) -> None:
    """Its name does not hold that of the upstream: a renamed upstream has the queue of the former, and its messages."""

    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        host.definitions["federation-upstream", "/", "up"] = UPSTREAM
        exchange = ExchangeDeclaration("x", "topic", durable=True)
        host.federate(LocalExchange("/", exchange, Policy(upstream_set="all")))
        await trio.sleep(1)
        del host.definitions["federation-upstream", "/", "up"]
        if name:
            host.definitions["federation-upstream", "/", name] = value
        host.changed()
        await trio.sleep(1)
        assert [key[3] for key in supervisor._entries] == [name][: len(name)]
        assert gone == cleaned

    with clean_ups() as gone:
        run(test)


def test_a_queue_upstream_stays_for_a_link_that_begins_later() -> None:
    """The former link has ended, and its heir is changed at the same time and not there yet."""

    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        for name in ("former", "heir"):
            host.definitions["federation-upstream", "/", name] = UPSTREAM
        exchange = ExchangeDeclaration("x", "topic", durable=True)
        host.federate(LocalExchange("/", exchange, Policy(upstream_set="all")))
        await trio.sleep(1)
        del host.definitions["federation-upstream", "/", "former"]
        host.definitions["federation-upstream", "/", "heir"] = UPSTREAM | {"prefetch-count": 1}
        with patch.object(supervisor, "_begin", lambda *rest: None):
            host.changed()
            await trio.sleep(1)
        assert not supervisor._entries and gone == []
        host.changed()
        await trio.sleep(1)
        assert [key[3] for key in supervisor._entries] == ["heir"]
        del host.definitions["federation-upstream", "/", "heir"]
        host.changed()
        await trio.sleep(1)
        assert gone == ["there"]

    with clean_ups() as gone:
        run(test)


def test_timestamps_look_like_those_of_rabbitmq() -> None:
    assert timestamp(1795308886) == "2026-11-22 0:54:46"


def test_a_delay_that_no_clock_can_wait_for_switches_off_that_link_only() -> None:
    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        host.set_parameter("shovel", "good", SHOVEL | {"reconnect-delay": 1})
        await trio.sleep(0.5)
        entry = supervisor._entries["shovel", "/", "good"]
        assert isinstance(entry.link, Shovel)
        endless = Shovel("/", "bad", replace(entry.link.definition, reconnect_delay_s=10**400), supervisor._endpoints)
        with patch.object(supervisor, "_shovel", lambda vhost, name, value: endless):
            host.set_parameter("shovel", "bad", SHOVEL)
            await trio.sleep(5)
        before = len(host.attempts)
        bad, good = supervisor.shovels()
        assert bad["state"] == "terminated" and str(bad["reason"]).startswith("switched off: OverflowError")
        await trio.sleep(5)
        assert good["state"] == "terminated" and len(host.attempts) >= before + 4

    run(test)


def test_a_link_that_cannot_be_made_is_shown_and_leaves_the_others_alone() -> None:
    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        host.set_parameter("shovel", "good", SHOVEL | {"reconnect-delay": 1})
        await trio.sleep(0.5)
        with patch.object(supervisor, "_shovel", side_effect=RecursionError("maximum recursion depth exceeded")):
            host.set_parameter("shovel", "bad", SHOVEL)
            await trio.sleep(5)
        bad, _ = supervisor.shovels()
        assert bad["state"] == "terminated" and "RecursionError" in str(bad["reason"])
        before = len(host.attempts)
        await trio.sleep(5)
        assert len(host.attempts) >= before + 4

    run(test)


def test_definitions_that_cannot_be_read_leave_the_links_that_run_alone() -> None:
    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        host.set_parameter("shovel", "good", SHOVEL | {"reconnect-delay": 1})
        await trio.sleep(0.5)
        entry = supervisor._entries["shovel", "/", "good"]
        with patch.object(host, "federated_queues", side_effect=[MemoryError(), []]):
            host.changed()
            await trio.sleep(5)
        assert [line[:2] for line in host.logged if line[0] == "error"] == [("error", "links")]
        assert supervisor._entries["shovel", "/", "good"] is entry and not entry.scope.cancel_called

    run(test)


def test_others_have_their_turns_while_many_parameters_are_looked_at() -> None:
    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        for number in range(10 * AT_ONCE):
            host.definitions["federation-upstream", "/", str(number)] = {"uri": "amqp://h"}
        looked = trio.Event()

        async def federated_exchanges() -> list[LocalExchange]:
            looked.set()
            return []

        with patch.object(host, "federated_exchanges", federated_exchanges):
            host.changed()
            turns = 0
            while not looked.is_set():
                await trio.lowlevel.checkpoint()
                turns += 1
        assert turns >= 10

    run(test)


@pytest.mark.parametrize("uris", [["amqp://h"] * 2 * AT_ONCE, ["amqp://h/" + "v" * 8000] * 8])
@pytest.mark.parametrize("kind", ["shovel", "upstream"])
def test_others_have_their_turns_while_many_uris_are_looked_at(uris: list[str], kind: str) -> None:
    """Ten links in all: those of shovels are made, and upstreams found for the policy of an exchange."""

    class Turns(trio.abc.Instrument):
        def __init__(self) -> None:
            self.most = self._since = 0

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self._since = 0

        def looked(self) -> None:
            self._since += 1
            self.most = max(self.most, self._since)

    turns = Turns()

    def parse(text: str, default_vhost: str = "/") -> BrokerUri:
        turns.looked()
        return parse_uri(text[:20], default_vhost)

    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        trio.lowlevel.add_instrument(turns)
        for number in range(10):
            if kind == "shovel":
                value = {**SHOVEL, "src-uri": uris}
                host.definitions["shovel", "/", str(number)] = value
            else:
                host.definitions["federation-upstream", "/", str(number)] = {"uri": uris}
        if kind == "upstream":
            host.exchanges = [
                LocalExchange("/", ExchangeDeclaration("x", "topic", durable=True), Policy(upstream_set="all"))
            ]
        host.changed()
        await trio.sleep(1)
        assert len(supervisor._entries) == 10
        assert 0 < turns.most <= 4 * len(uris)

    with (
        patch("warren.links.validation.parse_uri", parse),
        patch("warren.links.shovel.parse_uri", parse),
        patch("warren.links.upstreams.parse_uri", parse),
        patch("warren.links.endpoints.parse_uri", parse),
        patch("warren.links.validation.URIS_MAX", 1000),
        patch("warren.links.validation.URIS_MAX_CHARACTERS", 1 << 20),
    ):
        run(test)


def test_what_there_should_be_is_not_looked_for_after_each_of_many_changes() -> None:
    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        looks = 0

        async def federated_exchanges() -> list[LocalExchange]:
            nonlocal looks
            looks += 1
            await trio.sleep(1)
            return []

        with patch.object(host, "federated_exchanges", federated_exchanges):
            for number in range(1000):
                host.set_parameter("shovel", "s", SHOVEL | {"reconnect-delay": number})
                await trio.sleep(0.1)
            assert looks <= 100 / (1 + PAUSE_PER_S) + 1
            await trio.sleep(2 * (1 + PAUSE_PER_S))
        entry = supervisor._entries["shovel", "/", "s"]
        assert entry.link is not None and entry.link.reconnect_delay_s == 999, "the last one counts"

    run(test)


def test_attempts_begin_one_after_the_other_and_vhosts_take_turns() -> None:
    """However many links fail over and over, those of another vhost are tried at once."""

    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        for number in range(400):
            host.set_parameter("shovel", f"s{number}", SHOVEL | {"reconnect-delay": 1})
        await trio.sleep(10)
        assert len(host.attempts) <= 10 / START_EVERY_S + 1
        assert len(host.attempts) > 1000
        times = {now: host.attempts.count(now) for now in host.attempts}
        assert max(times.values()) == 1
        await supervisor._starts.wait("another vhost")
        before = trio.current_time()
        await supervisor._starts.wait("another vhost")
        assert trio.current_time() - before <= 3 * START_EVERY_S

    run(test)


def test_a_link_that_is_taken_away_while_it_waits_for_its_turn_leaves_the_line() -> None:
    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await supervisor._starts.wait("/")
        assert supervisor._starts._lines == {}

    run(test)


def test_a_vhost_has_so_many_links_and_others_have_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "LINKS_MAX", 30)

    async def test(host: UnreachableHost, supervisor: Supervisor) -> None:
        for number in range(10):
            host.set_parameter("federation-upstream", f"up{number}", {"uri": "amqp://"})
        policy = Policy(upstream_set="all")
        host.queues = [LocalQueue("/", QueueDeclaration(f"q{number}", durable=True), policy) for number in range(20)]
        host.set_parameter("shovel", "s", SHOVEL)
        await trio.sleep(1)
        keys = list(supervisor._entries)
        assert len(keys) == 30 and keys[0] == ("shovel", "/", "s")
        assert {key[2] for key in keys[1:]} == {"q0", "q1", "q2"}
        assert [line for line in host.logged if line[1] == "too_many_links"] == [
            ("error", "too_many_links", {"vhost": "/", "most": 30})
        ]
        host.queues = host.queues[2:]
        host.changed()
        await trio.sleep(1)
        assert {key[2] for key in supervisor._entries if key[0] == "queue"} == {"q2", "q3", "q4"}
        assert all(entry in supervisor._of(*key[:3]) for key, entry in supervisor._entries.items())

    run(test)
