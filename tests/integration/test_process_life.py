"""The process as an operator meets it: start, refusals to start, signals, addresses, log lines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import pytest
from broker_process import WarrenProcess, wait_until
from compat.pika_client.wire import WireClient
from pika import BasicProperties, spec

from warren.server.process import STRAY_SIGNALS

from .peers import broker_at, connect, next_body, open_wire

SHUTDOWN = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start brokers as an operator does: a fork (`fork_server`) could differ from that."""
    monkeypatch.setenv("WARREN_TEST_FORK", "0")


@pytest.mark.usefixtures("executed")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_stop_closes_clients_with_320_and_ends_with_code_0(number: signal.Signals, tmp_path: Path) -> None:
    with WarrenProcess(tmp_path) as process:
        clients = [open_wire(process) for _ in range(3)]
        halfway = WireClient(broker_at(process))
        halfway.start()
        process.signal(number)
        for client in clients:
            assert client.expect_connection_close() == (320, SHUTDOWN, (0, 0))
            client.expect_end()
            client.close()
        halfway.expect_end()
        halfway.close()
        assert process.wait() == 0
        assert "Traceback" not in process.log()


def test_no_new_connection_is_accepted_while_stopping(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path) as process:
        client = open_wire(process)
        process.signal(signal.SIGTERM)
        # The close arrives after the listeners are closed.
        client.next_frame()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", process.amqp_port))
        assert process.health() == 503
        client.close()
        assert process.wait() == 0


@pytest.mark.usefixtures("executed")
def test_a_second_signal_ends_a_stop_that_waits_for_a_client_which_does_not_answer(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path) as process:
        silent = open_wire(process)
        process.signal(signal.SIGTERM)
        silent.next_frame()
        assert process.is_running()
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert "stopping at once" in process.log()


def test_a_client_that_does_not_answer_costs_neither_a_clean_stop_nor_what_it_had_not_acknowledged(
    tmp_path: Path,
) -> None:
    with WarrenProcess(tmp_path) as process:
        silent = open_wire(process)
        silent.send(1, spec.Queue.Declare(queue="q", durable=True))
        silent.expect(spec.Queue.DeclareOk, 1)
        silent.send(1, spec.Basic.Publish(exchange="", routing_key="q"))
        silent.send_header(1, 4, BasicProperties(delivery_mode=2))
        silent.send_body(1, b"kept")
        silent.send(1, spec.Basic.Get(queue="q"))
        assert next_body(silent, spec.Basic.GetOk) == b"kept"
        process.stop()
        silent.close()
        process.start()
        assert process.log().count("message store recovered  clean=True") == 2
        with open_wire(process) as client:
            client.send(1, spec.Basic.Get(queue="q"))
            assert next_body(client, spec.Basic.GetOk) == b"kept"


def test_what_was_declared_before_the_signal_is_there_after_the_next_start(tmp_path: Path) -> None:
    names = [f"last-words-{number}" for number in range(50)]
    with WarrenProcess(tmp_path) as process:
        with connect(process) as connection:
            channel = connection.channel()
            for name in names:
                channel.queue_declare(name, durable=True)
        process.stop()
        process.start()
        with connect(process) as connection:
            channel = connection.channel()
            for name in names:
                channel.queue_declare(name, passive=True)


def test_the_service_manager_is_told_of_each_step_and_that_the_loop_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "60000")

        def told(first: str) -> str:
            """Return the next message that begins so; whatever else arrives says that the broker is alive."""
            while not (text := manager.recv(4096).decode()).startswith(first):
                assert text == "WATCHDOG=1"
            return text

        with WarrenProcess(tmp_path) as process:
            assert f"amqp://127.0.0.1:{process.amqp_port}" in told("READY=1\n")
            process.signal(signal.SIGHUP)
            told("RELOADING=1\n")
            told("READY=1\n")
            told("WATCHDOG=1")
            process.signal(signal.SIGTERM)
            told("STOPPING=1\n")
            assert process.wait() == 0


def test_a_port_in_use_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        process = WarrenProcess(tmp_path, flags={"amqp": f"127.0.0.1:{port}"})
        process.spawn()
        assert process.wait() == 1
    assert process.log() == f"warren: cannot listen on 127.0.0.1:{port} (amqp): the port is in use\n"


def test_the_http_port_in_use_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        process = WarrenProcess(tmp_path, flags={"http": f"127.0.0.1:{port}"})
        process.spawn()
        assert process.wait() == 1
    assert process.log() == f"warren: cannot listen on 127.0.0.1:{port} (http): the port is in use\n"


def test_a_setting_that_does_not_exist_is_one_line_naming_the_nearest_and_exit_code_2(tmp_path: Path) -> None:
    process = WarrenProcess(tmp_path, settings={"limits.chanel_max": 5})
    process.spawn()
    assert process.wait() == 2
    assert process.log().count("\n") == 1
    assert "WARREN_LIMITS_CHANNEL_MAX" in process.log()


def test_a_second_broker_on_the_same_data_directory_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path) as process:
        second = WarrenProcess(tmp_path)
        second.log_path = tmp_path / "second.log"
        second.spawn()
        assert second.wait() == 1
        assert second.log().count("\n") == 1
        assert f"another broker uses it (process {process.pid})" in second.log()
        connect(process).close()


def test_a_killed_broker_leaves_no_lock_behind(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path) as process:
        process.kill()
        process.start()
        connect(process).close()


def test_a_broker_that_would_listen_nowhere_is_refused_with_exit_code_2(tmp_path: Path) -> None:
    process = WarrenProcess(tmp_path, flags={"amqp": "off"})
    process.spawn()
    assert process.wait() == 2
    assert process.log() == "warren: amqp (flag --amqp): neither amqp nor amqps has an address to listen on\n"


@pytest.mark.usefixtures("executed")
def test_the_first_start_names_the_web_ui_and_the_first_user(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path, flags={"http": "0.0.0.0:0"}) as process:
        first_user = "  first user  guest, password guest, from this machine only\n"
        assert f"  web UI      http://127.0.0.1:{process.http_port}/\n" in process.out()
        assert first_user in process.out()
        process.stop()
        process.start()
        assert process.out().count("  web UI  ") == 2 and process.out().count("first user") == 1


def test_the_first_user_that_somebody_has_chosen_is_named_and_the_password_is_not(tmp_path: Path) -> None:
    settings = {"default_user": "root", "default_pass": "chosen"}
    with WarrenProcess(tmp_path, flags={"http": "off"}, settings=settings) as process:
        assert "  first user  root, with the password of default_pass\n" in process.out()
        assert "web UI" not in process.out()
        assert "chosen" not in process.out() + process.log()


def test_sighup_reads_the_settings_again_and_keeps_connections(tmp_path: Path) -> None:
    config = tmp_path / "warren.toml"
    config.write_text("")

    def reload(text: str, said: str) -> None:
        config.write_text(text)
        process.signal(signal.SIGHUP)
        wait_until(lambda: said in process.log(), f"the log to say {said}")

    with WarrenProcess(tmp_path, flags={"config": str(config)}) as process, open_wire(process) as client:
        reload('log_level = "debug"', "log level changed  level=debug  was=info  by=SIGHUP")
        reload("log_level = 5", "the settings cannot be read again; those in use are kept")
        reload(
            '[limits]\nheartbeat_s = 5\n[store]\nconfirm = "os"',
            'take effect at the next start  settings="limits.heartbeat_s, store.confirm"',
        )
        wait_until(lambda: "level=info  was=debug" in process.log(), "the level to be the default one again")
        client.send(1, spec.Queue.Declare(queue="", exclusive=True))
        client.expect(spec.Queue.DeclareOk, 1)
        assert process.health() == 200


def test_http_off_leaves_amqp_alone_and_sighup_without_tls_does_nothing(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path, flags={"http": "off"}) as process:
        assert "http://" not in process.out()
        process.signal(signal.SIGHUP)
        connect(process).close()


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6 loopback address")
def test_ipv6_serves_clients_and_guest_is_local_there_too(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path, flags={"amqp": "[::1]:0", "http": "[::1]:0"}) as process:
        assert f"amqp://[::1]:{process.amqp_port}" in process.out()
        client = WireClient(broker_at(process, host="::1"))
        client.handshake()
        client.end()
        client.close()
        process.stop()
    assert "peer=[::1]:" in process.log()


def test_the_name_localhost_listens_on_every_address_it_has(tmp_path: Path) -> None:
    families = {info[0] for info in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
    with WarrenProcess(tmp_path, flags={"amqp": "localhost:0"}) as process:
        assert process.out().count("amqp://") == len(families)


def test_every_line_of_the_json_log_parses_and_tells_a_connections_life(tmp_path: Path) -> None:
    flags = {"log-format": "json", "log-level": "debug"}
    with WarrenProcess(tmp_path, flags=flags) as process:
        connect(process, client_properties={"connection_name": 'quote " and\nnewline é'}).close()
        with WireClient(broker_at(process)) as stray:
            stray.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
            assert stray.read_exactly(8) == b"AMQP\x00\x00\x09\x01"
            stray.expect_end()
        process.stop()
    lines = [json.loads(line) for line in process.log().splitlines()]
    events = [line["event"] for line in lines]
    assert [event for event in events if event in ("started", "stopping", "stopped")] == [
        "started",
        "stopping",
        "stopped",
    ]
    opened = next(line for line in lines if line["event"] == "connection.opened")
    assert opened["name"] == 'quote " and\nnewline é'
    assert opened["user"] == "guest"
    assert "connection.closed" in events
    assert "connection.bad_header" in events
    assert all({"time", "level", "logger", "event"} <= line.keys() for line in lines)


@pytest.mark.usefixtures("executed")
def test_data_and_its_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        process = WarrenProcess(tmp_path)
        process.spawn()
    finally:
        os.umask(umask)
    wait_until(lambda: "\n  stop " in process.out(), "the broker to start")
    try:
        assert process.data_directory.stat().st_mode & 0o777 == 0o700
        wait_until(lambda: any((process.data_directory / "messages/log").iterdir()), "the first segment")
        modes: dict[Path, int] = {}
        for path in process.data_directory.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # a segment that is made gets its name
                modes[path] = path.stat().st_mode & 0o777
        assert any("messages/log/" in str(path) for path in modes)
        directories = {path for path in modes if path.is_dir()}
        assert {modes[path] for path in directories} == {0o700}, modes
        assert {mode for path, mode in modes.items() if path not in directories} == {0o600}, modes
    finally:
        process.stop()


@pytest.mark.long
@pytest.mark.usefixtures("executed")
def test_a_signal_that_means_nothing_is_logged_and_ignored(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path) as process:
        with open_wire(process) as client:
            for number in STRAY_SIGNALS:
                process.signal(number)
                line = f"signal={number.name}"
                wait_until(partial(_has_logged, process, line), line)
            client.send(1, spec.Queue.Declare(queue="q"))
            client.expect(spec.Queue.DeclareOk, 1)
        process.stop()


def _has_logged(process: WarrenProcess, text: str) -> bool:
    return text in process.log()


HANGING = """
import sys, threading
from warren.server import application, process
from warren.server.catalogue import catalogue
application.STOP_DEADLINE_S = process.STOP_DEADLINE_S = process.STOP_GRACE_S = 1.0
catalogue.Catalogue.commit = lambda *arguments: threading.Event().wait()
from warren.__main__ import main
sys.argv = ["warren", *sys.argv[5:]]
main()
"""


@pytest.mark.long
@pytest.mark.usefixtures("executed")
def test_a_thread_that_hangs_does_not_keep_a_process_that_is_to_stop(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path, wrapper=(sys.executable, "-P", "-c", HANGING)) as process:
        client = open_wire(process)
        client.send(1, spec.Queue.Declare(queue="q", durable=True))
        wait_until(lambda: process.health() == 200, "health")
        process.signal(signal.SIGTERM)
        assert process.wait() == 1
        assert "Timeout (0:00:02)!" in process.log()
        client.close()
