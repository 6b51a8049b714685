"""The listings: the request of each, its columns, its order, and pages that come as they are printed."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from warren.ctl.listing_table import LISTINGS, Listing, Scope

from .conftest import Ctl
from .fake_api import FakeApi


def filled(template: str, vhost: str) -> str:
    return template.replace("{vhost}", vhost).replace("{name}", "bob")


def query_of(path: str) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(urlsplit(path).query).items()}


@pytest.mark.parametrize("listing", LISTINGS, ids=lambda listing: listing.command)
def test_a_listing_asks_its_path_and_prints_its_columns(api: FakeApi, ctl: Ctl, listing: Listing) -> None:
    in_vhost = listing.scope is Scope.ONE
    template = listing.vhost_path if in_vhost and listing.vhost_path else listing.path
    api.answer("GET", filled(template, "%2F"), [])
    ended = ctl(listing.command, *(["bob"] if listing.argument else []))
    assert ended == (0, "\t".join(listing.columns) + "\n", "")
    assert len(api.asked) == 1


@pytest.mark.parametrize(
    "listing", [listing for listing in LISTINGS if listing.vhost_path], ids=lambda listing: listing.command
)
def test_a_listing_keeps_to_the_vhost_that_is_named(api: FakeApi, ctl: Ctl, listing: Listing) -> None:
    api.answer("GET", filled(listing.vhost_path, "v%20w"), [])
    assert ctl("-p", "v w", listing.command).exit_code == 0
    assert ctl(listing.command, "--vhost", "v w").exit_code == 0


@pytest.mark.parametrize(
    "listing", [listing for listing in LISTINGS if listing.scope is Scope.ONE], ids=lambda listing: listing.command
)
def test_all_vhosts_are_listed_with_their_names(api: FakeApi, ctl: Ctl, listing: Listing) -> None:
    api.answer("GET", listing.path, [])
    ended = ctl(listing.command, "-A", "-p", "other")
    assert ended.exit_code == 0
    assert ended.out.split()[0] == "vhost"


@pytest.mark.parametrize("listing", LISTINGS, ids=lambda listing: listing.command)
def test_every_known_column_can_be_asked_for(api: FakeApi, ctl: Ctl, listing: Listing) -> None:
    template = listing.vhost_path if listing.scope is Scope.ONE and listing.vhost_path else listing.path
    api.answer("GET", filled(template, "%2F"), [])
    ended = ctl(listing.command, *(["bob"] if listing.argument else []), *listing.known)
    assert ended == (0, "\t".join(listing.known) + "\n", "")


def test_a_vhost_of_the_environment_can_be_looked_beyond(
    api: FakeApi, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARREN_CTL_VHOST", "v")
    api.answer("GET", "vhosts/v/connections", [])
    api.answer("GET", "connections", [])
    ctl("list_connections")
    ctl("list_connections", "--all-vhosts")
    assert [asked.path.partition("?")[0] for asked in api.asked] == ["/api/vhosts/v/connections", "/api/connections"]


def test_names_of_rabbitmqctl_lead_into_the_answer(api: FakeApi, ctl: Ctl) -> None:
    consumer = {
        "consumer_tag": "t",
        "queue": {"name": "q", "vhost": "/"},
        "channel_details": {"name": "c (1)", "user": "u"},
    }
    api.answer("GET", "consumers/%2F", [consumer])
    ended = ctl("-s", "list_consumers", "queue_name", "channel_pid", "channel_details.user", "user", "vhost")
    assert ended == (0, "q\tc (1)\tu\tu\t/\n", "")


def test_a_consumer_that_hangs_is_found_with_what_cancels_it(api: FakeApi, ctl: Ctl) -> None:
    consumer = {
        "consumer_tag": "t",
        "channel_details": {"connection_name": "c -> b", "number": 3},
        "channel_stats": {"idle_ms": 65000},
        "messages_unacknowledged": 2,
    }
    api.answer("GET", "consumers/%2F", [consumer, consumer | {"oldest_unacknowledged_ms": 70000}])
    columns = "connection number consumer_tag messages_unacknowledged oldest_unacknowledged_ms idle_ms"
    assert ctl("-s", "list_consumers", columns).out == "c -> b\t3\tt\t2\t\t65000\nc -> b\t3\tt\t2\t70000\t65000\n"


def test_columns_may_stand_in_one_word(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", "queues/%2F", [{"name": "q", "messages": 1, "type": "classic"}])
    assert ctl("-s", "list_queues", "name,messages type").out == "q\t1\tclassic\n"


@pytest.mark.parametrize(
    ("column", "hint"),
    [("mesages", "did you mean messages?"), ("colour", "there are: "), ("colour.x", "there are: ")],
)
def test_an_unknown_column_is_wrong_usage_and_asks_nothing(api: FakeApi, ctl: Ctl, column: str, hint: str) -> None:
    ended = ctl("list_queues", column)
    assert ended.exit_code == 2 and ended.out == ""
    assert ended.err.startswith(f"warren ctl: list_queues: no column '{column}'; {hint}")
    assert ended.err.count("\n") == 1
    assert api.asked == []


def test_pages_of_queues_become_one_listing(api: FakeApi, ctl: Ctl) -> None:
    for page in (1, 2):
        items = [{"name": f"q{page}{n}", "messages": n} for n in range(2)]
        api.answer("GET", "queues/%2F", {"items": items, "page_count": 2})
    ended = ctl("list_queues", "--formatter", "json")
    assert [row["name"] for row in json.loads(ended.out)] == ["q10", "q11", "q20", "q21"]
    first = query_of(api.asked[0].path)
    assert first == {"columns": "name,messages", "page": "1", "page_size": "500"}
    assert len({asked.connection for asked in api.asked}) == 1


def test_order_and_names_of_long_listings_are_left_to_the_broker(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", "queues/%2F", {"items": [{"name": "a"}, {"name": "b"}, {"name": "c"}], "page_count": 9})
    ended = ctl("-s", "list_queues", "name", "--sort", "-publish_rate", "--name", "^a", "--limit", "2")
    assert ended.out == "a\nb\n"
    assert [query_of(asked.path) for asked in api.asked] == [
        {
            "columns": "name",
            "name": "^a",
            "use_regex": "true",
            "sort": "message_stats.publish_details.rate",
            "sort_reverse": "true",
            "page": "1",
            "page_size": "2",
        }
    ]


def test_short_listings_are_ordered_and_filtered_here(api: FakeApi, ctl: Ctl) -> None:
    users = [{"name": "b1", "tags": []}, {"name": "a1", "tags": ["x"]}, {"name": "c2", "tags": []}]
    api.answer("GET", "users", users)
    assert ctl("-s", "list_users", "user", "--sort", "user").out == "a1\nb1\nc2\n"
    assert ctl("-s", "list_users", "user", "--sort", "-user").out == "c2\nb1\na1\n"
    assert ctl("-s", "list_users", "user", "--sort", "-user", "--reverse", "--limit", "1").out == "a1\n"
    assert ctl("-s", "list_users", "user", "--name", "1$").out == "b1\na1\n"
    assert ctl("list_users", "--name", "(").exit_code == 2


def test_mixed_values_have_an_order(api: FakeApi, ctl: Ctl) -> None:
    values: list[object] = ["x", 10, None, 9, "a"]
    parameters = [{"vhost": "/", "component": "c", "name": str(n), "value": value} for n, value in enumerate(values)]
    api.answer("GET", "parameters", parameters)
    assert ctl("-s", "list_parameters", "name", "--sort", "value").out.split() == ["2", "3", "1", "4", "0"]


def test_a_listing_without_a_path_for_a_vhost_is_picked_here(api: FakeApi, ctl: Ctl) -> None:
    api.answer("GET", "parameters", [{"vhost": vhost, "component": "c", "name": vhost} for vhost in ("/", "v")])
    assert ctl("-s", "list_parameters", "name").out == "/\n"
    assert ctl("-s", "list_parameters", "name", "-p", "v").out == "v\n"
    assert ctl("-s", "list_parameters", "name", "-A").out == "/\nv\n"


def test_bindings_of_the_default_exchange_have_an_empty_source(api: FakeApi, ctl: Ctl) -> None:
    binding = {"source": "", "destination": "q", "destination_type": "queue", "routing_key": "q", "arguments": {}}
    api.answer("GET", "bindings/%2F", [binding])
    assert ctl("-s", "list_bindings").out == "\texchange\tq\tqueue\tq\t{}\n"


def test_a_vhost_that_is_not_there_prints_no_header(ctl: Ctl) -> None:
    assert ctl("-p", "nope", "list_queues") == (5, "", 'warren ctl: not found: vhost "nope"\n')
