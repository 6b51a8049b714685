"""How this node reaches its etcd: the settings `etcd…`, with the files that they name."""

from __future__ import annotations

import ssl

from warren.cluster.etcd import EtcdSettings
from warren.server.regular_files import copied, read_regular
from warren.server.settings import Settings
from warren.server.start_errors import StartError

PASSWORD_BYTES_MAX = 4096


def etcd_settings(settings: Settings) -> EtcdSettings:
    """Read the files that the settings name.

    Raises:
        StartError: one of them cannot be used.
    """
    endpoints = settings.etcd.split(",")
    tls = _context(settings) if any(endpoint.startswith("https:") for endpoint in endpoints) else None
    return EtcdSettings(endpoints, settings.etcd_user, _password(settings), tls)


def _password(settings: Settings) -> str:
    path = settings.etcd_password_file
    if path is None:
        return ""
    try:
        password = read_regular(path).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise StartError(f"etcd_password_file {path}: {reason or error}") from None
    if not 0 < len(password) <= PASSWORD_BYTES_MAX:
        raise StartError(f"etcd_password_file {path}: it must hold only the password of etcd_user")
    return password


def _context(settings: Settings) -> ssl.SSLContext:
    """Return a context in which etcd has to show a certificate for its name, and this node shows its own if it has one.

    Without `etcd_ca` the authorities of the system are believed.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    certificate, key, authorities = settings.etcd_certificate, settings.etcd_key, settings.etcd_ca
    files = ", ".join(str(path) for path in (authorities, certificate, key) if path is not None)
    try:
        if authorities is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            with copied(read_regular(authorities)) as path:
                context.load_verify_locations(cafile=path)
        if certificate is not None:
            shown = read_regular(certificate)
            private = shown if key is None else read_regular(key)
            with copied(shown) as certificate_path, copied(private) as key_path:
                context.load_cert_chain(certificate_path, key_path, password=_no_password)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise StartError(f"etcd_ca, etcd_certificate and etcd_key ({files}): {reason}") from None
    return context


def _no_password() -> str:
    """Refuse an encrypted key: OpenSSL would ask the terminal."""
    return ""
