"""amqps on the real process: who is let in, reload, large messages, and peers that break the handshake."""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
import signal
import socket
import ssl
import struct
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from broker_process import WarrenProcess, wait_until
from compat.pika_client.wire import Ended, WireClient
from pika import spec

from warren.server.catalogue.catalogue import Catalogue
from warren.vhosts.metadata import PermissionPut, UserPut

from .certificates import Authority, Certificate
from .peers import Traffic, broker_at, connect, next_body, open_wire, publish_frames

SUBJECT = "/O=B\u00fcrrow, Inc./CN=client one"
DN = "CN=client one,O=B\u00fcrrow\\, Inc."
DNS_NAME = "one.client.example"
USERS = {"cn": "client one", "dn": DN, "san": DNS_NAME}


class Identities:
    """The certificates of this file."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "ours", "Warren test authority")
        self.server = self.authority.issue("/CN=server", "DNS:localhost,IP:127.0.0.1")
        self.next_server = self.authority.issue("/CN=next server", "DNS:localhost,IP:127.0.0.1")
        self.client = self.authority.issue(SUBJECT, f"DNS:{DNS_NAME}")
        self.unknown_client = self.authority.issue("/CN=nobody we know", "DNS:nobody.example")
        self.wrong_client = Authority(directory / "theirs", "Another authority").issue(SUBJECT)


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    return Identities(tmp_path_factory.mktemp("certificates"))


def _broker(directory: Path, identities: Identities, **settings: object) -> WarrenProcess:
    """Return a broker with an amqps listener; every way to name the client's certificate is a user."""
    given: dict[str, object] = {
        "tls.certificate": identities.server.certificate,
        "tls.private_key": identities.server.key,
        "tls.ca": identities.authority.certificate,
    }
    process = WarrenProcess(
        directory,
        flags={"amqps": "127.0.0.1:0"},
        settings=given | {key.replace("__", "."): value for key, value in settings.items()},
    )
    process.data_directory.mkdir(mode=0o700)
    catalogue = Catalogue.open(f"sqlite:///{process.data_directory / 'catalogue.db'}")
    for name in USERS.values():
        catalogue.commit([UserPut(name, "", "scrypt"), PermissionPut(name, "/", ".*", ".*", ".*")])
    catalogue.close()
    (process.data_directory / "warren.lock").touch(mode=0o600)
    return process


@pytest.fixture(scope="module")
def tls_broker(tmp_path_factory: pytest.TempPathFactory, identities: Identities) -> Iterator[WarrenProcess]:
    """A broker that takes client certificates but needs none. A handshake may take three seconds: enough for one that
    does not stall, on a busy machine too.
    """
    settings = {
        "tls__client_certificates": "optional",
        "tls__cert_login_from": "cn",
        "limits__tls_handshake_timeout_s": 3,
    }
    with _broker(tmp_path_factory.mktemp("tls"), identities, **settings) as process:
        yield process


def _context(identities: Identities, client: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=identities.authority.certificate)
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context


def _tls_socket(
    process: WarrenProcess, identities: Identities, client: Certificate | None = None, receive_bytes: int = 0
) -> ssl.SSLSocket:
    plain = socket.socket()
    if receive_bytes:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    plain.settimeout(30)
    plain.connect(("127.0.0.1", process.amqps_port))
    return _context(identities, client).wrap_socket(plain, server_hostname="localhost")


def _tls_wire(
    process: WarrenProcess, identities: Identities, client: Certificate | None = None, receive_bytes: int = 0
) -> WireClient:
    return WireClient(broker_at(process), _tls_socket(process, identities, client, receive_bytes))


def _mechanisms(client: WireClient) -> list[str]:
    mechanisms = client.start().mechanisms
    return (mechanisms.decode() if isinstance(mechanisms, bytes) else str(mechanisms)).split()


def _log_in_external(client: WireClient) -> None:
    assert "EXTERNAL" in _mechanisms(client)
    client.start_ok(mechanism="EXTERNAL", response=b"")
    client.tune()
    client.open_vhost()
    client.open_channel()


def _published_as(client: WireClient, user: str) -> bool:
    """Tell whether the connection belongs to `user`: the broker checks the user-id of what is published."""
    client.send(1, spec.Confirm.Select())
    client.expect(spec.Confirm.SelectOk, 1)
    client.send(1, spec.Basic.Publish())
    client.send_header(1, 0, spec.BasicProperties(user_id=user))
    got = client.next_frame()
    return isinstance(getattr(got, "method", None), spec.Basic.Ack)


# --- who is let in ---------------------------------------------------------------------------------------------------


def test_pika_publishes_and_consumes_over_amqps(tls_broker: WarrenProcess, identities: Identities) -> None:
    options = pika.SSLOptions(_context(identities), "localhost")
    parameters = broker_at(tls_broker).parameters(port=tls_broker.amqps_port, ssl_options=options)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.basic_publish("", queue, b"sealed")
        assert channel.basic_get(queue, auto_ack=True)[2] == b"sealed"


def test_without_a_certificate_external_is_not_offered_and_passwords_work(
    tls_broker: WarrenProcess, identities: Identities
) -> None:
    with _tls_wire(tls_broker, identities) as client:
        assert _mechanisms(client) == ["PLAIN", "AMQPLAIN"]
        client.start_ok()
        client.tune()
        client.open_vhost()


def test_external_without_a_certificate_is_refused(tls_broker: WarrenProcess, identities: Identities) -> None:
    with _tls_wire(tls_broker, identities) as client:
        client.start()
        client.start_ok(mechanism="EXTERNAL", response=b"client one")
        client.expect_end()


def test_a_certificate_that_names_no_user_is_refused_as_a_wrong_password_is(
    tls_broker: WarrenProcess, identities: Identities
) -> None:
    with _tls_wire(tls_broker, identities, identities.unknown_client) as client:
        client.start()
        client.start_ok({"authentication_failure_close": True}, mechanism="EXTERNAL", response=b"")
        code, text, _ = client.expect_connection_close()
        assert code == 403
        assert text.startswith("ACCESS_REFUSED - Login was refused using authentication mechanism EXTERNAL.")


def test_a_certificate_holder_may_still_log_in_as_someone_else_with_a_password(
    tls_broker: WarrenProcess, identities: Identities
) -> None:
    with _tls_wire(tls_broker, identities, identities.client) as client:
        client.handshake()
        client.open_channel()
        assert _published_as(client, "guest")


def _is_refused(process: WarrenProcess, identities: Identities, client: Certificate | None) -> bool:
    """Tell whether the handshake fails; with TLS 1.3 the client hears of it when it reads."""
    try:
        with _tls_socket(process, identities, client) as refused:
            refused.sendall(b"AMQP\x00\x00\x09\x01")
            return refused.recv(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def test_a_certificate_of_another_authority_is_refused_even_where_none_is_needed(
    tls_broker: WarrenProcess, identities: Identities
) -> None:
    assert _is_refused(tls_broker, identities, identities.wrong_client)
    assert not _is_refused(tls_broker, identities, None)


def test_tls_1_1_is_refused(tls_broker: WarrenProcess) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", tls_broker.amqps_port), timeout=30) as plain,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(plain)


@pytest.mark.parametrize("login_from", ["cn", "dn", "san"])
def test_where_certificates_are_required_external_names_the_user(
    login_from: str, tmp_path: Path, identities: Identities
) -> None:
    settings = {"tls__client_certificates": "required", "tls__cert_login_from": login_from}
    with _broker(tmp_path, identities, **settings) as process:
        with _tls_wire(process, identities, identities.client) as client:
            _log_in_external(client)
            assert _published_as(client, USERS[login_from])
        assert _is_refused(process, identities, None)
        assert _is_refused(process, identities, identities.wrong_client)


def test_where_certificates_are_not_asked_for_one_is_not_looked_at(tmp_path: Path, identities: Identities) -> None:
    with _broker(tmp_path, identities, tls__client_certificates="none") as process:
        with _tls_wire(process, identities, identities.wrong_client) as client:
            assert _mechanisms(client) == ["PLAIN", "AMQPLAIN"]
        process.stop()


def test_amqps_alone_serves_with_amqp_off(tmp_path: Path, identities: Identities) -> None:
    process = _broker(tmp_path, identities)
    process.flags["amqp"] = "off"
    with process:
        assert "amqp://" not in process.out()
        with _tls_wire(process, identities) as client:
            client.handshake()
            client.end()


# --- reload ----------------------------------------------------------------------------------------------------------


def test_sighup_shows_new_connections_the_new_certificate_while_old_ones_live(
    tmp_path: Path, identities: Identities
) -> None:
    shown = Certificate(tmp_path / "shown.pem", tmp_path / "shown.key")

    def show(certificate: Certificate) -> None:
        shutil.copy(certificate.certificate, shown.certificate)
        shutil.copy(certificate.key, shown.key)

    def name_shown() -> object:
        with _tls_socket(process, identities) as looker:
            certificate = looker.getpeercert()
            assert certificate is not None
            return dict(entry[0] for entry in certificate["subject"])["commonName"]  # type: ignore[misc]

    show(identities.server)
    settings = {"tls__certificate": shown.certificate, "tls__private_key": shown.key}
    with _broker(tmp_path, identities, **settings) as process, _tls_wire(process, identities) as old:
        old.handshake()
        old.open_channel()
        assert name_shown() == "server"

        show(identities.next_server)
        process.signal(signal.SIGHUP)
        wait_until(lambda: name_shown() == "next server", "new connections to see the new certificate")

        shown.certificate.write_text("not a certificate")
        process.signal(signal.SIGHUP)
        wait_until(lambda: "TLS reload failed" in process.log(), "the log to tell of the failed reload")
        assert name_shown() == "next server"

        old.send(1, spec.Queue.Declare(queue="", exclusive=True))
        queue = old.expect(spec.Queue.DeclareOk, 1).queue
        old.send_bytes(publish_frames("", queue, b"still here"))
        old.send(1, spec.Basic.Get(queue=queue, no_ack=True))
        assert next_body(old, spec.Basic.GetOk) == b"still here"
        old.end()


# --- large messages --------------------------------------------------------------------------------------------------


def test_large_messages_pass_both_ways_unharmed_while_the_reader_holds_back(
    tls_broker: WarrenProcess, identities: Identities
) -> None:
    count, size = 12, 3_000_000
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chooser = random.Random(seed)
    bodies = [chooser.randbytes(size - chooser.randrange(1000)) for _ in range(count)]
    with (
        _tls_wire(tls_broker, identities, receive_bytes=8192) as consumer,
        _tls_wire(tls_broker, identities) as publisher,
        Traffic(tls_broker) as others,
    ):
        for client in (consumer, publisher):
            client.handshake()
            client.open_channel()
        consumer.send(1, spec.Queue.Declare(exclusive=False, auto_delete=True))
        queue = consumer.expect(spec.Queue.DeclareOk, 1).queue
        consumer.send(1, spec.Basic.Consume(queue=queue, no_ack=True))
        consumer.expect(spec.Basic.ConsumeOk, 1)
        publisher.send(1, spec.Confirm.Select())
        publisher.expect(spec.Confirm.SelectOk, 1)
        for body in bodies:
            publisher.send_bytes(publish_frames("", queue, body))
        confirmed = 0
        while confirmed < count:
            confirmed = publisher.expect(spec.Basic.Ack, 1).delivery_tag
        # Everything is published and nothing of it read: the others are not held up.
        seen = others.count
        wait_until(lambda: others.count > seen + 50, "messages of other clients to flow")
        received = [hashlib.sha256(next_body(consumer, spec.Basic.Deliver)).digest() for _ in bodies]
    assert received == [hashlib.sha256(body).digest() for body in bodies]


def test_a_stream_of_small_messages_through_tls_arrives_complete_and_in_order(
    tls_broker: WarrenProcess, identities: Identities
) -> None:
    count = 5000
    with _tls_wire(tls_broker, identities) as client:
        client.handshake()
        client.open_channel()
        client.send(1, spec.Queue.Declare(exclusive=True))
        queue = client.expect(spec.Queue.DeclareOk, 1).queue
        client.send(1, spec.Basic.Consume(queue=queue, no_ack=True))
        client.expect(spec.Basic.ConsumeOk, 1)
        # The socket of the ssl module is not for two threads: the publishes must not fill the way back.
        for start in range(0, count, 500):
            client.send_bytes(b"".join(publish_frames("", queue, b"%d" % n) for n in range(start, start + 500)))
            for number in range(start, start + 500):
                assert next_body(client, spec.Basic.Deliver) == b"%d" % number


# --- peers that break it ---------------------------------------------------------------------------------------------


def _ends(peer: socket.socket) -> bool:
    """Tell that the broker hangs up, whatever it says before."""
    peer.settimeout(30)
    try:
        while peer.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def _client_hello() -> bytes:
    context = ssl.create_default_context()
    outgoing = ssl.MemoryBIO()
    handshake = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        handshake.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    "said",
    [b"AMQP\x00\x00\x09\x01", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 5000, b"\x16\x03\x01\xff\xff" + b"x" * 200],
    ids=["amqp", "http", "zeros", "a huge record"],
)
def test_bytes_that_are_no_tls_end_their_connection_only(said: bytes, tls_broker: WarrenProcess) -> None:
    with Traffic(tls_broker) as others, socket.create_connection(("127.0.0.1", tls_broker.amqps_port)) as peer:
        peer.sendall(said)
        assert _ends(peer)
        seen = others.count
        wait_until(lambda: others.count > seen, "messages of other clients to flow")


def test_a_handshake_that_stalls_is_ended_at_its_deadline(tls_broker: WarrenProcess) -> None:
    hello = _client_hello()
    with contextlib.ExitStack() as stack:
        peers = []
        for share in (0.0, 0.5, 1.0):
            peers.append(stack.enter_context(socket.create_connection(("127.0.0.1", tls_broker.amqps_port))))
            peers[-1].sendall(hello[: int(len(hello) * share)])
        assert [_ends(peer) for peer in peers] == [True] * 3


def test_a_handshake_and_a_login_that_arrive_byte_by_byte_succeed(
    tls_broker: WarrenProcess, identities: Identities
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = _context(identities).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", tls_broker.amqps_port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.settimeout(30)

        def exchange() -> None:
            for byte in outgoing.read():
                peer.sendall(bytes([byte]))
            received = peer.recv(65536)
            assert received
            incoming.write(received)

        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                exchange()
        tls.write(b"AMQP\x00\x00\x09\x01")
        answer = b""
        while not answer:
            try:
                answer = tls.read(65536)
            except ssl.SSLWantReadError:
                exchange()
        assert answer.startswith(b"\x01\x00\x00")
        # connection.start
        assert answer[7:11] == b"\x00\x0a\x00\x0a"


def _with_exclusive_queue(
    process: WarrenProcess, identities: Identities, queue: str, *, tls: bool
) -> tuple[socket.socket, WireClient]:
    opened: socket.socket
    if tls:
        opened = _tls_socket(process, identities)
    else:
        opened = socket.create_connection(("127.0.0.1", process.amqp_port), timeout=30)
    client = WireClient(broker_at(process), opened)
    client.handshake()
    client.open_channel()
    client.send(1, spec.Queue.Declare(queue=queue, exclusive=True))
    client.expect(spec.Queue.DeclareOk, 1)
    return opened, client


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plain"])
def test_a_client_that_ends_its_half_without_a_word_is_ended(
    tls: bool, tls_broker: WarrenProcess, identities: Identities
) -> None:
    opened, client = _with_exclusive_queue(tls_broker, identities, f"of the half open {tls}", tls=tls)
    # Below TLS: no close_notify.
    socket.socket.shutdown(opened, socket.SHUT_WR)
    with pytest.raises(Ended):
        client.next_frame()
    client.close()
    _expect_free(tls_broker, f"of the half open {tls}")


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plain"])
def test_a_client_that_vanishes_with_a_reset_leaves_nothing_behind(
    tls: bool, tls_broker: WarrenProcess, identities: Identities
) -> None:
    opened, client = _with_exclusive_queue(tls_broker, identities, f"of the reset {tls}", tls=tls)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    _expect_free(tls_broker, f"of the reset {tls}")


def _expect_free(process: WarrenProcess, queue: str) -> None:
    def is_free() -> bool:
        with open_wire(process) as looker:
            looker.send(1, spec.Queue.Declare(queue=queue, exclusive=True))
            got = looker.next_frame()
            return isinstance(getattr(got, "method", None), spec.Queue.DeclareOk)

    wait_until(is_free, f"the exclusive queue {queue!r} to be gone with its connection")


def test_a_clean_tls_end_is_answered_with_one(tls_broker: WarrenProcess, identities: Identities) -> None:
    tls = _tls_socket(tls_broker, identities)
    client = WireClient(broker_at(tls_broker), tls)
    client.handshake()
    client.end()
    client.expect_end()
    # unwrap raises when the peer ends without its own close_notify.
    tls.unwrap().close()


def test_a_tls_client_on_the_plain_port_is_turned_away_and_named_in_the_log(tls_broker: WarrenProcess) -> None:
    with socket.create_connection(("127.0.0.1", tls_broker.amqp_port)) as peer:
        peer.sendall(_client_hello())
        assert _ends(peer)
    wait_until(lambda: "a TLS handshake on the AMQP port without TLS" in tls_broker.log(), "the log to name it")


def test_many_handshakes_at_once_all_succeed(tls_broker: WarrenProcess, identities: Identities) -> None:
    failures: list[BaseException] = []

    def come_and_go() -> None:
        try:
            with _tls_wire(tls_broker, identities) as client:
                client.handshake()
                client.end()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    connect(tls_broker).close()
