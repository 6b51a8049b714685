"""Connections without a socket, and the permission to open one."""

from __future__ import annotations

import pytest
from engine_harness import Harness
from peer_frames import USER

from warren.amqp.errors import ConnectionException
from warren.channels.shared import PAUSED_COMMIT, PAUSED_WORK
from warren.vhosts.metadata import UserPut, VhostPut


@pytest.mark.parametrize(
    ("user", "vhost", "text"),
    [
        (USER, "nowhere", "vhost nowhere not found"),
        (USER, "v", f"access to vhost 'v' refused for user '{USER}'"),
        ("bob", "/", "access to vhost '/' refused for user 'bob'"),
        ("nobody", "/", "access to vhost '/' refused for user 'nobody'"),
    ],
)
def test_nobody_acts_where_he_may_not_connect(user: str, vhost: str, text: str) -> None:
    harness = Harness()
    harness.broker.administer(VhostPut("v"))
    harness.broker.administer(UserPut("bob", "", ""))
    with pytest.raises(ConnectionException) as refused:
        harness.broker.connect_direct(user, vhost)
    assert (refused.value.reply_code, refused.value.explanation) == (530, text)
    assert not harness.broker.connections


def test_whoever_uses_it_is_told_when_no_pause_is_left() -> None:
    harness = Harness()
    connection = harness.broker.connect_direct(USER, "/")
    dirty = harness.broker.direct_outboxes
    dirty.clear()
    connection.pause(PAUSED_COMMIT)
    connection.pause(PAUSED_WORK)
    connection.resume(PAUSED_COMMIT)
    assert connection.paused == PAUSED_WORK and not dirty
    connection.resume(PAUSED_WORK)
    assert connection.paused == 0 and dirty == [connection.outbox]
    dirty.clear()
    connection.resume(PAUSED_WORK)
    assert not dirty
