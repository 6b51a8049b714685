"""A client's statements about itself, and their use by the broker."""

from __future__ import annotations

import pytest
from engine_harness import CAPABILITIES, Client, Harness

from warren.amqp import methods as m
from warren.amqp.field_table import Table


class Speaker(Client):
    """A client that says this about itself."""

    def __init__(self, harness: Harness, said: Table) -> None:
        super().__init__(harness)
        self._said = said

    def properties(self) -> Table:
        return self._said


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"capabilities": "all"},
        {"capabilities": {}},
        {"capabilities": dict.fromkeys(CAPABILITIES, False)},
        {"capabilities": dict.fromkeys(CAPABILITIES, 1)},
        {"capabilities": dict.fromkeys(CAPABILITIES, "true")},
    ],
)
def test_who_does_not_say_that_it_understands_is_told_nothing(said: Table) -> None:
    harness = Harness()
    others = harness.channel()
    others.declare("q")
    client = Speaker(harness, said)
    client.handshake()
    client.open(1)
    client.consume("q", "t")
    harness.broker.set_alarm("memory", True)
    client.publish("", "elsewhere", b"")
    others.call(1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))
    client.nothing()
    harness.broker.set_alarm("memory", False)
    harness.settle()
    client.nothing()
    stranger = Speaker(harness, said)
    stranger.start()
    stranger.start_ok(password=b"wrong")
    assert stranger.take() == [], "no reason is given"


@pytest.mark.parametrize(("said", "name"), [({}, ""), ({"connection_name": "a"}, "a"), ({"connection_name": 5}, "")])
def test_a_connection_has_the_name_that_it_gives_itself(said: Table, name: str) -> None:
    client = Speaker(Harness(), said)
    client.handshake()
    assert client.connection.login.name == name


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"GET / HTTP/1.1\r\n", "an HTTP request on the AMQP port"),
        (b"POST / HTTP/1.1\r\n", "an HTTP request on the AMQP port"),
        (b"HEAD / HTTP/1.1\r\n", "an HTTP request on the AMQP port"),
        (b"PUT /api HTTP/1.1\r\n", "an HTTP request on the AMQP port"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "a TLS handshake on the AMQP port without TLS"),
        (b"GETTING closer", "bad protocol header"),
        (b"AMQP\x01\x01\x08\x00", "AMQP 0-8, which is not supported"),
        (b"AMQP\x01\x01\x09\x01\x01", "AMQP 0-8, which is not supported"),
        (b"AMQP\x00\x01\x00\x00", "bad protocol header"),
    ],
)
def test_the_log_says_what_came_instead_of_a_protocol_header(data: bytes, what: str) -> None:
    harness = Harness()
    harness.raw_client().feed(data)
    (notice,) = (notice for notice in harness.notices if notice.event == "connection.bad_header")
    assert notice.fields["what"] == what
