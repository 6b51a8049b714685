"""The health of the broker: RabbitMQ's health checks, and ``/health`` for load balancers and service managers.

A check that does not pass answers 503 with ``status`` and ``reason``. In a cluster the leader answers; the checks of
the nodes are in ``cluster.py``. All queues have the same leader, so the checks for queues without one pass as long as
any node answers.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final

from warren.engine_view.engine_view import EngineView
from warren.mgmt_plugin.http.numbers import integer
from warren.mgmt_plugin.http.server import HttpError
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request
from warren.server.management import Health, Listening
from warren.server.network.tls import ServerTls
from warren.server.protocols import LISTENERS
from warren.server.regular_files import copied, read_regular
from warren.server.threads import FILES, in_thread

# Other names for the protocols of listeners in health checks.
OTHER_NAMES: Final = {
    **{name: {kind.shown, *kind.other_names} for name, kind in LISTENERS.items()},
    "http": {"management", "mgmt", "rabbitmq_management"},
    "https": {"https/management"},
    "datas": {"data/ssl"},
    "prometheus": {"http/prometheus", "rabbitmq_prometheus"},
}
SECONDS_OF: Final = {"days": 86400, "weeks": 7 * 86400, "months": 30 * 86400, "years": 365 * 86400}


def failed(reason: str, **more: Any) -> HttpError:
    """Return the answer of a check that does not pass."""
    return CheckFailed({"status": "failed", "reason": reason, **more})


class CheckFailed(HttpError):
    """A health check that did not pass: the body is the finding of the check."""

    def __init__(self, document: Described) -> None:
        super().__init__(503, "failed", document["reason"])
        self.document = document


OK: Final = {"status": "ok"}


def check_health(health: Health) -> None:
    """Check that the broker can do its work.

    Raises:
        CheckFailed: it cannot, and why.
    """
    if not health.ok:
        raise failed(health.reason)


def certificate_end_s(path: Path) -> float:
    """Return when the first certificate of a PEM file expires, in seconds since the epoch."""
    # The decoder of ssl for files, which it has for its own tests, is the only one of the standard library.
    with copied(read_regular(path)) as readable:
        decoded: dict[str, Any] = ssl._ssl._test_decode_cert(readable)  # type: ignore[attr-defined]
    return ssl.cert_time_to_seconds(decoded["notAfter"])


def checks(handlers: Mapping[str, tuple[Callable[..., Awaitable[object]], str]]) -> list[Route]:
    """Return the routes of checks, by their names: each with its handler, and its text for a passed check."""
    return [
        Route("GET", f"/api/health/checks/{path}", Access.USER, handler, f"Check: {summary}")
        for path, (handler, summary) in handlers.items()
    ]


_USER: Final = Access.USER


class HealthHandlers(Handlers):
    """Handlers of health checks. `tls`: where TLS is spoken."""

    def __init__(
        self, view: EngineView, health: Callable[[], Health], listening: Sequence[Listening], tls: ServerTls | None
    ) -> None:
        self._view = view
        self._health = health
        self._listening = listening
        self._tls = tls

    async def check_alarms(self, call: Call) -> Described:
        resources = [name for name in ("memory", "disk", "replicas") if self._view.has_alarm(name)]
        if resources:
            node = self._view.node_name()
            rows = [{"node": node, "resource": name} for name in resources]
            raise failed("There are alarms in effect in the cluster", alarms=rows)
        return dict(OK)

    async def check_running(self, call: Call) -> Described:
        check_health(self._health())
        return dict(OK)

    async def check_port(self, call: Call) -> Described:
        try:
            port = integer(call.params["port"])
        except ValueError:
            raise bad_request("the port must be a number") from None
        ports = sorted({each.port for each in self._listening})
        if port not in ports:
            raise failed("No active listener", missing=port, ports=ports)
        return {"status": "ok", "port": port}

    async def check_protocol(self, call: Call) -> Described:
        wanted = [each.strip().lower() for each in call.params["protocol"].split(",")]
        active = {each.protocol for each in self._listening}
        known = active.union(*(OTHER_NAMES.get(protocol, ()) for protocol in active))
        missing = [each for each in wanted if each not in known]
        if missing:
            raise failed("No active listener", missing=missing, protocols=sorted(active))
        return {"status": "ok", "protocol": call.params["protocol"]}

    async def check_certificates(self, call: Call) -> Described:
        unit = call.params["unit"]
        try:
            within_s = integer(call.params["within"]) * SECONDS_OF[unit]
        except (ValueError, KeyError):
            raise bad_request(f"Invalid expiration unit. Use one of {', '.join(SECONDS_OF)}") from None
        certificate = None if self._tls is None else self._tls.settings.certificate
        if certificate is None:
            return dict(OK)
        ends_s = await in_thread(FILES, certificate_end_s, certificate, abandon=True)
        if ends_s - time.time() < within_s:
            when = datetime.fromtimestamp(ends_s, UTC).isoformat()
            raise failed("Certificates expiring", expired=[{"certfile": str(certificate), "certfile_expires_on": when}])
        return dict(OK)

    async def check_nothing(self, call: Call) -> Described:
        return dict(OK)

    async def check_connection_limit(self, call: Call) -> Described:
        limit = self._view.connections_max()
        current = self._view.open_connections()
        if current >= limit:
            raise failed("the connection limit of the node is reached", current=current, limit=limit)
        return {"status": "ok", "current": current, "limit": limit}

    async def show_health(self, call: Call) -> Any:
        health = self._health()
        if health.ok:
            return health.document()
        raise CheckFailed(health.document())

    ROUTES: ClassVar = (
        Route("GET", "/api/healthchecks/node", _USER, check_nothing, "Deprecated, always well"),
        Route("GET", "/api/healthchecks/node/{node}", _USER, check_nothing, "Deprecated, always well"),
        Route("GET", "/health", Access.PUBLIC, show_health, "Health of the broker"),
        Route("GET", "/health/leader", Access.PUBLIC, show_health, "The same; fails on nodes that do not lead"),
        *checks(
            {
                "alarms": (check_alarms, "No alarm is in effect"),
                "local-alarms": (check_alarms, "No alarm is in effect on this node"),
                "certificate-expiration/{within}/{unit}": (
                    check_certificates,
                    "No certificate expires within that time",
                ),
                "port-listener/{port}": (check_port, "The port has a listener"),
                "protocol-listener/{protocol}": (check_protocol, "The protocols have listeners"),
                "virtual-hosts": (check_running, "All vhosts are running"),
                "ready-to-serve-clients": (check_running, "The node serves clients"),
                "below-node-connection-limit": (check_connection_limit, "The connection limit is not reached"),
                "metadata-store/initialized": (check_running, "The metadata store works"),
                "metadata-store/initialized/with-data": (check_running, "The metadata store works and is not empty"),
                "quorum-queues-without-elected-leaders/all-vhosts": (check_nothing, "All queues have leaders"),
                "quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}": (
                    check_nothing,
                    "Those with such names",
                ),
                "quorum-queues-without-elected-leaders/vhost/{vhost}": (
                    check_nothing,
                    "All queues of a vhost have leaders",
                ),
                "quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{pattern}": (
                    check_nothing,
                    "Those with such names",
                ),
            }
        ),
    )
