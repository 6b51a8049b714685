"""How a follower and a leader prove to each other that they share a secret, before either believes anything.

    follower                                        leader
       |-- HELLO      versions, node, nonce ------------>|
       |<- CHALLENGE  version, node, nonce, proof -------|
       |-- PROOF      proof, position or client -------->|
       |<- WELCOME    store, epoch, proof ---------------|      or REFUSAL  reason, proof

    message
         0   4  magic "WREP"
         4   1  kind                  1 HELLO, 2 CHALLENGE, 3 PROOF, 4 WELCOME, 5 REFUSAL
         5   1  zero
         6   2  body_bytes            at most BODY_BYTES_MAX
         8      body                  a JSON object in UTF-8
       end  32  proof                 not in HELLO: HMAC-SHA-256 with the secret, over the binding and everything that
                                      was sent and received so far, this message included

1. A proof covers all messages before it, both nonces among them: it can be used in no other handshake, and none of it
   can be changed on its way. The kind of a message is covered, so a proof of one side does not serve as the other's.
2. A leader proves itself before the follower says anything about its store, and a follower before the leader does: the
   id of a store keeps publishers from forging frames.
3. `binding` ties the handshake to the TLS session around it: both sides take the certificate that the leader has shown.
   A node in between with another certificate, valid or not, is detected.
4. Nothing is read beyond the sizes above, and every field is checked for its type and size, before it is used. A side
   that rejects something raises a `Refused`. Its reason is a sentence for the log of that side; `tell` is sent to the
   other one. A peer that has not proved itself is told nothing but a version.
5. A node with a `position` follows over this connection. With a `client` it passes one on: after WELCOME come the bytes
   of that client, and nothing else (``server/client_of_node.py`` has its fields).
6. The bytes after the handshake are not authenticated piece by piece. Without TLS the network must be trusted.

No I/O: both sides take bytes and return bytes. The code that reads and writes must limit the time of a handshake.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

VERSION: Final = 1  # of the handshake and of the bytes after it
MAGIC: Final = b"WREP"
BODY_BYTES_MAX: Final = 32 << 10
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
SECRET_BYTES_MIN: Final = 16
NAME_BYTES_MAX: Final = 255
REASON_BYTES_MAX: Final = 1000
INCARNATION_BYTES: Final = 16
STORE_ID_BYTES: Final = 16

HELLO: Final = 1
CHALLENGE: Final = 2
PROOF: Final = 3
WELCOME: Final = 4
REFUSAL: Final = 5

_HEAD: Final = Struct(">4sBxH")
_NUMBER_MAX: Final = (1 << 63) - 1


class Refused(Exception):
    """The other side is not accepted, or does not accept us. `tell`: bytes to send to it, if any.

    `leads`: False when it has said that it does not lead.
    """

    def __init__(self, reason: str, tell: bytes = b"", *, leads: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.tell = tell
        self.leads = leads


@dataclass(frozen=True, slots=True)
class Node:
    """One of the two sides: the name of the node, and the incarnation of its data directory."""

    name: str
    incarnation: bytes

    def __str__(self) -> str:
        return f"{self.name} ({self.incarnation.hex()[:8]})"


class MessageReader:
    """Cuts messages out of the bytes that arrive, in any pieces."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Take the bytes that have arrived."""
        self._data += data

    def rest(self) -> bytes:
        """Return, once the handshake is over, the bytes that came after it."""
        return bytes(self._data)

    def take(self) -> tuple[int, bytes] | None:
        """Return kind and bytes of the next message, None while it is incomplete.

        Raises:
            Refused: the bytes are not a message.
        """
        data = self._data
        if not MAGIC.startswith(bytes(data[: len(MAGIC)])):
            raise Refused("the peer is not a Warren node, or only one side uses TLS")
        if len(data) < _HEAD.size:
            return None
        _, kind, body_bytes = _HEAD.unpack_from(data)
        if kind not in (HELLO, CHALLENGE, PROOF, WELCOME, REFUSAL):
            raise Refused(f"a message of unknown kind {kind}")
        if body_bytes > BODY_BYTES_MAX:
            raise Refused(f"a message of {body_bytes} bytes")
        size = _HEAD.size + body_bytes + (0 if kind == HELLO else PROOF_BYTES)
        if len(data) < size:
            return None
        message = bytes(data[:size])
        del data[:size]
        return kind, message


class _Side:
    """The common part of both sides: keep all messages, prove them, check the other's proof."""

    def __init__(self, secret: bytes, binding: bytes) -> None:
        assert len(secret) >= SECRET_BYTES_MIN
        self._secret = secret
        self._said = hashlib.sha256(b"WREP" + len(binding).to_bytes(4, "big") + binding)
        self._reader = MessageReader()

    def feed(self, data: bytes) -> None:
        """Take the bytes that have arrived."""
        self._reader.feed(data)

    def rest(self) -> bytes:
        """Return, once the handshake is over, the bytes that came after it."""
        return self._reader.rest()

    def refusal(self, reason: str, *, leads: bool = True) -> bytes:
        """Return a message that turns the other side away."""
        text = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
        return self._message(REFUSAL, {"reason": text} if leads else {"reason": text, "leads": False})

    def _message(self, kind: int, body: Mapping[str, object]) -> bytes:
        encoded = json.dumps(body, separators=(",", ":")).encode()
        assert len(encoded) <= BODY_BYTES_MAX
        message = _HEAD.pack(MAGIC, kind, len(encoded)) + encoded
        self._said.update(message)
        if kind != HELLO:
            message += self._proof()
        return message

    def _take(self, *kinds: int) -> tuple[int, _Body] | None:
        """Return the next message when it is complete.

        Raises:
            Refused: it is not of one of `kinds`, does not prove that the other side knows the secret, or is malformed.
        """
        found = self._reader.take()
        if found is None:
            return None
        kind, message = found
        if kind not in kinds:
            raise Refused(f"an unexpected message of kind {kind}")
        end = len(message) if kind == HELLO else len(message) - PROOF_BYTES
        self._said.update(message[:end])
        if kind != HELLO and not hmac.compare_digest(message[end:], self._proof()):
            reason = "the nodes do not have the same secret (cluster_secret_file)"
            raise Refused(reason, self.refusal(reason))
        return kind, _Body(message[_HEAD.size : end])

    def _proof(self) -> bytes:
        return hmac.digest(self._secret, self._said.digest(), "sha256")


class FollowerSide(_Side):
    """The side that connects. `hello` is its first message."""

    def __init__(self, secret: bytes, me: Node, nonce: bytes, binding: bytes = b"") -> None:
        super().__init__(secret, binding)
        assert len(nonce) == NONCE_BYTES
        self.leader: Node | None = None  # once it has proved itself
        self._me = me
        self.hello = self._message(
            HELLO,
            {"versions": [VERSION, VERSION], "node": me.name, "id": me.incarnation.hex(), "nonce": nonce.hex()},
        )

    def challenged(self) -> bool:
        """Tell whether the leader has proved itself by now; then `prove` is due.

        Raises:
            Refused: it has not, or it is this very node.
        """
        found = self._take(CHALLENGE, REFUSAL)
        if found is None:
            return False
        kind, body = found
        if kind == REFUSAL:
            raise Refused(body.text("reason", REASON_BYTES_MAX))
        if body.number("version") != VERSION:
            raise Refused(f"the leader speaks version {body.number('version')} of the replication, this node {VERSION}")
        body.raw("nonce", NONCE_BYTES)
        self.leader = Node(body.text("node", NAME_BYTES_MAX), body.raw("id", INCARNATION_BYTES))
        if self.leader.incarnation == self._me.incarnation:
            raise Refused("this node was told to follow itself")
        return True

    def prove(self, position: Mapping[str, object]) -> bytes:
        """Return the proof of this side; `position` tells the leader about its directory."""
        return self._message(PROOF, {"position": position})

    def prove_for(self, client: Mapping[str, object]) -> bytes:
        """Return the proof of this side, for a connection on which it passes on a client."""
        return self._message(PROOF, {"client": client})

    def welcomed(self) -> Mapping[str, Any] | None:
        """Return the leader's answer about its store; None while that has not arrived.

        Raises:
            Refused: the leader does not take this follower, for the stated reason.
        """
        found = self._take(WELCOME, REFUSAL)
        if found is None:
            return None
        kind, body = found
        if kind == REFUSAL:
            raise Refused(body.text("reason", REASON_BYTES_MAX), leads=not body.has("leads"))
        return body.table("store")


class LeaderSide(_Side):
    """The side that accepts."""

    def __init__(self, secret: bytes, me: Node, nonce: bytes, binding: bytes = b"") -> None:
        super().__init__(secret, binding)
        assert len(nonce) == NONCE_BYTES
        self.follower: Node | None = None  # as it names itself; believed once `proved` has returned something
        self.client: Mapping[str, Any] | None = None  # the client that it passes on, from then on
        self._me = me
        self._nonce = nonce

    def challenge(self) -> bytes:
        """Return the answer to the follower's first message, empty while that is incomplete.

        Raises:
            Refused: it is not a follower, has a version that is not spoken, or is this very node.
        """
        found = self._take(HELLO)
        if found is None:
            return b""
        _, body = found
        least, most = body.pair("versions")
        if not least <= VERSION <= most:
            spoken = str(least) if least == most else f"{least} to {most}"
            reason = f"the follower speaks version {spoken} of the replication, the leader {VERSION}: upgrade the older"
            raise Refused(reason, self.refusal(reason))
        body.raw("nonce", NONCE_BYTES)
        self.follower = Node(body.text("node", NAME_BYTES_MAX), body.raw("id", INCARNATION_BYTES))
        return self._message(
            CHALLENGE,
            {"version": VERSION, "node": self._me.name, "id": self._me.incarnation.hex(), "nonce": self._nonce.hex()},
        )

    def proved(self) -> Mapping[str, Any] | None:
        """Return the position of the follower once it has proved itself; None while that has not arrived.

        Nothing is in it when the follower passes on a `client`.

        Raises:
            Refused: it does not know the secret, or does not take this leader.
        """
        found = self._take(PROOF, REFUSAL)
        if found is None:
            return None
        kind, body = found
        if kind == REFUSAL:
            raise Refused(body.text("reason", REASON_BYTES_MAX))
        if body.has("client"):
            self.client = body.table("client")
            return {}
        return body.table("position")

    def welcome(self, store: Mapping[str, object]) -> bytes:
        """Return the message that takes the follower in; `store` tells it about the leader's store."""
        return self._message(WELCOME, {"store": store})


class _Body:
    """The fields of a message, each checked when it is taken."""

    def __init__(self, encoded: bytes) -> None:
        try:
            fields = json.loads(encoded)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise Refused("a message that is not a JSON object")
        self._fields: dict[str, Any] = fields

    def text(self, name: str, bytes_max: int) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str) or not 0 < len(value.encode(errors="replace")) <= bytes_max:
            raise Refused(f"a message without a proper {name}")
        return value

    def raw(self, name: str, length: int) -> bytes:
        value = self._fields.get(name)
        try:
            found = bytes.fromhex(value) if isinstance(value, str) and len(value) == 2 * length else b""
        except ValueError:
            found = b""
        if len(found) != length:
            raise Refused(f"a message without a proper {name}")
        return found

    def number(self, name: str) -> int:
        return _number(self._fields.get(name), name)

    def pair(self, name: str) -> tuple[int, int]:
        value = self._fields.get(name)
        if not isinstance(value, list) or len(value) != 2:
            raise Refused(f"a message without proper {name}")
        return _number(value[0], name), _number(value[1], name)

    def has(self, name: str) -> bool:
        return name in self._fields

    def table(self, name: str) -> dict[str, Any]:
        value = self._fields.get(name)
        if not isinstance(value, dict):
            raise Refused(f"a message without a proper {name}")
        return value


def _number(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _NUMBER_MAX:
        raise Refused(f"a message without a proper {name}")
    return value
