"""The books of a cluster's clients: gaps, and missing messages."""

from __future__ import annotations

import sys
from pathlib import Path

from broker_process import wait_until
from free_ports import free_port

from warren.perf.client import Address

from .small_broker import SmallBroker

sys.path.append(str(Path(__file__).parents[3]))
from benchmarks.cluster_clients import Books, Consumer, Publisher, declare


def test_the_longest_gap_is_that_of_one_publisher_and_not_between_any_two_confirms() -> None:
    books = Books()
    for at_s in (0, 1, 2, 3, 4, 5):
        books.confirmed(0, at_s)
    books.confirmed(1, 0.5)
    books.confirmed(1, 4.5)
    assert books.gaps_s(5) == [1, 4]


def test_a_gap_that_goes_on_counts_and_is_whole_after_gaps_were_forgotten() -> None:
    books = Books()
    books.confirmed(0, 10)
    assert books.gaps_s(13) == [books.silence_s(13)] == [3]
    books.forget_gaps()
    books.confirmed(0, 15)
    assert books.gaps_s(15) == [5]
    books.forget_gaps()
    assert books.gaps_s(15) == [books.silence_s(15)] == [0]


def test_nobody_who_was_never_confirmed_anything_has_a_gap() -> None:
    assert (Books().gaps_s(100), Books().silence_s(100)) == ([], 0)


def test_what_was_confirmed_and_has_not_arrived_is_missing_and_nothing_else() -> None:
    books = Books()
    for _ in range(3):
        books.confirmed(0, 0)
    books.confirmed(1, 0)
    for publisher, number in ((0, 0), (0, 2), (0, 2), (0, 3), (2, 0)):
        books.received(publisher, number)
    assert books.counts() == (4, 4)
    assert books.missing() == 2  # number 1 of the first publisher, and number 0 of the second
    books.received(0, 1)
    books.received(1, 0)
    assert books.missing() == 0


def test_clients_find_the_node_that_serves_and_all_that_is_confirmed_arrives() -> None:
    broker = SmallBroker()
    books = Books()
    addresses = [Address(port=free_port()), Address(port=broker.port)]  # nobody listens at the first
    declare(addresses[1], "orders")
    publishers = [Publisher(number, addresses, "orders", books, 0.0) for number in range(2)]
    consumer = Consumer(addresses, "orders", books)
    for client in (*publishers, consumer):
        client.start()
    wait_until(lambda: books.counts()[0] >= 20, "messages to be confirmed")
    for publisher in publishers:
        publisher.end()
    wait_until(lambda: books.missing() == 0, "what is confirmed to arrive")
    broker.close()  # the consumer has nothing more to wait for
    consumer.end()
    assert books.counts()[1] >= books.counts()[0] >= 20
    assert books.reconnections >= 3
