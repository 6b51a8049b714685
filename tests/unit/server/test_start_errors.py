"""Reasons for not starting, in words."""

from __future__ import annotations

import errno
import socket

import pytest

from warren.server.start_errors import listen_error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EADDRINUSE, "x"), "cannot listen on [::1]:5672 (amqp): the port is in use"),
        (PermissionError(errno.EACCES, "x"), "not permitted (ports below 1024 need a privilege)"),
        (OSError(errno.ENETDOWN, "x"), "Network is down"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
    ],
)
def test_why_listening_failed_is_said_in_words(error: OSError, text: str) -> None:
    assert str(listen_error("amqp", "::1", 5672, error)).endswith(text)
