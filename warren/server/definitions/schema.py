"""Read definition files, as RabbitMQ 3.x and 4.x and Warren export them, from JSON into typed items.

    key                  an item says
    users                name, password_hash, hashing_algorithm, tags (list, or text with commas), limits
    vhosts               name, description, tags, default_queue_type, either flat or in metadata; limits
    permissions          user, vhost, configure, write, read
    topic_permissions    user, vhost, exchange, write, read
    parameters           vhost, component, name, value
    global_parameters    name, value
    policies             vhost, name, pattern, apply-to, priority, definition
    queues               vhost, name, type, durable, auto_delete, arguments
    exchanges            vhost, name, type, durable, auto_delete, internal, arguments
    bindings             vhost, source, destination, destination_type, routing_key, arguments

1. Keys that are not listed here are ignored, at the top and in items.
2. In a file of one vhost only items that belong to a vhost count. All of them belong to that vhost, whatever they say.
3. All items are checked before the file is refused, so that its author learns of every mistake at once.
4. A scrypt hash is exported in base64 a second time: RabbitMQ refuses a file with a hash that is not base64. A scrypt
   hash that is not encoded again is accepted, too.
5. Each item is found and decoded on its own, with pauses, and has a maximum size: even the largest file does not take a
   long turn of the broker.
6. If a key occurs twice, at the top or in an item, the last one counts.

Source: RabbitMQ, "Definition Export and Import"; forms from 3.10.8 and 4.x.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from warren.server.json_parts import Part, parts_of
from warren.server.logins.passwords import SCRYPT, PasswordHash, check_hash

# Called between small pieces of work; lets other tasks run when it is time.
Pause = Callable[[], Awaitable[None]]

PROBLEMS_SHOWN: Final = 100
# An object that exists is exported with less, see `vhosts.metadata.check_storable`: what is exported can be imported.
ITEM_BYTES_MAX: Final = 5 << 20
ITEM_VALUES_MAX: Final = 100_000
_OBJECT = dict[str, Any] | list[Any] | None  # an empty object may be written as an empty array
_TAGS = list[str] | str | None


class DefinitionsRefused(Exception):
    """A file that cannot be imported; `problems` says why, a line each. The broker stays as it was."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(*problems[:PROBLEMS_SHOWN])
        self.problems = problems

    def shown(self, at_most: int = PROBLEMS_SHOWN) -> list[str]:
        """Return the first problems, and how many more there are."""
        left = len(self.problems) - at_most
        return self.problems[:at_most] + ([f"and {left} more"] if left > 0 else [])


class ItemTooLarge(DefinitionsRefused):
    """An item of it is too large."""


class UserItem(msgspec.Struct):
    name: str
    password_hash: str | None = None
    password: str | None = None
    hashing_algorithm: str | None = None
    tags: _TAGS = None
    limits: _OBJECT = None


class VhostItem(msgspec.Struct):
    name: str
    description: str | None = None
    tags: _TAGS = None
    default_queue_type: str | None = None
    protected_from_deletion: bool | None = None
    metadata: _OBJECT = None
    limits: _OBJECT = None


class VhostMetadata(msgspec.Struct):
    description: str | None = None
    tags: _TAGS = None
    default_queue_type: str | None = None
    protected_from_deletion: bool | None = None


class PermissionItem(msgspec.Struct):
    user: str
    configure: str
    write: str
    read: str
    vhost: str | None = None


class TopicPermissionItem(msgspec.Struct):
    user: str
    exchange: str
    write: str
    read: str
    vhost: str | None = None


class ParameterItem(msgspec.Struct):
    component: str
    name: str
    value: Any
    vhost: str | None = None


class GlobalParameterItem(msgspec.Struct):
    name: str
    value: Any


class PolicyItem(msgspec.Struct):
    name: str
    pattern: str
    definition: _OBJECT
    priority: int = 0
    apply_to: str = msgspec.field(default="all", name="apply-to")
    vhost: str | None = None


class QueueItem(msgspec.Struct):
    name: str
    type: str | None = None
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: _OBJECT = None
    vhost: str | None = None


class ExchangeItem(msgspec.Struct):
    name: str
    type: str = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: _OBJECT = None
    vhost: str | None = None


class BindingItem(msgspec.Struct):
    source: str
    destination: str
    destination_type: str = "queue"
    routing_key: str = ""
    arguments: _OBJECT = None
    vhost: str | None = None


class Definitions:
    """The items of a file, each with its place in it (``queues[3]``). `rabbit_version` is 0, 0 without one."""

    def __init__(self) -> None:
        self.rabbit_version = (0, 0)
        self.users: list[tuple[str, UserItem]] = []
        self.vhosts: list[tuple[str, VhostItem]] = []
        self.permissions: list[tuple[str, PermissionItem]] = []
        self.topic_permissions: list[tuple[str, TopicPermissionItem]] = []
        self.parameters: list[tuple[str, ParameterItem]] = []
        self.global_parameters: list[tuple[str, GlobalParameterItem]] = []
        self.policies: list[tuple[str, PolicyItem]] = []
        self.queues: list[tuple[str, QueueItem]] = []
        self.exchanges: list[tuple[str, ExchangeItem]] = []
        self.bindings: list[tuple[str, BindingItem]] = []


_KINDS: Final[dict[str, type[msgspec.Struct]]] = {
    "users": UserItem,
    "vhosts": VhostItem,
    "permissions": PermissionItem,
    "topic_permissions": TopicPermissionItem,
    "parameters": ParameterItem,
    "global_parameters": GlobalParameterItem,
    "policies": PolicyItem,
    "queues": QueueItem,
    "exchanges": ExchangeItem,
    "bindings": BindingItem,
}
_DECODERS: Final = {section: msgspec.json.Decoder(kind, strict=False) for section, kind in _KINDS.items()}
_VERSIONS: Final = ("rabbitmq_version", "rabbit_version")
_OF_A_VHOST: Final = ("parameters", "policies", "queues", "exchanges", "bindings")

_Kind = TypeVar("_Kind", bound=msgspec.Struct)


async def read_definitions(data: bytes, only_vhost: str | None, pause: Pause) -> Definitions:
    """Read a file of everything, or of one vhost.

    Raises:
        DefinitionsRefused: it is not JSON, or items have missing or wrongly typed fields.
    """
    definitions = Definitions()
    versions: dict[str, bytes] = {}
    problems: dict[str, list[str]] = {section: [] for section in _KINDS}
    try:
        for part in parts_of(data):
            if part is not None:
                raw = _raw(data, part)
                if part.key in _VERSIONS:
                    versions[part.key] = raw
                elif part.key in (_KINDS if only_vhost is None else _OF_A_VHOST):
                    if part.number <= 0:  # see (6)
                        problems[part.key] = []
                        getattr(definitions, part.key).clear()
                    problems[part.key] += _read_item(definitions, part, raw, only_vhost)
            await pause()
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise DefinitionsRefused([f"not a JSON object: {error}"]) from None
    definitions.rabbit_version = _version(versions)
    found = [problem for of_section in problems.values() for problem in of_section]
    if found:
        raise DefinitionsRefused(found)
    return definitions


def _place(part: Part) -> str:
    return part.key if part.number < 0 else f"{part.key}[{part.number}]"


def _raw(data: bytes, part: Part) -> bytes:
    """Return a part as it stands in the file; only of a small one it is known that it is JSON.

    Raises:
        ItemTooLarge: it cannot be decoded at once. msgspec.MsgspecError, ValueError, RecursionError: it is not JSON.
    """
    if part.end - part.start > ITEM_BYTES_MAX or part.values > ITEM_VALUES_MAX:
        limits = f"{ITEM_BYTES_MAX} bytes or {ITEM_VALUES_MAX} values"
        raise ItemTooLarge([f"{_place(part)[:64]}: more than {limits}, the maximum of an item"])
    raw = data[part.start : part.end]
    msgspec.json.decode(raw, type=msgspec.Raw)
    return raw


def _read_item(definitions: Definitions, part: Part, raw: bytes, only_vhost: str | None) -> list[str]:
    """Read an item; return its faults."""
    place = _place(part)
    if part.number < 0:
        return [] if msgspec.json.decode(raw) == [] else [f"{place}: must be an array"]
    kind = _KINDS[part.key]
    try:
        item: Any = _DECODERS[part.key].decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return [f"{place}: {fault}" for fault in _faults(raw, kind)]
    target: list[tuple[str, Any]] = getattr(definitions, part.key)
    target.append((place, item))
    if "vhost" in kind.__struct_fields__:
        if only_vhost is not None:
            item.vhost = only_vhost
        elif item.vhost is None:
            return [f"{place}: vhost is missing"]
    return []


def metadata_of(item: VhostItem) -> VhostMetadata:
    """Return the properties in a vhost's ``metadata``; flat fields have precedence.

    Raises:
        ValueError: a field in it has a wrong type.
    """
    try:
        return msgspec.convert(item.metadata or {}, VhostMetadata, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"metadata: {error}") from None


def hash_to_file(password: PasswordHash) -> str:
    """Return a password hash in the form for a file (4)."""
    if password.algorithm != SCRYPT:
        return password.text
    return base64.b64encode(password.text.encode()).decode()


def hash_from_file(text: str, algorithm: str) -> PasswordHash:
    """Return the password hash that a file gives as `text`.

    Raises:
        ValueError: it cannot be one of `algorithm`, or the algorithm is unknown.
    """
    if algorithm == SCRYPT and text and not text.startswith("$"):
        try:
            text = base64.b64decode(text, validate=True).decode("ascii")
        except ValueError:
            raise ValueError("password_hash is not base64") from None
    found = PasswordHash(text, algorithm)
    check_hash(found)
    return found


def tags_of(given: list[str] | str) -> tuple[str, ...]:
    """Return tags given as a list, or as a text with commas."""
    tags = given.split(",") if isinstance(given, str) else given
    return tuple(tag.strip() for tag in tags if tag.strip())


def _faults(raw: bytes, kind: type[_Kind]) -> list[str]:
    """Return all faults of an item."""
    try:
        given = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return [f"not JSON: {error}"]
    if not isinstance(given, dict):
        return ["must be an object"]
    faults: list[str] = []
    for each in msgspec.structs.fields(kind):
        if each.encode_name not in given:
            if each.required:
                faults.append(f"{each.encode_name} is missing")
            continue
        try:
            msgspec.convert(given[each.encode_name], each.type, strict=False)
        except msgspec.ValidationError as error:
            faults.append(f"{each.encode_name}: {error}")
    return faults


def _version(sections: dict[str, bytes]) -> tuple[int, int]:
    for key in _VERSIONS:
        try:
            said = msgspec.json.decode(sections.get(key, b"null"))
        except msgspec.MsgspecError:
            continue
        match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", said) if isinstance(said, str) else None
        if match is not None:
            return int(match[1]), int(match[2])
    return (0, 0)
