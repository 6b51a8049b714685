"""Limits for a peer's use of TLS: small records count as work, and empty records are not accepted for ever."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from tls_peer import TlsPeer

from warren.channels.connection import Connection
from warren.server.network.tls_records import (
    CUT_RECORDS,
    EMPTY_MAX,
    RECEIVE_MAX_BYTES,
    RECEIVE_MIN_BYTES,
    RECORD_UNITS,
    TlsRecords,
)
from warren.server.network.transport import TlsTransport


def record(size: int) -> bytes:
    return b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size)


def shake_hands(transport: TlsTransport) -> None:
    while not transport.handshake():
        pass


@pytest.fixture(scope="module")
def context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    return context


@pytest.fixture
def ends(context: ssl.SSLContext) -> Iterator[tuple[TlsTransport, TlsPeer]]:
    """The broker's end of a TLS connection, and its peer's."""
    ours, theirs = socket.socketpair()
    transport = TlsTransport(ours, "test", context, Connection)
    found: list[TlsPeer] = []
    thread = threading.Thread(target=lambda: found.append(TlsPeer(theirs)))
    thread.start()
    shake_hands(transport)
    thread.join()
    ours.setblocking(False)
    yield transport, found[0]
    found[0].close()
    ours.close()


def read(transport: TlsTransport) -> tuple[bytes, int]:
    """Return all readable bytes, and the most units that a receive cost besides."""
    read: list[bytes] = []
    most = 0
    while (received := transport.receive(1 << 18)) is not None:
        read.append(received)
        most = max(most, int(transport.receiving_units))
    return b"".join(read), most


@pytest.mark.parametrize("seed", range(20))
def test_records_are_counted_however_they_are_cut(seed: int) -> None:
    dice = random.Random(seed)
    sizes = [dice.choice((0, 1, 22, 300, 16_401)) for _ in range(200)]
    data = b"".join(map(record, sizes))
    records = TlsRecords()
    records.is_handshaken = True
    at = 0
    while at < len(data):
        size = dice.choice((1, 2, 7, 4096, 20_000))
        records.received(data[at : at + size])
        at += size
    assert records.count == len(sizes)


@pytest.mark.parametrize("seed", range(20))
def test_a_peer_is_checked_each_time_after_a_few_records_wherever_they_begin(seed: int) -> None:
    dice = random.Random(seed)
    data = b"".join(record(dice.choice((1, 22, 100))) for _ in range(200))
    records = TlsRecords()
    records.is_handshaken = True
    at = 0
    while at < len(data):
        piece = data[at : at + dice.choice((3, 40, 1000, 5000))]
        before = records.count
        records.received(piece)
        new = records.count - before
        assert len(records.cuts) in (new // CUT_RECORDS, max(0, new - 1) // CUT_RECORDS)
        for number, cut in enumerate(records.cuts, 1):
            again = TlsRecords()
            again.is_handshaken = True
            again.received(data[: at + cut])
            assert data[at + cut : at + cut + 3] in b"\x17\x03\x03", "not where a record begins"
            assert again.count == before + number * CUT_RECORDS
        at += len(piece)


def test_of_very_many_requests_for_new_keys_only_a_few_are_decrypted(ends: tuple[TlsTransport, TlsPeer]) -> None:
    """A peer that has sent large records is read in large pieces."""
    transport, peer = ends
    for _ in range(8):
        peer.sock.sendall(peer.record(bytes(16_000)))
        read(transport)
    session = transport._session
    records = session._records
    assert session.receive_bytes() > 500 * 27
    empty = records.count - records.with_data
    asked = peer.key_updates(500)
    peer.sock.sendall(asked)
    with pytest.raises(ConnectionAbortedError, match="TLS records without data"):
        read(transport)
    # A record that was decrypted cannot be decrypted again, for its key is gone.
    few = -(-(EMPTY_MAX + 1 - empty) // CUT_RECORDS) * CUT_RECORDS
    session._incoming.write(asked[few * len(asked) // 500 :] + peer.record(b"as if nothing had been"))
    assert session._tls.read(100) == b"as if nothing had been"


def test_less_is_read_at_a_time_of_who_sends_small_records() -> None:
    assert TlsRecords().receive_bytes == RECEIVE_MIN_BYTES
    records = TlsRecords()
    records.is_handshaken = True
    for _ in range(100):
        records.received(record(16_379))
    assert records.receive_bytes > 4 * RECEIVE_MIN_BYTES
    assert records.receive_bytes <= RECEIVE_MAX_BYTES
    records.received(record(22) * 100)
    assert records.receive_bytes == RECEIVE_MIN_BYTES


def test_small_records_cost_work_each(ends: tuple[TlsTransport, TlsPeer]) -> None:
    transport, peer = ends
    sent = bytes(range(256)) * 4
    peer.sock.sendall(peer.records(sent, 1))
    received, most = read(transport)
    assert received == sent
    assert RECEIVE_MIN_BYTES // 24 * RECORD_UNITS < most <= (RECEIVE_MIN_BYTES // 22 + 1) * RECORD_UNITS
    peer.sock.sendall(peer.record(sent))
    assert read(transport) == (sent, RECORD_UNITS)


@pytest.mark.parametrize(("certificates", "accepted"), [(5, True), (140, False)])
def test_a_chain_of_very_many_certificates_ends_the_handshake(
    certificates: int, accepted: bool, tmp_path: Path
) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    leaf.configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context()
    authority.configure_trust(client)
    chain = tmp_path / "chain.pem"
    chain.write_bytes(leaf.private_key_and_cert_chain_pem.bytes() + trustme.CA().cert_pem.bytes() * certificates)
    client.load_cert_chain(chain)
    ours, theirs = socket.socketpair()

    done = threading.Event()

    def connect() -> None:
        with contextlib.suppress(OSError), theirs, client.wrap_socket(theirs, server_hostname="localhost"):
            done.wait()  # the end of the handshake is still to be sent to it

    thread = threading.Thread(target=connect)
    thread.start()
    transport = TlsTransport(ours, "test", context, Connection)
    try:
        if accepted:
            shake_hands(transport)
            assert transport.peer_certificate() is not None
        else:
            with pytest.raises(ConnectionAbortedError, match="handshake is too large"):
                shake_hands(transport)
    finally:
        done.set()
        ours.close()
        thread.join()


def test_who_asks_for_new_keys_over_and_over_is_hung_up_on(ends: tuple[TlsTransport, TlsPeer]) -> None:
    transport, peer = ends
    peer.sock.sendall(peer.key_updates(20) + peer.record(b"fine"))
    assert read(transport)[0] == b"fine"
    peer.sock.sendall(peer.key_updates(EMPTY_MAX))
    with pytest.raises(ConnectionAbortedError, match="TLS records without data"):
        read(transport)


def test_a_connection_that_lives_long_may_change_its_keys_often() -> None:
    records = TlsRecords()
    records.is_handshaken = True
    for _ in range(1000):
        records.received(record(22) + record(100) * 1024)
        records.with_data += 1024
        records.check(0)
