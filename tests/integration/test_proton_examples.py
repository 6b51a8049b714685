"""The examples of Qpid Proton's C library as Debian has them, compiled here, against the real process."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from broker_process import WarrenProcess

from .certificates import Authority

EXAMPLES = Path("/usr/share/proton/examples/c")
PACKAGES = "libqpid-proton11-dev libqpid-proton11-dev-examples"
DEADLINE_S = 60
COUNT = 500


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "tests")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[WarrenProcess]:
    server = authority.issue("/CN=server", "DNS:localhost")
    directory: Path = tmp_path_factory.mktemp("broker")
    tls: dict[str, object] = {"tls.certificate": server.certificate, "tls.private_key": server.key}
    with WarrenProcess(directory, flags={"amqps": "127.0.0.1:0"}, settings=tls) as process:
        yield process


def compiled(name: str, directory: Path) -> Path:
    """Compile an example; skip the test where that is not possible, which is a failure in CI."""
    compiler = shutil.which("cc")
    if compiler is None or not (EXAMPLES / f"{name}.c").exists():
        text = f"Proton's examples or a compiler are not on this machine; on Debian: apt-get install gcc {PACKAGES}"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    program = directory / name
    command = [compiler, str(EXAMPLES / f"{name}.c"), "-o", str(program), "-lqpid-proton"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def test_messages_that_c_sends_through_tls_come_out_of_the_queue(
    broker: WarrenProcess, authority: Authority, tmp_path: Path
) -> None:
    program = compiled("send-ssl", tmp_path)
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port)) as amqp:
        channel = amqp.channel()
        channel.queue_declare("examples", durable=True)
        place = ["localhost", str(broker.amqps_port), "/queues/examples"]
        done = subprocess.run(
            [str(program), *place, str(COUNT), "guest", "guest"],
            env=os.environ | {"SSL_CERT_FILE": str(authority.certificate)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stderr
        assert f"{COUNT} messages sent and acknowledged" in done.stdout
        ids = []
        for _, properties, _ in channel.consume("examples", auto_ack=True, inactivity_timeout=DEADLINE_S):
            assert properties is not None
            ids.append(properties.message_id)
            if len(ids) == COUNT:
                break
        assert ids == [str(number) for number in range(1, COUNT + 1)]


def test_who_does_not_log_in_is_told_what_is_expected(broker: WarrenProcess, tmp_path: Path) -> None:
    """The example without TLS speaks AMQP without SASL, which RabbitMQ refuses, too."""
    program = compiled("send", tmp_path)
    done = subprocess.run(
        [str(program), "127.0.0.1", str(broker.amqp_port), "/queues/examples", "1"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1
    assert "AMQP SASL layer" in done.stderr
