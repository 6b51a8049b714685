"""The broker as its tables see it: permissions for table parameters. Numbers: lake_host.py."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from engine_harness import USER, Harness

from warren.engine_view.engine_view import EngineView
from warren.links.lake_host import LakeHost
from warren.links.lake_jobs import JOBS_MAX
from warren.server.descriptors import UNLIMITED
from warren.server.local_http import LocalHttp
from warren.server.management import Management
from warren.server.settings import Settings
from warren.vhosts.metadata import ParameterDelete, ParameterPut, UserPut, VhostPut

TABLE = {"stream": "orders", "to": "/srv/lake/shop.orders"}


class Administration:
    """Stands in for `Management`, over an engine without a loop."""

    def __init__(self, harness: Harness, places: str) -> None:
        self.view = EngineView(harness.broker, harness.settle)
        self.settings = Settings(lake_places=places)
        self.descriptors = UNLIMITED
        self.local_http = LocalHttp()
        self.stopping = False


class Place:
    """An engine, and its host."""

    def __init__(self, places: str = "/srv/lake") -> None:
        self.harness = Harness()
        self.host = LakeHost(cast(Management, Administration(self.harness, places)))
        self.heard = 0
        self.host.subscribe(self._hear)
        self.tags(USER, "administrator")

    def _hear(self) -> None:
        self.heard += 1

    def tags(self, user: str, *tags: str) -> None:
        self.harness.broker.administer(UserPut(user, "h", "scrypt", tags))

    def put(self, name: str, value: Any, by: str = USER, vhost: str = "/") -> None:
        self.harness.broker.administer(ParameterPut(vhost, "lake", name, json.dumps(value)), by)
        self.harness.settle()


def refusal(place: Place, name: str, value: Any, by: str = USER, vhost: str = "/") -> str:
    with pytest.raises(ValueError, match=r".") as refused:
        place.put(name, value, by, vhost)
    return str(refused.value)


def test_an_administrator_sets_a_table_and_its_host_hears_of_it() -> None:
    place = Place()
    place.put("orders", TABLE)
    assert [(each.vhost, each.name, each.value) for each in place.host.parameters()] == [("/", "orders", TABLE)]
    assert place.heard == 1
    assert place.host.described(TABLE) == {
        "source": "orders",
        "source_type": "stream",
        "table": "shop.orders",
        "format": "iceberg",
        "catalog": "sqlite:////srv/lake/catalog.db",
    }
    place.harness.broker.administer(ParameterDelete("/", "lake", "orders"), USER)
    assert place.host.parameters() == []
    assert place.heard == 2


@pytest.mark.parametrize("tags", [(), ("management",), ("policymaker", "monitoring")])
def test_who_is_no_administrator_sets_none(tags: tuple[str, ...]) -> None:
    """(1)."""
    place = Place()
    place.tags("pol", *tags)
    assert refusal(place, "orders", TABLE, "pol").startswith('user "pol" needs the tag administrator')
    assert refusal(place, "orders", TABLE, "nobody").startswith('user "nobody" needs the tag administrator')
    place.put("orders", TABLE, by="")  # a file of definitions at the start: an operator's


def test_without_places_nothing_is_taken_and_what_was_taken_before_is_told() -> None:
    """(1)."""
    place = Place("")
    assert refusal(place, "orders", TABLE) == "to /srv/lake: the setting lake_places allows no directories"
    with pytest.raises(ValueError, match="lake_places"):
        place.host.described(TABLE)


def test_two_parameters_are_not_of_one_table() -> None:
    """(2)."""
    place = Place()
    place.harness.broker.administer(VhostPut("other", "", ()))
    place.put("orders", TABLE)
    place.put("orders", {**TABLE, "interval": "5s"})
    said = 'the table is that of the parameter "orders" in vhost "/"'
    assert refusal(place, "again", {**TABLE, "stream": "others"}) == said
    assert refusal(place, "orders", TABLE, vhost="other") == said


def test_there_are_so_many_and_no_more() -> None:
    place = Place()
    for at in range(JOBS_MAX):
        place.put(f"t{at}", {**TABLE, "to": f"/srv/lake/shop.t{at}"})
    assert refusal(place, "more", TABLE) == f"a broker has {JOBS_MAX} tables at most"
    place.put("t0", {**TABLE, "to": "/srv/lake/shop.t0", "interval": "5s"})


def test_a_token_lets_in_to_its_vhost_until_it_is_dismissed() -> None:
    place = Place()
    local = cast(Any, place.host)._management.local_http
    token = place.host.admit("/")
    assert local.maybe_vhost(token) == "/"
    assert local.maybe_vhost(token + "x") is None
    assert local.maybe_vhost("") is None
    place.host.dismiss(token)
    place.host.dismiss("")
    assert local.maybe_vhost(token) is None
