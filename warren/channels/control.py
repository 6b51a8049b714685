"""The exchange ``amq.control``: commands that AMQP 0-9-1 has no method for, as basic.publish, which every client has.

    routing key    headers
    touch          delivery-tag    give a delivery its visibility timeout again
    nack           delivery-tag    return it, to be delivered again after `delay` ms; `multiple`: and all before it
                   delay
                   multiple        bool, default false

1. It acts on the deliveries of the channel that publishes, on no other's, and so needs no permission.
2. It acts at once and is confirmed like any publish. The message goes nowhere: nothing can be bound to the exchange.
3. A broker that has it lists the capability ``amq.control``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.field_table import Table, decode_table
from warren.amqp.properties import headers_of
from warren.queues.delay import DELAY_MAX_MS
from warren.vhosts.virtual_host import CONTROL_EXCHANGE

if TYPE_CHECKING:
    from warren.channels.session import Session


def control(channel: Session, key: str, header: bytes) -> None:
    """Do the command of a publish to ``amq.control`` with this routing key and content header payload.

    Raises:
        ChannelException: 406, an unknown key, a header that is missing or makes no sense, an unknown delivery tag.
    """
    headers = headers_of(header)
    table = decode_table(headers) if headers else {}
    if channel.transaction is not None:
        raise _refused("not allowed in a transaction")
    if key == "touch":
        channel.touch(_number(table, "delivery-tag", (1 << 63) - 1))
    elif key == "nack":
        multiple = table.get("multiple", False)
        if not isinstance(multiple, bool):
            raise _refused("header 'multiple' must be a bool")
        tag = _number(table, "delivery-tag", (1 << 63) - 1)
        channel.reject(
            tag, multiple=multiple, requeue=True, failed=True, delay_ms=_number(table, "delay", DELAY_MAX_MS)
        )
    else:
        raise _refused(f"routing key '{key}' is neither 'touch' nor 'nack'")


def _number(table: Table, name: str, most: int) -> int:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise _refused(f"header '{name}' must be an integer from 0 to {most}")
    return value


def _refused(reason: str) -> ChannelException:
    return ChannelException(PRECONDITION_FAILED, f"{CONTROL_EXCHANGE}: {reason}")
