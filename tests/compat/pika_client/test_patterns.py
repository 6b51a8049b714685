"""The shapes people build with blocking connections: work queues, threads, reconnecting; `tutorials` has the others."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pika
from pika import BasicProperties, spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from ..broker import Broker
from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    drain,
    pump,
    ready,
    round_trip,
    send_method,
    settle,
    tag_of,
)


def test_a_work_queue_shares_durable_tasks_among_workers(connect: Connect, names: Names) -> None:
    queue = names.queue("tasks")
    producer = connect().channel()
    producer.queue_declare(queue, durable=True)
    producer.confirm_delivery()
    workers = [connect().channel() for _ in range(3)]
    inboxes = []
    for worker in workers:
        worker.basic_qos(prefetch_count=1)
        inboxes.append(Inbox(worker, acks=True))
        inboxes[-1].consume(queue)
    tasks = [b"task %d" % number for number in range(60)]
    for task in tasks:
        producer.basic_publish("", queue, task, BasicProperties(delivery_mode=2))

    def all_done() -> bool:
        for worker in workers:
            worker.connection.process_data_events(time_limit=0)
        return sum(len(inbox.bodies) for inbox in inboxes) == 60

    pump(producer.connection, all_done, "sixty tasks done")
    assert sorted(body for inbox in inboxes for body in inbox.bodies) == sorted(tasks)
    assert all(inbox.bodies for inbox in inboxes)


def test_worker_threads_acknowledge_through_threadsafe_callbacks(connect: Connect, names: Names) -> None:
    queue = names.queue()
    connection = connect()
    channel = connection.channel()
    channel.queue_declare(queue)
    channel.basic_qos(prefetch_count=5)
    for number in range(40):
        channel.basic_publish("", queue, b"%d" % number)
    done: list[bytes] = []
    threads: set[int] = set()
    barrier = threading.Barrier(4)

    def work(delivery_tag: int, body: bytes) -> None:
        if int(body) < 4:
            barrier.wait()  # four messages are in four threads at the same time
        threads.add(threading.get_ident())
        connection.add_callback_threadsafe(functools.partial(finish, delivery_tag, body))

    def finish(delivery_tag: int, body: bytes) -> None:
        channel.basic_ack(delivery_tag)
        done.append(body)

    with ThreadPoolExecutor(max_workers=4) as pool:

        def hand_over(_: BlockingChannel, method: spec.Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
            pool.submit(work, tag_of(method), body)

        channel.basic_consume(queue, hand_over)
        pump(connection, lambda: len(done) == 40, "forty acknowledgements")
    assert sorted(done, key=int) == [b"%d" % number for number in range(40)]
    assert len(threads) == 4
    settle(channel, queue)
    assert ready(channel, queue) == 0


def test_each_thread_may_have_its_own_connection(broker: Broker, names: Names) -> None:
    queue = names.queue()
    with pika.BlockingConnection(broker.parameters()) as main:
        channel = main.channel()
        channel.queue_declare(queue)

        def produce(thread: int) -> None:
            with pika.BlockingConnection(broker.parameters()) as own:
                sender = own.channel()
                sender.confirm_delivery()
                for number in range(50):
                    sender.basic_publish("", queue, b"%d %d" % (thread, number))

        with ThreadPoolExecutor(max_workers=5) as pool:
            list(pool.map(produce, range(5)))
        bodies = drain(channel, queue)
    assert len(bodies) == 250
    for thread in range(5):
        own_bodies = [body for body in bodies if body.startswith(b"%d " % thread)]
        assert own_bodies == [b"%d %d" % (thread, number) for number in range(50)]


def test_start_consuming_ends_when_the_last_consumer_is_cancelled(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    bodies: list[bytes] = []

    def on_message(_: BlockingChannel, method: spec.Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        bodies.append(body)
        channel.basic_ack(tag_of(method))
        if body == b"stop":
            channel.stop_consuming()

    channel.basic_consume(queue, on_message)
    for body in (b"one", b"two", b"stop"):
        channel.basic_publish("", queue, body)
    channel.start_consuming()
    assert bodies == [b"one", b"two", b"stop"]


def test_stop_consuming_from_another_thread(connect: Connect, names: Names) -> None:
    queue = names.queue()
    connection = connect()
    channel = connection.channel()
    channel.queue_declare(queue)
    heard: SimpleQueue[bytes] = SimpleQueue()
    channel.basic_consume(queue, lambda _, method, properties, body: heard.put(body), auto_ack=True)

    def stop_after_first() -> None:
        heard.get()
        connection.add_callback_threadsafe(channel.stop_consuming)

    stopper = threading.Thread(target=stop_after_first)
    stopper.start()
    channel.basic_publish("", queue, b"x")
    channel.start_consuming()
    stopper.join()
    assert channel.consumer_tags == []


def test_publishing_and_declaring_from_inside_a_delivery_callback(channel: BlockingChannel, names: Names) -> None:
    queue, results = names.queue("jobs"), names.queue("results")
    channel.queue_declare(queue)
    handled: list[bytes] = []

    def on_message(_: BlockingChannel, method: spec.Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        channel.queue_declare(results)
        channel.basic_publish("", results, body.upper())
        channel.basic_ack(tag_of(method))
        handled.append(body)

    channel.basic_consume(queue, on_message)
    for body in (b"a", b"b", b"c"):
        channel.basic_publish("", queue, body)
    pump(channel.connection, lambda: len(handled) == 3, "three jobs")
    assert drain(channel, results) == [b"A", b"B", b"C"]


def test_a_blocking_consumer_that_reconnects_gets_every_message(broker: Broker, names: Names) -> None:
    queue = names.queue()
    with pika.BlockingConnection(broker.parameters()) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        for number in range(9):
            channel.basic_publish("", queue, b"%d" % number, BasicProperties(delivery_mode=2))
    bodies: list[bytes] = []
    losses: list[type[Exception]] = []
    while len(bodies) < 9:
        connection = pika.BlockingConnection(broker.parameters())
        try:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=4)
            for method, _, body in channel.consume(queue):
                bodies.append(body)
                channel.basic_ack(tag_of(method))
                if len(bodies) == 9:
                    channel.cancel()
                    connection.close()
                    break
                if len(bodies) == 3:
                    channel.flow(False)
                if len(bodies) == 6:
                    channel.basic_ack(1_000_000)
                    round_trip(channel)
        except (ConnectionClosedByBroker, ChannelClosedByBroker) as loss:
            losses.append(type(loss))
            if connection.is_open:
                connection.close()
    assert bodies == [b"%d" % number for number in range(9)]
    assert losses == [ConnectionClosedByBroker, ChannelClosedByBroker]


def test_the_topology_is_still_there_for_whoever_reconnects(connect: Connect, names: Names) -> None:
    exchange, queue = names.exchange(), names.queue()
    first = connect()
    channel = first.channel()
    channel.exchange_declare(exchange, "topic", durable=True)
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, exchange, "a.#")
    channel.basic_publish(exchange, "a.b", b"waiting", BasicProperties(delivery_mode=2))
    first.close()
    channel = connect().channel()
    channel.exchange_declare(exchange, "topic", durable=True)
    channel.queue_declare(queue, durable=True)
    channel.queue_bind(queue, exchange, "a.#")
    assert drain(channel, queue) == [b"waiting"]


def test_a_burst_of_small_declarations_publishes_and_gets_stays_in_step(connect: Connect, names: Names) -> None:
    channel = connect().channel()
    for number in range(100):
        queue = channel.queue_declare("", exclusive=True, auto_delete=True).method.queue
        channel.basic_publish("", queue, b"%d" % number)
        assert drain(channel, queue) == [b"%d" % number]
        send_method(channel, spec.Queue.Delete(queue=queue, nowait=True))
    round_trip(channel)
