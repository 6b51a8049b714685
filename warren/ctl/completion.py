"""Names for the shell to complete words with, asked from the broker.

A shell waits for these, so they are patient for a second only, and silent: without an answer there is nothing to
complete.
"""

from __future__ import annotations

import re
from typing import Final

import typer

from warren.ctl.exit_codes import CtlError
from warren.ctl.session import session

_PATIENCE_S: Final = 1.0
_MOST_NAMES: Final = 100


def vhost_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return vhosts whose names begin so."""
    return _names(context, incomplete, "vhosts")


def user_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return users whose names begin so."""
    return _names(context, incomplete, "users")


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return queues of the vhost whose names begin so."""
    return _names(context, incomplete, "queues", of_vhost=True, paged=True)


def exchange_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return exchanges of the vhost whose names begin so."""
    return _names(context, incomplete, "exchanges", of_vhost=True, paged=True)


def policy_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return policies of the vhost whose names begin so."""
    return _names(context, incomplete, "policies", of_vhost=True)


def connection_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return connections whose names begin so."""
    return _names(context, incomplete, "connections", paged=True)


def _names(
    context: typer.Context, incomplete: str, collection: str, *, of_vhost: bool = False, paged: bool = False
) -> list[str]:
    asked = session(context)
    query = {"columns": "name"}
    if paged:
        query |= {"name": "^" + re.escape(incomplete), "use_regex": "true"}
    try:
        asked.impatient(_PATIENCE_S)
        segments = (collection, asked.vhost) if of_vhost else (collection,)
        if paged:
            items = next(asked.client.pages(*segments, query=query, page_size=_MOST_NAMES))
        else:
            items = asked.client.get_list(*segments, query=query)
        return [item["name"] for item in items if item["name"].startswith(incomplete)]
    except (CtlError, KeyError, TypeError, AttributeError):
        return []
