"""The guide for Airflow: a real one, with the programs of the page, runs a DAG for what is published to a queue."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest
from broker_process import WarrenProcess, wait_until
from free_ports import free_port

from .page import ROOT, Page, Reader, read_page
from .test_guides import GUIDES, contents, require_installed

AIRFLOW = ROOT / ".cache" / "airflow" / "bin"
DEADLINE_S = 600.0


@contextmanager
def airflow(home: Path, broker: WarrenProcess) -> Iterator[None]:
    """Run all that Airflow consists of, on free ports; afterwards all of it is gone."""
    api = free_port()
    settings = {
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "API__PORT": str(api),
        "API__BASE_URL": f"http://127.0.0.1:{api}",
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{api}/execution/",
        "LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment |= {f"AIRFLOW__{name}": value for name, value in settings.items()}
    environment["PATH"] = f"{AIRFLOW}:{environment['PATH']}"
    environment["AIRFLOW_HOME"] = str(home)
    environment["AIRFLOW_CONN_WARREN"] = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/airflow"
    with (home / "output.log").open("wb") as output:
        started = subprocess.Popen(
            [AIRFLOW / "airflow", "standalone"],
            cwd=home,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield
        finally:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()


def orders_worked_on(home: Path) -> list[str]:
    """Return what tasks have printed of messages."""
    logs = [path.read_text() for path in sorted((home / "logs").glob("dag_id=orders/**/*.log"))]
    return [number for text in logs for number in re.findall(r'"event":"order (\d+)"', text)]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_dag_runs_when_messages_wait_and_works_on_each(tmp_path: Path) -> None:
    require_installed(AIRFLOW)
    home = tmp_path / "airflow"
    page = read_page(GUIDES / "airflow.md")
    (*prepare, publish_one), clean_up = page.sections
    with WarrenProcess(tmp_path / "broker") as broker:
        before = contents(broker)
        home.mkdir()
        Reader(Page(page.programs, [prepare]), home, broker).follow()
        parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, "airflow")

        def publish(numbers: range) -> None:
            with pika.BlockingConnection(parameters) as connection:
                channel = connection.channel()
                channel.queue_declare("orders", durable=True)
                channel.confirm_delivery()
                for number in numbers:
                    channel.basic_publish("", "orders", str(number).encode())

        def await_orders(count: int) -> None:
            wait_until(lambda: len(orders_worked_on(home)) >= count, f"{count} orders", DEADLINE_S)

        publish(range(3))
        with airflow(home, broker):
            try:
                await_orders(3)
                publish(range(3, 6))
                await_orders(6)
                Reader(Page({}, [[publish_one]]), home, broker).follow()
                await_orders(7)
            except AssertionError:
                print((home / "output.log").read_text(errors="replace")[-10_000:])
                raise
        assert sorted(map(int, orders_worked_on(home))) == [*range(6), 17]
        with pika.BlockingConnection(parameters) as connection:
            assert connection.channel().basic_get("orders")[0] is None
        Reader(Page({}, [clean_up]), home, broker).follow()
        assert contents(broker) == before, "the page does not clean up"
