"""Every method of AMQP 0-9-1 and RabbitMQ's additions, declared once.

A method is a named tuple whose annotations name the wire domains of its arguments. Everything else is derived from
these declarations: the construct grammar (``amqp.specification``, the reference) and the tables that drive the fast
codec (``amqp.codec``).

Source: the AMQP 0-9-1 XML specification; ``connection.blocked/unblocked/update-secret``, ``exchange.bind/unbind``,
``basic.nack`` and the ``confirm`` class from RabbitMQ's extensions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_type_hints

from warren.amqp.field_table import Table

Octet = Annotated[int, "octet"]
Short = Annotated[int, "short"]
Long = Annotated[int, "long"]
LongLong = Annotated[int, "longlong"]
Bit = Annotated[bool, "bit"]
ShortStr = Annotated[str, "shortstr"]
LongStr = Annotated[bytes, "longstr"]
# Decoded tables lose integer widths and duplicate keys; arguments that must be kept use RawTable.
FieldTable = Annotated[Table, "table"]
# A field table left as its encoding, length prefix included; validated, not interpreted.
RawTable = Annotated[bytes, "rawtable"]

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_HEAD_BYTES: Final = 7  # type, channel and size: the payload follows
FRAME_OVERHEAD_BYTES: Final = 8  # the same and the frame-end octet
FRAME_MIN_BYTES: Final = 4096
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
BASIC_CLASS_ID: Final = 60

# Ids (class << 16 | method) of the methods that the engine reads or writes without the codec, or answers for.
CONNECTION_TUNE_OK: Final = 10 << 16 | 31
CONNECTION_OPEN: Final = 10 << 16 | 40
CONNECTION_CLOSE: Final = 10 << 16 | 50
CONNECTION_CLOSE_OK: Final = 10 << 16 | 51
CHANNEL_CLOSE: Final = 20 << 16 | 40
CHANNEL_CLOSE_OK: Final = 20 << 16 | 41
BASIC_PUBLISH: Final = 60 << 16 | 40
BASIC_DELIVER: Final = 60 << 16 | 60
BASIC_GET_OK: Final = 60 << 16 | 71
BASIC_ACK: Final = 60 << 16 | 80
BASIC_NACK: Final = 60 << 16 | 120
TX_COMMIT: Final = 90 << 16 | 20
ACK_BYTES: Final = 13  # of the payload of basic.ack and basic.nack: id, delivery tag, bits


class MethodSpec(NamedTuple):
    """One method of the protocol: its dotted name, packed id (class << 16 | method), type and argument domains."""

    name: str
    id: int
    type: type[Any]
    fields: tuple[tuple[str, str], ...]

    @property
    def class_id(self) -> int:
        return self.id >> 16

    @property
    def method_id(self) -> int:
        return self.id & 0xFFFF


METHODS: Final[dict[int, MethodSpec]] = {}
METHOD_IDS: Final[dict[type[Any], int]] = {}

_T = TypeVar("_T")


def _method(class_id: int, method_id: int, name: str) -> Callable[[type[_T]], type[_T]]:
    def register(cls: type[_T]) -> type[_T]:
        packed = class_id << 16 | method_id
        hints = get_type_hints(cls, include_extras=True)
        fields = tuple((field, hints[field].__metadata__[0]) for field in cls.__annotations__)
        METHODS[packed] = MethodSpec(name, packed, cls, fields)
        METHOD_IDS[cls] = packed
        return cls

    return register


# --- connection (10) -------------------------------------------------------------------------------------------


@_method(10, 10, "connection.start")
class ConnectionStart(NamedTuple):
    version_major: Octet
    version_minor: Octet
    server_properties: FieldTable
    mechanisms: LongStr
    locales: LongStr


@_method(10, 11, "connection.start-ok")
class ConnectionStartOk(NamedTuple):
    client_properties: FieldTable
    mechanism: ShortStr
    response: LongStr
    locale: ShortStr


@_method(10, 20, "connection.secure")
class ConnectionSecure(NamedTuple):
    challenge: LongStr


@_method(10, 21, "connection.secure-ok")
class ConnectionSecureOk(NamedTuple):
    response: LongStr


@_method(10, 30, "connection.tune")
class ConnectionTune(NamedTuple):
    channel_max: Short
    frame_max: Long
    heartbeat: Short


@_method(10, 31, "connection.tune-ok")
class ConnectionTuneOk(NamedTuple):
    channel_max: Short
    frame_max: Long
    heartbeat: Short


@_method(10, 40, "connection.open")
class ConnectionOpen(NamedTuple):
    virtual_host: ShortStr
    reserved_1: ShortStr
    reserved_2: Bit


@_method(10, 41, "connection.open-ok")
class ConnectionOpenOk(NamedTuple):
    known_hosts: ShortStr


@_method(10, 50, "connection.close")
class ConnectionClose(NamedTuple):
    reply_code: Short
    reply_text: ShortStr
    class_id: Short
    method_id: Short


@_method(10, 51, "connection.close-ok")
class ConnectionCloseOk(NamedTuple):
    pass


@_method(10, 60, "connection.blocked")
class ConnectionBlocked(NamedTuple):
    reason: ShortStr


@_method(10, 61, "connection.unblocked")
class ConnectionUnblocked(NamedTuple):
    pass


@_method(10, 70, "connection.update-secret")
class ConnectionUpdateSecret(NamedTuple):
    new_secret: LongStr
    reason: ShortStr


@_method(10, 71, "connection.update-secret-ok")
class ConnectionUpdateSecretOk(NamedTuple):
    pass


# --- channel (20) ----------------------------------------------------------------------------------------------


@_method(20, 10, "channel.open")
class ChannelOpen(NamedTuple):
    out_of_band: ShortStr


@_method(20, 11, "channel.open-ok")
class ChannelOpenOk(NamedTuple):
    channel_id: LongStr


@_method(20, 20, "channel.flow")
class ChannelFlow(NamedTuple):
    active: Bit


@_method(20, 21, "channel.flow-ok")
class ChannelFlowOk(NamedTuple):
    active: Bit


@_method(20, 40, "channel.close")
class ChannelClose(NamedTuple):
    reply_code: Short
    reply_text: ShortStr
    class_id: Short
    method_id: Short


@_method(20, 41, "channel.close-ok")
class ChannelCloseOk(NamedTuple):
    pass


# --- access (30): kept from AMQP 0-9 because old clients still ask ---------------------------------------------


@_method(30, 10, "access.request")
class AccessRequest(NamedTuple):
    realm: ShortStr
    exclusive: Bit
    passive: Bit
    active: Bit
    write: Bit
    read: Bit


@_method(30, 11, "access.request-ok")
class AccessRequestOk(NamedTuple):
    ticket: Short


# --- exchange (40) ---------------------------------------------------------------------------------------------


@_method(40, 10, "exchange.declare")
class ExchangeDeclare(NamedTuple):
    ticket: Short
    exchange: ShortStr
    type: ShortStr
    passive: Bit
    durable: Bit
    auto_delete: Bit
    internal: Bit
    no_wait: Bit
    arguments: RawTable


@_method(40, 11, "exchange.declare-ok")
class ExchangeDeclareOk(NamedTuple):
    pass


@_method(40, 20, "exchange.delete")
class ExchangeDelete(NamedTuple):
    ticket: Short
    exchange: ShortStr
    if_unused: Bit
    no_wait: Bit


@_method(40, 21, "exchange.delete-ok")
class ExchangeDeleteOk(NamedTuple):
    pass


@_method(40, 30, "exchange.bind")
class ExchangeBind(NamedTuple):
    ticket: Short
    destination: ShortStr
    source: ShortStr
    routing_key: ShortStr
    no_wait: Bit
    arguments: RawTable


@_method(40, 31, "exchange.bind-ok")
class ExchangeBindOk(NamedTuple):
    pass


@_method(40, 40, "exchange.unbind")
class ExchangeUnbind(NamedTuple):
    ticket: Short
    destination: ShortStr
    source: ShortStr
    routing_key: ShortStr
    no_wait: Bit
    arguments: RawTable


# 51 and not 41: an old slip in RabbitMQ's grammar that every client has copied.
@_method(40, 51, "exchange.unbind-ok")
class ExchangeUnbindOk(NamedTuple):
    pass


# --- queue (50) ------------------------------------------------------------------------------------------------


@_method(50, 10, "queue.declare")
class QueueDeclare(NamedTuple):
    ticket: Short
    queue: ShortStr
    passive: Bit
    durable: Bit
    exclusive: Bit
    auto_delete: Bit
    no_wait: Bit
    arguments: RawTable


@_method(50, 11, "queue.declare-ok")
class QueueDeclareOk(NamedTuple):
    queue: ShortStr
    message_count: Long
    consumer_count: Long


@_method(50, 20, "queue.bind")
class QueueBind(NamedTuple):
    ticket: Short
    queue: ShortStr
    exchange: ShortStr
    routing_key: ShortStr
    no_wait: Bit
    arguments: RawTable


@_method(50, 21, "queue.bind-ok")
class QueueBindOk(NamedTuple):
    pass


@_method(50, 30, "queue.purge")
class QueuePurge(NamedTuple):
    ticket: Short
    queue: ShortStr
    no_wait: Bit


@_method(50, 31, "queue.purge-ok")
class QueuePurgeOk(NamedTuple):
    message_count: Long


@_method(50, 40, "queue.delete")
class QueueDelete(NamedTuple):
    ticket: Short
    queue: ShortStr
    if_unused: Bit
    if_empty: Bit
    no_wait: Bit


@_method(50, 41, "queue.delete-ok")
class QueueDeleteOk(NamedTuple):
    message_count: Long


@_method(50, 50, "queue.unbind")
class QueueUnbind(NamedTuple):
    ticket: Short
    queue: ShortStr
    exchange: ShortStr
    routing_key: ShortStr
    arguments: RawTable


@_method(50, 51, "queue.unbind-ok")
class QueueUnbindOk(NamedTuple):
    pass


# --- basic (60) ------------------------------------------------------------------------------------------------


@_method(60, 10, "basic.qos")
class BasicQos(NamedTuple):
    prefetch_size: Long
    prefetch_count: Short
    global_: Bit


@_method(60, 11, "basic.qos-ok")
class BasicQosOk(NamedTuple):
    pass


@_method(60, 20, "basic.consume")
class BasicConsume(NamedTuple):
    ticket: Short
    queue: ShortStr
    consumer_tag: ShortStr
    no_local: Bit
    no_ack: Bit
    exclusive: Bit
    no_wait: Bit
    arguments: RawTable


@_method(60, 21, "basic.consume-ok")
class BasicConsumeOk(NamedTuple):
    consumer_tag: ShortStr


@_method(60, 30, "basic.cancel")
class BasicCancel(NamedTuple):
    consumer_tag: ShortStr
    no_wait: Bit


@_method(60, 31, "basic.cancel-ok")
class BasicCancelOk(NamedTuple):
    consumer_tag: ShortStr


@_method(60, 40, "basic.publish")
class BasicPublish(NamedTuple):
    ticket: Short
    exchange: ShortStr
    routing_key: ShortStr
    mandatory: Bit
    immediate: Bit


@_method(60, 50, "basic.return")
class BasicReturn(NamedTuple):
    reply_code: Short
    reply_text: ShortStr
    exchange: ShortStr
    routing_key: ShortStr


@_method(60, 60, "basic.deliver")
class BasicDeliver(NamedTuple):
    consumer_tag: ShortStr
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr


@_method(60, 70, "basic.get")
class BasicGet(NamedTuple):
    ticket: Short
    queue: ShortStr
    no_ack: Bit


@_method(60, 71, "basic.get-ok")
class BasicGetOk(NamedTuple):
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr
    message_count: Long


@_method(60, 72, "basic.get-empty")
class BasicGetEmpty(NamedTuple):
    cluster_id: ShortStr


@_method(60, 80, "basic.ack")
class BasicAck(NamedTuple):
    delivery_tag: LongLong
    multiple: Bit


@_method(60, 90, "basic.reject")
class BasicReject(NamedTuple):
    delivery_tag: LongLong
    requeue: Bit


@_method(60, 100, "basic.recover-async")
class BasicRecoverAsync(NamedTuple):
    requeue: Bit


@_method(60, 110, "basic.recover")
class BasicRecover(NamedTuple):
    requeue: Bit


@_method(60, 111, "basic.recover-ok")
class BasicRecoverOk(NamedTuple):
    pass


@_method(60, 120, "basic.nack")
class BasicNack(NamedTuple):
    delivery_tag: LongLong
    multiple: Bit
    requeue: Bit


# --- confirm (85) and tx (90) ----------------------------------------------------------------------------------


@_method(85, 10, "confirm.select")
class ConfirmSelect(NamedTuple):
    no_wait: Bit


@_method(85, 11, "confirm.select-ok")
class ConfirmSelectOk(NamedTuple):
    pass


@_method(90, 10, "tx.select")
class TxSelect(NamedTuple):
    pass


@_method(90, 11, "tx.select-ok")
class TxSelectOk(NamedTuple):
    pass


@_method(90, 20, "tx.commit")
class TxCommit(NamedTuple):
    pass


@_method(90, 21, "tx.commit-ok")
class TxCommitOk(NamedTuple):
    pass


@_method(90, 30, "tx.rollback")
class TxRollback(NamedTuple):
    pass


@_method(90, 31, "tx.rollback-ok")
class TxRollbackOk(NamedTuple):
    pass
