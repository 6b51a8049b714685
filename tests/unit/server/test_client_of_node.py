"""One node understands what another reports of a client, and believes only what has a valid form."""

from __future__ import annotations

from typing import Any

import pytest

from warren.server.client_of_node import HTTP, ClientOfNode

CLIENT = ClientOfNode("192.0.2.7:50412", "192.0.2.2:5671", is_tls=True, user="CN=robot")


def test_what_is_said_is_what_is_understood() -> None:
    assert ClientOfNode.of_table(CLIENT.table()) == CLIENT
    assert ClientOfNode.of_table(CLIENT.table() | {"node": "rabbit@liar"}, "rabbit@two").node == "rabbit@two"
    assert "node" not in ClientOfNode.of_table(CLIENT.table(), "rabbit@two").table()
    plain = ClientOfNode("[::1]:7", "[::1]:15672", is_tls=False, protocol=HTTP)
    assert ClientOfNode.of_table(plain.table()) == plain
    assert plain.host == "::1"


@pytest.mark.parametrize(
    "wrong",
    [
        {"peer": ""},
        {"peer": "nobody:5"},
        {"peer": "?"},
        {"peer": 7},
        {"peer": "192.0.2.7:" + "5" * 2000},
        {"local": None},
        {"is_tls": 1},
        {"user": ""},
        {"user": ["root"]},
        {"protocol": "mqtt"},
        {"protocol": []},
    ],
)
def test_what_has_no_form_is_nobody(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^a client "):
        ClientOfNode.of_table(CLIENT.table() | wrong)
