"""Links do not reach the inside of the machine they run on."""

from __future__ import annotations

import pytest

from warren.links.address_guard import AddressGuard, networks


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.0.3",
        "0.0.0.0",
        "0.1.2.3",
        "169.254.169.254",
        "169.254.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "100.100.100.200",
        "168.63.129.16",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "ff02::1",
        "fd00:ec2::254",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "::ffff:0:127.0.0.1",
        "64:ff9b:1::7f00:1",
        "64:ff9b:1:7f00:0:100::",
        "2001:0:5db8:d822::80ff:fffe",
        "2001:db8::5efe:127.0.0.1",
        "2001:db8::200:5efe:7f00:1",
        "localhost",
        "",
    ],
)
def test_addresses_of_the_machine_and_its_surroundings_are_refused(address: str) -> None:
    assert not AddressGuard().permits(address)


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "192.168.1.1", "93.184.216.34", "2001:db8::1", "fd00::1", "2001:db8::5efe:93.184.216.34"]
)
def test_other_brokers_are_reached(address: str) -> None:
    assert AddressGuard().permits(address)


def test_the_operator_may_allow_networks() -> None:
    guard = AddressGuard(networks(["127.0.0.0/8", " ::1 ", ""]))
    assert guard.permits("127.0.0.1") and guard.permits("::1") and guard.permits("::ffff:127.0.0.1")
    assert not guard.permits("169.254.169.254")
    with pytest.raises(ValueError, match="example"):
        networks(["example"])
