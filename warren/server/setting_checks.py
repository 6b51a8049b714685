"""Check settings when a broker starts: report unreadable files, settings without an effect, and deprecated ones.

`load_settings` opens no files that a setting names, since commands load settings, too. Before a broker starts it checks
all files that it will read, so that one start reports all missing ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from warren.server.logs import get_logger
from warren.server.protocols import LISTENERS
from warren.server.regular_files import read_regular
from warren.server.settings import DEFAULT_ORIGIN, WITH_TLS, Settings
from warren.server.settings_reader import value_of
from warren.server.start_errors import StartError

_CLUSTER: Final = ("cluster_listen", "follow")
_WEB: Final = tuple(name for name, kind in LISTENERS.items() if kind.is_web)

# Settings that only have an effect together with one of these others.
NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "tls.certificate": WITH_TLS,
    "tls.private_key": WITH_TLS,
    "tls.private_key_password": WITH_TLS,
    "tls.ca": WITH_TLS,
    "tls.client_certificates": WITH_TLS,
    "tls.cert_login_from": WITH_TLS,
    "limits.tls_handshake_timeout_s": WITH_TLS,
    "ws_origins": _WEB,
    "http_hosts": ("http", "https", "prometheus", "data", "datas", *_WEB),  # WebSockets: whose pages are its own
    "definitions_skip_if_unchanged": ("load_definitions",),
    "cluster_secret_file": _CLUSTER,
    "cluster_certificate": _CLUSTER,
    "cluster_private_key": _CLUSTER,
    "cluster_ca": _CLUSTER,
    "http_advertise": _CLUSTER,
    "etcd_ca": ("etcd",),
    "etcd_certificate": ("etcd",),
    "etcd_key": ("etcd",),
    "etcd_password_file": ("etcd",),
    "cluster_name": ("etcd",),
    "replicas": ("etcd",),
    "tracing_sampling_ratio": ("tracing_otlp_endpoint",),
}

# Settings that a later major version removes, and what replaces each (docs/versions.md).
DEPRECATED: Final[dict[str, str]] = {}

log = get_logger("settings")


def check(settings: Settings) -> None:
    """Check the files that a broker with these settings reads; log settings without effect, and deprecated ones.

    Raises:
        StartError: files cannot be read; a line for each.
    """
    mistakes = list(unreadable(settings))
    if mistakes:
        raise StartError("\n".join(mistakes))
    for key, needs in without_effect(settings):
        log.warning("a setting has no effect", setting=key, origin=settings.origins[key], without=" or ".join(needs))
    for key, origin, advice in deprecated(settings):
        log.warning("a setting is deprecated", setting=key, origin=origin, advice=advice)


def unreadable(settings: Settings) -> Iterator[str]:
    """Yield a line for each file that will be read but cannot be."""
    for key, needs in NEEDS.items():
        path = value_of(settings, key)
        if isinstance(path, Path) and _is_any_given(settings, needs):
            try:
                read_regular(path)
            except OSError as error:
                yield f"{key} {path}: {error.strerror or error}"


def without_effect(settings: Settings) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each setting that was given without an effect, and the settings of which one is needed as well."""
    for key, needs in NEEDS.items():
        if settings.origins[key] != DEFAULT_ORIGIN and not _is_any_given(settings, needs):
            yield key, needs


def deprecated(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Yield each deprecated setting that was given, with its origin and what replaces it."""
    for key, advice in DEPRECATED.items():
        if settings.origins[key] != DEFAULT_ORIGIN:
            yield key, settings.origins[key], advice


def _is_any_given(settings: Settings, keys: tuple[str, ...]) -> bool:
    return any(value_of(settings, key) not in (None, "") for key in keys)
