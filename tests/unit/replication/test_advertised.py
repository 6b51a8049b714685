"""Which address a node tells others, and when they can have no use for it."""

from __future__ import annotations

import pytest

from warren.replication.advertised import advertised, fault
from warren.server.settings import load_settings

CLUSTER = {"etcd": "http://192.0.2.9:2379", "cluster_secret_file": "secret"}


@pytest.mark.parametrize(
    ("flags", "address"),
    [
        ({"cluster_listen": "192.0.2.11:25672"}, "192.0.2.11:25672"),
        ({"cluster_listen": "0.0.0.0:25672"}, "broker1:25672"),
        ({"cluster_listen": "[::]:25672"}, "broker1:25672"),
        ({"cluster_listen": "0.0.0.0:25672", "cluster_advertise": "warren-0.warren:30001"}, "warren-0.warren:30001"),
        ({"cluster_listen": "127.0.0.1:25672", "cluster_advertise": "192.0.2.11"}, "192.0.2.11:25672"),
        ({"cluster_listen": "127.0.0.1:25672", "cluster_advertise": "[2001:db8::1]:7"}, "[2001:db8::1]:7"),
    ],
)
def test_the_address_is_the_one_that_is_set_or_where_it_listens_or_the_machine(
    flags: dict[str, str], address: str
) -> None:
    assert str(advertised(load_settings(CLUSTER | flags, {}), "broker1")) == address


@pytest.mark.parametrize("own", ["127.0.0.1:25672", "localhost:1", "localhost.localdomain:1", "[::1]:1", "0.0.0.0:1"])
def test_an_address_of_this_machine_is_of_no_use_to_others(own: str) -> None:
    here, there = ["http://127.0.0.1:2379"], ["http://etcd1:2379"]
    assert fault(own, [], here) == "", "everything may be on one machine"
    assert fault(own, ["127.0.0.1:7", "[::1]:7"], here) == ""
    assert "broker2:25672 is another one: set cluster_advertise" in fault(own, ["127.0.0.1:7", "broker2:25672"], here)
    assert "etcd1 is another one" in fault(own, [], there)
    assert fault("broker1:25672", ["127.0.0.1:7"], there) == ""
    assert fault("[2001:db8::1]:7", ["127.0.0.1:7"], there) == ""
