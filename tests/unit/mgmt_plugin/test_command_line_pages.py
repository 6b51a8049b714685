"""RabbitMQ's page for rabbitmqadmin tells the reader what to use instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warren.mgmt_plugin.http.server import HttpError, Request, Response
from warren.mgmt_plugin.http.static_files import StaticFiles


async def no_body(limit_bytes: int, look: Any = None) -> bytes:
    return b""


def ask(path: str, method: str = "GET") -> Response:
    answer = StaticFiles().maybe_respond(Request(method, path, "", {}, "127.0.0.1", False, no_body))
    assert answer is not None
    return answer


@pytest.mark.parametrize("path", ["/cli", "/cli/", "/cli/index.html"])
def test_the_page_names_what_to_use(path: str) -> None:
    answer = ask(path)
    assert answer.status == 200 and answer.content_type.startswith("text/html")
    assert b"warren ctl" in answer.body and b"rabbitmqadmin" in answer.body


def test_a_script_that_downloads_rabbitmqadmin_and_runs_it_fails_with_the_reason(tmp_path: Path) -> None:
    answer = ask("/cli/rabbitmqadmin")
    assert answer.status == 200 and answer.content_type.startswith("text/plain")
    downloaded = tmp_path / "rabbitmqadmin"
    downloaded.write_bytes(answer.body)
    ended = subprocess.run([sys.executable, downloaded, "list", "queues"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "warren ctl" in ended.stderr


def test_nothing_is_changed_there() -> None:
    with pytest.raises(HttpError) as refused:
        ask("/cli/rabbitmqadmin", "PUT")
    assert refused.value.status == 405
