"""The page for a path that is not there: for browsers, and for nobody else."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import pytest

from warren.mgmt_plugin.http.server import Request, Response
from warren.mgmt_plugin.http.static_files import PAGES, StaticFiles

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


async def no_body(limit_bytes: int, look: Any = None) -> bytes:
    return b""


def missing(path: str, headers: dict[str, str], method: str = "GET") -> Response | None:
    """Return the page for a request of a path that is not there."""
    return StaticFiles().maybe_missing(Request(method, path, "", headers, "127.0.0.1", False, no_body))


@pytest.mark.parametrize(
    ("path", "root"), [("/quees", "./"), ("/quees/", "../"), ("/api/overviw", "../"), ("/a/b/c", "../../")]
)
def test_a_browser_gets_a_page_whose_links_lead_home(path: str, root: str) -> None:
    page = missing(path, BROWSER)
    assert page is not None
    assert (page.status, page.content_type) == (404, "text/html; charset=utf-8")
    assert any(name == "Content-Security-Policy" for name, _ in page.headers)
    text = page.body.decode()
    assert f'<a href="{root}">' in text and f'href="{root}css/base.css"' in text
    assert "ROOT" not in text


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/queues", "./#/queues"),
        ("/queues/", "../#/queues"),
        ("/queues/%2F/a%20b", "../../#/queues/%2F/a%20b"),
        ("/mqtt-sessions", "./#/mqtt-sessions"),
    ],
)
def test_a_page_that_is_typed_without_its_hash_is_found(path: str, place: str) -> None:
    answer = missing(path, BROWSER)
    assert answer is not None
    assert (answer.status, dict(answer.headers)["Location"]) == (303, place)


def test_the_pages_are_those_of_the_ui() -> None:
    routes = (resources.files("warren.mgmt_plugin") / "static/js/routes.js").read_text()
    assert set(re.findall(r"^  \[\['([a-z-]+)'\], \[", routes, re.MULTILINE)) == PAGES


@pytest.mark.parametrize("headers", [{}, {"accept": "*/*"}, {"accept": "application/json"}])
def test_a_program_gets_no_page(headers: dict[str, str]) -> None:
    assert missing("/queues", headers) is None


@pytest.mark.parametrize("target", ["*", "queues"])
def test_a_target_that_is_no_path_gets_no_page(target: str) -> None:
    assert missing(target, BROWSER) is None


def test_a_change_gets_no_page() -> None:
    assert missing("/queues", BROWSER, "PUT") is None


def test_the_page_has_no_address_of_its_own() -> None:
    request = Request("GET", "/missing.html", "", BROWSER, "127.0.0.1", False, no_body)
    assert StaticFiles().maybe_respond(request) is None
