"""A certificate that cannot be verified: which option names the authority, and no second attempt."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from unit.ctl.fake_api import FakeApi
from warren.spark_bridge.bridge_errors import Unreachable
from warren.spark_bridge.control import BrokerClient


def test_an_unknown_authority_names_the_option_at_the_first_attempt(tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    api = FakeApi(tls)
    api.answer("GET", "whoami", {"name": "guest"})
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    try:
        for cacert in (None, str(other)):
            # A repetition would wait for hours.
            client = BrokerClient(api.url, cacert=cacert, backoff_s=10_000.0)
            with pytest.raises(Unreachable, match=r"from an unknown authority: .* --cacert FILE .*tls\.caFile"):
                client.queue_names()
    finally:
        api.close()
