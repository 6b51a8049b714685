"""Filters on the properties of messages: a receiver gets only the messages that match them.

    amqp:properties-filter              0x173   a map: a field of the properties, its expected value
    amqp:application-properties-filter  0x174   a map: an application property, its expected value
    amqp:sql-filter                     0x120   a text: a condition (``selectors``)

1. A message matches if all fields of all filters have the expected values. The text ``&p:ABC`` means any text that
   begins with ABC, ``&s:ABC`` any text that ends with ABC, and ``&&ABC`` the text &ABC. Null means any value, but an
   application property has to exist.
2. A filter looks at the value that the receiver would see: the original one if an AMQP 1.0 client sent the message,
   otherwise the one that is converted from the properties of the message (docs/amqp10.md).
3. These are refused, so that a client that wants some messages never gets all: an SQL filter together with filters of
   properties, more than `FIELDS_MAX` fields of a section, more than `LENGTH_MAX` characters, an unknown field, and a
   value of the wrong type for its field.
4. The decision for a message also holds for the next one with the same properties, unless the condition depends on the
   time.

Source: AMQP Filter Expressions 1.0, committee draft 01, sections 4 and 6; RabbitMQ, "Stream Filtering".
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be
from mypy_extensions import i64

from warren.amqp10.error_conditions import INVALID_FIELD, LinkError
from warren.amqp10.expressions import same
from warren.amqp10.message_view import (
    ABSOLUTE_EXPIRY_TIME,
    CORRELATION_ID,
    CREATION_TIME,
    GROUP_SEQUENCE,
    MESSAGE_ID,
    PROPERTY_NAMES,
    USER_ID,
    MessageView,
)
from warren.amqp10.selectors import LENGTH_MAX, Selector, selector_of
from warren.amqp10.values import Array, Decimal, Described
from warren.channels.prepared_publish import PROPERTIES_AT
from warren.msgstore.log.message import HEADER_AT, Message
from warren.queues.selection import COST_UNIT, Selection

FIELDS_MAX: Final = 16
# Only properties up to this size are kept, to compare those of the next message with them.
KEPT_BYTES: Final = 1024

PROPERTIES_FILTER: Final = "amqp:properties-filter"
APPLICATION_FILTER: Final = "amqp:application-properties-filter"
SQL_FILTER: Final = "amqp:sql-filter"
_CODES: Final[dict[int, str]] = {0x173: PROPERTIES_FILTER, 0x174: APPLICATION_FILTER, 0x120: SQL_FILTER}
_RABBITMQ: Final = "rabbitmq:stream-"
_NAMES: Final = frozenset((PROPERTIES_FILTER, APPLICATION_FILTER, SQL_FILTER))
# The capabilities of the node that attach lists.
CAPABILITIES: Final = ("AMQP_FILTEX_PROP_V1_0", "AMQP_FILTEX_SQL_V1_0")

_PLACES: Final[dict[str, int]] = {name: at for at, name in enumerate(PROPERTY_NAMES)}

# How a value is compared.
_ANY: Final = 0
_EXACTLY: Final = 1
_PREFIX: Final = 2
_SUFFIX: Final = 3


def kind_of(name: object, given: object) -> str:
    """Return the kind of a filter: its descriptor, if that is known, else its name."""
    if isinstance(given, Described):
        descriptor = given.descriptor
        if isinstance(descriptor, str) and (descriptor in _NAMES or descriptor.startswith(_RABBITMQ)):
            return str(descriptor)
        if isinstance(descriptor, int) and descriptor in _CODES:
            return _CODES[descriptor]
    return str(name) if isinstance(name, str) else ""


def is_expression(kind: str) -> bool:
    """Tell whether a filter of this kind looks at messages."""
    return kind in _NAMES


class Reference:
    """The condition on one field."""

    def __init__(self, value: object) -> None:
        self._how: int = _EXACTLY
        self._value = value
        if value is None:
            self._how = _ANY
        elif isinstance(value, str) and value.startswith("&"):
            modifier = value[1:3]
            if modifier == "p:":
                self._how = _PREFIX
                self._value = value[3:]
            elif modifier == "s:":
                self._how = _SUFFIX
                self._value = value[3:]
            elif modifier.startswith("&"):
                self._value = value[1:]
            else:
                raise _refused("after & a text must continue with p:, s: or &")

    def matches(self, found: object) -> bool:
        """Tell whether a value meets the condition. `found` is None if the message does not have the field."""
        if self._how == _ANY:
            return True
        if found is None:
            return False
        wanted = self._value
        if self._how == _EXACTLY:
            return same(wanted, found)
        if isinstance(wanted, str):
            if isinstance(found, bytes):
                raw = wanted.encode("utf-8", "surrogateescape")
                return found.startswith(raw) if self._how == _PREFIX else found.endswith(raw)
            if isinstance(found, str):
                return found.startswith(wanted) if self._how == _PREFIX else found.endswith(wanted)
        return False


class Expressions(Selection):
    """The filters of a receiver; at least one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.size: int = 0  # of conditions, names and texts, in characters
        self._fields: list[tuple[int, Reference]] = []
        self._application: list[tuple[str, Reference]] = []
        self._selector: Selector | None = None
        self._uses_time: bool = False
        # The last decision, and its properties.
        self._properties = b""
        self._is_met: bool = False

    def add(self, kind: str, given: object) -> None:
        """Add a filter.

        Raises:
            LinkError: it is invalid, or cannot be combined with the others.
        """
        value = given.value if isinstance(given, Described) else given
        if kind == SQL_FILTER:
            if self._selector is not None:
                raise _refused("more than one SQL filter")
            if not isinstance(value, str):
                raise _refused("an SQL filter must be a string")
            self._selector = selector_of(str(value))
            self.size += len(value)
            self._uses_time = self._selector.uses_time
        else:
            if not isinstance(value, dict) or not value:
                raise _refused(f"{kind} must be a map of fields that is not empty")
            for name, wanted in value.items():
                if not isinstance(name, str):
                    raise _refused(f"{kind} has a field whose name is not a text")
                self.size += len(name) + (len(wanted) if isinstance(wanted, str | bytes) else 0)
                if self.size > LENGTH_MAX:
                    raise _refused(f"the fields and their values have more than {LENGTH_MAX} characters")
                if kind == PROPERTIES_FILTER:
                    self._add_field(str(name), wanted)
                else:
                    self._add_application(str(name), wanted)
        if self._selector is not None and (self._fields or self._application):
            raise _refused("SQL filters and filters of properties exclude each other")

    def _add_field(self, name: str, wanted: object) -> None:
        at = _PLACES.get(name, -1)
        if at < 0:
            raise _refused(f"properties do not have the field {name[:40]!r}")
        if len(self._fields) == FIELDS_MAX:
            raise _refused(f"more than {FIELDS_MAX} fields of a section")
        self._fields.append((at, Reference(None if wanted is None else _property_value(at, name, wanted))))

    def _add_application(self, name: str, wanted: object) -> None:
        if isinstance(wanted, list | dict | Array | Described | Decimal):
            raise _refused(f"the application property {name[:40]!r} needs a number, text, binary or time")
        if len(self._application) == FIELDS_MAX:
            raise _refused(f"more than {FIELDS_MAX} fields of a section")
        self._application.append((name, Reference(wanted)))

    def passes(self, message: Message, now_ms: i64) -> bool:
        content = message.header_frame()
        end: i64 = HEADER_AT + (i64(read_i32_be(content, 3)) & 0xFFFFFFFF)
        properties = content[HEADER_AT + PROPERTIES_AT : end]
        self.cost = 0
        if not self._uses_time and properties == self._properties:
            return self._is_met
        view = MessageView(content, HEADER_AT, end, now_ms)
        is_met = self._decide(view)
        self._properties = properties if len(properties) <= KEPT_BYTES else b""
        self._is_met = is_met
        self.cost = (view.steps + len(properties)) // COST_UNIT
        return is_met

    def _decide(self, view: MessageView) -> bool:
        selector = self._selector
        if selector is not None:
            return selector.matches(view)
        for at, reference in self._fields:
            view.steps += 1
            if not reference.matches(view.property(at)):
                return False
        for name, reference in self._application:
            view.steps += 1
            if not view.has_application_property(name) or not reference.matches(view.application_property(name)):
                return False
        return True


def _property_value(at: int, name: str, wanted: object) -> object:
    """Return the value of a field of the properties to compare.

    Raises:
        LinkError: it is not of the type of the field.
    """
    if at in (MESSAGE_ID, CORRELATION_ID):
        if isinstance(wanted, str) and wanted.startswith("&"):
            return str(wanted)
        if isinstance(wanted, str | bytes) or (isinstance(wanted, int) and not isinstance(wanted, bool)):
            return wanted
        raise _refused(f"{name} must be compared with a text, a binary, a UUID or a number")
    if at in (ABSOLUTE_EXPIRY_TIME, CREATION_TIME, GROUP_SEQUENCE):
        if isinstance(wanted, int) and not isinstance(wanted, bool):
            return int(wanted)
        raise _refused(f"{name} must be compared with a {'number' if at == GROUP_SEQUENCE else 'timestamp'}")
    if at == USER_ID:
        if isinstance(wanted, bytes):
            return bytes(wanted)
        if isinstance(wanted, str):
            return str(wanted)
        raise _refused(f"{name} must be compared with a binary or a text")
    if isinstance(wanted, str):
        return str(wanted)
    raise _refused(f"{name} must be compared with a text")


def _refused(why: str) -> LinkError:
    return LinkError(INVALID_FIELD, f"a filter is invalid: {why}")
