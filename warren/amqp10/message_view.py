"""A stored message as a client of AMQP 1.0 would see it: priority, properties and application properties.

Filters look at it. Properties are decoded once, headers only when a filter asks for a value that may be there.
``steps`` counts the cost of looking: see `STEPS_MAX`.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.amqp.properties import BasicProperties, decode_properties
from warren.amqp10.originals import Shown
from warren.amqp10.values import Array, Described

# Limit of the steps of a filter for one message. One comparison is a step, and so is a character that LIKE looks at. A
# message that needs more steps does not match.
STEPS_MAX: Final = 1 << 17

# The fields of the section `properties`, in their order.
PROPERTY_NAMES: Final = (
    "message-id",
    "user-id",
    "to",
    "subject",
    "reply-to",
    "correlation-id",
    "content-type",
    "content-encoding",
    "absolute-expiry-time",
    "creation-time",
    "group-id",
    "group-sequence",
    "reply-to-group-id",
)
MESSAGE_ID: Final = 0
USER_ID: Final = 1
CORRELATION_ID: Final = 5
ABSOLUTE_EXPIRY_TIME: Final = 8
CREATION_TIME: Final = 9
GROUP_SEQUENCE: Final = 11
# Of a message without headers.
DEFAULT_PRIORITY: Final = 4


class MessageView:
    """A message whose content header payload is `content[start:end]`, looked at at `now_ms`."""

    def __init__(self, content: bytes, start: i64, end: i64, now_ms: i64) -> None:
        self.now_ms: i64 = now_ms
        self.steps: i64 = 0
        self.is_exhausted: bool = False
        self._found: BasicProperties = decode_properties(content, start, end)
        self._shown: Shown | None = None
        self._fields: list[object] | None = None
        self._application: dict[object, object] | None = None

    def spend(self, steps: i64) -> bool:
        """Count `steps`; False when there were too many."""
        self.steps += steps
        if self.steps > STEPS_MAX:
            self.is_exhausted = True
        return not self.is_exhausted

    def priority(self) -> int:
        """Return the priority."""
        found = self._found.priority
        return DEFAULT_PRIORITY if found is None else found

    def property(self, at: int) -> object:
        """Return a field of `PROPERTY_NAMES`; None: it is missing, or has a type that properties cannot have."""
        fields = self._fields
        if fields is None:
            fields = self._message().fields()
            self._fields = fields
        found = fields[at] if at < len(fields) else None
        return None if isinstance(found, list | dict | Array | Described) else found

    def has_application_property(self, name: str) -> bool:
        """Tell whether there is such an application property, even if it is null."""
        return name in self._application_properties()

    def application_property(self, name: str) -> object:
        """Return an application property, None: it is not there."""
        return self._application_properties().get(name)

    def _application_properties(self) -> dict[object, object]:
        found = self._application
        if found is None:
            found = self._message().application()
            self._application = found
        return found

    def _message(self) -> Shown:
        shown = self._shown
        if shown is None:
            shown = Shown(self._found)
            self._shown = shown
        return shown
