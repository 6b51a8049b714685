"""The words that choose a load, apart from the code that runs it: showing help must not import all that."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """The thing to measure."""

    FLOW = "flow"
    RPC = "rpc"
    CONNECTIONS = "connections"
    DECLARE = "declare"
    FILL = "fill"
    DRAIN = "drain"
    THROUGH = "through"


class ExchangeType(StrEnum):
    """How messages find their queues."""

    DEFAULT = "default"
    DIRECT = "direct"
    FANOUT = "fanout"
    TOPIC = "topic"
    HEADERS = "headers"


class LoadProtocol(StrEnum):
    """The protocol."""

    AMQP = "amqp"
    AMQP10 = "amqp10"
    MQTT = "mqtt"
    STOMP = "stomp"
