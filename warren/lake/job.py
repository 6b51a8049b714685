"""The tables to follow into and their sources: from the command line, or a file with several tables.

    interval = "30s"                      the default for all tables

    [catalogs.main]                       properties of an Iceberg catalogue, as pyiceberg names them
    type = "sql"
    uri = "sqlite:////srv/lake/catalog.db"
    warehouse = "file:///srv/lake"

    [[tables]]
    stream = "orders"                     or: queue = "jobs", which is drained
    to = "shop.orders"                    with format = "delta": a URL or a directory
    catalog = "main"
    body = "json"                         or "avro", "protobuf", with registry and subject instead of a schema
    schema = "orders.schema.json"         relative to this file

1. Unknown words, and words that do not go together, are refused before anything is opened.
2. No two tables of a file are the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from warren.lake.options import PARTITIONINGS, Limits, TableOptions
from warren.lake.places import maybe_path
from warren.spark_bridge.bridge_errors import UsageError

ICEBERG: Final = "iceberg"
DELTA: Final = "delta"
FORMATS: Final = (ICEBERG, DELTA)
BYTES: Final = "bytes"
JSON: Final = "json"
AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
TYPED: Final = (AVRO, PROTOBUF)
BODIES: Final = (BYTES, JSON, *TYPED)
REFUSED: Final = "_refused"
DEFAULT_CATALOG: Final = "warren"

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE: Final = re.compile(r"(\d+)\s*([kmg]?)(i?)b?", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3}
# Names and directories become parts of URLs, which libraries take apart: they would write somewhere else.
_NOT_IN_NAMES: Final = re.compile(r"[\x00-\x1f/\\?#]")
_NOT_IN_CATALOGS: Final = re.compile(r"[?#%]")


@dataclass(frozen=True)
class Job:
    """One table and its source: `stream`, or `queue`, which is drained.

    `catalog`: properties of an Iceberg catalogue; `storage`: options of the object store of a Delta table. `schema`: a
    file, or the text of one. `registry`: a URL, maybe with a login; `subject`: there, whose newest schema is taken if
    there is no `schema`; `message`: the name of the message of bodies in Protobuf.
    """

    to: str
    stream: str | None = None
    queue: str | None = None
    format: str = ICEBERG
    catalog: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)
    body: str = BYTES
    schema: Path | str | None = None
    message: str | None = None
    registry: str | None = field(default=None, repr=False)
    subject: str | None = None
    columns: tuple[str, ...] | None = None
    start: str = "first"
    consumer: str | None = None
    skip_lost: bool = False
    interval_s: float = 60.0
    limits: Limits = field(default_factory=Limits)
    table: TableOptions = field(default_factory=TableOptions)

    @property
    def source(self) -> str:
        """The name of the source."""
        return str(self.stream or self.queue)

    @property
    def refused(self) -> str:
        """The name of the table of refused messages."""
        return self.to.rstrip("/") + REFUSED

    def tables(self) -> frozenset[tuple[object, ...]]:
        """Return the names that two jobs must not share: the table, and the one of refused messages."""
        names = [self.to] if self.body == BYTES else [self.to, self.refused]
        if self.format == DELTA:
            return frozenset((DELTA, _plain(name)) for name in names)
        given = {"name": DEFAULT_CATALOG, **self.catalog}
        if given.get("type") == "sql":
            given.pop("warehouse", None)  # it keeps tables by their names, wherever their files are
        catalog = tuple(sorted((key, _plain(text)) for key, text in given.items()))
        return frozenset((ICEBERG, name, catalog) for name in names)

    def identity(self, vhost: str) -> str:
        """Return an identity of the source that no other one has."""
        return "\0".join((vhost, "queue" if self.stream is None else "stream", self.source))

    def check(self, *, resolves: bool = True) -> Job:
        """Return it, if its words go together. `resolves`: directories are looked at, for links in their paths.

        Raises:
            UsageError: they do not.
        """
        if not self.to:
            raise UsageError('missing "to": the target table')
        if (self.stream is None) == (self.queue is None):
            raise UsageError(f"{self.to}: name either a stream or a queue")
        for what, value, allowed in (
            ("format", self.format, FORMATS),
            ("body", self.body, BODIES),
            ("partition_by", self.table.partition_by, PARTITIONINGS),
        ):
            if value not in allowed:
                raise UsageError(f"{self.to}: {what} {value!r} must be one of {', '.join(allowed)}")
        self._check_schema()
        if self.queue is not None and self.start != "first":
            raise UsageError(f"{self.to}: a queue is drained from its head, it has no start")
        if self.format == DELTA and self.catalog:
            raise UsageError(f"{self.to}: a catalog is for iceberg")
        if self.format == ICEBERG and self.storage:
            raise UsageError(f"{self.to}: storage is for delta; of iceberg it is a property of the catalog")
        if self.format == DELTA and "://" not in self.to and "%" in self.to:
            raise UsageError(f"{self.to}: the directory of a Delta table cannot have a % in its name")
        job = self._local(resolves=resolves) if self.format == ICEBERG and not self.catalog else self
        parts = job.to.split(".")
        if job.format == ICEBERG and (len(parts) < 2 or not all(map(str.strip, parts)) or _NOT_IN_NAMES.search(job.to)):
            raise UsageError(f"to {job.to!r}: in a catalogue a table is NAMESPACE.TABLE, without / \\ ? and #")
        return job

    def _check_schema(self) -> None:
        if self.schema is not None and self.body == BYTES:
            raise UsageError(f"{self.to}: a schema is for bodies that are {', '.join(BODIES[1:])}")
        if self.body not in TYPED and (self.registry or self.subject):
            raise UsageError(f"{self.to}: registry and subject are for bodies that are {' or '.join(TYPED)}")
        if self.message is not None and self.body != PROTOBUF:
            raise UsageError(f"{self.to}: a message is for bodies that are protobuf")
        if self.body in TYPED and self.schema is None and not (self.registry and self.subject):
            raise UsageError(f"{self.to}: bodies that are {self.body} need a schema, or a registry and a subject")
        if self.subject is not None and (self.schema is not None or not self.registry):
            raise UsageError(f"{self.to}: a subject is in a registry, and instead of a schema")
        if self.body == PROTOBUF and self.schema is not None and self.message is None:
            raise UsageError(f"{self.to}: which message of the descriptors bodies are has to be said (message)")

    def _local(self, *, resolves: bool) -> Job:
        """Return it with a catalogue in a directory: DIR/NAMESPACE.TABLE."""
        place = maybe_local_catalog(self.to, resolves=resolves)
        if place is None:
            raise UsageError(
                f"{self.to}: without a catalog an Iceberg table is DIRECTORY/NAMESPACE.TABLE, as in lake/shop.orders"
            )
        if _NOT_IN_CATALOGS.search(str(place.directory)):
            raise UsageError(f"{self.to}: the directory of a catalogue cannot have ?, # and % in its name")
        return replace(self, to=place.table, catalog=place.properties())


def _plain(place: str) -> str:
    """Return the same for the same path or URL, however it is written."""
    path = maybe_path(place)
    if path is None and "://" in place:
        return place.rstrip("/")
    return os.path.normpath(place if path is None else path)


class LocalCatalog(NamedTuple):
    """A directory with tables and, in SQLite, the catalogue of them; and a table in there."""

    directory: Path
    table: str

    def has_catalog(self) -> bool:
        """Tell whether there is one yet."""
        return (self.directory / "catalog.db").is_file()

    def properties(self) -> dict[str, str]:
        """Return the properties of the catalogue."""
        place = self.directory
        return {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}"}


def maybe_local_catalog(to: str, *, resolves: bool = True) -> LocalCatalog | None:
    """Return the parts of DIR/NAMESPACE.TABLE; None: it is not of this form."""
    directory, _, name = to.removeprefix("file://").rpartition("/")
    if not directory or "." not in name or "://" in directory:
        return None
    return LocalCatalog(Path(directory).resolve() if resolves else Path(directory), name)


def catalog_of(text: str, warehouse: str | None, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a catalogue that a URL, or a name of pyiceberg's configuration, stands for."""
    found: dict[str, str] = {}
    scheme, separator, _ = text.partition("://")
    if not separator:
        found["name"] = text
    else:
        found["type"] = "rest" if scheme in ("http", "https") else "sql"
        found["uri"] = text
    if warehouse is not None:
        found["warehouse"] = warehouse
    return {**found, **properties}


def seconds_of(text: object) -> float:
    """Return the seconds that a text such as 500ms, 30s, 5m, 1h or 7d stands for.

    Raises:
        UsageError: it is not a duration.
    """
    found = _DURATION.fullmatch(str(text).strip())
    if found is None:
        raise UsageError(f"{text!r} is not a duration such as 500ms, 30s, 5m, 1h or 7d")
    return float(found[1]) * _SECONDS[found[2]]


def bytes_of(text: object) -> int:
    """Return the bytes that a text such as 64MiB or 128MB stands for.

    Raises:
        UsageError: it is not a size.
    """
    found = _SIZE.fullmatch(str(text).strip())
    if found is None or int(found[1]) == 0:
        raise UsageError(f"{text!r} is not a size such as 128MB or 64MiB")
    return int(found[1]) * int((1024 if found[3] else 1000) ** _POWERS[found[2].lower()])


_TOP: Final = ("catalogs", "tables")
_PLAIN: Final = ("to", "stream", "queue", "format", "body", "start", "consumer", "message", "registry", "subject")


def jobs_of(path: Path) -> list[Job]:
    """Return the tables that a file names.

    Raises:
        UsageError: it cannot be read, or something in it does not fit.
    """
    import tomllib  # a broker that knows what a table may be reads no such file

    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    catalogs = document.get("catalogs", {})
    tables = document.get("tables", [])
    common = {key: value for key, value in document.items() if key not in _TOP}
    if not isinstance(catalogs, dict) or not isinstance(tables, list) or not tables:
        raise UsageError(f"{path}: there must be at least one [[tables]]")
    jobs = []
    for number, table in enumerate(tables, 1):
        try:
            jobs.append(job_of({**common, **table}, catalogs, path.parent))
        except UsageError as error:
            raise UsageError(f"{path}: table {number}: {error}") from None
    taken: set[tuple[object, ...]] = set()
    for job in jobs:
        if not taken.isdisjoint(job.tables()):
            raise UsageError(f"{path}: two tables are {job.to}, or one is that of what the other one refuses")
        taken |= job.tables()
    return jobs


def job_of(values: Mapping[str, Any], catalogs: Mapping[str, Any], directory: Path, *, resolves: bool = True) -> Job:
    """Return the table that the words of a file say. `resolves`: see `Job.check`.

    Raises:
        UsageError: one of them is unknown, or does not fit.
    """
    made: dict[str, Any] = {}
    limits: dict[str, int] = {}
    options: dict[str, Any] = {}
    for key, value in values.items():
        if key in _PLAIN:
            made[key] = _text(key, value)
        elif key == "schema":
            made[key] = directory / _text(key, value)
        elif key == "columns":
            made[key] = tuple(_text(key, each) for each in (value if isinstance(value, list) else [value]))
        elif key == "skip_lost":
            if not isinstance(value, bool):
                raise UsageError("skip_lost must be true or false")
            made[key] = value
        elif key == "interval":
            made["interval_s"] = seconds_of(value)
        elif key == "catalog":
            made[key] = _catalog(_text(key, value), catalogs)
        elif key == "storage":
            made[key] = _texts(key, value)
        elif key == "max_rows":
            limits["rows"] = _count(key, value)
        elif key == "max_bytes":
            limits["bytes"] = bytes_of(value)
        elif key == "partition_by":
            options[key] = _text(key, value)
        elif key == "target_file_size":
            options["target_file_bytes"] = bytes_of(value)
        elif key == "compact_files":
            options[key] = _count(key, value)
        elif key == "keep":
            options["keep_s"] = seconds_of(value)
        else:
            from difflib import get_close_matches

            near = get_close_matches(key, _KEYS, 1)
            raise UsageError(f"no setting {key!r}" + (f": did you mean {near[0]!r}?" if near else ""))
    job = Job(**{"to": "", **made}, limits=Limits(**limits), table=TableOptions(**options))
    return job.check(resolves=resolves)


_KEYS: Final = (
    *_PLAIN,
    *("schema", "columns", "skip_lost", "interval", "catalog", "storage", "max_rows", "max_bytes"),
    *("partition_by", "target_file_size", "compact_files", "keep"),
)


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{key} must be a text")
    return value


def _count(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{key} must be a number from 1 on")
    return value


def _texts(key: str, value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise UsageError(f"{key} must be a table of texts")
    return {str(name): str(each) for name, each in value.items()}


def _catalog(name: str, catalogs: Mapping[str, Any]) -> dict[str, str]:
    if name in catalogs:
        return {"name": name, **_texts(f"catalogs.{name}", catalogs[name])}
    return catalog_of(name, None, {})
