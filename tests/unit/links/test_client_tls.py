"""The TLS settings of a link: the certificates that it trusts."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trio
import trustme

from warren.links.amqp_uri import parse_uri
from warren.links.client_tls import client_context


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The authorities of the system: two of them."""
    path = tmp_path / "system.pem"
    path.write_bytes(trustme.CA().cert_pem.bytes() + trustme.CA(organization_name="another").cert_pem.bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    return path


@pytest.mark.parametrize(
    ("query", "authorities", "mode"),
    [
        ("", 2, ssl.CERT_REQUIRED),
        ("cacertfile={own}", 1, ssl.CERT_REQUIRED),
        ("verify=verify_none", 0, ssl.CERT_NONE),
        ("verify=verify_none&cacertfile={own}", 1, ssl.CERT_NONE),
    ],
)
def test_authorities_are_those_of_the_uri_or_the_system_and_only_where_they_are_needed(
    query: str, authorities: int, mode: ssl.VerifyMode, system: Path
) -> None:
    own = system.parent / "own.pem"
    trustme.CA().cert_pem.write_to_path(own)
    context = trio.run(client_context, parse_uri(f"amqps://h?{query.format(own=own)}"))
    assert context.cert_store_stats()["x509_ca"] == authorities
    assert context.verify_mode == mode
    assert context.check_hostname == (mode == ssl.CERT_REQUIRED)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
