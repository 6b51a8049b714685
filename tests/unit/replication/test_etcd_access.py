"""How a node reaches its etcd: files of certificates and passwords, and what is said of those that cannot be used."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from integration.certificates import Authority

from warren.replication.etcd_access import etcd_settings
from warren.server.settings import Settings
from warren.server.settings_reader import load_settings
from warren.server.start_errors import SettingsError, StartError

CLUSTER = {"cluster_listen": "127.0.0.1:25672", "cluster_secret_file": "secret"}
TLS = CLUSTER | {"etcd": "https://etcd1:2379,https://etcd2:2379"}


def settings(flags: dict[str, str], **files: Path) -> Settings:
    return load_settings(flags | {key: str(path) for key, path in files.items()}, {})


def test_without_tls_and_users_there_is_neither() -> None:
    found = etcd_settings(settings(CLUSTER | {"etcd": "http://etcd1:2379"}))
    assert (found.endpoints, found.user, found.password, found.tls) == (["http://etcd1:2379"], "", "", None)


def test_a_password_is_read_from_its_file_without_the_space_around_it(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text(" s e c r e t \n")
    found = etcd_settings(settings(TLS | {"etcd_user": "warren"}, etcd_password_file=path))
    assert (found.user, found.password) == ("warren", "s e c r e t")
    assert "s e c r e t" not in repr(found)
    assert found.tls is not None and found.tls.verify_mode is ssl.CERT_REQUIRED and found.tls.check_hostname


def test_certificates_are_those_of_the_settings(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca", "etcd")
    mine = authority.issue("/CN=warren")
    ca, certificate, key = authority.certificate, mine.certificate, mine.key
    found = etcd_settings(settings(TLS, etcd_ca=ca, etcd_certificate=certificate, etcd_key=key))
    assert found.tls is not None and len(found.tls.get_ca_certs()) == 1, "and no other authority is believed"
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    etcd_settings(settings(TLS, etcd_ca=ca, etcd_certificate=both))
    other = authority.issue("/CN=other")
    for wrong in ({"etcd_key": other.key}, {"etcd_ca": key}, {"etcd_certificate": key}, {"etcd_ca": tmp_path / "none"}):
        files = {"etcd_ca": ca, "etcd_certificate": certificate, "etcd_key": key} | wrong
        with pytest.raises(StartError, match=r"^etcd_ca, etcd_certificate and etcd_key \("):
            etcd_settings(settings(TLS, **files))


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe", b"x" * 5000])
def test_a_password_that_is_none_is_refused_by_the_name_of_its_file(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StartError, match=f"^etcd_password_file {path}: "):
        etcd_settings(settings(TLS | {"etcd_user": "warren"}, etcd_password_file=path))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (TLS | {"etcd": "https://etcd1:2379,http://etcd2:2379"}, "all members must use https://, or all http"),
        (CLUSTER | {"etcd": "http://etcd1:2379", "etcd_ca": "ca.pem"}, "etcd_ca: needs members of etcd with"),
        (
            CLUSTER | {"etcd": "http://etcd1:2379", "etcd_certificate": "mine.pem"},
            "etcd_certificate: needs members of etcd",
        ),
        (CLUSTER | {"etcd_user": "warren"}, "etcd_user: needs etcd"),
        (TLS | {"etcd_key": "mine.key"}, "etcd_key: needs etcd_certificate"),
        (TLS | {"etcd_user": "warren"}, "etcd_user: needs etcd_password_file"),
        (TLS | {"etcd_password_file": "password"}, "etcd_password_file: needs etcd_user"),
        (CLUSTER | {"cluster_advertise": "broker1:25672"}, "cluster_advertise: needs etcd"),
        (TLS | {"cluster_advertise": "0.0.0.0:25672"}, "must be an address that other nodes reach"),
        (TLS | {"cluster_advertise": "broker1:0"}, "must be an address that other nodes reach"),
        (TLS | {"etcd": "https://user:hidden@etcd1:2379"}, "must be URLs with commas between them"),
    ],
)
def test_settings_that_do_not_go_together_are_said_so(flags: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, {})
    key, _, rest = words.rpartition(": ")
    assert key in str(caught.value) and rest in str(caught.value)
    assert "hidden" not in str(caught.value)
