"""The commands that list things: columns, filter, order and pages are alike for all of them.

1. A dotted column reaches inside an object (``message_stats.publish_details.rate``).
2. What can be long is read in pages of 500 and written as it comes, so a long listing costs neither side much memory.
   The broker sorts and filters it; the short ones are sorted and filtered here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Annotated, Any, Final, NamedTuple

import typer

from warren.ctl.client import PAGE_SIZE, Object
from warren.ctl.exit_codes import usage_error
from warren.ctl.listing_table import LISTINGS, Listing, Scope
from warren.ctl.output import value_at
from warren.ctl.session import CommandSession, session
from warren.ctl.words import User

_Columns = Annotated[list[str] | None, typer.Argument(metavar="COLUMN", show_default=False)]
_Name = Annotated[str | None, typer.Option("--name", metavar="REGEX", help="Only names that match")]
_Sort = Annotated[str | None, typer.Option("--sort", metavar="COLUMN", help="Order by this; -COLUMN for descending")]
_Reverse = Annotated[bool, typer.Option("--reverse", help="Reverse the order")]
_Limit = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Maximum number")]
_AllVhosts = Annotated[bool, typer.Option("--all-vhosts", "-A", help="Of every vhost")]


class Asked(NamedTuple):
    """What the command line says about a listing."""

    columns: Sequence[str] = ()
    name: str | None = None
    sort: str | None = None
    reverse: bool = False
    limit: int | None = None
    all_vhosts: bool = False
    argument: str = ""


def show(current: CommandSession, listing: Listing, asked: Asked) -> None:
    """Print a listing."""
    columns, rows = table(current, listing, asked)
    current.out.rows(columns, rows)


def table(current: CommandSession, listing: Listing, asked: Asked) -> tuple[list[str], Iterator[list[object]]]:
    """Return the columns of a listing, and its rows as they come from the broker."""
    columns = _columns(listing, asked)
    paths = [_path_of(listing, column) for column in columns]
    items = _items(current, listing, asked, paths)
    return columns, ([_value(item, path) for path in paths] for item in items)


def _columns(listing: Listing, asked: Asked) -> list[str]:
    if not asked.columns:
        every = listing.scope is Scope.ONE and asked.all_vhosts and "vhost" not in listing.columns
        return ["vhost", *listing.columns] if every else list(listing.columns)
    # rabbitmqctl takes one argument with blanks or commas in it, too.
    columns = [word for text in asked.columns for word in text.replace(",", " ").split()]
    for column in columns:
        _path_of(listing, column)
    return list(dict.fromkeys(columns))


def _path_of(listing: Listing, column: str) -> str:
    """Return where a column stands in an item.

    Raises:
        CtlError: no such column.
    """
    if column in listing.aliases:
        return listing.aliases[column]
    if column.partition(".")[0] not in listing.known:
        near = get_close_matches(column, listing.known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(listing.known))}"
        raise usage_error(f"{listing.command}: no column {column!r}; {hint}")
    return column


def _value(item: Object, path: str) -> object:
    # Only exchanges have bindings, so the API does not say it.
    return "exchange" if path == "source_kind" else value_at(item, path)


def _items(current: CommandSession, listing: Listing, asked: Asked, paths: list[str]) -> Iterator[Object]:
    vhost = _maybe_vhost(current, listing, asked)
    template = listing.vhost_path if vhost is not None and listing.vhost_path else listing.path
    filled = {"{vhost}": vhost or "", "{name}": asked.argument}
    segments = [filled.get(segment, segment) for segment in template.split("/")]
    descending = asked.reverse != bool(asked.sort and asked.sort.startswith("-"))
    sort_path = _path_of(listing, asked.sort.removeprefix("-")) if asked.sort else None
    if listing.paged:
        items = _paged(current, segments, asked, paths, sort_path, descending)
    else:
        items = _whole(current, listing, segments, asked, sort_path, descending)
        if vhost is not None and not listing.vhost_path:
            items = (item for item in items if item.get("vhost") == vhost)
    return islice(items, asked.limit)


def _maybe_vhost(current: CommandSession, listing: Listing, asked: Asked) -> str | None:
    if listing.scope is Scope.NO_VHOST or asked.all_vhosts:
        return None
    return current.vhost if listing.scope is Scope.ONE else current.maybe_vhost


def _paged(
    current: CommandSession,
    segments: list[str],
    asked: Asked,
    paths: list[str],
    sort_path: str | None,
    descending: bool,
) -> Iterator[Object]:
    query = {"columns": ",".join(dict.fromkeys(paths))}
    if asked.name is not None:
        query |= {"name": asked.name, "use_regex": "true"}
    if sort_path is not None:
        query |= {"sort": sort_path, "sort_reverse": "true" if descending else "false"}
    page_size = min(PAGE_SIZE, asked.limit or PAGE_SIZE)
    for page in current.client.pages(*segments, query=query, page_size=page_size):
        yield from page


def _whole(
    current: CommandSession,
    listing: Listing,
    segments: list[str],
    asked: Asked,
    sort_path: str | None,
    descending: bool,
) -> Iterator[Object]:
    items: list[Object] = current.client.get_list(*segments)
    if asked.name is not None:
        try:
            pattern = re.compile(asked.name)
        except re.error as error:
            raise usage_error(f"--name {asked.name}: {error}") from None
        names = [_path_of(listing, column) for column in ("name", *listing.columns) if column in listing.known]
        items = [item for item in items if pattern.search(str(value_at(item, names[0]) or ""))]
    if sort_path is not None:
        items.sort(key=lambda item: _order(value_at(item, sort_path)), reverse=descending)
    yield from items


def _order(value: Any) -> tuple[int, float, str]:
    """Return a key that puts any JSON values in one order: nothing, numbers, everything else by its text."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, int | float):
        return (1, float(value), "")
    return (2, 0.0, str(value))


def _command(listing: Listing) -> Callable[..., None]:
    """Return the command of a listing."""

    def plain(
        context: typer.Context,
        columns: _Columns = None,
        name: _Name = None,
        sort: _Sort = None,
        reverse: _Reverse = False,
        limit: _Limit = None,
    ) -> None:
        show(session(context), listing, Asked(columns or (), name, sort, reverse, limit))

    def of_vhost(
        context: typer.Context,
        columns: _Columns = None,
        all_vhosts: _AllVhosts = False,
        name: _Name = None,
        sort: _Sort = None,
        reverse: _Reverse = False,
        limit: _Limit = None,
    ) -> None:
        show(session(context), listing, Asked(columns or (), name, sort, reverse, limit, all_vhosts))

    def of_user(context: typer.Context, user: User, columns: _Columns = None, sort: _Sort = None) -> None:
        show(session(context), listing, Asked(columns or (), sort=sort, argument=user))

    command = of_user if listing.argument else plain if listing.scope is Scope.NO_VHOST else of_vhost
    columns = ", ".join(listing.known)
    command.__doc__ = f"{listing.summary}\n\nColumns: {columns}; a.b reaches inside."
    return command


COMMANDS: Final[dict[str, Callable[..., None]]] = {listing.command: _command(listing) for listing in LISTINGS}
