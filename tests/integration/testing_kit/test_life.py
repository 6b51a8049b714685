"""A broker comes and goes inside a process: quickly, at one port, with what it kept, and leaving nothing behind."""

from __future__ import annotations

import gc
import logging
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pika
import pika.exceptions
import pytest

from warren.testing import Broker, BrokerDown, Properties
from warren.vhosts.metadata import (
    GlobalParameterPut,
    PermissionPut,
    PolicyPut,
    UserLimitsPut,
    UserPut,
    VhostLimitsPut,
    VhostPut,
)

from .conftest import Open


def descriptors() -> dict[str, str]:
    """Return the open descriptors of this process."""
    found: dict[str, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # that of the listing itself
    return found


def what_is_open() -> Counter[object]:
    """Return threads and descriptors. Those of an earlier test may end at any time: only new ones count."""
    return Counter([*threading.enumerate(), *descriptors().values()])


def keep_three(broker: Broker) -> None:
    """Three messages in a durable queue: persistent, transient, persistent."""
    broker.declare_queue("kept")
    broker.publish("", "kept", "one")
    broker.publish("", "kept", "two", properties=Properties(delivery_mode=1))
    broker.publish("", "kept", "three")


def texts(broker: Broker, queue: str = "kept") -> list[str]:
    return [message.text for message in broker.queue(queue).messages()]


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "data_dir"])
@pytest.mark.parametrize("end", ["close", "stop", "crash"])
def test_nothing_is_left_after_the_end(tmp_path: Path, on_disk: bool, end: str) -> None:
    with Broker(data_dir=tmp_path / "first" if on_disk else None):
        pass  # files opened once in a process, by SQLite for instance, are open now
    gc.collect()
    before = what_is_open()
    broker = Broker(data_dir=tmp_path / "data" if on_disk else None)
    broker.start()
    keep_three(broker)
    peers = [socket.create_connection((broker.host, broker.port)) for _ in range(3)]
    broker.wait_until(lambda: broker.on_loop(lambda: len(broker.engine.connections)) == 3)
    if end != "close":
        getattr(broker, end)()
    broker.close()
    for peer in peers:
        peer.close()
    assert what_is_open() <= before


def test_close_may_come_twice_and_before_a_start() -> None:
    broker = Broker()
    broker.close()
    broker.close()
    with pytest.raises(RuntimeError, match="closed"):
        broker.start()
    with Broker() as other:
        with pytest.raises(RuntimeError, match="already"):
            other.start()
        other.close()


def test_what_is_asked_of_a_broker_that_is_down_says_so() -> None:
    broker = Broker()
    with pytest.raises(BrokerDown):
        broker.declare_queue("q")
    assert not broker.is_up
    broker.close()


def test_several_brokers_in_one_process_know_nothing_of_each_other() -> None:
    with Broker() as one, Broker() as other:
        assert one.port != other.port
        one.declare_queue("q")
        one.publish("", "q", "for one")
        assert texts(one, "q") == ["for one"]
        assert not other.queue("q").exists
        one.crash()
        other.declare_queue("q")
        assert other.queue("q").ready == 0


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "data_dir"])
def test_a_restart_keeps_what_is_durable_at_the_same_port(tmp_path: Path, on_disk: bool) -> None:
    with Broker(data_dir=tmp_path if on_disk else None) as broker:
        keep_three(broker)
        broker.declare_queue("passing", durable=False)
        port = broker.port
        broker.restart()
        assert broker.port == port
        assert texts(broker) == ["one", "three"]
        assert not broker.queue("passing").exists
        broker.publish("", "kept", "four")
        assert texts(broker) == ["one", "three", "four"]


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "data_dir"])
def test_a_crash_keeps_what_was_confirmed_and_flags_it_as_redelivered(tmp_path: Path, on_disk: bool) -> None:
    with Broker(data_dir=tmp_path if on_disk else None) as broker:
        keep_three(broker)
        broker.crash()
        assert not broker.is_up
        broker.start()
        assert texts(broker) == ["one", "three"]
        assert [message.redelivered for message in broker.queue("kept").messages()] == [True, True]


def test_a_crash_loses_what_was_not_synced(broker: Broker, opened: Open) -> None:
    channel = opened(confirms=False)
    channel.queue_declare("q", durable=True)
    with broker.full_disk():
        # It has arrived, and is not on the disk.
        broker.on_loop(lambda: broker.engine.set_alarm("disk", False))
        channel.basic_publish("", "q", b"lost", pika.BasicProperties(delivery_mode=2))
        broker.assert_published(body="lost")
        assert broker.queue("q").ready == 1
        broker.crash()
    broker.start()
    assert broker.queue("q").ready == 0


def test_clients_are_told_of_a_restart_and_not_of_a_crash(broker: Broker, opened: Open) -> None:
    channel = opened()
    broker.restart()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        channel.basic_get("q")
    assert closed.value.reply_code == 320
    channel = opened()
    broker.crash()
    with pytest.raises((pika.exceptions.StreamLostError, pika.exceptions.ConnectionClosed)) as lost:
        channel.basic_get("q")
    assert not isinstance(lost.value, pika.exceptions.ConnectionClosedByBroker)


def test_while_it_is_down_connecting_is_refused_and_the_port_is_its_own() -> None:
    with Broker() as broker:
        broker.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((broker.host, broker.port))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((broker.host, broker.port))
        broker.start()
        socket.create_connection((broker.host, broker.port)).close()


def test_a_data_directory_is_for_one_broker_and_for_the_next_one_too(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        keep_three(broker)
        second = Broker(data_dir=tmp_path)
        with pytest.raises(Exception, match="another broker uses it"):
            second.start()
        second.close()
    with Broker(data_dir=tmp_path) as broker:
        assert texts(broker) == ["one", "three"]
        assert not any(message.redelivered for message in broker.queue("kept").messages())


def test_a_reset_leaves_what_a_start_leaves(broker: Broker, opened: Open) -> None:
    channel = opened("left open")
    channel.exchange_declare("e", "topic", durable=True)
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "e", "#")
    channel.queue_bind("q", "amq.topic", "#")
    channel.basic_publish("e", "k", b"body")
    broker.nack_next(5)
    broker.engine.set_alarm("memory", True)
    broker.reset()
    assert broker.connections == []
    assert broker.published == []
    assert not broker.queue("q").exists
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        channel.basic_get("q")
    channel = opened()
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"not nacked, not blocked")
    assert not broker.publish("amq.topic", "k")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.exchange_declare("e", passive=True)


def test_a_reset_undoes_what_an_operator_has_done(broker: Broker, opened: Open) -> None:
    def administer() -> None:
        for change in (
            VhostPut("other", protected_from_deletion=True),
            UserPut("other", "", ""),
            UserPut("guest", "", ""),
            UserLimitsPut("guest", '{"max-connections": 0}'),
            VhostLimitsPut("/", '{"max-queues": 0}'),
            PolicyPut("/", "p", ".*", "all", 0, '{"max-length": 1}'),
            PermissionPut("guest", "/", "", "", ""),
            GlobalParameterPut("cluster_name", '"name"'),
        ):
            broker.engine.administer(change)

    named = broker.on_loop(lambda: broker.engine.cluster_name())
    broker.on_loop(administer)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        opened()
    broker.reset()
    channel = opened()
    channel.queue_declare("q")
    for _ in range(2):
        channel.basic_publish("", "q", b"x")
    assert broker.queue("q").ready == 2
    assert broker.on_loop(lambda: sorted(broker.engine.vhosts)) == ["/"]
    assert broker.on_loop(lambda: sorted(broker.engine.access.users)) == ["guest"]
    assert broker.on_loop(lambda: broker.engine.cluster_name()) == named


def test_a_reset_brings_a_broker_up_that_a_test_left_down(broker: Broker) -> None:
    broker.declare_queue("q")
    broker.crash()
    broker.reset()
    assert broker.is_up
    assert not broker.queue("q").exists


def test_users_and_vhosts_are_those_asked_for() -> None:
    with Broker(users={"a:b": "p/w", "other": "secret"}, vhosts=["one", "/"]) as broker:
        for url in (broker.url, broker.url_of("other", "/")):
            pika.BlockingConnection(pika.URLParameters(url)).close()
        assert broker.url.endswith("/one")
        for wrong in (broker.url_of("guest"), broker.url_of("other", "two"), broker.url.replace("p%2Fw", "guess")):
            with pytest.raises(pika.exceptions.AMQPError):
                pika.BlockingConnection(pika.URLParameters(wrong))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_holds_no_connection_open() -> None:
    with Broker() as broker, socket.create_connection((broker.host, broker.port)) as peer:
        broker.wait_until(lambda: broker.on_loop(lambda: len(broker.engine.connections)) == 1)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # until the test is over
            os._exit(0)
        try:
            broker.drop_connections()
            peer.settimeout(30)
            with pytest.raises(ConnectionResetError):
                peer.recv(1)
            broker.stop()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((broker.host, broker.port))
        finally:
            os.close(writing)
            os.close(reading)
            os.waitpid(child, 0)


_IMPORTS = """
import sys
import warren.testing.pytest_plugin
print(sorted({name for name in sys.modules if name.startswith(("warren.", "trio", "sqlalchemy"))}))
"""


def test_the_plugin_imports_nothing_of_the_broker() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['warren.testing', 'warren.testing.pytest_plugin']"


_RUNS = """
import sys
from warren.testing import Broker
with Broker() as broker:
    broker.declare_queue("q")
print(sorted({"sqlite3", "sqlalchemy", "msgspec", "h11", "wsproto", "warren.mgmt_plugin"} & set(sys.modules)))
"""


def test_a_broker_in_memory_needs_neither_a_database_nor_http() -> None:
    done = subprocess.run([sys.executable, "-c", _RUNS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_in_the_package_can_be_imported_from_it() -> None:
    import warren.testing

    assert [name for name in warren.testing.__all__ if getattr(warren.testing, name, None) is None] == []
    with pytest.raises(AttributeError):
        _ = warren.testing.nothing_of_that_name


def test_a_broker_that_is_starting_is_down_to_the_others() -> None:
    seen: list[bool] = []
    broker = Broker()

    class Look(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not seen:
                seen.append(broker.is_up)
                with pytest.raises(BrokerDown):
                    broker.on_loop(lambda: None)

    log, look = logging.getLogger("warren"), Look()
    level = log.level
    log.addHandler(look)
    log.setLevel(logging.DEBUG)
    try:
        with broker:
            assert seen == [False] and broker.is_up
    finally:
        log.setLevel(level)
        log.removeHandler(look)


def test_threads_that_start_it_again_at_once_do_so_one_after_the_other() -> None:
    with Broker() as broker:

        def begin_again(number: int) -> None:
            for _ in range(5):
                (broker.restart if number % 2 else broker.reset)()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(begin_again, range(4)))
        assert broker.is_up
