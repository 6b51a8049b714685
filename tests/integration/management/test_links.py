"""Shovels and federation as an operator has them: parameters and policies go in over HTTP, status comes out.

All brokers here are Warrens; ``integration/links`` has those that talk to RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from broker_process import WarrenProcess, wait_until

from .client import EVERYTHING, Api, Place, connect, q
from .conftest import Connect

LOOPBACK = {"link_networks": "127.0.0.0/8"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    """A broker whose links may connect to this machine."""
    with WarrenProcess(tmp_path_factory.mktemp("broker"), settings=LOOPBACK) as process:
        yield process


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    """Another one, as shipped: its links may not."""
    with WarrenProcess(tmp_path_factory.mktemp("remote")) as process:
        api = Api(process.http_port)
        api.put("/cluster-name", {"name": "remote"})
        api.put("/users/link", {"password": "s3cret", "tags": ""})
        api.put("/permissions/%2F/link", EVERYTHING)
        api.close()
        yield process


def uri(process: WarrenProcess, password: str = "s3cret") -> str:
    """Return a URI with credentials in it."""
    return f"amqp://link:{password}@127.0.0.1:{process.amqp_port}/%2F"


def put_shovel(place: Place, name: str = "s", **definition: Any) -> None:
    value = {"reconnect-delay": 0.2, **{key.replace("_", "-"): entry for key, entry in definition.items()}}
    place.api.put(f"/parameters/shovel/{place.v}/{name}", {"value": value})


def here(place: Place, login: str = "") -> str:
    """Return the URI of a vhost of this broker."""
    return f"amqp://{login}/{place.v}"


def shovel(place: Place, wanted: Callable[[Any], Any], name: str = "s") -> Any:
    """Return the status of a shovel as soon as it is as `wanted`."""
    (status,) = place.api.eventually(
        f"/shovels/{place.v}",
        lambda rows: [row for row in rows if row["name"] == name and wanted(row)] and len(rows) == 1,
    )
    return status


def is_running(row: dict[str, Any]) -> bool:
    return bool(row.get("state") == "running" or row.get("status") == "running")


def fill(amqp: Connect, queue: str, count: int) -> None:
    """Publish the bodies 0, 1, … into a durable queue, confirmed."""
    channel = amqp().channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2), mandatory=True)


def take(channel: Any, queue: str, count: int) -> list[bytes]:
    """Get `count` messages, as they come."""
    bodies: list[bytes] = []

    def got_all() -> bool:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            bodies.append(body)
        return len(bodies) == count

    wait_until(got_all, f"{count} messages in {queue}")
    return bodies


# --- parameters -------------------------------------------------------------------------------------------------------

LOCAL = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}


@pytest.mark.parametrize(
    ("component", "value", "reason"),
    [
        (
            "shovel",
            {},
            "Must specify 'src-exchange' or 'src-queue'\n"
            'Key "dest-uri" not found in p\nKey "src-uri" not found in p',
        ),
        ("shovel", LOCAL | {"src-exchange": "e"}, "Cannot specify 'src-exchange' and 'src-queue'"),
        (
            "shovel",
            LOCAL | {"ack-mode": "x", "nonsense": 1},
            'Unrecognised terms [{<<"nonsense">>,1}] in p\n'
            'ack-mode should be one of [<<"no-ack">>,<<"on-publish">>,<<"on-confirm">>], actually was <<"x">>',
        ),
        (
            "shovel",
            LOCAL | {"src-uri": "http://user:s3cret@host"},
            '"http://host" not a valid URI: {{unexpected_uri_scheme,"http"},"http://host"}',
        ),
        ("federation-upstream", {}, 'Key "uri" not found in p'),
        ("federation-upstream-set", [{"upstream": 1}], "upstream should be binary, actually was 1"),
        ("nosuch", {}, "component nosuch not found"),
    ],
)
def test_a_parameter_that_is_wrong_is_refused_in_rabbitmqs_words(
    place: Place, component: str, value: object, reason: str
) -> None:
    answer = place.api.ask("PUT", f"/parameters/{component}/{place.v}/p", {"value": value})
    assert answer.refusal == (400, "bad_request", f"Validation failed\n\n{reason}\n")
    assert place.api.get(f"/parameters/{component}/{place.v}") == []


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ({"federation-upstream": 1}, "1 is not a valid federation upstream name"),
        (
            {"federation-upstream": "a", "federation-upstream-set": "b"},
            "cannot specify federation-upstream, federation-upstream-set or federation-upstream-pattern together",
        ),
    ],
)
def test_a_policy_names_upstreams_in_one_way(place: Place, definition: dict[str, object], reason: str) -> None:
    answer = place.api.ask("PUT", f"/policies/{place.v}/p", {"pattern": "", "definition": definition})
    assert answer.refusal == (400, "bad_request", f"Validation failed\n\n{reason}\n")


def test_a_shovel_is_put_changed_and_deleted(place: Place) -> None:
    path = f"/parameters/shovel/{place.v}/s"
    value = LOCAL | {"src-uri": here(place), "dest-uri": here(place)}
    assert place.api.put(path, {"value": value}) == 201
    assert place.api.put(path, {"value": value | {"dest-queue": "c"}}) == 204
    assert place.api.get(path)["value"] == value | {"dest-queue": "c"}
    status = shovel(place, lambda row: is_running(row) and row["dest_queue"] == "c")
    assert {key: status[key] for key in ("name", "vhost", "type", "src_uri", "dest_uri", "src_queue")} == {
        "name": "s",
        "vhost": place.vhost,
        "type": "dynamic",
        "src_uri": here(place),
        "dest_uri": here(place),
        "src_queue": "a",
    }
    assert place.api.get(f"/shovels/vhost/{place.v}/s")["name"] == "s"
    assert place.api.delete(path) == 204
    place.api.eventually(f"/shovels/{place.v}", lambda rows: rows == [])
    for method, gone in (("DELETE", path), ("GET", f"/shovels/vhost/{place.v}/s")):
        assert place.api.ask(method, gone).status == 404
    for gone in ("", "/restart"):
        assert place.api.ask("DELETE", f"/shovels/vhost/{place.v}/s{gone}").status == 404


# --- shovels ----------------------------------------------------------------------------------------------------------


def test_a_shovel_moves_what_is_there_and_deletes_its_parameter(place: Place, amqp: Connect) -> None:
    fill(amqp, "from", 20)
    put_shovel(place, src_uri=here(place), src_queue="from", src_delete_after=15, dest_uri=here(place), dest_queue="to")
    place.api.eventually(f"/parameters/shovel/{place.v}", lambda rows: rows == [])
    place.api.eventually(f"/shovels/{place.v}", lambda rows: rows == [])
    channel = amqp().channel()
    assert take(channel, "to", 15) == [b"%d" % number for number in range(15)]
    assert take(channel, "from", 5) == [b"%d" % number for number in range(15, 20)]


def test_a_shovel_goes_to_another_broker_and_back(place: Place, amqp: Connect, remote: WarrenProcess) -> None:
    fill(amqp, "from", 10)
    put_shovel(place, "s", src_uri=here(place), src_queue="from", dest_uri=uri(remote), dest_queue="between")
    put_shovel(place, "t", src_uri=uri(remote), src_queue="between", dest_uri=here(place), dest_queue="to")
    wait_until(lambda: len(place.api.get(f"/shovels/{place.v}")) == 2, "two shovels")
    channel = amqp().channel()
    channel.queue_declare("to", durable=True)
    assert take(channel, "to", 10) == [b"%d" % number for number in range(10)]


def test_a_shovel_begins_anew_when_asked(place: Place, amqp: Connect) -> None:
    channel = amqp().channel()
    channel.queue_declare("from", durable=True)
    put_shovel(
        place,
        src_uri=here(place),
        src_queue="from",
        dest_uri=here(place),
        dest_queue="missing",
        dest_predeclared=True,
        reconnect_delay=0,
    )
    assert "NOT_FOUND - no queue 'missing'" in shovel(place, lambda row: row["state"] == "terminated")["reason"]
    channel.queue_declare("missing", durable=True)
    assert place.api.delete(f"/shovels/vhost/{place.v}/s/restart") == 204
    shovel(place, is_running)
    assert place.api.delete(f"/shovels/vhost/{place.v}/s") == 204
    assert place.api.get(f"/parameters/shovel/{place.v}") == []


def test_a_local_uri_with_a_user_has_that_users_permissions(place: Place, amqp: Connect) -> None:
    place.user("reader", "", {"configure": "", "write": "", "read": ".*"})
    fill(amqp, "from", 1)
    amqp().channel().queue_declare("to", durable=True)
    definition = {"src_uri": here(place), "src_queue": "from", "dest_queue": "to"}
    put_shovel(place, dest_uri=here(place, "reader:x@"), **definition | {"dest_queue": "to2"})
    status = shovel(place, lambda row: "reason" in row)
    assert "403 ACCESS_REFUSED - configure access to queue 'to2'" in status["reason"]
    assert "user 'reader'" in status["reason"]
    put_shovel(place, dest_uri=here(place, "reader:wrong@"), **definition)
    assert "Login was refused" in shovel(place, lambda row: "Login" in row.get("reason", ""))["reason"]
    put_shovel(place, dest_uri=here(place, "guest:guest@"), **definition)
    assert take(amqp().channel(), "to", 1) == [b"0"]


def test_without_leave_of_the_operator_links_do_not_connect_to_this_machine(
    remote: WarrenProcess, broker: WarrenProcess
) -> None:
    api = Api(remote.http_port)
    value = {"src-uri": "amqp://", "src-queue": "from", "dest-uri": uri(broker), "dest-queue": "to"}
    api.put("/parameters/shovel/%2F/refused", {"value": value})
    (status,) = api.eventually("/shovels", lambda rows: rows and rows[0]["state"] == "terminated")
    place = f"127.0.0.1:{broker.amqp_port}"
    assert status["reason"] == f"links may not connect to {place}: a loopback, link-local or reserved address"
    api.put("/parameters/shovel/%2F/refused", {"value": value | {"dest-uri": "amqp://"}})
    api.eventually("/shovels", lambda rows: rows and is_running(rows[0]))
    api.delete("/parameters/shovel/%2F/refused")
    api.close()


# --- federation -------------------------------------------------------------------------------------------------------


def federate(place: Place, remote: WarrenProcess, pattern: str = "^fed", upstream: str = "up") -> None:
    value = {"uri": uri(remote), "reconnect-delay": 0.2}
    place.api.put(f"/parameters/federation-upstream/{place.v}/{upstream}", {"value": value})
    policy = {"pattern": pattern, "definition": {"federation-upstream": upstream}}
    place.api.put(f"/policies/{place.v}/linked", policy)


def running_links(place: Place, count: int) -> Any:
    path = f"/federation-links/{place.v}"
    return place.api.eventually(path, lambda rows: len(rows) == count and all(map(is_running, rows)))


def test_an_exchange_and_a_queue_are_federated_by_a_policy(place: Place, amqp: Connect, remote: WarrenProcess) -> None:
    channel = amqp().channel()
    channel.exchange_declare("fed.e", "topic", durable=True)
    channel.queue_declare("sink", durable=True)
    channel.queue_bind("sink", "fed.e", "early")
    channel.queue_declare("fed.q", durable=True)
    with connect(remote.amqp_port, "/", "link", "s3cret") as connection:
        there = connection.channel()
        there.confirm_delivery()
        there.queue_declare("fed.q", durable=True)
        there.basic_publish("", "fed.q", b"queued")
        federate(place, remote)
        links = running_links(place, 2)
        assert [(row["type"], row["upstream"], row["uri"], row["vhost"]) for row in links] == [
            (kind, "up", f"amqp://127.0.0.1:{remote.amqp_port}/%2F", place.vhost) for kind in ("exchange", "queue")
        ]
        assert place.api.get(f"/federation-links/{place.v}/state/down") == []
        # An exchange: present and later bindings are federated, others are not.
        there.basic_publish("fed.e", "early", b"early")
        assert take(channel, "sink", 1) == [b"early"]
        channel.queue_bind("sink", "fed.e", "late")
        wait_until(lambda: _bound(remote, "late"), "the binding at the upstream")
        there.basic_publish("fed.e", "unbound", b"unbound")
        there.basic_publish("fed.e", "late", b"late")
        assert take(channel, "sink", 1) == [b"late"]
        # A queue: a message comes when somebody waits for it.
        assert there.queue_declare("fed.q", passive=True).method.message_count == 1
        _, _, body = next(channel.consume("fed.q", inactivity_timeout=60, auto_ack=True))
        assert body == b"queued"
        channel.cancel()
        # Without the policy nothing of it is left, here or there.
        place.api.delete(f"/policies/{place.v}/linked")
        running_links(place, 0)
        wait_until(lambda: not _bound(remote, "early"), "the upstream to be cleaned up")
        there.queue_delete("fed.q")
        there.exchange_delete("fed.e")


def _bound(process: WarrenProcess, key: str) -> bool:
    api = Api(process.http_port)
    keys = [row["routing_key"] for row in api.get("/bindings/%2F") if row["source"] == "fed.e"]
    api.close()
    return key in keys


def test_a_federation_link_begins_anew_when_asked(place: Place, amqp: Connect, remote: WarrenProcess) -> None:
    amqp().channel().queue_declare("fed.q", durable=True)
    federate(place, remote)
    (link,) = running_links(place, 1)
    path = f"/federation-links/vhost/{place.v}/{link['id']}/{q(link['node'])}/restart"
    before = {row["name"] for row in place.api.get("/connections")}
    assert place.api.delete(path) == 204
    running_links(place, 1)
    place.api.eventually("/connections", lambda rows: not before & {row["name"] for row in rows if "link" in str(row)})
    place.api.delete(f"/policies/{place.v}/linked")
    running_links(place, 0)
    assert place.api.ask("DELETE", path).status == 404


# --- who may see and do what ------------------------------------------------------------------------------------------


def test_tags_and_vhosts_decide_who_may_have_links(place: Place) -> None:
    maker = place.user("maker", "policymaker")
    path = f"/parameters/shovel/{place.v}/s"
    value = LOCAL | {"src-uri": here(place), "dest-uri": here(place)}
    assert maker.ask("PUT", path, {"value": value}).status == 201
    # Where she may not go herself, she cannot have the broker go.
    for other in (LOCAL, value | {"dest-uri": "amqp://guest:guest@"}):
        reason = maker.ask("PUT", path, {"value": other}).refusal[2]
        assert 'user "maker" may not connect to vhost "/"\n' in reason
    assert maker.ask("PUT", "/parameters/shovel/%2F/s", {"value": LOCAL}).status == 401
    upstream = f"/parameters/federation-upstream/{place.v}/u"
    assert maker.ask("PUT", upstream, {"value": {"uri": "amqp:///%2F"}}).status == 400
    for tag in ("management", "monitoring"):
        user = place.user(tag, tag)
        for method in ("GET", "PUT", "DELETE"):
            body = {"value": value} if method == "PUT" else None
            assert user.ask(method, path, body).status == 401, (tag, method)
        assert user.ask("DELETE", f"/shovels/vhost/{place.v}/s").status == 401
        assert user.ask("DELETE", f"/shovels/vhost/{place.v}/s/restart").status == 401
    for name, status in (("management", 401), ("maker", 401), ("monitoring", 200)):
        for list_path in ("/shovels", f"/shovels/{place.v}", "/federation-links", f"/federation-links/{place.v}"):
            assert place.api.as_user(name).ask("GET", list_path).status == status, (name, list_path)
    assert maker.ask("DELETE", f"/shovels/vhost/{place.v}/s/restart").status == 204
    assert maker.ask("DELETE", path).status == 204


def test_nobody_is_called_like_the_broker_itself(api: Api) -> None:
    answer = api.ask("PUT", "/users/rmq-internal", {"password": "x", "tags": "administrator"})
    assert answer.refusal == (400, "bad_request", "the name 'rmq-internal' is the broker's own")
    assert api.as_user("rmq-internal").ask("GET", "/overview").status == 401


def test_passwords_are_shown_to_those_only_who_may_change_them(
    place: Place, amqp: Connect, remote: WarrenProcess, broker: WarrenProcess
) -> None:
    fill(amqp, "from", 1)
    amqp().channel().queue_declare("fed.q", durable=True)
    federate(place, remote)
    put_shovel(place, "good", src_uri=here(place), src_queue="from", dest_uri=uri(remote), dest_queue="to")
    put_shovel(place, "bad", src_uri=uri(remote, "wr0ng"), src_queue="from", dest_uri=here(place), dest_queue="to")
    place.api.eventually(f"/shovels/{place.v}", lambda rows: len(rows) == 2 and "reason" in rows[0])
    running_links(place, 1)
    maker, watcher = place.user("maker", "policymaker"), place.user("watcher", "monitoring")
    for path in ("/parameters", "/parameters/shovel", f"/parameters/shovel/{place.v}/bad"):
        assert b"wr0ng" in maker.ask("GET", path).body, "who may set it may read it, as at RabbitMQ"
        assert watcher.ask("GET", path).status == 401
    seen = b""
    for path in ("/shovels", "/federation-links", "/connections", "/channels", "/consumers", "/policies", "/overview"):
        for user in (watcher, place.api):
            answer = user.ask("GET", path)
            assert answer.status == 200, path
            seen += answer.body
    for secret in ("wr0ng", "s3cret"):
        assert secret.encode() not in seen
        assert secret not in broker.log() + broker.out() + remote.log()
    for name in ("good", "bad"):
        place.api.delete(f"/parameters/shovel/{place.v}/{name}")


# --- life -------------------------------------------------------------------------------------------------------------


def test_links_end_with_their_vhost(api: Api, broker: WarrenProcess, remote: WarrenProcess) -> None:
    place = Place(api, "short-lived")
    api.put(f"/vhosts/{place.v}")
    api.put(f"/queues/{place.v}/fed.q", {"durable": True})
    federate(place, remote)
    put_shovel(place, src_uri=here(place), src_queue="from", dest_uri="amqp://", dest_queue="to")
    running_links(place, 1)
    shovel(place, is_running)
    api.delete(f"/vhosts/{place.v}")
    # Made again it is empty.
    api.put(f"/vhosts/{place.v}")
    assert api.get(f"/parameters/shovel/{place.v}") == []
    for links in ("shovels", "federation-links"):
        api.eventually(f"/{links}/{place.v}", lambda rows: rows == [])
    api.delete(f"/vhosts/{place.v}")


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_links_are_there_again_after_a_start(tmp_path: Any, remote: WarrenProcess, how: str) -> None:
    with WarrenProcess(tmp_path, settings=LOOPBACK) as process:
        api = Api(process.http_port)
        place = Place(api, "/")
        with connect(process.amqp_port, "/") as connection:
            connection.channel().queue_declare("fed.q", durable=True)
        federate(place, remote)
        put_shovel(place, src_uri=here(place), src_queue="from", dest_uri=uri(remote), dest_queue=f"after {how}")
        running_links(place, 1)
        shovel(place, is_running)
        api.close()
        process.stop() if how == "stopped" else process.kill()
        process.start()
        running_links(place, 1)
        shovel(place, is_running)
        with connect(process.amqp_port, "/") as connection:
            connection.channel().basic_publish("", "from", b"after")
            with connect(remote.amqp_port, "/") as other:
                assert take(other.channel(), f"after {how}", 1) == [b"after"]
        api.close()
