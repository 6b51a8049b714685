"""The API over TLS, with the certificate that the AMQP listener has too."""

from __future__ import annotations

import base64
import http.client
import json
import re
import signal
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_process import WarrenProcess, wait_until

from integration.certificates import Authority, Certificate

_AUTHORIZATION = "Basic " + base64.b64encode(b"guest:guest").decode()


class Served:
    """A broker with https alone, and the authority that signed its certificate."""

    def __init__(self, process: WarrenProcess, authority: Authority, certificate: Certificate) -> None:
        self.process = process
        self.authority = authority
        self.certificate = certificate

    def ask(self, path: str, context: ssl.SSLContext | None = None) -> tuple[int, Any]:
        """Return status and decoded body of a GET below ``/api``, with the authority trusted."""
        place = re.search(r"\bhttps://(\S+)", self.process.out())
        assert place is not None, self.process.out()
        url = f"https://{place[1].rstrip('/')}/api{path}"
        request = urllib.request.Request(url, headers={"Authorization": _AUTHORIZATION})
        trusted = context or ssl.create_default_context(cafile=str(self.authority.certificate))
        try:
            with urllib.request.urlopen(request, timeout=30, context=trusted) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.load(refusal)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    authority = Authority(tmp_path / "certificates", "Warren test authority")
    certificate = authority.issue("/CN=server", "IP:127.0.0.1")
    settings = {"tls.certificate": certificate.certificate, "tls.private_key": certificate.key}
    with WarrenProcess(tmp_path, {"http": "off", "https": "127.0.0.1:0"}, settings) as process:
        yield Served(process, authority, certificate)


def test_the_api_answers_those_who_trust_its_authority_and_no_others(served: Served) -> None:
    status, overview = served.ask("/overview?columns=product_name,listeners")
    assert status == 200 and overview["product_name"] == "Warren"
    assert [each["protocol"] for each in overview["listeners"]] == ["amqp", "https"]
    with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
        served.ask("/overview", ssl.create_default_context())


def test_sighup_shows_new_connections_the_new_certificate_while_old_ones_live(served: Served) -> None:
    """And a certificate that cannot be used keeps the one before."""
    port = int(re.findall(r"https://\S+?:(\d+)", served.process.out())[0])
    trusted = ssl.create_default_context(cafile=str(served.authority.certificate))

    def name_shown() -> object:
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            trusted.wrap_socket(plain, server_hostname="127.0.0.1") as looker,
        ):
            certificate = looker.getpeercert()
            assert certificate is not None
            return dict(entry[0] for entry in certificate["subject"])["commonName"]  # type: ignore[misc]

    def asked_again() -> int:
        old.request("GET", "/api/whoami", headers={"Authorization": _AUTHORIZATION})
        answer = old.getresponse()
        answer.read()
        return answer.status

    old = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=trusted)
    assert asked_again() == 200
    before = old.sock
    assert name_shown() == "server"
    renewed = served.authority.issue("/CN=renewed", "IP:127.0.0.1")
    served.certificate.certificate.write_bytes(renewed.certificate.read_bytes())
    served.certificate.key.write_bytes(renewed.key.read_bytes())
    served.process.signal(signal.SIGHUP)
    wait_until(lambda: name_shown() == "renewed", "new connections to see the new certificate")
    served.certificate.key.write_text("not a key")
    served.process.signal(signal.SIGHUP)
    wait_until(lambda: "TLS reload failed" in served.process.log(), "the log to tell of the failed reload")
    assert name_shown() == "renewed"
    assert asked_again() == 200 and old.sock is before
    old.close()


def test_a_certificate_that_ends_soon_fails_its_check_until_it_is_replaced(served: Served) -> None:
    """Those that tests issue last a day."""
    assert served.ask("/health/checks/certificate-expiration/0/days") == (200, {"status": "ok"})
    status, failure = served.ask("/health/checks/certificate-expiration/1/weeks")
    assert status == 503 and failure["status"] == "failed"
    assert [each["certfile"] for each in failure["expired"]] == [str(served.certificate.certificate)]

    renewed = served.authority.issue("/CN=renewed", "IP:127.0.0.1", days=30)
    served.certificate.certificate.write_bytes(renewed.certificate.read_bytes())
    served.certificate.key.write_bytes(renewed.key.read_bytes())
    served.process.signal(signal.SIGHUP)
    wait_until(lambda: served.ask("/health/checks/certificate-expiration/1/weeks")[0] == 200, "the new certificate")
    assert served.ask("/health/checks/certificate-expiration/2/months")[0] == 503
