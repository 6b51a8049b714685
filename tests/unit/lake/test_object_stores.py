"""The libraries' settings for an object store. object_stores (1), (2)."""

from __future__ import annotations

import pytest

from warren.lake.object_stores import catalog_properties, delta_storage

HTTP = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}
HTTPS = {"AWS_ENDPOINT_URL": "https://s3.example.org"}


def test_a_catalog_is_told_where_s3_is_and_in_which_region() -> None:
    environment = {**HTTP, "AWS_DEFAULT_REGION": "eu-west-1", "AWS_SECRET_ACCESS_KEY": "secret"}
    assert catalog_properties({"type": "sql"}, environment) == {
        "type": "sql",
        "s3.endpoint": "http://127.0.0.1:9000",
        "s3.region": "eu-west-1",
    }
    assert catalog_properties({}, {**environment, "AWS_ENDPOINT_URL_S3": "https://a", "AWS_REGION": "b"}) == {
        "s3.endpoint": "https://a",
        "s3.region": "b",
    }
    assert catalog_properties({"type": "sql"}, {}) == {"type": "sql"}


def test_properties_that_were_given_hold() -> None:
    given = {"s3.endpoint": "http://other", "s3.region": "other"}
    assert catalog_properties(given, {**HTTP, "AWS_REGION": "eu-west-1"}) == given


@pytest.mark.parametrize(
    ("url", "given", "environment", "allowed"),
    [
        ("s3://lake/orders", {}, HTTP, True),
        ("s3://lake/orders", {"endpoint_url": "http://127.0.0.1:9000"}, {}, True),
        ("s3://lake/orders", {"AWS_ENDPOINT_URL": "https://s3.example.org"}, HTTP, False),
        ("s3://lake/orders", {}, HTTPS, False),
        ("s3://lake/orders", {}, {}, False),
        ("lake/orders", {}, HTTP, False),
        ("gs://lake/orders", {}, HTTP, False),
    ],
)
def test_an_endpoint_without_tls_is_allowed_where_it_was_named(
    url: str, given: dict[str, str], environment: dict[str, str], allowed: bool
) -> None:
    assert delta_storage(url, given, environment) == given | ({"AWS_ALLOW_HTTP": "true"} if allowed else {})


def test_what_was_said_of_tls_holds() -> None:
    given = {"aws_allow_http": "false"}
    assert delta_storage("s3://lake/orders", given, HTTP) == given
