"""WebSockets between a socket and a protocol: the handshake and its refusals, frames, turns, and attacks."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from typing import cast

import pytest
from mqtt_harness import connect_packet, split_packets
from reactor_harness import Peer, Place, Queueing
from stomp_harness import frame as stomp_frame
from stomp_harness import split_frames
from web_socket_peer import WebClient, frame, request

from warren.channels.broker import PeerMaker
from warren.mqtt.packets import packet
from warren.mqtt.peer import MqttPeer
from warren.server.network.acceptor import Listener
from warren.server.network.reactor import FEED_UNITS_MIN, TURN_UNITS, feed_units
from warren.server.network.transport import WebSocketTransport
from warren.server.network.web_rules import FRAME_UNITS, FRAMES_MAX, FRAMES_MIN, Origins, WebRules, WebSocketEnd
from warren.server.network.web_socket import HEAD_BYTES_MAX, WebSocket, frame_head
from warren.stomp.peer import StompPeer

MQTT = WebRules(("mqtt", "mqttv3.1"), False, False, Origins("https://app.example.com", "broker.example.com").admit)
STOMP = WebRules(("v12.stomp", "v11.stomp", "v10.stomp"), True, True, Origins("*", "").admit)
PINGREQ = packet(12, 0, b"")
PINGRESP = packet(13, 0, b"")
BINARY, TEXT, CONTINUATION, CLOSE, PING = 2, 1, 0, 8, 9


def answer_to(data: bytes, rules: WebRules = MQTT, address: str = "192.0.2.7") -> WebClient:
    """Return a client that has heard the answer to `data`."""
    web = WebSocket(rules, address)
    web.received(data)
    client = WebClient()
    client.heard(b"".join(web.framed([])))
    return client


def opened(rules: WebRules = MQTT) -> tuple[WebSocket, WebClient]:
    web = WebSocket(rules, "192.0.2.7")
    client = WebClient(rules.subprotocols)
    web.received(client.hello)
    assert web.read(FRAMES_MAX) is None
    client.heard(b"".join(web.framed([])))
    assert client.is_open
    return web, client


def end_of(web: WebSocket) -> str:
    """Return why it ends."""
    try:
        while True:
            web.read(FRAMES_MAX)
    except WebSocketEnd as end:
        return end.reason


# --- the handshake ----------------------------------------------------------------------------------------------------


def test_the_first_subprotocol_that_is_known_is_chosen() -> None:
    web = WebSocket(MQTT, "192.0.2.7")
    web.received(request(subprotocol="mqttv5, mqttv3.1, mqtt"))
    assert b"\r\nsec-websocket-protocol: mqttv3.1\r\n" in b"".join(web.framed([])).lower()
    assert opened(STOMP)[1].subprotocol == "v12.stomp"
    web = WebSocket(STOMP, "192.0.2.7")
    web.received(request(subprotocol=None))
    assert b"".join(web.framed([])).startswith(b"HTTP/1.1 101 "), "the first stomp.js names none"


def test_the_key_is_answered_as_the_standard_has_it() -> None:
    web = WebSocket(MQTT, "192.0.2.7")
    web.received(request())
    assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in b"".join(web.framed([])).lower().replace(
        b"s3pplmbitxaq9kygzzhzrbk+xoo=", b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    )


def test_no_extension_is_agreed_on() -> None:
    web = WebSocket(MQTT, "192.0.2.7")
    web.received(request(Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits"))
    answer = b"".join(web.framed([]))
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"extensions" not in answer.lower()


@pytest.mark.parametrize(
    ("data", "status", "word"),
    [
        (request("/"), 404, "/ws"),
        (request("/ws/other"), 404, "/ws"),
        (request(subprotocol=None), 400, "mqtt, mqttv3.1"),
        (request(subprotocol="v12.stomp"), 400, "mqtt, mqttv3.1"),
        (request(Sec_WebSocket_Version="8"), 426, "version 13"),
        (request(Sec_WebSocket_Key=""), 400, "Key"),
        (request(Upgrade=""), 426, "WebSocket"),
        (request(Connection="keep-alive"), 426, "WebSocket"),
        (request(Sec_WebSocket_Key=" "), 400, "Key"),
        (request(Host=""), 400, ""),
        (request(Host="xn--" + "a" * 70), 400, "ASCII"),
        (request(Origin="https://evil.example.org"), 403, "ws_origins"),
        (request(Origin="null"), 403, "ws_origins"),
        (request(Content_Length="5"), 400, "body"),
        (request(Transfer_Encoding="chunked"), 400, "body"),
        (request(Connection="Upgrade\xe9"), 400, "ASCII"),
        (request().replace(b"GET", b"POST"), 405, "GET"),
        (b"\x10\x10\x00\x04MQTT\r\n\r\n", 405, "GET"),
        (b"GET /ws\r\n\r\n", 400, ""),
        (b"GET " + b"x" * HEAD_BYTES_MAX, 431, str(HEAD_BYTES_MAX)),
        (request(X_Padding="x" * HEAD_BYTES_MAX), 431, str(HEAD_BYTES_MAX)),
    ],
)
def test_what_is_wrong_with_a_request_has_its_status_and_its_reason(data: bytes, status: int, word: str) -> None:
    client = answer_to(data)
    assert not client.is_open
    assert client.status == status
    assert word in client.refusal.decode()


def test_a_request_is_taken_wherever_it_is_cut_and_what_comes_behind_it() -> None:
    data = request() + frame(BINARY, b"early")
    for cut in range(len(data)):
        web = WebSocket(MQTT, "192.0.2.7")
        said = b""
        for piece in (data[:cut], data[cut:]):
            web.received(piece)
            said += web.read(FRAMES_MAX) or b""
        assert said == b"early"


def test_a_request_of_single_bytes_is_refused_when_it_is_too_long() -> None:
    web = WebSocket(MQTT, "192.0.2.7")
    for _ in range(HEAD_BYTES_MAX):
        web.received(b"x")
        assert web.read(FRAMES_MAX) is None
    web.received(b"x")
    assert "bytes of headers" in end_of(web)


@pytest.mark.parametrize(
    ("origin", "host", "address", "may"),
    [
        ("https://app.example.com", "broker.example.com:15676", "192.0.2.7", True),  # listed
        ("HTTPS://APP.EXAMPLE.COM", "broker.example.com:15676", "192.0.2.7", True),
        ("http://app.example.com", "broker.example.com:15676", "192.0.2.7", False),  # another scheme is another origin
        ("https://app.example.com:8443", "broker.example.com:15676", "192.0.2.7", False),
        ("http://other.example.com", "other.example.com:15675", "192.0.2.7", True),  # the host's own page
        ("http://localhost:3000", "localhost:15675", "127.0.0.1", True),
        ("http://127.0.0.1:3000", "127.0.0.1:15675", "127.0.0.1", True),
        ("http://[::1]:3000", "[::1]:15675", "::1", True),
        ("http://broker.example.com", "broker.example.com:15675", "127.0.0.1", True),  # a name of ours
        ("http://evil.example.org", "evil.example.org:15675", "127.0.0.1", False),  # made to resolve to this machine
        ("http://evil.example.org", "localhost:15675", "127.0.0.1", False),
        ("null", "localhost:15675", "127.0.0.1", False),
        ("file://localhost", "localhost:15675", "127.0.0.1", False),
        ("http://", "", "192.0.2.7", False),
        ("", "", "192.0.2.7", False),
    ],
)
def test_pages_of_listed_origins_and_of_the_host_itself_may_connect(
    origin: str, host: str, address: str, may: bool
) -> None:
    origins = Origins("https://app.example.com, https://b.example.com", "broker.example.com")
    assert origins.admit(origin, host, address) is may
    assert Origins("*", "").admit(origin, host, address)


# --- frames -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_what_is_said_arrives_however_it_is_framed_and_cut(seed: int) -> None:
    dice = random.Random(seed)
    web, _ = opened()
    said, wire = b"", b""
    for _ in range(dice.randrange(1, 40)):
        payload = dice.randbytes(dice.choice((0, 1, 125, 126, 127, 300, 65535, 65536)))
        said += payload
        cuts = sorted(dice.randrange(len(payload) + 1) for _ in range(dice.randrange(4)))
        pieces = [payload[a:b] for a, b in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
        for at, piece in enumerate(pieces):
            wire += frame(CONTINUATION if at else BINARY, piece, fin=at == len(pieces) - 1)
            if dice.random() < 0.3:
                wire += frame(PING, b"in between")
    heard = b""
    while wire or web.is_behind:
        if not web.is_behind:
            size = dice.choice((1, 7, 1000, 300_000))
            web.received(wire[:size])
            wire = wire[size:]
        heard += web.read(dice.randrange(1, 9)) or b""
    assert heard == said


@pytest.mark.parametrize("size", [1, 125, 126, 65535, 65536, 1 << 20])
def test_an_outbox_is_one_binary_message(size: int) -> None:
    web, client = opened()
    data = random.Random(size).randbytes(size)
    client.heard(b"".join(web.framed([data[: size // 2], data[size // 2 :]])))
    assert client.data == data
    assert set(client.kinds) == {"binary"}
    assert frame_head(0x82, size)[1] < 128, "a server masks nothing"


def test_large_pieces_of_an_outbox_are_not_copied() -> None:
    web, _ = opened()
    piece = bytes(100_000)
    assert web.framed([b"head", piece])[2] is piece


def test_text_is_answered_with_text_where_the_protocol_is_text() -> None:
    web, client = opened(STOMP)
    web.received(client.said("SEND é".encode(), as_text=True))
    assert web.read(FRAMES_MAX) == "SEND é".encode()
    client.heard(b"".join(web.framed(["MESSAGE é".encode()])))
    client.heard(b"".join(web.framed([b"\xff\x00"])))  # no browser takes that as text
    assert client.kinds == ["text", "binary"]
    web, client = opened(STOMP)
    web.received(client.said(b"SEND"))
    assert web.read(FRAMES_MAX) == b"SEND"
    client.heard(b"".join(web.framed([b"MESSAGE"])))
    assert client.kinds == ["binary"]


def test_a_ping_is_answered_with_its_payload_before_anything_else() -> None:
    web, client = opened()
    web.received(client.ping(b"are you there"))
    assert web.read(FRAMES_MAX) is None
    assert web.control_bytes() == len(b"are you there") + 2
    client.heard(b"".join(web.framed([b"data"])))
    assert (client.pongs, client.data) == ([b"are you there"], b"data")
    assert web.control_bytes() == 0


def test_of_any_number_of_pings_the_last_is_answered_and_few_are_taken_at_a_time() -> None:
    web, client = opened()
    pings = frame(PING, b"x" * 125) * 1000
    for _ in range(10):
        web.received(pings)
        assert web.read(FRAMES_MAX) is None
        assert web.units == FRAMES_MAX * FRAME_UNITS
        assert web.is_behind
        while web.is_behind:
            assert web.read(FRAMES_MAX) is None
        assert web.control_bytes() == 127
    client.heard(b"".join(web.framed([])))
    assert client.pongs == [b"x" * 125]


@pytest.mark.parametrize(
    ("wire", "code", "word"),
    [
        (frame(BINARY, b"bare", masked=False), 1002, "unmasked"),
        (frame(TEXT, b"text"), 1003, "binary"),
        (frame(3, b"reserved"), 1002, "opcode"),
        (frame(0x40 | BINARY, b"compressed"), 1002, "Reserved"),
        (frame(CONTINUATION, b"of nothing"), 1002, "CONTINUATION"),
        (frame(BINARY, b"a", fin=False) + frame(BINARY, b"b"), 1002, "CONTINUATION"),
        (frame(PING, b"x", fin=False), 1002, "fragment"),
        (frame(PING, b"x" * 126), 1002, "125"),
        (frame(BINARY, b"", size=1 << 63), 1002, "MSB"),
        (frame(CLOSE, b"\x03"), 1002, "1 byte"),
        (frame(CLOSE, b"\x03\xed"), 1002, "local-only"),
    ],
)
def test_who_breaks_the_rules_is_told_how_and_hung_up_on(wire: bytes, code: int, word: str) -> None:
    web, client = opened()
    web.received(frame(BINARY, b"good") + wire)
    said = web.read(FRAMES_MAX)
    assert said is not None
    assert said.startswith(b"good")
    assert web.is_behind or wire.startswith(b"\x02"), "the end is still to be told"
    assert word in end_of(web)
    client.heard(b"".join(web.framed([b"too late"])))
    assert client.close_code == code
    assert client.data == b""
    assert web.farewell() == b""


def test_text_that_is_not_utf_8_ends_a_text_protocol() -> None:
    web, client = opened(STOMP)
    web.received(frame(TEXT, b"\xff"))
    end_of(web)
    client.heard(b"".join(web.framed([])))
    assert client.close_code == 1007


def test_a_frame_as_large_as_announced_comes_as_it_comes_and_nothing_is_kept() -> None:
    web, _ = opened()
    web.received(frame(BINARY, b"begin", size=(1 << 63) - 1))
    assert web.read(FRAMES_MAX) == b"begin"
    web.received(bytes(100_000))
    said = web.read(FRAMES_MAX)
    assert said is not None
    assert len(said) == 100_000


def test_what_came_before_a_close_is_heard_and_the_close_is_answered() -> None:
    web, client = opened()
    web.received(client.said(b"bye") + client.close())
    assert web.read(FRAMES_MAX) == b"bye"
    assert web.is_behind
    assert end_of(web) == ""
    client.heard(b"".join(web.framed([])))
    assert client.close_code == 1000


def test_nothing_is_listened_to_behind_the_end() -> None:
    web, client = opened()
    web.received(client.close())
    assert end_of(web) == ""
    web.received(frame(BINARY, b"too late"))
    assert end_of(web) == ""
    web = WebSocket(MQTT, "192.0.2.7")
    web.received(request("/elsewhere"))
    web.received(request())
    assert end_of(web) == "no WebSocket: WebSockets are at /ws here"
    assert b"".join(web.framed([])).count(b"HTTP/1.1") == 1


HEADERS = [
    b"Connection: upgrade, close",
    b"Upgrade: h2c",
    b"Host: [::1",
    b"Host: a..b",
    b"Content-Length: -1",
    b"Expect: 100-continue",
    b"Sec-WebSocket-Protocol: mqtt;q=1, \xff",
    b'Sec-WebSocket-Extensions: permessage-deflate; x="',
    b"Origin: ://",
    b" folded",
    b": nameless",
    b"X: \x00",
]


@pytest.mark.parametrize("seed", range(40))
def test_random_changes_of_a_request_and_of_frames_are_answered_or_refused_and_never_break_us(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(150):
        lines = request(dice.choice(("/ws", "/", "*", "http://x/ws"))).split(b"\r\n")[:-2]
        for _ in range(dice.randrange(3)):
            lines.insert(dice.randrange(1, len(lines) + 1), dice.choice(HEADERS))
        lines[0] = lines[0].replace(b"1.1", dice.choice((b"1.1", b"1.0", b"2.0")))
        wire = bytearray(b"\r\n".join(lines) + b"\r\n\r\n")
        wire += b"".join(
            frame(
                dice.choice((0, 1, 2, 2, 2, 3, 8, 9, 10)),
                dice.randbytes(dice.choice((0, 2, 5, 125, 130))),
                fin=dice.random() < 0.7,
                masked=dice.random() < 0.95,
            )
            for _ in range(dice.randrange(6))
        )
        for _ in range(dice.choice((0, 0, 1, 3))):
            wire[dice.randrange(len(wire))] = dice.randrange(256)
        web = WebSocket(dice.choice((MQTT, STOMP)), "127.0.0.1")
        while wire or web.is_behind:
            if not web.is_behind:
                size = dice.choice((1, 50, 5000))
                web.received(bytes(wire[:size]))
                del wire[:size]
            try:
                web.read(dice.randrange(1, 4))
            except WebSocketEnd:
                pass
            web.framed(dice.choice(([], [b"x"])))
        web.farewell()


# --- on the reactor ---------------------------------------------------------------------------------------------------


class WebPeer(Peer):
    """A script that shakes hands, and then says what it is told to in frames."""

    def __init__(self, rules: WebRules = MQTT) -> None:
        self.client = WebClient(rules.subprotocols)
        super().__init__(self.client.hello)

    def hear(self) -> WebClient:
        self.client.heard(self.taken())
        return self.client


class Hall(Place):
    """A reactor that has accepted some peers over WebSockets."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1.0
        self.notes: list[tuple[str, object]] = []

    def settled(self) -> None:
        self.notes += [(notice.event, notice.fields.get("reason")) for notice in self.broker.notices]
        super().settled()

    def admit(self, peer: Peer, protocol: PeerMaker = MqttPeer, rules: WebRules = MQTT) -> None:
        listener = Listener(cast(socket.socket, None), None, protocol, rules)
        self.reactor._admission.enter("192.0.2.7", peer.fd, self.now_s)
        self.reactor.sockets.begin(listener.transport(cast(socket.socket, peer), "192.0.2.7"))

    def open(self, count: int = 1) -> list[WebPeer]:
        """Return so many that have logged in by MQTT."""
        peers = [WebPeer() for _ in range(count)]
        for peer in peers:
            self.admit(peer)
        self.turns_until(lambda: all(peer.hear().is_open for peer in peers))
        for at, peer in enumerate(peers):
            peer.say(peer.client.said(connect_packet(4, f"client-{at}")))
        self.turns_until(lambda: all(peer.hear().data for peer in peers))
        for peer in peers:
            assert split_packets(peer.client.taken())[0].kind == 2
        return peers


@pytest.fixture
def hall() -> Iterator[Hall]:
    made = Hall()
    yield made
    made.reactor.stop()
    made.reactor.close()


def test_a_client_logs_in_over_a_web_socket_and_is_shown_as_such(hall: Hall) -> None:
    hall.open()
    (peer,) = hall.broker.connections.values()
    assert peer.origin.shown(peer.protocol) == "Web MQTT 3-1-1"
    hall.turns_until(lambda: hall.reactor._admission.unauthenticated == 0)


def test_half_a_handshake_is_dropped_when_its_time_is_over(hall: Hall) -> None:
    peer = Peer(request()[:100])
    hall.admit(peer)
    hall.turn()
    assert hall.reactor._admission.unauthenticated == 1
    timeout_s = hall.broker.limits.handshake_timeout_s
    hall.reactor.tick(hall.now_s + timeout_s / 2)
    assert hall.reactor.connection_count() == 1
    hall.reactor.tick(hall.now_s + timeout_s + 1)
    hall.turn()
    assert ("connection.dropped", "handshake or close timed out") in hall.notes
    hall.reactor.tick(hall.now_s + timeout_s + 60)
    assert hall.reactor.connection_count() == 0
    assert hall.reactor._admission.unauthenticated == 0


def test_a_refusal_is_sent_and_noted_before_the_socket_is_closed(hall: Hall) -> None:
    peer = Peer(request("/mqtt"))
    hall.admit(peer)
    hall.turns_until(lambda: peer.received.endswith(b"\n"))
    assert peer.received.startswith(b"HTTP/1.1 404 ")
    hall.turn()
    assert ("connection.dropped", "no WebSocket: WebSockets are at /ws here") in hall.notes
    assert not hall.broker.connections


def test_fragments_of_a_login_that_never_ends_hold_no_more_than_on_a_bare_port(hall: Hall) -> None:
    peer = WebPeer()
    hall.admit(peer)
    hall.turns_until(lambda: peer.hear().is_open)
    head = b"\x10\xff\xff\xff\x7f"
    peer.say(frame(BINARY, head, fin=False))
    hall.turns_until(lambda: not hall.broker.connections)
    assert peer.hear().close_code == 1000, "MQTT said no"


def test_a_close_ends_the_session_and_is_answered(hall: Hall) -> None:
    (peer,) = hall.open()
    (connection,) = hall.broker.connections.values()
    received = connection.received_bytes
    peer.say(peer.client.said(PINGREQ) + peer.client.close())
    hall.turns_until(lambda: peer.hear().close_code == 1000)
    assert connection.received_bytes == received + len(PINGREQ), "what came before it was heard"
    hall.turns_until(lambda: not hall.broker.connections)


def test_what_comes_behind_a_close_while_the_last_bytes_cannot_be_sent_is_passed_over(hall: Hall) -> None:
    (peer,) = hall.open()
    peer.takes_bytes = 1
    peer.say(peer.client.close())
    hall.turn()
    peer.say(frame(BINARY, PINGREQ) * 100)
    hall.turn()
    hall.turn()
    peer.takes_bytes = 1 << 20
    hall.reactor._flush(next(iter(hall.reactor.sockets.by_fd.values())))
    assert peer.hear().close_code == 1000


def test_a_defect_in_taking_frames_apart_costs_one_connection(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, other = hall.open(2)
    transport = hall.reactor.sockets.by_fd[broken.fd]
    assert isinstance(transport, WebSocketTransport)
    monkeypatch.setattr(transport.web, "received", lambda data: 1 // 0)
    broken.say(broken.client.said(PINGREQ))
    other.say(other.client.said(PINGREQ))
    for _ in range(10):
        hall.reactor.turn(hall.reactor._selector.poll(0))
    (crash,) = hall.crashes
    assert isinstance(crash, ZeroDivisionError)
    hall.crashes.clear()
    assert hall.reactor.connection_count() == 1
    hall.turns_until(lambda: other.hear().data == PINGRESP)


def test_when_the_protocol_ends_the_web_socket_is_closed(hall: Hall) -> None:
    (peer,) = hall.open()
    peer.say(peer.client.said(packet(14, 0, b"")))
    hall.turns_until(lambda: peer.hear().close_code == 1000)


def test_frames_that_are_left_when_the_protocol_ends_make_no_more_turns(hall: Hall) -> None:
    (peer,) = hall.open()
    peer.say(peer.client.said(packet(14, 0, b"")) + frame(PING) * 2000)
    hall.turns_until(lambda: peer.hear().close_code == 1000)
    for _ in range(3):
        hall.turn()
    assert not hall.reactor._has_work(), "it would not rest before the time to wait for the peer is over"


def test_who_sends_tiny_frames_has_a_share_of_a_turn_like_everybody(hall: Hall) -> None:
    attacker, other = hall.open(2)
    attacker.say(frame(PING) * 40_000)
    turns = 0
    reads = attacker.reads
    while attacker.inbox or hall.reactor.poller.ready:
        if turns == 3:
            other.say(other.client.said(PINGREQ))
        hall.turn()
        turns += 1
        assert hall.reactor._units < TURN_UNITS + FRAMES_MAX * FRAME_UNITS
        if turns == 5:
            assert other.hear().data == PINGRESP, "two turns after it asked"
    assert turns > 100
    assert attacker.reads - reads < 10, "what has been read is handled before more is"
    assert len(attacker.hear().pongs) >= 1


def test_the_more_are_ready_the_fewer_frames_each_may_have(hall: Hall) -> None:
    peers = hall.open(80)
    assert feed_units(80) == FEED_UNITS_MIN
    for peer in peers:
        peer.say(frame(PING) * 1000)
    hall.turn()
    assert hall.reactor._units < 80 * (max(FEED_UNITS_MIN // FRAME_UNITS, FRAMES_MIN) * FRAME_UNITS + 300)


def test_who_pings_and_never_reads_keeps_one_answer_waiting(hall: Hall) -> None:
    (peer,) = hall.open()
    peer.takes_bytes = 0
    peer.say(frame(PING, b"x" * 125) * 20_000)
    while peer.inbox or hall.reactor.poller.ready:
        hall.turn()
    (connection,) = hall.broker.connections.values()
    (transport,) = hall.reactor.sockets.by_fd.values()
    assert connection.outbox.waiting_bytes() <= 127
    assert sum(map(len, transport._backlog)) <= 127


def test_a_pong_is_no_sign_of_life_of_the_protocol(hall: Hall) -> None:
    (peer,) = hall.open()
    (connection,) = hall.broker.connections.values()
    sent, received = connection.outbox.sent_bytes, connection.received_bytes
    peer.say(frame(PING, b"hello"))
    hall.turns_until(lambda: bool(peer.hear().pongs))
    assert (connection.outbox.sent_bytes, connection.received_bytes) == (sent, received)


def test_a_paused_client_is_not_decoded_any_further(hall: Hall) -> None:
    peer = WebPeer()
    hall.admit(peer)
    hall.turns_until(lambda: peer.hear().is_open)
    peer.say(peer.client.said(connect_packet(4, "early")) + peer.client.said(PINGREQ) * 2000)
    hall.turns_until(lambda: len(peer.hear().data) >= 4 + 2 * 2000)
    assert peer.client.data == packet(2, 0, b"\0\0") + PINGRESP * 2000


def test_stomp_in_text_gets_text(hall: Hall) -> None:
    peer = WebPeer(STOMP)
    hall.admit(peer, StompPeer, STOMP)
    hall.turns_until(lambda: peer.hear().is_open)
    login = stomp_frame("CONNECT", {"accept-version": "1.2", "host": "/", "login": "guest", "passcode": "guest"})
    peer.say(peer.client.said(login, as_text=True))
    hall.turns_until(lambda: bool(peer.hear().data))
    (reply,) = split_frames(peer.client.data)
    assert reply.command == "CONNECTED"
    assert set(peer.client.kinds) == {"text"}
    (connection,) = hall.broker.connections.values()
    assert connection.origin.shown(connection.protocol) == "Web STOMP 1.2"


def test_accepting_over_web_sockets_is_limited_as_over_bare_ones(hall: Hall) -> None:
    queue = Queueing(lambda: Peer(request()[:50]))
    listener = Listener(cast(socket.socket, queue), None, MqttPeer, MQTT)
    hall.reactor._admission._unauthenticated_max = 3
    hall.reactor.acceptor.listen(listener)
    hall.turn()
    assert hall.reactor.connection_count() == 3
    hall.reactor.acceptor.stop()
