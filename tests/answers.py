"""Answers of the management API, taken as a peer would take them that reads everything."""

from __future__ import annotations

from warren.mgmt_plugin.http.server import Response


def whole(response: Response) -> bytes:
    """Return all that is sent after the head."""
    return b"".join([response.body, *response.blocks, *(response.pieces or ())])
