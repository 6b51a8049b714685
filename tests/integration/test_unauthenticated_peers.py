"""Peers that have not logged in: deadlines, caps, refusals that tell nothing, and logins that hold nobody up."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_process import WarrenProcess, wait_until
from compat.pika_client.wire import PROTOCOL_HEADER, Ended, WireClient
from pika import spec

from warren.amqp import methods as m
from warren.amqp.codec import frame as encode_frame

from .peers import Traffic, broker_at, connect, open_wire

HEARTBEAT = encode_frame(m.FRAME_HEARTBEAT, 0, b"")


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    """A broker that gives a handshake three seconds: enough for one that does not stall, on a busy machine too."""
    settings = {"limits.handshake_timeout_s": 3}
    with WarrenProcess(tmp_path_factory.mktemp("hasty"), settings=settings) as process:
        yield process


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    """A broker that waits long and lets six peers try to log in at a time."""
    settings = {"limits.handshake_timeout_s": 600, "limits.unauthenticated_connections_max": 6}
    with WarrenProcess(tmp_path_factory.mktemp("patient"), settings=settings) as process:
        yield process


# --- the handshake's deadline ----------------------------------------------------------------------------------------


STALLS = ("nothing", "half a header", "header", "start-ok", "tune-ok")


@pytest.fixture(scope="module")
def stalled(hasty: WarrenProcess) -> Iterator[dict[str, WireClient]]:
    """Clients by how far they have come: all of them at once, so that one deadline is waited for."""
    with contextlib.ExitStack() as stack:
        yield {
            progress: _stalled_at(progress, stack.enter_context(WireClient(broker_at(hasty)))) for progress in STALLS
        }


def _stalled_at(progress: str, client: WireClient) -> WireClient:
    if progress == "half a header":
        client.send_bytes(PROTOCOL_HEADER[:4])
    if progress in ("header", "start-ok", "tune-ok"):
        client.start()
    if progress in ("start-ok", "tune-ok"):
        client.start_ok()
    if progress == "tune-ok":
        client.tune()
    elif progress == "start-ok":
        client.expect(spec.Connection.Tune, 0)
    return client


@pytest.mark.parametrize("progress", STALLS)
def test_a_handshake_that_stalls_is_ended_at_its_deadline(progress: str, stalled: dict[str, WireClient]) -> None:
    stalled[progress].expect_end()


def test_an_open_connection_has_no_deadline(hasty: WarrenProcess) -> None:
    with open_wire(hasty) as client, WireClient(broker_at(hasty)) as stalled:
        stalled.expect_end()
        client.open_channel(2)


def test_a_frame_that_announces_more_than_8_kib_is_refused_at_its_header(patient: WarrenProcess) -> None:
    with WireClient(broker_at(patient)) as client:
        client.start()
        client.send_bytes(b"\x01\x00\x00" + (8193).to_bytes(4, "big"))
        client.expect_end()


def test_more_than_ten_frames_before_open_are_refused(patient: WarrenProcess) -> None:
    with WireClient(broker_at(patient)) as client:
        client.start()
        client.send_bytes(HEARTBEAT * 11)
        client.expect_end()


# --- caps ------------------------------------------------------------------------------------------------------------


def test_too_many_peers_that_do_not_log_in_are_refused_and_room_comes_back(patient: WarrenProcess) -> None:
    with connect(patient) as logged_in:
        waiting = [WireClient(broker_at(patient)) for _ in range(6)]
        for client in waiting:
            client.start()
        with WireClient(broker_at(patient)) as refused, pytest.raises(Ended):
            refused.start()
        wait_until(lambda: "too many logins" in patient.log(), "the log to tell of it")
        # Clients that have logged in stay.
        logged_in.channel()
        waiting[0].close()

        def is_admitted() -> bool:
            try:
                with WireClient(broker_at(patient)) as newcomer:
                    newcomer.handshake()
                    newcomer.end()
                    return True
            except (Ended, OSError):
                return False

        wait_until(is_admitted, "the place of a peer that left to be free")
        # A client that logs in frees its place for others, and stays.
        waiting[1].start_ok()
        waiting[1].tune()
        waiting[1].open_vhost()
        wait_until(is_admitted, "the place of a peer that logged in to be free")
        for client in waiting[1:]:
            client.close()


def test_connections_above_the_accept_rate_wait_and_are_all_served(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path, settings={"limits.accept_rate_per_s": 10}) as process:
        begun = time.monotonic()
        clients = [WireClient(broker_at(process)) for _ in range(25)]
        for client in clients:
            client.send_bytes(PROTOCOL_HEADER)
        for client in clients:
            client.expect(spec.Connection.Start, 0)
        # A lower bound: the third ten cannot be accepted in the first second.
        assert time.monotonic() - begun > 1.0
        for client in clients:
            client.close()


def test_more_connections_than_allowed_are_refused_with_530(tmp_path: Path) -> None:
    with (
        WarrenProcess(tmp_path, settings={"limits.connections_max": 2}) as process,
        open_wire(process),
        open_wire(process),
        WireClient(broker_at(process)) as third,
    ):
        third.start()
        third.start_ok()
        third.tune()
        third.send(0, spec.Connection.Open("/"))
        code, text, _ = third.expect_connection_close()
        assert code == 530
        assert text == "NOT_ALLOWED - connection refused: node connection limit (2) is reached"


# --- refused logins --------------------------------------------------------------------------------------------------

REFUSED = {
    "wrong password": b"\0guest\0mistaken",
    "unknown user": b"\0nobody\0guest",
    "unknown user of the same length": b"\0tsegu\0guest",
    "no password": b"\0guest\0",
    "no user": b"\0\0guest",
}


def test_every_refused_login_looks_the_same(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path) as process:
        seen: dict[str, set[bytes]] = {}
        for capable in (True, False):
            clients = {name: WireClient(broker_at(process)) for name in REFUSED}
            for name, client in clients.items():
                client.start()
                client.start_ok({"authentication_failure_close": capable}, response=REFUSED[name])
            for client in clients.values():
                received = b""
                try:
                    while True:
                        received += client.read_exactly(1)
                        if received.endswith(b"\xce"):
                            client.send(0, spec.Connection.CloseOk())
                except Ended:
                    pass
                seen.setdefault(str(capable), set()).add(received)
                client.close()
        assert len(seen["True"]) == 1
        assert b"ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN." in next(iter(seen["True"]))
        assert seen["False"] == {b""}
        told = [line for line in process.log().splitlines() if "login refused" in line]
        assert len(told) == 2 * len(REFUSED)
        assert "mistaken" not in "".join(told)


def test_logins_that_are_being_checked_do_not_hold_up_messages(tmp_path: Path) -> None:
    with WarrenProcess(tmp_path) as process, Traffic(process) as traffic:
        guessers = [WireClient(broker_at(process)) for _ in range(15)]
        for number, guesser in enumerate(guessers):
            guesser.start()
            guesser.start_ok(response=b"\0guest\0guess %d" % number)
        # A second of refusal is always to come: messages flow before the first guess is answered.
        seen = traffic.count
        wait_until(lambda: traffic.count > seen + 30, "messages to flow")
        for guesser in guessers:
            guesser.expect_end()
            guesser.close()


# --- guest -----------------------------------------------------------------------------------------------------------

_LOG_IN_FROM_AFAR = """
import sys
sys.path[:0] = sys.argv[2:]
from compat.broker import Broker
from compat.pika_client.wire import WireClient
for host in ("10.9.8.7", "127.0.0.1"):
    client = WireClient(Broker(host, int(sys.argv[1]), "guest", "guest", "/", True))
    client.start()
    client.start_ok({"authentication_failure_close": True})
    got = client.next_frame()
    print(host, type(got.method).__name__)
"""


def _can_make_a_network() -> bool:
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    return subprocess.run(["unshare", "-n", "ip", "link", "set", "lo", "up"], capture_output=True).returncode == 0


@pytest.mark.skipif(not _can_make_a_network(), reason="needs root and a network namespace")
def test_guest_is_refused_from_an_address_that_is_not_loopback(tmp_path: Path) -> None:
    """In a network of its own the broker listens everywhere, and the machine has a second address."""
    script = 'ip link set lo up && ip addr add 10.9.8.7/32 dev lo && exec "$0" "$@"'
    flags = {"amqp": "0.0.0.0:0", "http": "off"}
    with WarrenProcess(tmp_path, flags=flags, wrapper=["unshare", "-n", "sh", "-c", script]) as process:
        enter = ["nsenter", "-t", str(process.pid), "-n"]
        tests = str(Path(__file__).parents[1])
        client = [sys.executable, "-c", _LOG_IN_FROM_AFAR, str(process.amqp_port), tests]
        done = subprocess.run(enter + client, capture_output=True, text=True, timeout=60)
        assert done.stdout.split("\n")[:2] == ["10.9.8.7 Close", "127.0.0.1 Tune"], done.stderr
    assert re.search(r"login refused  peer=10\.9\.8\.7:\d+  user=guest", process.log())


# --- heartbeats ------------------------------------------------------------------------------------------------------


def test_a_silent_client_is_ended_and_one_that_sends_heartbeats_is_not(patient: WarrenProcess) -> None:
    with (
        open_wire(patient, heartbeat=3) as silent,
        open_wire(patient, heartbeat=3) as listening,
        open_wire(patient, heartbeat=3) as alive,
        open_wire(patient, heartbeat=0) as without,
        connect(patient, heartbeat=3) as publisher,
    ):
        # One of the silent is sent messages all the time: our output does not show that it is alive.
        listening.send(1, spec.Queue.Declare(exclusive=False, auto_delete=True))
        queue = listening.expect(spec.Queue.DeclareOk, 1).queue
        listening.send(1, spec.Basic.Consume(queue=queue, no_ack=True))
        listening.expect(spec.Basic.ConsumeOk, 1)
        channel = publisher.channel()
        ended = {"silent": False, "listening": False}
        received = {"silent": b"", "listening": b"", "alive": b""}
        sockets = {"silent": silent, "listening": listening, "alive": alive}
        for client in sockets.values():
            client.socket.settimeout(0.05)
        give_up_at = time.monotonic() + 60
        while not all(ended.values()):
            assert time.monotonic() < give_up_at, f"still connected: {ended}"
            alive.send_bytes(HEARTBEAT)
            channel.basic_publish("", queue, b"m")
            publisher.process_data_events(0.05)
            for name, client in sockets.items():
                if ended.get(name):
                    continue
                try:
                    data = client.socket.recv(65536)
                except TimeoutError:
                    continue
                received[name] += data
                if not data:
                    ended[name] = True
        # Heartbeats came, and no connection.close: a peer that is gone reads nothing.
        assert received["silent"] == HEARTBEAT * (len(received["silent"]) // len(HEARTBEAT))
        assert len(received["silent"]) >= 2 * len(HEARTBEAT)
        assert received["alive"].count(HEARTBEAT) >= 2
        for client in (alive, without):
            client.socket.settimeout(30)
            client.open_channel(2)
    wait_until(lambda: "missed heartbeats from client, timeout: 3s" in patient.log(), "the log to tell of it")
