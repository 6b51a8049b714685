"""Every operation of the OpenAPI document with generated parameters and bodies, valid and not: none fails inside.

Names in paths are those of things that exist, or generated ones. Before each operation the test creates again what
operations change or delete. The requests depend only on the seed, which is printed:

    WARREN_TEST_SCHEMATHESIS_SEED=7 WARREN_TEST_SCHEMATHESIS_EXAMPLES=100
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import pika
import pytest
from broker_process import WarrenProcess
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pika.exceptions import AMQPError

from .client import Api, connect, q

schemathesis = pytest.importorskip("schemathesis", reason="it is part of the extra `dev`")

SEED: Final = int(os.environ.get("WARREN_TEST_SCHEMATHESIS_SEED", "20221122"))
EXAMPLES: Final = int(os.environ.get("WARREN_TEST_SCHEMATHESIS_EXAMPLES", "3"))
VHOST: Final = "generated"
# Existing objects. A connection and its channel have names of the moment.
NAMES: Final = {
    "vhost": VHOST,
    "queue": "q",
    "exchange": "e",
    "source": "e",
    "destination": "q",
    "user": "someone",
    "component": "a-component",
    "name": "a-name",
    "limit": "max-connections",
    "lane": "delayed",
    "props": "k",
    "number": "1",
    "consumer": "eater",
}
# A check that finds something wrong says so with 503.
CHECKS: Final = ("/api/health/checks/", "/health")


class Target:
    """A broker with one of everything."""

    def __init__(self, process: WarrenProcess) -> None:
        self.process = process
        self.api = Api(process.http_port)
        self.v = q(VHOST)
        self.names = dict(NAMES)
        self._connection: pika.BlockingConnection | None = None
        self._channel: Any = None

    def prepare(self) -> None:
        """Make again what is missing."""
        api = self.api
        api.put(f"/vhosts/{self.v}")
        api.put("/users/someone", {"password": "x", "tags": "management"})
        for user in ("guest", "someone"):
            api.put(f"/permissions/{self.v}/{user}", {"configure": ".*", "write": ".*", "read": ".*"})
        if self.api.ask("GET", f"/queues/{self.v}/q").status == 404:
            api.put(f"/queues/{self.v}/q", {"durable": True})
            self._publish()
        if self.api.ask("GET", f"/exchanges/{self.v}/e").status == 404:
            api.put(f"/exchanges/{self.v}/e", {"type": "topic"})
        api.post(f"/bindings/{self.v}/e/e/q/q", {"routing_key": "k"})
        api.put(f"/policies/{self.v}/a-name", {"pattern": "^none$", "definition": {"max-length": 10}})
        api.put(f"/operator-policies/{self.v}/a-name", {"pattern": "^none$", "definition": {"max-length": 10}})
        self._connect()

    def _publish(self) -> None:
        for delay in (None, 3_600_000):
            properties = {} if delay is None else {"headers": {"x-delay": delay}}
            message = {"properties": properties, "routing_key": "q", "payload": "text", "payload_encoding": "string"}
            self.api.post(f"/exchanges/{self.v}/amq.default/publish", message)

    def _connect(self) -> None:
        if self._connection is None or not self._alive(self._connection):
            self._connection = connect(self.process.amqp_port, VHOST)
            self._channel = self._connection.channel()
            # One that was closed is listed until the broker has read the answer of its client.
            (known,) = self.api.eventually("/connections?columns=name,vhost", lambda rows: len(rows) == 1)
            self.names["connection"] = known["name"]
            self.names["channel"] = known["name"] + " (1)"
        if "eater" not in self._channel.consumer_tags:
            self._channel.basic_consume("q", lambda *_: None, consumer_tag="eater")

    @staticmethod
    def _alive(connection: pika.BlockingConnection) -> bool:
        try:
            connection.process_data_events(0)
        except AMQPError:
            return False
        return bool(connection.is_open)

    def close(self) -> None:
        """Close the connections."""
        if self._connection is not None and self._alive(self._connection):
            self._connection.close()
        self.api.close()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with WarrenProcess(tmp_path_factory.mktemp("broker")) as process:
        found = Target(process)
        yield found
        found.close()


@pytest.mark.long
def test_no_operation_fails_inside_whatever_it_is_asked(target: Target) -> None:
    print(f"WARREN_TEST_SCHEMATHESIS_SEED={SEED} WARREN_TEST_SCHEMATHESIS_EXAMPLES={EXAMPLES}")
    document = target.api.get("/openapi.json")
    schema = schemathesis.openapi.from_dict(document)
    schema.validate()
    base = f"http://127.0.0.1:{target.process.http_port}"
    answered: set[str] = set()
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 150
    for operation in operations:
        target.prepare()
        try_out(operation, base, target, answered)
    assert len(answered) > 100, "of most operations one request at least was good"
    assert target.process.health() == 200
    assert target.api.get("/warren/reactor")["crashes"] == 0


def guards(case: Any) -> bool:
    """Tell whether a request would delete its own user."""
    return bool(case.path_parameters) and case.path_parameters.get("user") == "guest"


def try_out(operation: Any, base: str, target: Target, answered: set[str]) -> None:
    """Make generated requests of one operation."""
    modes = schemathesis.GenerationMode

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=st.one_of([operation.as_strategy(generation_mode=mode) for mode in (modes.POSITIVE, modes.NEGATIVE)]),
        known=st.sampled_from((True, True, True, False)),
    )
    def ask(case: Any, known: bool) -> None:
        if known:
            for name in case.path_parameters or {}:
                case.path_parameters[name] = target.names.get(name, case.path_parameters[name])
        if guards(case):
            return
        answer = case.call(base_url=base, headers=target.api.headers, timeout=30)
        allowed = answer.status_code == 503 and operation.path.startswith(CHECKS)
        assert answer.status_code < 500 or allowed, f"{case.as_curl_command()}\n{answer.status_code} {answer.text}"
        if answer.status_code < 300:
            answered.add(operation.label)

    ask()
