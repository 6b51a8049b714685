"""The web UI: the files of the folder `static`, read once, served from memory.

1. The server serves the files that the folder had at the start, under their names then: it never opens a path of a
   request.
2. Every answer forbids scripts, styles and connections from anywhere else, and being framed.
3. A browser that asks for a path that is not there gets a page that says so; a program gets the refusal as JSON. The
   path of a page of the UI, typed without its `#`, leads to that page.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Final

from warren.mgmt_plugin.http.server import HttpError, Request, Response

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY_HEADERS: Final = (
    ("Content-Security-Policy", POLICY),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)
TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
    "txt": "text/plain; charset=utf-8",
    "md": "text/plain; charset=utf-8",
}
# Other paths under which a file is found, in addition to its own name.
ALIASES: Final = {
    "/": "/index.html",
    "/api": "/docs.html",
    "/api/docs": "/docs.html",
    "/api/index.html": "/docs.html",
    "/cli": "/cli/index.html",
    "/cli/": "/cli/index.html",
    "/cli/rabbitmqadmin": "/cli/rabbitmqadmin.txt",
}


# The first segments of the pages of the UI (js/routes.js).
PAGES: Final = frozenset(
    (
        "applications", "bulk", "channels", "cluster", "connections", "consumers", "definitions", "exchanges",
        "federation", "lake", "limits", "logs", "mqtt-sessions", "nodes", "parameters", "policies", "queues",
        "retained", "routing", "search", "shovels", "store", "super-streams", "users", "vhosts",
    )
)  # fmt: skip

# The page for a path that is not there; its links begin with the way from that path to the root.
MISSING_PAGE: Final = "/missing.html"
_TO_ROOT: Final = b"ROOT/"


class StaticFiles:
    """The files by path, each with its entity tag."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str, str]] = {}
        root = resources.files("warren.mgmt_plugin") / "static"
        if root.is_dir():
            self._read(root, "")
        self._missing, _, _ = self._files.pop(MISSING_PAGE, (b"", "", ""))

    def _read(self, folder: Traversable, path: str) -> None:
        for entry in folder.iterdir():
            name = f"{path}/{entry.name}"
            if entry.is_dir():
                self._read(entry, name)
                continue
            suffix = entry.name.rpartition(".")[2]
            if suffix in TYPES:
                data = entry.read_bytes()
                self._files[name] = (data, TYPES[suffix], f'"{hashlib.sha256(data).hexdigest()[:24]}"')

    def maybe_respond(self, request: Request) -> Response | None:
        """Answer a request for a file; None when the path is not of one."""
        found = self._files.get(ALIASES.get(request.path, request.path))
        if found is None:
            return None
        if request.method not in ("GET", "HEAD"):
            raise HttpError(405, "method_not_allowed", "only GET and HEAD are allowed here", (("Allow", "GET, HEAD"),))
        data, content_type, tag = found
        headers = (*SECURITY_HEADERS, ("ETag", tag))
        if request.headers.get("if-none-match") == tag:
            return Response(304, b"", content_type, headers, "no-cache")
        return Response(200, data, content_type, headers, "no-cache")

    def maybe_missing(self, request: Request) -> Response | None:
        """Return the page that says that nothing is at the path of a request, or the way to the page that is meant.

        None unless a browser asks for a page.
        """
        if not self._missing or request.method not in ("GET", "HEAD") or not request.path.startswith("/"):
            return None
        if "text/html" not in request.headers.get("accept", ""):
            return None
        to_root = "../" * (request.path.count("/") - 1) or "./"
        if request.path.split("/")[1] in PAGES:
            query = f"?{request.query}" if request.query else ""
            place = (("Location", f"{to_root}#{request.path.rstrip('/')}{query}"),)
            return Response(303, b"", TYPES["html"], (*SECURITY_HEADERS, *place), "no-cache")
        data = self._missing.replace(_TO_ROOT, to_root.encode())
        return Response(404, data, TYPES["html"], SECURITY_HEADERS, "no-cache", refusal="Not Found")
