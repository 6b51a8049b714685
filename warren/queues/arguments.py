"""The x-arguments of queue.declare: which ones we know, and when two declarations mean the same queue.

Arguments that a classic queue knows are compared on redeclaration, by value across integer widths; unknown ones are
kept, shown and not compared (RabbitMQ behaves the same). Quorum queues and streams are refused until they exist here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.field_table import TYPE_NAMES, decode_table, find_tag
from warren.amqp.inequivalence import check_argument, check_flag

if TYPE_CHECKING:
    from warren.queues.queue import Queue

KNOWN: Final = (
    "x-expires",
    "x-message-ttl",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-priority",
    "x-single-active-consumer",
    "x-queue-mode",
    "x-queue-version",
)


class QueueArguments:
    """What a declaration's arguments ask for.

    Raises:
        ChannelException: 406, an argument that we understand has an impossible type or value.
    """

    def __init__(self, queue: str, vhost: str, encoded: bytes) -> None:
        self.single_active: bool = False
        if len(encoded) == 4:
            return
        table = decode_table(encoded)
        active = table.get("x-single-active-consumer", False)
        if not isinstance(active, bool):
            tag = find_tag(encoded, "x-single-active-consumer")
            raise _invalid("x-single-active-consumer", queue, vhost, f"{{unacceptable_type,{TYPE_NAMES[tag]}}}")
        self.single_active = active
        queue_type = table.get("x-queue-type", "classic")
        if not isinstance(queue_type, str):
            tag = find_tag(encoded, "x-queue-type")
            raise _invalid("x-queue-type", queue, vhost, f"{{unacceptable_type,{TYPE_NAMES[tag]}}}")
        if queue_type not in ("classic", "", "undefined"):
            raise _invalid("x-queue-type", queue, vhost, f"\"unsupported queue type '{queue_type}'\"")

    @staticmethod
    def check_equivalent(queue: Queue, durable: bool, auto_delete: bool, arguments: bytes) -> None:
        """Check a redeclaration of `queue`.

        Raises:
            ChannelException: 406, a property or a known argument differs.
        """
        check_flag("queue", queue.name, queue.vhost_name, "durable", durable, queue.durable)
        check_flag("queue", queue.name, queue.vhost_name, "auto_delete", auto_delete, queue.auto_delete)
        if arguments != queue.arguments:
            for key in KNOWN:
                check_argument("queue", queue.name, queue.vhost_name, key, arguments, queue.arguments)


def _invalid(key: str, queue: str, vhost: str, reason: str) -> ChannelException:
    text = f"invalid arg '{key}' for queue '{queue}' in vhost '{vhost}': {reason}"
    return ChannelException(PRECONDITION_FAILED, text)
