"""Catalogues that are asked over HTTP. catalogs (1)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("pyiceberg")

from requests.exceptions import ReadTimeout

from warren.lake import catalogs

SHORT_S = (10.0, 0.05)


class Silent:
    """A REST catalogue that says of its paths only what `answers` has."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        over = threading.Event()
        self.over = over

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = answers.get(self.path.partition("?")[0])
                if body is None:
                    over.wait()
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_HEAD = _answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def end(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


CONFIG = b'{"defaults": {}, "overrides": {}}'
TOKEN = b'{"access_token": "let me in", "token_type": "bearer"}'
TABLE = "shop.orders"


@pytest.fixture
def silent() -> Iterator[type[Silent]]:
    """Return what makes such catalogues, which end with the test."""
    made: list[Silent] = []

    class Ended(Silent):
        def __init__(self, answers: dict[str, bytes]) -> None:
            super().__init__(answers)
            made.append(self)

    yield Ended
    for each in made:
        each.end()


@pytest.mark.parametrize(
    ("answers", "properties"),
    [
        ({}, {}),
        ({"/v1/config": CONFIG}, {}),
        ({}, {"credential": "ada:secret"}),
        ({"/v1/oauth/tokens": TOKEN, "/v1/config": CONFIG}, {"credential": "ada:secret"}),
    ],
)
def test_a_catalogue_that_does_not_answer_is_not_waited_for_for_ever(
    silent: type[Silent], monkeypatch: pytest.MonkeyPatch, answers: dict[str, bytes], properties: dict[str, str]
) -> None:
    monkeypatch.setattr(catalogs.TimedRestCatalog, "timeouts_s", SHORT_S)
    url = silent(answers).url
    given = {"uri": url, "oauth2-server-uri": f"{url}/v1/oauth/tokens", **properties}
    with pytest.raises(ReadTimeout):
        catalogs.open_catalog(given).load_table(TABLE)


def test_catalogues_that_the_configuration_of_pyiceberg_names_are_the_same(
    silent: type[Silent], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = silent({"/v1/config": CONFIG}).url
    monkeypatch.setenv("PYICEBERG_CATALOG__MAIN__URI", url)
    # pyiceberg reads its configuration when it is imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", __import__("pyiceberg.utils.config").utils.config.Config())
    found = catalogs.open_catalog({"name": "main"})
    assert isinstance(found, catalogs.TimedRestCatalog)
    assert found.timeouts_s == (catalogs.CONNECT_S, catalogs.ANSWER_S)
