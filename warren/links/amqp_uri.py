"""AMQP URIs with RabbitMQ's parameters.

    amqp[s]://[user[:password]@][host[:port]][/vhost][?parameter=value&…]

A URI without host means this broker. A missing path means the default vhost; the path ``/`` means the empty name.

Source: RabbitMQ's URI specification and its query parameters; the reasons are those of RabbitMQ 3.10.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes

from warren.amqp_client.redaction import SCHEME, redact_uri

PORT: Final = 5672
TLS_PORT: Final = 5671
DEFAULT_HEARTBEAT_S: Final = 10
DEFAULT_TIMEOUT_MS: Final = 60_000
URI_MAX_CHARACTERS: Final = 16 << 10  # a password may be a token of some kilobytes
# Limit of the domain name system. It also bounds the conversion to ASCII, which takes quadratic time.
HOST_MAX_CHARACTERS: Final = 253
SHORT_MAX_BYTES: Final = 255  # of a name on the wire
_NO_ENTITY = re.compile("%(?![0-9A-Fa-f]{2})")
_NUMBERS: Final = ("heartbeat", "connection_timeout", "channel_max", "frame_max", "depth")


class UriError(ValueError):
    """An invalid URI. The text is the reason only; it never quotes the URI."""


@dataclass(frozen=True)
class BrokerUri:
    """One parsed URI. ``host`` is empty for this broker; ``user`` None: not given."""

    tls: bool
    host: str
    port: int
    vhost: str
    shown: str
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    heartbeat_s: int = DEFAULT_HEARTBEAT_S
    connection_timeout_ms: int = DEFAULT_TIMEOUT_MS
    channel_max: int = 0
    mechanisms: tuple[str, ...] = ()
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    server_name: str | None = None

    @property
    def is_local(self) -> bool:
        return not self.host


def _unquote(text: str) -> str:
    wrong = _NO_ENTITY.search(text)
    if wrong is not None:
        raise UriError("unterminated_entity" if len(text) - wrong.start() < 3 else "invalid_entity")
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise UriError("a part is not UTF-8") from None


def _split_authority(authority: str) -> tuple[str | None, str | None, str, int | None]:
    userinfo, at, place = authority.rpartition("@")
    user: str | None = None
    password: str | None = None
    if at:
        name, colon, secret = userinfo.partition(":")
        user = _unquote(name)
        password = _unquote(secret) if colon else None
    if place.startswith("["):
        host, bracket, rest = place[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise UriError("{unable_to_parse_uri,malformed_uri}")
        port_text = rest[1:]
    else:
        host, _, port_text = place.partition(":")
        host = _unquote(host)
    if not port_text:
        return user, password, host, None
    if not port_text.isascii() or not port_text.isdigit():
        raise UriError("{unable_to_parse_uri,malformed_uri}")
    port = int(port_text[:9])
    if not 0 < port < 65536:
        raise UriError(f"{{port_out_of_range,{port}}}")
    return user, password, host, port


def _check_name(what: str, name: str) -> None:
    if len(name) > HOST_MAX_CHARACTERS:
        raise UriError(f"{what} has more than {HOST_MAX_CHARACTERS} characters")
    if "\0" in name:
        raise UriError(f"{what} contains a NUL")


def _vhost(path: str, default: str) -> str:
    if not path:
        return default
    if "/" in path[1:]:
        raise UriError("invalid_vhost")
    vhost = _unquote(path[1:])
    if len(vhost.encode()) > SHORT_MAX_BYTES:
        raise UriError("invalid_vhost")
    return vhost


def _number(name: str, text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,10}", text):
        raise UriError(f"{{invalid_amqp_params_parameter,{name},not_an_integer}}")
    return int(text)


def parse_uri(text: str, default_vhost: str = "/") -> BrokerUri:
    """Parse `text`.

    Raises:
        UriError: not an AMQP URI. Unknown parameters are ignored, as RabbitMQ does.
    """
    if len(text) > URI_MAX_CHARACTERS:
        raise UriError(f"it has more than {URI_MAX_CHARACTERS} characters")
    found = SCHEME.fullmatch(text)
    if found is None:
        raise UriError("{unable_to_parse_uri,no_scheme}")
    scheme = found[1].lower()
    if scheme not in ("amqp", "amqps"):
        raise UriError(f'{{unexpected_uri_scheme,"{scheme}"}}')
    if not found[2].startswith("//"):
        raise UriError("{unable_to_parse_uri,malformed_uri}")
    rest, _, query = found[2][2:].partition("?")
    authority, slash, path = rest.partition("/")
    user, password, host, port = _split_authority(authority)
    if port is not None and not host:
        raise UriError("{unable_to_parse_uri,malformed_uri}")
    _check_name("the host name", host)
    given = parse_qsl(query, keep_blank_values=True)
    parameters = dict(given)
    server_name = parameters.get("server_name_indication")
    if server_name is not None:
        _check_name("server_name_indication", server_name)
    numbers = {name: _number(name, parameters[name]) for name in _NUMBERS if name in parameters}
    tls = scheme == "amqps"
    mechanisms = tuple(value.upper() for name, value in given if name == "auth_mechanism")
    return BrokerUri(
        tls=tls,
        host=host,
        port=port or (TLS_PORT if tls else PORT),
        vhost=_vhost(slash + path, default_vhost),
        shown=redact_uri(text),
        user=user,
        password=password,
        heartbeat_s=max(0, min(0xFFFF, numbers.get("heartbeat", DEFAULT_HEARTBEAT_S))),
        connection_timeout_ms=max(1, numbers.get("connection_timeout", DEFAULT_TIMEOUT_MS)),
        channel_max=max(0, min(0xFFFF, numbers.get("channel_max", 0))),
        mechanisms=mechanisms,
        ca_file=parameters.get("cacertfile"),
        certificate_file=parameters.get("certfile"),
        key_file=parameters.get("keyfile"),
        key_password=parameters.get("password"),
        verify=parameters.get("verify", "verify_peer") != "verify_none",
        server_name=server_name,
    )
