"""The data port of a follower: sealed chunks of streams out of its own files; everything else is for its leader.

    GET /api/warren/data/VHOST/QUEUE/chunks?from=…&to=…&id=…

1. The answers are those that the leader would have given a moment ago: the stream is the one of that `id` by store and
   number, the user may read it, and sealed messages are committed. An answer ends where the data of this node ends, as
   its X-Warren-Next says; the leader answers a reader that continues there.
2. In every doubt the request is forwarded: without an `id`, for an offset that is missing here or damaged, for a user
   who may not read the stream as far as is known here, and while the follower is not in sync with a leader.
3. Rights are those of the leader as far as they have come here. A leader that is silent ends the link within seconds,
   and then nothing is answered.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from warren.mgmt_plugin.http.numbers import integer
from warren.mgmt_plugin.http.server import HttpError, Request, Response
from warren.mgmt_plugin.resources.data_port import ANSWER_BYTES
from warren.mgmt_plugin.resources.ranges import Wanted, incarnation
from warren.mgmt_plugin.routes import parse_query
from warren.msgstore.log.columns import Piece, without_parts
from warren.server.following import Following, ReadableCopy
from warren.server.threads import SNAPSHOTS, Stuck, in_thread
from warren.vhosts.pattern import Pattern

PREFIX: Final = "/api/warren/data/"
SUFFIX: Final = "/chunks"
COLUMNS: Final = frozenset({"bodies", "properties"})


def is_for_chunks(request: Request) -> bool:
    """Tell whether a follower may answer a request by itself."""
    return request.method == "GET" and request.path.startswith(PREFIX) and request.path.endswith(SUFFIX)


async def maybe_chunks(following: Following, request: Request, user: str) -> Response | None:
    """Answer a request for chunks by `user`; None: that is up to the leader.

    Raises:
        HttpError: 503, too much is being answered at once.
    """
    copy = following.readable()
    asked = _maybe_asked(request)
    if copy is None or asked is None:
        return None
    vhost, name, first, end, identifier, wanted = asked
    stream_id = copy.maybe_stream(vhost, name)
    if stream_id is None or identifier.partition("@")[0] != incarnation(copy.store_id, stream_id):
        return None
    pattern = copy.maybe_pattern(user, vhost)
    if pattern is None or not _pattern(pattern).matches(name):
        return None
    try:
        blocks, size, at = await in_thread(SNAPSHOTS, _read, copy, stream_id, first, end, wanted, abandon=True)
    except (OSError, Stuck):
        return None
    if at == first:
        return None
    request.hold(size)
    copy.served_bytes += size
    headers = (("X-Warren-Next", str(min(at, end))),)
    return Response(200, content_type="application/octet-stream", headers=headers, blocks=blocks)


def _maybe_asked(request: Request) -> tuple[str, str, int, int, str, Wanted] | None:
    """Return vhost, queue, the offsets, the id and the columns that a request names; None when it is not plain."""
    parts = request.path.removeprefix(PREFIX).removesuffix(SUFFIX).split("/")
    try:
        vhost, name = (unquote(part, errors="strict") for part in parts)
        query = parse_query(request.query)
        first, end = integer(query["from"]), integer(query["to"])
        columns = set(query.get("columns", "bodies,properties").split(",")) - {""}
        identifier = query["id"]
    except (KeyError, ValueError, HttpError):
        return None
    if query.get("snapshot") or not columns <= COLUMNS or not 0 <= first < end:
        return None
    return vhost, name, first, end, identifier, Wanted("bodies" in columns, "properties" in columns)


def _read(copy: ReadableCopy, stream_id: int, first: int, end: int, wanted: Wanted) -> tuple[list[Piece], int, int]:
    """Return the local part of a range in pieces, its size, and its end."""
    chunks, at = copy.read(stream_id, first, end, ANSWER_BYTES)
    missing = wanted.missing_parts()
    blocks: list[Piece] = []
    for chunk in chunks:
        blocks += without_parts(chunk, missing) if missing else [chunk]
    return blocks, sum(map(len, blocks)), at


@lru_cache(maxsize=256)
def _pattern(text: str) -> Pattern:
    return Pattern(text, stored=True)
