"""Links over TLS: certificates and names are checked, unless the URI says otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from link_host import FakeHost, LinksThread

from integration.certificates import Authority, Certificate

from .brokers import WarrenProcess, bodies, fill, wait_for
from .conftest import Names


class Certificates:
    """An authority, a server, and a client that is the user guest."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory, "Warren test authority")
        self.server: Certificate = self.authority.issue("/CN=server", "DNS:broker.example,IP:127.0.0.1")
        self.client: Certificate = self.authority.issue("/CN=guest")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_warren(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[WarrenProcess]:
    settings = {
        "tls.certificate": certificates.server.certificate,
        "tls.private_key": certificates.server.key,
        "tls.ca": certificates.authority.certificate,
        "tls.client_certificates": "optional",
        "tls.cert_login_from": "cn",
    }
    with WarrenProcess(tmp_path_factory.mktemp("links-tls"), {"amqps": "127.0.0.1:0"}, settings) as process:
        yield process


@pytest.fixture
def links(tls_warren: WarrenProcess) -> Iterator[LinksThread]:
    with LinksThread(FakeHost(tls_warren.amqp_port)) as thread:
        yield thread


def start(links: LinksThread, destination: str, name: Names) -> None:
    value: dict[str, Any] = {"src-uri": "amqp://", "src-queue": name("from"), "dest-uri": destination}
    links.do(links.host.set_parameter, "shovel", "s", {**value, "dest-queue": name("to"), "reconnect-delay": 0})


@pytest.mark.parametrize(
    ("user", "query"),
    [
        ("guest:guest@", "cacertfile={ca}"),
        ("guest:guest@", "cacertfile={ca}&server_name_indication=broker.example"),
        ("guest:guest@", "cacertfile={ca}&server_name_indication=disable"),
        ("guest:guest@", "verify=verify_none"),
        ("", "cacertfile={ca}&certfile={certificate}&keyfile={key}"),
        ("", "cacertfile={ca}&certfile={certificate}&keyfile={key}&auth_mechanism=external"),
    ],
)
def test_a_shovel_goes_over_tls_with_a_password_or_a_certificate(
    links: LinksThread, tls_warren: WarrenProcess, certificates: Certificates, name: Names, user: str, query: str
) -> None:
    client = certificates.client
    query = query.format(ca=certificates.authority.certificate, certificate=client.certificate, key=client.key)
    fill(tls_warren, name("from"), [b"secret"])
    start(links, f"amqps://{user}127.0.0.1:{tls_warren.amqps_port}/%2f?{query}", name)
    wait_for(lambda: bodies(tls_warren, name("to")) == [b"secret"], "the message")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "self-signed certificate"),
        ("cacertfile={ca}&server_name_indication=other.example", "Hostname mismatch"),
        ("cacertfile=/no/such/file", "certificate files"),
        # Each of these was a thread that hung for good, and 40 of them all that there are.
        ("cacertfile={pipe}", "certificate files"),
        ("cacertfile=/dev/zero", "certificate files"),
        ("cacertfile={ca}&certfile={pipe}", "certificate files"),
        ("cacertfile={ca}&certfile={ca}&keyfile={pipe}", "certificate files"),
    ],
)
def test_a_server_that_cannot_prove_its_name_is_refused(
    links: LinksThread,
    tls_warren: WarrenProcess,
    certificates: Certificates,
    name: Names,
    query: str,
    reason: str,
    tmp_path: Path,
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    query = query.format(ca=certificates.authority.certificate, pipe=pipe)
    start(links, f"amqps://guest:guest@127.0.0.1:{tls_warren.amqps_port}/%2f?{query}", name)
    wait_for(lambda: links.shovel("s").get("state") == "terminated", "the refusal")
    assert reason in str(links.shovel("s")["reason"])
