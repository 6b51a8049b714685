"""Which address a node tells others, and when they can have no use for it."""

from __future__ import annotations

import pytest

from warren.replication.advertised import advertised, fault, readable_at, told_urls
from warren.replication.format_level import told_level, told_version
from warren.server.settings_reader import load_settings
from warren.server.start_errors import StartError

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


@pytest.mark.parametrize(
    ("flags", "urls"),
    [
        ({"http": "127.0.0.1:15672"}, []),
        ({"http": "192.0.2.11:15672"}, ["http://192.0.2.11:15672"]),
        ({"http": "0.0.0.0:15672"}, ["http://192.0.2.11:15672"]),
        ({"http": "[::]:15672", "cluster_advertise": "warren-0:30001"}, ["http://warren-0:15672"]),
        ({"http": "192.0.2.11:0"}, []),
        ({"http": "127.0.0.1:15672", "cluster_listen": "127.0.0.1:25672"}, ["http://127.0.0.1:15672"]),
        ({"http": "off"}, []),
        ({"http": "127.0.0.1:15672", "http_advertise": "lb:80"}, ["http://lb:80"]),
        ({"http": "off", "http_advertise": "lb:80"}, []),
    ],
)
def test_readers_are_told_where_http_listens_if_they_can_reach_that(flags: dict[str, str], urls: list[str]) -> None:
    settings = load_settings(CLUSTER | {"cluster_listen": "192.0.2.11:25672"} | flags, {})
    assert readable_at(settings, "broker1") == urls


def test_a_standby_without_a_cluster_port_is_read_by_the_name_of_its_machine() -> None:
    follow = {"follow": "broker1:25672", "cluster_secret_file": "secret", "http": "0.0.0.0:15672"}
    assert readable_at(load_settings(follow, {}), "broker2") == ["http://broker2:15672"]
    here = follow | {"follow": "127.0.0.1:25672", "http": "127.0.0.1:15673"}
    assert readable_at(load_settings(here, {}), "broker2") == ["http://127.0.0.1:15673"]


@pytest.mark.parametrize("address", ["0.0.0.0:1", "lb:0", "[::]:80"])
def test_an_address_that_nobody_reaches_cannot_be_set(address: str) -> None:
    with pytest.raises(StartError, match="http_advertise"):
        load_settings(CLUSTER | {"cluster_listen": "192.0.2.11:25672", "http_advertise": address}, {})


@pytest.mark.parametrize(
    ("told", "urls"),
    [
        (["http://a:1", "https://[2001:db8::1]:2"], ("http://a:1", "https://[2001:db8::1]:2")),
        (["http://a:1", "https://b:2", "http://c:3"], ("http://a:1", "https://b:2")),
        (["ftp://a:1", 7], ()),
        (["http://a:1/x", "http://a"], ()),
        (["http://user:word@a:1", "http://" + "a" * 300 + ":1"], ()),
        ({"http://a:1": 1}, ()),
        (None, ()),
        ("http://a:1", ()),
    ],
)
def test_of_what_another_node_tells_only_urls_are_taken_and_few(told: object, urls: tuple[str, ...]) -> None:
    assert told_urls(told) == urls


@pytest.mark.parametrize(
    ("told", "level"), [(2, 2), (1, 1), (99, 99), (None, 1), ("2", 1), (True, 1), (0, 1), (-5, 1), (2.0, 1), ([], 1)]
)
def test_who_tells_no_format_level_has_the_first(told: object, level: int) -> None:
    assert told_level(told) == level


@pytest.mark.parametrize(("told", "version"), [("0.1.0", "0.1.0"), ("", None), ("x" * 65, None), (7, None)])
def test_a_version_is_a_short_text(told: object, version: str | None) -> None:
    assert told_version(told) == version
