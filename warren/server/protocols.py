"""List the protocols whose clients connect to ports of their own.

Each protocol has one record in `PROTOCOLS`. Everything else about its ports follows from that: the settings and options
of `serve`, the listeners, the names in health checks and in the overview, the keys of a ``rabbitmq.conf``.

Classes of peers are imported when a broker listens: a command that only reads settings does not need the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from warren.channels.broker import PeerMaker


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A protocol. `name` begins the names of its settings; `title` is its name for people.

    `ports` are the usual ones: plain, with TLS, over WebSocket, over WebSocket with TLS. `peer_maker` returns the
    maker of its peers. `is_on`: this machine can connect unless the settings differ. `other_names` are RabbitMQ's names
    of its listeners, by the endings of their settings, besides those that `Listener.shown` has.

    Over WebSockets: the names of `subprotocols`, whether a client `may_name_none`, and whether it `takes_text`.
    """

    name: str
    title: str
    ports: tuple[int, int, int, int]
    peer_maker: Callable[[], PeerMaker]
    subprotocols: tuple[str, ...]
    may_name_none: bool = False
    takes_text: bool = False
    is_on: bool = False
    other_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _amqp() -> PeerMaker:
    from warren.channels.connection import Connection

    return Connection


def _mqtt() -> PeerMaker:
    from warren.mqtt.peer import MqttPeer

    return MqttPeer


def _stomp() -> PeerMaker:
    from warren.stomp.peer import StompPeer

    return StompPeer


# AMQP 1.0 shares the ports of 0-9-1: the first bytes tell which of the two a client speaks. Some clients over WebSocket
# do not name a subprotocol: the first stomp.js, CloudAMQP's client for browsers.
PROTOCOLS: Final = (
    Protocol(
        name="amqp",
        title="AMQP",
        ports=(5672, 5671, 15678, 15677),
        peer_maker=_amqp,
        subprotocols=("amqp",),
        may_name_none=True,
        is_on=True,
        other_names={"": ("amqp091", "amqp0-9-1"), "s": ("amqp091/ssl",)},
    ),
    Protocol(
        name="mqtt",
        title="MQTT",
        ports=(1883, 8883, 15675, 15676),
        peer_maker=_mqtt,
        subprotocols=("mqtt", "mqttv3.1"),
        other_names={"": ("rabbitmq_mqtt",)},
    ),
    Protocol(
        name="stomp",
        title="STOMP",
        ports=(61613, 61614, 15674, 15673),
        peer_maker=_stomp,
        subprotocols=("v12.stomp", "v11.stomp", "v10.stomp"),
        may_name_none=True,
        takes_text=True,
        other_names={"": ("rabbitmq_stomp",)},
    ),
)


class ListenerKind(NamedTuple):
    """One way in which clients of a protocol connect.

    `setting` has its address, and is its name in the API. `is_on`: by default, on this machine. `shown` is RabbitMQ's
    name of it, `other_names` are more of them.
    """

    setting: str
    protocol: Protocol
    port: int
    is_tls: bool
    is_web: bool
    is_on: bool
    description: str
    shown: str
    other_names: tuple[str, ...]


def _kinds_of(protocol: Protocol) -> list[ListenerKind]:
    name = protocol.name
    where = f"where {protocol.title} clients connect"
    ways = (
        ("", False, False, where, name),
        ("s", True, False, f"{where} with TLS", f"{name}/ssl"),
        ("_ws", False, True, f"{where} over WebSocket", f"http/web-{name}"),
        ("_wss", True, True, f"{where} over WebSocket with TLS", f"https/web-{name}"),
    )
    return [
        ListenerKind(
            name + ending,
            protocol,
            port,
            is_tls,
            is_web,
            protocol.is_on and not ending,
            f"{text}, or off",
            shown,
            protocol.other_names.get(ending, ()),
        )
        for port, (ending, is_tls, is_web, text, shown) in zip(protocol.ports, ways, strict=True)
    ]


# By their settings.
LISTENERS: Final = {kind.setting: kind for protocol in PROTOCOLS for kind in _kinds_of(protocol)}
