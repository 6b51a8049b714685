"""A network of machines that are namespaces of this one: every frame between them goes through one process of ours.

    namespace       a TAP device lab0 with 10.77.0.<number>/24, and lo
    switch          a child process with the other ends: it forwards, delays, loses and drops frames, by `Rule`s

Cuts, loss and delay are a few lines here, and need ``ip``, /dev/net/tun and root. The kernel's own (a bridge with
nftables and netem) needs netem, which not every kernel has.

1. A rule is of one direction between two machines. It holds from the next frame on.
2. A dropped frame disappears silently: no reset, no ICMP. The bytes in the sockets of a machine stay there.
3. Which frames are lost follows from the seed and their order.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import heapq
import mmap
import os
import random
import select
import subprocess
import time
from collections.abc import Sequence
from struct import pack, unpack_from
from typing import Final

_TUNSETIFF: Final = 0x400454CA
_TAP: Final = 0x0002
_NO_HEAD: Final = 0x1000
_CLONE_NEWNET: Final = 0x40000000
_FRAME_BYTES: Final = 1 << 16
_RULE: Final = 8  # bytes
_ETCD_PORTS: Final = (2379, 2380)
_IP, _TCP = 0x0800, 6
PREFIX: Final = "10.77.0."

PASS, DROP, DROP_ETCD, DROP_NODES = range(4)


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Switch:
    """The network of `count` machines, numbered from 1, in namespaces called `name`-<number>."""

    def __init__(self, name: str, count: int, seed: int) -> None:
        self.name = name
        self.count = count
        self._rules = mmap.mmap(-1, _RULE * (count + 1) * (count + 1))
        self._taps = [self._plug(number) for number in range(1, count + 1)]
        self._child = os.fork()
        if self._child == 0:
            try:
                self._forward(random.Random(seed))
            finally:
                os._exit(0)
        for tap in self._taps:
            os.close(tap)

    def namespace(self, number: int) -> str:
        return f"{self.name}-{number}"

    def _plug(self, number: int) -> int:
        """Make a namespace with a device; return the other end of that."""
        space, device = self.namespace(number), f"lab{os.getpid() % 100000}x{number}"
        run("ip", "netns", "add", space)
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, _TUNSETIFF, pack("16sH22x", device.encode(), _TAP | _NO_HEAD))
        run("ip", "link", "set", device, "netns", space, "name", "lab0")
        inside = ("ip", "-n", space)
        run(*inside, "link", "set", "lab0", "address", f"02:00:00:00:00:{number:02x}", "up")
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "addr", "add", f"{PREFIX}{number}/24", "dev", "lab0")
        return tap

    def enter(self, number: int) -> None:
        """Put this thread, and those that it starts, on a machine."""
        with open(f"/var/run/netns/{self.namespace(number)}") as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def close(self) -> None:
        """End the network. No process may be left on its machines."""
        os.kill(self._child, 9)
        os.waitpid(self._child, 0)
        for number in range(1, self.count + 1):
            subprocess.run(["ip", "netns", "del", self.namespace(number)], check=False, capture_output=True)

    # --- rules --------------------------------------------------------------------------------------------------------

    def rule(self, source: int, target: int, what: int = PASS, delay_ms: int = 0, loss_permille: int = 0) -> None:
        """Say what becomes of frames from `source` to `target`."""
        at = _RULE * (source * (self.count + 1) + target)
        self._rules[at : at + _RULE] = pack("=HHHH", what, delay_ms, loss_permille, 0)

    def cut(self, ones: Sequence[int], others: Sequence[int], what: int = DROP, *, back: bool = True) -> None:
        """Drop what goes from `ones` to `others`, and `back`."""
        for one in ones:
            for other in others:
                if one != other:
                    self.rule(one, other, what)
                    if back:
                        self.rule(other, one, what)

    def heal(self) -> None:
        """Pass everything at once."""
        self._rules[:] = bytes(len(self._rules))

    # --- the child ----------------------------------------------------------------------------------------------------

    def _forward(self, chooser: random.Random) -> None:
        poll = select.epoll()
        for tap in self._taps:
            poll.register(tap, select.EPOLLIN)
        late: list[tuple[float, int, int, bytes]] = []
        count = 0
        while True:
            now_s = time.monotonic()
            while late and late[0][0] <= now_s:
                _, _, tap, frame = heapq.heappop(late)
                _put(tap, frame)
            wait_s = late[0][0] - now_s if late else 1.0
            for tap, _ in poll.poll(wait_s):
                for _ in range(64):
                    try:
                        frame = os.read(tap, _FRAME_BYTES)
                    except BlockingIOError:
                        break
                    source = self._taps.index(tap) + 1
                    for target in self._targets(frame, source):
                        delay_ms = self._fate(frame, source, target, chooser)
                        if delay_ms is None:
                            continue
                        count += 1
                        if delay_ms:
                            entry = (time.monotonic() + delay_ms / 1000, count, self._taps[target - 1], frame)
                            heapq.heappush(late, entry)
                        else:
                            _put(self._taps[target - 1], frame)

    def _targets(self, frame: bytes, source: int) -> list[int]:
        if frame[0] & 1:
            return [number for number in range(1, self.count + 1) if number != source]
        return [frame[5]] if 0 < frame[5] <= self.count else []

    def _fate(self, frame: bytes, source: int, target: int, chooser: random.Random) -> int | None:
        """Return by how many milliseconds a frame is late; None: it is lost."""
        what, delay_ms, loss, _ = unpack_from("=HHHH", self._rules, _RULE * (source * (self.count + 1) + target))
        if what == DROP or (what in (DROP_ETCD, DROP_NODES) and _is_of_etcd(frame) == (what == DROP_ETCD)):
            return None
        if loss and chooser.randrange(1000) < loss:
            return None
        return int(delay_ms)


def _put(tap: int, frame: bytes) -> None:
    try:
        os.write(tap, frame)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EIO, errno.ENOBUFS):  # the other end is down, or full
            raise


def _is_of_etcd(frame: bytes) -> bool:
    kind, protocol = unpack_from(">H", frame, 12)[0], frame[23] if len(frame) > 37 else 0
    if kind != _IP or protocol != _TCP:
        return False
    ports = unpack_from(">HH", frame, 14 + 4 * (frame[14] & 15))
    return any(port in _ETCD_PORTS for port in ports)
