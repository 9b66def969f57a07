"""Two hosts, each with a network, mounts and processes of its own, as `make hosts` has three."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs.hosts.isolation import missing_for_hosts

pytestmark = pytest.mark.integration


def test_ranks_and_servers_work_on_two_hosts_as_on_one_and_leave_nothing(tmp_path: Path) -> None:
    if missing := missing_for_hosts():
        pytest.skip(f"hosts that are namespaces cannot be made: {missing}")
    rows = tmp_path / "rows.json"
    program = [sys.executable, "-m", "tests.programs.hosts", "short", str(rows)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    held = {row["name"]: row["holds"] for row in json.loads(rows.read_text())["rows"]}
    assert held["hosts of the ranks of one trainer"]
    assert held["hosts of the servers of one fleet"]
