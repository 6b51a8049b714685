"""The registry of schemas. schema_registry (1) to (3)."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from warren.spark_bridge import schema_registry
from warren.spark_bridge.bridge_errors import CorruptBody, NotAllowed, NotFound, Unreachable, UsageError
from warren.spark_bridge.schema_registry import RegistryClient, SchemaRegistry, taken_apart

from .fake_registry import FakeRegistry


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as made:
        yield made


def client_of(registry: FakeRegistry, retries: int = 2) -> RegistryClient:
    return RegistryClient(SchemaRegistry(registry.url), retries=retries, backoff_s=0.001)


def test_a_schema_is_asked_for_once(registry: FakeRegistry) -> None:
    registry.register(7, "orders-value", '"string"')
    client = client_of(registry)
    for _ in range(3):
        schema = client.maybe_schema(7)
        assert schema is not None and (schema.kind, schema.text) == ("AVRO", '"string"')
        assert client.maybe_schema(8) is None
    assert registry.asked == ["/schemas/ids/7", "/schemas/ids/8"]
    client.close()


def test_an_unknown_number_is_asked_for_again_after_a_while(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_registry, "UNKNOWN_S", 0.0)
    client = client_of(registry)
    assert client.maybe_schema(7) is None
    registry.register(7, "orders-value", '"string"')
    assert client.maybe_schema(7) is not None


def test_what_is_remembered_is_bounded(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "KEPT_MAX", 3)
    client = client_of(registry)
    for number in (1, 2, 3, 1, 4, 1, 2):  # 2 is the one that was not used for longest when 4 comes
        assert client.maybe_schema(number) is None
    assert registry.asked == [f"/schemas/ids/{number}" for number in (1, 2, 3, 4, 2)]
    monkeypatch.setattr(schema_registry, "KEPT_BYTES_MAX", 1000)
    registry.register(9, "large", '"string"' + " " * 1000)
    for _ in range(2):
        assert client.maybe_schema(9) is not None
    assert registry.asked[-2:] == ["/schemas/ids/9"] * 2


def test_the_newest_version_is_always_asked_for_and_versions_are_not(registry: FakeRegistry) -> None:
    registry.register(1, "money", '"int"')
    references = [{"name": "Money", "subject": "money", "version": 1}]
    registry.register(2, "orders/value", '"string"', references=references)
    client = client_of(registry)
    for _ in range(2):
        newest = client.newest("orders/value")
        assert {name: schema.text for name, schema in client.below(newest).items()} == {"Money": '"int"'}
    assert registry.asked == [
        "/subjects/orders%2Fvalue/versions/latest",
        "/subjects/money/versions/1",
        "/subjects/orders%2Fvalue/versions/latest",
    ]
    with pytest.raises(UsageError, match="no version latest of the subject 'nothing'"):
        client.newest("nothing")


def test_schemas_that_refer_to_each_other_end(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        reference = {"name": f"n{(number + 1) % 3}", "subject": f"s{(number + 1) % 3}", "version": 1}
        registry.register(number, f"s{number}", '"string"', references=[reference])
    client = client_of(registry)
    assert sorted(client.below(client.newest("s0"))) == ["n0", "n1", "n2"]
    monkeypatch.setattr(schema_registry, "REFERENCES_MAX", 2)
    with pytest.raises(UsageError, match="more than 2"):
        client.below(client.newest("s0"))


def test_a_registry_that_is_busy_is_asked_again_and_one_that_stays_so_is_an_error(registry: FakeRegistry) -> None:
    registry.register(7, "orders-value", '"string"')
    registry.failures = [503, 429]
    assert client_of(registry).maybe_schema(7) is not None
    registry.failures = [503, 503, 503]
    with pytest.raises(Unreachable, match="not now"):
        client_of(registry).maybe_schema(7)


@pytest.mark.parametrize(
    ("status", "kind"), [(401, NotAllowed), (403, NotAllowed), (404, NotFound), (418, Unreachable)]
)
def test_what_is_no_answer_about_a_schema_is_not_taken_for_an_unknown_one(
    registry: FakeRegistry, status: int, kind: type[Exception]
) -> None:
    registry.failures = [status]
    with pytest.raises(kind):
        client_of(registry).maybe_schema(7)


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b"{}", b'{"schema": "x", "references": [{}]}', b" " * 200])
def test_an_answer_that_no_registry_gives_is_an_error(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(schema_registry, "ANSWER_BYTES_MAX", 100)
    registry.answers["/schemas/ids/7"] = answer
    with pytest.raises(Unreachable, match="does not answer as a schema registry does"):
        client_of(registry).maybe_schema(7)


def test_a_registry_that_is_not_there_is_an_error(registry: FakeRegistry) -> None:
    with pytest.raises(Unreachable, match="cannot reach"):
        RegistryClient(SchemaRegistry("http://127.0.0.1:1"), retries=1, backoff_s=0.001).maybe_schema(7)


def test_who_asks_is_told_and_shown_nowhere() -> None:
    login = "Basic " + base64.b64encode(b"ada:p/w").decode()
    with FakeRegistry(login) as registry:
        registry.register(7, "orders-value", '"string"')
        access = SchemaRegistry(registry.url.replace("//", "//ada:p%2Fw@"))
        assert access.url == registry.url and "p/w" not in repr(access) and "p%2F" not in repr(access)
        assert access.client().maybe_schema(7) is not None
        with pytest.raises(NotAllowed, match="who are you"):
            SchemaRegistry(registry.url, token="t").client().maybe_schema(7)
        assert registry.authorizations == [login, "Bearer t"]


@pytest.mark.parametrize("url", ["registry:8081", "ftp://a", "http://", "http://a:x", "http://a:99999", ""])
def test_what_is_no_url_of_a_registry_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="a schema registry is http"):
        SchemaRegistry(url)


def test_a_body_says_which_schema_it_is_of() -> None:
    assert taken_apart(b"\x00\x00\x00\x01\x02rest") == (258, b"rest")
    for body in (b"", b"\x00\x00\x00\x01", b"\x01\x00\x00\x00\x01x", b'{"id": 1}'):
        with pytest.raises(CorruptBody):
            taken_apart(body)
