"""The event exchange: ``amq.rabbitmq.event``, a topic exchange in vhost ``/``, gets a message for each change.

An event is a persistent message without a body. Its routing key is its name, its headers say what happened, its
timestamp is that of the header ``timestamp_in_ms``.

    connection.created .closed             channel.created .closed             consumer.created .deleted
    queue.created .deleted                 exchange.created .deleted           binding.created .deleted
    user.authentication.success .failure   user.created .deleted               user.tags.set
    user.password.changed .cleared         permission.created .deleted         topic.permission.created .deleted
    vhost.created .updated .deleted        vhost.limits.set .cleared           user.limits.set .cleared
    policy.set .cleared                    operator.policy.cleared             queue.policy.updated .cleared
    parameter.set .cleared                 alarm.set .cleared

Texts are longstr, all integers long, lists arrays, objects tables. RabbitMQ sends an Erlang term that has no field type
as the text of that term, and so do we: addresses (``{127,0,0,1}``), the arguments of queues, exchanges, bindings and
consumers, and client-properties (an array of texts like ``{<<"x-max-length">>,signedint,5}``), objects within the value
of a parameter (``#{<<"max-hops">> => 1}``).
``pid`` is the name of a connection or a channel that no other one ever had; ``closed`` has little else.

1. While nothing is bound to the exchange, no event is built: an event costs two look-ups.
2. Events are published at the end of the turn, in the order in which things happened (`channels.own_messages`).
3. A refused change makes no event, nor does setting a vhost, policy, limit or parameter to its current value. A change
   that follows from another one has its own event. Its author is `INTERNAL_USER` unless the user asked for it, too.
4. An event counts as steps of the work that it tells about (`queues.long_work`): work with many consequences continues
   in later turns, and tells of each consequence when it happens. So the number of events that wait for the end of a
   turn is bounded, and events of consequences may come after the event of the change itself.
5. Headers that are too large or nested too deep for their readers are sent without the values that cause this.

Source: RabbitMQ, "Event Exchange"; names, types and order as 3.10.8 sends them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from warren.amqp.field_table import Table
from warren.amqp.properties import PERSISTENT, BasicProperties
from warren.amqp.term_text import term_text
from warren.channels.event_values import (
    address_term,
    argument_terms,
    atom_text,
    event_table,
    parameter_value,
    port_of,
    property_terms,
    protocol_term,
    without_large,
)
from warren.channels.own_messages import cut_short, fits
from warren.channels.peer import Peer
from warren.channels.session import Session
from warren.exchanges.binding import Binding
from warren.exchanges.exchange import Exchange
from warren.msgstore.log.message import Envelope, build_message
from warren.queues.arguments import CLASSIC, LONG_TYPES
from warren.queues.base_queue import BaseQueue
from warren.queues.consumer import Consumer
from warren.vhosts.definitions import parse_definition, parse_json
from warren.vhosts.metadata import (
    GlobalParameterDelete,
    GlobalParameterPut,
    MetadataChange,
    ParameterDelete,
    ParameterPut,
    PermissionDelete,
    PermissionPut,
    PolicyDelete,
    PolicyPut,
    TopicPermissionDelete,
    TopicPermissionPut,
    UserDelete,
    UserLimitsDelete,
    UserLimitsPut,
    UserPut,
    VhostLimitsDelete,
    VhostLimitsPut,
    VhostPut,
)
from warren.vhosts.parameters import (
    OPERATOR_POLICY_COMPONENT,
    VHOST_LIMITS_COMPONENT,
    VHOST_LIMITS_NAME,
    ParameterChange,
)
from warren.vhosts.topology_watcher import INTERNAL_USER, TopologyWatcher
from warren.vhosts.virtual_host import EVENT_EXCHANGE, EVENT_VHOST, VirtualHost, standard_exchanges

if TYPE_CHECKING:
    from warren.channels.broker import Broker

BY: Final = "user_who_performed_action"
EVENT_STEPS: Final = 16  # of making and publishing an event; one more for each queue that may get it

Event = tuple[str, Table]


class Events(TopologyWatcher):
    """Tells the event exchange."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._life_s: int = 0  # distinguishes the pids of this run of the broker from those of others

    def is_watched(self) -> bool:
        """Tell whether any queue could get an event."""
        vhost = self._broker.vhosts.get(EVENT_VHOST)
        if vhost is None:
            return False
        exchange = vhost.exchanges.get(EVENT_EXCHANGE)
        return exchange is not None and len(exchange.bindings) > 0

    def emit(self, key: str, headers: Table) -> None:
        """Publish the event `key` if a queue listens. `headers`: text, numbers, lists and dicts of them."""
        if not self.is_watched():
            return
        broker = self._broker
        broker.work.charge(EVENT_STEPS + len(broker.vhosts[EVENT_VHOST].exchanges[EVENT_EXCHANGE].bindings))
        now_ms = broker.now_ms()
        encoded = event_table(headers, now_ms)
        if not fits(encoded):
            encoded = event_table(without_large(headers), now_ms)
        properties = BasicProperties()
        properties.headers = encoded
        properties.delivery_mode = PERSISTENT
        properties.timestamp = now_ms // 1000
        message = build_message(Envelope(EVENT_EXCHANGE, cut_short(key)), properties.encode(), b"", 0, True)
        broker.own_messages.add(broker.vhosts[EVENT_VHOST], message)

    def emit_all(self, events: list[Event]) -> None:
        """Publish the events that `describe` returned."""
        for key, headers in events:
            self.emit(key, headers)

    def pid(self, peer: Peer, serial: int) -> str:
        """Name a connection (`serial` 0), or one of its channels, as RabbitMQ names processes."""
        if self._life_s == 0:
            self._life_s = self._broker.now_ms() // 1000
        return f"<{self._broker.node}.{self._life_s}.{peer.key}.{serial}>"

    # --- connections ------------------------------------------------------------------------------------------------

    def authenticated(self, peer: Peer, user: str, accepted: bool) -> None:
        """Report a login."""
        if not self.is_watched():
            return
        headers: Table = {}
        if not accepted:
            # RabbitMQ's text is a list of characters here, and so it is an array.
            headers["error"] = [ord(character) for character in f"user '{user}' - invalid credentials"]
        headers["ssl"] = peer.origin.is_tls
        headers["auth_mechanism"] = peer.login.mechanism
        headers["protocol"] = protocol_term(peer.origin.shown(peer.protocol))
        headers["peer_port"] = port_of(peer.origin.peer)
        headers["peer_host"] = address_term(peer.origin.peer)
        headers["connection_name"] = peer.origin.ends()
        headers["host"] = address_term(peer.origin.local)
        headers["name"] = user
        headers["connection_type"] = "network"
        self.emit("user.authentication.success" if accepted else "user.authentication.failure", headers)

    def connection_created(self, peer: Peer) -> None:
        """Report a connection that is open."""
        if not self.is_watched():
            return
        headers: Table = {
            BY: peer.login.user_name,
            "node": self._broker.node,
            "connected_at": peer.origin.connected_at_ms,
            "client_properties": property_terms(peer.client_properties),
            "channel_max": peer.login.channel_max,
            "frame_max": peer.login.frame_max_bytes,
            "timeout": peer.heartbeats.interval_s,
            "vhost": peer.login.vhost_name,
            "user": peer.login.user_name,
            "protocol": protocol_term(peer.origin.shown(peer.protocol)),
            "ssl_hash": "",
            "ssl_cipher": "",
            "ssl_key_exchange": "",
            "ssl_protocol": "",
            "auth_mechanism": peer.login.mechanism,
            "peer_cert_validity": "",
            "peer_cert_issuer": "",
            "peer_cert_subject": "",
            "ssl": peer.origin.is_tls,
            "peer_host": address_term(peer.origin.peer),
            "host": address_term(peer.origin.local),
            "peer_port": port_of(peer.origin.peer),
            "port": port_of(peer.origin.local),
            "name": peer.origin.ends(),
            "pid": self.pid(peer, 0),
            "type": "network",
        }
        if peer.login.name:
            headers["user_provided_name"] = peer.login.name
        self.emit("connection.created", headers)

    def connection_closed(self, peer: Peer) -> None:
        """Report the end of a connection that had begun to log in."""
        if not self.is_watched():
            return
        headers: Table = {
            "client_properties": property_terms(peer.client_properties),
            "node": self._broker.node,
            "pid": self.pid(peer, 0),
            "name": peer.origin.ends(),
        }
        if peer.login.name:
            headers["user_provided_name"] = peer.login.name
        self.emit("connection.closed", headers)

    def channel_created(self, channel: Session) -> None:
        """Report a channel that is open."""
        if not self.is_watched():
            return
        peer = channel.peer
        headers: Table = {
            BY: peer.login.user_name,
            "vhost": peer.login.vhost_name,
            "user": peer.login.user_name,
            "number": int(channel.number),
            "connection": self.pid(peer, 0),
            "name": f"{peer.origin.ends()} ({int(channel.number)})",
            "pid": self.pid(peer, channel.serial),
        }
        self.emit("channel.created", headers)

    def channel_closed(self, channel: Session) -> None:
        """Report a channel that has ended."""
        if not self.is_watched():
            return
        peer = channel.peer
        self.emit("channel.closed", {BY: peer.login.user_name, "pid": self.pid(peer, channel.serial)})

    # --- consumers --------------------------------------------------------------------------------------------------

    def consumer_created(self, consumer: Consumer) -> None:
        channel = consumer.owner
        if not isinstance(channel, Session) or not self.is_watched():
            return
        headers: Table = {
            BY: channel.peer.login.user_name,
            "arguments": argument_terms(consumer.arguments),
            "prefetch_count": int(consumer.prefetch),
            "queue": consumer.queue.name,
            "vhost": channel.peer.login.vhost_name,
            "channel": self.pid(channel.peer, channel.serial),
            "ack_required": not consumer.no_ack,
            "exclusive": consumer.exclusive,
            "consumer_tag": consumer.tag,
        }
        self.emit("consumer.created", headers)

    def consumer_deleted(self, consumer: Consumer) -> None:
        channel = consumer.owner
        if not isinstance(channel, Session) or not self.is_watched():
            return
        headers: Table = {
            BY: channel.peer.login.user_name,
            "queue": consumer.queue.name,
            "vhost": channel.peer.login.vhost_name,
            "channel": self.pid(channel.peer, channel.serial),
            "consumer_tag": consumer.tag,
        }
        self.emit("consumer.deleted", headers)

    # --- topology ---------------------------------------------------------------------------------------------------

    def exchange_created(self, vhost: str, exchange: Exchange, by: str) -> None:
        if not self.is_watched():
            return
        self.emit("exchange.created", _exchange(vhost, exchange, by))

    def exchange_deleted(self, vhost: str, exchange: Exchange, by: str) -> None:
        self.emit("exchange.deleted", {BY: by, "name": exchange.name, "vhost": vhost})

    def queue_created(self, vhost: str, queue: BaseQueue, by: str) -> None:
        if not self.is_watched():
            return
        headers: Table = {BY: by}
        if queue.rules.queue_type != CLASSIC:
            headers["type"] = LONG_TYPES[queue.rules.queue_type]
            headers["exclusive"] = False
        else:
            owner = queue.owner
            headers["exclusive"] = owner is not None
            headers["owner_pid"] = self.pid(owner, 0) if isinstance(owner, Peer) else ""
        more: Table = {
            "arguments": argument_terms(queue.arguments),
            "auto_delete": queue.auto_delete,
            "durable": queue.durable,
            "name": queue.name,
            "vhost": vhost,
        }
        headers.update(more)
        self.emit("queue.created", headers)

    def queue_deleted(self, vhost: str, queue: BaseQueue, by: str) -> None:
        self.emit("queue.deleted", {BY: by, "name": queue.name, "vhost": vhost})

    def queue_policy_changed(self, queue: BaseQueue, change: PolicyPut | PolicyDelete, by: str) -> None:
        if not self.is_watched():
            return
        headers = _policy(change)
        headers[BY] = by
        headers["type"] = LONG_TYPES[queue.rules.queue_type]
        headers["vhost"] = change.vhost
        headers["name"] = queue.name
        self.emit("queue.policy.updated" if isinstance(change, PolicyPut) else "queue.policy.cleared", headers)

    def binding_created(self, vhost: str, binding: Binding, by: str) -> None:
        if self.is_watched():
            self.emit("binding.created", _binding(vhost, binding, by))

    def binding_deleted(self, vhost: str, binding: Binding, by: str) -> None:
        if self.is_watched():
            self.emit("binding.deleted", _binding(vhost, binding, by))

    # --- alarms and administration ------------------------------------------------------------------------------------

    def alarm(self, resource: str, short: bool) -> None:
        """Report that `resource` is short, or no longer."""
        self.emit("alarm.set" if short else "alarm.cleared", {"node": self._broker.node, "source": resource})

    def describe(self, change: MetadataChange, by: str) -> list[Event]:
        """Return the events of a change that `by` is about to make; send them once the change is made.

        `policy_changing` and `policy_changed` tell of policies; objects of a deleted vhost are told when they go.
        """
        if not self.is_watched():
            return []
        match change:
            case VhostPut():
                return self._vhost_put(change, by)
            case UserPut():
                return self._user_put(change, by)
            case UserDelete():
                return [("user.deleted", {BY: by, "name": change.name})]
            case PermissionPut():
                return [("permission.created", _permission(change, by))]
            case PermissionDelete():
                return [("permission.deleted", {BY: by, "vhost": change.vhost, "user": change.user})]
            case TopicPermissionPut():
                return [("topic.permission.created", _topic_permission(change, by))]
            case TopicPermissionDelete():
                return [("topic.permission.deleted", _lost_topic_permission(change, by))]
            case VhostLimitsPut() | VhostLimitsDelete():
                vhost = self._broker.vhosts.get(change.vhost)
                return [] if vhost is None else _vhost_limits(vhost, change, by)
            case UserLimitsPut() | UserLimitsDelete():
                return self._user_limits(change, by)
            case ParameterPut() | ParameterDelete() | GlobalParameterPut() | GlobalParameterDelete():
                return self._parameter(change, by)
        return []

    def policy_changing(self, change: PolicyPut | PolicyDelete, by: str) -> None:
        """Send the events that come before those of the queues that follow `change`."""
        if change.operator and self.is_watched():
            component, name = OPERATOR_POLICY_COMPONENT, change.name
            if isinstance(change, PolicyPut):
                self.emit_all([parameter_set(change.vhost, component, name, _policy(change), by)])
            else:
                self.emit_all([parameter_cleared(change.vhost, component, name, by)])

    def policy_changed(self, change: PolicyPut | PolicyDelete, by: str) -> None:
        """Report a policy that was changed or deleted."""
        if not self.is_watched():
            return
        headers = _policy(change)
        headers[BY] = by
        headers["vhost"] = change.vhost
        headers["name"] = change.name
        if isinstance(change, PolicyPut):
            self.emit("policy.set", headers)
        else:
            self.emit("operator.policy.cleared" if change.operator else "policy.cleared", headers)

    def _vhost_put(self, change: VhostPut, by: str) -> list[Event]:
        vhost = self._broker.vhosts.get(change.name)
        headers: Table = {
            "tags": list(change.tags),
            "description": change.description,
            BY: by,
            "cluster_state": {self._broker.node: "running"},
            "tracing": vhost is not None and vhost.tracing,
            "metadata": _vhost_metadata(change),
            "default_queue_type": change.default_queue_type or "undefined",
            "name": change.name,
        }
        if vhost is not None:
            return [("vhost.updated", headers)] if vhost.record != change else []
        events: list[Event] = [
            ("exchange.created", _exchange(change.name, exchange, by)) for exchange in standard_exchanges(change.name)
        ]
        events.append(("vhost.created", headers))
        return events

    def permissions_lost(self, lost: list[PermissionDelete | TopicPermissionDelete], by: str) -> Iterator[Event]:
        """Yield the events of permissions that go with their vhost."""
        for change in lost:
            yield from self.describe(change, by)

    def vhost_gone(self, vhost: VirtualHost, cleared: list[ParameterDelete], by: str) -> Iterator[Event]:
        """Yield the events of a deleted vhost, and of an administrator's settings for it."""
        name = vhost.name
        yield "vhost.deleted", {BY: by, "name": name}
        for parameter in cleared:
            yield parameter_cleared(name, parameter.component, parameter.name, by)
        yield from _vhost_limits(vhost, VhostLimitsDelete(name), by)
        for policy in vhost.policies.operator_policies:
            yield parameter_cleared(name, OPERATOR_POLICY_COMPONENT, policy, by)
            yield "operator.policy.cleared", {BY: by, "vhost": name, "name": policy}
        for policy in vhost.policies.policies:
            yield "policy.cleared", {BY: by, "vhost": name, "name": policy}

    def _user_put(self, change: UserPut, by: str) -> list[Event]:
        events: list[Event] = []
        old = self._broker.access.get(change.name)
        if old is None:
            events.append(("user.created", {BY: by, "name": change.name}))
        elif old.password_hash != change.password_hash and not _is_upgrade(old, change, by):
            key = "user.password.changed" if change.password_hash else "user.password.cleared"
            events.append((key, {BY: by, "name": change.name}))
        if change.tags != (() if old is None else old.tags):
            events.append(("user.tags.set", {BY: by, "tags": list(change.tags), "name": change.name}))
        return events

    def _user_limits(self, change: UserLimitsPut | UserLimitsDelete, by: str) -> list[Event]:
        access = self._broker.access
        limits = _definition(change.definition) if isinstance(change, UserLimitsPut) else {}
        if access.get(change.user) is None or access.usage(change.user).limits == limits:
            return []
        headers: Table = dict(limits)
        headers["username"] = change.user
        headers[BY] = by
        headers["name"] = "limits"
        return [("user.limits.set" if isinstance(change, UserLimitsPut) else "user.limits.cleared", headers)]

    def _parameter(self, change: ParameterChange, by: str) -> list[Event]:
        try:
            if not self._broker.parameters.would_change(change):
                return []
        except ValueError:
            return []  # it will be refused
        # RabbitMQ 3.10 sends parameter.set, without a value, when a global one is cleared.
        match change:
            case ParameterPut():
                value = parameter_value(parse_json(change.value))
                return [parameter_set(change.vhost, change.component, change.name, value, by)]
            case ParameterDelete():
                return [parameter_cleared(change.vhost, change.component, change.name, by)]
            case GlobalParameterPut():
                return [parameter_set("", "global", change.name, parameter_value(parse_json(change.value)), by)]
        return [parameter_cleared("", "global", change.name, by)]


def _vhost_limits(vhost: VirtualHost, change: VhostLimitsPut | VhostLimitsDelete, by: str) -> list[Event]:
    limits = _definition(change.definition) if isinstance(change, VhostLimitsPut) else {}
    if vhost.limits == limits:
        return []
    headers: Table = dict(limits)
    headers[BY] = by
    headers["name"] = "limits"
    if isinstance(change, VhostLimitsDelete):
        return [
            parameter_cleared(change.vhost, VHOST_LIMITS_COMPONENT, VHOST_LIMITS_NAME, by),
            ("vhost.limits.cleared", headers),
        ]
    return [
        parameter_set(change.vhost, VHOST_LIMITS_COMPONENT, VHOST_LIMITS_NAME, limits, by),
        ("vhost.limits.set", headers),
    ]


def _definition(text: str) -> Table:
    try:
        return parse_definition(text)
    except ValueError:
        return {}  # it will be refused


def _is_upgrade(old: UserPut, new: UserPut, by: str) -> bool:
    """Tell whether a login has replaced the hash of the same password by a better one."""
    return by == INTERNAL_USER and old.password_hash != "" and old.hashing_algorithm != new.hashing_algorithm


# --- headers ----------------------------------------------------------------------------------------------------------


def _vhost_metadata(change: VhostPut) -> str:
    """Return the part besides the name that RabbitMQ keeps, as a term."""
    pairs: list[str] = []
    if change.default_queue_type not in ("", "undefined"):
        pairs.append(f"default_queue_type => {term_text(change.default_queue_type)}")
    pairs.append(f"description => {term_text(change.description)}")
    if change.protected_from_deletion:
        pairs.append("protected_from_deletion => true")
    pairs.append("tags => [" + ",".join([atom_text(tag) for tag in change.tags]) + "]")
    return "#{" + ",".join(pairs) + "}"


def _policy(change: PolicyPut | PolicyDelete) -> Table:
    if isinstance(change, PolicyDelete):
        return {}
    return {
        "apply-to": change.apply_to,
        "priority": change.priority,
        "definition": _definition(change.definition),
        "pattern": change.pattern,
    }


def _exchange(vhost: str, exchange: Exchange, by: str) -> Table:
    return {
        BY: by,
        "policy": exchange.policy or "",
        "arguments": argument_terms(exchange.arguments),
        "internal": exchange.internal,
        "auto_delete": exchange.auto_delete,
        "durable": exchange.durable,
        "type": exchange.type_name,
        "name": exchange.name,
        "vhost": vhost,
    }


def _binding(vhost: str, binding: Binding, by: str) -> Table:
    return {
        BY: by,
        "vhost": vhost,
        "arguments": argument_terms(binding.arguments),
        "routing_key": binding.routing_key,
        "destination_kind": binding.destination.kind,
        "destination_name": binding.destination.name,
        "source_kind": "exchange",
        "source_name": binding.source.name,
    }


def _permission(change: PermissionPut, by: str) -> Table:
    return {
        BY: by,
        "read": change.read,
        "write": change.write,
        "configure": change.configure,
        "vhost": change.vhost,
        "user": change.user,
    }


def _topic_permission(change: TopicPermissionPut, by: str) -> Table:
    return {
        BY: by,
        "read": change.read,
        "write": change.write,
        "exchange": change.exchange,
        "vhost": change.vhost,
        "user": change.user,
    }


def _lost_topic_permission(change: TopicPermissionDelete, by: str) -> Table:
    headers: Table = {BY: by, "vhost": change.vhost, "user": change.user}
    if change.exchange:
        # RabbitMQ 3.10 sends permission.deleted then, as if the user had lost the whole vhost.
        headers["exchange"] = change.exchange
    return headers


def parameter_set(vhost: str, component: str, name: str, value: object, by: str) -> Event:
    """Return the event of a parameter; `vhost` is ``""`` and `component` ``global`` for a global one."""
    headers: Table = {BY: by, "value": value, "name": name, "component": component}
    if vhost:
        headers["vhost"] = vhost
    return "parameter.set", headers


def parameter_cleared(vhost: str, component: str, name: str, by: str) -> Event:
    """Return the event of a parameter that is gone; see `parameter_set`."""
    headers: Table = {BY: by, "name": name, "component": component}
    if vhost:
        headers["vhost"] = vhost
    return "parameter.cleared", headers
