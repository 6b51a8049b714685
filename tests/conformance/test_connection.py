"""The connection class: handshake, login, tuning, vhosts, closing, blocking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import CAPABILITIES, PASSWORD, USER, Client, Harness, Refusal

from warren.amqp import methods as m
from warren.amqp.codec import frame, method_frame
from warren.amqp.field_table import encode_table
from warren.amqp.methods import PROTOCOL_HEADER
from warren.channels.ending import force_close
from warren.vhosts.metadata import PermissionDelete, UserPut, VhostPut

from .rules import rule

GOOD_PLAIN = b"\0" + USER.encode() + b"\0" + PASSWORD.encode()


def started(harness: Harness, **options: Any) -> Client:
    client = harness.raw_client(**options)
    client.start()
    return client


def tuning(harness: Harness, **options: Any) -> Client:
    client = started(harness, **options)
    client.start_ok()
    client.expect(m.ConnectionTune)
    return client


def opening(harness: Harness, user: str = USER) -> Client:
    client = started(harness)
    client.start_ok(user)
    client.expect(m.ConnectionTune)
    client.send(0, m.ConnectionTuneOk(2047, 131072, 0))
    client.nothing()
    return client


def start_ok(client: Client, mechanism: str, response: bytes) -> None:
    client.send(0, m.ConnectionStartOk(client.properties(), mechanism, response, "en_US"))


def not_allowed(client: Client, text: str, failing: type[Any]) -> None:
    assert client.refusal() == Refusal("connection", 530, "NOT_ALLOWED - " + text, failing)


# --- start ------------------------------------------------------------------------------------------------------------


@rule("rabbitmq.connection.start", "start announces version 0-9, PLAIN and AMQPLAIN.")
@rule("connection.start.locales.required-support", "The locale en_US is offered.")
def test_start_announces_version_mechanisms_and_locale(harness: Harness) -> None:
    start = harness.raw_client().start()
    assert (start.version_major, start.version_minor) == (0, 9)
    assert start.mechanisms == b"PLAIN AMQPLAIN"
    assert start.locales.split() == [b"en_US"]


@rule("rabbitmq.connection.start", "EXTERNAL is offered to who has shown a client certificate of a user there is.")
def test_external_is_offered_with_a_certificate(harness: Harness) -> None:
    start = harness.raw_client(certificate_user=USER).start()
    assert b"EXTERNAL" in start.mechanisms.split()
    start = harness.raw_client(certificate_user="nobody").start()
    assert start.mechanisms == b"PLAIN AMQPLAIN"


@rule(
    "connection.start.server-properties.required-fields",
    "product, version, platform, copyright and information are told.",
    deviation="host is not told, as in RabbitMQ; the default name of the cluster ends in the machine's.",
)
def test_start_tells_who_serves(harness: Harness) -> None:
    properties = harness.raw_client().start().server_properties
    told = {key for key, value in properties.items() if isinstance(value, str) and value}
    assert {"product", "version", "platform", "copyright", "information", "cluster_name"} <= told
    assert properties["product"] == "RabbitMQ"


@rule("rabbitmq.connection.start", "Every capability that clients look for is announced, as true.")
def test_start_announces_capabilities(harness: Harness) -> None:
    capabilities = harness.raw_client().start().server_properties["capabilities"]
    names = (
        "publisher_confirms exchange_exchange_bindings basic.nack consumer_cancel_notify connection.blocked "
        "consumer_priorities authentication_failure_close per_consumer_qos direct_reply_to amq.control"
    )
    assert capabilities == dict.fromkeys(names.split(), True)


# --- start-ok: login --------------------------------------------------------------------------------------------------

LOGINS = {
    "PLAIN": GOOD_PLAIN,
    "AMQPLAIN": encode_table({"LOGIN": USER, "PASSWORD": PASSWORD})[4:],
    "EXTERNAL": b"",
}


@rule("rabbitmq.connection.start-ok", "PLAIN, AMQPLAIN and EXTERNAL log in; tune follows.")
@pytest.mark.parametrize("mechanism", LOGINS)
def test_each_mechanism_logs_in(harness: Harness, mechanism: str) -> None:
    client = started(harness, certificate_user=USER)
    start_ok(client, mechanism, LOGINS[mechanism])
    client.expect(m.ConnectionTune)


@rule("connection.start-ok.mechanism.validity", "A mechanism that was not offered costs the socket, without a word.")
@pytest.mark.parametrize("mechanism", ["EXTERNAL", "ANONYMOUS", "plain", "", "PLAIN AMQPLAIN"])
def test_a_mechanism_that_was_not_offered_is_met_with_silence(harness: Harness, mechanism: str) -> None:
    client = started(harness)
    start_ok(client, mechanism, GOOD_PLAIN)
    assert client.take_bytes() == b""
    assert client.ended


@rule("rabbitmq.connection.start-ok", "A malformed SASL response costs the socket, without a word.")
@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b""),
        ("PLAIN", b"guest"),
        ("PLAIN", b"\0guest"),
        ("PLAIN", b"\0guest\0guest\0"),
        ("PLAIN", b"\0\xff\xfe\0guest"),
        ("AMQPLAIN", b""),
        ("AMQPLAIN", encode_table({"LOGIN": USER})[4:]),
        ("AMQPLAIN", encode_table({"PASSWORD": PASSWORD})[4:]),
        ("AMQPLAIN", encode_table({"LOGIN": 1, "PASSWORD": PASSWORD})[4:]),
        ("AMQPLAIN", encode_table({"LOGIN": USER, "PASSWORD": PASSWORD})[4:-1]),
        ("AMQPLAIN", encode_table({"LOGIN": USER, "PASSWORD": PASSWORD})),
    ],
)
def test_a_malformed_response_is_met_with_silence(harness: Harness, mechanism: str, response: bytes) -> None:
    client = started(harness)
    start_ok(client, mechanism, response)
    assert client.take_bytes() == b""
    assert client.ended


@rule("rabbitmq.connection.start-ok", "Who sends no credentials waits as long as who is refused.")
@pytest.mark.parametrize(("mechanism", "response"), [("PLAIN", b""), ("AMQPLAIN", b""), ("ANONYMOUS", b"x")])
def test_no_credentials_wait_for_the_refusal(harness: Harness, mechanism: str, response: bytes) -> None:
    client = started(harness)
    start_ok_method = m.ConnectionStartOk(client.properties(), mechanism, response, "en_US")
    client.connection.feed(method_frame(0, start_ok_method))
    (request,) = harness.broker.logins
    assert request.problem and not client.ended
    harness.settle()
    assert client.take_bytes() == b"" and client.ended
    assert harness.broker.churn.logins_refused == 1


@rule("rabbitmq.connection.start-ok", "A refused login is told as 403 to who announced authentication_failure_close.")
@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_a_refused_login_is_told_to_who_understands(harness: Harness, mechanism: str) -> None:
    client = started(harness)
    response = {"PLAIN": b"\0guest\0wrong", "AMQPLAIN": encode_table({"LOGIN": USER, "PASSWORD": "wrong"})[4:]}
    start_ok(client, mechanism, response[mechanism])
    text = (
        f"ACCESS_REFUSED - Login was refused using authentication mechanism {mechanism}. "
        "For details see the broker logfile."
    )
    assert client.refusal() == Refusal("connection", 403, text, None)


@rule("rabbitmq.connection.start-ok", "Others get a closed socket for a refused login.")
def test_a_refused_login_is_met_with_silence(harness: Harness) -> None:
    client = started(harness, capabilities=())
    client.start_ok(password=b"wrong")
    assert client.take_bytes() == b""
    assert client.ended


@rule("rabbitmq.connection.start-ok", "While credentials are checked nothing is handled that comes behind them.")
def test_a_client_may_send_its_whole_handshake_at_once(harness: Harness) -> None:
    client = harness.raw_client()
    calls = [
        m.ConnectionStartOk(client.properties(), "PLAIN", GOOD_PLAIN, "en_US"),
        m.ConnectionTuneOk(10, 4096, 0),
        m.ConnectionOpen("/", "", False),
    ]
    client.feed(PROTOCOL_HEADER + b"".join(method_frame(0, call) for call in calls))
    kinds = [type(each.method) for each in client.take()]
    assert kinds == [m.ConnectionStart, m.ConnectionTune, m.ConnectionOpenOk]


@rule("rabbitmq.connection.start-ok", "connection_name of the client's properties names the connection.")
def test_a_client_may_name_its_connection(harness: Harness) -> None:
    client = started(harness)
    client.send(0, m.ConnectionStartOk({"connection_name": "the one"}, "PLAIN", GOOD_PLAIN, "en_US"))
    client.expect(m.ConnectionTune)
    client.send(0, m.ConnectionTuneOk(10, 4096, 0), m.ConnectionOpen("/", "", False))
    assert client.connection.login.name == "the one"
    assert harness.notices[-1].fields["name"] == "the one"


# --- tune -------------------------------------------------------------------------------------------------------------


@rule("rabbitmq.connection.tune", "tune proposes 2047 channels, frames of 131072 octets and a heartbeat of 60 s.")
def test_tune_proposes_the_limits(harness: Harness) -> None:
    client = started(harness)
    client.start_ok()
    assert client.expect(m.ConnectionTune) == m.ConnectionTune(2047, 131072, 60)


@rule("connection.tune.frame-max.minimum", "Before tuning, frames of 4096 octets and more are accepted.")
@pytest.mark.parametrize("size", [4096, 8192])
def test_large_client_properties_are_accepted(harness: Harness, size: int) -> None:
    client = started(harness)
    base = len(method_frame(0, m.ConnectionStartOk({"p": ""}, "PLAIN", GOOD_PLAIN, "en_US")))
    properties: dict[str, object] = {"p": "x" * (size - base)}
    data = method_frame(0, m.ConnectionStartOk(properties, "PLAIN", GOOD_PLAIN, "en_US"))
    assert len(data) == size
    client.feed(data)
    client.expect(m.ConnectionTune)


@rule("connection.tune-ok.frame-max.minimum", "A frame_max of 4096 is accepted, less is refused with 530.")
def test_frame_max_may_be_4096_and_no_less(harness: Harness) -> None:
    client = tuning(harness)
    client.send(0, m.ConnectionTuneOk(2047, 4096, 0), m.ConnectionOpen("/", "", False))
    client.expect(m.ConnectionOpenOk)
    client = tuning(harness)
    client.send(0, m.ConnectionTuneOk(2047, 4095, 0))
    text = "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)"
    not_allowed(client, text, m.ConnectionTuneOk)


@rule(
    "connection.tune-ok.frame-max.upper-limit",
    "A frame_max above the proposal, or 0, is refused.",
    deviation="with 530 instead of a closed socket, as in RabbitMQ.",
)
@pytest.mark.parametrize(("value", "shown"), [(131073, "131073"), (0xFFFFFFFF, "4294967295"), (0, "0 (no limit)")])
def test_frame_max_may_not_exceed_the_proposal(harness: Harness, value: int, shown: str) -> None:
    client = tuning(harness)
    client.send(0, m.ConnectionTuneOk(2047, value, 0))
    text = f"negotiated frame_max = {shown} is higher than the maximum allowed value (131072)"
    not_allowed(client, text, m.ConnectionTuneOk)


@rule(
    "connection.tune-ok.channel-max.upper-limit",
    "A channel_max above the proposal, or 0, is refused.",
    deviation="with 530 instead of a closed socket, as in RabbitMQ.",
)
@pytest.mark.parametrize(("value", "shown"), [(2048, "2048"), (65535, "65535"), (0, "0 (no limit)")])
def test_channel_max_may_not_exceed_the_proposal(harness: Harness, value: int, shown: str) -> None:
    client = tuning(harness)
    client.send(0, m.ConnectionTuneOk(value, 131072, 0))
    text = f"negotiated channel_max = {shown} is higher than the maximum allowed value (2047)"
    not_allowed(client, text, m.ConnectionTuneOk)


# --- open -------------------------------------------------------------------------------------------------------------


@rule("rabbitmq.connection.open", "open-ok has empty known-hosts.")
def test_open_ok_names_no_hosts(harness: Harness) -> None:
    client = opening(harness)
    client.send(0, m.ConnectionOpen("/", "ignored", True))
    assert client.expect(m.ConnectionOpenOk) == m.ConnectionOpenOk("")


@rule("rabbitmq.connection.open", "A vhost that does not exist is refused with 530.")
def test_a_missing_vhost_is_refused(harness: Harness) -> None:
    client = opening(harness)
    client.send(0, m.ConnectionOpen("nowhere", "", False))
    not_allowed(client, "vhost nowhere not found", m.ConnectionOpen)


@rule("connection.open.virtual-host.security", "A vhost in which the user has no permission is refused with 530.")
def test_a_vhost_needs_a_permission(harness: Harness) -> None:
    harness.broker.administer(VhostPut("theirs"))
    client = opening(harness)
    client.send(0, m.ConnectionOpen("theirs", "", False))
    not_allowed(client, "access to vhost 'theirs' refused for user 'guest'", m.ConnectionOpen)


@rule("connection.open.virtual-host.separation", "Names in one vhost mean nothing in another.")
def test_vhosts_are_separate(harness: Harness, client: Client) -> None:
    harness.broker.administer(VhostPut("two"))
    harness.permit(USER, vhost="two")
    second = harness.client(vhost="two")
    second.open(1)
    client.declare("q")
    client.declare_exchange("x")
    client.bind("q", "amq.fanout")
    refusal = second.refused(1, m.QueueDeclare(0, "q", True, False, False, False, False, b"\0\0\0\0"))
    assert (refusal.code, refusal.text) == (404, "NOT_FOUND - no queue 'q' in vhost 'two'")
    second.declare("q")
    second.declare_exchange("x", "fanout")
    second.publish("", "q", b"2")
    second.publish("amq.fanout", "", b"nobody")
    assert client.get("q") is None
    got = second.get("q")
    assert got is not None


@rule("rabbitmq.connection.open", "When as many connections are open as the node allows, one more is refused with 530.")
def test_the_node_limits_its_connections() -> None:
    harness = Harness(connections_max=2)
    first = harness.client()
    harness.client()
    late = opening(harness)
    late.send(0, m.ConnectionOpen("/", "", False))
    not_allowed(late, "connection refused: node connection limit (2) is reached", m.ConnectionOpen)
    first.send(0, m.ConnectionClose(200, "", 0, 0))
    harness.client()


# --- states -----------------------------------------------------------------------------------------------------------

STRANGERS = [
    m.ConnectionTuneOk(1, 4096, 0),
    m.ConnectionOpen("/", "", False),
    m.ConnectionStartOk({}, "PLAIN", b"", ""),
]


@rule("4.8.1", "A method out of its order before open-ok costs the socket, without a word.")
@pytest.mark.parametrize("state", ["starting", "tuning", "opening"])
def test_the_handshake_has_one_order(harness: Harness, state: str) -> None:
    makers: dict[str, Callable[[Harness], Client]] = {"starting": started, "tuning": tuning, "opening": opening}
    expected = {"starting": m.ConnectionStartOk, "tuning": m.ConnectionTuneOk, "opening": m.ConnectionOpen}
    others = [*STRANGERS, m.ConnectionStart(0, 9, {}, b"", b""), m.ConnectionSecureOk(b""), m.ConnectionUnblocked()]
    for stranger in others:
        if isinstance(stranger, expected[state]):
            continue
        client = makers[state](harness)
        client.send(0, stranger)
        assert client.take_bytes() == b""
        assert client.ended, f"{stranger} while {state}"


@rule("4.8.1", "Channels do not exist before open-ok: any frame for one costs the socket, without a word.")
@pytest.mark.parametrize("data", [method_frame(1, m.ChannelOpen("")), frame(2, 1, bytes(14)), frame(3, 0, b"x")])
def test_there_are_no_channels_before_open_ok(harness: Harness, data: bytes) -> None:
    for make in (started, tuning, opening):
        client = make(harness)
        client.feed(data)
        assert client.take_bytes() == b""
        assert client.ended


@rule("4.8.1", "Methods of the handshake are refused with 504 when the connection is open.")
@pytest.mark.parametrize("call", [*STRANGERS, m.ConnectionSecureOk(b""), m.ConnectionTune(1, 4096, 0)])
def test_the_handshake_happens_once(client: Client, call: Any) -> None:
    client.send(0, call)
    text = "CHANNEL_ERROR - unexpected method in connection state running"
    assert client.refusal() == Refusal("connection", 504, text, type(call))


@rule("rabbitmq.connection.close", "close is answered during the handshake too.")
def test_a_client_may_close_within_the_handshake(harness: Harness) -> None:
    for make in (started, tuning, opening):
        client = make(harness)
        client.send(0, m.ConnectionClose(200, "", 0, 0))
        client.expect(m.ConnectionCloseOk)
        assert client.ended


# --- close ------------------------------------------------------------------------------------------------------------


@rule("rabbitmq.connection.close", "Exclusive queues are deleted and unacked messages are back before close-ok.")
def test_close_ok_means_that_everything_is_let_go(client: Client, other: Client, harness: Harness) -> None:
    client.declare("private", exclusive=True)
    client.declare("q")
    client.publish("", "q", b"m")
    client.consume("q")
    assert client.bodies() == [b"m"]
    client.connection.feed(method_frame(0, m.ConnectionClose(200, "", 0, 0)))
    assert "private" not in harness.vhost.queues
    assert harness.queue("q").ready_count == 1
    harness.settle()
    client.expect(m.ConnectionCloseOk)
    assert client.ended


@rule(
    "connection.close.stability",
    "After our close everything is discarded but close, which gets close-ok, and close-ok.",
)
def test_after_close_everything_is_discarded(client: Client, harness: Harness) -> None:
    client.declare("q")
    client.send(1, m.BasicQos(1, 0, False))
    client.expect(m.ConnectionClose)
    client.send(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False), m.ChannelClose(200, "", 0, 0))
    client.publish("", "q")
    client.send(0, m.ConnectionTuneOk(1, 1, 1))
    client.nothing()
    assert harness.queue("q").ready_count == 0
    client.send(0, m.ConnectionClose(200, "", 0, 0))
    client.expect(m.ConnectionCloseOk)
    assert client.ended


@rule("connection.close.stability", "Whatever comes after our close, we close once.")
@pytest.mark.parametrize("data", [frame(1, 0, b"")[:-1] + b"x", frame(99, 0, b""), b"\x01\x00\x00\xff\xff\xff\xff"])
@pytest.mark.parametrize("closing", [m.BasicQos(1, 0, False), m.ConnectionClose(200, "", 0, 0)])
def test_nothing_makes_us_close_twice(client: Client, harness: Harness, data: bytes, closing: Any) -> None:
    client.feed(method_frame(0 if isinstance(closing, m.ConnectionClose) else 1, closing) + data + data)
    assert len(client.take()) == 1
    client.feed(data)
    assert client.take() == []
    harness.pass_time(31.0)
    assert client.ended
    assert not harness.broker.connections


@rule("connection.close-ok.reporting", "A socket that closes without a close is logged.")
def test_a_lost_connection_is_logged(harness: Harness, client: Client) -> None:
    client.hang_up()
    assert "connection.lost" in harness.events()


@rule("rabbitmq.connection.close", "A peer that never answers our close is cut off after 30 s.")
def test_who_never_answers_close_is_cut_off(client: Client, harness: Harness) -> None:
    client.send(1, m.BasicQos(1, 0, False))
    harness.pass_time(29.0)
    assert not client.ended
    harness.pass_time(1.5)
    assert client.ended


@rule("rabbitmq.connection.close", "At shutdown each connection is closed with 320 and the reason.")
def test_shutdown_closes_with_320(client: Client, harness: Harness) -> None:
    harness.broker.shut_down("shutdown")
    harness.settle()
    text = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
    assert client.refusal() == Refusal("connection", 320, text, None)


@rule("rabbitmq.connection.close", "A stray close-ok means nothing.")
def test_a_stray_close_ok_is_ignored(client: Client) -> None:
    client.send(0, m.ConnectionCloseOk())
    client.nothing()


# --- blocked, update-secret -------------------------------------------------------------------------------------------


@rule("rabbitmq.connection.blocked", "A publisher is told when an alarm stops it, and when it is over.")
def test_a_publisher_is_told_of_an_alarm(client: Client, harness: Harness) -> None:
    client.declare("q")
    harness.broker.set_alarm("memory", True)
    harness.broker.set_alarm("disk", True)
    harness.settle()
    client.nothing()
    client.publish("", "q", b"held")
    assert client.expect(m.ConnectionBlocked, 0).reason == "low on memory & low on disk"
    assert harness.queue("q").ready_count == 0
    client.publish("", "q", b"held too")
    client.nothing()
    harness.broker.set_alarm("memory", False)
    harness.broker.set_alarm("disk", False)
    harness.settle()
    client.expect(m.ConnectionUnblocked, 0)
    assert harness.queue("q").ready_count == 2


@rule("rabbitmq.connection.blocked", "Who awaits a confirm is told at once: it may publish no more before it comes.")
def test_who_awaits_a_confirm_is_told_of_an_alarm() -> None:
    harness = DurableHarness()
    client, idle = harness.channel(), harness.channel()
    client.declare("q", durable=True)
    for each in (client, idle):
        each.call(1, m.ConfirmSelect(False))
        each.publish("", "q", b"confirmed", delivery_mode=2)
        each.expect(m.BasicAck)
    harness.store.hold = True
    client.publish("", "q", b"waits", delivery_mode=2)
    client.nothing()
    for resource in ("disk", "memory"):
        harness.broker.set_alarm(resource, True)
        harness.settle()
    assert client.expect(m.ConnectionBlocked, 0).reason == "low on disk"
    client.nothing()
    idle.nothing()
    # It is told, and not stopped: it is read until it publishes.
    client.open(2)
    harness.store.hold = False
    harness.settle()
    client.expect(m.BasicAck, 1)
    for resource in ("disk", "memory"):
        harness.broker.set_alarm(resource, False)
        harness.settle()
    client.expect(m.ConnectionUnblocked, 0)


@rule("rabbitmq.connection.blocked", "A publisher whose last publish was refused awaits nothing.")
def test_who_was_refused_is_not_told_of_an_alarm(client: Client, harness: Harness) -> None:
    client.declare("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    client.call(1, m.ConfirmSelect(False))
    client.publish("", "full", b"refused")
    client.expect(m.BasicNack, 1)
    harness.broker.set_alarm("disk", True)
    harness.settle()
    client.nothing()


@rule("rabbitmq.connection.blocked", "Clients without the capability are stopped and not told.")
def test_a_publisher_that_does_not_understand_is_not_told(harness: Harness) -> None:
    client = harness.client(capabilities=tuple(name for name in CAPABILITIES if name != "connection.blocked"))
    client.open(1)
    client.declare("q")
    harness.broker.set_alarm("memory", True)
    client.publish("", "q", b"held")
    client.nothing()
    assert harness.queue("q").ready_count == 0
    harness.broker.set_alarm("memory", False)
    harness.settle()
    client.nothing()
    assert harness.queue("q").ready_count == 1


@rule("rabbitmq.connection.blocked", "Who does not publish is not touched by an alarm.")
def test_consumers_go_on_during_an_alarm(client: Client, harness: Harness) -> None:
    client.declare("q")
    client.publish("", "q", b"before")
    harness.broker.set_alarm("memory", True)
    harness.settle()
    client.consume("q")
    assert client.bodies() == [b"before"]
    client.send(1, m.BasicAck(1, False))
    assert harness.queue("q").unacked_count == 0


@rule("rabbitmq.connection.blocked", "Nothing follows connection.close, not even that an alarm is over.")
def test_a_closing_connection_is_not_told_that_an_alarm_is_over(client: Client, harness: Harness) -> None:
    harness.broker.set_alarm("memory", True)
    client.publish("", "q")
    client.expect(m.ConnectionBlocked)
    force_close(client.connection, "the administrator said so")
    harness.settle()
    client.expect(m.ConnectionClose, 0)
    harness.broker.set_alarm("memory", False)
    harness.settle()
    client.nothing()


@rule("rabbitmq.connection.blocked", "A blocked connection can still be closed by the broker.")
def test_a_blocked_connection_can_be_closed(client: Client, harness: Harness) -> None:
    harness.broker.set_alarm("memory", True)
    client.publish("", "q")
    client.expect(m.ConnectionBlocked)
    harness.broker.shut_down("shutdown")
    harness.settle()
    assert client.refusal().code == 320
    harness.broker.set_alarm("memory", False)
    harness.settle()
    assert client.take_bytes() == b""


@rule("rabbitmq.connection.update-secret", "update-secret is answered.")
def test_update_secret_is_answered(client: Client) -> None:
    assert client.call(0, m.ConnectionUpdateSecret(b"new", "expiry")) == m.ConnectionUpdateSecretOk()


@rule("rabbitmq.connection.open", "A user who loses the vhost is closed with 320.")
def test_losing_the_vhost_closes_the_connection(client: Client, harness: Harness) -> None:
    harness.broker.administer(UserPut("other", "", ""))
    harness.broker.administer(PermissionDelete(USER, "/"))
    harness.settle()
    text = "CONNECTION_FORCED - access to vhost '/' was revoked for user 'guest'"
    assert client.refusal() == Refusal("connection", 320, text, None)
