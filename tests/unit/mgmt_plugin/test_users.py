"""Lists of users and permissions, which may be as long as a fleet of devices."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
import trio
from answers import whole

from warren.channels.access import AccessControl
from warren.engine_view.permissions import Permissions
from warren.mgmt_plugin.http.server import PART_BYTES, HttpError, Request, Response
from warren.mgmt_plugin.operators import Operator
from warren.mgmt_plugin.plugin import table_of
from warren.mgmt_plugin.resources import users
from warren.mgmt_plugin.resources.users import UserHandlers
from warren.mgmt_plugin.routes import Acting, Call, parse_query
from warren.server.definitions import schema
from warren.server.direct_clients import DirectClients
from warren.vhosts.metadata import PermissionPut, TopicPermissionPut, UserDelete, UserPut

COUNT = 2000


async def no_body(limit_bytes: int, look: Any = None) -> bytes:
    return b""


@pytest.fixture
def access() -> AccessControl:
    """Return devices, of which every other one has permissions."""
    made = AccessControl(lambda: None)
    for number in range(COUNT):
        name = f"device{number:04}"
        made.apply(UserPut(name, "", "scrypt", ("mqtt",)))
        if number % 2:
            made.apply(PermissionPut(name, "/", "", "", name))
            made.apply(TopicPermissionPut(name, "/", "amq.topic", "", name))
    return made


def ask(access: AccessControl, path: str, query: str = "") -> Response:
    route, params = table_of([UserHandlers(Permissions(access))]).find("GET", path)
    request = Request("GET", path, query, {}, "127.0.0.1", False, no_body)
    acting = Acting(cast(DirectClients, None), cast(Any, None))
    operator = Operator("admin", ("administrator",), Permissions(access))
    answer = trio.run(route.handler, Call(request, params, operator, {}, acting, parse_query(query)))
    assert isinstance(answer, Response)
    return answer


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("/api/users", COUNT),
        ("/api/users/without-permissions", COUNT // 2),
        ("/api/permissions", COUNT // 2),
        ("/api/topic-permissions", COUNT // 2),
    ],
)
def test_a_long_list_is_made_while_it_is_taken_and_given_in_pages(access: AccessControl, path: str, count: int) -> None:
    answer = ask(access, path)
    assert answer.pieces is not None and len(answer.body) < PART_BYTES
    every = json.loads(whole(answer))
    assert len(every) == count
    page = json.loads(whole(ask(access, path, "page=3&page_size=10")))
    assert (page["items"], page["total_count"]) == (every[20:30], count)


@pytest.mark.parametrize("given", [["a", " b ", "", " "], "a, b ,,", ["a", "b"]])
def test_tags_are_understood_as_in_a_file_of_definitions(given: list[str] | str) -> None:
    assert users.tags_of(given) == schema.tags_of(given) == ("a", "b")


@pytest.mark.parametrize("given", [None, 1, {"a": 1}, ["a", 1]])
def test_tags_are_texts(given: object) -> None:
    with pytest.raises(HttpError, match="tags must be a list of strings"):
        users.tags_of(given)


def test_users_are_found_by_a_part_of_their_names(access: AccessControl) -> None:
    page = json.loads(whole(ask(access, "/api/users", "page=1&name=DEVICE001&columns=name")))
    assert page["items"] == [{"name": f"device001{number}"} for number in range(10)]


def test_who_is_deleted_while_the_list_is_taken_is_left_out(access: AccessControl) -> None:
    answer = ask(access, "/api/users")
    access.apply(UserDelete("device0001"))
    assert len(json.loads(whole(answer))) == COUNT - 1
