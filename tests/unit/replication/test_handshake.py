"""Leader and follower prove that they share a secret, and believe nothing before.

The numbers in parentheses are the invariants in the header of ``warren/replication/handshake.py``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from warren.replication import handshake
from warren.replication.handshake import (
    BODY_BYTES_MAX,
    CHALLENGE,
    HELLO,
    PROOF,
    REFUSAL,
    WELCOME,
    FollowerSide,
    LeaderSide,
    Node,
    Refused,
)

SECRET = b"a secret of this cluster"
LEADER = Node("rabbit@one", bytes(range(16)))
FOLLOWER = Node("rabbit@two", bytes(range(16, 32)))
POSITION = {"lsn": 4096}
STORE = {"store": "ab" * 16, "epoch": 3}


def pair(
    follower_secret: bytes = SECRET,
    *,
    leader: Node = LEADER,
    follower: Node = FOLLOWER,
    bindings: tuple[bytes, bytes] = (b"", b""),
) -> tuple[FollowerSide, LeaderSide]:
    return (
        FollowerSide(follower_secret, follower, b"f" * 32, bindings[0]),
        LeaderSide(SECRET, leader, b"l" * 32, bindings[1]),
    )


def test_both_sides_end_up_knowing_each_other() -> None:
    follower, leader = pair()
    leader.feed(follower.hello)
    follower.feed(leader.challenge())
    assert follower.challenged()
    assert follower.leader == LEADER
    leader.feed(follower.prove(POSITION))
    assert leader.proved() == POSITION
    assert leader.follower == FOLLOWER
    follower.feed(leader.welcome(STORE) + b"what comes behind it")
    assert follower.welcomed() == STORE
    assert follower.rest() == b"what comes behind it"


def test_messages_may_arrive_in_any_pieces() -> None:
    follower, leader = pair()
    for byte in follower.hello[:-1]:
        leader.feed(bytes([byte]))
        assert leader.challenge() == b""
    leader.feed(follower.hello[-1:])
    challenge = leader.challenge()
    for byte in challenge[:-1]:
        follower.feed(bytes([byte]))
        assert not follower.challenged()
    follower.feed(challenge[-1:])
    assert follower.challenged()
    proof = follower.prove(POSITION)
    for byte in proof[:-1]:
        leader.feed(bytes([byte]))
        assert leader.proved() is None
    leader.feed(proof[-1:])
    assert leader.proved() == POSITION


def test_another_secret_is_found_out_and_said_on_both_sides() -> None:
    follower, leader = pair(b"the secret of another one")
    leader.feed(follower.hello)
    follower.feed(leader.challenge())
    with pytest.raises(Refused, match="cluster_secret_file") as refused:
        follower.challenged()
    assert follower.leader is None
    leader.feed(refused.value.tell)
    with pytest.raises(Refused, match="cluster_secret_file"):
        leader.proved()


def test_a_follower_that_takes_every_leader_is_found_out_too() -> None:
    follower, leader = pair(b"the secret of another one")
    leader.feed(follower.hello)
    leader.challenge()
    leader.feed(follower.prove(POSITION))
    with pytest.raises(Refused, match="cluster_secret_file"):
        leader.proved()


def test_the_certificate_of_somebody_in_between_is_found_out() -> None:
    """(3)"""
    follower, leader = pair(bindings=(b"the certificate of another", b"the leader's certificate"))
    leader.feed(follower.hello)
    follower.feed(leader.challenge())
    with pytest.raises(Refused):
        follower.challenged()


def test_a_proof_is_worth_nothing_in_another_handshake() -> None:
    """(1)"""
    follower, leader = pair()
    leader.feed(follower.hello)
    follower.feed(leader.challenge())
    assert follower.challenged()
    recorded = follower.prove(POSITION)
    again = LeaderSide(SECRET, LEADER, b"n" * 32)
    again.feed(follower.hello)
    again.challenge()
    again.feed(recorded)
    with pytest.raises(Refused):
        again.proved()


def test_a_leader_cannot_be_made_to_prove_what_a_follower_has_to() -> None:
    """(1) A proof is sent back, with the kind that the receiver waits for."""
    follower, leader = pair()
    leader.feed(follower.hello)
    challenge = leader.challenge()
    leader.feed(challenge[:4] + bytes([PROOF]) + challenge[5:])
    with pytest.raises(Refused):
        leader.proved()


@pytest.mark.parametrize("kind", [CHALLENGE, PROOF, WELCOME])
def test_no_bit_of_a_message_can_be_changed(kind: int) -> None:
    """(1)"""
    chance = random.Random(kind)
    for _ in range(100):
        follower, leader = pair()
        sides: dict[int, Callable[[], object]] = {
            CHALLENGE: follower.challenged,
            PROOF: leader.proved,
            WELCOME: follower.welcomed,
        }

        def changed(message: bytes) -> bytes:
            at = chance.randrange(8, len(message))
            return message[:at] + bytes([message[at] ^ 1 << chance.randrange(8)]) + message[at + 1 :]

        leader.feed(follower.hello)
        challenge = leader.challenge()
        follower.feed(changed(challenge) if kind == CHALLENGE else challenge)
        if kind != CHALLENGE:
            assert follower.challenged()
            proof = follower.prove(POSITION)
            leader.feed(changed(proof) if kind == PROOF else proof)
            if kind == WELCOME:
                assert leader.proved() == POSITION
                follower.feed(changed(leader.welcome(STORE)))
        with pytest.raises(Refused):
            sides[kind]()


def test_a_refusal_says_why_and_is_believed_only_from_who_knows_the_secret() -> None:
    follower, leader = pair()
    leader.feed(follower.hello)
    follower.feed(leader.challenge())
    assert follower.challenged()
    leader.feed(follower.prove(POSITION))
    assert leader.proved() == POSITION
    follower.feed(leader.refusal("this store is another one"))
    with pytest.raises(Refused, match=r"^this store is another one$"):
        follower.welcomed()


def test_a_node_does_not_follow_itself() -> None:
    follower, leader = pair(follower=LEADER)
    leader.feed(follower.hello)
    follower.feed(leader.challenge())
    with pytest.raises(Refused, match="follow itself"):
        follower.challenged()


@pytest.mark.parametrize("versions", [(2, 3), (0, 0)])
def test_versions_that_do_not_meet_are_said_on_both_sides(
    versions: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    follower, leader = pair()
    body = json.dumps(
        {"versions": list(versions), "node": "rabbit@two", "id": FOLLOWER.incarnation.hex(), "nonce": "00" * 32}
    ).encode()
    hello = message(HELLO, body)
    follower = FollowerSide.__new__(FollowerSide)
    handshake._Side.__init__(follower, SECRET, b"")
    follower._me = FOLLOWER
    follower._said.update(hello)
    leader.feed(hello)
    with pytest.raises(Refused, match="version") as refused:
        leader.challenge()
    follower.feed(refused.value.tell)
    with pytest.raises(Refused, match="version"):
        follower.challenged()


def message(kind: int, body: bytes, proof: bytes = b"") -> bytes:
    return b"WREP" + bytes([kind, 0]) + len(body).to_bytes(2, "big") + body + proof


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"AMQP\x00\x00\x09\x01", "not a Warren node"),
        (b"\x16\x03\x01\x02\x00", "TLS"),
        (b"G", "not a Warren node"),
        (b"WREP\x09\x00\x00\x00", "unknown kind 9"),
        (b"WREP\x01\x00\xff\xff", "65535 bytes"),
        (message(PROOF, b"{}", bytes(32)), "unexpected message"),
        (message(REFUSAL, b"{}", bytes(32)), "unexpected message"),
        (message(HELLO, b"[]"), "JSON"),
        (message(HELLO, b"{"), "JSON"),
        (message(HELLO, b"\xff"), "JSON"),
        (message(HELLO, b"[" * BODY_BYTES_MAX), "JSON"),
        (message(HELLO, b"{}"), "versions"),
        (message(HELLO, b'{"versions":[1,true]}'), "versions"),
        (message(HELLO, b'{"versions":[1,1]}'), "nonce"),
        (message(HELLO, b'{"versions":[1,1],"nonce":"%s"}' % (b"0" * 62)), "nonce"),
        (message(HELLO, b'{"versions":[1,1],"nonce":"%s","node":""}' % (b"0" * 64)), "node"),
        (message(HELLO, b'{"versions":[1,1],"nonce":"%s","node":"%s"}' % (b"0" * 64, b"n" * 256)), "node"),
        (message(HELLO, b'{"versions":[1,1],"nonce":"%s","node":"n","id":7}' % (b"0" * 64)), "id"),
    ],
)
def test_what_is_no_handshake_is_refused_for_a_reason(data: bytes, reason: str) -> None:
    """(4)"""
    _, leader = pair()
    leader.feed(data)
    with pytest.raises(Refused, match=reason):
        leader.challenge()


def test_garbage_is_refused_or_waited_for_and_nothing_else() -> None:
    chance = random.Random(1)
    for _ in range(2000):
        _, leader = pair()
        head = b"WREP" + bytes([chance.randrange(6), 0]) if chance.random() < 0.9 else b""
        leader.feed(head + chance.randbytes(chance.randrange(100)))
        try:
            assert leader.challenge() == b""
        except Refused:
            pass


def test_a_node_that_passes_on_a_client_says_so_in_its_proof() -> None:
    follower, leader = pair()
    leader.feed(follower.hello)
    follower.feed(leader.challenge())
    assert follower.challenged()
    leader.feed(follower.prove_for({"peer": "192.0.2.7:50412"}))
    assert leader.proved() == {}
    assert leader.client == {"peer": "192.0.2.7:50412"}
    follower.feed(leader.welcome({}))
    assert follower.welcomed() == {}


def test_who_does_not_know_the_secret_passes_on_nobody() -> None:
    follower, leader = pair()
    leader.feed(follower.hello)
    follower.feed(leader.challenge())
    assert follower.challenged()
    proof = bytearray(follower.prove_for({"peer": "192.0.2.7:50412"}))
    proof[-1] ^= 1
    leader.feed(bytes(proof))
    with pytest.raises(Refused, match="same secret"):
        leader.proved()
    assert leader.client is None
