"""The listener of data alone: the routes that a token opens, and others. data_listener (1) and (2)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pika
import pytest
from broker_process import WarrenProcess

from integration.certificates import Authority
from warren.spark_bridge.bridge_errors import BrokerError, NotAllowed
from warren.spark_bridge.control import BrokerClient, DataToken
from warren.spark_bridge.options import ReadOptions, read_options
from warren.spark_bridge.pieces import Range, client_of_task, cut

BASIC = "Basic Z3Vlc3Q6Z3Vlc3Q="


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    with WarrenProcess(tmp_path_factory.mktemp("broker"), {"data": "127.0.0.1:0"}) as process:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.amqp_port)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for name in ("orders", "other"):
                channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
                for number in range(5):
                    channel.basic_publish("", name, b"%d" % number)
        yield process


def management(process: WarrenProcess, user: str = "guest") -> BrokerClient:
    return BrokerClient(f"http://127.0.0.1:{process.http_port}", user, user, retries=0)


def options_of(process: WarrenProcess, **more: str) -> ReadOptions:
    url = f"http://127.0.0.1:{process.http_port}"
    return read_options({"subscribe": "orders", "managementUrl": url, "localFiles": "never", **more})


def answered(port: int, path: str, authorization: str | None, method: str = "GET") -> tuple[int, Any]:
    headers = {} if authorization is None else {"Authorization": authorization}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)


def token_of(process: WarrenProcess, queue: str = "orders", user: str = "guest") -> DataToken:
    found = management(process, user).maybe_token(queue, 60)
    assert found is not None
    return found


def test_tasks_read_with_tokens_and_know_no_password(broker: WarrenProcess) -> None:
    options = options_of(broker, dataPort="always")
    client = options.connection.client()
    found = client.describe("orders")
    pieces = cut(client, options, [Range("orders", 0, "orders", found.id, found.first, found.end)])
    assert options.for_tasks().connection.password == ""
    task = client_of_task(options.for_tasks(), pieces[0].value)
    assert task.url == f"http://127.0.0.1:{broker.data_port}" != client.url
    (chunk,) = task.read("orders", 0, 5, found.id)
    assert chunk.bodies(0, 5).to_pylist() == [b"0", b"1", b"2", b"3", b"4"]
    assert task.describe("orders") == found
    assert task.files("orders", 0, 5, found.id).chunks == ()


def test_a_token_opens_its_queue_and_nothing_else(broker: WarrenProcess) -> None:
    token = token_of(broker)
    bearer, port = f"Bearer {token.token}", broker.data_port
    ours = "/api/warren/data/%2F/orders"
    assert answered(port, ours, bearer)[0] == 200
    assert answered(port, "/api/warren/data/%2F/other", bearer)[0] == 403
    assert answered(port, "/api/warren/data/v/orders", bearer)[0] == 403
    for path in ("/api/overview", "/api/warren/data/%2F", "/", "/index.html", "/metrics", "/health", "/api/queues"):
        assert answered(port, path, bearer)[0] == 404, path
    for method in ("PUT", "DELETE", "POST"):
        assert answered(port, ours, bearer, method)[0] == 405
    assert answered(port, f"{ours}/plan", bearer, "POST")[0] == 404
    assert answered(port, f"{ours}/token", bearer, "POST")[0] == 404
    for wrong in (None, BASIC, "Bearer x", bearer[:-2]):
        assert answered(port, ours, wrong)[0] == 401
    assert answered(broker.http_port, ours, bearer)[0] == 401


def test_a_token_is_given_to_who_may_read_and_ends_when_that_ends(broker: WarrenProcess) -> None:
    url = f"http://127.0.0.1:{broker.http_port}/api"

    def put(path: str, value: object) -> None:
        headers = {"Authorization": BASIC, "Content-Type": "application/json"}
        request = urllib.request.Request(url + path, json.dumps(value).encode(), headers, method="PUT")
        urllib.request.urlopen(request, timeout=30).close()

    put("/users/ada", {"password": "ada", "tags": ""})
    put("/permissions/%2F/ada", {"configure": "", "write": "", "read": "orders"})
    token = token_of(broker, user="ada")
    bearer, ours = f"Bearer {token.token}", "/api/warren/data/%2F/orders"
    assert answered(broker.data_port, ours, bearer)[0] == 200
    with pytest.raises(NotAllowed):
        management(broker, "ada").maybe_token("other", 60)
    put("/permissions/%2F/ada", {"configure": "", "write": "", "read": "nothing"})
    assert answered(broker.data_port, ours, bearer)[0] in (401, 403)
    put("/permissions/%2F/ada", {"configure": "", "write": "", "read": "orders"})
    assert answered(broker.data_port, ours, bearer)[0] == 200
    put("/users/ada", {"password": "other", "tags": ""})
    assert answered(broker.data_port, ours, bearer)[0] == 401


@pytest.mark.parametrize("ttl_s", [0, -1, 86401, 2**63, "x"])
def test_a_time_that_no_token_has_is_refused(broker: WarrenProcess, ttl_s: Any) -> None:
    with pytest.raises(BrokerError) as caught:
        management(broker).maybe_token("orders", ttl_s)
    assert caught.value.status == 400


def test_a_token_outlives_a_restart(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path, {"data": "127.0.0.1:0"}) as process:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.amqp_port)) as connection:
            connection.channel().queue_declare("orders", durable=True, arguments={"x-queue-type": "stream"})
        token = token_of(process)
        process.kill()
        process.start()
        assert answered(process.data_port, "/api/warren/data/%2F/orders", f"Bearer {token.token}")[0] == 200


def test_without_a_listener_tasks_ask_as_the_planner_does_unless_they_must_not(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path) as process:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.amqp_port)) as connection:
            channel = connection.channel()
            channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "stream"})
            channel.confirm_delivery()
            channel.basic_publish("", "orders", b"x")
        options = options_of(process)
        client = options.connection.client()
        found = client.describe("orders")
        wanted = [Range("orders", 0, "orders", found.id, 0, 1)]
        (piece,) = cut(client, options, wanted)
        assert piece.value.token is None
        assert client_of_task(options, piece.value).url == client.url
        with pytest.raises(ValueError, match=r"option dataPort: .* has no listener of data alone for 'orders'"):
            cut(client, replace(options, data_port="always"), wanted)


def test_it_has_tls_with_the_certificate_of_the_other_ports(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates", "Warren test authority")
    certificate = authority.issue("/CN=server", "IP:127.0.0.1")
    settings = {"tls.certificate": certificate.certificate, "tls.private_key": certificate.key}
    flags = {"https": "127.0.0.1:0", "data": "127.0.0.1:0", "datas": "127.0.0.1:0"}
    with WarrenProcess(tmp_path, flags, settings) as process:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.amqp_port)) as connection:
            connection.channel().queue_declare("orders", durable=True, arguments={"x-queue-type": "stream"})
        ca = str(authority.certificate)
        planner = BrokerClient(f"https://127.0.0.1:{process.https_port}", cacert=ca)
        token = planner.maybe_token("orders", 60)
        assert token is not None and token.url == f"https://127.0.0.1:{process.datas_port}"
        task = BrokerClient(token.url, token=token.token, cacert=ca, retries=0)
        assert task.describe("orders").name == "orders"
