"""The broker under test: a Warren started for the session, or any running broker named by a URL.

Owns what tests may know about the broker; the process itself is `broker_process`'s.

1. Without WARREN_TEST_AMQP_URL one Warren runs for the whole session, on free loopback ports, with its own data.
2. With it the suite starts nothing and leaves nothing behind but what its clients forget to delete.
3. Differences between versions are decided by the announced server-properties, never by the starter of the broker.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pika
from broker_process import WarrenProcess
from broker_process import wait_until as wait_briefly

__all__ = [
    "DEADLINE_S",
    "URL_VARIABLE",
    "Broker",
    "WarrenProcess",
    "broker_from_url",
    "in_ci",
    "wait_until",
]

URL_VARIABLE = "WARREN_TEST_AMQP_URL"
# Generous: other suites and RabbitMQ itself may have the processors while a client waits.
DEADLINE_S = 60.0
POLL_S = 0.02


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Poll `condition` until it holds; fail naming `what` when the deadline passes."""
    wait_briefly(condition, what, deadline_s)


def in_ci() -> bool:
    """Tell whether a missing tool is a failure (CI=true) rather than a reason to skip."""
    return os.environ.get("CI", "").lower() in {"1", "true", "yes"}


@dataclass(frozen=True)
class Broker:
    """Where the broker under test listens, how to log in, and what it says of itself."""

    host: str
    port: int
    username: str
    password: str
    vhost: str
    started_here: bool
    server_properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The AMQP URL with an explicit, percent-encoded vhost."""
        quoted = (urllib.parse.quote(part, safe="") for part in (self.username, self.password, self.vhost))
        username, password, vhost = quoted
        return f"amqp://{username}:{password}@{self.host}:{self.port}/{vhost}"

    def parameters(self, **changes: Any) -> pika.ConnectionParameters:
        """Return pika connection parameters; keyword arguments replace single ones."""
        credentials = pika.PlainCredentials(self.username, self.password)
        settings: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "virtual_host": self.vhost,
            "credentials": credentials,
            "heartbeat": 0,
            "blocked_connection_timeout": DEADLINE_S,
        }
        return pika.ConnectionParameters(**(settings | changes))

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor of the RabbitMQ version announced in server-properties."""
        numbers = re.match(r"(\d+)\.(\d+)", str(self.server_properties.get("version", "")))
        assert numbers is not None, f"no version in server-properties {self.server_properties!r}"
        return int(numbers[1]), int(numbers[2])

    def older_than(self, major: int, minor: int) -> bool:
        """Tell whether the announced version precedes `major.minor` (reference section 1.17)."""
        return self.version < (major, minor)

    @property
    def is_warren(self) -> bool:
        """Tell whether a Warren answers, whatever version of RabbitMQ it announces."""
        return "warren_version" in self.server_properties

    def behaves_like(self, major: int, minor: int) -> bool:
        """Tell whether to expect what RabbitMQ `major.minor` brought: of that version on, and of Warren."""
        return self.is_warren or not self.older_than(major, minor)

    def queue(self, name: str) -> str:
        """Return how error texts name a queue of the vhost under test."""
        return f"queue '{name}' in vhost '{self.vhost}'"

    def exchange(self, name: str) -> str:
        """Return how error texts name an exchange of the vhost under test."""
        return f"exchange '{name}' in vhost '{self.vhost}'"


def broker_from_url(url: str) -> Broker:
    """Parse WARREN_TEST_AMQP_URL; an absent vhost means "/"."""
    parts = urllib.parse.urlsplit(url)
    vhost = urllib.parse.unquote(parts.path[1:]) or "/"
    return Broker(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 5672,
        username=urllib.parse.unquote(parts.username or "guest"),
        password=urllib.parse.unquote(parts.password or "guest"),
        vhost=vhost,
        started_here=False,
    )
