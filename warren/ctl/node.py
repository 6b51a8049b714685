"""Commands that look at the broker as a whole: what it is, what it does, what it keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from warren import __version__
from warren.ctl.client import Object
from warren.ctl.exit_codes import CtlError, ExitCode
from warren.ctl.output import value_at
from warren.ctl.session import CommandSession, session
from warren.ctl.words import size_text


class MemoryUnit(StrEnum):
    """The units of ``memory_breakdown``."""

    BYTES = "bytes"
    KB = "kB"
    MB = "MB"
    GB = "GB"
    KIB = "KiB"
    MIB = "MiB"
    GIB = "GiB"


class LogLevel(StrEnum):
    """What can be logged from."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_UNIT_BYTES: Final = {
    MemoryUnit.KB: 10**3,
    MemoryUnit.MB: 10**6,
    MemoryUnit.GB: 10**9,
    MemoryUnit.KIB: 1 << 10,
    MemoryUnit.MIB: 1 << 20,
    MemoryUnit.GIB: 1 << 30,
}
# In a URI: before the host, or of a key among its parameters.
_PASSWORD: Final = re.compile(r"(//[^:@/\s]*:)[^@/\s]*(?=@)|([?&]password=)[^&\s]*")
_TOTALS: Final = ("connections", "channels", "consumers", "exchanges", "queues")
_MESSAGES: Final = ("messages_ready", "messages_unacknowledged", "messages")
_RATES: Final = {
    "publish": "publish",
    "confirm": "confirm",
    "deliver_get": "deliver",
    "ack": "ack",
    "redeliver": "redeliver",
    "drop_unroutable": "drop unroutable",
    "return_unroutable": "return unroutable",
}


def status(context: typer.Context) -> None:
    """Show the node: versions, memory, disk, files, alarms, listeners, totals."""
    current = session(context)
    seen, node = _seen(current)
    if current.out.is_json:
        current.out.document({"overview": seen, "node": node})
        return
    _show_sections(current, _status_sections(seen, node))


def cluster_status(context: typer.Context) -> None:
    """Show the nodes: their state, alarms, partitions and listeners."""
    current = session(context)
    seen = current.client.get_object("overview")
    found = _cluster(seen, current.client.get_list("nodes"))
    if current.out.is_json:
        current.out.document(found)
        return
    nodes = {name: "running" if name in found["running_nodes"] else "stopped" for name in found["nodes"]}
    _show_sections(
        current,
        {
            "Cluster": {
                "name": found["cluster_name"],
                "product": _product(seen),
                "alarms": ", ".join(f"{each['resource']} on {each['node']}" for each in found["alarms"]) or "none",
                "network partitions": found["partitions"] or "none",
            },
            "Nodes": nodes,
            "Listeners": {
                f"{each.get('node')} {each.get('protocol')} {each.get('port')}": each.get("ip_address")
                for each in found["listeners"]
            },
        },
    )


def memory_breakdown(
    context: typer.Context,
    unit: Annotated[
        MemoryUnit | None, typer.Option("--unit", case_sensitive=False, help="One unit for all sizes")
    ] = None,
) -> None:
    """Show the memory use of the node, the largest part first."""
    current = session(context)
    node = str(current.client.get_object("overview").get("node"))
    memory = current.client.get_object("nodes", node, "memory").get("memory")
    if not isinstance(memory, dict):
        raise CtlError(f"node {node} does not report its memory use")
    parts = {name: value for name, value in memory.items() if type(value) is int and value}
    whole = sum(parts.values())
    rows = [
        [name, _in_unit(value, unit, exact=current.out.is_json), round(100 * value / whole, 2)]
        for name, value in sorted(parts.items(), key=lambda part: -part[1])
    ]
    current.out.rows(("part", "memory", "percent"), rows)


def set_log_level(context: typer.Context, level: Annotated[LogLevel, typer.Argument(metavar="LEVEL")]) -> None:
    """Log from debug, info, warning or error up, until the next start or SIGHUP (Warren)."""
    current = session(context)
    current.client.put("warren", "log-level", body={"level": level.value})
    current.out.say(f"Log level is {level.value}")


def overview(context: typer.Context) -> None:
    """Show totals and rates of the whole broker."""
    current = session(context)
    seen = current.client.get_object("overview")
    if current.out.is_json:
        current.out.document(seen)
        return
    _show_sections(current, {"Broker": _broker(seen), "Totals": _totals(seen), "Messages per second": _rates(seen)})


def version(context: typer.Context) -> None:
    """Show the versions of this command and of the broker."""
    current = session(context)
    current.out.record("", {"warren ctl": __version__, "broker": _product(current.client.get_object("overview"))})


def listeners(context: typer.Context) -> None:
    """List the addresses on which the broker listens."""
    current = session(context)
    found = current.client.get_object("overview").get("listeners", [])
    columns = ("node", "protocol", "ip_address", "port")
    current.out.rows(columns, ([item.get(column) for column in columns] for item in found))


def environment(context: typer.Context) -> None:
    """Show the settings that are in force."""
    current = session(context)
    found = current.client.get_object("config", "effective")
    if current.out.is_json:
        current.out.document(found)
    else:
        columns = ("setting", "value", "origin")
        current.out.rows(columns, ([name, item.get("value"), item.get("origin")] for name, item in found.items()))


def set_cluster_name(context: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Set the cluster name that the broker shows."""
    current = session(context)
    current.client.put("cluster-name", body={"name": name})
    current.out.say(f'The cluster is called "{name}"')


def search(
    context: typer.Context,
    text: Annotated[str, typer.Argument(metavar="TEXT")],
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1)] = 50,
) -> None:
    """Find queues, exchanges, connections, users, … by a part of their names (Warren)."""
    current = session(context)
    found = current.client.get_object("warren", "search", query={"q": text, "limit": str(limit)})
    columns = ("kind", "vhost", "name", "detail")
    current.out.rows(columns, ([item.get(column) for column in columns] for item in found["items"]))
    if found["more"]:
        current.out.say("There are more: --limit")


def store(
    context: typer.Context,
    segments: Annotated[bool, typer.Option("--segments", help="A row for every segment")] = False,
) -> None:
    """Show the message store of the running broker (Warren); warren store looks at a stopped one."""
    current = session(context)
    found = current.client.get_object("warren", "store")
    if current.out.is_json:
        current.out.document(found)
    elif segments:
        columns = ("number", "bytes", "live_bytes", "live_records", "state")
        current.out.rows(columns, ([item.get(column) for column in columns] for item in found["segments"]))
    else:
        current.out.record("Message store", _flat(found))


def reactor(context: typer.Context) -> None:
    """Show how long the turns of the broker take (Warren)."""
    current = session(context)
    found = current.client.get_object("warren", "reactor")
    if current.out.is_json:
        current.out.document(found)
    else:
        current.out.record("Reactor", _flat(found))


def report(context: typer.Context) -> None:
    """Print status and all listings, for a support request; without passwords and hashes."""
    from warren.ctl.listing_table import LISTINGS
    from warren.ctl.listings import Asked, table

    current = session(context)
    seen, node = _seen(current)
    whole: dict[str, object] = {"overview": seen, "node": node}
    if not current.out.is_json:
        _show_sections(current, _status_sections(seen, node))
    for listing in LISTINGS:
        if listing.argument:
            continue
        try:
            columns, found = table(current, listing, Asked(all_vhosts=True))
            rows = ([_without_passwords(value) for value in row] for row in found)
            if current.out.is_json:
                whole[listing.command] = [dict(zip(columns, row, strict=True)) for row in rows]
            else:
                current.out.heading(listing.command)
                current.out.rows(columns, rows)
        except CtlError as error:
            # Without a plugin, or without the right to see it, the rest is still worth having.
            if error.exit_code not in (ExitCode.NOT_FOUND, ExitCode.REFUSED):
                raise
            whole[listing.command] = None
            if not current.out.is_json:
                current.out.result(f"({error.reason})")
    if current.out.is_json:
        current.out.document(whole)


def _hidden(found: re.Match[str]) -> str:
    return f"{found[1] or found[2]}…"


def _without_passwords(value: object) -> object:
    """Return a value of a row without the passwords of URIs, which parameters of shovels and upstreams have."""
    if isinstance(value, str):
        return _PASSWORD.sub(_hidden, value)
    if isinstance(value, list):
        return [_without_passwords(each) for each in value]
    if isinstance(value, dict):
        return {key: _without_passwords(each) for key, each in value.items()}
    return value


def _seen(current: CommandSession) -> tuple[Object, Object]:
    """Return the overview and the node that gave it."""
    seen = current.client.get_object("overview")
    return seen, current.client.get_object("nodes", seen["node"])


def _show_sections(current: CommandSession, sections: Mapping[str, Mapping[str, object]]) -> None:
    for title, values in sections.items():
        current.out.record(title, values)


def _status_sections(seen: Object, node: Object) -> dict[str, dict[str, object]]:
    alarms = [name for name, key in (("memory", "mem_alarm"), ("disk", "disk_free_alarm")) if node.get(key)]
    return {
        "Broker": {
            **_broker(seen),
            "process": node.get("os_pid"),
            "uptime": _duration(node.get("uptime")),
            "alarms": ", ".join(alarms) or "none",
            **({"links": f"held: {node['links_held']}"} if node.get("links_held") else {}),
        },
        "Resources": {
            "memory": _of(node, "mem_used", "mem_limit", size_text),
            "disk free": _of(node, "disk_free", "disk_free_limit", size_text, "at least"),
            "files": _of(node, "fd_used", "fd_total", str),
            "sockets": _of(node, "sockets_used", "sockets_total", str),
        },
        "Totals": _totals(seen),
        "Listeners": {
            f"{item['protocol']} {item['port']}": item.get("ip_address") for item in seen.get("listeners", [])
        },
    }


def _broker(seen: Object) -> dict[str, object]:
    return {"product": _product(seen), "cluster": seen.get("cluster_name"), "node": seen.get("node")}


def _product(seen: Object) -> str:
    version = seen.get("product_version") or seen.get("rabbitmq_version") or ""
    return f"{seen.get('product_name', 'RabbitMQ')} {version}".strip()


def _totals(seen: Object) -> dict[str, object]:
    counts = {name: value_at(seen, f"object_totals.{name}") for name in _TOTALS}
    return counts | {name.replace("_", " "): value_at(seen, f"queue_totals.{name}") or 0 for name in _MESSAGES}


def _rates(seen: Object) -> dict[str, object]:
    return {label: value_at(seen, f"message_stats.{key}_details.rate") or 0 for key, label in _RATES.items()}


def _of(node: Object, key: str, limit_key: str, form: Callable[[Any], str], word: str = "of") -> str | None:
    value, limit = node.get(key), node.get(limit_key)
    if not isinstance(value, int):
        return None
    return f"{form(value)} ({word} {form(limit)})" if isinstance(limit, int) else form(value)


def _cluster(seen: Object, nodes: list[Object]) -> Object:
    """Return what rabbitmqctl says about a cluster, under its names."""
    resources = (("memory", "mem_alarm"), ("disk", "disk_free_alarm"))
    return {
        "cluster_name": seen.get("cluster_name"),
        "nodes": [node.get("name") for node in nodes],
        "running_nodes": [node.get("name") for node in nodes if node.get("running")],
        "disk_nodes": [node.get("name") for node in nodes if node.get("type") == "disc"],
        "ram_nodes": [node.get("name") for node in nodes if node.get("type") == "ram"],
        "alarms": [
            {"node": node.get("name"), "resource": resource}
            for node in nodes
            for resource, key in resources
            if node.get(key)
        ],
        "partitions": {str(node.get("name")): node["partitions"] for node in nodes if node.get("partitions")},
        "listeners": seen.get("listeners", []),
    }


def _in_unit(value: int, unit: MemoryUnit | None, *, exact: bool) -> object:
    if unit is None:
        return value if exact else size_text(value)
    return value if unit is MemoryUnit.BYTES else round(value / _UNIT_BYTES[unit], 4)


def _flat(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values with those of nested objects beside them; lists are left out."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": item for inner, item in value.items()}
        elif not isinstance(value, list):
            flat[key] = value
    return flat


def _duration(milliseconds: object) -> str | None:
    if not isinstance(milliseconds, int):
        return None
    minutes, seconds = divmod(milliseconds // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days} d " if days else "") + f"{hours:02}:{minutes:02}:{seconds:02}"


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "status": status,
    "overview": overview,
    "cluster_status": cluster_status,
    "memory_breakdown": memory_breakdown,
    "version": version,
    "listeners": listeners,
    "environment": environment,
    "set_cluster_name": set_cluster_name,
    "set_log_level": set_log_level,
    "search": search,
    "store": store,
    "reactor": reactor,
    "report": report,
}
