"""Define kinds of setting values: how a value is read, and which values are allowed, for a person.

A kind is made once and used by many settings (``settings.py``). Its parser takes the value from a file, a flag or the
environment, and raises ValueError with the allowed values. Text from flags and the environment is `GivenText`, from
which numbers and tables are read as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from warren.amqp.numbers import is_long

HTTP_PORT: Final = 15672
CLUSTER_PORT: Final = 25672
LABEL_CHARACTERS_MAX: Final = 63  # of each part of a host name
_SIZE: Final = re.compile(r"([0-9]+)\s*(B|kB|MB|GB|KiB|MiB|GiB)?")
_SIZE_UNITS: Final = {
    None: 1,
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host name or address, and a TCP port; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class MemoryWatermark:
    """A share of the memory this process may use, or a number of bytes; exactly one is set."""

    fraction: float | None = None
    size_bytes: int | None = None

    def limit_bytes(self, total_bytes: int) -> int:
        """Return the watermark in bytes if `total_bytes` may be used altogether."""
        if self.size_bytes is not None:
            return self.size_bytes
        assert self.fraction is not None
        return int(total_bytes * self.fraction)

    def __str__(self) -> str:
        return str(self.size_bytes if self.size_bytes is not None else self.fraction)


class GivenText(str):
    """A value that can only be text because it was a flag or an environment variable."""

    __slots__ = ()


Parser = Callable[[object], Any]


class Kind(NamedTuple):
    """The values of a setting: how one is read, and which are allowed, for a person."""

    parse: Parser
    values: str


def about(
    kind: Kind, description: str, *, secret: bool = False, absent: str = "", example: str = "", option: str = ""
) -> dict[str, Any]:
    about: dict[str, Any] = {"description": description, "secret": secret, "absent": absent, "example": example}
    return about | {"option": option} | kind._asdict()


def integer_kind(minimum: int, maximum: int) -> Kind:
    def parse(value: object) -> int:
        if isinstance(value, GivenText):
            if not re.fullmatch(r"-?[0-9]{1,18}", value):
                raise ValueError("must be a whole number")
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError("must be a whole number")
        return in_range(value, minimum, maximum)

    return Kind(parse, f"{minimum} to {maximum}")


def size_kind(minimum: int, maximum: int) -> Kind:
    def parse(value: object) -> int:
        if isinstance(value, str):
            value = bytes_of(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError('must be a number of bytes, such as 65536 or "64 KiB"')
        return in_range(value, minimum, maximum)

    return Kind(parse, f"{shown_size(minimum)} to {shown_size(maximum)}")


def seconds_kind(minimum: float, maximum: float) -> Kind:
    def parse(value: object) -> float:
        if isinstance(value, GivenText):
            if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value):
                raise ValueError("must be a number of seconds")
            value = float(value)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ValueError("must be a number of seconds")
        if not minimum <= value <= maximum:
            raise ValueError(f"must be from {minimum:g} to {maximum:g}")
        return float(value)

    return Kind(parse, f"{minimum:g} to {maximum:.0f} seconds")


def flag_of(value: object) -> bool:
    if isinstance(value, GivenText):
        value = {"true": True, "false": False}.get(value)
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def host_names_of(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9.,\s-]*", value):
        raise ValueError("must be a comma-separated list of host names without ports")
    return value


def origins_of(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be origins with commas between them, such as https://app.example.com, or *")
    for origin in value.split(",") if value.strip() else ():
        if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s]+", origin.strip(), re.IGNORECASE):
            raise ValueError(f"{shown_value(origin.strip())} is not an origin such as https://app.example.com, nor *")
    return value


def node_name_of(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}@[A-Za-z0-9._-]{1,190}", value):
        raise ValueError("must be a name such as rabbit@host")
    return str(value)


def cluster_name_of(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", value):
        raise ValueError("must be a name of letters, digits, dots, hyphens and underscores")
    return value


def etcd_endpoints_of(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be URLs with commas between them, such as http://etcd1:2379,http://etcd2:2379")
    endpoints = [text.strip() for text in value.split(",")] if value.strip() else []
    for endpoint in endpoints:
        # Not shown: it may contain a password.
        if not re.fullmatch(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[1-9][0-9]{0,4}", endpoint):
            raise ValueError("must be URLs with commas between them, such as http://etcd1:2379,http://etcd2:2379")
    return ",".join(endpoints)


def _advertised(value: object, port: int, readers: str) -> Endpoint | None:
    endpoint: Endpoint | None = endpoint_kind(port).parse(value)
    if endpoint is not None and (not endpoint.port or endpoint.host in ("0.0.0.0", "::")):
        raise ValueError(f"must be an address that {readers} reach, with a port")
    return endpoint


def advertised_of(value: object) -> Endpoint | None:
    return _advertised(value, CLUSTER_PORT, "other nodes")


def http_advertised_of(value: object) -> Endpoint | None:
    return _advertised(value, HTTP_PORT, "clients")


def http_url_of(value: object) -> str:
    # Not shown: it may contain a password.
    if not isinstance(value, str) or not re.fullmatch(HTTP_URL, value):
        raise ValueError("must be a URL without a user or password, such as http://collector:4318")
    return value


HTTP_URL: Final = r"(https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[1-9][0-9]{0,4})?(/[!-~]*)?)?"  # or nothing


def share_of(value: object) -> float:
    if isinstance(value, GivenText):
        if not re.fullmatch(r"[01](\.[0-9]{1,9})?|\.[0-9]{1,9}", value):
            raise ValueError("must be from 0 to 1")
        value = float(value)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError("must be from 0 to 1")
    return float(value)


def networks_of(value: object) -> str:
    import ipaddress

    if not isinstance(value, str):
        raise ValueError("must be a comma-separated list of networks, such as 127.0.0.0/8")
    for text in value.split(",") if value.strip() else ():
        try:
            ipaddress.ip_network(text.strip())
        except ValueError:
            raise ValueError(f"{shown_value(text.strip())} is not a network such as 127.0.0.0/8") from None
    return value


def places_of(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a comma-separated list of directories and URLs, such as /srv/lake")
    for text in value.split(",") if value.strip() else ():
        place = text.strip()
        is_path = place.startswith("/") and ".." not in place.split("/")
        is_url = all(place.partition("://")) and not {"?", "#"} & set(place)
        is_catalog = place.startswith("catalog:") and place != "catalog:"
        if not (is_path or is_url or is_catalog) or not place.isprintable():
            wanted = "an absolute path such as /srv/lake, a URL such as s3://lake, or catalog:NAME"
            raise ValueError(f"{shown_value(place)} is not {wanted}")
    return value


def choice_kind(*words: str) -> Kind:
    def parse(value: object) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return str(value)

    return Kind(parse, either(*words))


def choice_by_name_kind(*words: str) -> Kind:
    def parse(value: object) -> dict[str, str]:
        if isinstance(value, GivenText):
            try:
                value = json.loads(value)
            except ValueError:
                value = None
        if not isinstance(value, dict):
            raise ValueError(f'must be a table, or JSON in the environment, such as {{"name": "{words[0]}"}}')
        for name, word in value.items():
            if word not in words:
                raise ValueError(f"{name!r} must be one of {', '.join(words)}")
        return value

    return Kind(parse, f"a table of names, each {either(*words)}")


def _is_host(host: str) -> bool:
    """Tell whether a name can be looked up at all: with other ones `getaddrinfo` raises something else than OSError."""
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            return False
    return all(0 < len(label) <= LABEL_CHARACTERS_MAX for label in host.removesuffix(".").split("."))


def endpoint_kind(default_port: int) -> Kind:
    def parse(value: object) -> Endpoint | None:
        if value == "off":
            return None
        match = (
            re.fullmatch(r"(?:\[([^][]+)\]|([^][:\s]+))(?::([0-9]{1,9}))?", value) if isinstance(value, str) else None
        )
        if match is None:
            raise ValueError('must be HOST:PORT (an IPv6 address in brackets) or "off"')
        if int(match[3] or 0) > 65535:
            raise ValueError("the port must be from 0 to 65535 (0: any free one)")
        port = default_port if match[3] is None else int(match[3])
        host = match[1] or match[2]
        if not _is_host(host):
            raise ValueError(f"the host has an empty part, or one of more than {LABEL_CHARACTERS_MAX} characters")
        return Endpoint(host, port)

    return Kind(parse, 'HOST:PORT or "off"')


def path_of(value: object) -> Path:
    if not isinstance(value, str) or not value or "\x00" in value:
        raise ValueError("must be a path")
    return Path(value).expanduser()


def text_of(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    return str(value)


def name_of_user_of(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value.encode("utf-8", "replace")) <= 255 or not value.isprintable():
        raise ValueError("must be a name of at most 255 bytes")
    return str(value)


def password_of(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be text, and not empty")
    return str(value)


def metadata_url_of(value: object) -> str:
    if not isinstance(value, str) or not re.match(r"(sqlite|postgresql|postgresql\+psycopg)://", value):
        raise ValueError("must be an sqlite:///… or postgresql+psycopg://… URL")
    return str(value)


def watermark_of(value: object) -> MemoryWatermark:
    if isinstance(value, str):
        percent = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%", value)
        if percent is not None:
            value = float(percent[1]) / 100
        elif re.fullmatch(r"[01]?\.[0-9]{1,9}", value):
            value = float(value)
        else:
            value = bytes_of(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError('must be a share such as 0.4 or "40%", or a size such as "2 GiB"')
    if 0 < value <= 1:
        return MemoryWatermark(fraction=float(value))
    if not isinstance(value, int) or not is_long(value) or value < WATERMARK_MIN_BYTES:
        raise ValueError("must be a share above 0 and up to 1, or at least 64 MiB")
    return MemoryWatermark(size_bytes=value)


WATERMARK_MIN_BYTES: Final = 64 << 20


def either(*words: str) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def shown_size(size_bytes: int) -> str:
    """Return a size with the largest binary unit that divides it; text that settings understand."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % _SIZE_UNITS[unit] == 0:
            return f"{size_bytes // _SIZE_UNITS[unit]} {unit}"
    return str(size_bytes)


def bytes_of(text: str) -> int | None:
    match = _SIZE.fullmatch(text.strip())
    return None if match is None or len(match[1]) > 18 else int(match[1]) * _SIZE_UNITS[match[2]]


def in_range(value: int, minimum: int, maximum: int) -> int:
    if not minimum <= value <= maximum:
        raise ValueError(f"must be from {minimum} to {maximum}")
    return value


PATH: Final = Kind(path_of, "a path")
TEXT: Final = Kind(text_of, "text")
SWITCH: Final = Kind(flag_of, "true or false")
WATERMARK: Final = Kind(watermark_of, 'a share such as 0.4 or "40%", or a size such as "2 GiB"')


def shown_value(value: object) -> str:
    text = repr(str(value)) if isinstance(value, str) else str(value)
    return text if len(text) <= 100 else text[:99] + "…"
