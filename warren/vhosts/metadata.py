"""Durable metadata as values: the engine stores changes in this form, and gets it back at a start.

A change of something durable is applied in memory at once and appended to the journal (`vhosts.metadata_journal`) as a
value. It becomes durable in the message log; SQL follows later.

1. A put has everything about a thing, and a delete names it. So applying a change twice does no harm.
2. Loading yields ``Put`` values only, in an order in which each can be applied on its own: vhosts, users,
   permissions, limits, policies, parameters, exchanges, queues, bindings. So an exchange or queue finds its policies
   already there.

Field tables are stored in their AMQP encoding (``amqp.field_table``), so that a type unknown to us is kept unchanged.
The names of the classes and of their fields are part of the format of the log (`vhosts.metadata_lane`). A field may be
added at the end, with a default. Nothing may be renamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration


@dataclass(frozen=True, slots=True)
class VhostPut:
    """Create or update a virtual host.

    ``default_queue_type`` is ``classic``, ``quorum``, or ``""`` for none; its effect is described in
    `warren.vhosts.virtual_host`. A vhost cannot be deleted while it is ``protected_from_deletion``.
    """

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = ""
    protected_from_deletion: bool = False


@dataclass(frozen=True, slots=True)
class VhostDelete:
    """Delete a virtual host with everything in it, from its permissions and parameters to its bindings."""

    name: str


@dataclass(frozen=True, slots=True)
class UserPut:
    """Create or update a user. An empty ``password_hash`` allows no password login.

    ``hashing_algorithm`` names how to verify ``password_hash``: RabbitMQ's
    ``rabbit_password_hashing_sha256``, ``_sha512``, ``_md5``, or our ``scrypt``.
    """

    name: str
    password_hash: str
    hashing_algorithm: str
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UserDelete:
    """Delete a user with all its permissions and limits."""

    name: str


@dataclass(frozen=True, slots=True)
class PermissionPut:
    """Set the three patterns (RE2, unanchored) of a user in a vhost. ``""`` matches nothing."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class PermissionDelete:
    """Remove a user's access to a vhost."""

    user: str
    vhost: str


@dataclass(frozen=True, slots=True)
class TopicPermissionPut:
    """Set the routing key patterns of a user for one topic exchange of a vhost."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class TopicPermissionDelete:
    """Remove a user's topic permission; ``exchange`` empty removes all of the user in the vhost."""

    user: str
    vhost: str
    exchange: str


@dataclass(frozen=True, slots=True)
class VhostLimitsPut:
    """Replace the limits of a vhost. ``definition`` is a JSON object; its keys are in `warren.vhosts.limits`."""

    vhost: str
    definition: str


@dataclass(frozen=True, slots=True)
class VhostLimitsDelete:
    """Remove all limits of a vhost."""

    vhost: str


@dataclass(frozen=True, slots=True)
class UserLimitsPut:
    """Replace the limits of a user. ``definition`` is a JSON object; its keys are in `warren.vhosts.limits`."""

    user: str
    definition: str


@dataclass(frozen=True, slots=True)
class UserLimitsDelete:
    """Remove all limits of a user."""

    user: str


@dataclass(frozen=True, slots=True)
class PolicyPut:
    """Create or replace a policy, or an operator policy; each kind has its own names.

    ``pattern`` is RE2, unanchored; ``priority`` an i64, the highest wins; ``definition`` a JSON object. The possible
    values of ``apply_to`` and ``definition`` are in `warren.vhosts.policies`.
    """

    vhost: str
    name: str
    pattern: str
    apply_to: str
    priority: int
    definition: str
    operator: bool = False


@dataclass(frozen=True, slots=True)
class PolicyDelete:
    """Delete a policy, or an operator policy."""

    vhost: str
    name: str
    operator: bool = False


@dataclass(frozen=True, slots=True)
class ParameterPut:
    """Set a parameter of a vhost. ``value`` is JSON; its component checks it (`warren.vhosts.parameters`)."""

    vhost: str
    component: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ParameterDelete:
    """Clear a parameter of a vhost."""

    vhost: str
    component: str
    name: str


@dataclass(frozen=True, slots=True)
class GlobalParameterPut:
    """Set a parameter of the whole broker. ``value`` is JSON."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class GlobalParameterDelete:
    """Clear a parameter of the whole broker."""

    name: str


@dataclass(frozen=True, slots=True)
class ExchangePut:
    """Create a durable exchange. ``arguments`` is an encoded field table including its length prefix.

    ``declared_by`` is the user that declared it; ``""`` means that the user is not known: an older Warren stored it.
    """

    vhost: str
    name: str
    type: str
    auto_delete: bool
    internal: bool
    arguments: bytes
    declared_by: str = ""

    @classmethod
    def of(cls, vhost: str, declared: ExchangeDeclaration, by: str) -> ExchangePut:
        """Return the row of a durable exchange that the user `by` declares."""
        return cls(vhost, declared.name, declared.type, declared.auto_delete, declared.internal, declared.arguments, by)

    @property
    def declaration(self) -> ExchangeDeclaration:
        """The declaration of this exchange."""
        return ExchangeDeclaration(
            self.name,
            self.type,
            durable=True,
            auto_delete=self.auto_delete,
            internal=self.internal,
            arguments=self.arguments,
        )


@dataclass(frozen=True, slots=True)
class ExchangeDelete:
    """Delete a durable exchange and every durable binding from or to it."""

    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class QueuePut:
    """Create a durable queue. ``arguments`` is an encoded field table including its length prefix.

    ``queue_id`` names the queue in the message store. It counts from 1 (u64), and an id is never used again, not even
    that of a deleted queue.
    """

    vhost: str
    name: str
    auto_delete: bool
    arguments: bytes
    queue_id: int

    @classmethod
    def of(cls, vhost: str, declared: QueueDeclaration, queue_id: int) -> QueuePut:
        """Return the row of a durable queue."""
        return cls(vhost, declared.name, declared.auto_delete, declared.arguments, queue_id)

    @property
    def declaration(self) -> QueueDeclaration:
        """The declaration of this queue."""
        return QueueDeclaration(self.name, durable=True, auto_delete=self.auto_delete, arguments=self.arguments)


@dataclass(frozen=True, slots=True)
class QueueDelete:
    """Delete a durable queue and every durable binding to it."""

    vhost: str
    name: str


@dataclass(slots=True, unsafe_hash=True)
class BindingPut:
    """Create a durable binding (both ends are durable). ``destination_type`` is ``queue`` or ``exchange``.

    Not frozen, though instances do not change: making a frozen one takes four times as long, and there may be millions.
    """

    vhost: str
    source: str
    destination: str
    destination_type: str
    routing_key: str
    arguments: bytes


@dataclass(frozen=True, slots=True)
class BindingDelete:
    """Delete a durable binding; its five fields are its identity."""

    vhost: str
    source: str
    destination: str
    destination_type: str
    routing_key: str
    arguments: bytes


MetadataChange = (
    VhostPut
    | VhostDelete
    | UserPut
    | UserDelete
    | PermissionPut
    | PermissionDelete
    | TopicPermissionPut
    | TopicPermissionDelete
    | VhostLimitsPut
    | VhostLimitsDelete
    | UserLimitsPut
    | UserLimitsDelete
    | PolicyPut
    | PolicyDelete
    | ParameterPut
    | ParameterDelete
    | GlobalParameterPut
    | GlobalParameterDelete
    | ExchangePut
    | ExchangeDelete
    | QueuePut
    | QueueDelete
    | BindingPut
    | BindingDelete
)


_NAMES: Final = ("name", "vhost", "user", "exchange", "component")
# Texts for people. A file of definitions has those of a vhost twice, each byte may take six there, and all has to fit
# into an item (`server.definitions.schema`).
_LABELS: Final = ("description", "tags")
LABEL_BYTES_MAX: Final = 64 << 10
TEXT_BYTES_MAX: Final = 4 << 20
TEXTS_MAX: Final = 1000


def check_storable(change: MetadataChange) -> None:
    """Refuse an administrator's text that no database stores, or no file of definitions, and names that AMQP lacks.

    Raises:
        ValueError: NUL, half of a surrogate pair, a name of more than `NAME_MAX_BYTES`, or more text than the limits.
    """
    for field in change.__slots__:
        value = getattr(change, field)
        texts = value if isinstance(value, tuple) else (value,)
        most: int = LABEL_BYTES_MAX if field in _LABELS else TEXT_BYTES_MAX
        together: int = 0
        if len(texts) > TEXTS_MAX:
            raise ValueError(f"{field}: {len(texts)} are too many (maximum {TEXTS_MAX})")
        for text in texts:
            if not isinstance(text, str):
                continue
            try:
                size = len(text.encode())
            except UnicodeEncodeError:
                raise ValueError(f"{field} is not valid Unicode") from None
            if "\x00" in text:
                raise ValueError(f"{field} contains a NUL character")
            if size > NAME_MAX_BYTES and field in _NAMES:
                raise ValueError(f"{field} is longer than {NAME_MAX_BYTES} bytes")
            together += size
        if together > most:
            raise ValueError(f"{field} is longer than {most} bytes")
