"""The arguments of queue.declare and basic.consume: the known ones, their possible values, and the texts of refusals.

1. `ARGUMENTS` is the one list of queue arguments. Policies name the same things without ``x-`` and are checked by the
   same rows, see `fault_of`. Faults are told in the list's order; arguments of other queue types come after them, then
   conflicts between arguments, then durable, exclusive and auto_delete.
2. `QueueArguments.values` holds only values that passed, by policy key. Unknown arguments stay in the declaration and
   are shown, but a redeclaration may have others.
3. Redeclarations: the arguments that the queue's type knows are compared, integers by value across their widths. A
   missing ``x-queue-type``, ``""`` and ``undefined`` stand for ``classic``.
4. Arguments that an earlier version has stored never keep the broker from starting: a restored argument that this
   version refuses has no effect instead.

Source: RabbitMQ, "Queues: optional arguments"; texts and their order were seen on 3.10.8. Later versions' values and
arguments are taken where they differ: quorum queues have ``x-consumer-timeout`` and ``x-delayed-retry-*``. Classic
queues have those here too, and ``x-delivery-limit``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.field_table import TYPE_NAMES, Table, Timestamp, decode_table, find_tag
from warren.amqp.inequivalence import check_argument, check_flag
from warren.amqp.numbers import LONG_MAX, TIME_MAX_MS, number_text

if TYPE_CHECKING:
    from warren.queues.base_queue import BaseQueue

DEDUP_KEYS_MAX: Final = 10_000_000  # they are in memory
AGE_MAX_MS: Final = 1 << 53  # 285,000 years

# The kinds of values.
INTEGER: Final = 0  # from `low` to `high`
TEXT: Final = 1  # a name or a routing key
CHOICE: Final = 2  # one of `choices`
FLAG: Final = 3
BACKOFF: Final = 4  # see `backoff_delays`
AGE: Final = 5  # see `age_ms`

# Queue types, and RabbitMQ's names for them in its texts.
CLASSIC: Final = "classic"
QUORUM: Final = "quorum"
STREAM: Final = "stream"
LONG_TYPES: Final = {
    CLASSIC: "rabbit_classic_queue",
    QUORUM: "rabbit_quorum_queue",
    STREAM: "rabbit_stream_queue",
}
SEGMENT_BYTES_MAX: Final = 3_000_000_000
_SERVER_NAMED: Final = "amq.gen-"  # clients cannot choose such a name
_AGES_MS: Final = {
    "Y": 31_536_000_000,
    "M": 2_592_000_000,
    "D": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
}
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BACKOFF_FORM: Final = "\"expected an array of delays (5000, '5s', '1h') or 'exponential:FIRST:CAP'\""


class Argument:
    """A row: the argument ``x-key``, its possible values, and the queue types that have it.

    ``wrong`` is the reason given for a value that is out of range or not a choice, VALUE in it stands for the value.
    ``noun`` is its name in the refusal of a policy; without a noun it is not a policy key.
    """

    def __init__(
        self,
        key: str,
        kind: int,
        *,
        low: int = 0,
        high: int = LONG_MAX,
        choices: tuple[str, ...] = (),
        wrong: str = "{value_too_large,VALUE}",
        classic: bool = True,
        quorum: bool = True,
        stream: bool = False,
        noun: str = "",
    ) -> None:
        self.key = key
        self.name = "x-" + key
        self.kind = kind
        self.low = low
        self.high = high
        self.choices = choices
        self.wrong = wrong
        self.classic = classic
        self.quorum = quorum
        self.stream = stream
        self.noun = noun

    def fits(self, queue_type: str) -> bool:
        """Tell whether queues of that type have this argument."""
        if queue_type == STREAM:
            return self.stream
        return self.quorum if queue_type == QUORUM else self.classic


ARGUMENTS: Final = (
    Argument("expires", INTEGER, low=1, high=TIME_MAX_MS, noun="queue expiry"),
    Argument("message-ttl", INTEGER, high=TIME_MAX_MS, noun="message TTL"),
    Argument("dead-letter-exchange", TEXT, noun="dead letter exchange name"),
    Argument("dead-letter-routing-key", TEXT, noun="dead letter routing key"),
    Argument(
        "dead-letter-strategy",
        CHOICE,
        choices=("at-most-once", "at-least-once"),
        wrong="invalid_dlx_strategy",
        classic=False,
        noun="dead letter strategy",
    ),
    Argument("max-length", INTEGER, noun="maximum length"),
    Argument("max-length-bytes", INTEGER, stream=True, noun="maximum length in bytes"),
    Argument("max-in-memory-length", INTEGER, classic=False, noun="maximum memory in bytes"),
    Argument("max-in-memory-bytes", INTEGER, classic=False, noun="maximum memory in bytes"),
    Argument("max-priority", INTEGER, high=255, wrong="{max_value_exceeded,VALUE}", quorum=False),
    Argument(
        "overflow",
        CHOICE,
        choices=("drop-head", "reject-publish", "reject-publish-dlx"),
        wrong="invalid_overflow",
        noun="overflow value",
    ),
    Argument(
        "queue-mode",
        CHOICE,
        choices=("default", "lazy"),
        wrong="\"unsupported queue mode 'VALUE'\"",
        quorum=False,
        noun="queue-mode value",
    ),
    Argument(
        "queue-version",
        INTEGER,
        low=1,
        high=2,
        wrong="\"unsupported queue version 'VALUE'\"",
        quorum=False,
        noun="queue-version value",
    ),
    Argument("single-active-consumer", FLAG),
    Argument("quorum-initial-group-size", INTEGER, low=1, classic=False),
    Argument(
        "queue-leader-locator",
        CHOICE,
        choices=("client-local", "balanced", "random", "least-leaders"),
        wrong="invalid_queue_locator_arg",
        stream=True,
        noun="queue leader locator value",
    ),
    Argument("delivery-limit", INTEGER, low=-LONG_MAX - 1, noun="delivery limit"),
    Argument("consumer-timeout", INTEGER, noun="consumer timeout"),  # above ten years is ten years
    Argument("consumer-disconnected-timeout", INTEGER, classic=False, noun="consumer disconnected timeout"),
    Argument(
        "delayed-retry-type",
        CHOICE,
        choices=("disabled", "all", "failed", "returned"),
        wrong="invalid_delayed_retry_type",
        noun="delayed retry type",
    ),
    Argument("delayed-retry-min", INTEGER, high=TIME_MAX_MS, noun="minimum delay of retries"),
    Argument("delayed-retry-max", INTEGER, high=TIME_MAX_MS, noun="maximum delay of retries"),
    # Warren's own.
    Argument("retry-backoff", BACKOFF, noun="retry backoff"),
    Argument(
        "delivery-limit-action",
        CHOICE,
        choices=("dead-letter", "drop", "park"),
        wrong="invalid_delivery_limit_action",
        noun="delivery limit action",
    ),
    Argument("visibility-timeout", INTEGER, low=1, high=TIME_MAX_MS, noun="visibility timeout"),
    Argument("message-deduplication", FLAG, stream=True),
    Argument("deduplication-header", TEXT, stream=True),
    Argument("cache-size", INTEGER, low=1, high=DEDUP_KEYS_MAX, stream=True),
    Argument("cache-ttl", INTEGER, low=1, high=TIME_MAX_MS, stream=True),
    Argument("key-shared", FLAG),
    Argument("key-header", TEXT, stream=True),
    Argument("storage", CHOICE, choices=("memory", "disk"), wrong="invalid_storage"),
    Argument("consumer-prefetch-max", INTEGER, low=1, noun="maximum prefetch of consumers"),
    Argument("max-unacked", INTEGER, low=1, noun="maximum of unacknowledged messages"),
    Argument("read-committed", FLAG, noun="value for reading committed messages"),
    # Of streams only.
    Argument("max-age", AGE, wrong="invalid_max_age", classic=False, quorum=False, stream=True, noun="max age"),
    Argument(
        "stream-max-segment-size-bytes",
        INTEGER,
        high=SEGMENT_BYTES_MAX,
        classic=False,
        quorum=False,
        stream=True,
        noun="maximum size of stream segments in bytes",
    ),
    Argument(
        "cleanup",
        CHOICE,
        choices=("delete", "compact"),
        wrong="invalid_cleanup",
        classic=False,
        quorum=False,
        stream=True,
        noun="cleanup",
    ),
    Argument("stream-filter-size-bytes", INTEGER, low=16, high=255, classic=False, quorum=False, stream=True),
    Argument("initial-cluster-size", INTEGER, low=1, classic=False, quorum=False, stream=True),
)

BY_KEY: Final[dict[str, Argument]] = {row.key: row for row in ARGUMENTS}


class QueueArguments:
    """The valid arguments of a declaration: ``values`` has them by policy key.

    With ``stored`` they come from the catalogue, see (4).

    Raises:
        ChannelException: 406, an argument that we understand has an impossible type or value, belongs to another
            queue type or contradicts another one; or a quorum queue or a stream is declared exclusive, transient or
            auto-deleted.
    """

    def __init__(self, declaration: QueueDeclaration, vhost_name: str, *, stored: bool = False) -> None:
        encoded = declaration.arguments
        self.queue_type: str = CLASSIC
        self.values: Table = {}
        if len(encoded) == 4:
            return
        table = decode_table(encoded)
        if stored:
            self._take_valid(table)
        else:
            queue_name = declaration.name
            where = f"for queue '{queue_name}' in vhost '{vhost_name}'"
            self.queue_type = _known_type(table)
            if self.queue_type != CLASSIC and queue_name.startswith(_SERVER_NAMED):
                raise _refusal(f"Cannot declare a server-named queue for type {LONG_TYPES[self.queue_type]}")
            self._check(table, encoded, queue_name, vhost_name, where)
            if self.queue_type != CLASSIC:
                _check_lasts(where, declaration)

    def _check(self, table: Table, encoded: bytes, queue_name: str, vhost_name: str, where: str) -> None:
        tag = find_tag(encoded, "x-dead-letter-exchange")
        if tag and tag != "S":  # RabbitMQ's permission check comes first, with a text of its own
            raise _refusal(
                f"invalid type '{TYPE_NAMES[tag]}' for arg 'x-dead-letter-exchange' in queue '{queue_name}' "
                f"in vhost '{vhost_name}'"
            )
        fault = _type_fault(table, encoded)
        if fault:
            raise _invalid("x-queue-type", where, fault)
        for row in ARGUMENTS:
            if row.name in table and row.fits(self.queue_type):
                value = table[row.name]
                fault = fault_of(row, value, TYPE_NAMES[find_tag(encoded, row.name)])
                if not fault and row.key == "dead-letter-routing-key" and "x-dead-letter-exchange" not in table:
                    fault = "routing_key_but_no_dlx_defined"
                if fault:
                    raise _own_refusal(row, fault) or _invalid(row.name, where, fault)
                self.values[row.key] = value
        for name in table:
            foreign = BY_KEY.get(name[2:]) if name.startswith("x-") else None
            if foreign is not None and not foreign.fits(self.queue_type):
                raise _refusal(f"invalid arg '{name}' {where} of queue type {LONG_TYPES[self.queue_type]}")
        key, fault = _conflict(self.values, self.queue_type)
        if key:
            raise _invalid("x-" + key, where, fault)

    def _take_valid(self, table: Table) -> None:
        self.queue_type = _known_type(table)
        for row in ARGUMENTS:
            if row.name in table and row.fits(self.queue_type) and not fault_of(row, table[row.name], ""):
                self.values[row.key] = table[row.name]
        while True:
            key, _ = _conflict(self.values, self.queue_type)
            if not key:
                return
            del self.values[key]

    @staticmethod
    def check_equivalent(queue: BaseQueue, declaration: QueueDeclaration) -> None:
        """Check a redeclaration of `queue`; whether both are exclusive is asked before.

        Raises:
            ChannelException: 406, a property or a known argument differs.
        """
        check_flag("queue", queue.name, queue.vhost_name, "durable", declaration.durable, queue.durable)
        check_flag("queue", queue.name, queue.vhost_name, "auto_delete", declaration.auto_delete, queue.auto_delete)
        arguments = declaration.arguments
        if arguments == queue.arguments:
            return
        received = decode_table(arguments)
        current = decode_table(queue.arguments)
        current_type = _type_of(current)
        if _type_of(received) != current_type:
            check_argument("queue", queue.name, queue.vhost_name, "x-queue-type", arguments, queue.arguments)
        for row in ARGUMENTS:
            if row.fits(_known_type(current)) and (row.name in received or row.name in current):
                check_argument("queue", queue.name, queue.vhost_name, row.name, arguments, queue.arguments)


class ConsumerArguments:
    """The values of a basic.consume's arguments. Times are in ms, -1 when not given."""

    def __init__(self) -> None:
        self.priority: int = 0
        self.visibility_timeout_ms: i64 = -1
        self.consumer_timeout_ms: i64 = -1


def consumer_arguments(queue_name: str, vhost_name: str, encoded: bytes) -> ConsumerArguments:
    """Return the values in the encoded table; unknown arguments are ignored.

    Raises:
        ChannelException: 406, an argument has an impossible type or value.
    """
    asked = ConsumerArguments()
    if len(encoded) == 4:
        return asked
    table = decode_table(encoded)
    where = f"for queue '{queue_name}' in vhost '{vhost_name}'"
    priority = table.get("x-priority", 0)
    if not _is_integer(priority):
        raise _invalid("x-priority", where, f'"expected integer, got {TYPE_NAMES[find_tag(encoded, "x-priority")]}"')
    assert isinstance(priority, int)
    asked.priority = priority
    asked.visibility_timeout_ms = _consumer_time("visibility-timeout", table, encoded, where)
    asked.consumer_timeout_ms = _consumer_time("consumer-timeout", table, encoded, where)
    return asked


def _consumer_time(key: str, table: Table, encoded: bytes, where: str) -> i64:
    row = BY_KEY[key]
    if row.name not in table:
        return -1
    value = table[row.name]
    fault = fault_of(row, value, TYPE_NAMES[find_tag(encoded, row.name)])
    if fault:
        raise _invalid(row.name, where, fault)
    assert isinstance(value, int)
    return i64(min(value, TIME_MAX_MS))


# --- values -------------------------------------------------------------------------------------------------------


def fault_of(row: Argument, value: object, type_name: str) -> str:
    """Return why `value` cannot be that of `row`, in RabbitMQ's words, or ``""``. `type_name` is its field type."""
    if row.kind == INTEGER:
        if not _is_integer(value):
            return f'"expected integer, got {type_name}"'
        assert isinstance(value, int)
        if value < 0 <= row.low:
            return f"{{value_negative,{number_text(value)}}}"
        if value == 0 and row.low == 1:
            return "{value_zero,0}"
        return "" if row.low <= value <= row.high else row.wrong.replace("VALUE", number_text(value))
    if row.kind == FLAG:
        return "" if isinstance(value, bool) else f"{{unacceptable_type,{type_name}}}"
    if row.kind == BACKOFF:
        if isinstance(value, (list, str)):
            return "" if backoff_delays(value) else _BACKOFF_FORM
        return f"{{unacceptable_type,{type_name}}}"
    if isinstance(value, bytes) and type_name == "longstr":
        return '"not UTF-8"' if row.kind == TEXT else _wrong_text(row, value.decode("utf-8", "replace"))
    if not isinstance(value, str):
        return f"{{unacceptable_type,{type_name}}}"
    if row.kind == CHOICE:
        return "" if value in row.choices else _wrong_text(row, value)
    if row.kind == AGE:
        return "" if age_ms(value) > 0 else _wrong_text(row, value)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can hold
        return '"not UTF-8"'
    return "" if size <= NAME_MAX_BYTES else f'"longer than {NAME_MAX_BYTES} bytes"'


def backoff_delays(value: object) -> list[int]:
    """Return the delays in ms of an ``x-retry-backoff``, an empty list for an invalid one.

    An array holds the delays one by one, as ms or as ``5s``, ``30m`` (units ms, s, m, h, d). ``exponential:1s:5m``
    doubles the first delay until the second is reached.
    """
    if isinstance(value, list):
        delays: list[int] = []
        for entry in value:
            delay = entry if _is_integer(entry) else _duration_ms(entry)
            assert isinstance(delay, int)
            if not 0 <= delay <= TIME_MAX_MS:
                return []
            delays.append(delay)
        return delays
    if not isinstance(value, str):
        return []
    parts = value.split(":")
    if len(parts) != 3 or parts[0] != "exponential":
        return []
    delay_ms = _duration_ms(parts[1])
    cap_ms = _duration_ms(parts[2])
    if not 1 <= delay_ms <= cap_ms <= TIME_MAX_MS:
        return []
    doubling: list[int] = []
    while delay_ms < cap_ms:
        doubling.append(delay_ms)
        delay_ms *= 2
    doubling.append(cap_ms)
    return doubling


def age_ms(text: str) -> int:
    """Return the ms of an age of a stream such as ``7D`` or ``1h``, or -1. A month has 30 days, a year 365.

    An age longer than that is `AGE_MAX_MS`.
    """
    return min(_timespan_ms(text, _AGES_MS), AGE_MAX_MS)


def _duration_ms(text: object) -> int:
    """Return the ms of a text such as ``5s``, or -1."""
    return _timespan_ms(text, _UNITS_MS) if isinstance(text, str) else -1


def _timespan_ms(text: str, units: dict[str, int]) -> int:
    digits = 0
    while digits < len(text) and "0" <= text[digits] <= "9":
        digits += 1
    unit_ms = units.get(text[digits:], 0)
    # Ten years have twelve digits; converting very many would take long.
    if not 1 <= digits <= 12 or unit_ms == 0:
        return -1
    return int(text[:digits]) * unit_ms


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, (bool, Timestamp))


def _wrong_text(row: Argument, value: str) -> str:
    return row.wrong.replace("VALUE", _escaped(value))


def _escaped(text: str) -> str:
    """Return `text` as it stands in a quoted Erlang string."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")


# --- the type, and what goes together -----------------------------------------------------------------------------


def _type_of(table: Table) -> object:
    value = table.get("x-queue-type", CLASSIC)
    return CLASSIC if value in ("", "undefined") else value


def _known_type(table: Table) -> str:
    queue_type = _type_of(table)
    return queue_type if isinstance(queue_type, str) and queue_type in LONG_TYPES else CLASSIC


def _type_fault(table: Table, encoded: bytes) -> str:
    queue_type = _type_of(table)
    if isinstance(queue_type, str) and queue_type in LONG_TYPES:
        return ""
    tag = find_tag(encoded, "x-queue-type")
    if tag != "S":
        return f"{{unacceptable_type,{TYPE_NAMES[tag]}}}"
    text = queue_type.decode("utf-8", "replace") if isinstance(queue_type, bytes) else str(queue_type)
    return f"\"unsupported queue type '{_escaped(text)}'\""


def _conflict(values: Table, queue_type: str) -> tuple[str, str]:
    """Return the key that cannot work together with the others, and why; or twice ``""``."""
    if values.get("key-shared") is True:
        if "max-priority" in values:
            return "key-shared", '"not with x-max-priority, which lets messages overtake others of their key"'
        if values.get("single-active-consumer") is True:
            return "key-shared", '"not with x-single-active-consumer, which leaves one consumer for all keys"'
    if values.get("storage") == "memory":
        if values.get("read-committed") is True:
            return "read-committed", '"not with x-storage memory, which commits nothing"'
        if queue_type == QUORUM:
            return "storage", '"not memory: a quorum queue keeps its messages on disk"'
        if "max-length" not in values and "max-length-bytes" not in values:
            return "storage", '"memory needs a limit: x-max-length or x-max-length-bytes"'
    return "", ""


def _own_refusal(row: Argument, fault: str) -> ChannelException | None:
    """Return the refusal of an argument for which RabbitMQ has a text of its own."""
    if row.key == "stream-max-segment-size-bytes" and fault.startswith("{value_too_large"):
        return _refusal(f"Exceeded max value for {row.name}")
    if row.key == "stream-filter-size-bytes" and fault.startswith(("{value_too_large", "{value_negative")):
        return _refusal(f"Invalid value for {row.name}")
    return None


def _check_lasts(where: str, declaration: QueueDeclaration) -> None:
    if declaration.auto_delete:
        raise _refusal(f"invalid property 'auto-delete' {where}")
    if declaration.exclusive:
        raise _refusal(f"invalid property 'exclusive-owner' {where}")
    if not declaration.durable:
        raise _refusal(f"invalid property 'non-durable' {where}")


def _invalid(name: str, where: str, reason: str) -> ChannelException:
    return _refusal(f"invalid arg '{name}' {where}: {reason}")


def _refusal(text: str) -> ChannelException:
    return ChannelException(PRECONDITION_FAILED, text)
