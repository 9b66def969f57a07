"""The table of options against the pinned SGLang."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from engines.sglang.arguments import server_options
from engines.sglang.options import RESULT_NEUTRAL, table

pytestmark = pytest.mark.integration

_DESCRIBE = """
import inspect, json, sys, typing
from engines.sglang.servers import launcher
launcher.prepare()
from sglang.srt.server_args import ServerArgs
from engines.sglang.options import describe
hints = typing.get_type_hints(ServerArgs)
fields = {name: hints.get(name) for name in inspect.signature(ServerArgs).parameters}
print("TABLE" + json.dumps(describe(fields)))
"""


def test_the_table_is_that_of_the_pinned_server_args() -> None:
    """Made anew by the command below when SGLang is upgraded; see the script's last line."""
    done = subprocess.run(
        [sys.executable, "-c", _DESCRIBE], capture_output=True, text=True, timeout=300, check=True
    )
    found = json.loads(done.stdout.rpartition("TABLE")[2])
    assert found == table()


def test_every_option_that_is_named_here_exists() -> None:
    from pathlib import Path

    from engines.sglang.spec import FleetSpec

    used = server_options(FleetSpec(context_length=9), Path("m"), 1, 1, 0)
    assert set(RESULT_NEUTRAL) | set(used) <= set(table())
