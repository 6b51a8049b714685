"""Read settings: merge the given values, refuse invalid ones, and show the results and their origins.

    flag  >  WARREN_* environment  >  TOML file  >  default

1. Every value knows its origin. An invalid value is refused with its key, value and origin. All mistakes are reported
   at once.
2. An unknown key is an error that names the nearest known one, in the file and in the environment. Exempt are the
   variables that Kubernetes sets for a service called "warren", ``WARREN_CONFIG`` (the file), ``WARREN_CTL_*`` of
   `warren ctl`, ``WARREN_SELECTOR`` (`network/readiness.py`), and ``WARREN_COMPILE`` and ``WARREN_TEST_*`` for building
   and testing.
3. A value of the file has the type of its key. Text is accepted for numbers only from flags and environment, where a
   table is JSON.
4. Paths in the file are relative to the file; others to the working directory.
5. A variable whose name ends with ``_FILE`` names a file whose first line is the value, as secrets are mounted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from warren.server.logs import REDACTED, redact_url
from warren.server.protocols import LISTENERS
from warren.server.regular_files import read_regular
from warren.server.setting_kinds import Endpoint, GivenText, shown_value
from warren.server.settings import (
    DEFAULT_ORIGIN,
    ENVIRONMENT_PREFIX,
    KEYS,
    SERVE_OPTIONS,
    TABLES,
    WITH_TLS,
    SettingKey,
    Settings,
)
from warren.server.start_errors import SettingsError

_CONFIG_VARIABLE: Final = "WARREN_CONFIG"
_FILE_SUFFIX: Final = "_FILE"
_NOT_OURS: Final = re.compile(
    r"WARREN_(TEST_.*|CTL_.*|COMPILE|CONFIG|SELECTOR|SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
_OPTION_OF: Final = {key: option for option, key in SERVE_OPTIONS.items()}
_BY_VARIABLE: Final = {key.variable: key for key in KEYS.values()}


def load_settings(
    flags: Mapping[str, str | None], environment: Mapping[str, str], config: Path | None = None, *, again: bool = False
) -> Settings:
    """Merge flags (dotted key to text; None is not given), environment and the file, and check the result.

    `again`: a broker runs already. A file that may block its reader, such as a pipe, is refused then.

    Raises SettingsError, with a line for each mistake.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(KEYS, DEFAULT_ORIGIN)
    mistakes: list[str] = []

    def take(key: str, value: object, origin: str) -> None:
        try:
            parsed = KEYS[key].parse(value)
            # A value is plain text, however it was given: an answer in JSON has it.
            values[key] = str(parsed) if isinstance(parsed, GivenText) else parsed
        except ValueError as error:
            shown = REDACTED if KEYS[key].secret else redact_url(shown_value(value))
            mistakes.append(f"{key} ({origin}): {error}, not {shown}")
        else:
            origins[key] = origin

    if config is None and environment.get(_CONFIG_VARIABLE):
        config = Path(environment[_CONFIG_VARIABLE])
    if config is not None:
        for key, value in _flatten(_read_toml(config, regular=again), config, mistakes):
            take(key, value, f"file {config}")
            if isinstance(values.get(key), Path):
                values[key] = config.parent / values[key]
    for variable, text in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and not _NOT_OURS.fullmatch(variable):
            known = _BY_VARIABLE.get(variable)
            by_file = None if known else _BY_VARIABLE.get(variable.removesuffix(_FILE_SUFFIX))
            if known is not None:
                take(known.key, GivenText(text), f"environment {variable}")
            elif by_file is None:
                mistakes.append(f"environment {variable}: no such setting{_nearest(variable, _BY_VARIABLE)}")
            elif by_file.variable in environment:
                mistakes.append(f"environment {variable}: {by_file.variable} is set, too")
            else:
                try:
                    take(by_file.key, GivenText(_first_line(text)), f"environment {variable}")
                except OSError as error:
                    mistakes.append(f"environment {variable}: file {text}: {error.strerror or error}")
                except ValueError:
                    mistakes.append(f"environment {variable}: file {text}: is not UTF-8")
    for key, flag in flags.items():
        if flag is not None:
            take(key, GivenText(flag), f"flag {_OPTION_OF.get(key, key)}")
    settings = _build(values, origins)
    mistakes = mistakes or list(_contradictions(settings))
    if mistakes:
        raise SettingsError("\n".join(mistakes))
    return settings


def values_of(settings: Settings) -> dict[str, Any]:
    """Return the value of every setting by its dotted key."""
    return {key: value_of(settings, key) for key in KEYS}


def shown_values(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Yield key, value and origin of every setting as text, without secrets."""
    for key, value in (values_of(settings) | {"metadata_url": settings.catalogue_url()}).items():
        yield key, _shown_setting(KEYS[key], value), settings.origins.get(key, DEFAULT_ORIGIN)


def value_of(settings: Settings, key: str) -> Any:
    """Return the value of the setting with this dotted key."""
    if key in LISTENERS:
        return settings.endpoint(key)
    owner: object = settings
    for name in key.split("."):
        owner = getattr(owner, name)
    return owner


def _shown_setting(key: SettingKey, value: object) -> str:
    if value is None:
        return key.absent
    if isinstance(value, bool | Mapping):
        return redact_url(json.dumps(value, ensure_ascii=False))
    return REDACTED if key.secret and value else redact_url(str(value))


def _build(values: Mapping[str, Any], origins: Mapping[str, str]) -> Settings:
    top = {key: value for key, value in values.items() if "." not in key and key not in LISTENERS}
    tables: dict[str, Any] = {}
    for table, owner in TABLES.items():
        prefix = f"{table}."
        given = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
        tables[table] = owner(**given)
    listeners = {key: value for key, value in values.items() if key in LISTENERS}
    return Settings(**top, **tables, listeners=listeners, origins=origins)


def _contradictions(settings: Settings) -> Iterator[str]:
    """Yield contradictions between settings that are valid one by one."""

    def wrong(key: str, problem: str) -> str:
        return f"{key} ({settings.origins[key]}): {problem}"

    if settings.endpoint("amqp") is None and settings.endpoint("amqps") is None:
        yield wrong("amqp", "neither amqp nor amqps has an address to listen on")
    if settings.default_user != "guest" and settings.origins["default_pass"] == DEFAULT_ORIGIN:
        yield wrong("default_user", "set default_pass too: the default password is public")
    for key in WITH_TLS:
        if settings.endpoint(key) is not None and settings.tls.certificate is None:
            yield wrong(key, "needs tls.certificate")
    if settings.tls.client_certificates != "none" and settings.tls.ca is None:
        yield wrong("tls.client_certificates", "needs tls.ca")
    yield from _cluster_contradictions(settings, wrong)
    taken: dict[Endpoint, str] = {}
    for key in (*LISTENERS, "http", "https", "prometheus", "data", "datas", "cluster_listen"):
        endpoint = settings.endpoint(key)
        if endpoint is not None and endpoint.port and taken.setdefault(endpoint, key) != key:
            yield wrong(key, f"{endpoint} is also the address of {taken[endpoint]}")


def _etcd_contradictions(settings: Settings, wrong: Callable[[str, str], str]) -> Iterator[str]:
    if not settings.etcd:
        for key in ("etcd_user", "cluster_advertise"):
            if getattr(settings, key):
                yield wrong(key, "needs etcd")
        return
    of_tls = [key for key in ("etcd_ca", "etcd_certificate", "etcd_key") if getattr(settings, key) is not None]
    schemes = {endpoint.partition(":")[0] for endpoint in settings.etcd.split(",")}
    if len(schemes) > 1:
        yield wrong("etcd", "all members must use https://, or all http://")
    elif of_tls and schemes != {"https"}:
        yield wrong(of_tls[0], "needs members of etcd with https://")
    if settings.etcd_key is not None and settings.etcd_certificate is None:
        yield wrong("etcd_key", "needs etcd_certificate")
    if settings.etcd_user and settings.etcd_password_file is None:
        yield wrong("etcd_user", "needs etcd_password_file")
    if settings.etcd_password_file is not None and not settings.etcd_user:
        yield wrong("etcd_password_file", "needs etcd_user")


def _cluster_contradictions(settings: Settings, wrong: Callable[[str, str], str]) -> Iterator[str]:
    yield from _etcd_contradictions(settings, wrong)
    replicated = [key for key in ("cluster_listen", "follow") if getattr(settings, key) is not None]
    if settings.etcd:
        if settings.cluster_listen is None or not settings.cluster_listen.port:
            yield wrong("etcd", "needs cluster_listen with a port for the other nodes")
        if settings.follow is not None:
            yield wrong("follow", "cannot be used with etcd: the nodes elect their leader")
        if settings.min_in_sync > settings.replicas:
            yield wrong("min_in_sync", f"{settings.min_in_sync} of {settings.replicas} replicas can never be in sync")
    if not replicated:
        if settings.min_in_sync > 1:
            yield wrong("min_in_sync", "needs cluster_listen: no follower could ever connect")
        return
    if settings.cluster_secret_file is None:
        # Not on loopback either, where all users of the machine can connect: a follower gets every message.
        yield wrong(replicated[0], "needs cluster_secret_file")
    if settings.metadata_url:
        yield wrong(
            "metadata_url", f"cannot be used with {replicated[0]}: a follower keeps its own copy of the metadata"
        )
    if settings.min_in_sync > 1 and settings.cluster_listen is None:
        yield wrong("min_in_sync", "needs cluster_listen: no follower could ever connect")
    if (settings.cluster_certificate is None) != (settings.cluster_ca is None):
        yield wrong("cluster_certificate", "cluster_certificate and cluster_ca go together")


def _first_line(path: str) -> str:
    return read_regular(path).decode().partition("\n")[0].removesuffix("\r")


def _read_toml(path: Path, *, regular: bool) -> dict[str, Any]:
    import tomllib

    try:
        data = read_regular(path) if regular else path.read_bytes()
        return tomllib.loads(data.decode())
    except OSError as error:
        raise SettingsError(f"config file {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config file {path}: {error}") from None


def _flatten(document: Mapping[str, Any], path: Path, mistakes: list[str]) -> Iterator[tuple[str, object]]:
    """Yield the settings of a file by their dotted keys, and add unknown ones to `mistakes`."""
    for name, value in document.items():
        if name not in TABLES:
            found = {name: value}
        elif isinstance(value, dict):
            found = {f"{name}.{inner}": inner_value for inner, inner_value in value.items()}
        else:
            mistakes.append(f"{name} (file {path}): must be a table, not {shown_value(value)}")
            continue
        for key, inner_value in found.items():
            if key in KEYS:
                yield key, inner_value
            else:
                mistakes.append(f"file {path}: no setting {key!r}{_nearest(key, KEYS)}")


def _nearest(key: str, known: Mapping[str, object]) -> str:
    """Return a hint at the probable key: a table, a key that begins so, a similar key, a key of another table."""
    import difflib

    tables = difflib.get_close_matches(key, TABLES, n=1, cutoff=0.7)
    by_leaf = {name.rpartition(".")[2]: name for name in known}
    elsewhere = difflib.get_close_matches(key.rpartition(".")[2], by_leaf, n=1)
    hints = [
        *(f"the table [{table}]" for table in tables),
        *(name for name in known if name.startswith(key)),
        *difflib.get_close_matches(key, known, n=1),
        *(by_leaf[leaf] for leaf in elsewhere),
    ]
    return f"; did you mean {hints[0]}?" if hints else ""
