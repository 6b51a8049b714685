"""https: certificates are verified, against a given CA, unless that is plainly unwanted."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from .conftest import Ctl
from .fake_api import FakeApi


@pytest.fixture
def authority() -> trustme.CA:
    """A CA nobody knows."""
    return trustme.CA()


@pytest.fixture
def secure_api(authority: trustme.CA) -> Iterator[FakeApi]:
    """The fake API with a certificate of that CA."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    fake = FakeApi(tls)
    fake.answer("GET", "whoami", {"name": "guest"})
    yield fake
    fake.close()


def test_an_unknown_certificate_is_not_spoken_to(secure_api: FakeApi, ctl: Ctl) -> None:
    ended = ctl("-u", secure_api.url, "whoami")
    assert ended.exit_code == 3 and ended.err.count("\n") == 1
    assert "from an unknown authority" in ended.err and "--cacert FILE" in ended.err
    assert secure_api.asked == []


def test_a_given_ca_is_trusted(secure_api: FakeApi, ctl: Ctl, authority: trustme.CA, tmp_path: Path) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    assert ctl("-u", secure_api.url, "--cacert", str(tmp_path / "ca.pem"), "whoami").exit_code == 0


def test_a_ca_vouches_for_the_host_too(secure_api: FakeApi, ctl: Ctl, authority: trustme.CA, tmp_path: Path) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    url = f"https://localhost:{secure_api.port}"
    ended = ctl("-u", url, "--cacert", str(tmp_path / "ca.pem"), "whoami")
    assert ended.exit_code == 3 and "for another host name" in ended.err


def test_insecure_takes_any_certificate(secure_api: FakeApi, ctl: Ctl) -> None:
    assert ctl("-u", secure_api.url, "--insecure", "whoami") == (0, "name  guest\n", "")
