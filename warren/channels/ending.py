"""Ends of a peer that the broker decides, and what the log says about them.

1. A peer that is open is told why: by 320 if an operator or a change of rights ends it, by 541 if we have failed.
2. A peer that is not open, or whose machine is gone, just ends. How it ends by itself is in `channels.peer` and in its
   protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.amqp.errors import CONNECTION_FORCED, INTERNAL_ERROR, AmqpError
from warren.channels.connection_states import CLOSING, ENDED, RUNNING
from warren.channels.login import about_peer

if TYPE_CHECKING:
    from warren.channels.peer import Peer


def note_error(peer: Peer, event: str, channel_number: int, error: AmqpError) -> None:
    """Log the error that ends `peer` or one of its sessions."""
    about = {"channel": channel_number, "reply_code": error.reply_code, "reply_text": error.reply_text}
    peer.broker.note("warning", event, {**about_peer(peer), **about})


def note_closed(peer: Peer) -> None:
    """Log that `peer` has closed, as its protocol closes."""
    peer.broker.note("info", "connection.closed", {"peer": peer.origin.peer, "user": peer.login.user_name})


def force_close(peer: Peer, reason: str, *, noted: bool = True) -> None:
    """Close from our side with 320, or drop a connection that is not open. `noted`: with a notice of its own.

    One that cannot be closed, by a defect of ours, is ended at the end of the turn: others may have to be closed, too.
    """
    try:
        if peer.state == RUNNING:
            if noted and not peer.origin.is_direct:
                peer.broker.note("info", "connection.forced", {**about_peer(peer), "reason": reason})
            close_at_once(peer, CONNECTION_FORCED, reason)
        elif peer.state not in (CLOSING, ENDED):
            peer.end()
    except Exception as error:
        peer.outbox.failed(error)


def close_at_once(peer: Peer, reply_code: int, explanation: str) -> None:
    """Close from our side, in any state."""
    peer.end_channels()
    peer.send_close(reply_code, explanation, 0)
    # Even if the connection was paused, its close-ok has to be read.
    if peer.paused:
        peer.paused = 0
        peer.broker.resumed.append(peer)


def close_broken(peer: Peer) -> None:
    """Close with 541, if the peer can expect that: the broker failed, not the peer."""
    if peer.state == RUNNING:
        close_at_once(peer, INTERNAL_ERROR, "an internal error, see the broker's log")
    else:
        peer.end_channels()
        peer.end()


def give_up(peer: Peer, reason: str) -> None:
    """End as if the socket were gone: nothing comes from `peer`, or it takes nothing."""
    peer.tell_given_up(reason)
    peer.broker.note("warning", "connection.lost", {"peer": peer.origin.peer, "reason": reason})
    peer.heartbeats.is_given_up = True
    peer.end_channels()
    peer.end()
