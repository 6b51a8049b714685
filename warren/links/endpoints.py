"""Opening the two ends of a link: URIs tried in turn, this broker as its internal user."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import trio

from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import NOT_FOUND
from warren.amqp.field_table import EMPTY_TABLE
from warren.amqp.numbers import count_of
from warren.amqp_client.client_errors import BrokerError, PeerClosed
from warren.amqp_client.redaction import redact_uri
from warren.links.amqp_client import ClientSettings, LinkConnection, LinkError, connect
from warren.links.amqp_uri import BrokerUri, UriError, parse_uri
from warren.links.host import Host
from warren.links.starts import Ends

SHORT_MAX: Final = 0xFFFF


def parse_uris(value: object, default_vhost: str) -> tuple[BrokerUri, ...]:
    """Parse a validated ``uri`` of a parameter: one, or a list.

    Raises:
        LinkError: it is not valid after all, or the list is empty.
    """
    texts = value if isinstance(value, list) else [value]
    parsed = []
    for text in texts:
        if not isinstance(text, str):
            raise LinkError("a URI is not a string")
        try:
            parsed.append(parse_uri(text, default_vhost))
        except UriError as error:
            raise LinkError(f'"{redact_uri(text)}" not a valid URI: {error}') from None
    if not parsed:
        raise LinkError("no URI is set")
    return tuple(parsed)


class Endpoints:
    """Opens connections for the links of one broker."""

    def __init__(self, host: Host, settings: ClientSettings) -> None:
        self.host = host
        self._settings = settings
        self._ends = Ends()

    async def open(
        self, nursery: trio.Nursery, vhost: str, uris: Sequence[BrokerUri], name: str
    ) -> tuple[LinkConnection, BrokerUri]:
        """Connect a link of `vhost` to the first of `uris` that can be reached; return the connection and its URI.

        Raises:
            BrokerError: all of them fail; the text is that of the last one, or of all.
        """
        problems: list[BrokerError] = []
        for uri in uris:
            try:
                return await self._connect(nursery, vhost, uri, name), uri
            except BrokerError as error:
                problems.append(error.fresh())
        if len(problems) == 1:
            raise problems[0].fresh()
        raise LinkError("; ".join(dict.fromkeys(map(str, problems))))

    async def open_local(self, nursery: trio.Nursery, vhost: str, name: str) -> LinkConnection:
        """Connect to `vhost` of this broker as its internal user."""
        uri = BrokerUri(tls=False, host="", port=0, vhost=vhost, shown="amqp://")
        return await self._connect(nursery, vhost, uri, name)

    async def _connect(self, nursery: trio.Nursery, vhost: str, uri: BrokerUri, name: str) -> LinkConnection:
        if not uri.is_local:
            return await connect(nursery, uri, self._settings, name, ends=self._ends, vhost=vhost)
        if uri.user is None:
            user, password = self.host.local_login()
            uri = dataclasses.replace(uri, user=user, password=password)
        return await connect(nursery, uri, self._settings, name, self.host.open_local, self._ends)


async def ensure_queue(
    connection: LinkConnection, queue: str, arguments: bytes = EMPTY_TABLE, *, create: bool = True
) -> int:
    """Make sure that a queue exists, whatever its properties; create a durable one if not. Return its length.

    Raises:
        BrokerError: it cannot be looked at or created.
    """
    probe = await connection.open_channel()
    try:
        return (await probe.look_at_queue(queue)).message_count
    except PeerClosed as error:
        if error.reply_code != NOT_FOUND or error.scope != "channel" or not create:
            raise
    maker = await connection.open_channel()
    return (await maker.declare_queue(QueueDeclaration(queue, durable=True, arguments=arguments))).message_count


def prefetch(value: object, default: int = 1000) -> int:
    """Return a prefetch-count as the protocol takes it; 0 is no limit."""
    return count_of(value, default, high=SHORT_MAX)
