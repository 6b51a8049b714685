"""Random requests to every route of the management API, well formed, with extreme values in every place.

The operations and the shapes of their bodies are those of the OpenAPI document that the broker serves. Users are an
administrator, who does not touch users and vhosts, and a policymaker. The requirement: a request never gets a 500 and
never kills the process. A 503, which says what is unavailable, is allowed.

``python -m abuse.requests --seed S --requests N``, in tests/, starts a broker for them.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from broker_process import WarrenProcess
from integration.management.client import Api

from . import scene
from .attack_words import VHOST

PREPARE_EVERY: Final = 100
# Requests that would end the attack: users and vhosts of the attack itself, connections of the client.
OUT_OF_BOUNDS: Final = ("/api/users", "/api/vhosts", "/api/permissions", "/api/user-limits", "/api/connections")
NUMBERS: Final = [0, -1, 1, 255, 65536, 1 << 31, 1 << 53, (1 << 63) - 1, 1 << 63, 1 << 64, 10**400, 1.5, -0.0, 1e308]
WORDS: Final = ["all", "true", "1h", "classic", "quorum", "stream", "topic", "none", "ack_requeue_true", "auto"]
ODD: Final = ["", "9" * 4_999, "1e400", "NaN", "-1", "\x00", "\x1b[2J", "\u202e", "x" * 300, "..", "%2f"]
TEXTS: Final = ["q", "q1", "e", "amq.topic", *WORDS, *ODD]
BODIES: Final = [b"", b"[]", b"null", b"{", b"[" * 100_000, b'"' + b"x" * 100_000, b"\xff\xfe", b"1e999"]


class Requests:
    """Draws requests and makes them. `counts` says how they were answered."""

    def __init__(self, process: WarrenProcess, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._choices = random.Random(seed)
        self._admin = Api(process.http_port)
        self._users = [self._admin, self._admin.as_user("mallet", "mallet")]
        document = self._admin.get("/openapi.json")
        self._schemas = document.get("components", {}).get("schemas", {})
        self._operations = [
            (method.upper(), path, operation)
            for path, methods in sorted(document["paths"].items())
            for method, operation in sorted(methods.items())
            if not path.startswith(OUT_OF_BOUNDS)
        ]

    def run(self, count: int) -> None:
        """Make `count` requests.

        Raises:
            AssertionError: a request was answered with 500.
        """
        for number in range(count):
            if number % PREPARE_EVERY == 0:
                self._prepare()
            method, path, operation = self._choices.choice(self._operations)
            target = self._target(path, operation)
            body = self._body(operation)
            answer = self._choices.choice(self._users).ask(method, "//" + target[1:], body)
            self.counts[f"{answer.status}"] += 1
            assert answer.status < 500 or answer.status == 503, (method, target[:300], (body or b"")[:300], answer)

    def close(self) -> None:
        for user in self._users:
            user.close()

    def _prepare(self) -> None:
        """Make again what requests are about."""
        api = self._admin
        for queue, kind in (("q", "classic"), ("q1", "stream")):
            place = f"/queues/{VHOST}/{queue}"
            # Make queues again that a request has paused or filled.
            api.ask("DELETE", place)
            api.ask("PUT", place, {"durable": True, "arguments": {"x-queue-type": kind}})
        api.ask("PUT", f"/exchanges/{VHOST}/e", {"type": "topic"})
        api.ask("POST", f"/bindings/{VHOST}/e/e/q/q", {"routing_key": "k"})
        message = {"properties": {}, "routing_key": "q", "payload": "text", "payload_encoding": "string"}
        api.ask("POST", f"/exchanges/{VHOST}/amq.default/publish", message)

    def _target(self, path: str, operation: Any) -> str:
        query = []
        for parameter in operation.get("parameters", []):
            name = parameter["name"]
            if parameter["in"] == "path":
                value = VHOST if name == "vhost" and self._choices.random() < 0.9 else self._name(name)
                path = path.replace("{" + name + "}", quote(value, safe="") or "%20")
            elif self._choices.random() < 0.6:
                query.append(f"{quote(name)}={quote(str(self._choices.choice([*NUMBERS, *TEXTS])))[:3000]}")
        return path + ("?" + "&".join(query) if query else "")

    def _name(self, name: str) -> str:
        known = {"queue": "q", "exchange": "e", "source": "e", "destination": "q", "stream": "q1", "props": "k"}
        if name in known and self._choices.random() < 0.7:
            return known[name]
        return self._choices.choice(["q", "q1", "e", *TEXTS])[:1000]

    def _body(self, operation: Any) -> bytes | None:
        content = operation.get("requestBody", {}).get("content", {})
        if not content:
            return None
        schema = next(iter(content.values())).get("schema", {})
        if self._choices.random() < 0.1:
            return self._choices.choice(BODIES)
        text = json.dumps(self._fit(schema, 0))
        # JSON of other languages has what Python's own does not write.
        if self._choices.random() < 0.05:
            text = text.replace("1.5", "1e400")
        return text.encode()

    def _fit(self, schema: Any, depth: int) -> Any:
        """Return a value that has something of the shape of `schema`."""
        if "$ref" in schema:
            schema = self._schemas.get(schema["$ref"].rpartition("/")[2], {})
        if self._choices.random() < 0.15 or depth > 4:
            return self._anything(depth)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._fit(self._choices.choice(schema[key]), depth + 1)
        if "enum" in schema:
            return self._choices.choice(schema["enum"])
        match schema.get("type"):
            case "object":
                properties = schema.get("properties", {})
                chosen = [name for name in properties if self._choices.random() < 0.8]
                made = {name: self._fit(properties[name], depth + 1) for name in chosen}
                return made or {self._choices.choice(TEXTS): self._anything(depth + 1)}
            case "array":
                first = [self._fit(each, depth + 1) for each in schema.get("prefixItems", ())]
                items = schema.get("items", {})
                if items is False:
                    return first
                return first + [self._fit(items, depth + 1) for _ in range(self._choices.choice([0, 1, 3, 100]))]
            case "integer" | "number":
                return self._choices.choice(NUMBERS)
            case "boolean":
                return self._choices.random() < 0.5
            case "string":
                return self._choices.choice(TEXTS)
        return self._anything(depth)

    def _anything(self, depth: int) -> Any:
        kinds: Sequence[Any] = [None, True, *NUMBERS[:8], *TEXTS]
        if depth < 4 and self._choices.random() < 0.3:
            if self._choices.random() < 0.5:
                return [self._anything(depth + 1) for _ in range(3)]
            return {self._choices.choice(TEXTS): self._anything(depth + 1) for _ in range(3)}
        return self._choices.choice(kinds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m abuse.requests", description="Ask the API with extreme values.")
    parser.add_argument("--requests", type=int, default=100_000, help="requests to make (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    with (
        tempfile.TemporaryDirectory(prefix="warren-abuse-") as directory,
        scene.broker(Path(directory)) as process,
    ):
        scene.admit(process)
        before_bytes = process.resident_bytes()
        requests = Requests(process, options.seed)
        requests.run(options.requests)
        requests.close()
        print(dict(sorted(requests.counts.items())))
        print(f"resident: {before_bytes >> 20} MiB, then {process.resident_bytes() >> 20} MiB")


if __name__ == "__main__":
    main()
