"""How fast the load tool itself is: it is run against a peer that does nothing.

The peer answers the handshake and declarations, throws published bytes away, and sends prepared deliveries of
16-byte messages without an end. What remains is the cost of the tool and of the loopback, so `rate / CPU
share` is a ceiling for any broker measured with it on this machine.

    python -m benchmarks.ceiling [SECONDS]
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from struct import pack
from typing import Any

from warren.amqp import methods
from warren.amqp.codec import decode_method, frame, method_frame
from warren.amqp_client import frames
from warren.perf.client import CHANNEL, Address
from warren.perf.workload import Run, Workload

_BLOCK = 4096
_BODY = bytes(16)

_START = methods.ConnectionStart(0, 9, {"product": "nothing"}, b"PLAIN", b"en_US")
_REPLIES: dict[type[Any], Any] = {
    methods.ConnectionStartOk: methods.ConnectionTune(2047, 131072, 60),
    methods.ConnectionOpen: methods.ConnectionOpenOk(""),
    methods.ConnectionClose: methods.ConnectionCloseOk(),
    methods.ChannelOpen: methods.ChannelOpenOk(b""),
    methods.QueueDeclare: methods.QueueDeclareOk("", 0, 0),
    methods.QueueDelete: methods.QueueDeleteOk(0),
    methods.BasicConsume: methods.BasicConsumeOk("c"),
}


def _serve(sock: socket.socket) -> None:
    """Play the broker on one connection until the peer goes away."""
    with contextlib.suppress(OSError):
        sock.recv(8)
        sock.sendall(method_frame(0, _START))
        inbox = b""
        while data := sock.recv(65536):
            inbox += data
            end = 0
            for found in frames.frames(inbox, 0, len(inbox)):
                end = found.end
                if frames.method_id(inbox, found) == methods.BASIC_PUBLISH:
                    _discard(sock)
                    return
                asked = decode_method(inbox, found.start + 7, end - 1)
                if type(asked) in _REPLIES:
                    sock.sendall(method_frame(found.channel, _REPLIES[type(asked)]))
                    if isinstance(asked, methods.BasicConsume):
                        _deliver(sock)
            inbox = inbox[end:]


def _discard(sock: socket.socket) -> None:
    buffer = bytearray(1 << 18)
    while sock.recv_into(buffer):
        pass


def _deliver(sock: socket.socket) -> None:
    """Send deliveries with running tags from one block, of which only the columns of the tag above the lowest
    octet change.
    """
    one = method_frame(CHANNEL, methods.BasicDeliver("c", 0, redelivered=False, exchange="", routing_key="perf-0"))
    tag_at = 13
    header = pack(">HHQH", methods.BASIC_CLASS_ID, 0, len(_BODY), 0)
    one += frame(methods.FRAME_HEADER, CHANNEL, header) + frames.body_frame(CHANNEL, _BODY)
    block = bytearray(one * _BLOCK)
    block[tag_at + 7 :: len(one)] = bytes(range(256)) * (_BLOCK // 256)
    acknowledgements = bytearray(1 << 16)
    first = 0
    while True:
        for column in range(7):
            shift = 8 * (7 - column)
            if column == 6 or first % (1 << shift) == 0:
                upper = bytes((first + run * 256 >> shift) & 255 for run in range(_BLOCK // 256))
                block[tag_at + column :: len(one)] = b"".join(bytes([octet]) * 256 for octet in upper)
        with contextlib.suppress(BlockingIOError):
            sock.recv_into(acknowledgements, 0, socket.MSG_DONTWAIT)
        sock.sendall(memoryview(block)[len(one) :] if first == 0 else block)
        first += _BLOCK


def _listen() -> tuple[int, int]:
    """Start the peer in a process of its own, one child for each connection. Returns (process id, port)."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = int(listener.getsockname()[1])
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        os.setpgid(0, 0)
        while True:
            sock, _ = listener.accept()
            if os.fork() == 0:
                _serve(sock)
                os._exit(0)
            sock.close()
    listener.close()
    return pid, port


def main() -> None:
    """Print the tool's rate and ceiling for publishing alone, receiving alone, and both."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    pid, port = _listen()
    loads = {
        "publish": Workload(consumers=0, duration_s=seconds),
        "publish 64 KiB": Workload(consumers=0, size_bytes=65536, duration_s=seconds),
        "receive": Workload(rate=1, duration_s=seconds),
        "receive, ack every 100": Workload(rate=1, auto_ack=False, ack_batch=100, duration_s=seconds),
        "both": Workload(duration_s=seconds),
    }
    try:
        for name, load in loads.items():
            result = Run(load, Address(port=port)).run()
            published = result.window.published / result.seconds
            received = result.window.received / result.seconds
            busy = result.tool_cpu_share
            print(
                f"{name:24} published {published:12,.0f}/s  received {received:12,.0f}/s"
                f"  tool CPU {busy:4.0%}"
                f"  ceiling {max(published, received) / busy:12,.0f}/s"
            )
    finally:
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
