"""A certificate with a name that is not UTF-8, as authorities do sign them; `trustme` does not."""

from __future__ import annotations

import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from typing import Final

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_MAIL: Final = b"\x81\x09m\xfcller@de"  # in Latin-1, as the alternative name of a certificate has an address of mail
_DAY: Final = timedelta(days=1)


def configure_latin_certificate(authority: trustme.CA, context: ssl.SSLContext) -> None:
    """Make `context` show a certificate of that kind, signed by `authority`."""
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    issuer_key = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    names = x509.UnrecognizedExtension(x509.OID_SUBJECT_ALTERNATIVE_NAME, b"\x30" + bytes([len(_MAIL)]) + _MAIL)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.OID_COMMON_NAME, "robot")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(names, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with tempfile.NamedTemporaryFile() as file:
        file.write(private + made.public_bytes(pem))
        file.flush()
        context.load_cert_chain(file.name)
