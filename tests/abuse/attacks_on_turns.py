"""Attacks on the turns of the broker: pipelined methods, and inputs whose work multiplies."""

from __future__ import annotations

import contextlib
import json
import time

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import EMPTY_TABLE, Table, encode_table
from warren.amqp.methods import HEARTBEAT_FRAME

from .attack_words import (
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
    until_closed,
)
from .attacker import publish_frames


@attack
def tiny_methods(ports: Ports) -> None:
    """Eight connections that pipeline the smallest methods there are."""
    clients = [hostile(ports) for _ in range(8)]
    burst = method_frame(1, m.BasicQos(0, 0, False)) * 8_000 + method_frame(1, m.BasicGet(0, "q", False)) * 2_000
    clients[0].pump([queue("q")])
    clients[0].barrier()

    def everybody() -> None:
        for client in clients:
            client.pump([burst])

    until_closed(everybody)


@attack
def heartbeats_and_no_reading(ports: Ports) -> None:
    """A consumer that reads nothing, and sends heartbeats."""
    client = hostile(ports)
    client.pump([queue("q"), consume("q", "never-reads")])
    client.barrier()
    until_closed(lambda: client.send(publish_frames("", "q", b"x" * 100_000) * 10 + HEARTBEAT_FRAME))


@attack
def letters_in_circles(ports: Ports) -> None:
    """Ten queues without room, whose dead letters go to all ten."""
    client = hostile(ports)
    full: Table = {"x-max-length": 0, "x-dead-letter-exchange": "round"}
    names = [f"full{number}" for number in range(10)]
    client.pump([exchange("round", "fanout"), *(queue(name, full) + bind(name, "round") for name in names)])
    client.pump([publish_frames("round", "", b"once")])
    client.barrier()
    client.pump([method_frame(1, m.ExchangeDelete(0, "round", if_unused=False, no_wait=True))])
    client.barrier()


@attack
def twenty_thousand_consumers(ports: Ports) -> None:
    """A socket with 20,000 consumers of one queue, which closes."""
    client = hostile(ports)
    client.open(2)
    client.pump([queue("q")])
    client.barrier()
    for channel in (1, 2):
        consumer = m.BasicConsume(0, "q", "", False, False, False, True, EMPTY_TABLE)
        client.pump(method_frame(channel, consumer._replace(consumer_tag=f"c{number}")) for number in range(10_000))
        client.barrier(channel)
    client.close()


@attack
def carbon_copies(ports: Ports) -> None:
    """A message with 4,000 more routing keys, for 20,000 bindings."""
    client = hostile(ports)
    client.pump([exchange("wide", "topic"), *(queue(f"w{number}") for number in range(20))])
    client.pump(bind(f"w{number % 20}", "wide", f"#.{number}.#") for number in range(10_000))
    client.pump(bind(f"w{number % 20}", "wide", f"*.{number}.#") for number in range(10_000))
    client.barrier()
    keys = [f"{number}.{number + 1}.{number + 2}" for number in range(4_000)]
    client.pump([publish_frames("wide", "0", b"many", {"headers": {"CC": keys}})])
    client.barrier()
    client.pump([method_frame(1, m.ExchangeDelete(0, "wide", if_unused=False, no_wait=True))])
    client.barrier()


@attack
def topic_of_hashes(ports: Ports) -> None:
    """Binding keys of many ``#``, and a routing key that fits each of them in many ways."""
    client = hostile(ports)
    patterns = ["#.a" * count + ".#" for count in range(1, 40)]
    client.pump([exchange("hashes", "topic"), queue("h")])
    client.pump(bind("h", "hashes", pattern.lstrip(".")) for pattern in patterns)
    client.pump([publish_frames("hashes", ".".join("a" * 127), b"where")] * 5)
    client.barrier()
    client.pump([method_frame(1, m.ExchangeDelete(0, "hashes", if_unused=False, no_wait=True))])
    client.barrier()


@attack
def route_question(ports: Ports) -> None:
    """Where would a message go that 2,000 bindings match?"""
    client = hostile(ports)
    client.pump([exchange("asked", "topic"), queue("a")])
    client.pump(bind("a", "asked", f"#.{number}") for number in range(1_000))
    client.pump(bind("a", "asked", "k.#", {"number": number}) for number in range(2_000))
    client.barrier()
    ask_http(
        ports, "POST", f"/api/warren/route/{VHOST}", json.dumps({"exchange": "asked", "routing_key": "k"}).encode()
    )
    client.pump([method_frame(1, m.ExchangeDelete(0, "asked", if_unused=False, no_wait=True))])
    client.barrier()


@attack
def many_bindings(ports: Ports) -> None:
    """An exchange with 300,000 bindings, which is deleted."""
    client = hostile(ports)
    client.pump([exchange("many", "direct"), queue("m")])
    client.pump(bind("m", "many", f"{number}") for number in range(300_000))
    client.barrier()
    client.pump([method_frame(1, m.ExchangeDelete(0, "many", if_unused=False, no_wait=False))])
    client.barrier()


@attack
def wide_publishes(ports: Ports) -> None:
    """Persistent messages to 20,000 durable queues each."""
    client = hostile(ports)
    client.pump([exchange("wide", "fanout")])
    for number in range(20_000):
        client.pump([queue(f"wide{number}", durable=True), bind(f"wide{number}", "wide")])
    client.barrier()
    client.pump([publish_frames("wide", "", b"x", {"delivery_mode": 2}) for _ in range(4)])
    client.barrier()


@attack
def remembered_messages(ports: Ports) -> None:
    """An exchange that remembers 50,000 messages without bodies, to which ten queues are bound."""
    client = hostile(ports)
    arguments = encode_table({"x-recent-history-length": 50_000})
    client.pump(
        [method_frame(1, m.ExchangeDeclare(0, "past", "x-recent-history", False, False, False, False, True, arguments))]
    )
    client.pump([publish_frames("past", "", b"") * 1000 for _ in range(50)])
    client.pump(queue(f"late{number}") + bind(f"late{number}", "past") for number in range(10))
    client.barrier()


@attack
def consumers_of_all_priorities(ports: Ports) -> None:
    """20,000 consumers of one queue with a priority each, all without room, and messages for them."""
    client = hostile(ports)
    client.pump([queue("ranks"), method_frame(1, m.BasicQos(0, 1, False))])
    for number in range(20_000):
        ranked = encode_table({"x-priority": number})
        client.pump([method_frame(1, m.BasicConsume(0, "ranks", f"c{number}", False, False, False, True, ranked))])
    client.pump([publish_frames("", "ranks", b"x") * 1000 for _ in range(25)])
    client.barrier()


@attack
def unread_listings(ports: Ports) -> None:
    """Lists of 20,000 queues, sixty at a time, sorted and not, of which nothing is read."""
    client = hostile(ports)
    client.pump(queue(f"listed{number}") for number in range(20_000))
    client.barrier()

    def burst() -> None:
        with contextlib.ExitStack() as socks:
            for number in range(60):
                sock = socks.enter_context(raw_http(ports))
                sort = "?sort=idle_since" if number % 2 else ""
                sock.sendall(request("GET", f"/api/queues/{VHOST}{sort}"))
            time.sleep(LOAD_S / 3)

    until_closed(burst)


@attack
def exclusive_queues(ports: Ports) -> None:
    """A connection with 50,000 exclusive queues, which is gone."""
    client = hostile(ports)
    client.pump(queue(f"x{number}", exclusive=True) for number in range(50_000))
    client.barrier()
    client.close()


@attack
def expiries_with_dead_letters(ports: Ports) -> None:
    """500,000 messages that expire in the same moment, and become dead letters in another queue."""
    client = hostile(ports)
    expiring: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 3_000}
    client.pump([queue("dead", {"x-max-length": 1_000}), queue("expiring", expiring)])
    batch = publish_frames("", "expiring", b"x") * 1_000
    client.pump(batch for _ in range(500))
    client.barrier()
    time.sleep(LOAD_S)
