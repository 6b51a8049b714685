"""Enhanced authentication: PLAIN, EXTERNAL and a method with a challenge; logging in again; refusals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_harness import PASSWORD, USER, Harness
from mqtt_harness import MqttClient, Packet, connect_packet, properties

from warren.mqtt import packets as p
from warren.mqtt.login_methods import METHODS, ClaimedIdentity, EnhancedLogin, LoginExchange
from warren.mqtt.packets import Answer, Properties, packet
from warren.mqtt.reason_codes import CONTINUE_LOGIN, LOGIN_AGAIN, PROTOCOL_ERROR, SUCCESS, MqttError

PLAIN = f"\0{USER}\0{PASSWORD}".encode()
CHALLENGE = "CHALLENGE"


class Sum(LoginExchange):
    """Two challenges, each a sum: a client that can add may log in."""

    def __init__(self, certificate_user: str | None) -> None:
        super().__init__(certificate_user)
        self.said: list[bytes] = []

    def step(self, data: bytes) -> ClaimedIdentity | bytes:
        self.said.append(data)
        if len(self.said) < 3:
            return b"%d+1" % len(self.said)
        return ClaimedIdentity(USER, is_proven=self.said[1:] == [b"2", b"3"])


@pytest.fixture(autouse=True)
def challenges() -> Iterator[None]:
    METHODS[CHALLENGE] = Sum
    yield
    del METHODS[CHALLENGE]


def connect(client: MqttClient, method: str, data: bytes | None = None, *, client_id: str = "c") -> list[Packet]:
    """Send CONNECT with a method, and a user and a password that are not looked at."""
    given = properties({p.AUTH_METHOD: method} | ({} if data is None else {p.AUTH_DATA: data}))
    return client.feed(connect_packet(5, client_id, user="nobody", password="wrong", given=given))


def auth_packet(reason: int, method: str | None, data: bytes = b"") -> bytes:
    given = properties(({} if method is None else {p.AUTH_METHOD: method}) | ({p.AUTH_DATA: data} if data else {}))
    return packet(p.AUTH, 0, bytes([reason]) + given.encode())


def understood(reply: Packet) -> tuple[int, int, Properties]:
    """Return kind, reason and properties of CONNACK, AUTH or DISCONNECT."""
    at = 1 if reply.kind == p.CONNACK else 0
    return reply.kind, reply.body[at], p.Reader(reply.body, at + 1, len(reply.body)).properties(reply.kind)


def only(replies: list[Packet]) -> tuple[int, int, Properties]:
    (reply,) = replies
    return understood(reply)


def logged_in(harness: Harness) -> MqttClient:
    client = MqttClient(harness, 5)
    kind, code, given = only(connect(client, "PLAIN", PLAIN))
    assert (kind, code, given.values[p.AUTH_METHOD]) == (p.CONNACK, 0, "PLAIN")
    return client


def test_plain_is_user_and_password(harness: Harness) -> None:
    client = logged_in(harness)
    assert (client.peer.login.user_name, client.peer.login.mechanism) == (USER, "PLAIN")
    assert client.subscribe("a") == [0]


def test_the_user_of_plain_may_say_its_vhost(harness: Harness) -> None:
    client = MqttClient(harness, 5)
    data = f"ignored\0/:{USER}\0{PASSWORD}".encode()
    assert only(connect(client, "PLAIN", data))[:2] == (p.CONNACK, 0)
    assert client.peer.login.vhost_name == "/"
    assert only(connect(MqttClient(harness, 5), "PLAIN", f"\0other:{USER}\0{PASSWORD}".encode()))[1] == 0x87


@pytest.mark.parametrize("data", [None, b"", b"\0guest", b"\0\xff\0guest", b"\0guest\0guest\0", b"\0guest\0wrong"])
def test_what_does_not_say_who_it_is_is_refused(harness: Harness, data: bytes | None) -> None:
    client = MqttClient(harness, 5)
    assert only(connect(client, "PLAIN", data))[:2] == (p.CONNACK, 0x86)
    assert client.ended


def test_external_is_by_certificate(harness: Harness) -> None:
    client = MqttClient(harness, 5, certificate_user=USER)
    assert only(connect(client, "EXTERNAL"))[:2] == (p.CONNACK, 0)
    assert client.peer.login.user_name == USER
    assert only(connect(MqttClient(harness, 5), "EXTERNAL"))[:2] == (p.CONNACK, 0x86)


def test_data_without_a_method_is_a_protocol_error(harness: Harness) -> None:
    """4.12.0-7 and 3.1.2.11.10: AUTH is only for clients that have named a method."""
    client = MqttClient(harness, 5)
    assert only(client.feed(connect_packet(5, given=properties({p.AUTH_DATA: PLAIN}))))[:2] == (p.CONNACK, 0x82)
    client = MqttClient(harness, 5)
    client.connect()
    assert only(client.feed(auth_packet(0x19, "PLAIN", PLAIN)))[:2] == (p.DISCONNECT, 0x82)
    assert client.ended


# --- challenges -----------------------------------------------------------------------------------------------------


def challenged(harness: Harness) -> MqttClient:
    """Return a client that has been asked for the first time."""
    client = MqttClient(harness, 5)
    kind, reason, given = only(connect(client, CHALLENGE))
    assert (kind, reason) == (p.AUTH, 0x18)
    assert given.values == {p.AUTH_METHOD: CHALLENGE, p.AUTH_DATA: b"1+1"}
    return client


def test_a_method_may_ask_until_it_knows(harness: Harness) -> None:
    client = challenged(harness)
    kind, reason, given = only(client.feed(auth_packet(0x18, CHALLENGE, b"2")))
    assert (kind, reason, given.values[p.AUTH_DATA]) == (p.AUTH, 0x18, b"2+1")
    kind, code, given = only(client.feed(auth_packet(0x18, CHALLENGE, b"3")))
    assert (kind, code, given.values[p.AUTH_METHOD]) == (p.CONNACK, 0, CHALLENGE)
    assert client.peer.login.user_name == USER


def test_what_a_method_has_not_proven_is_verified(harness: Harness) -> None:
    client = challenged(harness)
    client.feed(auth_packet(0x18, CHALLENGE, b"5"))
    assert only(client.feed(auth_packet(0x18, CHALLENGE, b"5")))[:2] == (p.CONNACK, 0x86)


@pytest.mark.parametrize(
    "data",
    [
        auth_packet(0x19, CHALLENGE, b"2"),
        auth_packet(0x00, CHALLENGE, b"2"),
        auth_packet(0x18, "PLAIN", PLAIN),
        auth_packet(0x18, None, b"2"),
        packet(p.AUTH, 0, b""),
        packet(p.PINGREQ, 0, b""),
        connect_packet(5),
    ],
)
def test_nothing_but_an_answer_follows_a_challenge(harness: Harness, data: bytes) -> None:
    """3.1.2-30, 4.12.0-5"""
    client = challenged(harness)
    assert only(client.feed(data))[:2] == (p.CONNACK, 0x82)
    assert client.ended


def test_who_is_asked_may_leave(harness: Harness) -> None:
    client = challenged(harness)
    assert client.feed(packet(p.DISCONNECT, 0, b"")) == []
    assert client.ended


# --- again ----------------------------------------------------------------------------------------------------------


def test_a_client_may_log_in_again_and_goes_on(harness: Harness) -> None:
    client = logged_in(harness)
    client.subscribe("a")
    for _ in range(2):
        kind, reason, given = only(client.feed(auth_packet(0x19, "PLAIN", PLAIN)))
        assert (kind, reason, given.values) == (p.AUTH, 0, {p.AUTH_METHOD: "PLAIN"})
        client.publish("a", b"x")
        assert client.bodies() == [b"x"]


def test_nothing_is_read_while_it_is_verified_again(harness: Harness) -> None:
    client = logged_in(harness)
    client.subscribe("a")
    client.peer.feed(auth_packet(0x19, "PLAIN", PLAIN) + packet(p.PINGREQ, 0, b""))
    assert client.take() == [] and len(harness.broker.logins) == 1
    harness.settle()
    assert [each.kind for each in client.take()] == [p.AUTH, p.PINGRESP]


def test_again_with_challenges(harness: Harness) -> None:
    client = challenged(harness)
    client.feed(auth_packet(0x18, CHALLENGE, b"2"))
    client.feed(auth_packet(0x18, CHALLENGE, b"3"))
    assert only(client.feed(auth_packet(0x19, CHALLENGE)))[:2] == (p.AUTH, 0x18)
    assert [each.kind for each in client.feed(packet(p.PINGREQ, 0, b""))] == [p.PINGRESP]  # it may do other things
    assert only(client.feed(auth_packet(0x18, CHALLENGE, b"2")))[:2] == (p.AUTH, 0x18)
    assert only(client.feed(auth_packet(0x18, CHALLENGE, b"3")))[:2] == (p.AUTH, 0)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (auth_packet(0x19, "PLAIN", f"\0{USER}\0wrong".encode()), 0x87),
        (auth_packet(0x19, "PLAIN", b"\0other\0other"), 0x87),
        (auth_packet(0x19, "EXTERNAL"), 0x82),
        (auth_packet(0x18, "PLAIN", PLAIN), 0x82),
        (auth_packet(0x00, "PLAIN", PLAIN), 0x82),
        (packet(p.AUTH, 1, b"\x19"), 0x81),
    ],
)
def test_who_fails_to_prove_it_again_is_gone_and_its_will_is_published(
    harness: Harness, data: bytes, reason: int
) -> None:
    """4.12.1-1, 4.12.1-2, 3.15.1-1"""
    harness.add_user("other")
    watcher = MqttClient(harness, 5)
    watcher.connect("watcher")
    watcher.subscribe("gone")
    client = MqttClient(harness, 5)
    given = properties({p.AUTH_METHOD: "PLAIN", p.AUTH_DATA: PLAIN})
    client.feed(connect_packet(5, given=given, will=("gone", b"will", 0, False)))
    assert only(client.feed(data))[:2] == (p.DISCONNECT, reason)
    assert client.ended and watcher.bodies() == [b"will"]


def test_a_connection_that_has_gone_meanwhile_is_not_accepted(harness: Harness) -> None:
    client = logged_in(harness)
    client.peer.feed(auth_packet(0x19, "PLAIN", PLAIN))
    client.peer.send_close(320, "closed", 0)
    harness.settle()
    assert client.ended
    assert [each.kind for each in client.take()] == [p.DISCONNECT]


def test_who_logs_in_while_the_client_id_is_let_go_of_is_told_the_method(harness: Harness) -> None:
    earlier = logged_in(harness)
    later = MqttClient(harness, 5)
    kind, code, given = only(connect(later, "PLAIN", PLAIN))
    assert (kind, code, given.values[p.AUTH_METHOD]) == (p.CONNACK, 0, "PLAIN")
    assert only(earlier.take())[:2] == (p.DISCONNECT, 0x8E)


# --- the state of a login, alone ------------------------------------------------------------------------------------


def answer(reason: int, data: bytes = b"", *, method: str = CHALLENGE) -> Answer:
    return Answer(0, reason, properties({p.AUTH_METHOD: method, p.AUTH_DATA: data}))


def finished(login: EnhancedLogin) -> EnhancedLogin:
    for data in (b"", b"2"):
        assert isinstance(login.step(data), bytes)
    assert isinstance(login.step(b"3"), ClaimedIdentity)
    assert login.exchange is None
    return login


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("reason", [SUCCESS, CONTINUE_LOGIN, LOGIN_AGAIN])
def test_what_auth_may_mean(is_open: bool, is_over: bool, reason: int) -> None:
    login = EnhancedLogin(CHALLENGE, None)
    if is_over:
        finished(login)
    begins = reason == LOGIN_AGAIN and is_open and is_over
    if begins or (reason == CONTINUE_LOGIN and not is_over):
        assert login.take(answer(reason), None, is_open=is_open) == b"1+1"
        assert login.exchange is not None and login.is_again == begins
    else:
        with pytest.raises(MqttError) as caught:
            login.take(answer(reason), None, is_open=is_open)
        assert caught.value.reason == PROTOCOL_ERROR
        assert not login.is_again and (login.exchange is None) == is_over


def test_an_answer_by_another_method_changes_nothing() -> None:
    login = finished(EnhancedLogin(CHALLENGE, None))
    with pytest.raises(MqttError):
        login.take(answer(LOGIN_AGAIN, method="PLAIN"), None, is_open=True)
    assert login.exchange is None and not login.is_again
