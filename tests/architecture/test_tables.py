"""Tables that say the same thing in two places say the same thing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from engine_harness import Client, Harness

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.errors import REPLY_NAMES
from warren.amqp.field_table import encode_table
from warren.amqp.methods import METHODS, PROTOCOL_HEADER
from warren.channels import connection_states
from warren.channels.ending import close_broken
from warren.channels.topology import TOPOLOGY_METHODS
from warren.exchanges.registry import EXCHANGE_TYPES, create_exchange
from warren.queues.arguments import ARGUMENTS
from warren.vhosts.virtual_host import PREDECLARED

STATES = ("AWAIT_HEADER", "AWAIT_START_OK", "CHECKING_LOGIN", "AWAIT_TUNE_OK", "AWAIT_OPEN", "RUNNING")
CLOSED_STATES = ("CLOSING", "ENDED")

PLAIN = b"\0guest\0guest"
INPUTS: dict[str, bytes] = {
    "header": PROTOCOL_HEADER,
    "start-ok": method_frame(0, m.ConnectionStartOk({}, "PLAIN", PLAIN, "en_US")),
    "tune-ok": method_frame(0, m.ConnectionTuneOk(2047, 131072, 0)),
    "open": method_frame(0, m.ConnectionOpen("/", "", False)),
    "close": method_frame(0, m.ConnectionClose(200, "", 0, 0)),
    "close-ok": method_frame(0, m.ConnectionCloseOk()),
    "heartbeat": m.HEARTBEAT_FRAME,
    "channel.open": method_frame(1, m.ChannelOpen("")),
    "wrong method": method_frame(0, m.ConnectionSecureOk(b"")),
    "broken frame": b"\x01\x00\x00\x00\x00\x00\x00\x00",
}
# state x input -> state. CHECKING_LOGIN reads nothing: input is handled once the login is answered.
AFTER: dict[str, dict[str, str]] = {
    "AWAIT_HEADER": {"header": "AWAIT_START_OK"},
    "AWAIT_START_OK": {"start-ok": "CHECKING_LOGIN", "heartbeat": "AWAIT_START_OK"},
    "CHECKING_LOGIN": dict.fromkeys(INPUTS, "CHECKING_LOGIN"),
    "AWAIT_TUNE_OK": {"tune-ok": "AWAIT_OPEN", "heartbeat": "AWAIT_TUNE_OK"},
    "AWAIT_OPEN": {"open": "RUNNING", "heartbeat": "AWAIT_OPEN"},
    "RUNNING": {
        "start-ok": "CLOSING",
        "tune-ok": "CLOSING",
        "open": "CLOSING",
        "wrong method": "CLOSING",
        "broken frame": "CLOSING",
        "header": "CLOSING",
        "close-ok": "RUNNING",
        "heartbeat": "RUNNING",
        "channel.open": "RUNNING",
    },
    "CLOSING": {name: "CLOSING" for name in INPUTS if not name.startswith("close")},
    "ENDED": {},
}


def state_of(client: Client) -> str:
    names = {getattr(connection_states, name): name for name in (*STATES, *CLOSED_STATES)}
    return names[client.connection.state]


def client_in(harness: Harness, state: str) -> Client:
    """Return a client whose connection is in `state`, with everything taken that came on the way."""
    client = harness.raw_client()
    way = ["header", "start-ok", "tune-ok", "open"]
    feeds = {"AWAIT_HEADER": 0, "AWAIT_START_OK": 1, "CHECKING_LOGIN": 2, "AWAIT_TUNE_OK": 2, "AWAIT_OPEN": 3}
    for name in way[: feeds.get(state, 4)]:
        client.connection.feed(INPUTS[name])
        if state != "CHECKING_LOGIN":
            harness.settle()
    if state == "CLOSING":
        client.feed(INPUTS["wrong method"])
    elif state == "ENDED":
        client.feed(INPUTS["close"])
    client.take_bytes()
    assert state_of(client) == state
    return client


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("state", AFTER)
def test_each_input_in_each_state_of_a_connection_leads_where_the_table_says(state: str, name: str) -> None:
    harness = Harness()
    client = client_in(harness, state)
    client.connection.feed(INPUTS[name])
    assert state_of(client) == AFTER[state].get(name, "ENDED")


@pytest.mark.parametrize("state", AFTER)
def test_what_the_table_of_states_allows_is_what_inputs_lead_to(state: str) -> None:
    numbers = {name: getattr(connection_states, name) for name in (*STATES, *CLOSED_STATES)}
    allowed = {name for name in numbers if numbers[name] in connection_states.NEXT_STATES[numbers[state]]}
    reached = {AFTER[state].get(name, "ENDED") for name in INPUTS} - {state}
    by_the_shell = {"CHECKING_LOGIN": {"AWAIT_TUNE_OK", "CLOSING", "ENDED"}}
    refused = {"AWAIT_TUNE_OK": {"CLOSING"}, "AWAIT_OPEN": {"CLOSING"}}
    assert allowed == reached | by_the_shell.get(state, set()) | refused.get(state, set())


@pytest.mark.parametrize("state", AFTER)
def test_a_fault_of_ours_closes_an_open_connection_and_ends_any_other(state: str) -> None:
    harness = Harness()
    client = client_in(harness, state)
    close_broken(client.connection)
    assert state_of(client) == ("CLOSING" if state == "RUNNING" else "ENDED")


def test_the_states_have_names_and_a_table_in_their_module() -> None:
    assert len(connection_states.STATE_NAMES) == len(STATES) + len(CLOSED_STATES) == len(connection_states.NEXT_STATES)
    # Compiled, a module has no docstring.
    documented = (Path(__file__).parents[2] / "warren/channels/connection_states.py").read_text().split('"""')[1]
    for state in (*STATES, *CLOSED_STATES):
        assert state in documented


def test_ids_of_methods_are_those_of_the_specification() -> None:
    by_name = {spec.name: (spec.class_id, spec.method_id) for spec in METHODS.values()}
    assert len(by_name) == len(METHODS)
    classes = {"connection": 10, "channel": 20, "access": 30, "exchange": 40, "queue": 50, "basic": 60}
    classes |= {"confirm": 85, "tx": 90}
    for name, (class_id, method_id) in by_name.items():
        assert class_id == classes[name.partition(".")[0]]
        if name.endswith("-ok") and name not in ("basic.get-ok", "exchange.unbind-ok"):
            assert by_name[name.removesuffix("-ok")] == (class_id, method_id - 1), name
    assert by_name["exchange.unbind-ok"] == (40, 51)


def test_topology_methods_are_all_of_exchange_and_queue_that_a_client_sends() -> None:
    sent = {spec.type for spec in METHODS.values() if spec.class_id in (40, 50) and not spec.name.endswith("-ok")}
    assert set(TOPOLOGY_METHODS) == sent


def test_reply_names_are_constants_of_the_specification() -> None:
    assert all(re.fullmatch("[A-Z_]+", name) for name in REPLY_NAMES.values())
    assert len(set(REPLY_NAMES.values())) == len(REPLY_NAMES)


@pytest.mark.parametrize("name", EXCHANGE_TYPES)
def test_every_registered_exchange_type_makes_an_exchange_of_that_type(name: str) -> None:
    arguments = encode_table({"x-delayed-type": "direct"} if name == "x-delayed-message" else {})
    assert create_exchange(ExchangeDeclaration("x", name, durable=False, arguments=arguments), seed=1).type_name == name


def test_predeclared_exchanges_and_known_arguments_are_listed_once() -> None:
    assert len({declared.name for declared in PREDECLARED}) == len(PREDECLARED)
    assert len({row.key for row in ARGUMENTS}) == len(ARGUMENTS)
    assert all(declared.type in EXCHANGE_TYPES for declared in PREDECLARED)
