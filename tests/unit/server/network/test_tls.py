"""Contexts from files, their reload, and the names in certificates."""

from __future__ import annotations

import contextlib
import logging
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from latin_certificate import configure_latin_certificate

from warren.server.network.tls import ServerTls, TlsError, maybe_user_of_certificate, server_context
from warren.server.network.tls_session import TlsSession
from warren.server.settings import CertLoginFrom, ClientCertificates, TlsSettings

SUBJECT = ((("countryName", "DE"),), (("organizationName", "Acme, Inc."),), (("commonName", "alice"),))


class Files:
    """An authority and a server certificate on disk."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        self.ca = directory / "ca.pem"
        self.certificate = directory / "server.pem"
        self.key = directory / "server.key"
        self.authority.cert_pem.write_to_path(self.ca)
        self.issue("localhost")

    def issue(self, name: str) -> None:
        issued = self.authority.issue_cert(name)
        issued.private_key_pem.write_to_path(self.key)
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    def settings(self, **changes: Any) -> TlsSettings:
        return TlsSettings(**{"certificate": self.certificate, "private_key": self.key, "ca": self.ca, **changes})


@pytest.fixture(scope="module")
def issued_files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost") -> tuple[Any, Any]:
    """Run a TLS handshake in memory; return both ends. Raises what either end raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepting = server.wrap_bio(to_server, to_client, server_side=True)
    connecting = client.wrap_bio(to_client, to_server, server_hostname=name)
    done = set()
    for _ in range(10):
        for end in (connecting, accepting):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                pass
        if len(done) == 2:
            return accepting, connecting
    raise AssertionError("the handshake does not end")


def client_context(files: Files) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files.ca))
    return context


def test_a_client_that_trusts_the_authority_gets_tls_1_3(issued_files: Files) -> None:
    accepting, _ = handshake(server_context(issued_files.settings()), client_context(issued_files))
    assert accepting.version() == "TLSv1.3"
    assert accepting.compression() is None
    assert accepting.getpeercert() is None


def test_tls_1_2_is_spoken_and_1_1_is_not(issued_files: Files) -> None:
    server, client = server_context(issued_files.settings()), client_context(issued_files)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert handshake(server, client)[0].version() == "TLSv1.2"
    assert server.minimum_version == ssl.TLSVersion.TLSv1_2
    assert server.options & ssl.OP_NO_RENEGOTIATION


@pytest.mark.parametrize(
    ("wanted", "presented", "accepted"),
    [
        ("none", True, True),
        ("optional", False, True),
        ("optional", True, True),
        ("required", False, False),
        ("required", True, True),
    ],
)
def test_client_certificates_are_ignored_optional_or_required(
    issued_files: Files, wanted: ClientCertificates, presented: bool, accepted: bool
) -> None:
    server = server_context(issued_files.settings(client_certificates=wanted))
    client = client_context(issued_files)
    client.maximum_version = ssl.TLSVersion.TLSv1_2  # the client learns of a refusal within the handshake
    if presented:
        issued_files.authority.issue_cert("client", common_name="alice").configure_cert(client)
    if not accepted:
        with pytest.raises(ssl.SSLError):
            handshake(server, client)
        return
    accepting, _ = handshake(server, client)
    verified = presented and wanted != "none"
    assert maybe_user_of_certificate(accepting.getpeercert(), "cn") == ("alice" if verified else None)


def test_a_certificate_of_another_authority_is_refused_even_when_optional(issued_files: Files) -> None:
    server = server_context(issued_files.settings(client_certificates="optional"))
    client = client_context(issued_files)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    trustme.CA().issue_cert("client", common_name="alice").configure_cert(client)
    with pytest.raises(ssl.SSLError):
        handshake(server, client)


def test_a_certificate_with_a_name_that_is_not_utf_8_lets_its_owner_in_and_names_nobody(issued_files: Files) -> None:
    client = client_context(issued_files)
    configure_latin_certificate(issued_files.authority, client)
    session = TlsSession(server_context(issued_files.settings(client_certificates="required")))
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    connecting = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    while not session.is_handshaken:
        with contextlib.suppress(ssl.SSLWantReadError):
            connecting.do_handshake()
        session.handshake(to_server.read())
        to_client.write(session.outgoing())
    assert session.peer_certificate() is None


def test_the_key_may_be_in_the_certificates_file(files: Files) -> None:
    files.certificate.write_bytes(files.key.read_bytes() + files.certificate.read_bytes())
    handshake(server_context(files.settings(private_key=None)), client_context(files))


def test_an_encrypted_key_needs_its_password_and_never_asks_the_terminal(files: Files) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"hunter2"),
    )
    files.key.write_bytes(encrypted)
    server_context(files.settings(private_key_password="hunter2"))
    for wrong in ("", "hunter3"):
        with pytest.raises(TlsError, match="does not open it") as caught:
            server_context(files.settings(private_key_password=wrong))
        assert "hunter" not in str(caught.value)


def test_files_that_cannot_be_used_are_named_in_one_line(files: Files, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    stranger = Files(other)
    garbage = tmp_path / "garbage"
    garbage.write_text("garbage")
    cases: dict[str, dict[str, Any]] = {
        r"tls\.certificate .*absent: No such file": {"certificate": tmp_path / "absent"},
        r"tls\.private_key .*absent: No such file": {"private_key": tmp_path / "absent"},
        r"tls\.ca .*absent: No such file": {"ca": tmp_path / "absent"},
        r"tls\.ca .*garbage: no certificate": {"ca": garbage},
        r"tls\.certificate and tls\.private_key .*garbage": {"certificate": garbage},
        r"the key does not belong to the certificate": {"private_key": stranger.key},
        r"tls\.certificate is not set": {"certificate": None},
    }
    for message, changes in cases.items():
        with pytest.raises(TlsError, match=message) as caught:
            server_context(files.settings(**changes))
        assert "\n" not in str(caught.value)


def test_reload_takes_the_new_certificate_for_new_connections_only(files: Files) -> None:
    tls = ServerTls(files.settings())
    before = tls.context
    files.issue("renewed.example")
    assert tls.reload()
    assert tls.context is not before
    handshake(before, client_context(files), "localhost")
    handshake(tls.context, client_context(files), "renewed.example")


def test_a_reload_that_fails_keeps_the_certificate_in_use_and_says_so(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ServerTls(files.settings())
    before = tls.context
    shutil.move(files.key, files.key.with_suffix(".away"))
    with caplog.at_level(logging.INFO, logger="warren"):
        assert not tls.reload()
    assert tls.context is before
    handshake(tls.context, client_context(files))
    assert [record.getMessage() for record in caplog.records] == ["TLS reload failed; the certificate in use is kept"]


@pytest.mark.parametrize(
    ("certificate", "login_from", "user"),
    [
        ({"subject": SUBJECT}, "cn", "alice"),
        ({"subject": SUBJECT}, "dn", r"CN=alice,O=Acme\, Inc.,C=DE"),
        ({"subject": ((("commonName", "a"), ("userId", "7")),)}, "dn", "CN=a+userId=7"),
        ({"subject": ((("commonName", "#a b "),),)}, "dn", r"CN=\#a b\ "),
        ({"subject": ((("commonName", 'a"+<>;\\'),),)}, "dn", r"CN=a\"\+\<\>\;\\"),
        (
            {"subject": ((("emailAddress", "a@b"),), (("stateOrProvinceName", "x"),))},
            "dn",
            "ST=x,EMAILADDRESS=a@b",
        ),
        ({"subject": ((("commonName", "a"),), (("commonName", "b"),))}, "cn", None),
        ({"subject": ((("commonName", ""),),)}, "cn", None),
        ({"subject": ((("organizationName", "o"),),)}, "cn", None),
        ({"subject": ()}, "dn", None),
        ({"subject": SUBJECT, "subjectAltName": (("email", "e"), ("DNS", "x"), ("DNS", "y"))}, "san", "x"),
        ({"subject": SUBJECT, "subjectAltName": (("IP Address", "10.0.0.1"),)}, "san", None),
        ({"subject": SUBJECT}, "san", None),
        ({}, "cn", None),
        (None, "dn", None),
    ],
)
def test_a_name_comes_from_the_certificate_only_when_it_is_one(
    certificate: dict[str, Any] | None, login_from: CertLoginFrom, user: str | None
) -> None:
    assert maybe_user_of_certificate(certificate, login_from) == user
