"""AMQP URIs as they may be shown: without user, password and query.

1. Nothing that `redact_uri` or `redact` returns holds user, password or query, however broken the URI is.
"""

from __future__ import annotations

import re

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(.*)", re.DOTALL)
# Up to white space or a quote: a password may hold a raw @, / or ?.
_URI = re.compile(r"(?i)\bamqps?://[^\s\"'<>]*")
_WHITESPACE = re.compile(r"\s+")


def redact_uri(text: str) -> str:
    """Return one URI without user, password and query: the form for status, logs and errors."""
    found = SCHEME.fullmatch(text)
    if found is None:
        # A URI without the scheme may still contain the password.
        return _WHITESPACE.sub("", _place(text))
    rest = _place(found[2])
    slashes = "" if rest.startswith("//") else "//"
    return f"{found[1]}:{slashes}{rest}"


def _place(text: str) -> str:
    """Return the part after user and password and before the query, ``""`` where its bounds are unclear.

    A ? before an @ begins a query with the @ in it, or belongs to the password: either would be shown with the other.
    """
    userinfo, _, rest = text.rpartition("@")
    return "" if "?" in userinfo else rest.partition("?")[0]


def redact(text: str) -> str:
    """Return any text with the AMQP URIs in it redacted: for reasons and log lines made by others."""
    return _URI.sub(lambda found: redact_uri(found[0]), text)
