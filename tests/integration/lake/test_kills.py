"""`warren lake` or the broker is killed at any moment: each message is in its table once.

This is follower (1) to (3), with real processes, catalogues and files.

WARREN_TEST_LAKE_KILLS is the number of kills. The seed chooses the process and the delay; the point within a commit
depends on the machine.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from broker_process import WarrenProcess

from warren.spark_bridge.control import BrokerClient

from .harness import TABLES, Lake, Publisher, declare, judge, wait_for_commits

pytest.importorskip("pyiceberg_core")
pytest.importorskip("deltalake")

KILLS = int(os.environ.get("WARREN_TEST_LAKE_KILLS", "3"))


@pytest.mark.long
@pytest.mark.timeout(300 + 60 * KILLS)
def test_each_message_is_in_its_table_once_whoever_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("WARREN_TEST_LAKE_SEED", "0")) or random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    settings = {
        "store.segment_bytes": chance.choice([64 << 10, 4 << 20]),
        "store.checkpoint_bytes": chance.choice([256 << 10, 16 << 20]),
        "store.disk_free_min_bytes": 0,
    }
    killed = {"lake": 0, "broker": 0}
    with WarrenProcess(tmp_path, settings=settings) as process:
        declare(process)
        url = f"http://127.0.0.1:{process.http_port}"
        lake = Lake(tmp_path / "lake", url)
        lake.configure(max_rows=chance.choice([20, 150, 1000]))
        publisher = Publisher(process.amqp_port, seed)
        publisher.start()
        try:
            for _ in range(KILLS):
                lake.start()
                wait_for_commits(lake, lake.commits() + chance.randrange(1, 2 * len(TABLES)))
                happening = chance.choice(["nothing", "nothing", "broker", "second"])
                if happening == "second":  # two that follow at once, of which the first is overtaken
                    lake.start()
                    time.sleep(chance.uniform(0.5, 2.0))
                time.sleep(chance.uniform(0, 0.5))  # a random moment
                if happening == "broker":
                    process.kill()
                    process.start()
                    killed["broker"] += 1
                    wait_for_commits(lake, lake.commits() + 1)
                killed["lake"] += lake.kill()
            publisher.end()
            lake.catch_up()
        finally:
            lake.kill()
        verdicts = judge(lake, BrokerClient(url), publisher)
    print(f"killed {killed}, {publisher.sent} messages to each source, {lake.commits()} commits")
    for table, verdict in verdicts.items():
        print(table, verdict)
    for table, verdict in verdicts.items():
        assert (verdict["lost"], verdict["doubled"], verdict["wrong"]) == (0, 0, 0), (table, verdict)
        assert verdict["rows"] > 0, table
