"""Translate RabbitMQ's configuration file, ``rabbitmq.conf``, into settings of ours.

    listeners.tcp.default = 5672              ->  amqp = "0.0.0.0:5672"
    vm_memory_high_watermark.relative = 0.6   ->  [limits]  memory_high_watermark = 0.6

1. Every line has one place in the result: `carried` over as a setting, `needless` with the reason, or `missing` if
   nothing here does what it asks for. No line is dropped silently.
2. Security never becomes weaker. A restriction of access that cannot be expressed here is `missing`. A listener with
   TLS becomes one with TLS or is left out; an address stays.
3. Lines that belong together are read together, in whatever order they come: `_Composition`.
4. The result is a file that `warren serve --config` reads.

`_KEYS` is the table of the keys and their meaning. A key that it does not know is `missing`.

    a line      key = value # remark
    a value     ends at a #, unless it is in single quotes; double quotes are a part of it; $(NAME) is a variable

Source: RabbitMQ, "Configuration"; the schemas of 4.3, ``rabbitmq.conf.example`` of 3.13 to 4.3, and the grammar of
Cuttlefish.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from warren.server.protocols import LISTENERS, PROTOCOLS
from warren.server.settings import KEYS

_LINE: Final = re.compile(r"[ \t]*((?:\\.|[A-Za-z0-9_.-])+)[ \t]*=[ \t]*(.*)")
_QUOTED: Final = re.compile(r"'([^']*)'[ \t]*(?:#.*)?")
_UNITS: Final = re.compile(r"([0-9]+)\s*([kKmMgGtT])?(i?[bB])?")
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SECRET: Final = re.compile("pass|secret|token|key$")
_EVERYWHERE: Final = "0.0.0.0"  # where RabbitMQ listens by default
# The most verbose first.
_LEVELS: Final = ("debug", "info", "warning", "error")
_LEVELS_OF_RABBITMQ: Final = {"notice": "info", "critical": "error", "alert": "error", "emergency": "error"}


class Untranslatable(ValueError):
    """The value of a key cannot be taken over; the text says why."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the file, without secrets as `shown`. Of several lines with one key the last one counts."""

    number: int
    key: str
    value: str

    @property
    def shown(self) -> str:
        if not self.value:
            return self.key.partition(" ")[0] + " ***" if _SECRET.search(self.key) else self.key
        return f"{self.key} = {'***' if _SECRET.search(self.key) else self.value}"


@dataclass
class Translation:
    """The result for a file. `values` are settings by their dotted keys; the others are lines, with a remark."""

    values: dict[str, object] = field(default_factory=dict)
    carried: list[Line] = field(default_factory=list)
    needless: list[tuple[Line, str]] = field(default_factory=list)
    missing: list[tuple[Line, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def toml(self) -> str:
        """Return the settings as a file, with the remarks in front."""
        lines = ["# Made from rabbitmq.conf by `warren config import-rabbitmq`."]
        for title, remarks in (
            ("Without a counterpart; look at each", self.missing),
            ("Not needed", self.needless),
        ):
            if remarks:
                lines += ["#", f"# {title}:"]
                lines += [f"#   {line.shown}    {remark}" for line, remark in remarks]
        if self.notes:
            lines += ["#", *(f"# {note}" for note in self.notes)]
        lines.append("")
        tables: dict[str, list[str]] = {"": []}
        for key, value in self.values.items():
            table, _, name = key.rpartition(".")
            tables.setdefault(table, []).append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
        for table, entries in tables.items():
            if table:
                lines += ["", f"[{table}]"]
            lines += entries
        return "\n".join(lines) + "\n"


def translate(text: str, *, is_directory: Callable[[str], bool] = lambda path: Path(path).is_dir()) -> Translation:
    """Translate the text of a ``rabbitmq.conf``."""
    composition = _Composition(is_directory)
    for line in _read(text, composition.found):
        _take(composition, line)
    composition.compose()
    return composition.found


def _read(text: str, found: Translation) -> list[Line]:
    """Return the lines that count."""
    last: dict[str, Line] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        stripped = raw.strip()
        if not stripped or stripped.startswith("#"):
            continue
        parts = _LINE.fullmatch(raw.rstrip())
        if parts is None:
            reason = "copy lines of other files into this one" if stripped.startswith("include") else "not key = value"
            found.missing.append((Line(number, stripped, ""), reason))
            continue
        line = Line(number, parts[1], parts[2])
        try:
            line = Line(number, parts[1], _value(parts[2]))
        except Untranslatable as error:
            found.missing.append((line, str(error)))
            continue
        earlier = last.pop(line.key, None)
        if earlier is not None:
            found.needless.append((earlier, f"line {number} has the same key"))
        last[line.key] = line
    return list(last.values())


def _value(text: str) -> str:
    """Return the value after the equals sign.

    Raises:
        Untranslatable: the value is unknown.
    """
    if text.startswith("'''"):
        raise Untranslatable("values of several lines are not supported")
    if text.startswith("'"):
        quoted = _QUOTED.fullmatch(text)
        if quoted is None:
            raise Untranslatable("the quote does not end the value")
        value = quoted[1]
    else:
        value = text.partition("#")[0].rstrip()
    if not value:
        raise Untranslatable("the value is missing")
    if "$(" in value:
        raise Untranslatable("the value is in RabbitMQ's environment: write it here")
    if value.startswith("encrypted:"):
        raise Untranslatable("the value is encrypted: write it here")
    return value


def _take(composition: _Composition, line: Line) -> None:
    for pattern, meaning in _KEYS:
        if re.fullmatch(pattern, line.key):
            try:
                meaning(composition, line)
            except ValueError as error:
                composition.found.missing.append((line, str(error)))
            return
    composition.found.missing.append((line, "unknown key"))


# --- what several lines say together ----------------------------------------------------------------------------------


class _Composition:
    """The lines whose meaning depends on other lines, by subject."""

    def __init__(self, is_directory: Callable[[str], bool]) -> None:
        self.found = Translation()
        self.is_directory = is_directory
        self._parts: dict[str, list[Line]] = {}
        self._said_by: dict[str, Line] = {}

    def gather(self, part: str, line: Line) -> None:
        """Keep a line of `part` until all have been read."""
        self._parts.setdefault(part, []).append(line)

    def set(self, name: str, value: object, *lines: Line) -> None:
        """Set the settings that `lines` mean.

        Raises:
            ValueError: the value is not allowed.
        """
        KEYS[name].parse(value)
        earlier = self._said_by.get(name)
        if earlier is not None and lines:
            raise Untranslatable(f"{name} is already set by line {earlier.number}")
        if lines:
            self._said_by[name] = lines[0]
        self.found.values[name] = value
        self.found.carried += lines

    def compose(self) -> None:
        """Make settings of the gathered lines."""
        self._certificates()
        self._listeners()
        for protocol in _PLUGINS:
            self._web(protocol.name)
        self._http()
        self._prometheus()
        self._memory()
        self._first_user()
        self._mechanisms()
        self._log()
        self._definitions()
        assert not self._parts, f"not composed: {sorted(self._parts)}"

    def _pop(self, part: str) -> list[Line]:
        return self._parts.pop(part, [])

    def _pop_one(self, part: str) -> Line | None:
        lines = self._parts.pop(part, [])
        self._refuse(lines[:-1], "set again under another name further down")
        return lines[-1] if lines else None

    def _refuse(self, lines: Sequence[Line], reason: str) -> None:
        self.found.missing += [(line, reason) for line in lines]

    def _skip(self, lines: Sequence[Line], reason: str) -> None:
        self.found.needless += [(line, reason) for line in lines]

    def _try(self, name: str, value: object, *lines: Line) -> bool:
        """Set the settings that `lines` mean, or say why that fails."""
        try:
            self.set(name, value, *lines)
        except ValueError as error:
            self._refuse(lines, str(error))
            return False
        return True

    # TLS

    def _certificates(self) -> None:
        verify, required = self._pop_one("verify"), self._pop_one("required")
        lines = [line for line in (verify, required) if line is not None]
        wants = verify is not None and verify.value == "verify_peer"
        needs = required is not None and required.value == "true"
        if needs:  # without the others, too: RabbitMQ does not start with it and without verify_peer
            self._try("tls.client_certificates", "required", *lines)
        elif wants:
            self._try("tls.client_certificates", "optional", *lines)
        else:
            self._skip(lines, "no certificates are requested")
        versions = self._pop("versions")
        named = {line.value.lower() for line in versions}
        if named == {"tlsv1.2", "tlsv1.3"}:
            self._skip(versions, "these are the supported versions of TLS")
        else:
            self._refuse(versions, "TLS 1.2 and 1.3 are always on, and no others")

    def _own_certificates(self, part: str, what: str) -> None:
        """Check the TLS options of a listener that has its own in RabbitMQ: here all listeners share one set."""
        values = self.found.values
        for line in self._pop(part):
            option = line.key.rpartition(".")[2]
            name = _TLS_FILES.get(option)
            if name is not None:
                if name not in values:
                    self._try(name, line.value, line)
                elif values[name] == line.value:
                    self._skip([line], f"{what} uses {name}")
                else:
                    self._refuse([line], f"{what} uses {name}, which is another one")
            elif option == "verify" and line.value == "verify_none":
                self._skip([line], "client certificates are requested on all listeners or none")
            elif option == "verify" and values.get("tls.client_certificates") in ("optional", "required"):
                self._skip([line], "tls.client_certificates is for all listeners")
            elif option == "fail_if_no_peer_cert" and line.value == "false":
                self._skip([line], "client certificates are requested on all listeners or none")
            elif option == "fail_if_no_peer_cert" and values.get("tls.client_certificates") == "required":
                self._skip([line], "tls.client_certificates is for all listeners")
            else:
                self._refuse([line], f"{what} has the TLS options of all listeners: see [tls]")

    # listeners

    def _listeners(self) -> None:
        for setting, kind in LISTENERS.items():
            if not kind.is_web:
                self._listener(setting, self._pop(setting))
        if "amqp" not in self.found.values:
            self.set("amqp", f"{_EVERYWHERE}:5672")
            self.found.notes.append("amqp: without listeners.tcp RabbitMQ listens on all addresses, port 5672.")
        for protocol in _PLUGINS:
            plain = protocol.name
            if f"{plain}s" in self.found.values and plain not in self.found.values:
                self.found.notes.append(
                    f"{plain}: RabbitMQ listens without TLS, too, on port {protocol.ports[0]}; here it does not."
                )

    def _listener(self, setting: str, lines: list[Line]) -> None:
        taken: Line | None = None
        for line in lines:
            if taken is not None:
                self._refuse([line], f"{setting} is one address, and that is line {taken.number}")
                continue
            try:
                address = "off" if line.value.lower() == "none" else _address(line.value)
            except Untranslatable as error:
                self._refuse([line], str(error))
                continue
            if self._try(setting, address, line):
                taken = line

    def _web(self, protocol: str) -> None:
        what = f"web_{protocol}"
        for way, setting in (("tcp", f"{protocol}_ws"), ("ssl", f"{protocol}_wss")):
            listener, port = self._pop_one(f"{what}.{way}.listener"), self._pop_one(f"{what}.{way}.port")
            ip = self._pop_one(f"{what}.{way}.ip")
            if listener is not None:
                self._refuse(
                    [line for line in (ip, port) if line is not None], f"line {listener.number} is the address"
                )
                self._listener(setting, [listener])
            elif port is not None:
                self._place(setting, ip, port, "")
            elif ip is not None:
                self._refuse([ip], "needs a port")
        self._own_certificates(f"{what}.ssl", what)

    def _place(self, setting: str, ip: Line | None, port: Line | None, default_port: str) -> None:
        """Set the address of a listener from two lines, of which one may be missing."""
        lines = [line for line in (ip, port) if line is not None]
        host = _EVERYWHERE if ip is None else ip.value
        number = default_port if port is None else port.value
        self._try(setting, f"[{host}]:{number}" if ":" in host else f"{host}:{number}", *lines)

    def _http(self) -> None:
        ways = {
            way: (self._pop_one(f"management.{way}.ip"), self._pop_one(f"management.{way}.port"))
            for way in ("tcp", "ssl", "listener")
        }
        legacy_tls = self._pop_one("management.listener.ssl")
        # Any option of a listener makes it a configured one.
        has_tls = any(ways["ssl"]) or bool(self._parts.get("management.ssl"))
        has_plain = any(ways["tcp"]) or bool(self._parts.get("management.tcp"))
        self._skip(self._pop("management.tcp"), "the API has its own limits and timeouts")
        if has_plain:
            self._place("http", *ways["tcp"], "15672")
        if has_tls:
            self._place("https", *ways["ssl"], "15671")
        legacy = [line for line in (*ways["listener"], legacy_tls) if line is not None]
        if legacy:
            is_tls = legacy_tls is not None and legacy_tls.value == "true"
            if has_plain and has_tls:
                self._skip(legacy, "RabbitMQ ignores management.listener if management.tcp or management.ssl is set")
            elif has_tls if is_tls else has_plain:
                self._refuse(legacy, f"{'https' if is_tls else 'http'} is one address")
            else:
                self._place("https" if is_tls else "http", *ways["listener"], "15671" if is_tls else "15672")
                if legacy_tls is not None:
                    self.found.carried.append(legacy_tls)
        self._own_certificates("management.ssl", "https")
        self._own_certificates("management.listener.ssl_opts", "https")
        if has_tls or has_plain or legacy:
            self.found.values.setdefault("http", "off")
        else:
            self.found.notes.append("http: the management plugin listens on all addresses; here on this machine only.")

    def _prometheus(self) -> None:
        ip, port = self._pop_one("prometheus.tcp.ip"), self._pop_one("prometheus.tcp.port")
        listener, tls = self._pop_one("prometheus.tcp.listener"), self._pop("prometheus.ssl")
        if listener is not None and ip is None and port is None:
            self._listener("prometheus", [listener])
        elif listener is not None:
            self._refuse([listener], "prometheus is one address")
        if ip is not None or port is not None:
            self._place("prometheus", ip, port, "15692")
        if tls:
            self._refuse(tls, "the port of the metrics has no TLS; /metrics of https has them, for users who log in")
            self.found.values.setdefault("prometheus", "off")

    # the rest

    def _memory(self) -> None:
        relative, absolute = self._pop_one("relative"), self._pop_one("absolute")
        total = self._pop_one("total")
        if absolute is not None and relative is not None:
            self._skip([absolute], "RabbitMQ ignores it if the relative one is set")
            absolute = None
        name = "limits.memory_high_watermark"
        try:
            if relative is not None:
                share = _share(relative.value)
                if total is not None:
                    self.set(name, int(share * _size(total.value)), relative, total)
                else:
                    self.set(name, share, relative)
                return
            if absolute is not None:
                self.set(name, _size(absolute.value), absolute)
                self._skip([total] if total is not None else [], "the watermark is a size")
                return
            if total is not None:  # with RabbitMQ's own share
                self.set(name, int(0.6 * _size(total.value)), total)
        except ValueError as error:
            self._refuse([line for line in (relative, absolute, total) if line is not None], str(error))

    def _first_user(self) -> None:
        name, password = self._pop_one("default_user"), self._pop_one("default_pass")
        if name is not None and name.value != "guest" and password is None:
            self._refuse([name], "set default_pass too: the default password is public")
        else:
            for setting, line in (("default_user", name), ("default_pass", password)):
                if line is not None:
                    self._try(setting, line.value, line)
        tags = self._pop("default_user_tags")
        granted = {line.key.removeprefix("default_user_tags.") for line in tags if line.value == "true"}
        if granted == {"administrator"}:
            self._skip(tags, "the first user is an administrator")
        else:
            self._refuse(tags, "the first user is an administrator only: create users in definitions")
        permissions = self._pop("default_permissions")
        if all(line.value == ".*" for line in permissions):
            self._skip(permissions, "the first user has all permissions in the vhost /")
        else:
            self._refuse(permissions, "the first user has all permissions in the vhost /: create users in definitions")

    def _mechanisms(self) -> None:
        lines = self._pop("auth_mechanisms")
        named = {line.value.upper() for line in lines}
        if not lines:
            return
        if {"PLAIN", "AMQPLAIN"} <= named <= {"PLAIN", "AMQPLAIN", "EXTERNAL"}:
            self._skip(lines, "these are offered, EXTERNAL to clients with a certificate")
            return
        both = "PLAIN and AMQPLAIN are offered always, EXTERNAL to clients with a certificate"
        anonymous = "; ANONYMOUS with AMQP 1.0 only, as guest" if "ANONYMOUS" in named else ""
        self._refuse(lines, both + anonymous)

    def _log(self) -> None:
        levels = self._pop("log.level")
        known = [_LEVELS_OF_RABBITMQ.get(line.value, line.value) for line in levels]
        for line, level in zip(levels, known, strict=True):
            if level not in _LEVELS:
                self._refuse([line], f"must be one of {', '.join(_LEVELS)}")
        good = [(line, level) for line, level in zip(levels, known, strict=True) if level in _LEVELS]
        if good:
            chosen = min((level for _, level in good), key=_LEVELS.index)
            self.set("log_level", chosen)
            for line, level in good:
                if level == chosen:
                    self.found.carried.append(line)
                else:
                    self._skip([line], f"there is one log, and it has {chosen}")
        formats = self._pop("log.format")
        for line in formats:
            wanted = "json" if line.value == "json" else "console"
            if self.found.values.get("log_format", wanted) != wanted:
                self._refuse([line], "there is one log, of one format")
            else:
                self._try("log_format", wanted, line)

    def _definitions(self) -> None:
        paths = self._pop("load_definitions")
        for line in paths[1:]:
            self._refuse([line], f"there is one file of definitions, and that is line {paths[0].number}")
        for line in paths[:1]:
            if line.value.endswith("/") or self.is_directory(line.value):
                self._refuse([line], "is a directory: load_definitions is one file")
            else:
                self._try("load_definitions", line.value, line)


_TLS_FILES: Final = {
    "cacertfile": "tls.ca",
    "certfile": "tls.certificate",
    "keyfile": "tls.private_key",
    "password": "tls.private_key_password",
}


# --- values -----------------------------------------------------------------------------------------------------------


def _address(value: str) -> str:
    if value.startswith(("unix:", "local:")):
        raise Untranslatable("there are no Unix sockets")
    host, _, port = value.rpartition(":")
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{host or _EVERYWHERE}:{port}"


def _whole(value: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", value):
        raise Untranslatable("must be a whole number")
    return int(value)


def _milliseconds(value: str) -> float:
    if value in ("undefined", "false"):
        return 0
    if not re.fullmatch("[0-9]{1,18}", value):
        raise Untranslatable("must be a number of milliseconds")
    return int(value) / 1000


def _size(value: str) -> int:
    units = _UNITS.fullmatch(value)
    if units is None:
        raise Untranslatable('must be a size, such as 1073741824 or "1GB"')
    # As in RabbitMQ: kB, MB and GB are powers of ten, k, M, G, KiB, MiB and GiB of two.
    base = 1000 if (units[3] or "").lower() == "b" and units[2] else 1024
    return int(units[1]) * int(base ** _POWERS[(units[2] or "").lower()])


def _share(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise Untranslatable("must be a share, such as 0.4") from None


def _login_from(value: str) -> str:
    known = {"distinguished_name": "dn", "common_name": "cn", "subject_alternative_name": "san"}
    if value not in known:
        raise Untranslatable("must be distinguished_name, common_name or subject_alternative_name")
    return known[value]


def _switch(value: str) -> bool:
    if value not in ("true", "false"):
        raise Untranslatable("must be true or false")
    return value == "true"


def _text(value: str) -> str:
    return value


# --- meanings ---------------------------------------------------------------------------------------------------------

Meaning = Callable[[_Composition, Line], None]


def _setting(name: str, read: Callable[[str], object]) -> Meaning:
    """Translate the key to the setting `name`."""
    return lambda composition, line: composition.set(name, read(line.value), line)


def _part(part: str) -> Meaning:
    """Translate the key together with others."""
    return lambda composition, line: composition.gather(part, line)


def _inner(why: str) -> Meaning:
    """Ignore a key about the inside of RabbitMQ."""
    return lambda composition, line: composition.found.needless.append((line, why))


def _only(why: str, *values: str) -> Meaning:
    """Accept only `values`, which describe the fixed behaviour here; other values are not available."""

    def take(composition: _Composition, line: Line) -> None:
        remarks = composition.found.needless if line.value.lower() in values else composition.found.missing
        remarks.append((line, why))

    return take


def _not_here(why: str) -> Meaning:
    """Report that this has no counterpart here."""
    return lambda composition, line: composition.found.missing.append((line, why))


_SOCKETS: Final = _inner("sockets are configured by the broker")
_ACCEPTORS: Final = _inner("connections are accepted by one loop")
_NODES: Final = _inner("concerns Erlang nodes")
_STORAGE: Final = _inner("all queues share one log")
_STATISTICS: Final = _inner("statistics cost almost nothing")
_STDERR: Final = _inner("the log goes to stderr")
_TLS_DEFAULTS: Final = "TLS has the ciphers and options of OpenSSL"
_SESSIONS: Final = _inner("concerns connections of RabbitMQ's own libraries")
_USERS: Final = "users are kept in the broker"
_PROXY: Final = _only("addresses are those of the sockets", "false")

# RabbitMQ speaks these with a plugin for each, and another one for WebSockets.
_PLUGINS: Final = tuple(protocol for protocol in PROTOCOLS if protocol.name != "amqp")
# The keys, by patterns: the first that matches counts.
_KEYS: Final[tuple[tuple[str, Meaning], ...]] = (
    # Listeners.
    (r"listeners\.tcp(\.[^.]+)?", _part("amqp")),
    (r"listeners\.ssl(\.[^.]+)?", _part("amqps")),
    *(
        (rf"{protocol.name}\.listeners\.{way}(\.[^.]+)?", _part(setting))
        for protocol in _PLUGINS
        for way, setting in (("tcp", protocol.name), ("ssl", f"{protocol.name}s"))
    ),
    *(
        (rf"web_{protocol.name}\.{way}\.{option}", _part(f"web_{protocol.name}.{way}.{option}"))
        for protocol in _PLUGINS
        for way in ("tcp", "ssl")
        for option in ("listener", "port", "ip")
    ),
    (r"web_stomp\.port", _part("web_stomp.tcp.port")),
    *(
        (rf"management\.(?:{way})\.{option}", _part(f"management.{way}.{option}"))
        for way in ("tcp", "ssl", "listener")
        for option in ("port", "ip")
    ),
    (r"management\.listener\.ssl", _part("management.listener.ssl")),
    *((rf"prometheus\.tcp\.{option}", _part(f"prometheus.tcp.{option}")) for option in ("port", "ip", "listener")),
    (r"(.*\.)?num_acceptors\..*|.*\.backlog", _ACCEPTORS),
    (r"(.*\.)?(tcp|ssl)_listen_options(\..*)?|socket_writer\..*", _SOCKETS),
    (r"(.*\.)?proxy_protocol", _PROXY),
    # TLS.
    (r"ssl_options\.cacertfile", _setting("tls.ca", _text)),
    (r"ssl_options\.certfile", _setting("tls.certificate", _text)),
    (r"ssl_options\.keyfile", _setting("tls.private_key", _text)),
    (r"ssl_options\.password", _setting("tls.private_key_password", _text)),
    (r"ssl_options\.verify", _part("verify")),
    (r"ssl_options\.fail_if_no_peer_cert", _part("required")),
    (r"ssl_options\.versions\..*", _part("versions")),
    (
        r"(.*\.)?ssl(_options|_opts)?\.(honor_cipher_order|honor_ecc_order|secure_renegotiate)",
        _only(_TLS_DEFAULTS, "true"),
    ),
    (r"(.*\.)?ssl(_options|_opts)?\.client_renegotiation", _only(_TLS_DEFAULTS, "false")),
    (
        r"(ssl_options|management\.ssl|web_(mqtt|stomp)\.ssl)\.(bypass_pem_cache|reuse_sessions?|log_alert|log_level)",
        _inner(_TLS_DEFAULTS),
    ),
    (r"ssl_options\.crl_check", _only("revoked certificates are not checked", "false")),
    (r"ssl_options(\..*)?", _not_here(_TLS_DEFAULTS)),
    (r"ssl_cert_login_from", _setting("tls.cert_login_from", _login_from)),
    (r"ssl_cert_login_san_type", _only("the first DNS name is the user", "dns")),
    (r"ssl_cert_login_san_index", _only("the first DNS name is the user", "0")),
    (r"ssl_allow_poodle_attack", _only("SSL 3 is not supported", "false")),
    (
        r"management\.ssl\.(compress|idle_timeout|inactivity_timeout|request_timeout|shutdown_timeout|max_keepalive)",
        _inner("the API has its own limits and timeouts"),
    ),
    (
        r"management\.tcp\.(compress|idle_timeout|inactivity_timeout|request_timeout|shutdown_timeout|max_keepalive)",
        _part("management.tcp"),
    ),
    (r"management\.listener\.server\..*", _inner("the API has its own limits and timeouts")),
    (r"management\.(tcp|ssl)\.max_connections", _not_here("the connections of the API are limited by address")),
    (r"management\.ssl\..*", _part("management.ssl")),
    (r"management\.listener\.ssl_opts(\..*)?", _part("management.listener.ssl_opts")),
    *((rf"web_{protocol.name}\.ssl\..*", _part(f"web_{protocol.name}.ssl")) for protocol in _PLUGINS),
    (r"prometheus\.ssl\..*", _part("prometheus.ssl")),
    # Limits.
    (r"heartbeat", _setting("limits.heartbeat_s", _whole)),
    (r"frame_max", _setting("limits.frame_max_bytes", _whole)),
    (r"channel_max|max_channels_per_connection", _setting("limits.channel_max", _whole)),
    (r"max_message_size", _setting("limits.max_message_bytes", _whole)),
    (r"connection_max|max_connections", _setting("limits.connections_max", _whole)),
    (r"handshake_timeout", _setting("limits.handshake_timeout_s", _milliseconds)),
    (r"ssl_handshake_timeout", _setting("limits.tls_handshake_timeout_s", _milliseconds)),
    (r"consumer_timeout", _setting("limits.delivery_timeout_s", _milliseconds)),
    (r"consumer_max_per_channel", _setting("limits.consumers_per_channel_max", _whole)),
    (r"vm_memory_high_watermark\.relative", _part("relative")),
    (r"vm_memory_high_watermark\.absolute", _part("absolute")),
    (r"total_memory_available_override_value", _part("total")),
    (
        r"vm_memory_high_watermark_paging_ratio|vm_memory_calculation_strategy|memory_monitor_interval",
        _inner("see store.paging_watermark"),
    ),
    (r"disk_free_limit\.absolute", _setting("store.disk_free_min_bytes", _size)),
    (r"disk_free_limit\.relative", _not_here("give store.disk_free_min_bytes a size")),
    (
        r"channel_max_per_node|session_max_per_connection|link_max_per_session|ranch_connection_max",
        _only("there is no such limit", "infinity"),
    ),
    (
        r"vhost_max|cluster_queue_limit|cluster_exchange_limit|runtime_parameters\.limits\..*",
        _only("there is no such limit; those of vhosts are in limits.*_max and in definitions", "infinity"),
    ),
    (r"consumer_disconnected_timeout", _inner("deliveries of a lost consumer are requeued immediately")),
    (r"initial_frame_max", _inner("has no meaning here")),
    # Users and rights.
    (r"default_user", _part("default_user")),
    (r"default_pass", _part("default_pass")),
    (r"default_user_tags\..*", _part("default_user_tags")),
    (r"default_permissions\..*", _part("default_permissions")),
    (r"default_vhost", _only("the first vhost is /: create others in definitions", "/")),
    (r"loopback_users\.guest", _only("guest logs in from the broker's own machine only: create another user", "true")),
    (r"loopback_users\..*", _only("only guest is bound to the broker's own machine", "false")),
    (r"loopback_users", _not_here("guest, and no other user, is bound to the broker's own machine")),
    (r"auth_mechanisms\..*", _part("auth_mechanisms")),
    (r"(http_dispatch\.)?auth_backends\.[^.]+(\.auth[nz])?", _only(_USERS, "internal", "rabbit_auth_backend_internal")),
    (r"auth_(ldap|oauth2|http|cache)\..*|amqp1_0\.default_user|trust_store\..*", _not_here(_USERS)),
    (r"anonymous_login_(user|pass)", _not_here("ANONYMOUS of AMQP 1.0 is guest, whose password has to be guest")),
    (
        r"credential_validator\.validation_backend",
        _only("passwords are not validated", "rabbit_credential_validator_accept_everything"),
    ),
    (r"credential_validator\..*", _not_here("passwords are not validated")),
    (r"password_hashing_module", _inner("passwords are hashed with scrypt; RabbitMQ's hashes are understood")),
    (r"default_(limits|policies|users)\..*", _not_here("set limits, policies and users in definitions")),
    # Definitions.
    (r"(management\.)?load_definitions|definitions\.local\.path", _part("load_definitions")),
    (r"definitions\.skip_if_unchanged", _setting("definitions_skip_if_unchanged", _switch)),
    (r"definitions\.import_backend", _only("definitions are a file", "local_filesystem", "local")),
    (r"definitions\.hashing\.algorithm", _inner("an unchanged file is recognised by its hash")),
    (r"definitions\..*", _not_here("definitions are a file")),
    # The log.
    (r"log\.(console|file|default)\.level", _part("log.level")),
    (r"log\.(console|file)\.formatter", _part("log.format")),
    (
        r"log\.console|log\.console\.(stdio|use_colors|color_esc_seqs\..*)|log\.dir|log\.file|log\.[a-z]+\.rotation\..*",
        _STDERR,
    ),
    (r"log\.[a-z]+\.file", _STDERR),
    (r"log\.(exchange|syslog|journald)", _only("the log goes to stderr", "false")),
    (r"log\.(exchange|syslog|journald)\..*", _STDERR),
    (r"log\.(error_logger_format_depth|summarize_process_state)", _NODES),
    (r"log\..*", _not_here("there is one log: log_level and log_format")),
    # The management API and the metrics.
    (
        r"collect_statistics(_interval)?|management_agent\..*|management\.(rates_mode|delegate_count|db_cache_multiplier)",
        _STATISTICS,
    ),
    (r"management\.sample_retention_policies\..*", _inner("samples are kept in rings of a fixed size")),
    (
        r"management\.(disable_stats|enable_queue_totals|oauth_enabled|oauth_disable_basic_auth|disable_basic_auth)",
        _only("statistics are always on, and users log in with a password", "false"),
    ),
    (r"management\.restrictions\..*\.disabled", _only("tags decide the rights", "false")),
    (r"management\.headers\.content_type_options", _only("the headers of the web UI are fixed", "nosniff")),
    (r"management\.headers\.frame_options", _only("the headers of the web UI are fixed", "deny", "sameorigin")),
    (r"management\.credential_encryption_secret", _inner("URIs of links are shown without passwords")),
    (r"management\..*|http_dispatch\..*", _not_here("there is no such setting of the API")),
    (r"prometheus\.tcp\..*", _inner("the API has its own limits and timeouts")),
    (r"prometheus\.path", _only("the metrics are at /metrics", "/metrics")),
    (
        r"prometheus\.authentication\.enabled",
        _only("the port of the metrics asks for no password; /metrics of the API does", "false"),
    ),
    (r"prometheus\..*", _not_here("there is no such setting of the metrics")),
    # MQTT, STOMP, streams.
    (r"mqtt\.allow_anonymous", _only("MQTT clients need a user", "false")),
    (r"(mqtt|stomp)\.ssl_cert_login", _only("without a user name, the certificate names the user", "true")),
    (r"(mqtt\.vhost|stomp\.default_vhost|amqp1_0\.default_vhost)", _only("the default vhost is /", "/")),
    (r"(mqtt\.exchange|stomp\.default_topic_exchange)", _only("topics go to amq.topic", "amq.topic")),
    (r"mqtt\.durable_queue_type", _only("sessions have classic queues", "classic")),
    (r"mqtt\.retained_message_store|mqtt\.retained_message_store_dets_sync_interval", _STORAGE),
    (r"mqtt\.mailbox_soft_limit", _not_here("see limits.mqtt_qos0_outbox_bytes, in bytes instead of messages")),
    (r"stomp\.implicit_connect", _only("clients must send CONNECT", "false")),
    (r"stomp\.default_nack_requeue", _only("NACK requeues unless it says otherwise", "true")),
    (r"stomp\.default_(user|pass)", _not_here("STOMP clients need a user")),
    (r"web_(mqtt|stomp)\.ws_path", _only("the path of WebSockets is /ws", "/ws")),
    (r"web_(mqtt|stomp)\.(cowboy_opts|ws_opts)\..*|web_(mqtt|stomp)\.use_file_handle_cache", _SOCKETS),
    (r"web_stomp\.use_http_auth", _only("clients log in with CONNECT", "false")),
    (r"web_stomp\.ws_frame", _inner("frames are text or binary as the client's are")),
    (r"web_(mqtt|stomp)\.allow_origins(\..*)?", _not_here("set ws_origins")),
    (r"amqp1_0\.protocol_strict_mode", _only("not spoken so", "false")),
    (r"stream\..*", _not_here("the stream protocol is not supported")),
    (r"(mqtt|stomp|web_mqtt|web_stomp|amqp1_0)\..*", _not_here("not supported, or not a setting here")),
    # Queues and exchanges.
    (r"default_queue_type", _only("give vhosts a default_queue_type", "classic")),
    (r"queue_types\..*\.enabled", _only("all queue types are available", "true")),
    (r"deprecated_features\.permit\..*", _only("everything is permitted", "true")),
    (
        r"quorum_queue\.property_equivalence\.relaxed_checks_on_redeclaration",
        _only("a redeclared queue keeps its type", "false"),
    ),
    (
        r"quorum_queue\..*|raft\..*|metadata_store\..*|queue_(leader|master)_locator|mirroring_.*",
        _inner("with several nodes all queues are replicated"),
    ),
    (r"queue_index_embed_msgs_below|lazy_queue_.*|classic_queue\..*|msg_store_.*|message_store_.*", _STORAGE),
    (r"(queue_)?(federation|shovel)\.(?!operating_mode|topology|delete_after).*", _SESSIONS),
    (r"federation.*|shovel.*", _not_here("links are parameters; see docs/migrate-from-rabbitmq.md")),
    (r"message_interceptors\..*|channel_interceptor\..*", _not_here("messages are not changed on their way")),
    # Nodes.
    (r"cluster_formation\..*|cluster_partition_handling(\..*)?", _not_here("nodes form a cluster by the setting etcd")),
    (r"cluster_name", _not_here("name the cluster by `warren ctl set_cluster_name`")),
    (r"(cluster|node)_tags\..*|product\..*|motd_file", _not_here("the broker does not show such a text")),
    (
        r"cluster_keepalive_interval|net_ticktime|distribution\..*|erlang\..*|mnesia_.*|sysmon_handler\..*"
        r"|background_gc.*|hipe_compile|delegate_count|default_worker_pool_size|vm_.*",
        _NODES,
    ),
    (r"amqp(10)?_client\..*", _not_here("the URIs of links name the certificates that they trust")),
    (r"reverse_dns_lookups", _only("host names of clients are not looked up", "false")),
)
