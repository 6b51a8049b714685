"""Certificates on the cluster port: both sides need one, and no other certificate helps somebody in between."""

from __future__ import annotations

import signal
import socket
import ssl
from pathlib import Path

import pytest
from broker_process import wait_until

from integration.certificates import Authority, Certificate

from .nodes import Node
from .test_promotion import bodies


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "Nodes of a test")


def settings(authority: Authority, certificate: Certificate) -> dict[str, object]:
    return {
        "cluster_certificate": certificate.certificate,
        "cluster_private_key": certificate.key,
        "cluster_ca": authority.certificate,
    }


@pytest.mark.long
def test_nodes_with_certificates_follow_each_other(tmp_path: Path, authority: Authority) -> None:
    leader = Node(tmp_path, "one", settings(authority, authority.issue("/CN=one")))
    follower = Node(tmp_path, "two", settings(authority, authority.issue("/CN=two")))
    leader.lead()
    follower.follow(leader)
    leader.await_in_sync("two")
    # More than the buffers of the kernel take at a time.
    leader.publish("orders", [*bodies(0, 5), bytes(6_000_000), *bodies(5, 5)])
    leader.lose()
    follower.await_lost()
    follower.promote()
    assert follower.drain("orders") == [*bodies(0, 5), bytes(6_000_000), *bodies(5, 5)]
    follower.process.stop()


def test_who_has_no_certificate_or_one_of_somebody_else_is_refused(tmp_path: Path, authority: Authority) -> None:
    other = Authority(tmp_path / "other", "Somebody else")
    leader = Node(tmp_path, "one", settings(authority, authority.issue("/CN=one")))
    plain = Node(tmp_path, "plain")
    stranger = Node(tmp_path, "stranger", settings(other, other.issue("/CN=two")))
    leader.lead()
    plain.follow(leader)
    stranger.follow(leader)
    for node in (plain, stranger):
        node.await_log("not following")
    wait_until(lambda: leader.process.log().count("a follower was refused") >= 2, "the leader to say so")
    assert leader.status()["followers"] == []
    # A peer that connects without TLS learns nothing and delays nobody.
    with socket.create_connection(("127.0.0.1", leader.cluster_port)) as silent:
        silent.sendall(b"GET / HTTP/1.1\r\n\r\n")
        leader.publish("orders", bodies(0, 1))
    for node in (plain, stranger, leader):
        node.process.stop()


def test_clients_are_passed_on_through_tls_between_the_nodes(tmp_path: Path, authority: Authority) -> None:
    leader = Node(tmp_path, "one", settings(authority, authority.issue("/CN=one")))
    follower = Node(tmp_path, "two", settings(authority, authority.issue("/CN=two")))
    leader.lead()
    follower.follow(leader)
    leader.await_in_sync("two")
    sent = [*bodies(0, 5), bytes(range(256)) * 40_000, *bodies(5, 5)]  # more than any buffer takes at a time
    follower.publish("orders", sent)
    assert follower.drain("orders") == sent
    names = [f"queue-{number:05}" for number in range(1000)]
    queues = [{"name": name, "vhost": "/", "durable": False, "auto_delete": False, "arguments": {}} for name in names]
    assert follower.ask("POST", "/api/definitions", {"queues": queues})[0] in (200, 204)
    assert len(follower.ask("GET", "/api/queues/%2F")[1]) == 1001
    follower.process.stop()
    leader.process.stop()


def test_a_follower_takes_renewed_files_of_tls_while_it_runs(tmp_path: Path, authority: Authority) -> None:
    """Clients of AMQP and HTTP connect to it as they do to the leader."""
    shown = authority.issue("/CN=first", "IP:127.0.0.1")
    files = {"tls.certificate": shown.certificate, "tls.private_key": shown.key}
    leader = Node(tmp_path, "one")
    follower = Node(tmp_path, "two", files, listeners=("amqp", "http", "amqps", "https"))
    trusting = ssl.create_default_context(cafile=authority.certificate)

    def names() -> list[str]:
        return [name_on(port) for port in (follower.process.amqps_port, follower.process.https_port)]

    def name_on(port: int) -> str:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
            trusting.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            certificate = secured.getpeercert()
            assert certificate is not None
            return str(certificate["subject"][0][0][1])

    leader.lead()
    follower.follow(leader)
    assert names() == ["first", "first"]
    renewed = authority.issue("/CN=renewed", "IP:127.0.0.1")
    shown.certificate.write_bytes(renewed.certificate.read_bytes())
    shown.key.write_bytes(renewed.key.read_bytes())
    follower.process.signal(signal.SIGHUP)
    follower.await_log("TLS certificate reloaded")
    assert names() == ["renewed", "renewed"]
    shown.key.write_text("not a key")
    follower.process.signal(signal.SIGHUP)
    follower.await_log("TLS reload failed")
    assert names() == ["renewed", "renewed"]
    for node in (follower, leader):
        node.process.stop()
