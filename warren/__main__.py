"""The program: the broker, its plugins, and the `warren` command. Here they meet; nothing else imports a plugin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from warren.server import cli

if TYPE_CHECKING:
    from warren.server.management import Plugin


def plugins() -> Sequence[Plugin]:
    """Return what runs beside the broker."""
    from warren.links.plugin import LinksPlugin
    from warren.mgmt_plugin.plugin import ManagementPlugin

    links = LinksPlugin()
    return (links, ManagementPlugin(links))


def main() -> None:
    """Run the `warren` command."""
    cli.main(plugins)


if __name__ == "__main__":
    main()
