"""The places where a broker may keep tables itself: an operator's setting, and the check against it.

    /srv/lake                          a directory: tables, catalogues in SQLite and schemas below it
    s3://lake/warren                   URLs that begin with it: tables, warehouses, catalogues, schema registries
    https://catalog.example.org        likewise
    catalog:main                       a catalogue of pyiceberg's configuration, on the broker's machine

1. Only places below one of these are allowed. A text that could mean another place than it seems, such as one with
   ``..`` or a query, is always refused.
2. A URL must not contain a password: it is stored, exported and shown.
3. `check` looks at texts only, since its caller must not wait for a disk. Links in a path are followed by
   `check_links`, in the process that opens the table.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple
from urllib.parse import unquote

from warren.spark_bridge.bridge_errors import UsageError

SETTING: Final = "lake_places"
CATALOG: Final = "catalog:"
ENVIRONMENT: Final = "of the broker's environment"
_FILE: Final = "file://"
_SQLITE: Final = "sqlite:///"
_NOT_IN_PATHS: Final = re.compile(r"[\x00?#%]")  # paths become URLs, here or in a library
_UNPRINTABLE: Final = re.compile(r"[\x00-\x20\x7f\\]")


class Places(NamedTuple):
    """The allowed places: `directories`, beginnings of `urls`, names of `catalogs`."""

    directories: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    catalogs: frozenset[str] = frozenset()

    def check(self, what: str, text: str, *, strictly: bool = False) -> None:
        """Make sure that a path or a URL is below an allowed one; `strictly`: and is not that one itself.

        Raises:
            UsageError: it is not.
        """
        path = maybe_path(text)
        if path is not None:
            self._check_path(what, path, strictly=strictly)
        elif "://" in text:
            self._check_url(what, text, strictly=strictly)
        else:
            raise UsageError(f"{what} {text!r}: must be an absolute path, or a URL")

    def check_catalog(self, name: str) -> None:
        """Make sure that a catalogue of pyiceberg's configuration is allowed.

        Raises:
            UsageError: it is not.
        """
        if name not in self.catalogs:
            raise UsageError(f"catalog {name!r}: not allowed by the setting {SETTING}, which would say {CATALOG}{name}")

    def check_links(self, text: str) -> None:
        """Make sure that a path is below an allowed directory when the links in it are followed.

        Raises:
            UsageError: it is not.
        """
        path = maybe_path(text)
        if path is None:
            return
        real = os.path.realpath(path)
        if not any(_is_below(real, os.path.realpath(each)) for each in self.directories):
            raise UsageError(f"{text}: a link in this path leads to where the setting {SETTING} does not allow it")

    def _check_path(self, what: str, path: str, *, strictly: bool) -> None:
        if not path.startswith("/") or ".." in path.split("/") or _NOT_IN_PATHS.search(path):
            raise UsageError(f"{what} {path!r}: must be an absolute path without .., ?, # and %")
        path = os.path.normpath(path)
        allowed = [each for each in self.directories if _is_below(path, each)]
        if not allowed or (strictly and path in allowed):
            raise UsageError(
                f"{what} {path}: the setting {SETTING} allows "
                + (f"directories below {', '.join(self.directories)}" if self.directories else "no directories")
            )

    def _check_url(self, what: str, url: str, *, strictly: bool) -> None:
        scheme, _, rest = url.partition("://")
        authority, slash, path = rest.partition("/")
        if ":" in authority.rpartition("@")[0]:
            raise UsageError(f"{what} {scheme}://…: must not hold a password; credentials are those {ENVIRONMENT}")
        if "?" in url or "#" in url or _UNPRINTABLE.search(unquote(url)):
            raise UsageError(f"{what} {url!r}: must be a URL without query and fragment")
        if {".", ".."} & set(unquote(path).split("/")):
            raise UsageError(f"{what} {url}: must be a URL without . and ..")
        whole = url if slash else f"{url}/"
        if not any(whole.startswith(each) and not (strictly and whole.rstrip("/") + "/" == each) for each in self.urls):
            raise UsageError(
                f"{what} {url}: the setting {SETTING} allows "
                + (f"URLs below {', '.join(self.urls)}" if self.urls else "no URLs")
            )


def places_of(text: str) -> Places:
    """Return the places in the setting, which was checked when it was read."""
    given = [each.strip() for each in text.split(",") if each.strip()]
    return Places(
        tuple(os.path.normpath(each) for each in given if each.startswith("/")),
        tuple(each.rstrip("/") + "/" for each in given if "://" in each),
        frozenset(each.removeprefix(CATALOG) for each in given if each.startswith(CATALOG)),
    )


def maybe_path(text: str) -> str | None:
    """Return the path of a directory or file on this machine; None: it is something else."""
    if text.startswith(_SQLITE):
        return text.removeprefix(_SQLITE)
    if text.startswith(_FILE):
        return text.removeprefix(_FILE)
    return text if text.startswith("/") else None


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
