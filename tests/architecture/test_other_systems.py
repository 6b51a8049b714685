"""Each feature that only Linux has is behind one interface: no other module names it. (decision 0049)"""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "warren"
ONLY_LINUX = re.compile(
    r"select\.(epoll|EPOLL\w+)\b|os\.(eventfd\w*|memfd_create|fdatasync|posix_fallocate|posix_fadvise|sched_\w+)\b"
    r"|signal\.SIGPWR|socket\.(TCP_KEEPIDLE|TCP_CONGESTION|TCP_USER_TIMEOUT|SO_PEERCRED)|[\"']/proc/"
)
# Where it is chosen what takes its place elsewhere.
CHOOSE = {
    "backup/directory.py",
    "lake/served.py",
    "msgstore/files/file_system.py",
    "server/descriptors.py",
    "server/links_mark.py",  # elsewhere no copy of a directory is told from the original
    "server/network/listening.py",
    "server/network/readiness.py",
    "server/process_memory.py",
    "server/regular_files.py",
    # A client on the same machine reads files instead of asking the broker. Other systems never recognise one.
    "mgmt_plugin/resources/data_port.py",
    "spark_bridge/local_files.py",
}


def test_what_only_linux_has_is_named_where_something_else_can_take_its_place() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        if not name.startswith("perf/") and any(
            ONLY_LINUX.search(line.partition("#")[0]) for line in path.read_text().splitlines()
        ):
            found.add(name)
    assert found <= CHOOSE


def test_what_a_confirm_waits_for_is_synced_in_one_place() -> None:
    """On macOS os.fsync leaves bytes in the cache of the disk."""
    syncing = re.compile(r"os\.(fsync|fdatasync)\(")
    found = {
        str(path.relative_to(PACKAGE))
        for package in ("msgstore", "server", "replication", "cluster")
        for path in (PACKAGE / package).rglob("*.py")
        if syncing.search(path.read_text())
    }
    assert found == {"msgstore/files/syncing.py"}
