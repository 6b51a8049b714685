"""A REST catalogue for tests: as much of Iceberg's REST API as `warren lake` uses, in front of a catalogue in SQLite.

1. Requirements of a commit are checked by pyiceberg's own catalogue; a commit that does not meet them gets a 409, as
   the API says.
2. Requests without the token are refused. `config` has the other settings for a client, such as the location of files.
3. `failing` says what becomes of the next commits: whether each is made, and with which status it is answered.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from pyiceberg.catalog.rest import CreateTableRequest, TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, StagedTable
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

TOKEN = "let me in"
_STATUS = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}
_ABSENT = {"location": None, "partition-spec": None, "write-order": None}  # fields that a client may leave out


class RestCatalog:
    """A server while it is entered. `behind`: the catalogue that keeps what it is told."""

    def __init__(self, behind: SqlCatalog, config: dict[str, str] | None = None) -> None:
        self.behind = behind
        self.config = config or {}
        self.commits = 0
        self.failing: list[tuple[bool, int]] = []
        self._lock = threading.Lock()
        catalogue = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    status, answer = 401, _error(401, "NotAuthorizedException", "who are you?")
                else:
                    with catalogue._lock:
                        status, answer = catalogue.answer(self.command, self.path.partition("?")[0], body)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_HEAD = _answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Return status and body of the answer to a request."""
        try:
            return 200, json.dumps(self._answer(method, path.split("/")[2:], body)).encode()
        except tuple(_STATUS) as error:
            status = next(status for kind, status in _STATUS.items() if isinstance(error, kind))
            return status, _error(status, type(error).__name__, str(error))
        except _Failing as error:
            return error.status, _error(error.status, "ServiceFailureException", "the test wants it so")

    def _answer(self, method: str, path: list[str], body: bytes) -> Any:
        if method == "GET" and path == ["config"]:
            return {"defaults": {}, "overrides": self.config}
        if method == "POST" and path == ["namespaces"]:
            names = json.loads(body)["namespace"]
            self.behind.create_namespace(tuple(names))
            return {"namespace": names, "properties": {}}
        if method == "GET" and len(path) == 2:
            return {"namespace": [path[1]], "properties": dict(self.behind.load_namespace_properties(path[1]))}
        if method == "POST" and len(path) == 3:
            return self._create(path[1], CreateTableRequest.model_validate({**_ABSENT, **json.loads(body)}))
        table = f"{path[1]}.{path[3]}"
        if method == "GET":
            return self._loaded(self.behind.load_table(table))
        return self._commit(table, CommitTableRequest.model_validate_json(body))

    def _create(self, namespace: str, asked: CreateTableRequest) -> Any:
        assert asked.stage_create, "tables are made with their partitions, in one commit"
        if self.behind.table_exists(f"{namespace}.{asked.name}"):
            raise TableAlreadyExistsError(asked.name)
        return self._loaded(
            self.behind._create_staged_table(
                (namespace, asked.name),
                asked.table_schema,
                asked.location,
                asked.partition_spec or UNPARTITIONED_PARTITION_SPEC,
                asked.write_order or UNSORTED_SORT_ORDER,
                asked.properties,
            )
        )

    def _commit(self, table: str, asked: CommitTableRequest) -> Any:
        is_made, status = self.failing.pop(0) if self.failing else (True, 200)
        if is_made:
            try:
                there: Any = self.behind.load_table(table)
            except NoSuchTableError:
                nothing: Any = None
                there = StagedTable(tuple(table.split(".")), nothing, "", load_file_io({}), self.behind)
            made = self.behind.commit_table(there, asked.requirements, asked.updates)
            self.commits += 1
        if status != 200:
            raise _Failing(status)
        return json.loads(made.model_dump_json(by_alias=True))

    def _loaded(self, table: Any) -> Any:
        found = TableResponse(
            **{"metadata-location": table.metadata_location, "metadata": table.metadata, "config": self.config}
        )
        return json.loads(found.model_dump_json(by_alias=True, exclude_none=True))


class _Failing(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def _error(status: int, kind: str, message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "code": status}}).encode()
