"""Health checks: exit code 0 when all is well, 6 when the broker says what is not.

Most are a path of the API each; those are rows of a table.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Annotated, Final, NamedTuple

import typer

from warren.ctl.client import Client
from warren.ctl.exit_codes import CtlError, ExitCode
from warren.ctl.session import CommandSession, session

_ANY_ADDRESS: Final = ("::", "0.0.0.0", "", "undefined")
_POLL_S: Final = 0.2


class Check(NamedTuple):
    """One check without arguments: its path below ``health/checks/``."""

    command: str
    path: str
    summary: str


_CHECKS: Final = (
    Check("check_alarms", "alarms", "Fail when any node has a memory or disk alarm."),
    Check("check_local_alarms", "local-alarms", "Fail when this node has a memory or disk alarm."),
    Check("check_virtual_hosts", "virtual-hosts", "Fail when a vhost is not running."),
    Check("is_in_service", "is-in-service", "Fail when the node does not serve clients (or is being drained)."),
    Check("check_ready_to_serve_clients", "ready-to-serve-clients", "Fail when the node is not ready for clients."),
    Check(
        "check_below_node_connection_limit",
        "below-node-connection-limit",
        "Fail when the node has reached its connection limit.",
    ),
    Check(
        "check_if_node_is_quorum_critical",
        "node-is-quorum-critical",
        "Fail when queues would lose their quorum without this node.",
    ),
    Check(
        "check_quorum_leaders",
        "quorum-queues-without-elected-leaders/all-vhosts",
        "Fail when a quorum queue has no leader.",
    ),
)


def _command(check: Check) -> Callable[..., None]:
    def command(context: typer.Context) -> None:
        _ask(session(context), check.path)

    command.__doc__ = check.summary
    return command


def _ask(current: CommandSession, path: str) -> None:
    try:
        current.client.get("health", "checks", *path.split("/"))
    except CtlError as error:
        if error.exit_code is ExitCode.NOT_FOUND:
            raise CtlError("this broker has no such check", ExitCode.NOT_FOUND) from None
        raise
    current.out.say("ok")


def check_port_listener(
    context: typer.Context, port: Annotated[int, typer.Argument(metavar="PORT", min=1, max=65535)]
) -> None:
    """Fail when nothing listens on a port."""
    _ask(session(context), f"port-listener/{port}")


def check_protocol_listener(
    context: typer.Context, protocol: Annotated[str, typer.Argument(metavar="PROTOCOL", help="amqp, amqps, http, …")]
) -> None:
    """Fail when nothing listens for a protocol."""
    _ask(session(context), f"protocol-listener/{protocol}")


def check_certificate_expiration(
    context: typer.Context,
    within: Annotated[int, typer.Option("--within", metavar="N", min=1)] = 4,
    unit: Annotated[str, typer.Option("--unit", metavar="UNIT", help="days, weeks, months or years")] = "weeks",
) -> None:
    """Fail when a certificate of a listener expires soon."""
    _ask(session(context), f"certificate-expiration/{within}/{unit}")


def check_aliveness(context: typer.Context) -> None:
    """Publish and get a message in the queue aliveness-test of a vhost."""
    current = session(context)
    current.client.get("aliveness-test", current.vhost)
    current.out.say("ok")


def check_running(context: typer.Context) -> None:
    """Fail when the node is not running."""
    current = session(context)
    name = current.client.get_object("overview")["node"]
    if current.client.get_object("nodes", name).get("running") is not True:
        raise CtlError(f"node {name} is not running", ExitCode.CHECK_FAILED)
    current.out.say(f"Node {name} is running")


def check_port_connectivity(context: typer.Context) -> None:
    """Connect to the port of every listener from here."""
    current = session(context)
    client = current.client
    listeners = client.get_object("overview").get("listeners", [])
    failed = []
    for listener in listeners:
        address, port = str(listener.get("ip_address", "")), int(listener["port"])
        host = client.host if address in _ANY_ADDRESS else address
        try:
            socket.create_connection((host, port), timeout=client.target.timeout_s).close()
        except OSError as error:
            failed.append(f"{listener['protocol']} {host}:{port}: {error.strerror or error}")
    if failed:
        raise CtlError("; ".join(failed), ExitCode.CHECK_FAILED)
    current.out.say(f"Connected to {len(listeners)} listeners")


def ping(context: typer.Context) -> None:
    """Ask the API who we are, and print the response time."""
    current = session(context)
    began = time.perf_counter()
    current.client.get("whoami")
    current.out.say(f"{current.client.shown_url} answered in {(time.perf_counter() - began) * 1000:.1f} ms")


def await_startup(
    context: typer.Context,
    within: Annotated[float, typer.Option("--within", metavar="SECONDS", min=0, help="Give up after so long")] = 300.0,
) -> None:
    """Wait until the broker answers; exit code 3 if it does not answer in time."""
    current = session(context)
    give_up_at = time.monotonic() + within
    while not _answers(current.client, last=time.monotonic() >= give_up_at):
        time.sleep(_POLL_S)
    current.out.say(f"{current.client.shown_url} is up")


def _answers(client: Client, *, last: bool) -> bool:
    try:
        client.get("whoami")
    except CtlError as error:
        if last or error.exit_code not in (ExitCode.UNREACHABLE, ExitCode.CHECK_FAILED):
            raise
        return False
    return True


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "ping": ping,
    "await_startup": await_startup,
    "check_running": check_running,
    "check_port_connectivity": check_port_connectivity,
    "check_port_listener": check_port_listener,
    "check_protocol_listener": check_protocol_listener,
    "check_certificate_expiration": check_certificate_expiration,
    "check_aliveness": check_aliveness,
    **{check.command: _command(check) for check in _CHECKS},
}
