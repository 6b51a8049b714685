"""An address's statement about its peer."""

from __future__ import annotations

import pytest

from warren.server.network.peer_address import is_loopback, origin_of


@pytest.mark.parametrize("address", ["127.0.0.1", "127.255.0.1", "::1", "::ffff:127.0.0.1", "::FFFF:7f00:1"])
def test_this_machine_is_loopback(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "128.0.0.1",
        "0.0.0.0",
        "::",
        "::ffff:10.0.0.1",
        "fe80::1%eth0",
        "::127.0.0.1",
        "",
        "localhost",
        "1",
    ],
)
def test_everything_else_is_not(address: str) -> None:
    assert not is_loopback(address)


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("not an address", "not an address"),
    ],
)
def test_an_origin_is_an_ipv4_address_or_an_ipv6_network(address: str, origin: str) -> None:
    assert origin_of(address) == origin
