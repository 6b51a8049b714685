"""AMQP URIs: their meaning, and no secret of them is shown."""

from __future__ import annotations

import pytest

from warren.amqp_client.redaction import redact, redact_uri
from warren.links.amqp_uri import UriError, parse_uri


def test_every_part_of_a_uri_is_read() -> None:
    uri = parse_uri(
        "amqps://us%40er:p%2fw@broker.example:5699/v%2fh?heartbeat=7&connection_timeout=1500&channel_max=9"
        "&cacertfile=/ca.pem&certfile=/c.pem&keyfile=/k.pem&password=x&server_name_indication=name"
        "&auth_mechanism=external&auth_mechanism=plain&unknown=1"
    )
    assert (uri.tls, uri.host, uri.port, uri.vhost) == (True, "broker.example", 5699, "v/h")
    assert (uri.user, uri.password) == ("us@er", "p/w")
    assert (uri.heartbeat_s, uri.connection_timeout_ms, uri.channel_max) == (7, 1500, 9)
    assert (uri.ca_file, uri.certificate_file, uri.key_file, uri.key_password) == ("/ca.pem", "/c.pem", "/k.pem", "x")
    assert (uri.server_name, uri.mechanisms, uri.verify) == ("name", ("EXTERNAL", "PLAIN"), True)


@pytest.mark.parametrize(
    ("text", "host", "port", "vhost"),
    [
        ("amqp://", "", 5672, "default"),
        ("amqp:///other", "", 5672, "other"),
        ("amqp:///", "", 5672, ""),
        ("amqp://h", "h", 5672, "default"),
        ("amqp://h/", "h", 5672, ""),
        ("amqp://h/%2f", "h", 5672, "/"),
        ("amqps://h", "h", 5671, "default"),
        ("AMQP://h:1", "h", 1, "default"),
        ("amqp://[::1]:7/v", "::1", 7, "v"),
        ("amqp://[fe80::1]", "fe80::1", 5672, "default"),
        ("amqp://u:a:b@h", "h", 5672, "default"),
    ],
)
def test_what_is_left_out_has_a_default(text: str, host: str, port: int, vhost: str) -> None:
    uri = parse_uri(text, "default")
    assert (uri.host, uri.port, uri.vhost, uri.is_local) == (host, port, vhost, not host)


def test_a_host_has_at_most_the_characters_that_the_domain_name_system_allows() -> None:
    longest = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 61])
    assert parse_uri(f"amqp://{longest}").host == longest
    with pytest.raises(UriError, match="more than 253 characters"):
        parse_uri(f"amqp://{longest}x")


def test_certificates_are_checked_unless_the_uri_says_otherwise() -> None:
    assert parse_uri("amqps://h").verify
    assert parse_uri("amqps://h?verify=anything").verify
    assert not parse_uri("amqps://h?verify=verify_none").verify


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no_scheme"),
        ("h", "no_scheme"),
        ("http://h", "unexpected_uri_scheme"),
        ("amqp:h", "malformed_uri"),
        ("amqp://h:port", "malformed_uri"),
        ("amqp://:5672", "malformed_uri"),
        ("amqp://[::1", "malformed_uri"),
        ("amqp://h:70000", "port_out_of_range"),
        ("amqp://h:0", "port_out_of_range"),
        ("amqp://h/a/b", "invalid_vhost"),
        ("amqp://h/" + "v" * 256, "invalid_vhost"),
        ("amqp://h%00", "the host name contains a NUL"),
        ("amqps://h?server_name_indication=" + "%C3%A9." * 127, "server_name_indication has more than 253 characters"),
        ("amqps://h?server_name_indication=a%00b", "server_name_indication contains a NUL"),
        ("amqp://u:%zz@h", "invalid_entity"),
        ("amqp://h/%2", "unterminated_entity"),
        ("amqp://h/%ff", "not UTF-8"),
        ("amqp://h?heartbeat=x", "not_an_integer"),
    ],
)
def test_what_is_no_uri_is_refused_for_a_reason_that_does_not_quote_it(text: str, reason: str) -> None:
    with pytest.raises(UriError) as refusal:
        parse_uri(text)
    assert reason in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        "amqp://user:s3cret@h/v",
        "amqps://user:s3cret@h:1/v?password=s3cret",
        "amqp://s3cret@h",
        "amqp://user:s3cret@s3cret@h/v",
        "amqp://user:a/s3cret@h/v",
        "amqp:user:s3cret@h/v",
        "user:s3cret@h/v",
        "http://user:s3cret@h/v",
        " amqp://user:s3cret@h",
    ],
)
def test_no_secret_survives_redaction_however_broken_the_uri(text: str) -> None:
    assert "s3cret" not in redact_uri(text)
    assert redact_uri(text).partition("//")[2].startswith("h") or "//" not in redact_uri(text)


@pytest.mark.parametrize(
    "uri",
    [
        "amqp://user:a?s3cret@h/v",
        "amqp://user:a@s3cret?b@h/v",
        "amqps://user:p@h/v?password=a@s3cret",
        "amqps://user:p@h/v?cacertfile=/a@b.pem&password=s3cret",
    ],
)
def test_of_a_uri_with_a_question_mark_before_an_at_sign_only_the_scheme_is_shown(uri: str) -> None:
    scheme = uri.partition("//")[0]
    assert redact_uri(uri) == f"{scheme}//"
    assert redact(f"cannot reach {uri} now") == f"cannot reach {scheme}// now"


def test_what_is_shown_of_a_uri_is_scheme_place_and_vhost() -> None:
    assert redact_uri("amqp://u:p@h:5/v%2f?heartbeat=5") == "amqp://h:5/v%2f"
    assert redact_uri("amqp:///v") == "amqp:///v"
    assert redact_uri("amqp://") == "amqp://"
    uri = parse_uri("amqp://u:s3cret@h")
    assert uri.shown == "amqp://h"
    assert "s3cret" not in repr(uri)


def test_uris_inside_other_text_are_redacted_and_the_rest_stays() -> None:
    text = "cannot reach amqp://u:s3cret@h/v?x=s3cret (or 'AMQPS://u:s3cret@k') at mail@example"
    assert redact(text) == "cannot reach amqp://h/v (or 'AMQPS://k') at mail@example"
