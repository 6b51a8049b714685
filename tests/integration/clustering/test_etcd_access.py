"""A node whose etcd has TLS and users: it leads, and says in plain words what keeps it from etcd."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from broker_process import WarrenProcess, wait_until
from cluster.etcd_processes import EtcdCluster, running_etcd

from integration.certificates import Authority

from .nodes import AnsweringProcess, Node

PASSWORD = "one of etcd"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca", "etcd")


@pytest.fixture
def etcd(tmp_path: Path, authority: Authority) -> Iterator[EtcdCluster]:
    """An etcd with TLS, with the user warren, which has the permissions that the documentation requires."""
    server = authority.issue("/CN=etcd", "IP:127.0.0.1")
    options = [f"--cert-file={server.certificate}", f"--key-file={server.key}"]
    with running_etcd(tmp_path / "etcd", options=options, scheme="https") as cluster:
        context = ssl.create_default_context(cafile=str(authority.certificate))

        def ask(path: str, body: Mapping[str, object]) -> bool:
            request = urllib.request.Request(f"{cluster.endpoints[0]}/v3/{path}", json.dumps(body).encode())
            try:
                with urllib.request.urlopen(request, timeout=5, context=context):
                    return True
            except OSError:
                return False

        wait_until(lambda: ask("auth/role/add", {"name": "warren"}), "etcd to answer")
        key, end = "L3dhcnJlbi93YXJyZW4v", "L3dhcnJlbi93YXJyZW4w"  # /warren/warren/ and /warren/warren0
        may = {"name": "warren", "perm": {"permType": "READWRITE", "key": key, "range_end": end}}
        assert ask("auth/role/grant", may)
        assert ask("auth/role/add", {"name": "root"})
        for name, password in (("root", "of nobody here"), ("warren", PASSWORD)):
            assert ask("auth/user/add", {"name": name, "password": password})
            assert ask("auth/user/grant", {"user": name, "role": name})
        assert ask("auth/enable", {})
        yield cluster


class SecuredNode(Node):
    """A node of a cluster by itself, which logs in to `etcd`."""

    def __init__(self, directory: Path, name: str, etcd: EtcdCluster, ca: Path) -> None:
        self.etcd = etcd
        super().__init__(directory, name)
        (self.directory / "password").write_text(PASSWORD + "\n")
        self.settings = {"etcd_ca": ca, "etcd_user": "warren", "etcd_password_file": self.directory / "password"}

    def _process(self, kind: type[WarrenProcess], follow: Node | None = None) -> WarrenProcess:
        process = super()._process(kind)
        process.flags |= {"etcd": self.etcd.endpoints[0], "node": self.name}
        return process

    def take_part(self) -> None:
        """Start it, and wait until it answers over HTTP."""
        self.process = self._process(AnsweringProcess)
        self.process.start()


def test_a_node_logs_in_to_an_etcd_with_tls_and_says_what_keeps_it_from_that(
    tmp_path: Path, etcd: EtcdCluster, authority: Authority
) -> None:
    node = SecuredNode(tmp_path, "one", etcd, authority.certificate)
    node.take_part()
    try:
        node.await_log("this node was elected")
        wait_until(lambda: node.process.health_of("leader") == 200, "it to serve")
        node.publish("orders", [b"one"])
        status = node.status()
        assert [row["node"] for row in status["members"]] == [node.name]
        assert status["election"]["etcd"]["trouble"] == ""
        node.process.stop()

        (node.directory / "password").write_text("another one")
        node.take_part()
        node.await_log("it refuses this user and password: etcd_user or etcd_password_file is wrong")
        assert "another one" not in node.process.log()
        assert node.process.health_of("leader") == 503
    finally:
        if node.process.is_running():
            node.process.kill()
