"""Attacks over the management API: stages, drains and snapshots in bulk, links, and extreme values."""

from __future__ import annotations

import contextlib
import json
import time
from itertools import islice
from typing import Any

from warren.amqp.field_table import Table

from .attack_words import (
    BODY_BYTES,
    LOAD_S,
    VHOST,
    Ports,
    ask_http,
    attack,
    bind,
    consume,
    exchange,
    hostile,
    queue,
    raw_http,
    request,
)
from .attacker import publish_frames


@attack
def parts_for_very_many_exchanges(ports: Ports) -> None:
    """A stage whose messages are for half a million exchanges, each of which has to be permitted."""
    publishes = b"".join(publish_frames(f"e{at}", "", b"") for at in range(500_000))
    ask_http(ports, "PUT", f"/api/warren/stages/{VHOST}/wide/0", publishes[:BODY_BYTES], "mallory")


@attack
def uploads_that_stop(ports: Ports) -> None:
    """Parts of stages that are announced, sent but for their last bytes, and left; more than fit into memory."""
    body = b"x" * BODY_BYTES
    asked = request("PUT", f"/api/warren/stages/{VHOST}/stopped/0", body, "mallory")[:-100]
    socks = [raw_http(ports) for _ in range(60)]
    for sock in socks:
        sock.settimeout(0.05)
        with contextlib.suppress(OSError):
            sock.sendall(asked)
    time.sleep(1)
    for sock in socks:
        sock.close()


@attack
def thousands_of_drains(ports: Ports) -> None:
    """Sessions that are opened on very many queues, with leases, and never used."""
    attacker = hostile(ports)
    attacker.pump(queue(f"drained{at}") for at in range(20_000))
    attacker.barrier()
    with contextlib.suppress(ConnectionError), raw_http(ports) as sock:
        end_s = time.monotonic() + 3 * LOAD_S
        for at in range(4000):
            if time.monotonic() > end_s:
                break
            path = f"/api/warren/drains/{VHOST}/drained{at % 200}/c{at // 200}/open"
            body = b'{"owner": "x", "lease_s": 1}'
            head = request("POST", path, body, "mallory").replace(b"Connection: close\r\n", b"")
            sock.sendall(head)
            received = sock.recv(1 << 16)
            if not received:
                return
    time.sleep(2)


@attack
def snapshot_of_what_is_unacked(ports: Ports) -> None:
    """A snapshot with all that a client has of a queue, which is as much as it may have."""
    attacker = hostile(ports)
    attacker.pump([queue("taken")])
    attacker.pump(islice(iter(lambda: publish_frames("", "taken", b""), None), 400_000))
    attacker.barrier()
    attacker.pump([consume("taken", "t")])
    attacker.barrier()
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        attacker.sock.settimeout(1)
        try:
            attacker.sock.recv(1 << 20)
        except TimeoutError:
            break
    for _ in range(3):
        ask_http(ports, "POST", f"/api/warren/snapshots/{VHOST}/taken", b'{"unacked": true}', "mallory")


@attack
def commits_of_very_many_queries(ports: Ports) -> None:
    """Batches of nothing, each of another query, which is remembered; then what is remembered is asked for."""
    end_s = time.monotonic() + 3 * LOAD_S
    with contextlib.suppress(ConnectionError):
        socks = [raw_http(ports) for _ in range(8)]
        for at in range(100_000):
            for number, sock in enumerate(socks):
                body = json.dumps({"query": f"{at}-{number}" + "q" * 200, "batch": 1, "stages": []}).encode()
                head = request("POST", f"/api/warren/stages/{VHOST}/commit", body, "mallory")
                sock.sendall(head.replace(b"Connection: close\r\n", b""))
            for sock in socks:
                sock.recv(1 << 16)
            if time.monotonic() > end_s:
                break
    for _ in range(5):
        ask_http(ports, "GET", f"/api/warren/stages/{VHOST}/commits", user="mallet")


@attack
def thousands_of_stages(ports: Ports) -> None:
    """Stages of a message each, and lists of all of them."""
    part = publish_frames("", "nowhere", b"")
    end_s = time.monotonic() + 3 * LOAD_S
    with contextlib.suppress(ConnectionError):
        socks = [raw_http(ports) for _ in range(8)]
        for at in range(1200):
            for number, sock in enumerate(socks):
                head = request("PUT", f"/api/warren/stages/{VHOST}/s{at}-{number}/0", part, "mallory")
                sock.sendall(head.replace(b"Connection: close\r\n", b""))
            for sock in socks:
                sock.recv(1 << 16)
            if time.monotonic() > end_s:
                break
    for _ in range(5):
        ask_http(ports, "GET", f"/api/warren/stages/{VHOST}", user="mallet")


@attack
def staged_batch_for_very_many_places(ports: Ports) -> None:
    """A batch that comes to 200,000 places, of queues one of which might refuse it."""
    client = hostile(ports)
    refusing: Table = {"x-max-length": 1_000_000, "x-overflow": "reject-publish"}
    client.pump([exchange("staged", "fanout")])
    for number in range(500):
        client.pump([queue(f"staged{number}", refusing, durable=True), bind(f"staged{number}", "staged")])
    client.barrier()
    ask_http(
        ports,
        "PUT",
        f"/api/warren/stages/{VHOST}/placed/0",
        publish_frames("staged", "", b"x", {"delivery_mode": 2}) * 400,
        "mallory",
    )
    body = json.dumps({"query": "placed", "batch": 1, "stages": ["placed"]}).encode()
    answer = ask_http(ports, "POST", f"/api/warren/stages/{VHOST}/commit", body, "mallory")
    assert b'"committed":true' in answer, answer


@attack
def federation_of_every_queue(ports: Ports) -> None:
    """A policy that has each of very many queues ask for a link to each of ten upstreams, which are not there."""
    attacker = hostile(ports)
    attacker.pump(queue(f"federated{at}") for at in range(3000))
    attacker.barrier()
    for at in range(10):
        value = b'{"value": {"uri": "amqp://127.0.0.1:1"}}'
        ask_http(ports, "PUT", f"/api/parameters/federation-upstream/{VHOST}/up{at}", value)
    body = b'{"pattern": "^federated", "apply-to": "queues", "definition": {"federation-upstream-set": "all"}}'
    ask_http(ports, "PUT", f"/api/policies/{VHOST}/federated", body)
    time.sleep(LOAD_S)
    attacker.pump(queue(f"federated{at}") for at in range(3000, 3100))
    attacker.barrier()
    time.sleep(LOAD_S)


@attack
def shovels_in_circles(ports: Ports) -> None:
    """Shovels from a queue to itself, and from two queues to each other; others whose peers are not there."""
    uri = f"amqp://mallory:mallory@127.0.0.1:{ports.amqp}/{VHOST}"
    names: list[str] = []
    attacker = hostile(ports)
    attacker.pump([queue("a"), queue("b"), *[publish_frames("", "a", b"") for _ in range(2000)]])
    attacker.barrier()
    for source, destination in ("aa", "ab", "ba"):
        value = {"src-uri": uri, "src-queue": source, "dest-uri": uri, "dest-queue": destination}
        body = json.dumps({"value": value | {"dest-add-forward-headers": True}}).encode()
        names.append(source + destination)
        ask_http(ports, "PUT", f"/api/parameters/shovel/{VHOST}/{names[-1]}", body)
    for at in range(100):
        value = {"src-uri": "amqp://127.0.0.1:1", "src-queue": "a", "dest-uri": uri, "dest-queue": "b"}
        body = json.dumps({"value": value | {"reconnect-delay": 0.001}}).encode()
        names.append(f"failing{at}")
        ask_http(ports, "PUT", f"/api/parameters/shovel/{VHOST}/{names[-1]}", body)
    time.sleep(LOAD_S)
    for name in names:
        ask_http(ports, "DELETE", f"/api/parameters/shovel/{VHOST}/{name}")


@attack
def endless_numbers(ports: Ports) -> None:
    """Numbers of 400 digits, infinities and the like, where an API takes numbers."""
    shovel = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}
    for number in ("9" * 400, "1e400", "-1", "NaN", "1e-400", '"' + "9" * 4_999 + '"', str(1 << 64)):
        for key in ("reconnect-delay", "src-prefetch-count", "src-delete-after"):
            value = json.dumps(shovel)[:-1] + f', "{key}": {number}' + "}"
            body = '{"value": ' + value + "}"
            ask_http(ports, "PUT", f"/api/parameters/shovel/{VHOST}/endless", body.encode())
        for key in ("message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit"):
            body = f'{{"pattern": ".*", "definition": {{"{key}": {number}}}}}'
            ask_http(ports, "PUT", f"/api/policies/{VHOST}/endless", body.encode())
    time.sleep(1)
    ask_http(ports, "DELETE", f"/api/parameters/shovel/{VHOST}/endless")
    ask_http(ports, "DELETE", f"/api/policies/{VHOST}/endless")


@attack
def certificates_of_devices(ports: Ports) -> None:
    """Forty shovels whose certificates of authorities are a terminal that never ends."""
    for number in range(40):
        uri = "amqps://127.0.0.1:1?cacertfile=/dev/zero"
        value: dict[str, Any] = {"src-uri": uri, "src-queue": "a", "dest-uri": uri, "dest-queue": "b"}
        ask_http(ports, "PUT", f"/api/parameters/shovel/{VHOST}/device{number}", json.dumps({"value": value}).encode())
    time.sleep(LOAD_S)
    for number in range(40):
        ask_http(ports, "DELETE", f"/api/parameters/shovel/{VHOST}/device{number}")
