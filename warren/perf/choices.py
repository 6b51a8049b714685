"""The words a load is chosen by, apart from what runs it: showing help must not import all that."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """What is measured."""

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
    """What is spoken."""

    AMQP = "amqp"
    AMQP10 = "amqp10"
    MQTT = "mqtt"
    STOMP = "stomp"
