"""The node `/management`: requests and responses of HTTP as messages, on a pair of links with the same name.

    GET     /queues/Q                200  the state of a queue
    PUT     /queues/Q                201  declared, 200 it existed before and is equivalent
    DELETE  /queues/Q                200  with the number of messages
    DELETE  /queues/Q/messages       200  purged, with their number
    PUT     /exchanges/X             204
    DELETE  /exchanges/X             204
    POST    /bindings                204
    GET     /bindings?src=&dstq=&key=    200  a list; dste= for an exchange
    DELETE  /bindings/src=;dstq=;key=;args=    204

A request has its method in `subject`, its path in `to`, and a map as body where it needs one. A response has the status
in `subject` and the request's `message-id` as `correlation-id`.

1. Requests are answered in order, one at a time, and not before their changes are durable.
2. An error in a request is answered with a status (400, 403, 404, 409, 501) and a text; the links stay.
3. Numbers in arguments keep their type, in stored tables and in lists of bindings. To remove a binding, a client looks
   in the list for the arguments that it gave, and an int does not equal a long.
4. At most `RESPONSES_MAX` responses wait for credit. When they have `RESPONSES_MAX_BYTES`, no other one may wait. A
   list has at most about as many bytes.

Source: RabbitMQ, ``rabbit_amqp_management.erl``; OASIS "HTTP over AMQP" and "Link pairing".
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.errors import (
    ACCESS_REFUSED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    AmqpError,
)
from warren.amqp.field_table import EMPTY_TABLE, TableWalker, encode_table, with_length
from warren.amqp10.addresses import quoted, unquoted
from warren.amqp10.conversion import (
    APPLICATION_PROPERTIES,
    DATA,
    PROPERTIES,
    VALUE,
    Sections,
    from_field,
    table_of,
)
from warren.amqp10.error_conditions import LIMIT_EXCEEDED, MESSAGE_SIZE, LinkError, SessionError
from warren.amqp10.links import HEAD_BYTES, ReceivingLink, SendingLink
from warren.amqp10.performatives import ACCEPTED, Head, described
from warren.amqp10.values import (
    Array,
    Byte,
    Described,
    Int,
    Reader,
    Short,
    UByte,
    UInt,
    ULong,
    UShort,
    value_end,
    write_value,
)
from warren.channels.access import READ, WRITE
from warren.channels.topology import run_topology
from warren.exchanges.binding import Binding
from warren.exchanges.exchange import Exchange
from warren.queues.base_queue import BaseQueue

if TYPE_CHECKING:
    from warren.amqp10.session import Amqp10Session

RESPONSES_MAX: Final = 64
RESPONSES_MAX_BYTES: Final = 1 << 20
LOOKS_MAX: Final = 10_000  # how many bindings a request may look at
LISTED_BYTES: Final = 100  # the least size of a binding in a list
_OK: Final = "200"
_CREATED: Final = "201"
_NO_CONTENT: Final = "204"
_BAD: Final = "400"
_STATUS: Final = {
    ACCESS_REFUSED: "403",
    NOT_FOUND: "404",
    RESOURCE_LOCKED: "409",
    PRECONDITION_FAILED: "409",
    NOT_IMPLEMENTED: _BAD,
}
# The tag in a table of 0-9-1, the size of the payload in bytes, and whether it has a sign.
_NUMBERS: Final[dict[type[object], tuple[bytes, int, bool]]] = {
    Byte: (b"b", 1, True),
    UByte: (b"B", 1, False),
    Short: (b"s", 2, True),
    UShort: (b"u", 2, False),
    Int: (b"I", 4, True),
    UInt: (b"i", 4, False),
    int: (b"l", 8, True),
}
_TAGGED: Final[dict[int, Any]] = {form[0][0]: number for number, form in _NUMBERS.items()}


class _Refused(Exception):
    """A request cannot be carried out: `status` and why."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class Request:
    """One request. `body`: its value, None without."""

    def __init__(self, link: str, identifier: object, method: str, path: str, body: object) -> None:
        self.link = link
        self.identifier = identifier
        self.method = method
        self.path = path
        self.body = body

    def table(self) -> dict[object, object]:
        """Return the body, a map.

        Raises:
            _Refused: the body is not a map.
        """
        body = self.body
        if isinstance(body, dict):
            return body
        raise _Refused(_BAD, "the body is not a map")


class Management:
    """The requests of one session."""

    def __init__(self, session: Amqp10Session) -> None:
        self._session = session
        self._under_way: deque[tuple[Request, str]] = deque()  # requests whose commands run, and status of success

    def take(self, link: ReceivingLink, delivery_id: i64, settled: bool, data: bytes, start: i64, end: i64) -> None:
        """Take a delivery on the link of a pair: a request in ``data[start:end]``.

        Raises:
            AmqpError: it is too large or malformed, or there are too many.
        """
        session = self._session
        if end - start > HEAD_BYTES:
            raise LinkError(MESSAGE_SIZE, f"a request of more than {HEAD_BYTES} bytes")
        session.amqp10.count_command()
        if not settled:
            session.write_state(delivery_id, described(ACCEPTED, []))
        session.top_up(link)
        waiting = [len(payload) for each in self._sending_links() for payload in each.responses]
        if len(waiting) >= RESPONSES_MAX:
            raise SessionError(LIMIT_EXCEEDED, f"more than {RESPONSES_MAX} responses wait for credit")
        if sum(waiting) >= RESPONSES_MAX_BYTES:
            raise SessionError(LIMIT_EXCEEDED, f"responses of {RESPONSES_MAX_BYTES} bytes or more wait for credit")
        self._request(_read(link.name, data[start:end]))

    def _sending_links(self) -> list[SendingLink]:
        return [link for link in self._session.links.values() if isinstance(link, SendingLink)]

    def respond(self, name: str, payload: bytes) -> None:
        """Send a response on the link of a pair that is called `name`, or the only one."""
        wanted: SendingLink | None = None
        for link in self._sending_links():
            if link.is_management and not link.is_gone:
                if link.name == name:
                    wanted = link
                    break
                wanted = link
        if wanted is not None:
            wanted.responses.append(payload)
            self.send_responses(wanted)

    def send_responses(self, link: SendingLink) -> None:
        """Send the responses that wait on `link`, as far as it has credit."""
        transfers = self._session.transfers
        while link.responses and link.credit > 0 and not transfers.is_shut:
            link.credit -= 1
            transfers.send_own(link.handle, link.responses.popleft())

    def _request(self, request: Request) -> None:
        try:
            self._carry_out(request)
        except _Refused as refused:
            self._tell(request, refused.status, refused.why)
        except LinkError as error:
            self._tell(request, _BAD, error.explanation)
        except AmqpError as error:  # even one that would close a connection of 0-9-1, as for the purge of a stream
            self._tell(request, _STATUS.get(error.reply_code, _BAD), error.explanation)

    def _tell(self, request: Request, status: str, why: str) -> None:
        self._under_way.clear()
        self._respond(request, status, why, 0, 0)

    def done(self, method: Any, ticket: int, batch: int) -> None:
        """Respond to a request: its command has a result."""
        if not self._under_way:
            return
        request, status = self._under_way.popleft()
        body: object = None
        if isinstance(method, m.QueueDeleteOk | m.QueuePurgeOk):
            body = {"message_count": ULong(method.message_count)}
        elif isinstance(method, m.QueueDeclareOk):
            queue = self._session.vhost.queues.get(method.queue)
            body = None if queue is None else self._describe(queue)
        self._respond(request, status, body, ticket, batch)

    def _respond(self, request: Request, status: str, body: object, ticket: int, batch: int) -> None:
        out = BytesWriter()
        fields: list[object] = [None, None, None, status, None, request.identifier]
        write_value(out, Described(ULong(PROPERTIES), fields))
        write_value(out, Described(ULong(APPLICATION_PROPERTIES), {"http:response": "1.1"}))
        write_value(out, Described(ULong(VALUE), body))
        self._session.amqp10.respond_when_durable(self._session, request.link, out.getvalue(), ticket, batch)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _carry_out(self, request: Request) -> None:
        path, _, query = request.path.partition("?")
        parts = path.split("/")[1:]
        method = request.method
        if len(parts) == 2 and parts[0] == "queues":
            self._queue(request, unquoted(parts[1]))
        elif len(parts) == 3 and parts[0] == "queues" and parts[2] == "messages" and method == "DELETE":
            self._run(request, m.QueuePurge(0, _named(unquoted(parts[1])), False), _OK)
        elif len(parts) == 2 and parts[0] == "exchanges":
            self._exchange(request, unquoted(parts[1]))
        elif path == "/bindings" and method == "POST":
            self._bind(request)
        elif path == "/bindings" and method == "GET":
            self._list(request, _parameters(query, "&"))
        elif len(parts) == 2 and parts[0] == "bindings" and method == "DELETE":
            self._unbind(request, _parameters(parts[1], ";"))
        elif path == "/auth/tokens":
            raise _Refused("501", "tokens are not supported")
        else:
            raise _Refused("404", f"not supported: {method[:16]} {path[:128]}")

    def _run(self, request: Request, command: Any, status: str) -> None:
        self._under_way.append((request, status))
        run_topology(self._session, command)

    def _queue(self, request: Request, name: str) -> None:
        session = self._session
        if request.method == "PUT":
            body = request.table()
            arguments = _table(body, "arguments")
            # RabbitMQ 4 makes durable queues if a client does not choose.
            durable = _flag(body, "durable", absent=True)
            existed = name in session.vhost.queues
            declare = QueueDeclaration(
                name,
                durable=durable,
                exclusive=_flag(body, "exclusive"),
                auto_delete=_flag(body, "auto_delete"),
                arguments=_encoded(arguments),
            )
            self._run(request, declare, _OK if existed else _CREATED)
        elif request.method == "DELETE":
            _named(name)
            self._run(request, m.QueueDelete(0, name, False, False, False), _OK)
        elif request.method == "GET":
            session.authorize(READ, "queue", _named(name))
            self._respond(request, _OK, self._describe(session.vhost.queue(name, session.peer)), 0, 0)
        else:
            raise _Refused("405", f"queues do not support {request.method[:16]}")

    def _describe(self, queue: BaseQueue) -> dict[object, object]:
        node = self._session.peer.broker.node
        return {
            "name": queue.name,
            "vhost": queue.vhost_name,
            "durable": queue.durable,
            "exclusive": queue.owner is not None,
            "auto_delete": queue.auto_delete,
            "type": queue.rules.queue_type,
            "leader": node,
            "replicas": Array(0xB1, [node]),
            "message_count": ULong(int(queue.ready_count)),
            "consumer_count": UInt(len(queue.consumers)),
            "arguments": _shown(queue.arguments),
        }

    def _exchange(self, request: Request, name: str) -> None:
        if request.method == "PUT":
            body = request.table()
            kind = body.get("type", "direct")
            if not isinstance(kind, str):
                raise _Refused(_BAD, "the type of an exchange is not a text")
            arguments = _table(body, "arguments")
            declare = ExchangeDeclaration(
                name,
                kind,
                durable=_flag(body, "durable", absent=True),
                auto_delete=_flag(body, "auto_delete"),
                internal=_flag(body, "internal"),
                arguments=_encoded(arguments),
            )
            self._run(request, declare, _NO_CONTENT)
        elif request.method == "DELETE":
            self._run(request, m.ExchangeDelete(0, name, False, False), _NO_CONTENT)
        else:
            raise _Refused("405", f"exchanges do not support {request.method[:16]}")

    def _bind(self, request: Request) -> None:
        body = request.table()
        source = _text(body, "source")
        key = _text(body, "binding_key")
        arguments = _table(body, "arguments")
        encoded = _encoded(arguments)
        if "destination_queue" in body:
            queue = _named(_text(body, "destination_queue"))
            self._run(request, m.QueueBind(0, queue, source, key, False, encoded), _NO_CONTENT)
        else:
            exchange = _text(body, "destination_exchange")
            self._run(request, m.ExchangeBind(0, exchange, source, key, False, encoded), _NO_CONTENT)

    def _unbind(self, request: Request, given: dict[str, str]) -> None:
        source = _parameter(given, "src")
        key = _parameter(given, "key")
        encoded = EMPTY_TABLE
        if given.get("args"):
            # The list of bindings has a key for arguments, which stands for them here.
            wanted = _marked(given["args"])
            for binding in self._matching(given):
                if binding.arguments == wanted:
                    encoded = binding.arguments
                    break
            else:
                raise _Refused("404", "there is no binding with such arguments")
        if "dstq" in given:
            queue = _named(given["dstq"])
            self._run(request, m.QueueUnbind(0, queue, source, key, encoded), _NO_CONTENT)
        else:
            self._run(request, m.ExchangeUnbind(0, _parameter(given, "dste"), source, key, False, encoded), _NO_CONTENT)

    def _matching(self, given: dict[str, str]) -> list[Binding]:
        """Return bindings from one place to another with one key."""
        session = self._session
        source = session.vhost.exchanges.get(_parameter(given, "src"))
        key = _parameter(given, "key")
        if "dstq" in given:
            name = given["dstq"]
            destination: BaseQueue | Exchange | None = session.vhost.queues.get(name)
        else:
            name = _parameter(given, "dste")
            destination = session.vhost.exchanges.get(name)
        if source is None or destination is None:
            return []
        session.authorize(READ, "exchange", source.name)
        session.authorize(WRITE, "queue" if "dstq" in given else "exchange", name)
        found: list[Binding] = []
        looks = 0
        binding = source.by_destination.get(destination)
        while binding is not None:
            looks += 1
            if looks > LOOKS_MAX:
                raise _Refused(_BAD, f"more than {LOOKS_MAX} bindings between the two: list them over HTTP")
            if binding.routing_key == key:
                found.append(binding)
            binding = binding.next_to_destination
        session.peer.units_left -= looks
        return found

    def _list(self, request: Request, given: dict[str, str]) -> None:
        listed: list[object] = []
        size = 0
        for binding in self._matching(given):
            # Arguments are shown twice, once as digits.
            size += 3 * len(binding.arguments) + LISTED_BYTES
            if size > RESPONSES_MAX_BYTES:
                text = f"these bindings are {RESPONSES_MAX_BYTES} bytes or more: list them over HTTP"
                raise _Refused(_BAD, text)
            place = "dstq" if "dstq" in given else "dste"
            shown: dict[object, object] = {
                "source": binding.source.name,
                "binding_key": binding.routing_key,
                "arguments": _shown(binding.arguments),
                "location": f"/bindings/src={quoted(binding.source.name)};{place}={quoted(binding.destination.name)};"
                f"key={quoted(binding.routing_key)};args={_mark(binding)}",
            }
            shown["destination_queue" if place == "dstq" else "destination_exchange"] = binding.destination.name
            listed.append(shown)
        self._respond(request, _OK, listed, 0, 0)


def _mark(binding: Binding) -> str:
    """Return the key for the arguments of a binding in its path, empty without any."""
    return "" if binding.arguments == EMPTY_TABLE else binding.arguments.hex()


def _marked(mark: str) -> bytes:
    """Return the arguments that `mark` stands for, ``b""`` when it is not valid."""
    try:
        return bytes.fromhex(mark)
    except ValueError:
        return b""


def _encoded(arguments: dict[object, object]) -> bytes:
    """Return arguments of an object as a table of 0-9-1."""
    entries: list[bytes] = []
    for name, value in arguments.items():
        entry = encode_table(table_of({name: value}))[4:]
        number = _NUMBERS.get(type(value))  # first: after a check for int, compiled code no longer knows the class
        if number is not None and entry and isinstance(value, int):
            tag, size, signed = number
            entry = entry[: 1 + entry[0]] + tag + value.to_bytes(size, "big", signed=signed)
        entries.append(entry)
    return with_length(b"".join(entries))


def _shown(encoded: bytes) -> dict[object, object]:
    """Return arguments of a queue or binding that are simple values."""
    found: dict[object, object] = {}
    walker = TableWalker(encoded, 4, len(encoded))
    while walker.pos < walker.end:
        name = walker.key()
        number = _TAGGED.get(int(encoded[walker.pos]))
        value = walker.value(1)
        if number is not None and isinstance(value, int):
            found[name] = number(value)
        elif isinstance(value, bool | str | int | float | bytes):
            found[name] = from_field(value)
    return found


def _read(link: str, data: bytes) -> Request:
    """Return the request that a message is.

    Raises:
        AmqpError: it is not a request.
    """
    # Unlike other messages, a request may have no body. Proton puts an empty body before the properties.
    head = Head()
    pos: i64 = 0
    end: i64 = len(data)
    value: object = None
    while pos < end:
        head.read(data, pos, end)
        pos = value_end(data, head.pos, end)
        if head.code == DATA or head.code == VALUE:
            value = Reader(data, head.pos, pos).value()
    sections = Sections()
    sections.read(data)
    return Request(
        link, sections.fields[0] if sections.fields else None, sections.subject or "", sections.to or "", value
    )


def _named(name: str) -> str:
    if name == "":
        raise _Refused(_BAD, "a queue without a name")
    return name


def _flag(body: dict[object, object], name: str, *, absent: bool = False) -> bool:
    value = body.get(name, absent)
    if isinstance(value, bool):
        return value
    raise _Refused(_BAD, f"'{name}' is neither true nor false")


def _text(body: dict[object, object], name: str) -> str:
    value = body.get(name)
    if isinstance(value, str) and len(value.encode()) <= 255:
        return str(value)
    raise _Refused(_BAD, f"'{name}' is not a text of at most 255 bytes")


def _table(body: dict[object, object], name: str) -> dict[object, object]:
    value = body.get(name)
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    raise _Refused(_BAD, f"'{name}' is not a map")


def _parameters(text: str, separator: str) -> dict[str, str]:
    if separator == "&":
        text = text.replace("+", " ")  # in a query, as forms encode it: Java's URLEncoder, .NET's HttpUtility
    found: dict[str, str] = {}
    for part in text.split(separator):
        name, _, value = part.partition("=")
        found[name] = value if name == "args" else unquoted(value)
    return found


def _parameter(given: dict[str, str], name: str) -> str:
    value = given.get(name)
    if value is None:
        raise _Refused(_BAD, f"'{name}' is missing")
    return value
