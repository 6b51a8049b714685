"""Make TLS contexts for listeners from settings, replace them without a restart, and read names in certificates.

1. TLS 1.2 is the oldest version spoken; renegotiation and compression are off.
2. A failed reload leaves the current context as it is, and the settings that it was made from.
3. A name is taken only from a certificate that the handshake has verified, and only if it is unambiguous.

Connections keep the context they were accepted with. Source of the names: RabbitMQ, "TLS support", peer
verification; its ``ssl_cert_login_from``.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any, Final

from warren.server.logs import get_logger
from warren.server.regular_files import copied, read_regular
from warren.server.settings import WITH_TLS, CertLoginFrom, Settings, TlsSettings
from warren.server.start_errors import StartError

log = get_logger("tls")

# OpenSSL's long names, and how RFC 4514 and RabbitMQ write them.
_SHORT_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "generationQualifier": "GENERATIONQUALIFIER",
    "givenName": "GIVENNAME",
    "initials": "INITIALS",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "pseudonym": "PSEUDONYM",
    "serialNumber": "SERIALNUMBER",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "surname": "SN",
    "title": "TITLE",
}
_DN_SPECIAL: Final = re.compile(r'[,+"\\<>;]|^[# ]| $')
_VERIFY_MODES: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class TlsError(StartError):
    """A certificate, key or authority cannot be used."""


class ServerTls:
    """The context for new connections, made from the files of `settings`; `reload` reads the files again."""

    def __init__(self, settings: TlsSettings) -> None:
        self.settings = settings
        self.context = server_context(settings)

    def reload(self, settings: TlsSettings | None = None) -> bool:
        """Replace the context by one made from the current files; `settings`: use its files from now on.

        Returns False when that fails.
        """
        wanted = self.settings if settings is None else settings
        try:
            self.context = server_context(wanted)
        except TlsError as error:
            log.error("TLS reload failed; the certificate in use is kept", reason=str(error))
            return False
        self.settings = wanted
        log.info("TLS certificate reloaded", certificate=wanted.certificate)
        return True


def maybe_server_tls(settings: Settings) -> ServerTls | None:
    """Return the TLS that the listeners of a node share, if one of them speaks TLS. Raises TlsError."""
    return ServerTls(settings.tls) if any(settings.endpoint(each) is not None for each in WITH_TLS) else None


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Build the context of a listener. Raises TlsError naming the setting whose file cannot be used."""
    if settings.certificate is None:
        raise TlsError("tls.certificate is not set")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    _load_identity(context, settings)
    if settings.ca is not None:
        try:
            with copied(read_regular(settings.ca)) as path:
                context.load_verify_locations(cafile=path)
        except (OSError, ValueError) as error:
            raise TlsError(f"tls.ca {settings.ca}: {_reason(error)}") from None
    context.verify_mode = _VERIFY_MODES[settings.client_certificates]
    return context


def maybe_user_of_certificate(certificate: Mapping[str, Any] | None, login_from: CertLoginFrom) -> str | None:
    """Return the user of a verified peer certificate, None if it does not name exactly one.

    `certificate` is the result of `SSLObject.getpeercert()`: None or empty without a verified certificate.
    ``dn`` is the subject as RFC 4514 writes it, ``cn`` its only common name, ``san`` the first DNS name.
    """
    if not certificate:
        return None
    subject: tuple[tuple[tuple[str, str], ...], ...] = certificate.get("subject", ())
    if login_from == "dn":
        return ",".join(_rdn(rdn) for rdn in reversed(subject)) or None
    if login_from == "cn":
        common_names = [value for rdn in subject for name, value in rdn if name == "commonName"]
        return common_names[0] or None if len(common_names) == 1 else None
    dns_names: list[str] = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    return dns_names[0] or None if dns_names else None


def _load_identity(context: ssl.SSLContext, settings: TlsSettings) -> None:
    certificate, key = settings.certificate, settings.private_key
    assert certificate is not None
    read: list[bytes] = []
    for setting, path in (("tls.certificate", certificate), ("tls.private_key", key or certificate)):
        try:
            read.append(read_regular(path))
        except OSError as error:
            raise TlsError(f"{setting} {path}: {_reason(error)}") from None
    encrypted = b"ENCRYPTED" in read[1]
    try:
        with copied(read[0]) as certificate_path, copied(read[1]) as key_path:
            # Without a password callback OpenSSL would stop and ask the terminal.
            context.load_cert_chain(certificate_path, key_path, password=lambda: settings.private_key_password)
    except (OSError, ValueError) as error:
        files = f"{certificate}" if key is None else f"{certificate} and {key}"
        reason = _reason(error)
        if encrypted and isinstance(error, ssl.SSLError) and error.reason is None:
            reason = "the key is encrypted and tls.private_key_password does not open it"
        raise TlsError(f"tls.certificate and tls.private_key ({files}): {reason}") from None


def _rdn(rdn: tuple[tuple[str, str], ...]) -> str:
    return "+".join(f"{_SHORT_NAMES.get(name, name)}={_DN_SPECIAL.sub(_escaped, value)}" for name, value in rdn)


def _escaped(match: re.Match[str]) -> str:
    return "\\" + match.group()


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key does not belong to the certificate"
        return (error.reason or "not a usable PEM file").replace("_", " ").lower()
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
