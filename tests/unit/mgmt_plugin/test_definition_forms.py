"""Files of definitions that come in a form, as browsers and `curl -F` send them."""

from __future__ import annotations

import pytest

from warren.mgmt_plugin.http.server import HttpError
from warren.mgmt_plugin.resources.definitions import _file_of_form

TYPE = "multipart/form-data; boundary=b"


def form(*parts: tuple[bytes, bytes]) -> bytes:
    """Return a form with these heads and contents."""
    return b"".join(b"--b\r\n%s\r\n\r\n%s\r\n" % part for part in parts) + b"--b--\r\n"


def named(name: bytes) -> bytes:
    return b'Content-Disposition: form-data; name="%s"' % name


@pytest.mark.parametrize("content", [b"{}", b'{\r\n"a": "\xc3\xa9"\n}\r\n', b'{"a": "--c"}', b"\xff\x00"])
def test_the_file_comes_out_as_it_went_in(content: bytes) -> None:
    head = b'Content-Disposition: form-data; name="file"; filename="x.json"\r\nContent-Type: application/json'
    assert _file_of_form(TYPE, form((named(b"redirect"), b"/"), (head, content))) == content


def test_a_boundary_may_be_quoted() -> None:
    assert _file_of_form('multipart/form-data; boundary="b"', form((named(b"file"), b"{}"))) == b"{}"


@pytest.mark.parametrize(
    ("content_type", "body", "reason"),
    [
        (TYPE, form((named(b"other"), b"{}")), "no field file"),
        (TYPE, form((b"Content-Type: application/json", b"{}")), "no field file"),
        (TYPE, b"{}", "malformed|no field file"),
        (TYPE, b"", "malformed|no field file"),
        ("multipart/form-data", form((named(b"file"), b"{}")), "malformed"),
    ],
)
def test_a_form_without_a_file_is_refused(content_type: str, body: bytes, reason: str) -> None:
    with pytest.raises(HttpError) as refused:
        _file_of_form(content_type, body)
    assert refused.value.status == 400
    assert any(each in str(refused.value.reason) for each in reason.split("|"))
