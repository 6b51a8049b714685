"""A publish of a protocol whose messages are not frames: the parts shared by all messages with the same head.

The publishing session keeps it by the bytes of the head: so each head is routed and its properties encoded only once.
A large body is not copied: its parts are pieces of the message.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.methods import BASIC_CLASS_ID, FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_OVERHEAD_BYTES
from warren.channels.route_cache import Route
from warren.channels.session import Session
from warren.msgstore.log.message import HEADER_AT, write_frame_head
from warren.queues.content_frames import LARGE_MIN_BYTES

NUMBER: Final = 1  # of the only session of most such peers, as a channel has one
PROPERTIES_AT: Final = 12  # in a content header payload: flag word and values
_END: Final = bytes([FRAME_END])


class PreparedPublish:
    """Where messages go, and their properties: `properties` as `BasicProperties.encode` returns them.

    `number`: of the session that publishes. `mandatory`: unroutable messages are returned to it.
    """

    def __init__(
        self, exchange: str, routing_key: str, properties: bytes, *, number: i64 = NUMBER, mandatory: bool = False
    ) -> None:
        published = method_frame(int(number), m.BasicPublish(0, exchange, routing_key, mandatory, False))
        out = BytesWriter()
        write_frame_head(out, FRAME_HEADER, number, PROPERTIES_AT + len(properties))
        self._number: i64 = number
        write_i32_be(out, BASIC_CLASS_ID << 16)  # and a weight of 0
        self.arguments = published[HEADER_AT + 4 : -1]  # of basic.publish
        self.head = out.getvalue()  # of the content header frame, up to the body size
        self.tail = properties + _END  # after the properties, the end of the frame
        self.route: Route | None = None
        self.version: i64 = -1  # of the topology, when the route was found

    def find_route(self, session: Session) -> Route:
        """Return where messages go now.

        Raises:
            AmqpError: they may not be published, or there is no such exchange.
        """
        vhost = session.peer.vhost
        assert vhost is not None
        route = self.route
        if route is None or self.version != vhost.topology_version or not route.cacheable:
            route = session.find_route(self.arguments)
            self.route = route
            self.version = vhost.topology_version
        return route

    def publish(self, session: Session, body: bytes) -> None:
        """Publish `body` on `session`.

        Raises:
            AmqpError: it may not be published.
        """
        size: i64 = len(body)
        if size >= LARGE_MIN_BYTES:
            self.publish_parts(session, [body])
            return
        session.route = self.find_route(session)
        out = BytesWriter()
        out.write(self.head)
        write_i64_be(out, size)
        out.write(self.tail)
        header_end: i64 = len(out)
        largest: i64 = header_end
        if size > 0:
            write_frame_head(out, FRAME_BODY, self._number, size)
            out.write(body)
            out.append(FRAME_END)
            if size + FRAME_OVERHEAD_BYTES > largest:
                largest = size + FRAME_OVERHEAD_BYTES
        content = out.getvalue()
        session.complete(content, None, content, 0, header_end, size, largest)

    def publish_parts(self, session: Session, parts: list[bytes]) -> None:
        """Publish a body that consists of `parts`, as `publish` does. They are not copied if it is large."""
        size: i64 = 0
        for part in parts:
            size += len(part)
        if size < LARGE_MIN_BYTES:
            self.publish(session, b"".join(parts))
            return
        session.route = self.find_route(session)
        out = BytesWriter()
        out.write(self.head)
        write_i64_be(out, size)
        out.write(self.tail)
        header = out.getvalue()
        out.truncate(0)
        write_frame_head(out, FRAME_BODY, self._number, size)
        pieces = [header, out.getvalue(), *parts, _END]
        session.complete(b"", pieces, header, 0, len(header), size, size + FRAME_OVERHEAD_BYTES)
