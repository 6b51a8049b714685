"""The wishes of a receiver in its source: which messages it wants, where a stream begins, its priority.

filter of a source                      becomes
rabbitmq:stream-offset-spec             the argument x-stream-offset of a consumer
rabbitmq:stream-filter                  x-stream-filter
rabbitmq:stream-match-unfiltered        x-stream-match-unfiltered
conditions on messages (``filters``)    `Expressions`
any other filter                        nothing: it is not applied, and the answer leaves it out
"""

from __future__ import annotations

from typing import Final

from warren.amqp.field_table import Table
from warren.amqp.field_table import Timestamp as Seconds
from warren.amqp10.conversion import table_of
from warren.amqp10.error_conditions import INVALID_FIELD, LinkError
from warren.amqp10.filters import Expressions, is_expression, kind_of
from warren.amqp10.performatives import Arguments
from warren.amqp10.values import Described, Timestamp

_OFFSET_FILTER: Final = "rabbitmq:stream-offset-spec"
_VALUE_FILTER: Final = "rabbitmq:stream-filter"
_UNFILTERED_FILTER: Final = "rabbitmq:stream-match-unfiltered"
_PRIORITY: Final = "rabbitmq:priority"


class Wanted:
    """The request of a source: `arguments` of a consumer, `expressions` that look at messages, None without.

    `applied`: the filters that take effect. The answer contains only these, so the client learns which ones do not.
    """

    def __init__(self, source: Arguments, fields: Arguments) -> None:
        self.arguments: Table = {}
        self.applied: dict[object, object] = {}
        self.expressions: Expressions | None = None
        for name, given in source.table(7).items():
            kind = kind_of(name, given)
            if is_expression(kind):
                if self.expressions is None:
                    self.expressions = Expressions()
                self.expressions.add(kind, given)
            elif not self._add(kind, given.value if isinstance(given, Described) else given):
                continue
            self.applied[name] = given
        priority = fields.table(13).get(_PRIORITY)
        if priority is not None:
            self.arguments.update(table_of({"x-priority": priority}))

    def _add(self, kind: str, value: object) -> bool:
        """Add an argument for a filter of RabbitMQ's; return False for any other filter.

        Raises:
            LinkError: it is of another type.
        """
        table = self.arguments
        if kind == _OFFSET_FILTER:
            if isinstance(value, Timestamp):
                table["x-stream-offset"] = Seconds(max(0, int(value)) // 1000)
            elif isinstance(value, int) and not isinstance(value, bool):
                table["x-stream-offset"] = min(int(value), (1 << 63) - 1)
            elif isinstance(value, str):
                table["x-stream-offset"] = str(value)
            else:
                raise LinkError(INVALID_FIELD, f"{_OFFSET_FILTER} is not an offset, timestamp or text")
        elif kind == _VALUE_FILTER:
            listed = value if isinstance(value, list) else [value]
            if not all(isinstance(each, str) for each in listed):
                raise LinkError(INVALID_FIELD, f"{_VALUE_FILTER} is not a text or a list of texts")
            table["x-stream-filter"] = [str(each) for each in listed]
        elif kind == _UNFILTERED_FILTER:
            table["x-stream-match-unfiltered"] = value is True
        else:
            return False
        return True
