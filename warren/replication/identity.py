"""The identity of this node for other nodes: its secret and its certificate, from the settings."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warren.replication.handshake import SECRET_BYTES_MIN
from warren.server.regular_files import copied, read_regular
from warren.server.settings import Settings
from warren.server.start_errors import StartError

SECRET_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Identity:
    """The credentials of a node. `accepting` and `connecting` are None without TLS.

    `certificate` is the certificate of this node as it is shown to others (DER), empty without TLS.
    """

    secret: bytes
    accepting: ssl.SSLContext | None = None
    connecting: ssl.SSLContext | None = None
    certificate: bytes = b""


def identity(settings: Settings) -> Identity:
    """Read the files that the settings name.

    Raises:
        StartError: one of them cannot be used.
    """
    assert settings.cluster_secret_file is not None
    secret = _secret(settings.cluster_secret_file)
    if settings.cluster_certificate is None:
        return Identity(secret)
    assert settings.cluster_ca is not None
    certificate, key = settings.cluster_certificate, settings.cluster_private_key
    try:
        shown = read_regular(certificate)
        contexts = [
            _context(protocol, shown, shown if key is None else read_regular(key), read_regular(settings.cluster_ca))
            for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
        ]
        first = shown.decode().partition("-----END CERTIFICATE-----")
        der = ssl.PEM_cert_to_DER_cert(first[0][first[0].index("-----BEGIN") :] + first[1])
    except (OSError, ValueError) as error:
        files = ", ".join(str(path) for path in (certificate, key, settings.cluster_ca) if path is not None)
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise StartError(f"cluster_certificate, cluster_private_key and cluster_ca ({files}): {reason}") from None
    return Identity(secret, contexts[0], contexts[1], der)


def _secret(path: Path) -> bytes:
    try:
        secret = read_regular(path).strip()
    except OSError as error:
        raise StartError(f"cluster_secret_file {path}: {error.strerror or error}") from None
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise StartError(
            f"cluster_secret_file {path}: the secret has {len(secret)} bytes, and must have {SECRET_BYTES_MIN} to "
            f"{SECRET_BYTES_MAX}; make one with: head -c 32 /dev/urandom | base64"
        )
    return secret


def _context(protocol: int, certificate: bytes, key: bytes, authorities: bytes) -> ssl.SSLContext:
    """Return a context for which both sides need a certificate of these authorities.

    Names are not compared: which certificate the leader has shown is part of the handshake (``handshake.py``).
    """
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    with copied(certificate) as certificate_path, copied(key) as key_path, copied(authorities) as authorities_path:
        context.load_cert_chain(certificate_path, key_path, password=_no_password)
        context.load_verify_locations(cafile=authorities_path)
    return context


def _no_password() -> str:
    """Refuse an encrypted key: OpenSSL would ask the terminal."""
    return ""
