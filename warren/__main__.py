"""The program: the broker, its plugins, and the `warren` command.

Here they meet; nothing else imports a plugin but the broker of a test suite (`warren.testing.life`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from warren.server import cli

if TYPE_CHECKING:
    from warren.server.management import Plugin
    from warren.spark_bridge.commands import BrokerLogin


def plugins() -> Sequence[Plugin]:
    """Return what runs beside the broker."""
    from warren.gateway.plugin import GatewayPlugin
    from warren.links.plugin import LinksPlugin
    from warren.mgmt_plugin.plugin import ManagementPlugin

    links = LinksPlugin()
    return (links, ManagementPlugin(links), GatewayPlugin())


def _connection(flags: Mapping[str, Any]) -> BrokerLogin:
    """Return where the broker is and who asks, by the flags, variables and profiles of `warren ctl`."""
    import os

    from warren.ctl import config
    from warren.ctl.exit_codes import CtlError
    from warren.spark_bridge.bridge_errors import UsageError
    from warren.spark_bridge.commands import BrokerLogin

    try:
        values = config.gather(flags, os.environ)
        target = config.target(values)
    except CtlError as error:
        raise UsageError(error.reason) from None
    return BrokerLogin(
        url=target.url,
        username=target.username,
        password=target.password,
        vhost=str(values.get("vhost", config.DEFAULT_VHOST)),
        cacert=None if target.cacert is None else str(target.cacert),
        insecure=target.insecure,
        timeout_s=target.timeout_s,
    )


def _bridge(name: str, arguments: Sequence[str]) -> int:
    from warren.spark_bridge import commands

    return commands.main(name, arguments, _connection)


def _lake(arguments: Sequence[str]) -> int:
    from warren.lake import commands

    return commands.main(arguments, _connection)


def _sql(arguments: Sequence[str]) -> int:
    from warren.lake import sql_commands

    return sql_commands.main(arguments, _connection)


def main() -> None:
    """Run the `warren` command."""
    others = (
        cli.OtherCommand(
            "export", "Export a queue or a stream to files (warren export --help).", partial(_bridge, "export")
        ),
        cli.OtherCommand("import", "Publish what was exported (warren import --help).", partial(_bridge, "import")),
        cli.OtherCommand("lake", "Let tables follow streams and queues (warren lake --help).", _lake),
        cli.OtherCommand("sql", "Ask streams and tables by SQL (warren sql --help).", _sql),
    )
    cli.main(plugins, others)


if __name__ == "__main__":
    main()
