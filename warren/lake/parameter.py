"""A table that a broker keeps by itself, from a runtime parameter: a table of a file (``job.py``) in JSON.

    {"stream": "orders", "to": "/srv/lake/shop.orders", "body": "json", "interval": "30s"}

Differences from a table of a file:

    catalog     a URL, the name of one of pyiceberg's configuration, or {"uri": …, "warehouse": …, "type": "sql"}
    schema      JSON itself, as an object; or the absolute path of a file
    storage     does not exist
    registry    has no login; without one that of the broker's environment holds (``WARREN_SCHEMA_REGISTRY``)

1. It reads and writes only below the places that the operator allows (``places.py``).
2. It has no credentials, and cannot choose the store or catalogue for which those of the broker are used.
3. Numbers have bounds: the user that sets a parameter shares the machine with the broker.
4. The check opens nothing and looks nothing up: the broker calls it in the middle of a turn. The process that follows
   checks again, and then also the targets of links in paths (`check_links`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from warren.lake.job import DEFAULT_CATALOG, DELTA, PROTOBUF, TYPED, Job, catalog_of, job_of
from warren.lake.places import ENVIRONMENT, Places, maybe_path
from warren.spark_bridge.bridge_errors import UsageError

COMPONENT: Final = "lake"
REGISTRY: Final = "WARREN_SCHEMA_REGISTRY"
NAME_MAX: Final = 100
TEXT_MAX: Final = 2048
SCHEMA_MAX: Final = 256 << 10
COLUMNS_MAX: Final = 100
INTERVAL_S: Final = (0.05, 86400.0)
KEEP_MAX_S: Final = 3650 * 86400.0
ROWS_MAX: Final = 5_000_000
BYTES_MAX: Final = 1 << 30
COMPACT_FILES: Final = (2, 10_000)
_LARGE: Final = ("columns", "catalog", "schema")
_CATALOG_KEYS: Final = ("uri", "warehouse", "type")
_CATALOG_TYPES: Final = ("sql", "rest")


def job_of_parameter(value: object, places: Places, environment: Mapping[str, str] = os.environ) -> Job:
    """Return the table that a parameter says.

    Raises:
        UsageError: something in it is unknown, does not fit, or is not allowed.
    """
    if not isinstance(value, dict):
        raise UsageError("must be an object, with stream or queue, and to")
    words: dict[str, Any] = dict(value)
    if "storage" in words:
        raise UsageError(f"storage: the options of an object store, and its users, are set {ENVIRONMENT}")
    for name, each in words.items():
        _check_size(name, each)
    schema = words.pop("schema", None)
    catalogs: dict[str, Any] = {}
    given = words.get("catalog")
    if given is not None:
        catalog = _catalog(given, places)
        name = catalog.pop("name", DEFAULT_CATALOG)
        catalogs[name], words["catalog"] = catalog, name
    registry = words.get("registry")
    if isinstance(registry, str):
        _check_registry(registry, places)
    elif registry is None and words.get("body") in TYPED and REGISTRY in environment:
        words["registry"] = environment[REGISTRY]
    if schema is not None:
        words["schema"] = "given"  # whether it goes together with the rest
    job = job_of(words, catalogs, Path(), resolves=False)
    _check_target(job, places, has_catalog=given is not None)
    _check_numbers(job)
    return job if schema is None else replace(job, schema=_schema(schema, job, places))


def _check_size(name: str, value: object) -> None:
    """Refuse words that would make an answer long, or the search for the nearest word slow."""
    if len(name) > NAME_MAX:
        raise UsageError(f"there is no setting with a name of {len(name)} characters")
    if isinstance(value, str) and (len(value) > TEXT_MAX or not value.isprintable()):
        raise UsageError(f"{name}: must be a text of {TEXT_MAX} printable characters at most")
    if isinstance(value, dict | list) and name not in _LARGE:
        raise UsageError(f"{name}: must not be {'an object' if isinstance(value, dict) else 'a list'}")


def check_links(job: Job, places: Places) -> None:
    """Make sure that the files that the job opens on this machine are where their paths say.

    Raises:
        UsageError: it is not.
    """
    texts = [job.to] if job.format == DELTA else [job.catalog.get("uri", ""), job.catalog.get("warehouse", "")]
    if isinstance(job.schema, Path):
        texts.append(str(job.schema))
    for text in texts:
        places.check_links(text)


def _catalog(given: object, places: Places) -> dict[str, str]:
    """Return the properties of a catalogue that is allowed.

    Raises:
        UsageError: it is not.
    """
    if isinstance(given, str) and given and "://" not in given:
        places.check_catalog(given)
        return {"name": given}
    if isinstance(given, str):
        found = catalog_of(given, None, {})
    elif isinstance(given, dict):
        for key, text in given.items():
            if key not in _CATALOG_KEYS:
                raise UsageError(
                    f"catalog: {key[:NAME_MAX]!r} is not for a parameter: it has {', '.join(_CATALOG_KEYS)}. "
                    f"Credentials and whatever else it needs are those {ENVIRONMENT}, as PYICEBERG_CATALOG__NAME__…"
                )
            if not isinstance(text, str) or not text or len(text) > TEXT_MAX or not text.isprintable():
                raise UsageError(f"catalog: {key} must be a text of {TEXT_MAX} printable characters at most")
        if "uri" not in given:
            raise UsageError("catalog: uri is missing")
        found = {**catalog_of(given["uri"], given.get("warehouse"), {}), **given}
    else:
        raise UsageError("catalog: must be a URL, a name, or an object with uri and warehouse")
    found.pop("name", None)
    if found.get("type") not in _CATALOG_TYPES:
        raise UsageError(
            f"catalog: type must be one of {', '.join(_CATALOG_TYPES)}; others can be configured and named"
        )
    places.check("catalog", found["uri"])
    warehouse = found.get("warehouse")
    if found["type"] == "sql" and warehouse is None:
        raise UsageError('catalog: one in SQL needs a warehouse: {"uri": …, "warehouse": "file:///… or s3://…"}')
    if warehouse is not None and (found["type"] == "sql" or "://" in warehouse or maybe_path(warehouse) is not None):
        places.check("warehouse", warehouse)
    return found


def _check_registry(registry: str, places: Places) -> None:
    if "@" in registry.partition("://")[2].partition("/")[0]:
        raise UsageError(f"registry: a login is not for a parameter, but {ENVIRONMENT} ({REGISTRY})")
    places.check("registry", registry)


def _check_target(job: Job, places: Places, *, has_catalog: bool) -> None:
    if job.format == DELTA:
        places.check("to", job.to, strictly=True)
        return
    if not has_catalog:
        places.check("to", job.catalog["warehouse"])  # the directory


def _check_numbers(job: Job) -> None:
    least, most = INTERVAL_S
    if not least <= job.interval_s <= most:
        raise UsageError(f"interval: must be from {least * 1000:g}ms to {most / 86400:g}d")
    if job.table.keep_s > KEEP_MAX_S:
        raise UsageError(f"keep: must be {KEEP_MAX_S / 86400:g}d at most")
    if job.limits.rows > ROWS_MAX:
        raise UsageError(f"max_rows: must be {ROWS_MAX} at most")
    for what, size in (("max_bytes", job.limits.bytes), ("target_file_size", job.table.target_file_bytes)):
        if size > BYTES_MAX:
            raise UsageError(f"{what}: must be {BYTES_MAX >> 20}MiB at most")
    fewest, many = COMPACT_FILES
    if not fewest <= job.table.compact_files <= many:
        raise UsageError(f"compact_files: must be from {fewest} to {many}")
    if job.columns is not None and (len(job.columns) > COLUMNS_MAX or any(len(each) > 255 for each in job.columns)):
        raise UsageError(f"columns: must be {COLUMNS_MAX} names at most")


def _schema(given: object, job: Job, places: Places) -> Path | str:
    if isinstance(given, str):
        if not given.startswith("/"):
            raise UsageError("schema: must be JSON itself, as an object, or the absolute path of a file")
        places.check("schema", given)
        return Path(given)
    if not isinstance(given, dict) or job.body == PROTOBUF:
        raise UsageError(
            "schema: of protobuf must be the absolute path of a file"
            if job.body == PROTOBUF
            else "schema: must be an object, or the absolute path of a file"
        )
    text = json.dumps(given)
    if len(text) > SCHEMA_MAX:
        raise UsageError(f"schema: must be {SCHEMA_MAX >> 10}KiB at most")
    return text
