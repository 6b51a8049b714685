"""The options of a reader, checked once and before anything is read.

1. An unknown option is an error, and so is one without a meaning for this kind of reading: a misspelt
   ``startingOffsets`` would otherwise read something else, silently. Names are compared without case, as in Spark.
2. The check needs the options only: it reads no file but `passwordFile`, and does not ask the broker.
3. Passwords are not in any message or `repr`.

The names and meanings are those of Spark's Kafka source where it has them, the words for offsets also RabbitMQ's.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from warren.spark_bridge.bridge_errors import BridgeError
from warren.spark_bridge.control import BrokerClient
from warren.spark_bridge.option_hints import NO_TABLES, maybe_hint
from warren.spark_bridge.schema import (
    BINARY,
    BODY_FORMATS,
    COLUMN_NAMES,
    HEADERS_FORMATS,
    MAP,
    PROPERTY_COLUMNS,
    column,
)

DEFAULT_URI: Final = "amqp://guest:guest@localhost:5672/"
HTTP_PORT: Final = 15672
HTTPS_PORT: Final = 15671

LOG: Final = "log"
SNAPSHOT: Final = "snapshot"
DRAIN: Final = "drain"
MODES: Final = (LOG, SNAPSHOT, DRAIN)

AUTO: Final = "auto"
NEVER: Final = "never"
ALWAYS: Final = "always"
LOCAL_FILES: Final = (AUTO, NEVER, ALWAYS)
NODES: Final = (AUTO, NEVER)

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

_PLACE_OPTIONS: Final = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
)
_TRIGGER_OPTIONS: Final = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "storeOffsets",
)
_SNAPSHOT_OPTIONS: Final = ("snapshotTtl", "snapshotUnacked")
MAX_ROWS: Final = 1_000_000
DRAIN_BYTES: Final = 256 << 20
PARTITION_BYTES: Final = 64 << 20
TOKEN_TTL_MAX_S: Final = 24 * 3600
CLAIM_TTL_MAX_S: Final = 30 * 24 * 3600
_CONSUMER_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,200}")
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d|D)?")
_DURATION_S: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "D": 86400}
_AGE = re.compile(r"\d+(Y|M|D|h|m|s)")
_SIZE = re.compile(r"(\d+)\s*(b|k|kb|m|mb|g|gb)?", re.IGNORECASE)
_SIZE_BYTES: Final = {"b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}


class OptionError(BridgeError, ValueError):
    """An impossible request of a user; the text names the option."""


class Place(NamedTuple):
    """A place in a stream: `word` (first, last, next or an age), a number, or a time in ms since the epoch."""

    word: str | None = None
    offset: int | None = None
    time_ms: int | None = None

    @property
    def is_next(self) -> bool:
        return self.word == "next"


FIRST: Final = Place(word="first")
NEXT: Final = Place(word="next")
_WORDS: Final = {
    "earliest": FIRST,
    "first": FIRST,
    "latest": NEXT,
    "next": NEXT,
    "last": Place(word="last"),
}


@dataclass(frozen=True)
class Places:
    """A place in every stream: one for all, or one for each queue, or for each partition of a super stream."""

    option: str  # where this was said
    everywhere: Place | None = None
    by_queue: Mapping[str, Place | Mapping[int, Place]] = field(default_factory=dict)

    def of(self, queue: str, partition: int) -> Place:
        """Return the place in partition `partition` of `queue`.

        Raises:
            OptionError: nothing was said about it.
        """
        if self.everywhere is not None:
            return self.everywhere
        found = self.by_queue.get(queue)
        if isinstance(found, Mapping):
            found = found.get(partition)
            if found is None:
                raise OptionError(f"option {self.option}: says nothing of partition {partition} of queue {queue!r}")
        if found is None:
            raise OptionError(f"option {self.option}: says nothing of queue {queue!r}")
        return found

    def __str__(self) -> str:
        if self.everywhere is None or self.everywhere.word is None:
            return "given"
        return {"first": EARLIEST, "next": LATEST}.get(self.everywhere.word, self.everywhere.word)


@dataclass(frozen=True)
class BrokerAddress:
    """The broker's address and the login. `password` None: it is in `password_file`, or is the default one."""

    url: str
    vhost: str = "/"
    username: str = "guest"
    password: str | None = field(default="guest", repr=False)
    password_file: str | None = None
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    insecure: bool = False
    connect_timeout_s: float = 10.0
    timeout_s: float = 60.0
    retries: int = 5
    backoff_s: float = 0.2
    token: str | None = field(default=None, repr=False)  # of the listener of data alone, instead of user and password

    def with_password(self) -> BrokerAddress:
        """Return the same with the password out of its file, which is only where the driver runs.

        Raises:
            OptionError: it cannot be read.
        """
        if self.password_file is None:
            return self
        try:
            password = Path(self.password_file).read_text().rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise OptionError(f"option passwordFile: {self.password_file}: {error}") from None
        return replace(self, password=password, password_file=None)

    def client(self) -> BrokerClient:
        """Return a client, which connects when it is used."""
        connection = self.with_password()
        return BrokerClient(
            connection.url,
            connection.username,
            connection.password,
            vhost=connection.vhost,
            cacert=connection.ca_file,
            certificate=connection.certificate_file,
            key=connection.key_file,
            insecure=connection.insecure,
            token=connection.token,
            connect_timeout_s=connection.connect_timeout_s,
            timeout_s=connection.timeout_s,
            retries=connection.retries,
            backoff_s=connection.backoff_s,
        )


@dataclass(frozen=True)
class ReadOptions:
    """All options of a reader. `mode` None: as it suits the type of each queue."""

    connection: BrokerAddress
    queues: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None  # partitions of super streams
    mode: str | None = None
    start: Places | None = None  # None: not given
    end: Places | None = None
    is_late_start_an_error: bool = True  # a starting time after the last message
    snapshot_ttl_s: int = 3600
    snapshot_unacked: bool = False
    max_rows: int = MAX_ROWS  # of a trigger
    max_bytes: int | None = None
    min_rows: int | None = None
    max_delay_s: float = 900.0
    min_partitions: int | None = None
    max_partition_rows: int | None = None
    partition_bytes: int = PARTITION_BYTES
    columns: tuple[str, ...] = COLUMN_NAMES
    headers_format: str = MAP
    body_as: str = BINARY
    fail_on_data_loss: bool = True
    consumer_name: str | None = None
    claim_ttl_s: int | None = None  # None: claims are kept without a limit
    counts_failures: bool = False  # a batch that is repeated counts as a failed delivery of its messages
    store_offsets: bool = True
    local_files: str = AUTO
    nodes: str = AUTO
    data_port: str = AUTO  # whether tasks read with a token, from the listener of data alone
    data_url: str | None = None
    token_ttl_s: int = 3600
    pushdown: bool | None = None

    def with_password(self) -> ReadOptions:
        """Return the same with the password out of its file; see `BrokerAddress.with_password`."""
        return replace(self, connection=self.connection.with_password())

    def for_tasks(self) -> ReadOptions:
        """Return the options for executors: with dataPort always without a password."""
        if self.data_port != ALWAYS:
            return self
        return replace(self, connection=replace(self.connection, password="", password_file=None))

    def placed(self) -> str | None:
        """Return the option that gives a beginning or an end, if one is set."""
        given = self.start or self.end
        return given.option if given is not None else None


def check_names(options: Mapping[str, str], known: Iterable[str]) -> None:
    """Make sure that each option is one of `known`.

    Raises:
        OptionError: an option is unknown; it names the equivalent here, or the nearest name.
    """
    names = {name.lower(): name for name in known}
    for name in options:
        if name.lower() in names:
            continue
        if name.lower() == "path":
            raise OptionError('unknown option path: name the queue, as in option("subscribe", "orders")')
        hint = maybe_hint(name)
        if hint is None:
            near = get_close_matches(name.lower(), names, 1)
            hint = f"did you mean {names[near[0]]}?" if near else None
        raise OptionError(f"unknown option {name}{f': {hint}' if hint else ''}")


def read_options(
    options: Mapping[str, str], *, streaming: bool | None = None, environment: Mapping[str, str] | None = None
) -> ReadOptions:
    """Return the reading options in `options`; `streaming`: the purpose, None when that is not known yet.

    Raises:
        OptionError: they say nothing that can be done.
    """
    check_names(options, (*CONNECTION_OPTIONS, *READ_OPTIONS))
    given = Given(options)
    queues, pattern, assigned = _subscription(given)
    mode = given.word("mode", MODES)
    start, end = _places(given)
    made = ReadOptions(
        connection=connection_of(options, environment),
        queues=queues,
        pattern=pattern,
        assigned=assigned,
        mode=mode,
        start=start,
        end=end,
        is_late_start_an_error=given.word("startingOffsetsByTimestampStrategy", ("error", "latest")) != "latest",
        columns=_columns(given),
        **{"max_bytes": DRAIN_BYTES if mode == DRAIN else None} | given.fields(_READ),
    )
    _check_together(given, made)
    if streaming is not None:
        _check_for(given, made, streaming)
    return made


def connection_of(options: Mapping[str, str], environment: Mapping[str, str] | None = None) -> BrokerAddress:
    """Return the place of the broker, from `options` and, where they say nothing, AMQP_URI and WARREN_MANAGEMENT_URL.

    Raises:
        OptionError: they do not give a valid place.
    """
    environment = os.environ if environment is None else environment
    given = Given(options)
    said = given.text("uri")
    uri = said or environment.get("AMQP_URI") or DEFAULT_URI
    source = "option uri" if said else "AMQP_URI"
    scheme, _, _ = uri.partition("://")
    if scheme.lower() not in ("amqp", "amqps"):
        raise OptionError(f"{source}: must begin with amqp:// or amqps://")
    try:
        parts = urlsplit(uri)
        parts.port  # noqa: B018 - looking at it is what finds it wrong
    except ValueError:
        raise OptionError(f"{source}: is not an AMQP URI") from None
    asked = dict(parse_qsl(parts.query))
    secure = parts.scheme == "amqps"
    host = given.text("host") or parts.hostname or "localhost"
    shown_host = f"[{host}]" if ":" in host else host
    # A URI of one broker beside the management URL of another: the source nearer to the user wins, both or neither.
    url = given.text("managementUrl")
    if url is None and not said and given.text("host") is None:
        url = environment.get("WARREN_MANAGEMENT_URL")
    if url is None:
        url = f"https://{shown_host}:{HTTPS_PORT}" if secure else f"http://{shown_host}:{HTTP_PORT}"
    path = parts.path
    password_file = given.text("passwordFile")
    password = given.text("password")
    if password is not None and password_file is not None:
        raise OptionError("option passwordFile: there is a password as well")
    if password is None and password_file is None:
        password = unquote(parts.password) if parts.password is not None else "guest"
    made = BrokerAddress(
        url=url,
        vhost=given.text("vhost") or (unquote(path[1:]) if len(path) > 1 else "/"),
        username=given.text("username") or unquote(parts.username or "guest"),
        password=password,
        password_file=password_file,
        ca_file=given.text("tls.caFile") or asked.get("cacertfile"),
        certificate_file=given.text("tls.certFile") or asked.get("certfile"),
        key_file=given.text("tls.keyFile") or asked.get("keyfile"),
        insecure=given.flag("tls.insecure", asked.get("verify") == "verify_none"),
        **given.fields(_CONNECTION),
    )
    try:
        BrokerClient(made.url)
    except ValueError as error:
        raise OptionError(f"option managementUrl: {error}") from None
    return made


class Given:
    """Options by name, without case; each method returns one, checked. An empty text counts as missing."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): str(value) for name, value in options.items()}

    def text(self, name: str) -> str | None:
        """Return the text of an option."""
        return self._options.get(name.lower()) or None

    def has(self, name: str) -> bool:
        """Tell whether an option is given."""
        return self.text(name) is not None

    def word(self, name: str, words: tuple[str, ...]) -> str | None:
        """Return an option that is one of `words`."""
        text = self.text(name)
        if text is None:
            return None
        if text.lower() not in words:
            raise OptionError(f"option {name}: must be one of {', '.join(words)}, not {text!r}")
        return text.lower()

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an option that is true or false."""
        word = self.word(name, ("true", "false"))
        return default if word is None else word == "true"

    def number(self, name: str, *, least: int) -> int:
        """Return an option that is a whole number, `least` at least."""
        text = self.text(name) or ""
        try:
            number = int(text)
        except ValueError:
            raise OptionError(f"option {name}: must be a number, not {text!r}") from None
        if not least <= number < 1 << 62:
            raise OptionError(f"option {name}: must be {least} at least, not {text}")
        return number

    def size(self, name: str) -> int:
        """Return an option in bytes: a number, optionally followed by k, m or g."""
        text = self.text(name) or ""
        found = _SIZE.fullmatch(text.strip())
        size = int(found[1]) * _SIZE_BYTES[(found[2] or "b").lower()] if found else 0
        if not 0 < size < 1 << 62:
            raise OptionError(f"option {name}: must be a number of bytes such as 1048576 or 64m, not {text!r}")
        return size

    def duration_s(self, name: str) -> float:
        """Return an option that is a time such as 30s, 15m or, without a unit, 5000 ms; in seconds."""
        text = self.text(name) or ""
        found = _DURATION.fullmatch(text.strip())
        if found is None:
            raise OptionError(f"option {name}: must be a time such as 500ms, 30s or 15m, not {text!r}")
        return int(found[1]) * _DURATION_S[found[2] or "ms"]

    def json(self, name: str) -> dict[str, Any] | None:
        """Return an option that is a JSON object."""
        text = self.text(name)
        if text is None:
            return None
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found:
            raise OptionError(f'option {name}: must be a JSON object such as {{"orders": 23}}, not {text!r}')
        return found

    def fields(self, rows: Mapping[str, Row]) -> dict[str, Any]:
        """Return the fields of the options in `rows` that are given."""
        return {field_name: read(self, name) for name, (field_name, read) in rows.items() if self.has(name)}


Row = tuple[str, Callable[[Given, str], Any]]  # the field that an option is, and how it is read


def word_of(*words: str) -> Callable[[Given, str], str | None]:
    """Return the reader of an option that is one of `words`."""
    return lambda given, name: given.word(name, words)


def number_from(least: int) -> Callable[[Given, str], int]:
    """Return the reader of a number, `least` at least."""
    return lambda given, name: given.number(name, least=least)


def _data_url(given: Given, name: str) -> str:
    text = given.text(name) or ""
    parts = urlsplit(text)
    try:
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and bool(parts.port) and "@" not in text
    except ValueError:
        is_url = False
    if not is_url:
        raise OptionError(f"option dataUrl: must be http://HOST:PORT or https://HOST:PORT, not {text!r}")
    return text


def _token_ttl_s(given: Given, name: str) -> int:
    seconds = round(given.duration_s(name))
    if not 60 <= seconds <= TOKEN_TTL_MAX_S:
        raise OptionError("option tokenTtl: must be from 1m to 24h")
    return seconds


def _subscription(given: Given) -> tuple[tuple[str, ...], str | None, Mapping[str, tuple[int, ...]] | None]:
    """Return the queues, or the pattern of their names, or which partitions of which."""
    names = [name for name in ("subscribe", "queue", "subscribePattern", "assign") if given.has(name)]
    if len(names) != 1:
        raise OptionError(
            "give one of the options subscribe, queue, subscribePattern and assign"
            + (f", not {', '.join(names)}" if names else f"; {NO_TABLES}")
        )
    text = given.text(names[0]) or ""
    if names[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"option subscribePattern: {text!r} is not a regular expression: {error}") from None
        return (), text, None
    if names[0] == "assign":
        assigned: dict[str, tuple[int, ...]] = {}
        for queue, numbers in (given.json("assign") or {}).items():
            if not (isinstance(numbers, list) and numbers and all(_is_number(number) for number in numbers)):
                raise OptionError(f"option assign: queue {queue!r} needs a list of partition numbers such as [0, 1]")
            assigned[queue] = tuple(sorted(set(numbers)))
        return tuple(assigned), None, assigned
    queues = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not queues:
        raise OptionError(f"option {names[0]}: no queue is named")
    return queues, None, None


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _places(given: Given) -> tuple[Places | None, Places | None]:
    """Return the beginning and the end, None where it is not given."""
    made = []
    for which in ("starting", "ending"):
        options = (f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp")
        names = [name for name in options if given.has(name)]
        if len(names) > 1:
            raise OptionError(f"options {' and '.join(names)}: only one of them can be")
        made.append(_one_place(given, names[0]) if names else None)
    if given.has("startingOffsetsByTimestampStrategy") and (made[0] is None or made[0].option == "startingOffsets"):
        raise OptionError("option startingOffsetsByTimestampStrategy: there is no starting time")
    return made[0], made[1]


def _one_place(given: Given, name: str) -> Places:
    text = (given.text(name) or "").strip()
    if name.endswith("OffsetsByTimestamp"):
        return Places(name, by_queue=_by_queue(given, name, _time))
    if name.endswith("Timestamp"):
        return Places(name, everywhere=_time(name, text))
    if text.lower() in _WORDS:
        return Places(name, everywhere=_WORDS[text.lower()])
    if text.isdecimal():
        return Places(name, everywhere=Place(offset=int(text)))
    if _AGE.fullmatch(text):
        return Places(name, everywhere=Place(word=text))
    if text.startswith("{"):
        return Places(name, by_queue=_by_queue(given, name, _offset))
    raise OptionError(f"option {name}: must be earliest, latest, an offset, an age such as 1h, or JSON, not {text!r}")


def _by_queue(given: Given, name: str, make: Callable[[str, Any], Place]) -> dict[str, Place | Mapping[int, Place]]:
    found: dict[str, Place | Mapping[int, Place]] = {}
    for queue, value in (given.json(name) or {}).items():
        if isinstance(value, dict):
            if not value or not all(number.isdecimal() for number in value):
                raise OptionError(f'option {name}: queue {queue!r} needs numbers of partitions such as {{"0": 23}}')
            found[queue] = {int(number): make(name, each) for number, each in value.items()}
        else:
            found[queue] = make(name, value)
    return found


def _offset(name: str, value: Any) -> Place:
    """Return the place of an offset in JSON: -2 is the earliest, -1 the latest."""
    if value in (-2, -1) and not isinstance(value, bool):
        return FIRST if value == -2 else NEXT
    if isinstance(value, str) and value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if not _is_number(value):
        raise OptionError(f"option {name}: must be an offset, -2 (earliest) or -1 (latest), not {value!r}")
    return Place(offset=value)


def _time(name: str, value: Any) -> Place:
    """Return the place of a time: ms since the epoch, or ISO 8601, which means UTC when it says nothing else."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if _is_number(value):
        return Place(time_ms=value)
    try:
        when = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise OptionError(
            f"option {name}: must be ms since 1970 or such as 2026-11-22T08:00:00Z, not {value!r}"
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return Place(time_ms=max(0, round(when.timestamp() * 1000)))


def _columns(given: Given) -> tuple[str, ...]:
    """Return the columns of the default schema."""
    text = given.text("columns")
    if text is not None:
        for name in ("includeHeaders", "includeProperties"):
            if given.has(name):
                raise OptionError(f"options columns and {name}: only one of them can be")
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        try:
            for name in names:
                column(name)
        except ValueError as error:
            raise OptionError(f"option columns: {error}") from None
        if not names:
            raise OptionError("option columns: no column is named")
        return names
    left_out: set[str] = set()
    if not given.flag("includeProperties", True):
        left_out.update(PROPERTY_COLUMNS)
    if not given.flag("includeHeaders", True):
        left_out.add("headers")
    return tuple(name for name in COLUMN_NAMES if name not in left_out)


def _consumer_name(given: Given, name: str) -> str:
    text = given.text(name) or ""
    if not _CONSUMER_NAME.fullmatch(text):
        raise OptionError("option consumerName: must have 1 to 200 characters")
    return text


def _claim_ttl_s(given: Given, name: str) -> int:
    seconds = math.ceil(given.duration_s(name))
    if not 1 <= seconds <= CLAIM_TTL_MAX_S:
        raise OptionError(f"option claimTtl: must be a time from 1s to 30d, not {given.text(name)!r}")
    return seconds


def _milliseconds(least: int) -> Callable[[Given, str], float]:
    return lambda given, name: given.number(name, least=least) / 1000


_CONNECTION: Final[Mapping[str, Row]] = {
    "connect.timeoutMs": ("connect_timeout_s", _milliseconds(1)),
    "poll.timeoutMs": ("timeout_s", _milliseconds(1)),
    "fetch.retries": ("retries", number_from(0)),
    "fetch.backoffMs": ("backoff_s", _milliseconds(0)),
}
CONNECTION_OPTIONS: Final = (
    *("uri", "managementUrl", "host", "vhost", "username", "password", "passwordFile"),
    *("tls.caFile", "tls.certFile", "tls.keyFile", "tls.insecure", *_CONNECTION),
)
_READ: Final[Mapping[str, Row]] = {
    "snapshotTtl": ("snapshot_ttl_s", lambda given, name: max(1, round(given.duration_s(name)))),
    "snapshotUnacked": ("snapshot_unacked", Given.flag),
    "maxOffsetsPerTrigger": ("max_rows", number_from(1)),
    "maxBytesPerTrigger": ("max_bytes", Given.size),
    "minOffsetsPerTrigger": ("min_rows", number_from(1)),
    "maxTriggerDelay": ("max_delay_s", Given.duration_s),
    "minPartitions": ("min_partitions", number_from(1)),
    "maxRecordsPerPartition": ("max_partition_rows", number_from(1)),
    "targetPartitionBytes": ("partition_bytes", Given.size),
    "headersFormat": ("headers_format", word_of(*HEADERS_FORMATS)),
    "bodyAs": ("body_as", word_of(*BODY_FORMATS)),
    "failOnDataLoss": ("fail_on_data_loss", Given.flag),
    "consumerName": ("consumer_name", _consumer_name),
    "claimTtl": ("claim_ttl_s", _claim_ttl_s),
    "failedBatches": ("counts_failures", lambda given, name: given.word(name, ("retry", "count")) == "count"),
    "storeOffsets": ("store_offsets", Given.flag),
    "localFiles": ("local_files", word_of(*LOCAL_FILES)),
    "nodes": ("nodes", word_of(*NODES)),
    "dataPort": ("data_port", word_of(AUTO, NEVER, ALWAYS)),
    "dataUrl": ("data_url", _data_url),
    "tokenTtl": ("token_ttl_s", _token_ttl_s),
    "pushdown": (
        "pushdown",
        lambda given, name: {"auto": None, "true": True}.get(given.word(name, ("auto", "true", "false")) or "", False),
    ),
}
READ_OPTIONS: Final = (
    *("subscribe", "queue", "subscribePattern", "assign", "mode", *_PLACE_OPTIONS),
    *("columns", "includeHeaders", "includeProperties", *_READ),
)


def _check_together(given: Given, made: ReadOptions) -> None:
    """Refuse options that mean nothing beside others."""
    if made.mode in (SNAPSHOT, DRAIN):
        for name in (*_PLACE_OPTIONS, "assign"):
            if given.has(name):
                raise OptionError(f"option {name}: has no effect in mode {made.mode}")
    if made.mode in (LOG, DRAIN):
        for name in _SNAPSHOT_OPTIONS:
            if given.has(name):
                raise OptionError(f"option {name}: has no effect in mode {made.mode}")
    for name in ("claimTtl", "failedBatches"):
        if made.mode != DRAIN and given.has(name):
            raise OptionError(f"option {name}: is for mode drain only")
    if made.mode == DRAIN:
        if made.consumer_name is None:
            raise OptionError("option consumerName: mode drain needs one, different for each query")
        if made.pattern is not None:
            raise OptionError("option subscribePattern: mode drain empties queues, so name them with subscribe")
        if made.min_rows is not None:
            raise OptionError("option minOffsetsPerTrigger: has no effect in mode drain")
    if made.end is not None and made.start is not None and made.start.everywhere and made.end.everywhere:
        low, high = made.start.everywhere, made.end.everywhere
        for before, after in ((low.offset, high.offset), (low.time_ms, high.time_ms)):
            if before is not None and after is not None and before > after:
                raise OptionError(f"options {made.start.option} and {made.end.option}: the end is before the beginning")
    if made.min_rows is not None and made.min_rows > made.max_rows:
        raise OptionError("option minOffsetsPerTrigger: is more than maxOffsetsPerTrigger")
    if made.end is not None and made.end.everywhere == FIRST:
        raise OptionError(f"option {made.end.option}: a batch that ends at the earliest offset has no rows")
    if made.min_rows is None and given.has("maxTriggerDelay"):
        raise OptionError("option maxTriggerDelay: needs minOffsetsPerTrigger")
    for places in (made.start, made.end):
        if places is not None and made.pattern is None:
            others = sorted(set(places.by_queue) - set(made.queues))
            if others:
                raise OptionError(f"option {places.option}: queue {others[0]!r} is not read")


def _check_for(given: Given, made: ReadOptions, streaming: bool) -> None:
    """Refuse options that only a batch, or only a stream, can have."""
    if streaming:
        if made.mode == SNAPSHOT:
            raise OptionError("option mode: a snapshot does not change, so only a batch can read it (spark.read)")
        if made.end is not None:
            raise OptionError(f"option {made.end.option}: is for batches only")
        for name in _SNAPSHOT_OPTIONS:
            if given.has(name):
                raise OptionError(f"option {name}: is for batches only")
        return
    for name in _TRIGGER_OPTIONS:
        if given.has(name):
            raise OptionError(f"option {name}: is for streaming queries only")
    if made.mode == DRAIN:
        raise OptionError(
            "option mode: nothing tells a batch that its rows are safe, so only a stream can drain: "
            "use spark.readStream, with trigger(availableNow=True) to end when the queue is empty"
        )
    if made.start is not None:
        places = [made.start.everywhere] if made.start.everywhere else _flat(made.start)
        if any(place is not None and place.is_next for place in places):
            raise OptionError(f"option {made.start.option}: a batch cannot begin at the latest offset")


def _flat(places: Places) -> list[Place]:
    found: list[Place] = []
    for each in places.by_queue.values():
        found += [each] if isinstance(each, Place) else list(each.values())
    return found
