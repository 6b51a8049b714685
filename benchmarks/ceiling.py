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

from warren.perf import frames
from warren.perf.client import CHANNEL, Address
from warren.perf.workload import Run, Workload

_BLOCK = 4096
_BODY = bytes(16)

_REPLIES = {
    frames.CONNECTION_START_OK: (frames.CONNECTION_TUNE, pack(">HIH", 2047, 131072, 60)),
    frames.CONNECTION_OPEN: (frames.CONNECTION_OPEN_OK, b"\0"),
    frames.CONNECTION_CLOSE: (frames.CONNECTION_CLOSE_OK, b""),
    frames.CHANNEL_OPEN: (frames.CHANNEL_OPEN_OK, b"\0\0\0\0"),
    frames.QUEUE_DECLARE: (frames.QUEUE_DECLARE_OK, b"\0" + bytes(8)),
    frames.QUEUE_DELETE: (frames.QUEUE_DELETE_OK, bytes(4)),
    frames.BASIC_CONSUME: (frames.BASIC_CONSUME_OK, frames.short_string("c")),
}


def _serve(sock: socket.socket) -> None:
    """Play the broker on one connection until the peer goes away."""
    with contextlib.suppress(OSError):
        sock.recv(8)
        start = (
            b"\0\x09"
            + frames.field_table({"product": "nothing"})
            + frames.long_string(b"PLAIN")
            + frames.long_string(b"en_US")
        )
        sock.sendall(frames.method(0, frames.CONNECTION_START, start))
        inbox = bytearray()
        while data := sock.recv(65536):
            inbox += data
            end = 0
            for found in frames.frames(inbox, 0, len(inbox)):
                end = found.end
                name = frames.method_name(inbox, found)
                if name == frames.BASIC_PUBLISH:
                    _discard(sock)
                elif name in _REPLIES:
                    reply, arguments = _REPLIES[name]
                    sock.sendall(frames.method(found.channel, reply, arguments))
                    if name == frames.BASIC_CONSUME:
                        _deliver(sock)
            del inbox[:end]


def _discard(sock: socket.socket) -> None:
    buffer = bytearray(1 << 18)
    while sock.recv_into(buffer):
        pass


def _deliver(sock: socket.socket) -> None:
    """Send deliveries with running tags from one block, of which only the columns of the tag above the lowest
    octet change.
    """
    one = frames.method(
        CHANNEL,
        frames.BASIC_DELIVER,
        frames.short_string("c") + bytes(8) + b"\0" + frames.short_string("") + frames.short_string("perf-0"),
    )
    tag_at = 13
    one += frames.frame(frames.HEADER, CHANNEL, pack(">HHQH", 60, 0, len(_BODY), 0)) + frames.frame(
        frames.BODY, CHANNEL, _BODY
    )
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
