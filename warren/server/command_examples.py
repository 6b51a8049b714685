"""Examples for the help of the commands of `warren`; those of `warren ctl` are in `warren/ctl/examples.py`."""

from __future__ import annotations

from typing import Any, Final

from warren.ctl.help_pages import finish

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "": ("warren serve --data-dir ./data", "warren ctl status", "warren perf --confirms 100 --duration 5"),
    "serve": (
        "warren serve --data-dir ./data",
        "warren serve --amqp 127.0.0.1:5673 --http 127.0.0.1:15673 --prometheus off",
        "warren serve --config /etc/warren/warren.toml --mqtt 0.0.0.0:1883",
    ),
    "config": ("warren config", "warren config --config /etc/warren/warren.toml --json"),
    "config example": ("warren config example > warren.toml",),
    "config import-rabbitmq": ("warren config import-rabbitmq /etc/rabbitmq/rabbitmq.conf --lenient > warren.toml",),
    "hash-password": ("warren hash-password", "warren hash-password --algorithm sha256 < password"),
    "store": (
        "warren store verify --data-dir /var/lib/warren",
        "warren store restore /srv/backups/orders --data-dir /var/lib/warren",
    ),
    "store inspect": ("warren store inspect --data-dir ./data", "warren store inspect --data-dir ./data --lsn 496"),
    "store verify": ("warren store verify --data-dir ./data",),
    "store dump-queue": ("warren store dump-queue --data-dir ./data --vhost shop --queue orders",),
    "store export": ("warren store export --data-dir ./data --output messages.jsonl",),
    "store repair": ("warren store repair --data-dir ./copy", "warren store repair --data-dir ./copy --apply"),
    "store backups": ("warren store backups /srv/backups/orders --verify",),
    "store restore": (
        "warren store restore /srv/backups/orders --data-dir ./new",
        "warren store restore /srv/backups/orders --data-dir ./new --until-time 2026-11-23T21:45:00",
    ),
    "perf": (
        "warren perf",
        "warren perf --uri amqp://guest:guest@broker.example:5672 --durable --persistent --confirms 100 --ack",
        "warren perf rpc --duration 5",
        "warren perf --protocol mqtt --confirms 10 --json",
    ),
}


def finish_all(command: Any, path: str = "") -> None:
    """Add the examples to a command and to all below it; those of `warren ctl` see to themselves."""
    finish(command, EXAMPLES.get(path, ()))
    for name, below in getattr(command, "commands", {}).items():
        if below is not None and name != "ctl":
            finish_all(below, f"{path} {name}".strip())
