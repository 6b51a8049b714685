"""`warren ctl top`: what the broker does now, redrawn every few seconds.

1. A screen costs the broker three or four requests, each for one page of what is shown; the broker sorts.
2. Without a terminal, and with ``--once``, it is printed once and whole: nothing is cut off.
3. A broker that goes away while the screen is drawn leaves the last figures there, and is asked again. What no
   patience mends (other credentials, no management API) ends the command.
4. The terminal is as it was when the command ends, however that happens.
"""

from __future__ import annotations

import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from warren.ctl.client import PAGE_SIZE, Object
from warren.ctl.exit_codes import CtlError, ExitCode, usage_error
from warren.ctl.output import cell, shown, value_at
from warren.ctl.session import CommandSession, session
from warren.ctl.words import size_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

INTERVAL_MIN_S: Final = 0.5
ROWS_ONCE: Final = 20
# What is on the screen besides rows: totals, rates, keys, and what stands above two tables.
_LINES_AROUND: Final = 10


class Order(StrEnum):
    """What queues are sorted by, the most first."""

    MESSAGES = "messages"
    PUBLISH = "publish"
    DELIVER = "deliver"


_ORDER_PATHS: Final = {
    Order.MESSAGES: "messages",
    Order.PUBLISH: "message_stats.publish_details.rate",
    Order.DELIVER: "message_stats.deliver_get_details.rate",
}
# The columns of both tables: the heading, and where it stands in the answer.
QUEUES: Final = {
    "vhost": "vhost",
    "queue": "name",
    "ready": "messages_ready",
    "unacked": "messages_unacknowledged",
    "messages": "messages",
    "publish/s": "message_stats.publish_details.rate",
    "deliver/s": "message_stats.deliver_get_details.rate",
    "consumers": "consumers",
}
CONNECTIONS: Final = {
    "user": "user",
    "connection": "name",
    "vhost": "vhost",
    "state": "state",
    "channels": "channels",
    "in B/s": "recv_oct_details.rate",
    "out B/s": "send_oct_details.rate",
}
APPLICATION: Final = "user_provided_name"  # what a client calls itself
_TEXTS: Final = ("vhost", "queue", "user", "connection", "state")
_RATES: Final = {"publish": "publish", "confirm": "confirm", "deliver_get": "deliver", "ack": "ack"}


class Seen(NamedTuple):
    """The answers of the broker; `node` is empty if the user may not look at nodes."""

    overview: Object
    node: Object
    queues: list[Object]
    connections: list[Object]


def top(
    context: typer.Context,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=INTERVAL_MIN_S, max=3600, help="Refresh interval")
    ] = 2.0,
    sort: Annotated[Order, typer.Option("--sort", help="Order of the queues, highest first")] = Order.MESSAGES,
    once: Annotated[bool, typer.Option("--once", help="Print it once, in a pipe too")] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=PAGE_SIZE, help="Rows of each table, with --once")
    ] = ROWS_ONCE,
) -> None:
    """Watch the busiest queues and connections; q quits; m, p and d sort."""
    current = session(context)
    if once:
        _print(current, look(current, sort, limit))
        return
    if not sys.stdout.isatty():
        raise usage_error("top: standard output is not a terminal: use --once")
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_dumb_terminal:
        raise usage_error("top: this terminal cannot draw a screen: use --once")
    _watch(current, console, sort, interval)


def look(current: CommandSession, sort: Order, limit: int) -> Seen:
    """Ask for so many queues and connections, and for the totals.

    Raises:
        CtlError: the broker does not answer, or refuses.
    """
    client = current.client
    overview = client.get_object("overview")
    try:
        node = client.get_object("nodes", str(overview.get("node")))
    except CtlError as error:
        if error.exit_code is not ExitCode.REFUSED:
            raise
        node = {}
    vhost = current.maybe_vhost
    queues = ("queues",) if vhost is None else ("queues", vhost)
    connections = ("connections",) if vhost is None else ("vhosts", vhost, "connections")
    return Seen(
        overview,
        node,
        _most(current, queues, QUEUES, _ORDER_PATHS[sort], limit),
        _most(current, connections, CONNECTIONS, CONNECTIONS["in B/s"], limit),
    )


def _most(
    current: CommandSession, segments: tuple[str, ...], columns: dict[str, str], sort: str, limit: int
) -> list[Object]:
    wanted = [*columns.values(), APPLICATION] if columns is CONNECTIONS else columns.values()
    query = {"sort": sort, "sort_reverse": "true", "columns": ",".join(wanted)}
    return next(current.client.pages(*segments, query=query, page_size=limit))[:limit]


def _print(current: CommandSession, seen: Seen) -> None:
    out = current.out
    if out.is_json:
        out.document(seen._asdict())
        return
    out.record("Broker", _totals(seen))
    for title, columns, items in (("Queues", QUEUES, seen.queues), ("Connections", CONNECTIONS, seen.connections)):
        out.heading(title)
        out.rows(list(columns), (_row(columns, item) for item in items))


def _totals(seen: Seen) -> dict[str, object]:
    node = seen.node
    alarms = [name for name, key in (("memory", "mem_alarm"), ("disk", "disk_free_alarm")) if node.get(key)]
    totals: dict[str, object] = {"node": seen.overview.get("node")}
    if node:
        used = node.get("mem_used")
        totals["memory"] = size_text(used) if isinstance(used, int) else None
        totals["alarms"] = ", ".join(alarms) or "none"
    for name in ("connections", "channels", "queues", "consumers"):
        totals[name] = value_at(seen.overview, f"object_totals.{name}")
    totals["messages"] = value_at(seen.overview, "queue_totals.messages") or 0
    for key, label in _RATES.items():
        totals[f"{label}/s"] = value_at(seen.overview, f"message_stats.{key}_details.rate") or 0
    return totals


def _row(columns: dict[str, str], item: Object) -> list[object]:
    found = [value_at(item, path) for path in columns.values()]
    application = item.get(APPLICATION)
    if columns is CONNECTIONS and application:
        # The name of the application says more than the address, but several connections may have it.
        found[list(columns).index("connection")] = f"{application} ({item.get('name')})"
    return [0 if value is None and name not in _TEXTS else value for name, value in zip(columns, found, strict=True)]


# --- the screen -------------------------------------------------------------------------------------------------------


def _watch(current: CommandSession, console: Console, sort: Order, interval_s: float) -> None:
    """Draw until somebody has seen enough."""
    from rich.live import Live

    seen = look(current, sort, _room(console))
    with (
        _keys() as key,
        _interrupts() as is_interrupted,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        trouble = ""
        while True:
            live.update(_screen(console, seen, sort, trouble), refresh=True)
            pressed = "" if is_interrupted() else key(interval_s)
            if is_interrupted():
                raise KeyboardInterrupt
            if pressed == "q":
                return
            sort = {"m": Order.MESSAGES, "p": Order.PUBLISH, "d": Order.DELIVER}.get(pressed, sort)
            try:
                seen = look(current, sort, _room(console))
                trouble = ""
            except CtlError as error:
                if error.exit_code not in (ExitCode.UNREACHABLE, ExitCode.FAILED, ExitCode.CHECK_FAILED):
                    raise
                trouble = f"{time.strftime('%H:%M:%S')} {error.reason}"


def _room(console: Console) -> int:
    """Return how many rows each table may have."""
    return min(max(1, (console.height - _LINES_AROUND) // 2), PAGE_SIZE)


def _screen(console: Console, seen: Seen, sort: Order, trouble: str) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    totals = "  ".join(f"{name} {cell(value)}" for name, value in _totals(seen).items())
    keys = f"q ends, sorted by {sort.value}: m messages, p publish, d deliver"
    lines: list[RenderableType] = [Text(shown(totals))]
    lines.append(Text(shown(trouble), style="bold red", no_wrap=True, overflow="ellipsis") if trouble else Text(""))
    room = _room(console)
    for columns, items in ((QUEUES, seen.queues), (CONNECTIONS, seen.connections)):
        lines += [_table(columns, items[:room]), Text("")]
    return Group(*lines, Text(keys, style="dim", no_wrap=True, overflow="ellipsis"))


def _table(columns: dict[str, str], items: list[Object]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="reverse", expand=True)
    for name in columns:
        wide = name in ("queue", "connection")
        justify: Any = "left" if name in _TEXTS else "right"
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify=justify, ratio=1 if wide else None)
    for item in items:
        table.add_row(*(Text(shown(cell(value))) for value in _row(columns, item)))
    return table


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Read keys one by one; what is yielded waits so many seconds for one, and returns it or nothing."""
    if not sys.stdin.isatty():

        def wait(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield wait
        return
    import os
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        if not ready:
            return ""
        pressed = os.read(descriptor, 1)
        return pressed.decode(errors="replace").lower() if pressed else "q"  # the terminal is gone

    try:
        tty.setcbreak(descriptor)
        yield read
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Remember Ctrl-C; what is yielded tells whether it came.

    It interrupts as always, but for where Python only prints what is raised, in a finalizer for instance.
    """
    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, before)


COMMANDS: Final[dict[str, Callable[..., None]]] = {"top": top}
