"""Tokens of the data port: planners get them for readers at the listener of data alone (``data_listener.py``).

The content of a token, and its lifetime, are described in ``mgmt_plugin.data_tokens``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from warren.engine_view.engine_view import EngineView
from warren.engine_view.permissions import READ
from warren.mgmt_plugin.data_tokens import TTL_MAX_S, DataTokens
from warren.mgmt_plugin.http.server import HttpError
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.names import the_shared_queue
from warren.mgmt_plugin.resources.data_port import QUEUE_PATH
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request
from warren.server.management import Listening

DATA_PROTOCOLS: Final = ("data", "datas")


class TokenWanted(msgspec.Struct, forbid_unknown_fields=True):
    """The wanted lifetime of a token."""

    ttl_s: int = 3600


class DataTokenHandlers(Handlers):
    """Makes `tokens` of the listener of data alone, which is among those `listening` if there is one."""

    def __init__(self, view: EngineView, tokens: DataTokens, listening: Sequence[Listening]) -> None:
        self._view = view
        self._tokens = tokens
        self._listening = listening

    async def make_token(self, call: Call) -> Described:
        wanted = await call.body(TokenWanted)
        queue = the_shared_queue(call, self._view)
        call.authorize(READ, "queue", self._view.offsets.authorized_name(queue))
        ports = {each.protocol: each.port for each in self._listening if each.protocol in DATA_PROTOCOLS}
        if not ports or call.request.node:
            raise HttpError(404, "no_data_listener", 'no data listener; set "data" or "datas"')
        if not 1 <= wanted.ttl_s <= TTL_MAX_S:
            raise bad_request(f"ttl_s must be from 1 to {TTL_MAX_S}")
        token = self._tokens.issue(call.operator.name, call.params["vhost"], call.params["queue"], wanted.ttl_s)
        return {"token": token, "expires_in_s": wanted.ttl_s, "ports": ports}

    ROUTES: ClassVar = (
        Route(
            "POST",
            f"{QUEUE_PATH}/token",
            Access.CLIENT,
            make_token,
            "A token to read the queue over the data listener",
            TokenWanted,
            is_audited=False,
        ),
    )
