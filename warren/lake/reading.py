"""Streams for notebooks: their current messages, as Arrow record batches or as a dataset; nothing is consumed.

warren.lake.read("events", since="1h").read_all()              a table of pyarrow
polars.scan_pyarrow_dataset(warren.lake.dataset("events"))     columns and filters are pushed down
duckdb.from_arrow(warren.lake.dataset("events", json=True))    likewise
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from warren.lake.sql import stream_dataset
from warren.lake.stream_dataset import FIRST, NEXT, StreamDataset
from warren.spark_bridge.control import DEFAULT_URL, BrokerClient


def dataset(
    stream: str,
    *,
    since: str = FIRST,
    until: str = NEXT,
    json: bool | str | Path = False,
    skip_lost: bool = False,
    url: str = DEFAULT_URL,
    vhost: str = "/",
    username: str | None = None,
    password: str | None = None,
    cacert: str | None = None,
    insecure: bool = False,
    client: BrokerClient | None = None,
) -> StreamDataset:
    """Return the current messages of a stream or super stream, to be scanned any number of times.

    `since`, `until`: first, next, an offset, an age such as 1h, or a time. `json`: the bodies as columns, by a sample
    or, with the path of a JSON Schema, by that. `skip_lost`: continue when messages are gone. `url`: of the management
    API, may contain user and password; or `client` instead of this and all following arguments.

    Raises:
        UsageError: it is not a stream, or an argument does not fit. BridgeError: the broker cannot be asked.
    """
    asked = client or BrokerClient(url, username, password, vhost=vhost, cacert=cacert, insecure=insecure)
    return stream_dataset(asked, stream, since=since, until=until, json=json, skip_lost=skip_lost)


def read(
    stream: str,
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    since: str = FIRST,
    until: str = NEXT,
    json: bool | str | Path = False,
    skip_lost: bool = False,
    url: str = DEFAULT_URL,
    vhost: str = "/",
    username: str | None = None,
    password: str | None = None,
    cacert: str | None = None,
    insecure: bool = False,
    client: BrokerClient | None = None,
) -> pa.RecordBatchReader:
    """Return the rows of a stream in batches, which are read as they are asked for; arguments as of `dataset`.

    `columns`: those that are wanted, default all; `where`: an expression of pyarrow.compute that rows have to meet.
    """
    found = dataset(
        stream,
        since=since,
        until=until,
        json=json,
        skip_lost=skip_lost,
        url=url,
        vhost=vhost,
        username=username,
        password=password,
        cacert=cacert,
        insecure=insecure,
        client=client,
    )
    return found.reader(columns, where)
